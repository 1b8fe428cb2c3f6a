"""Reads the data of the pages through the client, with a cache. Writes nothing to Redis."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeVar

from rmq import (
    AuditLine,
    ConsumerStats,
    DeadReasons,
    Definitions,
    GroupStats,
    HandlerTimes,
    ListenerInfo,
    Minute,
    RmqClient,
    SparkQuery,
    StreamStats,
    Topic,
    TopicStats,
    TopicType,
    UnreadableTopic,
    WorkerInfo,
)
from rmq.dashboard.cache import Cache
from rmq.dashboard.charts import Chart, Line, draw, short
from rmq.errors import RedisUnavailableError, RmqError
from rmq.spi import minute_of, minute_of_stream, span, sum_of

log = logging.getLogger("rmq.dashboard")
T = TypeVar("T")

PERIODS = {"15m": "Last 15 minutes", "1h": "Last hour", "6h": "Last 6 hours", "24h": "Last 24 hours"}
"""Periods of the charts, with their labels."""

RANGES = {"15m": 15, "1h": 60, "6h": 360, "24h": 1_440}
"""Periods of the charts, in minutes."""

MOST_SAMPLES = 1_000
"""Maximum number of readings kept per topic, for the time after the last recorded minute."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of a topic, or of all topics, at one time."""

    time_ms: int
    figures: Minute


@dataclass(frozen=True, slots=True)
class TopicNow:
    """The last reading of a topic.

    Attributes:
        rates: Messages sent, merged, acked, retried and buried per second, over the last readings.
        paused: Number of paused slots.
        stats: Figures of its slots; `None` for a stream.
        stream: Figures of its slots; `None` for other types.
        trouble: The error if the topic could not be read, else empty.
    """

    topic: Topic
    figures: Minute
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    paused: int = 0
    stats: TopicStats | None = None
    stream: StreamStats | None = None
    groups: tuple[GroupStats, ...] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """Figures and rates of all topics at one time."""

    topics: tuple[TopicNow, ...]
    figures: Minute
    rates: Mapping[str, float]
    unreadable: tuple[UnreadableTopic, ...] = ()


class Samples:
    """The last readings of one topic, or of all topics, by this process."""

    def __init__(self) -> None:
        self._readings: deque[Sample] = deque(maxlen=MOST_SAMPLES)

    def add(self, sample: Sample) -> None:
        """Add a reading. The oldest one is dropped beyond `MOST_SAMPLES`."""
        self._readings.append(sample)

    def rates(self) -> dict[str, float]:
        """Return rates per second over about the last ten seconds; empty with fewer than two readings."""
        readings = list(self._readings)
        if len(readings) < 2:
            return {}
        last = readings[-1]
        before = next((each for each in reversed(readings[:-1]) if last.time_ms - each.time_ms >= 10_000), readings[0])
        seconds = max(0.001, (last.time_ms - before.time_ms) / 1_000)
        names = ("accepted", "merged", "acked", "retried", "buried")
        changes = {name: getattr(last.figures, name) - getattr(before.figures, name) for name in names}
        return {name: max(0.0, change / seconds) for name, change in changes.items()}

    def since(self, time_ms: int) -> list[Sample]:
        """Return the readings after a time in epoch ms."""
        return [sample for sample in list(self._readings) if sample.time_ms > time_ms]


