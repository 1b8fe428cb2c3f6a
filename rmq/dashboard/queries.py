"""Reads the data of the pages through the client, with a cache. Writes nothing to Redis.

A list of messages by state covers a whole topic: sorted, in pages, and bounded whatever the topic holds. Two ways lead
to it. The messages of one state in the order of their delivery are merged from the beginnings of all slots, exactly,
however many there are. Any other order, a pattern, or several states at once need all messages, so a search collects up
to `MOST_LISTED` of them, which are then sorted; the page says where that was not all.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias, TypeVar, get_args

from rmq import (
    AuditLine,
    ConsumerStats,
    DeadReasons,
    Definitions,
    FoundMessage,
    HandlerTimes,
    Inspection,
    Minute,
    PeekedMessage,
    RmqClient,
    ScheduleInfo,
    ServerMemory,
    Topic,
    TopicType,
    UnreadableTopic,
    WorkerInfo,
)
from rmq.dashboard.charts import Chart, Line, draw, short
from rmq.errors import InvalidValueError
from rmq.spi import AnyPlace, monotonic_s, span, sum_of
from rmq.views.findings import Finding, Reading, TopicReading, all_well, findings_of, worst_first
from rmq.views.reading import rates_between, read_or, read_servers, read_topic, search_pages, with_trouble

log = logging.getLogger("rmq.dashboard")
T = TypeVar("T")

FRESH_S = 2.0
"""Age in seconds up to which a value is not read again."""

REST = 100.0
"""A value is read again after this multiple of the time that its read took, so that reads take < 1 % of Redis' time."""

LONGEST_REST_S = 60.0
OLD_S = 10.0
"""Age in seconds from which a value is read again before it is shown."""


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: Any = None
    read_s: float | None = None
    rest_s: float = FRESH_S
    refreshing: bool = False


class Cache:
    """Values by key. One thread at a time reads a value; while pages use it, it is refreshed in the background."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return the cached value of a key, or that of `read` if it is too old. Errors of `read` are not cached."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
        before = entry.value
        if _too_old(entry):
            with entry.lock:
                if _too_old(entry):  # another thread may have read it meanwhile
                    _read(entry, read)
        elif _age_s(entry) > entry.rest_s:
            self._refresh(entry, read)
            return before
        return entry.value

    def rest_s(self, key: Hashable) -> float:
        """Return the time in seconds after which the value of a key is read again."""
        entry = self._entries.get(key)
        return FRESH_S if entry is None else entry.rest_s

    def drop(self) -> None:
        """Drop all values, so that a change shows at once."""
        with self._lock:
            self._entries.clear()

    def _refresh(self, entry: _Entry, read: Callable[[], T]) -> None:
        with self._lock:
            if entry.refreshing:
                return
            entry.refreshing = True

        def work() -> None:
            try:
                with entry.lock:
                    _read(entry, read)
            except Exception as error:  # the next request reads the value again, and gets the error
                log.debug("cannot refresh a cached value: %s", error)
                entry.read_s = None
            finally:
                entry.refreshing = False

        threading.Thread(target=work, name="rmq-dashboard-read", daemon=True).start()


def _age_s(entry: _Entry) -> float:
    return float("inf") if entry.read_s is None else monotonic_s() - entry.read_s


def _too_old(entry: _Entry) -> bool:
    return _age_s(entry) > max(OLD_S, 2 * entry.rest_s)


def _read(entry: _Entry, read: Callable[[], T]) -> None:
    began_s = monotonic_s()
    entry.value = read()
    entry.read_s = monotonic_s()
    entry.rest_s = min(LONGEST_REST_S, max(FRESH_S, REST * (entry.read_s - began_s)))


PERIODS = {"15m": "Last 15 minutes", "1h": "Last hour", "6h": "Last 6 hours", "24h": "Last 24 hours"}
"""Periods of the charts, with their labels."""

RANGES = {"15m": 15, "1h": 60, "6h": 360, "24h": 1_440}
"""Periods of the charts, in minutes."""

RATE_FROM_MS, FRESH_MS = 1_000, 30_000
"""Age of an earlier reading, in ms, between which a rate can be computed from it."""

SHORTEST_MS = 60_000
"""Shortest time that a chart spans, in ms."""

MOST_SAMPLES = 1_000
"""Maximum number of readings kept per topic, for the time after the last recorded minute."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of a topic, or of all topics, at one time."""

    time_ms: int
    figures: Minute


