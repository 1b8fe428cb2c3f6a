"""The options of `format("rmq")`: read and checked in one place. Spark hands them over as text, keys in any case."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rmq._model.display import shown
from rmq._model.entries import id_key
from rmq._model.topics import MAX_SLOTS, Topic, TopicType
from rmq._ownership.logins import KEY_PASSWORD, PASSWORD
from rmq._transport.connections import Connections
from rmq._transport.durability import Durability, parse_durability
from rmq._transport.urls import Topology, parse_url
from rmq.errors import InvalidUrlError, InvalidValueError
from rmq.spark import option_kinds as kinds
from rmq.spark.option_kinds import LAST_SEQUENCE, MOST_MESSAGES, Convert, quoted

_OF_SPARK = frozenset(
    "checkpointlocation queryname outputmode header provider maxrecordsperfile recursivefilelookup".split()
)
"""Options that Spark itself adds, or that other sources share with us."""

_OF_FRAMES = frozenset("content body slot slot_basis fixed_time fields weight version value items part of".split())
"""Columns that people take for options."""

_OF_KAFKA = {
    "kafka.bootstrap.servers": "url",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "kafka.group.id": "group",
    "startingoffsets": "start",
    "endingoffsets": "last",
}
"""Options of Spark's Kafka connector, and ours in their place; docs/coming-from/spark-kafka.md has all."""

_OF_WORKERS = (
    "zookeeperChroot", "zookeeperUser", "zookeeperCa", "zookeeperCert", "zookeeperKey", "zookeeperSessionSeconds",
    "workerWeight", "drainSeconds",
)  # fmt: skip
"""Options of a query that owns slots."""

_PATHS = frozenset(("path", "paths"))
"""What `load`, `save` and `start` make of an argument."""

PLAN_S = 10.0
"""How long a program waits for an answer before it reads or writes, seconds: a wrong address shall show soon."""

TRIGGER_DELAY_MS = 900_000
"""How long a batch waits for its fewest messages unless told: as long as in Spark's Kafka source."""

MOST_PARTITIONS = 200
"""Most partitions of a read where no option says how many."""


def _option(name: str, convert: Convert, default: Any, doc: str, *, told: bool = True) -> Any:
    """Declare an option: its name in the documentation, what turns its text into its value, its default, its effect.

    One that may hold a password is not `told` where the options are printed.
    """
    return field(default=default, repr=told, metadata={"name": name, "convert": convert, "doc": doc})


