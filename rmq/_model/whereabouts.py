"""What inspection finds: frozen values."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rmq.results import DeadMessage
from rmq.scores import lease_end_second, retries_left_of, second_of
from rmq.topics import Topic

Place = Literal["store", "prepare", "retry"]
AnyPlace = Literal["store", "prepare", "retry", "dead"]
PLACES: tuple[AnyPlace, ...] = ("store", "prepare", "retry", "dead")

STALE_MS = 15_000
"""A worker that was silent for longer may be gone."""


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message where it lies.

    Attributes:
        topic: Topic name.
        slot: Slot number.
        content: The content.
        body: The body, or `None`.
        place: `store`, `prepare` (in flight) or `retry` (waiting).
        score: Its raw score.
        due_ms: Epoch ms: when it is due, its lease ends, or its retry starts; `None` for a priority or a
            rolled-back message, which are due at once.
        retries_left: Retries left; `None` for a fresh message, which has them all.
        now_ms: Redis' time of the reading, epoch ms.
    """

    topic: str
    slot: int
    content: bytes
    body: bytes | None
    place: Place
    score: int
    due_ms: int | None
    retries_left: int | None
    now_ms: int = 0

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 show as backslash escapes."""
        return self.content.decode(errors="backslashreplace")

    @property
    def lease_left_ms(self) -> int:
        """How long the lease of one in flight still runs, ms; 0 where it is over, or the message is elsewhere."""
        return max(0, (self.due_ms or 0) - self.now_ms) if self.place == "prepare" else 0


def meaning_of(topic: Topic, place: Place, score: int) -> tuple[int | None, int | None]:
    """Return what a score says: when something happens (see `PeekedMessage.due_ms`), and the retries left."""
    if place == "prepare":
        return lease_end_second(second_of(score), topic.lease_s) * 1000, retries_left_of(score)
    if place == "retry":
        return second_of(score) * 1000, retries_left_of(score)
    if score <= topic.max_retries:
        return None, score - 1
    return (score if topic.type.timed else None), None


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of a message that is not dead.

    Attributes:
        type: Type of the error.
        message: Its text.
        first_ms: When this message first failed, epoch ms.
        last_ms: When it last failed, epoch ms.
    """

    type: str
    message: str
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a content is. It can be in several places: in flight, and sent again meanwhile.

    Attributes:
        topic: Topic name.
        slot: Slot number.
        content: The content.
        now_ms: Redis' time of the reading, epoch ms.
        stored: In the backlog.
        in_flight: In a handler's hands; `due_ms` is its lease's end.
        waiting: Waiting for its retry.
        dead: Dead, and why.
        failure: The last failure of one that is not dead.
        holders: In flight: names of the workers that hold something of this slot, as they last reported.
    """

    topic: str
    slot: int
    content: bytes
    now_ms: int
    stored: PeekedMessage | None = None
    in_flight: PeekedMessage | None = None
    waiting: PeekedMessage | None = None
    dead: DeadMessage | None = None
    failure: Failure | None = None
    holders: tuple[str, ...] = ()

    @property
    def gone(self) -> bool:
        """Whether it is in none of these places: done, cancelled, or never sent."""
        return (self.stored, self.in_flight, self.waiting, self.dead) == (None, None, None, None)


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that a search found.

    Attributes:
        topic: Topic name.
        slot: Slot number.
        content: The content.
        place: `store`, `prepare` (in flight), `retry` (waiting) or `dead`.
        score: Its raw score.
        due_ms: As in `PeekedMessage`; of a dead one its time of death.
        retries_left: As in `PeekedMessage`; `None` for a dead one.
        error_type: Of a dead one: type of its last error; else empty.
        error_message: Of a dead one: text of its last error; else empty.
        body: The beginning of its body; `None` without one, and empty where this page held too many bytes.
        body_bytes: Length of the whole body, 0 without one.
        now_ms: Redis' time of the reading, epoch ms.
    """

    topic: str
    slot: int
    content: bytes
    place: AnyPlace
    score: int
    due_ms: int | None
    retries_left: int | None
    error_type: str
    error_message: str
    body: bytes | None
    body_bytes: int
    now_ms: int

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 show as backslash escapes."""
        return self.content.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class SearchPage:
    """Part of a search.

    Attributes:
        messages: What was found, in no order.
        cursor: Where the next call goes on; `None` when all was looked at.
        looked_at: About how many entries this call went over.
    """

    messages: tuple[FoundMessage, ...]
    cursor: str | None
    looked_at: int


@dataclass(frozen=True, slots=True)
class DeadReasons:
    """Dead messages by the type of their error.

    Attributes:
        total: How many are dead.
        sampled: How many of them were looked at.
        counts: Type of error -> how many of the sample, most first.
    """

    total: int
    sampled: int
    counts: Mapping[str, int]

    @property
    def exact(self) -> bool:
        """Whether all were looked at."""
        return self.sampled == self.total

    def estimate(self, error_type: str) -> int:
        """Return about how many of all the dead have this type."""
        return round(self.counts.get(error_type, 0) * self.total / self.sampled) if self.sampled else 0


@dataclass(frozen=True, slots=True)
class AuditLine:
    """Who steered what.

    Attributes:
        topic: Topic name.
        slot: Slot in whose log it stands; what concerns all slots stands in the first of them.
        id: Its id in that log.
        time_ms: When, epoch ms.
        actor: Who.
        action: What: cancel, reschedule, reprioritise, promote, redrive, purge dead, pause, resume, purge ...
        content: On which content; `None` for many.
        detail: On which messages, or with which value.
        outcome: What came of it: done, in_flight, absent, merged, unchanged, or a count.
    """

    topic: str
    slot: int
    id: str
    time_ms: int
    actor: str
    action: str
    content: bytes | None
    detail: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened per second between two looks.

    Attributes:
        seconds: Between the looks.
        sent: Messages accepted, the merged ones included.
        merged: Of these, merged.
        delivered: Handed to handlers.
        acked: Done.
        retried: Failed and rolled back.
        buried: Died of failures.
        expired: Died of age (`ttl_expired`).
        dropped: Dropped because of a full backlog.
    """

    seconds: float
    sent: float
    merged: float
    delivered: float
    acked: float
    retried: float
    buried: float
    expired: float
    dropped: float


