"""Parses and checks the options of `format("rmq")`, which Spark passes as text, with names in any case.

The second half checks that all options have an effect on a read or write, before it begins.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from rmq import DigestAuth, Tls, Topic, TopicType
from rmq.errors import InvalidUrlError, InvalidValueError
from rmq.spark import option_kinds as kinds
from rmq.spark.option_kinds import LAST_SEQUENCE, MOST_MESSAGES, Convert, quoted
from rmq.spi import id_key, shown
from rmq.spi import zookeeper_access as access_by_options
from rmq.spi.scripts import MAX_SLOTS, Connections, Durability, parse_durability, parse_url

_OF_SPARK = frozenset(
    "checkpointlocation queryname outputmode header provider maxrecordsperfile recursivefilelookup".split()
)
"""Names that are ignored: options that Spark adds, and options common to all data sources."""

_OF_FRAMES = frozenset("content body slot slot_basis fixed_time fields weight version value items part of".split())
"""Names of columns, for the error if one is given as an option."""

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
"""Options of Spark's Kafka connector, with the corresponding ones of RMQ; docs/coming-from/spark-kafka.md has all."""

_PATHS = frozenset(("path", "paths"))
"""The names under which `load`, `save` and `start` pass a path."""

PLAN_S = 10.0
"""Timeout of the first calls of a read or write, seconds: a wrong address should fail soon."""

TRIGGER_DELAY_MS = 900_000
"""Default of `maxTriggerDelay`, as in Spark's Kafka source."""

MOST_PARTITIONS = 200
"""Default of `maxPartitions`."""


Use = Literal["any", "read", "batch", "stream", "worker", "group", "selection", "write"]
"""What an option is for: any call, any read, `spark.read`, `readStream`, a query that owns slots, the group of a query,
what a read selects (topics and columns), or a write."""


def _option(name: str, convert: Convert, default: Any, of: Use = "any", *, told: bool = True) -> Any:
    """Declare an option: its documented name, the converter of its text, its default, and what it is for.

    An option that may contain a password is not printed (`told=False`).
    """
    return field(default=default, repr=told, metadata={"name": name, "convert": convert, "of": of})