@dataclass(frozen=True)
class Options:
    """All options; which of them count depends on what is read or written."""

    url: str = _option("url", kinds.text, "", "Address of Redis; by default `RMQ_URL` of the driver.", told=False)
    zookeeper: str | None = _option("zookeeper", kinds.hosts, None, "Servers of ZooKeeper: a query owns slots.")
    zookeeper_chroot: str = _option("zookeeperChroot", kinds.chroot, "/rmq", "Path below which RMQ's nodes lie.")
    zookeeper_user: str | None = _option("zookeeperUser", kinds.text, None, "Login; the environment has its password.")
    zookeeper_ca: str | None = _option("zookeeperCa", kinds.text, None, "TLS: who signs the servers' certificates.")
    zookeeper_cert: str | None = _option("zookeeperCert", kinds.text, None, "TLS: the driver's certificate.")
    zookeeper_key: str | None = _option("zookeeperKey", kinds.text, None, "TLS: its key.")
    zookeeper_session_s: int = _option(
        "zookeeperSessionSeconds", kinds.seconds(1, 3_600), 10, "How long ZooKeeper waits for a silent driver."
    )
    worker_weight: int = _option("workerWeight", kinds.whole(1, 1_000), 1, "Its share of the slots against others'.")
    drain_s: int = _option(
        "drainSeconds", kinds.seconds(1, 86_400), 600, "How long a slot waits for the batch that has it."
    )
    topic: str | None = _option("topic", kinds.topic, None, "Topic name; beats the column `topic` of a sink.")
    topics: tuple[str, ...] | None = _option("topics", kinds.topics, None, "Several topics of a read.")
    topic_pattern: str | None = _option("topicPattern", kinds.pattern, None, "Topics of a read by their names.")
    type: TopicType | None = _option("type", kinds.topic_type, None, "Type of a topic that is not registered yet.")  # noqa: RUF009 - a field
    slots: int | None = _option("slots", kinds.whole(1, MAX_SLOTS), None, "Number of slots of such a topic.")
    durability: str = _option(
        "durability", kinds.choice("memory", "replicated", "fsync"), "memory", "As for `RmqClient`."
    )
    replicas: int | None = _option("replicas", kinds.whole(0, 100), None, "How many replicas have to confirm.")
    deadline_s: int = _option(
        "deadlineSeconds", kinds.seconds(1, 86_400), 60, "How long a task repeats what it may repeat."
    )
    queue: str = _option(
        "queue", kinds.choice("backlog", "inflight", "waiting", "dead"), "backlog", "What a read reads."
    )
    columns: tuple[str, ...] | None = _option("columns", kinds.columns, None, "Columns of a read; `*`: the usual ones.")
    snapshot: str = _option(
        "snapshot", kinds.choice("scan", "atomic"), "scan", "`atomic` reads each slot at one instant."
    )
    group: str | None = _option("group", kinds.group, None, "Group as which a query follows a STREAM topic.")
    start: str = _option("start", kinds.start, "new", "Where a group begins that is new.")
    states_of: str | None = _option("statesOf", kinds.group, None, "Group of which a read tells what it has done.")
    first: str | None = _option(
        "first", kinds.position, None, "First entry of a read of a STREAM topic: an id or a time."
    )
    last: str | None = _option("last", kinds.position, None, "Last entry of such a read.")
    ranges: tuple[tuple[int, str, str], ...] | None = _option(
        "ranges", kinds.ranges, None, "Entries of each slot of it."
    )
    atomic_limit: int = _option(
        "atomicLimit", kinds.whole(1, 10_000_000), 100_000, "Most messages of a slot in one read."
    )
    pushdown: bool = _option("pushdown", kinds.flag, False, "Use filters on `slot` when partitions are planned.")
    min_partitions: int | None = _option(
        "minPartitions", kinds.whole(1, MAX_SLOTS), None, "Fewest partitions of a read."
    )
    max_partitions: int | None = _option("maxPartitions", kinds.whole(1, MAX_SLOTS), None, "Most partitions of a read.")
    max_messages: int = _option("maxMessagesPerTrigger", kinds.messages, 100_000, "Most messages of a micro-batch.")
    min_messages: int = _option(
        "minMessagesPerTrigger", kinds.whole(1, MOST_MESSAGES), 1, "Fewest messages of a batch."
    )
    max_delay_ms: int | None = _option(
        "maxTriggerDelay", kinds.time_range, None, "How long a batch waits for that many."
    )
    max_bytes: int | None = _option("maxBytesPerTrigger", kinds.size_bytes, None, "Most bytes of a micro-batch, about.")
    lease_s: None = _option("leaseSeconds", kinds.no_lease, None, "Refused.")
    fail_on_lease_lost: bool = _option(
        "failOnLeaseLost", kinds.flag, True, "Fail a batch that lost leases before its read."
    )
    fail_on_data_loss: bool = _option("failOnDataLoss", kinds.flag, True, "Fail a query that Redis has forgotten.")
    max_replays: int | None = _option(
        "maxReplays", kinds.whole(0, 999), None, "Replays of a batch before it is halved."
    )
    time_range_ms: int | None = _option(
        "time_range", kinds.time_range, None, "Merge window of all rows, not of a column."
    )
    priority: int | None = _option(
        "priority", kinds.whole(1, 2**53 - 1), None, "Priority of all rows, not of a column."
    )
    chunk_size: int = _option("chunkSize", kinds.whole(1, 1_000), 1_000, "Most messages in one script call.")
    pipeline_depth: int = _option(
        "pipelineDepth", kinds.whole(1, 64), 2, "Most script calls in one round trip to a server."
    )
    merge: str | None = _option(
        "merge", kinds.merge, None, "`partition` folds equal contents of a task; `none` does not."
    )
    merge_rows: int = _option("mergeRows", kinds.whole(1, 10_000_000), 50_000, "Most messages held back to fold them.")
    idempotent: bool | None = _option("idempotent", kinds.flag, None, "Mark chunks: a replay does not send them again.")
    once: str | None = _option("once", kinds.text, None, "Name of a write, for a job that may be run again.")
    mark_ttl_s: int = _option("markTtlSeconds", kinds.seconds(60, 365 * 86_400), 7 * 86_400, "Lifetime of these marks.")
    txn_app: str | None = _option(
        "txnAppId", kinds.text, None, "Name of a `foreachBatch` whose versions are written once."
    )
    txn_version: int | None = _option(
        "txnVersion", kinds.whole(0, 10**15), None, "Number of the batch under that name."
    )
    redrive: bool = _option("redrive", kinds.flag, False, "Move rows that were read from the dead into the backlog.")
    trust_slot: bool = _option("trustSlot", kinds.flag, False, "Take the column `slot` without checking it.")
    max_rate: float | None = _option("maxRate", kinds.rate, None, "Most messages a second of all tasks together.")
    bad_rows: str = _option("badRows", kinds.choice("fail", "collect"), "fail", "`collect` puts bad rows aside.")
    when_passed: str | None = _option(
        "whenPassed", kinds.choice("fail", "now", "collect"), None, "Times that have passed."
    )
    bad_rows_path: str | None = _option("badRowsPath", kinds.folder, None, "Folder for those rows, as Parquet.")

    def new_topic(self) -> Topic | None:
        """Return the definition of the topic as the options give it; `None` when they only name it.

        Raises:
            InvalidValueError: Only one of `type` and `slots` is given, or `topic` is not.
        """
        if self.type is None and self.slots is None:
            return None
        if self.topic is None or self.type is None or self.slots is None:
            given = {"topic": self.topic, "type": self.type, "slots": self.slots}
            missing = " and ".join(name for name, value in given.items() if value is None)
            raise InvalidValueError(f"a new topic needs options topic, type and slots: give {missing}, too")
        return Topic(self.topic, self.type, slots=self.slots)

    @property
    def several(self) -> bool:
        """Whether a read names its topics by a list or a pattern."""
        return self.topics is not None or self.topic_pattern is not None

    def needed_topic(self, otherwise: str = "") -> str:
        """Return the topic's name; `otherwise` says what could stand in its place.

        Raises:
            InvalidValueError: Not given.
        """
        if not self.topic:
            raise InvalidValueError(f'option `topic` is missing: .option("topic", "name"){otherwise}')
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
    given: dict[str, str] = {}
    for key, text in options.items():
        if (twin := given.setdefault(key.lower(), key)) != key:
            raise InvalidValueError(f"options {shown(twin, 40)} and {shown(key, 40)} are the same one: give it once")
        if option := _OPTIONS.get(key.lower()):
            values[option.name] = option.metadata["convert"](text.strip(), option.metadata["name"])
        elif key.lower().startswith("option."):
            raise InvalidValueError(
                f"format rmq cannot be a stored table: Spark hands such a table its options as {shown(key, 40)}, and "
                "none at all when it is read; CREATE TEMPORARY VIEW ... USING rmq OPTIONS (...) works"
            )
        elif key.lower() not in (*_OF_SPARK, *_PATHS):
            raise _unknown(key)
    for key, text in options.items():  # last: Spark adds the path of a stored table
        if key.lower() in _PATHS:
            raise InvalidValueError(f"{key} is {quoted(text)}; format rmq has no paths: option topic names a topic")
    values["url"] = _url(values.get("url"))
    parsed = Options(**values)
    parse_durability(parsed.durability, parsed.replicas)
    _check_pairs(parsed)
    _check_worker(parsed, values)
    _check_bounds(parsed)
    return parsed


