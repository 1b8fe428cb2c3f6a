"""Audience selection: assigns customers to segments, and re-evaluates customers that changed.

Several sources send "customer changed" to one RANGE_MERGE topic, where the changes of a window merge per customer. A
streaming query drains it: for the customers of each batch it evaluates the rules and writes the segments. RMQ gives a
customer to one consumer at a time, which `serial.py` checks.

A folder `out` belongs to one topic. It has `segments/batch=N` (Parquet, overwritten if a batch is repeated),
`evaluations/batch=N` (times of the evaluation) and `checkpoint`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from rmq import Coordinator, Inspection, RmqClient, Topic, TopicType
from rmq.errors import EnsembleMismatchError, FencedError, InvalidValueError, UnknownTopicError
from rmq.spark import option_kinds as kinds
from rmq.spark.jobs import SPARK_ERRORS, Say, nothing, one_line, plain_errors
from rmq.spark.options import parse_options
from rmq.spark.sink.sender import Counts
from rmq.spark.sink.writer import BatchWriter, write_counted
from rmq.spi import zookeeper_access
from spark_shop.customers import DEFAULT_RULES, SOURCES, Evaluator, changes, check_names, check_rules, latest
from spark_shop.order_lines import check_file, check_topic, read_lines
from spark_shop.serial import Disorder, OwningRival, Rival, disorder

_LOOK_EVERY_S = 0.2
_ANSWER_S = 15.0
"""Seconds that `check` waits for ZooKeeper."""


@dataclass(frozen=True)
class AudienceSettings:
    """Settings of the job.

    Attributes:
        lines: Order lines, Parquet or CSV, at a path that Spark's processes can read. They are read again for each
            batch.
        out: Folder for segments and checkpoint, at a path that Spark's processes can access.
        url: URL of Redis, reachable from driver and executors; not `embedded://`.
        rules: Segment -> Spark SQL condition over `audience_rules.FIGURES`.
        topic: Name of the topic.
        slots: Number of slots.
        window_ms: Merge window of a customer's changes.
        batch: Maximum number of customers in a batch.
        sources: Those of `SOURCES` that send changes first; with none, the topic is only drained.
        until_empty: End when the topic is empty; if False, run until stopped.
        rival: Number of customers that another consumer takes from the topic in parallel with Spark. It changes each of
            them meanwhile, so that Spark must evaluate them again.
        zookeeper: Access to ZooKeeper. Spark and the rival are then workers, and each slot belongs to one of them.
    """

    lines: str
    out: str
    url: str
    rules: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_RULES))
    topic: str = "audience"
    slots: int = 8
    window_ms: int = 2_000
    batch: int = 1_000
    sources: tuple[str, ...] = tuple(SOURCES)
    until_empty: bool = True
    rival: int = 0
    zookeeper: ZooKeeperAccess | None = None

    def __post_init__(self) -> None:
        for name in self.sources:
            if name not in SOURCES:
                raise InvalidValueError(f"source is {name!r}; it must be one of {', '.join(SOURCES)}")
        for name in ("window_ms", "batch"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.batch > kinds.MOST_MESSAGES:
            raise InvalidValueError(f"batch is {self.batch}; it must be at most {kinds.MOST_MESSAGES:,}")
        if self.rival < 0:
            raise InvalidValueError(f"rival is {self.rival}; it must be 0 or more")
        check_names(self.rules)
        self.to_topic()

    def to_topic(self) -> Topic:
        """Return the topic's definition."""
        return Topic(self.topic, TopicType.RANGE_MERGE, slots=self.slots)