@dataclass(frozen=True)
class Options:
    """The parsed options of a read or write; many apply to one of them only."""

    url: str = _option("url", kinds.text, "", told=False)
    """Address of Redis; by default `RMQ_URL` of the driver."""
    zookeeper: str | None = _option("zookeeper", kinds.hosts, None, of="worker")
    """Servers of ZooKeeper, for a query that owns slots."""
    zookeeper_chroot: str = _option("zookeeperChroot", kinds.chroot, "/rmq", of="worker")
    """Path of RMQ's nodes in ZooKeeper."""
    zookeeper_user: str | None = _option("zookeeperUser", kinds.text, None, of="worker")
    """User name in ZooKeeper; the password is read from the environment."""
    zookeeper_ca: str | None = _option("zookeeperCa", kinds.text, None, of="worker")
    """TLS: file of CA certificates."""
    zookeeper_cert: str | None = _option("zookeeperCert", kinds.text, None, of="worker")
    """TLS: certificate of the driver."""
    zookeeper_key: str | None = _option("zookeeperKey", kinds.text, None, of="worker")
    """TLS: key of that certificate."""
    owners: str | None = _option("owners", kinds.choice("redis"), None, of="worker")
    """`redis`: the query owns slots, and Redis keeps their owners."""
    owners_session_s: int = _option("ownersSessionSeconds", kinds.seconds(1, 3_600), 10, of="worker")
    """Session timeout of owners in Redis."""
    zookeeper_session_s: int = _option("zookeeperSessionSeconds", kinds.seconds(1, 3_600), 10, of="worker")
    """ZooKeeper session timeout."""
    worker_weight: int = _option("workerWeight", kinds.whole(1, 1_000), 1, of="worker")
    """Weight of this query's share of the slots."""
    drain_s: int = _option("drainSeconds", kinds.seconds(1, 86_400), 600, of="worker")
    """Maximum time before a slot in use is handed over."""
    topic: str | None = _option("topic", kinds.topic, None)
    """Topic name; overrides the column `topic` of a sink."""
    topics: tuple[str, ...] | None = _option("topics", kinds.topics, None, of="selection")
    """Names of the topics of a read."""
    topic_pattern: str | None = _option("topicPattern", kinds.pattern, None, of="selection")
    """Regular expression for the topic names of a read."""
    type: TopicType | None = _option("type", kinds.topic_type, None, of="write")  # noqa: RUF009 - a field
    """Type of a topic that is not registered yet."""
    slots: int | None = _option("slots", kinds.whole(1, MAX_SLOTS), None, of="write")
    """Number of slots of a new topic."""
    durability: str = _option("durability", kinds.choice("memory", "replicated", "fsync"), "memory", of="write")
    """Confirmation of sends, as for `RmqClient`."""
    replicas: int | None = _option("replicas", kinds.whole(0, 100), None, of="write")
    """Number of replicas that must confirm."""
    deadline_s: int = _option("deadlineSeconds", kinds.seconds(1, 86_400), 60)
    """Time limit of a call with retries."""
    queue: str = _option("queue", kinds.choice("backlog", "inflight", "waiting", "dead"), "backlog", of="read")
    """State of the messages to read."""
    columns: tuple[str, ...] | None = _option("columns", kinds.columns, None, of="selection")
    """Columns of a read; `*` adds the default columns."""
    snapshot: str = _option("snapshot", kinds.choice("scan", "atomic"), "scan", of="batch")
    """`atomic` reads each slot at one instant."""
    group: str | None = _option("group", kinds.group, None, of="group")
    """Consumer group of a query on a STREAM topic."""
    start: str = _option("start", kinds.start, "new", of="group")
    """Position where a new group starts."""
    states_of: str | None = _option("statesOf", kinds.group, None, of="batch")
    """Group whose state of each entry a read returns."""
    first: str | None = _option("first", kinds.position, None, of="batch")
    """First entry of a read of a STREAM topic: an id or a time."""
    last: str | None = _option("last", kinds.position, None, of="read")
    """Last entry of a read of a STREAM topic: an id or a time."""
    ranges: tuple[tuple[int, str, str], ...] | None = _option("ranges", kinds.ranges, None, of="batch")
    """First and last entry of each slot of a STREAM topic to read."""
    atomic_limit: int = _option("atomicLimit", kinds.whole(1, 10_000_000), 100_000, of="batch")
    """Maximum number of messages in a slot for `snapshot=atomic`."""
    pushdown: bool = _option("pushdown", kinds.flag, False, of="batch")
    """Skip slots that a filter on `slot` excludes."""
    min_partitions: int | None = _option("minPartitions", kinds.whole(1, MAX_SLOTS), None, of="stream")
    """Minimum number of partitions of a read."""
    max_partitions: int | None = _option("maxPartitions", kinds.whole(1, MAX_SLOTS), None, of="read")
    """Maximum number of partitions of a read."""
    max_messages: int = _option("maxMessagesPerTrigger", kinds.messages, 100_000, of="stream")
    """Maximum number of messages in a micro-batch."""
    min_messages: int = _option("minMessagesPerTrigger", kinds.whole(1, MOST_MESSAGES), 1, of="stream")
    """Minimum number of messages in a micro-batch."""
    max_delay_ms: int | None = _option("maxTriggerDelay", kinds.time_range, None, of="stream")
    """Maximum wait for `minMessagesPerTrigger` messages."""
    max_bytes: int | None = _option("maxBytesPerTrigger", kinds.size_bytes, None, of="stream")
    """Approximate maximum size of a micro-batch."""
    lease_s: None = _option("leaseSeconds", kinds.no_lease, None)
    """Not supported."""
    fail_on_lease_lost: bool = _option("failOnLeaseLost", kinds.flag, True, of="stream")
    """Fail a batch whose leases expired before it was read."""
    fail_on_data_loss: bool = _option("failOnDataLoss", kinds.flag, True, of="stream")
    """Fail a query whose record in Redis is gone."""
    max_replays: int | None = _option("maxReplays", kinds.whole(0, 999), None, of="stream")
    """Replays of a batch before it is halved."""
    time_range_ms: int | None = _option("time_range", kinds.time_range, None, of="write")
    """Merge window of all rows, instead of a column."""
    priority: int | None = _option("priority", kinds.whole(1, 2**53 - 1), None, of="write")
    """Priority of all rows, instead of a column."""
    chunk_size: int = _option("chunkSize", kinds.whole(1, 1_000), 1_000)
    """Maximum number of messages in a script call."""
    pipeline_depth: int = _option("pipelineDepth", kinds.whole(1, 64), 2, of="write")
    """Maximum number of script calls in a round trip to a server."""
    merge: str | None = _option("merge", kinds.merge, None, of="write")
    """`partition` folds equal contents of a task; `none` does not."""
    merge_rows: int = _option("mergeRows", kinds.whole(1, 10_000_000), 50_000, of="write")
    """Maximum number of messages buffered for folding."""
    idempotent: bool | None = _option("idempotent", kinds.flag, None, of="write")
    """Mark chunks in Redis, so that a replay does not send them again."""
    once: str | None = _option("once", kinds.text, None, of="write")
    """Name of a write, for a job that may be run again."""
    mark_ttl_s: int = _option("markTtlSeconds", kinds.seconds(60, 365 * 86_400), 7 * 86_400, of="write")
    """Lifetime of the marks of chunks."""
    txn_app: str | None = _option("txnAppId", kinds.text, None, of="write")
    """Name of a `foreachBatch` query whose batches are written once."""
    txn_version: int | None = _option("txnVersion", kinds.whole(0, 10**15), None, of="write")
    """Number of the batch, for `txnAppId`."""
    redrive: bool = _option("redrive", kinds.flag, False, of="write")
    """Move dead messages that were read as rows into the backlog."""
    trust_slot: bool = _option("trustSlot", kinds.flag, False, of="write")
    """Use the column `slot` without checking it."""
    max_rate: float | None = _option("maxRate", kinds.rate, None, of="write")
    """Maximum rate of all tasks together, in messages per second."""
    bad_rows: str = _option("badRows", kinds.choice("fail", "collect"), "fail", of="write")
    """`collect` writes rows that cannot be sent to a folder."""
    when_passed: str | None = _option("whenPassed", kinds.choice("fail", "now", "collect"), None, of="write")
    """What happens to rows whose time is in the past."""
    bad_rows_path: str | None = _option("badRowsPath", kinds.folder, None, of="write")
    """Folder for the rows of `badRows=collect`, as Parquet."""

    def new_topic(self) -> Topic | None:
        """Return the definition of a new topic, `None` if neither `type` nor `slots` is set.

        Raises:
            InvalidValueError: One of `topic`, `type` and `slots` is missing.
        """
        if self.type is None and self.slots is None:
            return None
        if self.topic is None or self.type is None or self.slots is None:
            given = {"topic": self.topic, "type": self.type, "slots": self.slots}
            missing = " and ".join(name for name, value in given.items() if value is None)
            raise InvalidValueError(f"a new topic needs options topic, type and slots: set {missing}")
        return Topic(self.topic, self.type, slots=self.slots)

    @property
    def owns(self) -> bool:
        """Whether the query owns slots."""
        return self.owners is not None or self.zookeeper is not None

    @property
    def several(self) -> bool:
        """Whether a read is of several topics: `topics` or `topicPattern` is set."""
        return self.topics is not None or self.topic_pattern is not None

    def needed_topic(self, otherwise: str = "") -> str:
        """Return the topic's name; `otherwise` is an alternative to option `topic` for the error.

        Raises:
            InvalidValueError: The option is not set.
        """
        if not self.topic:
            raise InvalidValueError(f'option `topic` is missing: set .option("topic", "name"){otherwise}')
        return self.topic

    def needed_group(self, topic: Topic) -> str:
        """Return the consumer group of a query on a STREAM topic.

        Raises:
            InvalidValueError: The option is not set.
        """
        if self.group is None:
            raise InvalidValueError(
                f'topic {topic.name} is STREAM: set the consumer group of the query with .option("group", "name")',
                topic=topic.name,
            )
        return self.group

    def connections(self, *, sending: bool = False, most_s: float = math.inf) -> Connections:
        """Return new connections, which the caller must close.

        Args:
            sending: Whether to confirm sends according to `durability`.
            most_s: Maximum deadline in seconds, if `deadlineSeconds` is longer.
        """
        durability = parse_durability(self.durability, self.replicas) if sending else Durability()
        return Connections(parse_url(self.url), deadline_s=min(float(self.deadline_s), most_s), durability=durability)

    @property
    def bad_rows_folder(self) -> str | None:
        """Folder for bad rows; `None` if the first bad row fails the job."""
        return self.bad_rows_path if self.bad_rows == "collect" else None

    @property
    def task_numbers(self) -> tuple[int, int]:
        """Minimum and maximum number of tasks of a read."""
        fewest = self.min_partitions or 1
        return fewest, self.max_partitions or max(MOST_PARTITIONS, fewest)


