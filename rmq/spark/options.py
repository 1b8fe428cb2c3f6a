"""The options of `format("rmq")`: read and checked in one place. Spark hands them over as text, keys in any case."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from rmq._model.entries import checked_group, is_id, position
from rmq._model.times import parse_duration_ms
from rmq._model.topics import MAX_SLOTS, Topic, TopicType, is_name
from rmq._transport.connections import Connections
from rmq._transport.durability import Durability, parse_durability
from rmq._transport.urls import Topology, parse_url
from rmq.errors import InvalidUrlError, InvalidValueError

_OF_SPARK = frozenset(
    "path paths checkpointlocation queryname outputmode header provider maxrecordsperfile recursivefilelookup".split()
)
"""Options that Spark itself adds, or that other sources share with us."""

PLAN_S = 10.0
"""How long a program waits for an answer before it reads or writes, seconds: a wrong address shall show soon."""

MAX_RATE = 1_000_000
"""Largest `maxRate`, messages a second."""

MOST_MESSAGES = 10**9
"""Most messages of a micro-batch."""

MOST_BYTES = 2**40
"""Most bytes of a micro-batch."""

TRIGGER_DELAY_MS = 900_000
"""How long a batch waits for its fewest messages unless told: as long as in Spark's Kafka source."""

LAST_SEQUENCE = 2**64 - 1
"""The last entry of a millisecond."""

MOST_PARTITIONS = 200
"""Most partitions of a read where no option says how many."""

Convert = Callable[[str, str], Any]
"""Turns the text of an option into its value; the second argument is the option's name, for errors."""


def _text(text: str, name: str) -> str:
    if not text:
        raise InvalidValueError(f"{name} is empty")
    return text