@dataclass(frozen=True, slots=True)
class AudienceReport:
    """The results of one run.

    Attributes:
        lines: Number of order lines read.
        without_customer: Number of lines without a customer, for which no change is sent.
        sent: Source -> results of its sends.
        batches: Number of batches evaluated.
        evaluated: Number of customers in them, counted once per batch.
        passed_over: Number of messages whose content is not a customer.
        customers: Number of customers with segments in the folder, including earlier runs.
        members: Segment -> number of customers.
        rival: Number of customers that the plain consumer took.
        disorder: Violations of serial handling.
        expired: Number of expired leases.
        left: Number of messages left in the topic.
        died: Number of messages that died in this run, for example after their batch failed too often. Their customers
            were not evaluated.
        elapsed_s: Seconds from the first send until the topic was drained, including the merge window.
    """

    lines: int
    without_customer: int
    sent: Mapping[str, Counts]
    batches: int
    evaluated: int
    passed_over: int
    customers: int
    members: Mapping[str, int]
    rival: int
    disorder: Disorder
    expired: int
    left: int
    died: int
    elapsed_s: float

    @property
    def total(self) -> Counts:
        """Results of the sends of all sources."""
        return Counts.total(self.sent.values())

    @property
    def merged_share(self) -> float:
        """Share of the changes that merged into other messages; 0 without changes."""
        total = self.total
        return 1 - total.new / total.rows if total.rows else 0.0

    @property
    def serial(self) -> bool:
        """True if no customer was handled twice at once, and none is outdated."""
        return self.disorder == Disorder()

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        derived = {"total": asdict(self.total), "merged_share": round(self.merged_share, 4)}
        return {**asdict(self), **derived, "serial": self.serial, "elapsed_s": round(self.elapsed_s, 1)}


def check(settings: AudienceSettings) -> None:
    """Check files, Redis and ZooKeeper against the settings, without Spark.

    Raises:
        InvalidValueError: The order lines are a local file that is not Parquet or lacks a column.
        TopicMismatchError: The topic is registered with another definition.
        FencedError: The topic's workers use ZooKeeper, but `zookeeper` is not set.
        EnsembleMismatchError: The topic's workers use another ZooKeeper ensemble.
        CoordinationError: ZooKeeper does not answer.
    """
    check_file(settings.lines)
    topic = settings.to_topic()
    with RmqClient(settings.url) as client:
        registered = check_topic(client, topic)
        ours = _ensemble(settings)
        stored = client.adopt(topic).stored.keys() if registered else set[str]()
    others = ", ".join(sorted(stored - {ours, ""}))
    if others and not ours:
        raise FencedError(
            f"the workers of topic {topic.name} use ZooKeeper, but zookeeper is not set; set it to the same servers, "
            "such as zk1:2181",
            topic=topic.name,
        )
    if others and settings.zookeeper is not None:
        raise EnsembleMismatchError(
            f"topic {topic.name} has slots of ensemble {others}, but the ensemble at {settings.zookeeper.hosts} "
            f"is {ours}; use the one that its workers use",
            topic=topic.name,
        )


def _ensemble(settings: AudienceSettings) -> str:
    """Return the identity of the ZooKeeper ensemble; empty without ZooKeeper."""
    if settings.zookeeper is None:
        return ""
    coordinator = settings.zookeeper.coordinator()
    coordinator.start(_ANSWER_S)
    try:
        return coordinator.verified({})
    finally:
        coordinator.stop()


def run(
    spark: SparkSession, settings: AudienceSettings, say: Say = nothing, stop: threading.Event | None = None
) -> AudienceReport:
    """Send the changes, drain the topic, write the segments, and return a report.

    Args:
        spark: A session that knows `format("rmq")`; not Spark Connect.
        settings: Settings of the job.
        say: Called with a line at the start of each step, from several threads.
        stop: Event that ends the run after the present batch.

    Raises:
        InvalidValueError: A setting, a rule or the order lines are invalid; nothing was sent or written.
        RmqError: The query failed. Another run with the same `out` resumes it.
    """
    say("checking the rules")
    check_rules(spark, settings.rules)
    lines = read_lines(spark, settings.lines)
    job = _Job(spark, settings, say, stop or threading.Event())
    with plain_errors(), RmqClient(settings.url) as client:
        _check_folder(spark, client, settings)
        _make_folder(spark, settings.out)
        return job.run(client, lines)


def current_segments(spark: SparkSession, out: str) -> DataFrame:
    """Return the latest figures and segments of each customer.

    Raises:
        InvalidValueError: The folder has no segments.
    """
    try:
        return latest(spark.read.parquet(f"{out}/segments"))
    except SPARK_ERRORS:
        raise InvalidValueError(f"there are no segments in {out!r}; `rmq spark audience` writes them") from None