@dataclass(frozen=True, slots=True)
class Overview:
    """Figures and rates of all topics at one time, and what needs attention.

    Attributes:
        topics: The topics, those with the worst findings first.
        all_well: The sentence to show without findings.
    """

    topics: tuple[TopicReading, ...]
    figures: Minute
    rates: Mapping[str, float]
    findings: tuple[Finding, ...] = ()
    all_well: str = ""
    unreadable: tuple[UnreadableTopic, ...] = ()

    @property
    def oldest_ms(self) -> int:
        """The longest waiting time of a topic with due times, or of a group, ms; 0 if nothing waits."""
        return max(
            (each.oldest_ms or 0 for each in self.topics if each.topic.type is not TopicType.PRIORITY), default=0
        )


class Samples:
    """The last readings of one topic, or of all topics, by this process."""

    def __init__(self) -> None:
        self._readings: deque[Sample] = deque(maxlen=MOST_SAMPLES)

    def add(self, sample: Sample) -> None:
        """Add a reading. The oldest one is dropped beyond `MOST_SAMPLES`."""
        self._readings.append(sample)

    def rates(self, fresh_ms: int = FRESH_MS) -> dict[str, float]:
        """Return rates per second over about the last ten seconds; empty without a reading to compare with.

        Args:
            fresh_ms: Age from which a reading is too old: what happened since then may have happened long ago.
        """
        readings = list(self._readings)
        if not readings:
            return {}
        last = readings[-1]
        fresh = [each for each in readings if RATE_FROM_MS <= last.time_ms - each.time_ms <= fresh_ms]
        before = next((each for each in reversed(fresh) if last.time_ms - each.time_ms >= 10_000), None)
        before = before or next(iter(fresh), None)
        if before is None:
            return {}
        return rates_between(before.figures, last.figures, (last.time_ms - before.time_ms) / 1_000)

    def since(self, time_ms: int) -> list[Sample]:
        """Return the readings after a time in epoch ms."""
        return [sample for sample in list(self._readings) if sample.time_ms > time_ms]


Sampled: TypeAlias = str | tuple[str, str] | None
"""What readings are of: a topic, a group (topic and name), or all topics."""


