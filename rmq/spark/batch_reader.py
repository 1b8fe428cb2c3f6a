"""The batch reader: reads messages of one state, such as the backlog, as a frame without claiming them."""

from __future__ import annotations

import marshal
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any, cast
from zlib import crc32

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from rmq import StreamTopic, Topic, TopicType
from rmq.errors import InvalidValueError, ScriptFailedError
from rmq.spark import entries
from rmq.spark.arrow import pa, spark_types
from rmq.spark.calls import BOTH, Page, Parts, place_keys, read_place
from rmq.spark.entries import GroupStates
from rmq.spark.options import Options, check_topic
from rmq.spark.schema import (
    check_topic_has,
    columns_of,
    entry_columns,
    every_column,
    more_of,
    names_of,
    offered,
    parts_of,
    sends_of,
    together,
    topics_of,
)
from rmq.spi import AnyPlace, id_key
from rmq.spi.scripts import MAX_BATCH, Connections, dead_message, meaning_of, priority_of, score_of, slot_keys, unwrap

PLACES: dict[str, AnyPlace] = {"backlog": "store", "inflight": "prepare", "waiting": "retry", "dead": "dead"}


@dataclass
class SlotsPartition(InputPartition):
    """The slots that one task reads, and the topic's definition, so that tasks need not fetch it."""

    topic: Topic
    slots: tuple[int, ...]


@dataclass
class EntriesPartition(InputPartition):
    """The slots of a STREAM topic that one task reads, each with the ids of its first and last entry."""

    topic: Topic
    ranges: tuple[tuple[int, str, str], ...]