_OPTIONS = {str(each.metadata["name"]).lower(): each for each in fields(Options)}

OPTION_NAMES = tuple(str(each.metadata["name"]) for each in _OPTIONS.values())
"""The documented names of all options."""


def parse_options(options: Mapping[str, str]) -> Options:
    """Parse and check the options that Spark passes.

    Raises:
        InvalidValueError: An option is unknown, or its value breaks a rule; the message names both.
    """
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    for key, text in options.items():
        if (twin := given.setdefault(key.lower(), key)) != key:
            raise InvalidValueError(f"options {shown(twin, 40)} and {shown(key, 40)} are the same option: set it once")
        if option := _OPTIONS.get(key.lower()):
            values[option.name] = option.metadata["convert"](text.strip(), option.metadata["name"])
        elif key.lower().startswith("option."):
            raise InvalidValueError(
                "format rmq cannot be stored as a table: Spark passes the options of such a table as "
                f"{shown(key, 40)} on a write, and not at all on a read. Use CREATE TEMPORARY VIEW ... USING rmq "
                "OPTIONS (...)"
            )
        elif key.lower() not in (*_OF_SPARK, *_PATHS):
            raise _unknown(key)
    for key, text in options.items():  # last: Spark adds the path of a stored table
        if key.lower() in _PATHS:
            raise InvalidValueError(f"{key} is {quoted(text)}; format rmq has no paths: use option topic")
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
        return InvalidValueError(f"{text}: {shown(key, 60)} is a column of the frame to write")
    if key.lower().startswith("zookeeper") and "password" in key.lower():
        return InvalidValueError(
            f"{text}, because Spark would show the password in its plans. Set the variable RMQ_ZOOKEEPER_PASSWORD of "
            f"the driver, or RMQ_ZOOKEEPER_KEY_PASSWORD for the password of a key"
        )
    near = difflib.get_close_matches(key.lower(), _OPTIONS, 1)
    meant = _OF_KAFKA.get(key.lower()) or (_OPTIONS[near[0]].metadata["name"] if near else None)
    return InvalidValueError(f"{text}; did you mean {meant}?" if meant else text)