class Reader:
    """Reads the data of the pages.

    Args:
        client: The client to use.
        clock: Returns the time in seconds since the epoch.
    """

    def __init__(self, client: RmqClient, clock: Callable[[], float] = time.time) -> None:
        self.client = client
        self.cache = Cache()
        self._clock = clock
        self._samples: dict[Sampled, Samples] = {}
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

    def topic_now(self, name: str) -> TopicReading:
        """Return one topic with its slots or groups."""
        topic = self.topic(name)
        return self.cache.get(("topic", name), lambda: self._read_topic(topic))

    def findings(self, now: TopicReading) -> list[Finding]:
        """Return what needs attention in a topic, by the same readings as the rest of its page."""
        return [each for each in findings_of(Reading([now], self.workers())) if each.topic == now.topic.name]

    def workers(self) -> Sequence[WorkerInfo]:
        """Return the processes with running listeners, by name."""
        return self._servers()[0]

    def schedules(self) -> Sequence[ScheduleInfo]:
        """Return the schedules, by name."""
        return self.cache.get("schedules", self.client.schedules.list)

    def _servers(self) -> tuple[Sequence[WorkerInfo], Mapping[str, ServerMemory]]:
        return self.cache.get("servers", lambda: read_servers(self.client))

    def handler_times(self, topic: Topic | None = None, group: str | None = None) -> HandlerTimes:
        """Return the handler times of a topic or group, or of all, over the active workers and their last minutes."""
        active = Reading((), self.workers()).active
        listeners = (each for worker in active for each in worker.listeners if group in (None, each.group))
        chosen = (each for each in listeners if topic is None or each.topic == topic.name)
        return HandlerTimes.summed(each.times for each in chosen)

    def listening(self, topic: Topic, group: str | None = None) -> bool:
        """Return whether an active worker listens to a topic, or for a group of it."""
        return bool(Reading((), self.workers()).listeners(topic.name, group))

    def owners(self, topic: Topic, group: str | None = None) -> dict[int, str]:
        """Return slot -> name of its owner; empty without owners."""
        serving = Reading((), self.workers()).serving(topic.name, group)
        return {slot: worker.name for worker, listener in serving if worker.zookeeper for slot in listener.slots}

    def handler_of(self, message: FoundMessage | PeekedMessage) -> tuple[str, int] | None:
        """Return the worker whose handler has a message, and for how long, ms; `None` if no worker reports it."""
        times = ((each.name, each.handles(message.topic, message.slot, message.content)) for each in self.workers())
        return next(((name, running_ms) for name, running_ms in times if running_ms is not None), None)

    def reasons(self, topic: Topic) -> DeadReasons:
        """Return the number of dead messages by error type."""
        return self.cache.get(("reasons", topic.name), lambda: self.client.inspect(topic).dead_reasons())

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
        end_ms = max([self._now_ms() if not younger else younger[-1].time_ms, last_ms])
        points = [Sample(each.minute * 60_000, each) for each in recorded] + younger
        # where the figures are younger than the period, the charts begin with them
        first_ms = max(end_ms - minutes * 60_000, min(points[0].time_ms if points else 0, end_ms - SHORTEST_MS))
        points = [each for each in points if each.time_ms >= first_ms - 120_000]
        charts = [
            _chart("backlog", "Backlog", points, {"backlog": "backlog"}, first_ms, end_ms),
            _throughput(points, first_ms, end_ms),
            _chart("late", "Lateness", points, {"late_ms": "late"}, first_ms, end_ms, span),
            _chart("flight", "In flight", points, {"in_flight": "in flight", "waiting": "waiting"}, first_ms, end_ms),
            _chart("deaths", "Dead letters", points, {"dead": "dead"}, first_ms, end_ms),
        ]
        return charts if timed else [each for each in charts if each.id != "late"]

    def group_charts(self, topic: str, group: str, chosen: str) -> list[Chart]:
        """Return the charts of a group, from the readings of this process: the history has the sums of all groups."""
        points = self._samples_of((topic, group)).since(0)
        end_ms = points[-1].time_ms if points else self._now_ms()
        first_ms = max(end_ms - RANGES[chosen] * 60_000, min(points[0].time_ms if points else 0, end_ms - SHORTEST_MS))
        return [
            _chart("backlog", "Lag", points, {"backlog": "unread"}, first_ms, end_ms),
            _chart("flight", "In flight", points, {"in_flight": "in flight", "waiting": "waiting"}, first_ms, end_ms),
        ]

    def _recorded(self, topic: str | None) -> Sequence[Minute]:
        return read_or("the history", lambda: self.client.history().last(topic), ())

    def _samples_of(self, topic: Sampled) -> Samples:
        with self._lock:
            return self._samples.setdefault(topic, Samples())

    def _read_overview(self) -> Overview:
        definitions = self.definitions()
        topics = [with_trouble(topic, lambda topic=topic: self.topic_now(topic.name)) for topic in definitions.topics]
        minutes = [each.figures for each in topics if not each.trouble]
        figures = sum_of(minutes[0].minute if minutes else 0, minutes)
        rates = self._rates(None, "overview", figures)
        with self._lock:
            names = {each.topic.name for each in topics}
            for key in [key for key in self._samples if key is not None and _topic_of(key) not in names]:
                del self._samples[key]
        reading = Reading(topics, *self._servers(), definitions.unreadable, definitions.deleting)
        findings = findings_of(reading)
        ordered = worst_first(topics, findings)
        return Overview(tuple(ordered), figures, rates, tuple(findings), all_well(reading), definitions.unreadable)

    def _read_topic(self, topic: Topic) -> TopicReading:
        reading = read_topic(self.client, topic)
        for group in reading.groups:
            figures = Minute(reading.figures.minute, group.lag or 0, in_flight=group.in_flight, waiting=group.waiting)
            self._samples_of((topic.name, group.group)).add(Sample(self._now_ms(), figures))
        return replace(reading, rates=self._rates(topic.name, ("topic", topic.name), reading.figures))

    def _rates(self, topic: str | None, key: Hashable, figures: Minute) -> dict[str, float]:
        """Note a reading; return its rates. Slow readings are repeated less often, and count as fresh for longer."""
        samples = self._samples_of(topic)
        samples.add(Sample(self._now_ms(), figures))
        return samples.rates(max(FRESH_MS, round(3_000 * self.cache.rest_s(key))))

    def _now_ms(self) -> int:
        return round(self._clock() * 1_000)