class RmqReader(DataSourceReader):
    """Reads one state of a topic's messages, or a range of a STREAM topic.

    Guarantee: no message is claimed. `scan`: a message that keeps its state while its slot is read is read exactly
    once. `atomic`: each slot is read at one instant. A range ends at the last entry that existed when the tasks were
    planned.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema, self._options = schema, options
        self._filters: list[Filter] = []

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions: one per slot, or fewer with several slots each if `maxPartitions` is smaller."""
        with closing(self._options.connections()) as connections:
            topics = topics_of(connections, self._options)
            for topic in topics:
                check_topic(topic, self._options)
            check_columns(topics, self._options, self._schema)
            slots = {topic.name: self._slots_of(topic) for topic in topics}
            most, size = self._options.task_numbers[1], max(1, sum(map(len, slots.values())))
            found: list[InputPartition] = []
            for topic in topics:
                own = slots[topic.name]
                found += self._tasks(connections, topic, own, most * len(own) // size)
            return found

    def _tasks(self, connections: Connections, topic: Topic, slots: list[int], most: int) -> Sequence[InputPartition]:
        number = max(1, min(len(slots), most))  # Spark needs at least one partition, even without a slot
        if topic.type is not TopicType.STREAM:
            return [SlotsPartition(topic, tuple(slots[first::number])) for first in range(number)]
        ranges = self._ranges(connections, topic, slots)
        return [EntriesPartition(topic, tuple(ranges[first::number])) for first in range(number)]

    def _slots_of(self, topic: Topic) -> list[int]:
        return [slot for slot in range(topic.slots) if all(allows(each, slot) for each in self._filters)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the slots of a partition, a page at a time."""
        with closing(self._options.connections()) as connections:
            if isinstance(partition, EntriesPartition):
                yield from self._entries(connections, partition)
                return
            partition = cast(SlotsPartition, partition)
            for slot in partition.slots:
                for page in self._pages(connections, partition.topic, slot):
                    if page.rows:
                        yield to_arrow(self._schema, partition.topic, slot, self._options.queue, page)

    def _entries(self, connections: Connections, partition: EntriesPartition) -> Iterator[Any]:
        topic, group = partition.topic, self._options.states_of
        for slot, first, last in partition.ranges:
            states = None if group is None else GroupStates(connections, topic, slot, group)
            for page in entries.pages(connections, topic, slot, first, last):
                found = entries.for_group(page, group)
                if found:
                    told = [] if states is None else [states.of(entry) for entry in found]
                    yield entries.to_arrow(self._schema, found, told)
            if self._options.ranges is not None:
                entries.check_there(connections, topic, slot, first)

    def _ranges(self, connections: Connections, topic: Topic, slots: Sequence[int]) -> list[tuple[int, str, str]]:
        """Return the range to read of each slot; slots without entries are omitted."""
        if self._options.ranges is None:
            lasts = _last_entries(connections, topic, slots, self._options.last)
            return [(slot, self._options.first or "-", last) for slot, last in lasts]
        for slot, _, _ in self._options.ranges:
            if not 0 <= slot < topic.slots:
                raise InvalidValueError(
                    f"ranges names slot {slot}; the slots of topic {topic.name} are 0 to {topic.slots - 1}",
                    topic=topic.name,
                )
        return [each for each in self._options.ranges if each[0] in slots]

    def _pages(self, connections: Connections, topic: Topic, slot: int) -> Iterator[Page]:
        place, options = PLACES[self._options.queue], self._options
        parts = parts_of(topic, self._schema.names)
        if options.snapshot == "atomic":
            page = _at_once(connections, topic, slot, place, options.atomic_limit, parts)
            if page.size > options.atomic_limit:
                raise InvalidValueError(
                    f"slot {slot} of topic {topic.name} holds {page.size} messages, but snapshot=atomic reads up to "
                    f"atomicLimit, {options.atomic_limit}, in one step that blocks Redis: raise atomicLimit, or "
                    "use snapshot=scan"
                )
            yield page
            return
        yield from _scan(connections, topic, slot, place, options.chunk_size, parts)


class PruningReader(RmqReader):
    """The reader with `pushdown`: skips slots that a filter excludes. Spark still applies all filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Store the filters on `slot`, and return all filters, so that Spark applies them too."""
        self._filters = [each for each in filters if getattr(each, "attribute", None) == ("slot",)]
        return filters


def topic_columns(topic: Topic, options: Options) -> StructType:
    """Return the columns of a read of a topic."""
    if topic.type is TopicType.STREAM:
        return entry_columns(grouped=options.states_of is not None)
    return columns_of(options.queue, topic.merge)


def check_columns(topics: Sequence[Topic], options: Options, schema: StructType) -> None:
    """Raise `InvalidValueError` for a column that a read of these topics does not have."""
    check_topic_has(names_of(topics), offered(topics[0], options, columns_of_topics(topics, options)), schema)


def columns_of_topics(topics: Sequence[Topic], options: Options) -> StructType:
    """Return the columns of a read of several topics: the union of their columns.

    With a pattern they are the columns for all types of topics, since the query may find new topics later.
    """
    found = [topic_columns(topic, options) for topic in topics]
    return together([*found, every_column(options.queue)] if options.topic_pattern is not None else found)


def _last_entries(
    connections: Connections, topic: Topic, slots: Sequence[int], last: str | None
) -> list[tuple[int, str]]:
    """Return the id of the last entry to read in each slot; empty slots are omitted."""
    found: list[tuple[int, str]] = []
    for each in StreamTopic(connections, topic).stats(slots).slots:
        if each.last_id:
            sooner = last is not None and id_key(last) < id_key(each.last_id)
            found.append((each.slot, cast("str", last) if sooner else each.last_id))
    return found


_PASSES: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    In: lambda slot, values: slot in values,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def allows(condition: Filter, slot: int) -> bool:
    """Return whether rows of a slot can pass a filter on `slot`; True for unknown kinds of filters."""
    passes = _PASSES.get(type(condition))
    return passes is None or passes(slot, cast("Any", condition).value)


MOST_SEEN = 200_000
"""Maximum number of contents in memory, about 40 MB, for removing the duplicates of a scan."""

MOST_FILES = 256
"""Maximum number of files that a task writes for a slot with more messages."""


def _at_once(
    connections: Connections, topic: Topic, slot: int, place: AnyPlace, most: int, parts: Parts = BOTH
) -> Page:
    """Read the messages of one state at one instant, or only their number if there are more than `most`.

    A transaction is used rather than a script, as Lua needs more than a second to intern 100,000 similar contents.
    """
    keys = place_keys(topic, slot, place)
    size = int(connections.command("ZCARD", keys.zset, key=keys.zset))
    if size > most:
        return Page("", size, [])
    wanted = {keys.body: parts.bodies, keys.reason: parts.reasons and place == "dead"}
    hashes = [key for key, needed in wanted.items() if needed]
    ranged = ("ZRANGE", keys.zset, 0, most, "WITHSCORES")  # one more than the limit
    reads = (("HGETALL", key) for key in hashes)
    size, items, *found = connections.read_at_once(keys.zset, ("ZCARD", keys.zset), ranged, *reads)
    if size > most:
        return Page("", size, [])
    said = {key: _fields(flat) for key, flat in zip(hashes, found, strict=True)}
    bodies, reasons = said.get(keys.body, {}), said.get(keys.reason, {})
    rows = [
        (content, score_of(score), bodies.get(content), reasons.get(content))
        for content, score in zip(items[::2], items[1::2], strict=True)
    ]
    return Page("", size, rows)


def _fields(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _scan(
    connections: Connections, topic: Topic, slot: int, place: AnyPlace, most: int, parts: Parts = BOTH
) -> Iterator[Page]:
    """Read the messages of one state page by page, each message once.

    A cursor is valid only on the server that returned it. If another server answers meanwhile, or the same server
    after a restart, the scan starts again.
    """

    def pages() -> Iterator[Page]:
        cursor = "0"
        while cursor:
            page = connections.run(read_place(topic, slot, place, "scan", cursor, most, parts=parts))
            cursor, left = page.cursor, list(page.rest)
            yield page
            while left:
                part = left[:MAX_BATCH]
                named = connections.run(read_place(topic, slot, place, "named", contents=part, parts=parts))
                yield named._replace(cursor=cursor)
                left = [*named.rest, *left[MAX_BATCH:]]

    def passes() -> Iterator[Page]:
        key = slot_keys(topic.name, slot).store
        server = None
        while server is None or server != _server_of(connections, key):
            server = _server_of(connections, key)
            yield from pages()

    first = next(pages())
    if not first.cursor and not first.rest:
        yield from _fresh([first])
    elif first.size <= MOST_SEEN:
        yield from _fresh(passes())
    else:
        yield from _sorted_out(passes(), first.size)


def _fresh(pages: Iterable[Page]) -> Iterator[Page]:
    """Yield pages without the messages of earlier ones."""
    seen: set[bytes] = set()
    for page in pages:
        rows = {row[0]: row for row in page.rows if row[0] not in seen}
        seen.update(rows)
        yield page._replace(rows=list(rows.values()))


def _sorted_out(pages: Iterable[Page], size: int) -> Iterator[Page]:
    """Yield the messages of many pages without duplicates, with only a part of the contents in memory at a time.

    Messages are written to files by a hash of their content, so that duplicates meet in one file.
    """
    number = min(MOST_FILES, -(-size // (MOST_SEEN // 4)))
    with ExitStack() as files:
        parts = [files.enter_context(TemporaryFile()) for _ in range(number)]
        for page in pages:
            split: dict[int, list[Any]] = {}
            for row in page.rows:
                split.setdefault(crc32(row[0]) % number, []).append(row)
            for part, rows in split.items():
                marshal.dump(rows, parts[part])
        for part in parts:
            part.seek(0)
            yield from _fresh(_pages_of(part, size))


def _pages_of(file: IO[bytes], size: int) -> Iterator[Page]:
    with suppress(EOFError):
        while True:
            yield Page("", size, marshal.load(file))  # noqa: S302 - this task has written it


def _server_of(connections: Connections, key: str) -> bytes:
    """Return the run id of the server that has a key; empty if this user may not read it."""
    try:
        found = re.search(rb"run_id:(\w+)", connections.command("INFO", "server", key=key))
    except ScriptFailedError:
        return b""
    return found[1] if found else b""


def to_arrow(schema: StructType, topic: Topic, slot: int, queue: str, page: Page) -> Any:
    """Return a page with the columns that Spark asks for."""
    contents, scores, stored, _ = zip(*page.rows, strict=True)
    names = frozenset(schema.names)
    columns = _of_dead(topic, slot, page) if queue == "dead" else _of_queue(topic, queue, scores)
    sent = list(map(unwrap, stored))
    sends = None if topic.merge is None else sends_of(stored)
    columns |= {"body": [body for body, _ in sent]} if sends is None else sends
    columns |= more_of(names, topic, PLACES[queue], scores, [trace for _, trace in sent], sends)
    columns |= {"content": contents, "topic": [topic.name] * len(contents), "slot": [slot] * len(contents)}
    form = spark_types.to_arrow_schema(schema, timezone="UTC")
    nothing = [None] * len(contents)  # a column of other topics of the read
    arrays: list[Any] = [pa.array(columns.get(name, nothing), form.field(name).type) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=form)


def _of_queue(topic: Topic, queue: str, scores: Sequence[int]) -> dict[str, Sequence[Any]]:
    place = PLACES[queue]
    if place == "dead":
        raise AssertionError("internal error: this conversion is not for dead messages")
    dues, lefts = zip(*(meaning_of(topic, place, score) for score in scores), strict=True)
    return {
        "score": scores,
        "priority": [priority_of(topic, place, score) for score in scores],
        "due": [None if due_ms is None else due_ms * 1_000 for due_ms in dues],
        "retries_left": lefts,
    }


def _of_dead(topic: Topic, slot: int, page: Page) -> dict[str, Sequence[Any]]:
    dead = [
        dead_message(topic, slot, content, b"%d" % died_ms, reason, None) for content, died_ms, _, reason in page.rows
    ]
    return {
        "died": [message.died_ms * 1_000 for message in dead],
        "error_type": [message.error_type for message in dead],
        "error_message": [message.error_message for message in dead],
        "attempts": [message.attempts for message in dead],
        "first_failed": [message.first_failed_ms * 1_000 for message in dead],
        "last_failed": [message.last_failed_ms * 1_000 for message in dead],
    }