def _flag(text: str, name: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidValueError(f"{name} is {text!r}; it must be true or false")
    return text.lower() == "true"


def _whole(low: int, high: int) -> Convert:
    def convert(text: str, name: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise InvalidValueError(f"{name} is {text!r}; it must be a whole number from {low} to {high}")
        return int(text)

    return convert


def _duration_ms(text: str, name: str) -> int:
    """Return a duration in ms: `5s`, `500 ms`, `2h`, or a plain number of ms."""
    return parse_duration_ms(f"{text}ms" if text.isdecimal() else text.replace(" ", "", 1), name)


def _seconds(low: int, high: int) -> Convert:
    """Seconds as a plain number, or with a unit."""
    whole = _whole(low, high)

    def convert(text: str, name: str) -> int:
        return whole(str(_duration_ms(text, name) // 1000) if text[-1:].isalpha() else text, name)

    return convert


def _rate(text: str, name: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0.001 <= rate <= MAX_RATE:
        raise InvalidValueError(f"{name} is {text!r}; it must be a number of messages a second, 0.001 to {MAX_RATE:,}")
    return rate


def _time_range(text: str, name: str) -> int:
    time_range_ms = _duration_ms(text, name)
    if time_range_ms == 0:
        raise InvalidValueError(f"{name} is {text!r}; it must be more than 0")
    return time_range_ms


def _choice(*choices: str) -> Convert:
    def convert(text: str, name: str) -> str:
        if text.lower() not in choices:
            raise InvalidValueError(f"{name} is {text!r}; it must be one of {', '.join(choices)}")
        return text.lower()

    return convert


def _merge(text: str, name: str) -> str:
    if text.lower() == "all":
        raise InvalidValueError(
            "merge is 'all': a sink cannot move rows between partitions; write rmq.spark.merged(frame, type, order_by) "
            "with merge=none"
        )
    return _choice("partition", "none")(text, name)


def _no_zookeeper(_text: str, name: str) -> None:
    raise InvalidValueError(
        f"format rmq takes no {name}: Spark takes part in no ownership; leave the option out, and read a stream from a "
        "topic that has no owners"
    )


def _group(text: str, _name: str) -> str:
    return checked_group(text)


def _position(text: str, name: str) -> str:
    """Return an id as it is, and a time with a zone as the id of its millisecond."""
    if is_id(text):
        return text
    try:
        return position(datetime.fromisoformat(text), name)
    except ValueError:
        rule = "it must be an entry's id, epoch ms, or a time with its zone such as 2026-11-20T08:00:00Z"
        raise InvalidValueError(f"{name} is {text!r}; {rule}") from None


def _start(text: str, name: str) -> str:
    """Return `new`, `all`, or the id after which a group begins: an id as it is, of a time the last one before it."""
    if text.lower() in ("new", "all"):
        return text.lower()
    found = _position(text, name)
    if "-" in found:
        return found
    return f"{int(found) - 1}-{LAST_SEQUENCE}" if int(found) else "0-0"


def _ranges(text: str, name: str) -> tuple[tuple[int, str, str], ...]:
    with suppress(AttributeError, TypeError, ValueError):
        found = [(int(slot), *ends) for slot, ends in json.loads(text).items()]
        if all(len(each) == 3 and is_id(each[1]) and is_id(each[2]) for each in found):
            return tuple(sorted(found))
    rule = 'it must be JSON with the ids of the first and last entry of each slot, as {"0": ["5-0", "9-0"]}'
    raise InvalidValueError(f"{name} is {text!r:.100}; {rule}")


def _topic_type(text: str, name: str) -> TopicType:
    try:
        return TopicType[text.upper().replace("-", "_")]
    except KeyError:
        names = ", ".join(kind.name for kind in TopicType)
        raise InvalidValueError(f"{name} is {text!r}; it must be one of {names}") from None


def _columns(text: str, name: str) -> tuple[str, ...]:
    names = tuple(each.strip().lower() for each in text.split(","))
    if "" in names or len(set(names)) < len(names):
        rule = "it must be names of columns, each once, separated by commas; * stands for the usual ones"
        raise InvalidValueError(f"{name} is {text!r}; {rule}")
    return names


def _topics(text: str, name: str) -> tuple[str, ...]:
    names = tuple(each.strip() for each in text.split(","))
    if len(set(names)) < len(names) or not all(map(is_name, names)):
        rule = "it must be names of topics, each once, separated by commas"
        raise InvalidValueError(f"{name} is {text!r}; {rule}")
    return names


def _pattern(text: str, name: str) -> str:
    try:
        re.compile(_text(text, name))
    except re.error as error:
        raise InvalidValueError(f"{name} is {text!r}; it must be a regular expression: {error}") from None
    return text


def _messages(text: str, name: str) -> int:
    return MOST_MESSAGES if text.lower() == "all" else _whole(1, MOST_MESSAGES)(text, name)


def _bytes(text: str, name: str) -> int:
    """Return a number of bytes: plain, or with a unit as Spark takes it (`64m`)."""
    found = re.fullmatch("([0-9]{1,15})([kmg]?)b?", text.lower())
    number = int(found[1]) * 1_024 ** " kmg".index(found[2] or " ") if found else 0
    if not 1 <= number <= MOST_BYTES:
        raise InvalidValueError(f"{name} is {text!r}; it must be a number of bytes such as 64m, up to 1024g")
    return number


def _option(name: str, convert: Convert, default: Any, doc: str) -> Any:
    """Declare an option: its name in the documentation, what turns its text into its value, its default, its effect."""
    return field(default=default, metadata={"name": name, "convert": convert, "doc": doc})


@dataclass(frozen=True)
class Options:
    """All options; which of them count depends on what is read or written."""

    url: str = _option("url", _text, "", "Address of Redis; by default `RMQ_URL` of the driver.")
    zookeeper: None = _option("zookeeper", _no_zookeeper, None, "Refused.")
    topic: str | None = _option("topic", _text, None, "Topic name; beats the column `topic` of a sink.")
    topics: tuple[str, ...] | None = _option("topics", _topics, None, "Several topics of a read.")
    topic_pattern: str | None = _option("topicPattern", _pattern, None, "Topics of a read by their names.")
    type: TopicType | None = _option("type", _topic_type, None, "Type of a topic that is not registered yet.")  # noqa: RUF009 - a field
    slots: int | None = _option("slots", _whole(1, MAX_SLOTS), None, "Number of slots of such a topic.")
    durability: str = _option("durability", _choice("memory", "replicated", "fsync"), "memory", "As for `RmqClient`.")
    replicas: int | None = _option("replicas", _whole(0, 100), None, "How many replicas have to confirm.")
    deadline_s: int = _option("deadlineSeconds", _seconds(1, 86_400), 60, "How long a task repeats what it may repeat.")
    queue: str = _option("queue", _choice("backlog", "inflight", "waiting", "dead"), "backlog", "What a read reads.")
    columns: tuple[str, ...] | None = _option("columns", _columns, None, "Columns of a read; `*`: the usual ones.")
    snapshot: str = _option("snapshot", _choice("scan", "atomic"), "scan", "`atomic` reads each slot at one instant.")
    group: str | None = _option("group", _group, None, "Group as which a query follows a STREAM topic.")
    start: str = _option("start", _start, "new", "Where a group begins that is new.")
    states_of: str | None = _option("statesOf", _group, None, "Group of which a read tells what it has done.")
    first: str | None = _option("first", _position, None, "First entry of a read of a STREAM topic: an id or a time.")
    last: str | None = _option("last", _position, None, "Last entry of such a read.")
    ranges: tuple[tuple[int, str, str], ...] | None = _option("ranges", _ranges, None, "Entries of each slot of it.")
    atomic_limit: int = _option("atomicLimit", _whole(1, 10_000_000), 100_000, "Most messages of a slot in one read.")
    pushdown: bool = _option("pushdown", _flag, False, "Use filters on `slot` when partitions are planned.")
    min_partitions: int | None = _option("minPartitions", _whole(1, MAX_SLOTS), None, "Fewest partitions of a read.")
    max_partitions: int | None = _option("maxPartitions", _whole(1, MAX_SLOTS), None, "Most partitions of a read.")
    max_messages: int = _option("maxMessagesPerTrigger", _messages, 100_000, "Most messages of a micro-batch.")
    min_messages: int = _option("minMessagesPerTrigger", _whole(1, MOST_MESSAGES), 1, "Fewest messages of a batch.")
    max_delay_ms: int | None = _option("maxTriggerDelay", _time_range, None, "How long a batch waits for that many.")
    max_bytes: int | None = _option("maxBytesPerTrigger", _bytes, None, "Most bytes of a micro-batch, about.")
    lease_s: int | None = _option("leaseSeconds", _seconds(1, 86_400), None, "Refused by the source.")
    fail_on_lease_lost: bool = _option("failOnLeaseLost", _flag, True, "Fail a batch that lost leases before its read.")
    fail_on_data_loss: bool = _option("failOnDataLoss", _flag, True, "Fail a query that Redis has forgotten.")
    max_replays: int | None = _option("maxReplays", _whole(0, 999), None, "Replays of a batch before it is halved.")
    time_range_ms: int | None = _option("time_range", _time_range, None, "Merge window of all rows, not of a column.")
    priority: int | None = _option("priority", _whole(1, 2**53 - 1), None, "Priority of all rows, not of a column.")
    chunk_size: int = _option("chunkSize", _whole(1, 1_000), 1_000, "Most messages in one script call.")
    pipeline_depth: int = _option("pipelineDepth", _whole(1, 64), 4, "Most script calls in one round trip to a server.")
    merge: str | None = _option("merge", _merge, None, "`partition` folds equal contents of a task; `none` does not.")
    merge_rows: int = _option("mergeRows", _whole(1, 10_000_000), 50_000, "Most messages held back to fold them.")
    idempotent: bool | None = _option("idempotent", _flag, None, "Mark chunks: a replay does not send them again.")
    once: str | None = _option("once", _text, None, "Name of a write, for a job that may be run again.")
    mark_ttl_s: int = _option("markTtlSeconds", _seconds(60, 365 * 86_400), 7 * 86_400, "Lifetime of these marks.")
    txn_app: str | None = _option("txnAppId", _text, None, "Name of a `foreachBatch` whose versions are written once.")
    txn_version: int | None = _option("txnVersion", _whole(0, 10**15), None, "Number of the batch under that name.")
    redrive: bool = _option("redrive", _flag, False, "Move rows that were read from the dead into the backlog.")
    trust_slot: bool = _option("trustSlot", _flag, False, "Take the column `slot` without checking it.")
    max_rate: float | None = _option("maxRate", _rate, None, "Most messages a second of all tasks together.")
    bad_rows: str = _option("badRows", _choice("fail", "collect"), "fail", "`collect` puts bad rows aside.")
    when_passed: str | None = _option("whenPassed", _choice("fail", "now", "collect"), None, "Times that have passed.")
    bad_rows_path: str | None = _option("badRowsPath", _text, None, "Folder for those rows, as Parquet.")

    def new_topic(self) -> Topic | None:
        """Return the definition of the topic as the options give it; `None` when they only name it.

        Raises:
            InvalidValueError: Only one of `type` and `slots` is given, or `topic` is not.
        """
        if self.type is None and self.slots is None:
            return None
        if self.topic is None or self.type is None or self.slots is None:
            raise InvalidValueError("options `type` and `slots` define a new `topic`: give all three")
        return Topic(self.topic, self.type, slots=self.slots)

    @property
    def several(self) -> bool:
        """Whether a read names its topics by a list or a pattern."""
        return self.topics is not None or self.topic_pattern is not None

    def needed_topic(self) -> str:
        """Return the topic's name.

        Raises:
            InvalidValueError: Not given.
        """
        if not self.topic:
            raise InvalidValueError('option `topic` is missing: .option("topic", "name")')
        return self.topic

    def needed_group(self, topic: Topic) -> str:
        """Return the group as which a query follows a STREAM topic.

        Raises:
            InvalidValueError: Not given.
        """
        if self.group is None:
            raise InvalidValueError(
                f'topic {topic.name} is STREAM: name the group as which the query reads it, .option("group", "name")',
                topic=topic.name,
            )
        return self.group

    def connections(self, *, sending: bool = False, most_s: float = math.inf) -> Connections:
        """Return connections, for the caller to close.

        Args:
            sending: Sends are confirmed as `durability` says.
            most_s: Longest deadline, whatever `deadlineSeconds` says.
        """
        durability = parse_durability(self.durability, self.replicas) if sending else Durability()
        return Connections(parse_url(self.url), deadline_s=min(float(self.deadline_s), most_s), durability=durability)

    @property
    def bad_rows_folder(self) -> str | None:
        """Where bad rows go; `None` where the first one ends the job."""
        return self.bad_rows_path if self.bad_rows == "collect" else None

    @property
    def task_numbers(self) -> tuple[int, int]:
        """Fewest and most tasks of a read."""
        fewest = self.min_partitions or 1
        return fewest, self.max_partitions or max(MOST_PARTITIONS, fewest)


_OPTIONS = {str(each.metadata["name"]).lower(): each for each in fields(Options)}

OPTION_NAMES = tuple(str(each.metadata["name"]) for each in _OPTIONS.values())
"""All options as they are written in the documentation."""


def parse_options(options: Mapping[str, str]) -> Options:
    """Read options as Spark hands them over.

    Raises:
        InvalidValueError: An unknown option, or a value that breaks its rule; the message names both.
    """
    values: dict[str, Any] = {}
    for key, text in options.items():
        if option := _OPTIONS.get(key.lower()):
            values[option.name] = option.metadata["convert"](text.strip(), option.metadata["name"])
        elif key.lower().startswith("option."):
            raise InvalidValueError(
                f"format rmq cannot be a stored table: Spark hands such a table its options as {key}, and none at all "
                "when it is read; CREATE TEMPORARY VIEW ... USING rmq OPTIONS (...) works"
            )
        elif key.lower() not in _OF_SPARK:
            near = difflib.get_close_matches(key.lower(), _OPTIONS, 1)
            hint = f"; did you mean {_OPTIONS[near[0]].metadata['name']}?" if near else ""
            raise InvalidValueError(f"format rmq has no option {key}{hint}")
    values["url"] = _url(values.get("url"))
    parsed = Options(**values)
    parse_durability(parsed.durability, parsed.replicas)
    _check_pairs(parsed)
    _check_bounds(parsed)
    return parsed


def _check_pairs(parsed: Options) -> None:
    """Refuse an option without the one that it needs, with `InvalidValueError`."""
    if parsed.bad_rows == "collect" and not parsed.bad_rows_path:
        raise InvalidValueError("badRows=collect needs badRowsPath, the folder that bad rows are written to")
    if parsed.when_passed == "collect" and parsed.bad_rows != "collect":
        raise InvalidValueError("whenPassed=collect needs badRows=collect and badRowsPath, the folder of such rows")
    named = {"topic": parsed.topic, "topics": parsed.topics, "topicPattern": parsed.topic_pattern}
    if parsed.several and len(given := [name for name, value in named.items() if value is not None]) > 1:
        raise InvalidValueError(f"{' and '.join(given)} are given; a read names its topics by one of them")
    if (parsed.txn_app is None) != (parsed.txn_version is None):
        raise InvalidValueError("txnAppId and txnVersion name a version together: give both")
    if parsed.txn_app is not None and (parsed.once is not None or parsed.idempotent is False):
        raise InvalidValueError("txnAppId cannot be combined with once, or with idempotent=false")
    if parsed.max_delay_ms is not None and parsed.min_messages == 1:
        raise InvalidValueError("maxTriggerDelay says how long a batch waits for minMessagesPerTrigger: give both")


def _check_bounds(parsed: Options) -> None:
    """Refuse a least that exceeds the most, with `InvalidValueError`."""
    partitions = "minPartitions", parsed.min_partitions, "maxPartitions", parsed.max_partitions
    messages = "minMessagesPerTrigger", parsed.min_messages, "maxMessagesPerTrigger", parsed.max_messages
    for low, least, high, most in (partitions, messages):
        if least is not None and most is not None and least > most:
            raise InvalidValueError(f"{low} is {least} and {high} {most}; the least must not exceed the most")


def _url(given: str | None) -> str:
    url = given or os.environ.get("RMQ_URL", "")
    if not url:
        raise InvalidValueError('option `url` is missing, and RMQ_URL is not set: .option("url", "redis://host:6379")')
    parsed = parse_url(url)
    if parsed.topology is Topology.EMBEDDED:
        raise InvalidUrlError(
            f"url is {parsed.shown}: each executor would start a Redis of its own; start one with "
            "RmqClient() in the driver and pass its client.url, or give the address of a server"
        )
    return url