def _check_folder(spark: SparkSession, client: RmqClient, settings: AudienceSettings) -> None:
    """Raise an error if there is a checkpoint, but its topic is not registered, so that the query would fail."""
    with suppress(UnknownTopicError):
        client.topic(settings.topic)
        return
    try:
        current_segments(spark, settings.out)
    except InvalidValueError:  # a fresh one
        return
    raise InvalidValueError(
        f"{settings.out!r} has segments of an earlier run, but topic {settings.topic!r} is not registered in this "
        "Redis; use a new folder, or the same Redis and topic as before"
    )


def _make_folder(spark: SparkSession, out: str) -> None:
    """Create the folder before changes are sent."""
    session: Any = spark
    try:
        path = session._jvm.org.apache.hadoop.fs.Path(out)
        made = path.getFileSystem(session._jsc.hadoopConfiguration()).mkdirs(path)
        reason = "" if made else "its file system refused to create it"
    except SPARK_ERRORS as error:
        reason = one_line(error)
    if reason:
        raise InvalidValueError(f"folder {out!r} cannot be created: {reason}")


class _Job:
    """One run of the job."""

    def __init__(self, spark: SparkSession, settings: AudienceSettings, say: Say, stop: threading.Event) -> None:
        self._spark, self._settings, self._say, self._stop = spark, settings, say, stop

    def run(self, client: RmqClient, lines: DataFrame) -> AudienceReport:
        settings, began_s = self._settings, time.monotonic()
        client.producer(settings.to_topic())  # registers it
        inspection = client.inspect(settings.topic)
        evaluator = Evaluator(settings.lines, settings.out, settings.rules, inspection, self._say)
        before = inspection.stats()
        sent = self._send(lines)
        rival = self._rival(client, evaluator.begun)
        rival.start()
        try:
            self._drain(inspection, evaluator, rival)
        finally:
            rival.stop()
        end, elapsed_s = inspection.stats(), time.monotonic() - began_s
        left = end.backlog + end.in_flight + end.waiting
        self._say("reading earlier results")
        customers, members = self._members()
        return AudienceReport(
            lines=lines.count(),
            without_customer=lines.where("customer_id IS NULL").count(),
            sent=sent,
            batches=len(evaluator.batches),
            evaluated=evaluator.evaluated,
            passed_over=evaluator.passed_over,
            customers=customers,
            members=members,
            rival=len(rival.held),
            disorder=disorder(self._spark, settings.out, evaluator.batches, rival.held, drained=not left),
            expired=end.total("expired") - before.total("expired"),
            left=left,
            died=max(0, end.dead - before.dead),
            elapsed_s=elapsed_s,
        )

    def _rival(self, client: RmqClient, others: threading.Event) -> Rival:
        settings = self._settings
        if settings.zookeeper is None or not settings.rival:
            return Rival(client, settings.to_topic(), settings.rival, settings.window_ms, others)
        coordinator = settings.zookeeper.coordinator()
        return OwningRival(coordinator, client, settings.to_topic(), settings.rival, settings.window_ms, others)

    def _send(self, lines: DataFrame) -> dict[str, Counts]:
        """Send the changes of all sources; return the results by source."""
        settings, sent = self._settings, dict[str, Counts]()
        options = {"url": settings.url, "topic": settings.topic, "time_range": f"{settings.window_ms}ms"}
        for source in settings.sources:
            if self._stop.is_set():
                break
            self._say(f"sending the changes of {source}")
            frame = changes(lines, source)
            sent[source] = write_counted(frame, BatchWriter(frame.schema, parse_options(options)))
        return sent

    def _drain(self, inspection: Inspection, evaluator: Evaluator, rival: Rival) -> None:
        if not self._settings.until_empty:
            self._wait(self._query(evaluator, {"processingTime": "0 seconds"}), evaluator)
            return
        while not self._stop.is_set():
            self._wait_for_window(inspection)
            before, beside = len(evaluator.batches), rival.is_alive()
            self._wait(self._query(evaluator, {"availableNow": True}), evaluator)
            idle = len(evaluator.batches) == before
            stats = inspection.stats()
            if rival.is_alive():
                if idle and not stats.backlog and not stats.in_flight:  # there is nothing left for the rival
                    return
            elif beside:  # the rival has ended: its slots are Spark's now
                continue
            elif idle or not stats.backlog:  # the rest is paused, or due much later
                return

    def _wait_for_window(self, inspection: Inspection) -> None:
        """Wait until all messages are due, or at least those sent before now."""
        end_s = time.monotonic() + self._settings.window_ms / 1_000
        self._say("waiting for the merge window to end")
        while time.monotonic() < end_s and not self._stop.is_set():
            stats = inspection.stats()
            if stats.due_now == stats.backlog:
                return
            time.sleep(_LOOK_EVERY_S)

    def _query(self, evaluator: Evaluator, trigger: Mapping[str, Any]) -> StreamingQuery:
        settings = self._settings
        stream = self._spark.readStream.format("rmq").option("url", settings.url).option("topic", settings.topic)
        if settings.zookeeper is not None:
            stream = stream.options(**settings.zookeeper.options())
        changed = stream.option("maxMessagesPerTrigger", settings.batch).load()
        writer = changed.writeStream.foreachBatch(evaluator)
        return writer.option("checkpointLocation", f"{settings.out}/checkpoint").trigger(**trigger).start()

    def _wait(self, query: StreamingQuery, evaluator: Evaluator) -> None:
        try:
            while not query.awaitTermination(_LOOK_EVERY_S):  # pyright: ignore[reportArgumentType]
                if self._stop.is_set():
                    break
        finally:
            if query.isActive:
                evaluator.close()
            query.stop()

    def _members(self) -> tuple[int, dict[str, int]]:
        """Return the number of customers, in total and per segment."""
        try:
            current = current_segments(self._spark, self._settings.out)
        except InvalidValueError:  # nothing was due yet
            return 0, dict.fromkeys(self._settings.rules, 0)
        counts = current.select(F.explode("segments").alias("segment")).groupBy("segment").count().collect()
        members = {row["segment"]: row["count"] for row in counts}
        return current.count(), {name: members.get(name, 0) for name in self._settings.rules}