class Reader:
    """Reads the data of the pages."""

    def __init__(self, client: RmqClient) -> None:
        self.client = client
        self.cache = Cache()
        self._samples: dict[str | None, Samples] = {}
        self._lock = threading.Lock()

    def definitions(self) -> Definitions:
        """Return all registered topics, and those that cannot be read."""
        return self.cache.get("topics", self.client.definitions)

    def topics(self) -> Sequence[Topic]:
        """Return the registered topics that can be read, by name."""
        return self.definitions().topics

    def topic(self, name: str) -> Topic:
        """Return a topic's definition; raise an error if it is not registered or cannot be read."""
        topic = next((topic for topic in self.topics() if topic.name == name), None)
        return self.client.topic(name) if topic is None else topic

    def overview(self) -> Overview:
        """Return all topics with their figures, sums and rates."""
        return self.cache.get("overview", self._read_overview)

    def topic_now(self, name: str) -> TopicNow:
        """Return one topic with its slots or groups."""
        topic = self.topic(name)
        return self.cache.get(("topic", name), lambda: self._read_topic(topic))

    def workers(self) -> Sequence[WorkerInfo]:
        """Return the processes with running listeners, by name."""
        return self.cache.get("workers", lambda: _read_or_nothing("the workers", self.client.workers))

    def handler_times(self, topic: Topic | None = None, group: str | None = None) -> HandlerTimes:
        """Return the handler times of a topic or group, or of all, over the active workers and their last minutes."""
        workers = (worker for worker in self.workers() if not worker.stale)
        listeners = (each for worker in workers for each in worker.listeners if group in (None, each.group))
        chosen = (each for each in listeners if topic is None or each.topic == topic.name)
        return HandlerTimes.summed(each.times for each in chosen)

    def listening(self, topic: Topic, group: str | None = None) -> bool:
        """Return whether an active worker listens to a topic, or for a group of it."""
        return bool(self._listeners(topic, group))

    def owners(self, topic: Topic, group: str | None = None) -> dict[int, str]:
        """Return slot -> name of its owner; empty without ZooKeeper."""
        owned = [(worker, listener) for worker, listener in self._listeners(topic, group) if worker.zookeeper]
        return {slot: worker.name for worker, listener in owned for slot in listener.slots}

    def _listeners(self, topic: Topic, group: str | None) -> list[tuple[WorkerInfo, ListenerInfo]]:
        workers = (worker for worker in self.workers() if not worker.stale)
        return [
            (worker, listener)
            for worker in workers
            for listener in worker.listeners
            if (listener.topic, listener.group) == (topic.name, group)
        ]

    def reasons(self, topic: Topic) -> DeadReasons:
        """Return the number of dead messages by error type."""
        return self.cache.get(("reasons", topic.name), lambda: self.client.inspect(topic).dead_reasons())

    def spark_queries(self, topic: Topic) -> Sequence[SparkQuery]:
        """Return the reports of Spark queries on a topic."""
        seen = self.client.stream if topic.type is TopicType.STREAM else self.client.inspect
        name = f"the reports of Spark on {topic.name}"
        return self.cache.get(("spark", topic.name), lambda: _read_or_nothing(name, seen(topic).spark_queries))

    def audit(self, topic: Topic, limit: int) -> Sequence[AuditLine]:
        """Return a topic's audit log, the newest line first."""
        seen = self.client.stream if topic.type is TopicType.STREAM else self.client.inspect
        return self.cache.get(("audit", topic.name), lambda: seen(topic).audit(limit))

    def consumers(self, topic: Topic) -> list[ConsumerStats]:
        """Return the consumers of a stream topic's groups."""
        stream = self.client.stream(topic)
        groups = self.topic_now(topic.name).groups
        return self.cache.get(
            ("consumers", topic.name), lambda: [each for group in groups for each in stream.consumers(group.group)]
        )

    def charts(self, topic: str | None, chosen: str, *, timed: bool = True) -> list[Chart]:
        """Return the charts of a topic, or of all topics, over one of `RANGES`; lateness only if `timed`."""
        minutes = RANGES.get(chosen, RANGES["1h"])
        recorded = self.cache.get(("history", topic), lambda: self._recorded(topic))
        last_ms = recorded[-1].minute * 60_000 + 5_000 if recorded else 0
        younger = self._samples_of(topic).since(last_ms)
        end_ms = max([time.time_ns() // 1_000_000 if not younger else younger[-1].time_ms, last_ms])
        first_ms = end_ms - minutes * 60_000
        points = [Sample(each.minute * 60_000, each) for each in recorded]
        points = [each for each in points + younger if each.time_ms >= first_ms - 120_000]
        charts = [
            _chart("backlog", "Backlog", points, {"backlog": "backlog"}, first_ms, end_ms),
            _throughput(points, first_ms, end_ms),
            _chart("late", "Lateness", points, {"late_ms": "late"}, first_ms, end_ms, span),
            _chart("flight", "In flight", points, {"in_flight": "in flight", "waiting": "waiting"}, first_ms, end_ms),
            _chart("deaths", "Dead letters", points, {"dead": "dead"}, first_ms, end_ms),
        ]
        return charts if timed else [each for each in charts if each.id != "late"]

    def _recorded(self, topic: str | None) -> Sequence[Minute]:
        return _read_or_nothing("the history", lambda: self.client.history().last(topic))

    def _samples_of(self, topic: str | None) -> Samples:
        with self._lock:
            return self._samples.setdefault(topic, Samples())

    def _read_overview(self) -> Overview:
        definitions = self.definitions()
        topics = [self._read_or_say(topic) for topic in definitions.topics]
        minutes = [each.figures for each in topics if not each.trouble]
        figures = sum_of(minutes[0].minute if minutes else 0, minutes)
        samples = self._samples_of(None)
        samples.add(Sample(time.time_ns() // 1_000_000, figures))
        with self._lock:
            for name in self._samples.keys() - {None, *(each.topic.name for each in topics)}:
                del self._samples[name]
        return Overview(tuple(topics), figures, samples.rates(), definitions.unreadable)

    def _read_or_say(self, topic: Topic) -> TopicNow:
        try:
            return self.cache.get(("topic", topic.name), lambda: self._read_topic(topic))
        except RedisUnavailableError:
            raise
        except RmqError as error:  # the other topics are shown
            return TopicNow(topic, Minute(0), trouble=str(error))

    def _read_topic(self, topic: Topic) -> TopicNow:
        now_ms = time.time_ns() // 1_000_000
        samples = self._samples_of(topic.name)
        if topic.type is TopicType.STREAM:
            stream, groups = self.client.stream(topic).with_groups()
            figures = minute_of_stream(stream, groups, now_ms // 60_000)
            samples.add(Sample(now_ms, figures))
            paused = sum(slot.paused for group in groups for slot in group.slots)
            return TopicNow(topic, figures, samples.rates(), paused, None, stream, tuple(groups))
        stats = self.client.inspect(topic).stats()
        figures = minute_of(stats, now_ms // 60_000)
        samples.add(Sample(now_ms, figures))
        return TopicNow(topic, figures, samples.rates(), sum(slot.paused for slot in stats.slots), stats)


def _read_or_nothing(name: str, read: Callable[[], Sequence[T]]) -> Sequence[T]:
    """Read a shared key; return nothing if it cannot be read, as when another program has written to it."""
    try:
        return read()
    except RedisUnavailableError:
        raise
    except RmqError as error:
        log.warning("cannot read %s: %s", name, error)
        return ()


def basis_for(topic: Topic, slot: int) -> bytes:
    """Return a slot basis that maps to a slot, found by trial: on average after as many as the topic has slots."""
    return next(basis for basis in map(b"%d".__mod__, itertools.count()) if topic.slot_of(basis) == slot)


def digest(content: bytes) -> str:
    """Return the SHA-256 digest of a content, in hexadecimal, for addresses that cannot hold the content."""
    return sha256(content).hexdigest()


def _chart(
    id: str, title: str, points: Sequence[Sample], names: Mapping[str, str], first_ms: int, last_ms: int,
    label: Callable[[float], str] = short,
) -> Chart:  # fmt: skip
    lines = [
        Line(words, [(each.time_ms, float(getattr(each.figures, name))) for each in points])
        for name, words in names.items()
    ]
    return draw(id, title, lines, first_ms, last_ms, label)


def _throughput(points: Sequence[Sample], first_ms: int, last_ms: int) -> Chart:
    lines: list[Line] = []
    for names, label in ((("accepted",), "sent"), (("acked",), "done"), (("retried", "buried"), "failed")):
        rates: list[tuple[int, float]] = []
        for before, after in itertools.pairwise(points):
            seconds = (after.time_ms - before.time_ms) / 1_000
            if 1 <= seconds <= 180:
                change = sum(getattr(after.figures, name) - getattr(before.figures, name) for name in names)
                rates.append((after.time_ms, max(0.0, change / seconds)))
        lines.append(Line(label, rates))
    return draw("rate", "Throughput per second", lines, first_ms, last_ms, short)
