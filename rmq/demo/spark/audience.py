"""Audience selection: which customers are in which segments, worked out anew for those who changed.

Several sources send "customer changed" into one RANGE_MERGE topic, where the changes of a window merge per customer.
The streaming source drains it; for the customers of a batch the rules are evaluated and their segments written. RMQ
lets nobody else have a customer meanwhile, and `serial.py` looks whether that was so.

A folder `out` belongs to one topic: `segments/batch=N` (Parquet, overwritten when a batch is run again),
`evaluations/batch=N` (when that was) and `checkpoint`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from rmq._admin.adopt import adopt
from rmq._admin.inspection import Inspection
from rmq._broker.registry import Registry
from rmq._model.topics import Topic, TopicType
from rmq.client import RmqClient
from rmq.demo.spark.access import ZooKeeperAccess
from rmq.demo.spark.audience_rules import DEFAULT_RULES, check_names, check_rules
from rmq.demo.spark.customers import SOURCES, changes, latest
from rmq.demo.spark.evaluating import Evaluator
from rmq.demo.spark.order_lines import check_file, read_lines
from rmq.demo.spark.serial import Disorder, OwningRival, Rival, disorder
from rmq.errors import EnsembleMismatchError, FencedError, InvalidValueError, UnknownTopicError
from rmq.spark import option_kinds as kinds
from rmq.spark.failures import SPARK_ERRORS, one_line, plain_errors
from rmq.spark.jobs import Say, nothing
from rmq.spark.jobs.redrive import connect
from rmq.spark.options import parse_options
from rmq.spark.sink.sender import Counts
from rmq.spark.sink.writer import BatchWriter, write_counted

_LOOK_EVERY_S = 0.2
_ANSWER_S = 15.0
"""How long `check` waits for ZooKeeper to answer."""


@dataclass(frozen=True)
class AudienceSettings:
    """What the job is to do.

    Attributes:
        lines: Order lines: Parquet or CSV, as Spark's processes reach it. They are read anew for each batch.
        out: Folder for segments and checkpoint, as Spark's processes reach it.
        url: Where Redis is, as driver and executors reach it; no `embedded://`.
        rules: Segment -> Spark SQL condition over `audience_rules.FIGURES`.
        topic: Name of the topic.
        slots: Its number of slots.
        window_ms: In which time the changes of a customer merge.
        batch: Most customers in a batch.
        sources: Which of `SOURCES` send their changes first; none: only drain.
        until_empty: End when the topic is empty; else run on until told to stop.
        rival: How many customers a plain consumer takes from the topic beside Spark. It changes each while it has
            it, so that Spark has to evaluate that customer afterwards.
        zookeeper: How to reach ZooKeeper: Spark and the rival are workers, and each slot belongs to one of them.
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
            raise InvalidValueError(f"batch is {self.batch}; it must be up to {kinds.MOST_MESSAGES:,}")
        if self.rival < 0:
            raise InvalidValueError(f"rival is {self.rival}; it must be 0 or more")
        check_names(self.rules)
        self.to_topic()

    def to_topic(self) -> Topic:
        """Return the topic's definition."""
        return Topic(self.topic, TopicType.RANGE_MERGE, slots=self.slots)


