"""Names and reports of worker processes."""

from __future__ import annotations

import math
import os
import re
import secrets
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rmq._model.display import shown
from rmq._model.schema import new_document, reading
from rmq._model.topics import MAX_SLOTS

BUCKETS = 160
"""Number of classes of durations: four per doubling, from 1 µs to two weeks."""

_PER_DOUBLING = 4
_MOST_COUNT = 2**53


@dataclass(frozen=True, slots=True)
class RunningHandler:
    """A running call of a handler.

    Attributes:
        slot: Slot of its message, or of the first of several.
        content: Content of its message, escaped for terminals, at most 100 characters; empty for columns.
        messages: Number of messages that were passed to the call.
        running_ms: Running time of the call, ms.
        hung: Whether the call has exceeded the listener's `timeout` and was abandoned.

    Examples:
        >>> [each.running for worker in client.workers() for each in worker.listeners]  # nobody listens
        []
    """

    slot: int
    content: str
    messages: int
    running_ms: int
    hung: bool = False


@dataclass(frozen=True, slots=True)
class HandlerTimes:
    """Histogram of the durations of a handler's calls. Histograms of several workers can be added with `+`.

    Attributes:
        counts: Pairs of a class and its number of calls, shortest durations first; classes without a call are left out.
            Class n has durations from 2^(n/4) to 2^((n+1)/4) µs; n is 0 to 159. Class 0 has shorter ones, too, and
            class 159 longer ones.

    Examples:
        >>> times = HandlerTimes()
        >>> times.count, times.quantile_ms(0.99)
        (0, None)
    """

    counts: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """Number of calls."""
        return sum(count for _, count in self.counts)

    def quantile_ms(self, quantile: float) -> float | None:
        """Return the duration that a share of the calls did not exceed, ms, to within 10 %; `None` without calls.

        Args:
            quantile: The share, 0 to 1: 0.5 for the median, 0.99 for the 99th percentile.
        """
        left = max(1, math.ceil(quantile * self.count))
        for number, count in self.counts:
            left -= count
            if left <= 0:
                return 2 ** ((number + 0.5) / _PER_DOUBLING) / 1_000
        return None

    def __add__(self, other: HandlerTimes) -> HandlerTimes:
        return self.summed([self, other])

    @classmethod
    def summed(cls, parts: Iterable[HandlerTimes]) -> HandlerTimes:
        """Return the sum of several histograms; an empty histogram for none."""
        sums = [0] * BUCKETS
        for part in parts:
            for number, count in part.counts:
                sums[number] += count
        return cls.of(sums)

    @classmethod
    def of(cls, counts: Sequence[int]) -> HandlerTimes:
        """Create the histogram from the counts of all 160 classes."""
        return cls(tuple((number, count) for number, count in enumerate(counts) if count > 0))

    def to_json(self) -> dict[str, int]:
        """Return the histogram as JSON values: number of a class -> number of calls."""
        return {str(number): count for number, count in self.counts}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> HandlerTimes:
        """Rebuild the histogram from JSON values. Raises `ValueError` or `TypeError` for other values."""
        counts = [0] * BUCKETS
        for key, count in value.items():
            number = int(key)
            if not 0 <= number < BUCKETS or not isinstance(count, int) or not 0 <= count < _MOST_COUNT:
                raise ValueError(f"bucket {key[:20]} has {count!r:.20}; buckets 0 to {BUCKETS - 1} have whole numbers")
            counts[number] = count
        return cls.of(counts)


NO_TIMES = HandlerTimes()


class TimesCounter:
    """Counts durations; one thread writes, any may read.

    Attributes:
        counts: Number of durations in each class since its creation.
    """

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS

    def note(self, elapsed_s: float) -> None:
        """Count a duration."""
        micros = elapsed_s * 1e6
        self.counts[min(BUCKETS - 1, int(_PER_DOUBLING * math.log2(micros))) if micros > 1 else 0] += 1


BEAT_S = 5.0
"""Default interval between the reports of a worker, in seconds."""