def _check_pairs(parsed: Options) -> None:
    """Raise `InvalidValueError` for options that require or exclude another one."""
    if parsed.bad_rows_path is not None and parsed.bad_rows != "collect":
        path = quoted(parsed.bad_rows_path)
        raise InvalidValueError(
            f"badRowsPath is {path}, but badRows is {parsed.bad_rows}: the folder is used with badRows=collect only"
        )
    if parsed.merge == "none" and parsed.merge_rows != Options.merge_rows:
        raise InvalidValueError(
            f"mergeRows is {parsed.merge_rows}, but merge is none, which buffers no rows to merge: remove mergeRows"
        )
    if parsed.atomic_limit != Options.atomic_limit and parsed.snapshot != "atomic":
        limit, snapshot = parsed.atomic_limit, parsed.snapshot
        raise InvalidValueError(
            f"atomicLimit is {limit}, but snapshot is {snapshot}: atomicLimit has an effect with snapshot=atomic only"
        )
    if parsed.bad_rows == "collect" and not parsed.bad_rows_path:
        raise InvalidValueError("badRows=collect needs badRowsPath, the folder for rows that cannot be sent")
    if parsed.when_passed == "collect" and parsed.bad_rows != "collect":
        raise InvalidValueError(
            "whenPassed=collect needs badRows=collect and badRowsPath, the folder for rows that cannot be sent"
        )
    named = {"topic": parsed.topic, "topics": parsed.topics, "topicPattern": parsed.topic_pattern}
    if parsed.several and len(given := [name for name, value in named.items() if value is not None]) > 1:
        raise InvalidValueError(f"{' and '.join(given)} cannot be used together; set one of them")
    if (parsed.txn_app is None) != (parsed.txn_version is None):
        raise InvalidValueError("txnAppId and txnVersion are needed together: set both")
    if parsed.txn_app is not None and (parsed.once is not None or parsed.idempotent is False):
        raise InvalidValueError("txnAppId cannot be combined with once, or with idempotent=false")
    if parsed.max_delay_ms is not None and parsed.min_messages == 1:
        raise InvalidValueError("maxTriggerDelay has no effect without minMessagesPerTrigger of 2 or more: set both")