def _unknown(key: str) -> InvalidValueError:
    text = f"format rmq has no option {shown(key, 60)}"
    if key.lower() in _OF_FRAMES:
        return InvalidValueError(f"{text}: it is a column of the frame that is written")
    if key.lower().startswith("zookeeper") and "password" in key.lower():
        return InvalidValueError(
            f"{text}, so that no plan shows a password: set the variable {PASSWORD} of the driver, "
            f"or {KEY_PASSWORD} for that of a key"
        )
    near = difflib.get_close_matches(key.lower(), _OPTIONS, 1)
    meant = _OF_KAFKA.get(key.lower()) or (_OPTIONS[near[0]].metadata["name"] if near else None)
    return InvalidValueError(f"{text}; did you mean {meant}?" if meant else text)


def _check_pairs(parsed: Options) -> None:
    """Refuse an option without the one that it needs, with `InvalidValueError`."""
    if parsed.bad_rows_path is not None and parsed.bad_rows != "collect":
        path = quoted(parsed.bad_rows_path)
        raise InvalidValueError(f"badRowsPath is {path}, and badRows is {parsed.bad_rows}: rows go there with collect")
    if parsed.merge == "none" and parsed.merge_rows != Options.merge_rows:
        raise InvalidValueError(f"mergeRows is {parsed.merge_rows}, and merge is none: it bounds what is folded")
    if parsed.atomic_limit != Options.atomic_limit and parsed.snapshot != "atomic":
        limit, snapshot = parsed.atomic_limit, parsed.snapshot
        raise InvalidValueError(f"atomicLimit is {limit}, and snapshot is {snapshot}: it bounds snapshot=atomic")
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