MOST_BEAT_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Health:
    """State of this process' listeners, for the service manager that runs it; see `RmqClient.health`.

    Attributes:
        live: Whether all threads of the listeners run. If not, only a restart of the process helps.
        reasons: Why the process is not ready; empty if it is.

    Examples:
        >>> client.health()  # nobody listens
        Health(live=True, reasons=('no listener is running',))
    """

    live: bool
    reasons: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether `live` is True, and listeners run, reach Redis, and have all slots assigned to this process."""
        return self.live and not self.reasons


IDLE = Health(True, ("no listener is running",))


MOST_RUNNING, MOST_CONTENT = 50, 100
"""Maximum number of running handlers that a listener reports, and of characters of their contents."""

LATE_MS = 10_000
"""A worker whose report is late by more than this may be gone."""


def process_name() -> str:
    """Return a unique name, `host:pid:random`, for heartbeats, consumers and owners of slots.

    Names of one process differ in their last part only.
    """
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:80]
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class ListenerInfo:
    """A listener of a worker.

    Attributes:
        group: Name of the group, on a stream topic; otherwise `None`.
        threads: Maximum number of handlers in parallel.
        slots: Slots that it owns; all slots of the topic if slots have no owners.
        busy_slots: Slots from which it holds messages, at most 1,000.
        in_flight: Number of messages that it holds.
        handled: Number of messages handled since it started, including failed ones.
        failed: Number of messages whose handler failed.
        handled_per_s: Messages handled per second since the previous heartbeat.
        failed_per_s: Messages failed per second since the previous heartbeat.
        times: Durations of its handler's calls in the last five minutes.
        running: Running calls of its handler, the longest first, at most 50.
        limit: With `Adaptive`: number of handlers that may run in parallel now; otherwise `None`.
        paused_ms: Remaining time of a pause without claims, ms: after a handler has raised `RetryAfterError`, or, with
            `Adaptive`, because all calls fail.
        throttled: Whether the topic's rate limit has delayed claims since the previous heartbeat.

    Examples:
        >>> @client.listener(Topic("jobs", TopicType.PRIORITY))
        ... def work(delivery): ...
        >>> client.start()
        >>> listening = [each.topic for worker in client.workers() for each in worker.listeners]  # within a second
        >>> client.stop()
        []
    """

    topic: str
    group: str | None
    threads: int
    slots: tuple[int, ...]
    busy_slots: tuple[int, ...]
    in_flight: int
    handled: int
    failed: int
    handled_per_s: float
    failed_per_s: float
    times: HandlerTimes = NO_TIMES
    running: tuple[RunningHandler, ...] = ()
    limit: int | None = None
    paused_ms: int = 0
    throttled: bool = False

    @property
    def allowed(self) -> int:
        """Number of handlers that may run in parallel now: `threads`, or the limit of `Adaptive`; 0 during a pause."""
        return 0 if self.paused_ms else self.threads if self.limit is None else self.limit


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A process with running listeners, as it last reported.

    Attributes:
        name: `host:pid:random`.
        host: Name of its machine.
        started_ms: Time at which its listeners started, by its own clock, epoch ms.
        seen_ms: Time of its last heartbeat, epoch ms.
        now_ms: Redis' time of the reading, epoch ms.
        zookeeper: Whether it owns its slots, through ZooKeeper or Redis.
        beat_s: Interval between its reports, in seconds.

    Examples:
        >>> [worker.name for worker in client.workers()]  # nobody listens
        []
    """

    name: str
    host: str
    pid: int
    started_ms: int
    seen_ms: int
    now_ms: int
    zookeeper: bool
    listeners: tuple[ListenerInfo, ...]
    beat_s: float = BEAT_S

    @property
    def silent_ms(self) -> int:
        """Time since its last heartbeat, ms."""
        return max(0, self.now_ms - self.seen_ms)

    @property
    def stale(self) -> bool:
        """True if it may be gone: its heartbeat is late by more than 10 s."""
        return self.silent_ms > self.beat_s * 1000 + LATE_MS

    def holds(self, topic: str, slot: int) -> bool:
        """Return whether the worker held messages of a slot at its last heartbeat."""
        return any(each.topic == topic and slot in each.busy_slots for each in self.listeners)

    def handles(self, topic: str, slot: int, content: bytes) -> int | None:
        """Return how long its handler has been handling a message, ms; `None` if its last report has no such call."""
        text = shown(content, MOST_CONTENT)
        running = (one for each in self.listeners if each.topic == topic and not each.group for one in each.running)
        found = next((one for one in running if (one.slot, one.content) == (slot, text)), None)
        return None if found is None else found.running_ms + self.silent_ms

    def to_json(self) -> str:
        """Return the report as a document for Redis, without its name and time, which are stored beside it."""
        own = {name: getattr(self, name) for name in ("host", "pid", "started_ms", "zookeeper", "beat_s")}
        listeners = [
            asdict(each)
            | {"slots": as_ranges(each.slots), "busy_slots": as_ranges(each.busy_slots), "times": each.times.to_json()}
            for each in self.listeners
        ]
        return new_document({**own, "listeners": listeners}).to_json()

    @classmethod
    def from_json(cls, text: bytes, name: str, seen_ms: int, now_ms: int) -> WorkerInfo:
        """Rebuild a report from its document; unknown fields are ignored.

        Raises:
            UnreadableDocumentError: The document is for newer versions of RMQ only, or is not a worker's report.
        """
        with reading(text, f"the report of worker {name}") as value:
            worker: WorkerInfo = read_report(cls, {**value, "name": name, "seen_ms": seen_ms, "now_ms": now_ms})
            if not 0 < worker.beat_s <= MOST_BEAT_S:
                raise ValueError(f"beat_s is {worker.beat_s:g}; it must be above 0 and at most {MOST_BEAT_S:g}")
            return worker