def _check_worker(parsed: Options, values: Mapping[str, Any]) -> None:
    """Raise `InvalidValueError` for options of a worker that no option makes one, or for two that do."""
    options = [option for option in _OPTIONS.values() if option.metadata["of"] == "worker"]
    given = [option.metadata["name"] for option in options if option.name in values]
    if given and not parsed.owns:
        raise InvalidValueError(
            f"{', '.join(given)} cannot be used without option owners or zookeeper: set owners to redis, or "
            "zookeeper to servers such as zk1:2181,zk2:2181"
        )
    foreign = [name for name in given if name.startswith("zookeeper") is (parsed.owners is not None)]
    foreign = [name for name in foreign if name.startswith(("zookeeper", "ownersSession"))]
    if foreign:
        keeper = "owners" if parsed.owners is not None else "zookeeper"
        names = ", ".join(foreign)
        raise InvalidValueError(f"{names} cannot be combined with {keeper}: owners are kept in Redis or in ZooKeeper")


def _check_bounds(parsed: Options) -> None:
    """Raise `InvalidValueError` for a minimum that exceeds its maximum."""
    partitions = "minPartitions", parsed.min_partitions, "maxPartitions", parsed.max_partitions
    messages = "minMessagesPerTrigger", parsed.min_messages, "maxMessagesPerTrigger", parsed.max_messages
    for low, least, high, most in (partitions, messages):
        if least is not None and most is not None and least > most:
            raise InvalidValueError(f"{low} is {least} and {high} is {most}; the minimum must not exceed the maximum")
    for name, first in (("first", parsed.first), ("start", parsed.start)):
        if first is not None and parsed.last is not None and first not in ("new", "all"):
            _check_order(f"{name} is {first} and last is {parsed.last}", first, parsed.last)
    for slot, first, last in parsed.ranges or ():
        _check_order(f"ranges has {first} to {last} for slot {slot}", first, last)


def _check_order(what: str, first: str, last: str) -> None:
    """Raise an error for a range that ends before it begins. An id without a sequence number is a whole millisecond."""
    if id_key(first) > id_key(last if "-" in last else f"{last}-{LAST_SEQUENCE}"):
        raise InvalidValueError(f"{what}; the last entry must not precede the first")


def _url(given: str | None) -> str:
    url = os.environ.get("RMQ_URL") if given is None else given
    if not url:
        found = "option `url` is missing, and RMQ_URL is " + ("not set" if url is None else "empty")
        found = found if given is None else "option `url` is empty"
        raise InvalidValueError(
            f'{found}: set .option("url", "redis://host:6379"). RMQ_URL must be set before Spark\'s JVM '
            "starts, or before rmq.spark.register(spark) is called"
        )
    parsed = parse_url(url)
    if parsed.topology.name == "EMBEDDED":
        raise InvalidUrlError(
            f"url is {parsed.shown}: each executor would start its own Redis. Start one with RmqClient() "
            "in the driver and pass its client.url, or give the address of a server"
        )
    return url


_OF_STREAMS = frozenset("group start first last ranges states_of".split())
_OF_QUEUES = frozenset("snapshot atomic_limit chunk_size".split())
_NOT_OF_LOGS = frozenset(
    "first ranges states_of pushdown max_replays fail_on_lease_lost min_messages max_delay_ms".split()
)


def check_read(options: Options) -> None:
    """Raise an error for options that have no effect on a read.

    Raises:
        InvalidValueError: An option of writes differs from its default.
    """
    for name in given(options, fields_for("write")):
        raise InvalidValueError(f"{name} is an option of writes and has no effect on a read: remove it")


def check_sink(options: Options) -> None:
    """Raise an error for options that have no effect on a write.

    Raises:
        InvalidValueError: An option of reads differs from its default.
    """
    for name in given(options, fields_for("read", "batch", "stream", "worker", "group")):
        raise InvalidValueError(f"{name} is an option of reads and has no effect on a write: remove it")
    for name in given(options, fields_for("selection")):
        raise InvalidValueError(
            f"{name} is an option of reads. A write goes to the topic of option topic, or each row to the "
            "topic in its column topic, and uses the columns of its frame"
        )


def check_batch(options: Options) -> None:
    """Raise an error for options that have no effect on a batch read.

    Raises:
        InvalidValueError: An option of writes or of streaming queries differs from its default.
    """
    check_read(options)
    for name in given(options, fields_for("stream", "worker")):
        raise InvalidValueError(f"{name} is an option of readStream and has no effect on spark.read: remove it")
    if given(options, fields_for("group")):
        raise InvalidValueError(
            "group and start are options of readStream. With spark.read, use statesOf for the state of "
            "each entry in a group, and first for the first entry of a range"
        )
    if options.ranges is not None and given(options, ("first", "last")):
        raise InvalidValueError("ranges already sets the first and last entry of each slot: remove first and last")
    if options.ranges is not None and given(options, ("topics", "topic_pattern")):
        raise InvalidValueError("ranges needs a single topic: set topic, and remove topics and topicPattern")