_RATES = ("accepted", "merged", "delivered", "acked", "retried", "buried", "ttl_expired", "dropped")


def rates_between(earlier: Mapping[str, int], later: Mapping[str, int], ms: int) -> Rates:
    """Return rates from totals at two times, `ms` apart; all zero where no time lies between them.

    A total that went back, as after a restore of Redis, counts as still.
    """
    seconds = max(0, ms) / 1000

    def rate(name: str) -> float:
        return max(0, later.get(name, 0) - earlier.get(name, 0)) / seconds if seconds else 0.0

    return Rates(seconds, *map(rate, _RATES))


@dataclass(frozen=True, slots=True)
class ListenerInfo:
    """A listener of a worker.

    Attributes:
        topic: Topic name.
        group: Stream topics: the group.
        threads: Handlers in parallel.
        slots: Slots that it owns; without ZooKeeper all.
        busy_slots: Those of which it holds something, at most 1,000.
        in_flight: Messages that it holds.
        handled: Messages handled since it began, the failed ones included.
        failed: Messages whose handler failed.
        handled_per_s: Since the heartbeat before.
        failed_per_s: Since the heartbeat before.
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


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A process with running listeners, as it last reported.

    Attributes:
        name: `host:pid:random`.
        host: Name of its machine.
        pid: Its process id.
        started_ms: When its listeners started, by its own clock, epoch ms.
        seen_ms: Its last sign of life, epoch ms.
        now_ms: Redis' time of the reading, epoch ms.
        zookeeper: Whether it owns slots through ZooKeeper.
        listeners: What it runs.
    """

    name: str
    host: str
    pid: int
    started_ms: int
    seen_ms: int
    now_ms: int
    zookeeper: bool
    listeners: tuple[ListenerInfo, ...]

    @property
    def silent_ms(self) -> int:
        """How long ago it gave its last sign of life, ms."""
        return max(0, self.now_ms - self.seen_ms)

    @property
    def stale(self) -> bool:
        """Whether it may be gone: silent for more than 15 s."""
        return self.silent_ms > STALE_MS

    def to_json(self) -> str:
        """Return it as it is kept in Redis: without what the registry knows by itself."""
        own = {name: getattr(self, name) for name in ("host", "pid", "started_ms", "zookeeper")}
        listeners = [
            asdict(each) | {"slots": _as_ranges(each.slots), "busy_slots": _as_ranges(each.busy_slots)}
            for each in self.listeners
        ]
        return json.dumps({**own, "listeners": listeners}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: bytes, name: str, seen_ms: int, now_ms: int) -> WorkerInfo | None:
        """Rebuild it; `None` where another version of RMQ has written what this one can't read."""
        try:
            return cls._rebuilt(json.loads(text), name, seen_ms, now_ms)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    @classmethod
    def _rebuilt(cls, value: dict[str, Any], name: str, seen_ms: int, now_ms: int) -> WorkerInfo:
        listeners = tuple(
            ListenerInfo(
                **each | {"slots": _from_ranges(each["slots"]), "busy_slots": _from_ranges(each["busy_slots"])}
            )
            for each in value["listeners"]
        )
        return cls(
            name, value["host"], value["pid"], value["started_ms"], seen_ms, now_ms, value["zookeeper"], listeners
        )


def _as_ranges(slots: Collection[int]) -> str:
    """Return slots as `0-7,9`."""
    parts: list[list[int]] = []
    for slot in sorted(slots):
        if parts and parts[-1][1] == slot - 1:
            parts[-1][1] = slot
        else:
            parts.append([slot, slot])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)


def _from_ranges(text: str) -> tuple[int, ...]:
    slots: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        slots += range(int(first), int(last or first) + 1)
    return tuple(slots)


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """What a Redis server uses.

    Attributes:
        used_bytes: Memory in use.
        limit_bytes: Its `maxmemory`, 0 for none.
    """

    used_bytes: int
    limit_bytes: int

    @classmethod
    def from_info(cls, info: bytes) -> ServerMemory:
        """Read the section `memory` of INFO."""
        values = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
        return cls(int(values.get(b"used_memory", 0)), int(values.get(b"maxmemory", 0)))