def as_ranges(slots: Collection[int]) -> str:
    """Return slots as `0-7,9`."""
    parts: list[list[int]] = []
    for slot in sorted(slots):
        if parts and parts[-1][1] == slot - 1:
            parts[-1][1] = slot
        else:
            parts.append([slot, slot])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)


def from_ranges(text: str) -> tuple[int, ...]:
    """Return the slots of `0-7,9`; raises ValueError for other texts."""
    slots: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not 0 <= int(first) <= int(last or first) < MAX_SLOTS or len(slots) >= MAX_SLOTS:
            raise ValueError(f"slots are {text[:40]!r}; they must be ascending, 0 to {MAX_SLOTS - 1}, such as 0-7,9")
        slots += range(int(first), int(last or first) + 1)
    return tuple(slots)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a figure of the report is {number}; it must be finite")
    return number


_READERS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "str | None": lambda value: None if value is None else str(value),
    "int": int,
    "int | None": lambda value: None if value is None else int(value),
    "float": _finite,
    "float | None": lambda value: None if value is None else _finite(value),
    "Mapping[str, int]": lambda value: {str(name): int(number) for name, number in value.items()},
    "bool": bool,
    "tuple[int, ...]": from_ranges,
    "HandlerTimes": HandlerTimes.from_json,
    "tuple[ListenerInfo, ...]": lambda value: tuple(read_report(ListenerInfo, each) for each in value),
    "tuple[RunningHandler, ...]": lambda value: tuple(map(_running, value[:MOST_RUNNING])),
}
"""Type of a reported figure -> the function that reads it."""


def _running(value: Mapping[str, Any]) -> RunningHandler:
    return read_report(RunningHandler, {**value, "content": str(value["content"])[:MOST_CONTENT]})


def read_report(kind: Any, value: Mapping[str, Any]) -> Any:
    """Return a report, or a part of one; figures that were added later may be missing. Raises as `int` and `float`."""
    known = [each for each in fields(kind) if each.name in value]
    return kind(**{each.name: _READERS[str(each.type)](value[each.name]) for each in known})