def check_source(options: Options) -> None:
    """Raise an error for options that have no effect on a streaming query.

    Raises:
        InvalidValueError: An option has no effect on the query, or the topic is missing.
    """
    check_read(options)
    for name in given(options, fields_for("batch") | {"chunk_size"}):
        raise InvalidValueError(f"{name} is an option of spark.read and has no effect on readStream: remove it")
    if options.queue != "backlog":
        raise InvalidValueError(f"readStream reads the backlog only; use spark.read for queue {options.queue}")
    if not options.several:
        options.needed_topic()
    zookeeper_access(options)


def zookeeper_access(options: Options) -> tuple[DigestAuth | None, Tls | None]:
    """Return the login and TLS settings of a query for ZooKeeper; the TLS files are on the driver.

    Raises:
        InvalidValueError: The password is not set in the driver's environment, or a file does not exist.
    """
    names = {"zookeeperCa": options.zookeeper_ca, "zookeeperCert": options.zookeeper_cert}
    files = {**names, "zookeeperKey": options.zookeeper_key}
    return access_by_options(options.zookeeper_user, "zookeeperUser", files)


def check_topic(topic: Topic, options: Options) -> None:
    """Raise an error for options that have no effect on reads of this type of topic.

    Raises:
        InvalidValueError: An option has no effect.
    """
    stream = topic.type is TopicType.STREAM
    if stream and options.queue != "backlog":
        raise InvalidValueError(
            f"topic {topic.name} is STREAM and has no queue {options.queue}: remove option queue. With "
            "statesOf, a read shows which entries are in flight, waiting or dead for a group",
            topic=topic.name,
        )
    for name in given(options, _OF_QUEUES if stream else _OF_STREAMS):
        others = "topics of other types" if stream else "STREAM topics"
        text = f"topic {topic.name} is {topic.type.name}; option {name} is for {others}"
        raise InvalidValueError(text, topic=topic.name)


def check_log_source(topic: Topic, options: Options) -> None:
    """Raise an error for options that have no effect on a streaming query on a STREAM topic.

    Raises:
        InvalidValueError: An option has no effect on the query, or the group is missing.
    """
    check_read(options)
    check_topic(topic, options)
    options.needed_group(topic)
    for name in given(options, fields_for("worker") | _NOT_OF_LOGS):
        raise InvalidValueError(f"readStream of a STREAM topic has no option {name}: remove it", topic=topic.name)


def check_replays(topic: Topic, options: Options) -> None:
    """Raise an error if a batch would be replayed more often than its messages may be retried.

    Raises:
        InvalidValueError: `maxReplays` is too large: the messages would die before their batch is halved.
    """
    most = max(0, topic.max_retries - 1)
    if options.max_replays is not None and options.max_replays > most:
        raise InvalidValueError(
            f"maxReplays is {options.max_replays}; on topic {topic.name}, whose max_retries is {topic.max_retries}, "
            f"it must be from 0 to {most}, or messages would become dead before their batch is halved",
            topic=topic.name,
        )


def check_values(topic: Topic, options: Options) -> None:
    """Raise an error for an option for topics of another type, if all rows go to this topic.

    Raises:
        InvalidValueError: `time_range` is set but the topic is not RANGE_MERGE, or `priority` but it is not PRIORITY.
    """
    ranged, ranked = (topic.type is kind for kind in (TopicType.RANGE_MERGE, TopicType.PRIORITY))
    what = f"but topic {topic.name} is {topic.type.name}: the option is for"
    if options.time_range_ms is not None and not ranged:
        text = f"time_range is {options.time_range_ms} ms, {what} RANGE_MERGE topics"
        raise InvalidValueError(text, topic=topic.name)
    if options.priority is not None and not ranked:
        raise InvalidValueError(f"priority is {options.priority}, {what} PRIORITY topics", topic=topic.name)


def fields_for(*uses: Use) -> frozenset[str]:
    """Return the names of the fields of options for these uses."""
    return frozenset(option.name for option in fields(Options) if option.metadata["of"] in uses)


def given(options: Options, names: Collection[str]) -> list[str]:
    """Return the documented names of those of the given options that differ from their defaults."""
    known = [option for option in fields(Options) if option.name in names]
    return [option.metadata["name"] for option in known if getattr(options, option.name) != option.default]
