"""The options of `format("rmq")`: read and checked in one place. Spark hands them over as text, keys in any case."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from rmq.durability import parse_durability
from rmq.errors import InvalidUrlError, InvalidValueError
from rmq.slots import MAX_SLOTS
from rmq.topics import Topic, TopicType
from rmq.urls import Topology, parse_url

_OF_SPARK = frozenset(
    "path paths checkpointlocation queryname outputmode header provider maxrecordsperfile recursivefilelookup".split()
)
"""Options that Spark itself adds, or that other sources share with us."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
MAX_RATE = 1_000_000
MOST_MESSAGES = 10**9
"""Most messages of a micro-batch."""

_DURATION = re.compile(r"([0-9]+) ?([a-z]*)")


@dataclass(frozen=True)
class Options:
    """All options; which of them count depends on what is read or written.

    Attributes:
        url: Where Redis is; by default `RMQ_URL` of the driver.
        zookeeper: Taken by none of the four, and refused by each in words of its own.
        topic: Topic name; a column `topic` says nothing to a sink.
        type: Type of a topic that nobody has registered yet.
        slots: Number of slots of such a topic.
        durability: `memory`, `replicated` or `fsync`, as for `RmqClient`.
        replicas: How many replicas have to confirm.
        deadline_s: How long to repeat what may be repeated before a task fails, seconds.
        queue: What the reader reads: `backlog`, `inflight`, `waiting` or `dead`.
        snapshot: `scan`, or `atomic`: each slot at one instant.
        atomic_limit: Most messages of a slot that `atomic` reads in its one call.
        pushdown: Take filters on `slot` into account when partitions are planned.
        min_partitions: Least partitions of a read, as far as there are slots.
        max_partitions: Most partitions of a read; a partition then reads several slots.
        max_messages_per_trigger: Most messages of a micro-batch; a million by default.
        lease_s: Lease of the source's claims, seconds; the topic's by default.
        fail_on_lease_lost: Whether a micro-batch fails when a lease was lost before it was read.
        fail_on_data_loss: Whether a restart fails when claims of its batch are gone.
        max_replays: After how many replays of a batch it is halved with each further one.
        time_range_ms: Merge window of all rows; beats the column.
        priority: Priority of all rows; beats the column.
        chunk_size: Messages in one script call.
        pipeline_depth: Script calls in one round trip.
        merge: `partition`: fold equal contents of a task before they are sent; `none`.
        merge_rows: How many messages a task holds back to fold them.
        idempotent: Leave a mark with each chunk, so that a replayed one is not sent again.
        mark_ttl_s: How long marks are kept after a topic's last write, seconds.
        redrive: Move rows that were read from the dead back into the backlog.
        trust_slot: Take the column `slot` as it is.
        max_rate: Most messages a second of all tasks together; `None` for no limit.
        bad_rows: `fail`, or `collect`: put rows that break a rule aside.
        bad_rows_path: Folder for those, as Parquet.
    """

    url: str = ""
    zookeeper: str | None = None
    topic: str | None = None
    type: TopicType | None = None
    slots: int | None = None
    durability: str = "memory"
    replicas: int | None = None
    deadline_s: int = 60
    queue: str = "backlog"
    snapshot: str = "scan"
    atomic_limit: int = 100_000
    pushdown: bool = False
    min_partitions: int | None = None
    max_partitions: int | None = None
    max_messages_per_trigger: int | None = None
    lease_s: int | None = None
    fail_on_lease_lost: bool = True
    fail_on_data_loss: bool = True
    max_replays: int | None = None
    time_range_ms: int | None = None
    priority: int | None = None
    chunk_size: int = 1_000
    pipeline_depth: int = 4
    merge: str | None = None
    merge_rows: int = 50_000
    idempotent: bool = False
    mark_ttl_s: int = 7 * 86_400
    redrive: bool = False
    trust_slot: bool = False
    max_rate: float | None = None
    bad_rows: str = "fail"
    bad_rows_path: str | None = None

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

    def needed_topic(self) -> str:
        """Return the topic's name.

        Raises:
            InvalidValueError: Not given.
        """
        if not self.topic:
            raise InvalidValueError('option `topic` is missing: .option("topic", "name")')
        return self.topic


def parse_options(options: Mapping[str, str]) -> Options:
    """Read options as Spark hands them over.

    Raises:
        InvalidValueError: An unknown option, or a value that breaks its rule; the message names both.
    """
    values: dict[str, Any] = {}
    for key, text in options.items():
        found = _OPTIONS.get(key.lower())
        if found is not None:
            attribute, name, convert = found
            values[attribute] = convert(name, text.strip())
        elif key.lower() not in _OF_SPARK:
            near = difflib.get_close_matches(key.lower(), _OPTIONS, 1)
            hint = f"; did you mean {_OPTIONS[near[0]][1]}?" if near else ""
            raise InvalidValueError(f"format rmq has no option {key}{hint}")
    values["url"] = _url(values.get("url"))
    parsed = Options(**values)
    parse_durability(parsed.durability, parsed.replicas)
    if parsed.bad_rows == "collect" and not parsed.bad_rows_path:
        raise InvalidValueError("badRows=collect needs badRowsPath, the folder that bad rows are written to")
    least, most = parsed.min_partitions, parsed.max_partitions
    if least is not None and most is not None and least > most:
        raise InvalidValueError(
            f"minPartitions is {least} and maxPartitions {most}; the least must not exceed the most"
        )
    return parsed