def _topic_of(key: str | tuple[str, str]) -> str:
    return key if isinstance(key, str) else key[0]


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


PAGE = 50
"""Number of messages on a page."""

MOST_LISTED, BUDGET = 2_000, 20_000
"""Maximum number of messages that a list collects, and that it examines for them."""

FARTHEST = 10_000
"""Last position up to which the order of delivery can be paged through."""

PLACES: tuple[AnyPlace, ...] = get_args(AnyPlace)
Listed: TypeAlias = FoundMessage | PeekedMessage

SORTS = {
    "next": "next first",
    "last": "last first",
    "content": "content",
    "slot": "slot",
    "retries": "fewest retries left",
}
"""Orders of a list: name in addresses -> words. Dead messages come in the order of their deaths."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of a list.

    Attributes:
        rows: Its messages.
        total: Number of messages of which the list is a page; `None` if more may follow.
        more: Position of the next page, 0 for none.
        cursor: Where a search that has not seen all messages continues; `None` otherwise.
    """

    rows: Sequence[Listed]
    total: int | None
    more: int
    cursor: str | None = None


def list_messages(
    view: Inspection, places: tuple[AnyPlace, ...], pattern: str, sort: str, first: int, cursor: str | None = None
) -> Listing:
    """Return a page of messages.

    Args:
        view: The topic.
        places: States to list.
        pattern: Pattern for the content, with `*`, `?` and `[...]`; empty for all.
        sort: One of `SORTS`.
        first: Position of the first message of the page.
        cursor: Where to continue a search; `None` to begin.

    Raises:
        InvalidValueError: The position, the pattern or the cursor is out of range.
    """
    if first > FARTHEST:
        raise InvalidValueError(f"first is {first:,}; a list shows at most {FARTHEST:,} messages: search by content")
    if len(places) == 1 and places != ("dead",) and not pattern and sort == "next" and cursor is None:
        rows = list(itertools.islice(_in_order(view, places[0], first), first, first + PAGE + 1))
        return Listing(rows[:PAGE], None, first + PAGE if len(rows) > PAGE and first + PAGE <= FARTHEST else 0)
    pages = list(search_pages(view, pattern or None, MOST_LISTED, BUDGET, places=places, cursor=cursor))
    found = {(each.slot, each.content, each.place): each for page in pages for each in page.messages}
    cursor = pages[-1].cursor
    rows = sorted(found.values(), key=partial(_sort_key, view.topic, sort))
    return Listing(rows[first : first + PAGE], len(rows), first + PAGE if first + PAGE < len(rows) else 0, cursor)


def _in_order(view: Inspection, place: Any, first: int) -> Iterator[PeekedMessage]:
    """Yield the messages of a state in the order of their delivery, merged from all slots."""
    size = min(1_000, 2 * (first + PAGE) // view.topic.slots + 2)
    heads: dict[int, list[PeekedMessage]] = {}
    for message in view.peek(place, size):
        heads.setdefault(message.slot, []).append(message)

    def of_slot(slot: int, head: list[PeekedMessage]) -> Iterator[PeekedMessage]:
        yield from head
        if len(head) == size:
            yield from view.pages(slot, place, 200, size)

    return heapq.merge(*(of_slot(slot, head) for slot, head in heads.items()), key=partial(_turn, view.topic))


def _turn(topic: Topic, message: Listed) -> tuple[int, int]:
    """Return the position in the order of delivery, state by state; of priorities the highest score comes first."""
    ranked = topic.type is TopicType.PRIORITY and message.place == "store"
    return PLACES.index(message.place), -message.score if ranked else message.score


def _sort_key(topic: Topic, sort: str, message: Listed) -> tuple[Any, ...]:
    place, position = _turn(topic, message)
    match sort:
        case "last":
            return place, -position
        case "content":
            return (message.content,)
        case "slot":
            return message.slot, place, position
        case "retries":
            left = topic.max_retries if message.retries_left is None else message.retries_left
            return left, place, position
        case _:
            return place, position