def _check_worker(parsed: Options, values: Mapping[str, Any]) -> None:
    """Refuse options of a worker where no ZooKeeper is named, with `InvalidValueError`."""
    options = [_OPTIONS[name.lower()] for name in _OF_WORKERS]
    given = [option.metadata["name"] for option in options if option.name in values]
    if parsed.zookeeper is None and given:
        raise InvalidValueError(f"{', '.join(given)} without zookeeper: give its servers, as zk1:2181,zk2:2181")


def _check_bounds(parsed: Options) -> None:
    """Refuse a least that exceeds the most, with `InvalidValueError`."""
    partitions = "minPartitions", parsed.min_partitions, "maxPartitions", parsed.max_partitions
    messages = "minMessagesPerTrigger", parsed.min_messages, "maxMessagesPerTrigger", parsed.max_messages
    for low, least, high, most in (partitions, messages):
        if least is not None and most is not None and least > most:
            raise InvalidValueError(f"{low} is {least} and {high} {most}; the least must not exceed the most")
    for name, first in (("first", parsed.first), ("start", parsed.start)):
        if first is not None and parsed.last is not None and first not in ("new", "all"):
            _check_order(f"{name} is {first} and last {parsed.last}", first, parsed.last)
    for slot, first, last in parsed.ranges or ():
        _check_order(f"ranges has {first} to {last} for slot {slot}", first, last)


def _check_order(what: str, first: str, last: str) -> None:
    """Refuse a range of entries that ends before it begins: a time without a number stands for its whole ms."""
    if id_key(first) > id_key(last if "-" in last else f"{last}-{LAST_SEQUENCE}"):
        raise InvalidValueError(f"{what}; the last entry must not be before the first")


def _url(given: str | None) -> str:
    url = os.environ.get("RMQ_URL") if given is None else given
    if not url:
        found = "option `url` is missing, and RMQ_URL is " + ("not set" if url is None else "empty")
        found = found if given is None else "option `url` is empty"
        raise InvalidValueError(
            f'{found}: .option("url", "redis://host:6379"). Spark reads the variable where its JVM starts, and '
            "rmq.spark.register(spark) where it is called"
        )
    parsed = parse_url(url)
    if parsed.topology is Topology.EMBEDDED:
        raise InvalidUrlError(
            f"url is {parsed.shown}: each executor would start a Redis of its own; start one with "
            "RmqClient() in the driver and pass its client.url, or give the address of a server"
        )
    return url