@dataclass(frozen=True, slots=True)
class AudienceReport:
    """Figures of one run.

    Attributes:
        lines: Order lines read.
        without_customer: Those of them that name no customer: no change.
        sent: Source -> what became of its changes.
        batches: Batches evaluated.
        evaluated: Customers in them, as often as they came.
        passed_over: Messages whose content is no customer.
        customers: Customers with segments in the folder, those of earlier runs too.
        members: Segment -> how many of these it has.
        rival: Customers that the plain consumer had.
        disorder: What should not be.
        expired: Leases that ran out.
        left: Messages still in the topic.
        died: Messages that died in this run, as of a batch that failed too often: their customers were not evaluated.
        elapsed_s: From the first send until the topic was drained, the window's waiting included.
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
        """What became of the changes of all sources."""
        return Counts.total(self.sent.values())

    @property
    def merged_share(self) -> float:
        """The folding rate: which share of the changes became no message of its own; 0 without any."""
        total = self.total
        return 1 - total.new / total.rows if total.rows else 0.0

    @property
    def serial(self) -> bool:
        """True if no customer was in two hands at once, and none is out of date."""
        return self.disorder == Disorder()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        derived = {"total": asdict(self.total), "merged_share": round(self.merged_share, 4)}
        return {**asdict(self), **derived, "serial": self.serial, "elapsed_s": round(self.elapsed_s, 1)}


def check(settings: AudienceSettings) -> None:
    """Look, without Spark, whether files, Redis and ZooKeeper fit the settings.

    Raises:
        InvalidValueError: The order lines are a file of this machine, and it is no Parquet or lacks a column.
        TopicMismatchError: The topic is there already, and is another.
        FencedError: The topic has workers under ZooKeeper, and `zookeeper` is not set.
        EnsembleMismatchError: Its workers are under another ZooKeeper.
        CoordinationError: ZooKeeper does not answer.
    """
    check_file(settings.lines)
    topic = settings.to_topic()
    with closing(connect(settings.url)) as connections:
        registered = Registry(connections).check(topic)
        ours = _ensemble(settings)
        stored = adopt(connections, topic, None, ours).stored.keys() if registered else set[str]()
    others = ", ".join(sorted(stored - {ours, ""}))
    if others and not ours:
        raise FencedError(
            f"topic {topic.name} has workers under ZooKeeper, and zookeeper is not set: give it their servers, as "
            "zk1:2181",
            topic=topic.name,
        )
    if others and settings.zookeeper is not None:
        raise EnsembleMismatchError(
            f"topic {topic.name} has slots of ensemble {others}, and the ensemble at {settings.zookeeper.hosts} "
            f"is {ours}: name the one that its workers use",
            topic=topic.name,
        )


def _ensemble(settings: AudienceSettings) -> str:
    """Return the identity of the ZooKeeper ensemble; empty where none is named."""
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
    """Send the changes, drain the topic, write the segments, and say how it went.

    Args:
        spark: A session that knows `format("rmq")`; not Spark Connect.
        settings: What to do.
        say: Gets a line when a step begins, from several threads.
        stop: Ends the run after the batch that is being worked on.

    Raises:
        InvalidValueError: A setting, a rule or the order lines are wrong; nothing was sent or written.
        RmqError: The query failed. A run on the same `out` goes on where it was.
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
    """Return each customer's figures and segments as the last batch has left them.

    Raises:
        InvalidValueError: The folder has no segments.
    """
    try:
        return latest(spark.read.parquet(f"{out}/segments"))
    except SPARK_ERRORS:
        raise InvalidValueError(f"{out!r} holds no segments: `rmq spark audience` writes them") from None


def _check_folder(spark: SparkSession, client: RmqClient, settings: AudienceSettings) -> None:
    """Refuse a checkpoint that Redis can't know, before all changes are sent to a query that then fails."""
    with suppress(UnknownTopicError):
        client.topic(settings.topic)
        return
    try:
        current_segments(spark, settings.out)
    except InvalidValueError:  # a fresh one
        return
    raise InvalidValueError(
        f"{settings.out!r} holds the segments of a topic that this Redis does not know as {settings.topic!r}: name "
        "a fresh folder, or the Redis and topic that it was made with"
    )


def _make_folder(spark: SparkSession, out: str) -> None:
    """Make the folder, before changes are sent that nobody could evaluate then."""
    session: Any = spark
    try:
        path = session._jvm.org.apache.hadoop.fs.Path(out)
        made = path.getFileSystem(session._jsc.hadoopConfiguration()).mkdirs(path)
        reason = "" if made else "its file system refuses"
    except SPARK_ERRORS as error:
        reason = one_line(error)
    if reason:
        raise InvalidValueError(f"folder {out!r} can't be made: {reason}")


class _Job:
    """One run."""

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
        self._say("looking at what was written")
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
        """Send the changes of all sources; return what became of each source's."""
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
                if idle and not stats.backlog and not stats.in_flight:  # Spark has left nothing for it
                    return
            elif beside:  # it has ended meanwhile: what it had in its slots is Spark's now
                continue
            elif idle or not stats.backlog:  # what is left is paused, or is due much later
                return

    def _wait_for_window(self, inspection: Inspection) -> None:
        """Wait until all is due, or what was sent before now is."""
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
        """Return how many customers there are, and how many of them in each segment."""
        try:
            current = current_segments(self._spark, self._settings.out)
        except InvalidValueError:  # nothing was due yet
            return 0, dict.fromkeys(self._settings.rules, 0)
        counts = current.select(F.explode("segments").alias("segment")).groupBy("segment").count().collect()
        members = {row["segment"]: row["count"] for row in counts}
        return current.count(), {name: members.get(name, 0) for name in self._settings.rules}
