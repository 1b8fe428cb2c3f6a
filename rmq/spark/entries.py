"""Reads of STREAM topics: the entries of a range, and the state of each entry in a group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from pyspark.sql.types import StructType

from rmq import PendingEntry, StreamEntry, StreamTopic, Topic
from rmq.errors import BatchLostError
from rmq.spark.arrow import pa, spark_types
from rmq.spi import id_key
from rmq.spi.scripts import MAX_BATCH, Connections, group_stats, list_dead, read_stream

State = tuple[str, str | None, int | None, int | None]
"""The state of an entry in a group, its consumer, its number of deliveries, and its idle time in ms."""


def pages(connections: Connections, topic: Topic, slot: int, first: str, last: str) -> Iterator[list[StreamEntry]]:
    """Yield the entries of a range of a slot page by page, in the order of ids.

    Args:
        connections: Connections to Redis.
        topic: The definition.
        slot: The slot.
        first: Id of the first entry, `(` and the id before it, or `-`.
        last: Id of the last entry, or `+`.
    """
    while page := connections.run(read_stream(topic, slot, first, last, MAX_BATCH, down=False)):
        yield page
        first = f"({page[-1].id}"


def check_there(connections: Connections, topic: Topic, slot: int, first: str) -> None:
    """Check that a range was complete while it was read: trimming removes the oldest entry first.

    Raises:
        BatchLostError: The first entry of the range is gone.
    """
    if not connections.run(read_stream(topic, slot, first, first, 1, down=False)):
        raise BatchLostError(
            f"topic {topic.name}: entries of slot {slot} from {first} on were trimmed or deleted after the "
            "ranges were determined. Determine the ranges again, or call whole_stream again",
            topic=topic.name,
            slot=slot,
        )


class GroupStates:
    """Looks up the state in a group of a slot's entries, in the order of their ids.

    It reads the group's pending list in parallel, page by page, so that the list is never held in memory.

    Args:
        connections: Connections to Redis.
        topic: The definition.
        slot: The slot.
        group: Name of the group; if it does not exist in the slot, all entries are unread.
    """

    def __init__(self, connections: Connections, topic: Topic, slot: int, group: str) -> None:
        self._connections, self._topic, self._slot, self._group = connections, topic, slot, group
        stats = connections.run(group_stats(topic, slot, group))
        self._last_read = id_key(stats.last_id or "0-0")
        self._dead = frozenset(self._dead_ids())
        found = StreamTopic(connections, topic).pending(group, slots=[slot])
        self._pending: Iterator[PendingEntry] = found if stats.last_id else iter(())
        self._next = next(self._pending, None)

    def of(self, entry: StreamEntry) -> State:
        """Return the state of an entry."""
        key = id_key(entry.id)
        while self._next is not None and id_key(self._next.id) < key:
            self._next = next(self._pending, None)
        found = self._next
        if found is not None and found.id == entry.id:
            state = "waiting" if found.consumer is None else "in_flight"
            return state, found.consumer, found.deliveries, found.idle_ms
        if entry.id in self._dead:
            return "dead", None, None, None
        return "acked" if key <= self._last_read else "unread", None, None, None

    def _dead_ids(self) -> Iterator[str]:
        start = 0
        while True:
            page = self._connections.run(list_dead(self._topic, self._slot, start, MAX_BATCH, self._group))
            yield from (dead.id for dead in page)
            if not page:
                return
            start += len(page)


def for_group(entries: Iterable[StreamEntry], group: str | None) -> list[StreamEntry]:
    """Return entries without the copies redriven into groups other than `group`; all entries if `group` is `None`."""
    return [entry for entry in entries if group is None or entry.only_group in (None, group)]


def to_arrow(schema: StructType, entries: Sequence[StreamEntry], states: Sequence[State] = ()) -> Any:
    """Return entries of one topic as a record batch with the requested columns.

    Args:
        schema: The requested columns.
        entries: One or more entries.
        states: Returns the state of each entry in a group; `None` for reads without a group.
    """
    form = spark_types.to_arrow_schema(schema, timezone="UTC")
    arrays: list[Any] = [pa.array(list(_column(name, entries, states)), form.field(name).type) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=form)


_STATES = ("state", "consumer", "deliveries", "idle_ms")


def _column(name: str, entries: Sequence[StreamEntry], states: Sequence[State]) -> Iterable[Any]:
    if name in _STATES:
        at = _STATES.index(name)
        return (state[at] for state in states)
    if name == "sent":
        return (entry.time_ms * 1_000 for entry in entries)
    if name == "fields":
        return (list(entry.fields.items()) for entry in entries)
    return map(attrgetter(name), entries)