def duration_option_ms(name: str, text: str) -> int:
    """Return a duration in ms: `5s`, `500 ms`, `2h`, or a plain number of ms.

    Raises:
        InvalidValueError: Not a duration.
    """
    match = _DURATION.fullmatch(text)
    unit = _UNITS_MS.get(match[2] or "ms") if match else None
    if match is None or unit is None:
        raise InvalidValueError(f"{name} is {text!r}; it must be like 500 (ms), 500ms, 5s, 2m, 1h or 1d")
    return int(match[1]) * unit


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


def _text(name: str, text: str) -> str:
    if not text:
        raise InvalidValueError(f"{name} is empty")
    return text


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidValueError(f"{name} is {text!r}; it must be true or false")
    return text.lower() == "true"


def _whole(low: int, high: int) -> Callable[[str, str], int]:
    def convert(name: str, text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise InvalidValueError(f"{name} is {text!r}; it must be a whole number from {low} to {high}")
        return int(text)

    return convert


def _seconds(low: int, high: int) -> Callable[[str, str], int]:
    """Seconds as a plain number, or with a unit."""
    whole = _whole(low, high)

    def convert(name: str, text: str) -> int:
        return whole(name, str(duration_option_ms(name, text) // 1000) if text[-1:].isalpha() else text)

    return convert


def rate_option(name: str, text: str) -> float:
    """Return a number of messages a second: `500`, `0.5`.

    Raises:
        InvalidValueError: Not a number, or out of range.
    """
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0.001 <= rate <= MAX_RATE:
        raise InvalidValueError(f"{name} is {text!r}; it must be a number of messages a second, 0.001 to {MAX_RATE:,}")
    return rate


def _time_range(name: str, text: str) -> int:
    time_range_ms = duration_option_ms(name, text)
    if time_range_ms == 0:
        raise InvalidValueError(f"{name} is {text!r}; it must be more than 0")
    return time_range_ms


def _choice(*choices: str) -> Callable[[str, str], str]:
    def convert(name: str, text: str) -> str:
        if text.lower() not in choices:
            raise InvalidValueError(f"{name} is {text!r}; it must be one of {', '.join(choices)}")
        return text.lower()

    return convert


def _merge(name: str, text: str) -> str:
    if text.lower() == "all":
        raise InvalidValueError(
            "merge is 'all': a sink cannot move rows between partitions; write rmq.spark.merged(frame, type, order_by) "
            "with merge=none"
        )
    return _choice("partition", "none")(name, text)


def _topic_type(name: str, text: str) -> TopicType:
    try:
        return TopicType[text.upper().replace("-", "_")]
    except KeyError:
        names = ", ".join(kind.name for kind in TopicType)
        raise InvalidValueError(f"{name} is {text!r}; it must be one of {names}") from None


def _messages(name: str, text: str) -> int:
    return MOST_MESSAGES if text.lower() == "all" else _whole(1, MOST_MESSAGES)(name, text)


_OPTIONS: dict[str, tuple[str, str, Callable[[str, str], Any]]] = {
    name.lower(): (attribute, name, convert)
    for attribute, name, convert in (
        ("url", "url", _text),
        ("zookeeper", "zookeeper", _text),
        ("topic", "topic", _text),
        ("type", "type", _topic_type),
        ("slots", "slots", _whole(1, MAX_SLOTS)),
        ("durability", "durability", _choice("memory", "replicated", "fsync")),
        ("replicas", "replicas", _whole(0, 100)),
        ("deadline_s", "deadlineSeconds", _seconds(1, 86_400)),
        ("queue", "queue", _choice("backlog", "inflight", "waiting", "dead")),
        ("snapshot", "snapshot", _choice("scan", "atomic")),
        ("atomic_limit", "atomicLimit", _whole(1, 10_000_000)),
        ("pushdown", "pushdown", _flag),
        ("min_partitions", "minPartitions", _whole(1, MAX_SLOTS)),
        ("max_partitions", "maxPartitions", _whole(1, MAX_SLOTS)),
        ("max_messages_per_trigger", "maxMessagesPerTrigger", _messages),
        ("lease_s", "leaseSeconds", _seconds(1, 86_400)),
        ("fail_on_lease_lost", "failOnLeaseLost", _flag),
        ("fail_on_data_loss", "failOnDataLoss", _flag),
        ("max_replays", "maxReplays", _whole(0, 999)),
        ("time_range_ms", "time_range", _time_range),
        ("priority", "priority", _whole(1, 2**53 - 1)),
        ("chunk_size", "chunkSize", _whole(1, 1_000)),
        ("pipeline_depth", "pipelineDepth", _whole(1, 64)),
        ("merge", "merge", _merge),
        ("merge_rows", "mergeRows", _whole(1, 10_000_000)),
        ("idempotent", "idempotent", _flag),
        ("mark_ttl_s", "markTtlSeconds", _seconds(60, 365 * 86_400)),
        ("redrive", "redrive", _flag),
        ("trust_slot", "trustSlot", _flag),
        ("max_rate", "maxRate", rate_option),
        ("bad_rows", "badRows", _choice("fail", "collect")),
        ("bad_rows_path", "badRowsPath", _text),
    )
}

OPTION_NAMES = tuple(name for _, name, _ in _OPTIONS.values())
"""All options as they are written in the documentation."""

if {attribute for attribute, _, _ in _OPTIONS.values()} != {field.name for field in fields(Options)}:
    raise AssertionError("an option is parsed that does not exist, or the other way round")