NODES = "/rmq"
"""Default parent path of RMQ's nodes in ZooKeeper."""


@dataclass(frozen=True)
class ZooKeeperAccess:
    """Servers of ZooKeeper, with login and certificates.

    Passwords come from the environment variables `RMQ_ZOOKEEPER_PASSWORD` and `RMQ_ZOOKEEPER_KEY_PASSWORD`.

    Attributes:
        hosts: Servers as `host:port`, separated by commas.
        chroot: Parent path of RMQ's nodes.
        user: User of the `digest` scheme.
        ca: File with the certificates of the servers' authority, or `system`.
        cert: File with the client certificate.
        key: File with its private key.
    """

    hosts: str
    chroot: str = NODES
    user: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        kinds.hosts(self.hosts, "zookeeper")
        kinds.chroot(self.chroot, "chroot")
        self.coordinator()

    def coordinator(self) -> Coordinator:
        """Return a new coordinator, not started.

        Raises:
            InvalidValueError: A password, a file or the key of a certificate is missing.
        """
        files = {"zookeeper_ca": self.ca, "zookeeper_cert": self.cert, "zookeeper_key": self.key}
        auth, tls = zookeeper_access(self.user, "zookeeper_user", files)
        return Coordinator(self.hosts, chroot=self.chroot, auth=auth, tls=tls)

    def options(self) -> dict[str, str]:
        """Return the options of a stream that owns slots."""
        said = {
            "zookeeper": self.hosts, "zookeeperChroot": self.chroot, "zookeeperUser": self.user,
            "zookeeperCa": self.ca, "zookeeperCert": self.cert, "zookeeperKey": self.key,
        }  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}


def access_of(
    hosts: str | None = None,
    chroot: str = NODES,
    user: str | None = None,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
) -> ZooKeeperAccess | None:
    """Return the access to ZooKeeper; `None` without servers.

    Raises:
        InvalidValueError: Other arguments are given without servers; or as `ZooKeeperAccess`.
    """
    if hosts is not None:
        return ZooKeeperAccess(hosts, chroot, user, ca, cert, key)
    rest = {"chroot": None if chroot == NODES else chroot, "zookeeper_user": user, "zookeeper_ca": ca,
            "zookeeper_cert": cert, "zookeeper_key": key}  # fmt: skip
    for name, value in rest.items():
        if value is not None:
            raise InvalidValueError(
                f"{name} is {value!r}, but zookeeper is not set; set it to ZooKeeper's servers, such as zk1:2181"
            )
    return None
