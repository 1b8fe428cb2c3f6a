"""Figures of topics, slots and servers at one instant. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq._model.entries import id_key
from rmq._model.topics import Topic

TOTALS = (
    "accepted merged delivered acked retried expired released exhausted buried redriven cancelled purged trimmed"
    " adopted dropped ttl_expired refailed"
).split()
"""Names of the counters in a slot's meta."""


def read_totals(names: Sequence[str], values: Sequence[bytes | None]) -> dict[str, int]:
    """Parse counters; those that do not exist yet are left out."""
    return {name: int(value) for name, value in zip(names, values, strict=True) if value is not None}


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates per second between two readings.

    Attributes:
        seconds: Time between the readings, in seconds.
        sent: Accepted messages, including merged ones.
        merged: Sent messages that merged with another.
        delivered: Messages delivered.
        acked: Messages acked.
        retried: Failed deliveries whose messages are retried.
        buried: Messages that became dead after failures.
        expired: Messages that became dead because of their age (`ttl_expired`).
        dropped: Messages dropped because the backlog was full, and sends dropped by `Leading` windows.

    Examples:
        >>> view = client.inspect(client.producer(Topic("jobs", TopicType.PRIORITY)).topic)
        >>> earlier = view.stats()
        >>> view.stats().rates_since(earlier).sent
        0.0
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


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """The memory of a Redis server.

    Attributes:
        used_bytes: Memory in use, in bytes.
        limit_bytes: Its `maxmemory` in bytes; 0 for no limit.

    Examples:
        >>> all(memory.used_bytes > 0 for memory in client.server_memory().values())
        True
    """

    used_bytes: int
    limit_bytes: int

    @classmethod
    def from_info(cls, info: bytes) -> ServerMemory:
        """Parse the section `memory` of the reply to INFO."""
        values = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
        return cls(int(values.get(b"used_memory", 0)), int(values.get(b"maxmemory", 0)))


class _Summed:
    """Figures summed over slots, which are read one after the other."""

    __slots__ = ()
    slots: tuple[Any, ...]

    @property
    def unaccounted(self) -> int:
        """Sum of the slots' `unaccounted`: 0 unless Redis lost data."""
        return sum(slot.unaccounted for slot in self.slots)

    def total(self, name: str) -> int:
        """Return a counter summed over the slots, 0 for an unknown name; `totals` of a slot lists the names."""
        return sum(slot.totals.get(name, 0) for slot in self.slots)


class _HandedOut(_Summed):
    """Figures summed over slots whose messages are delivered to consumers."""

    __slots__ = ()

    @property
    def in_flight(self) -> int:
        """Number of claimed messages that are not settled."""
        return sum(slot.in_flight for slot in self.slots)

    @property
    def waiting(self) -> int:
        """Number of failed messages that wait for their retry."""
        return sum(slot.waiting for slot in self.slots)

    @property
    def dead(self) -> int:
        """Number of dead messages."""
        return sum(slot.dead for slot in self.slots)


@dataclass(frozen=True, slots=True)
class TopicStats(_HandedOut):
    """Figures of a topic, summed over its slots. Each slot is read atomically, one after the other.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send_many([PriorityMessage("a", 1), PriorityMessage("a", 2)])
        >>> stats = client.inspect(jobs).stats()
        >>> stats.backlog, stats.total("merged"), stats.unaccounted
        (1, 1, 0)
    """

    topic: Topic
    slots: tuple[SlotStats, ...]

    @property
    def backlog(self) -> int:
        """Number of messages in the backlog."""
        return sum(slot.backlog for slot in self.slots)

    @property
    def due_now(self) -> int:
        """Number of messages in the backlog that may be delivered now."""
        return sum(slot.due_now for slot in self.slots)

    @property
    def oldest_due_ms(self) -> int | None:
        """Earliest due time in the backlog, epoch ms; `None` if the backlog is empty.

        It is the time of the reading for slots of PRIORITY topics, and for slots with a rolled-back message.
        """
        return min((slot.oldest_due_ms for slot in self.slots if slot.oldest_due_ms is not None), default=None)

    @property
    def lateness_ms(self) -> int:
        """Time since the oldest due message became due, ms; 0 if none is due, and on PRIORITY topics.

        Slots with a rolled-back message in the backlog count as 0.
        """
        late = [slot.now_ms - slot.oldest_due_ms for slot in self.slots if slot.oldest_due_ms is not None]
        return max([0, *late])

    @property
    def oldest_wait_ms(self) -> int | None:
        """Waiting time of the oldest due message, ms: since it was due or, on PRIORITY topics, since it was sent.

        0 if none is due; `None` on PRIORITY topics with `ties="any"`, which do not store when messages were sent. On
        other PRIORITY topics, only two messages of each slot are compared: the next one, and the oldest one of the
        lowest priority.
        """
        if self.topic.type.timed or not self.backlog:
            return self.lateness_ms
        waits = [slot.now_ms - slot.oldest_sent_ms for slot in self.slots if slot.oldest_sent_ms is not None]
        return max((max(0, wait) for wait in waits), default=None)

    @property
    def merged_ratio(self) -> float:
        """Merged sends divided by accepted sends, 0 to 1; 0 if none was accepted."""
        return self.total("merged") / max(1, self.total("accepted"))

    @property
    def now_ms(self) -> int:
        """Redis' time at which the last slot was read, epoch ms."""
        return max((slot.now_ms for slot in self.slots), default=0)

    def rates_since(self, earlier: TopicStats) -> Rates:
        """Return the rates per second since an earlier reading of the same slots; all zero if no time has passed.

        A total that decreased, as after a restore of Redis, counts as unchanged.
        """
        seconds = max(0, self.now_ms - earlier.now_ms) / 1000
        risen = [max(0, self.total(name) - earlier.total(name)) for name in _RATES]
        return Rates(seconds, *(number / seconds if seconds else 0.0 for number in risen))


@dataclass(frozen=True, slots=True)
class SlotStats:
    """Figures of one slot, read atomically by one script.

    Attributes:
        now_ms: Redis' time of the reading, epoch ms.
        backlog: Number of messages in the backlog.
        due_now: Number of messages in the backlog that may be delivered now.
        in_flight: Number of messages in flight.
        waiting: Number of failed messages that wait for their retry.
        dead: Number of dead messages.
        oldest_due_ms: Earliest due time in the backlog, epoch ms; on PRIORITY topics, and while a rolled-back message
            is in the backlog, `now_ms`; `None` if the backlog is empty.
        next_due_ms: Time at which the slot is due next, epoch ms; 0 for never.
        epoch: Epoch of the last owner, 0 without owners.
        paused: Whether claims are paused.
        totals: Counters since the topic was created: accepted, merged, delivered, acked, retried, expired (leases),
            released, exhausted (no retries left, but sent again, so not dead), buried, redriven, cancelled, purged,
            trimmed (dead messages beyond the bounds), adopted (moves to another ensemble), dropped (no room in the
            backlog, or by a `Leading` window), ttl_expired (dead by their ttl), refailed (failures of contents that
            have failed and were sent again since their last ack: each send restores all retries, so such a message may
            never die). Counters that were never incremented are absent.
        oldest_sent_ms: On PRIORITY topics with `ties="oldest"`: time of sending of the next message or of the oldest
            one of the lowest priority, whichever is earlier, epoch ms; `None` if both are unknown, and on other topics.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY, slots=2)
        >>> _ = client.producer(jobs).send_many(PriorityMessage(f"job:{number}", 1) for number in range(100))
        >>> sum(slot.backlog for slot in client.inspect(jobs).stats().slots)
        100
    """

    topic: str
    slot: int
    now_ms: int
    backlog: int
    due_now: int
    in_flight: int
    waiting: int
    dead: int
    oldest_due_ms: int | None
    next_due_ms: int
    epoch: int
    paused: bool
    totals: dict[str, int]
    oldest_sent_ms: int | None = None

    @property
    def overdue_ms(self) -> int:
        """Time for which a due message, a due retry or an expired lease has waited to be taken up, ms; 0 for none.

        On a PRIORITY topic it is always 0 while the slot has a backlog.
        """
        return max(0, self.now_ms - self.next_due_ms) if self.next_due_ms else 0

    @property
    def unaccounted(self) -> int:
        """Number of accepted messages that are neither present, merged, acked nor removed: 0 unless Redis lost data.

        If it is 0, store + prepare + retry + dead + acked + cancelled + purged + trimmed + dropped = accepted - merged.
        """
        total = self.totals.get
        present = self.backlog + self.in_flight + self.waiting + self.dead
        gone = sum(total(name, 0) for name in ("acked", "cancelled", "purged", "trimmed", "dropped"))
        return total("accepted", 0) - total("merged", 0) - present - gone


@dataclass(frozen=True, slots=True)
class GroupSlot:
    """Figures of a group on one slot, read atomically.

    Attributes:
        last_id: Id after which the group reads on; empty if the group is not registered.
        pending: Number of entries delivered and not acked: in flight, or waiting for a retry.
        waiting: Number of pending entries that wait for a retry.
        dead: Number of dead entries of the group.
        lag: Number of entries not yet delivered to the group; if it started at an id, or was moved to one, at most
            1,000 until it has caught up once. `None` if the group is not registered.
        epoch: Epoch of the group's last owner in this slot, 0 without owners.
        paused: Whether claims are paused.
        oldest_id: Id of the oldest entry delivered and not acked; empty for none.
        totals: Counters: fresh (delivered for the first time), delivered, acked, retried, expired, released, buried,
            lost (trimmed or deleted before they were acked), redriven, resent (redriven as a copy), skipped (not
            delivered, such as copies for other groups), and of dead entries purged and trimmed.
        overdue_ms: Longest time since the lease of one of the 100 oldest pending entries ended, or since a retry became
            due, ms; 0 for neither.

    Examples:
        >>> clicks = client.producer(Topic("clicks", TopicType.STREAM)).topic
        >>> client.stream(clicks).add_group("billing")
        >>> [slot.in_flight for slot in client.stream(clicks).group("billing").slots]
        [0]
    """

    topic: str
    slot: int
    group: str
    last_id: str
    pending: int
    waiting: int
    dead: int
    lag: int | None
    epoch: int
    paused: bool
    oldest_id: str
    totals: Mapping[str, int] = field(default_factory=dict[str, int])
    overdue_ms: int = 0

    @property
    def in_flight(self) -> int:
        """Number of entries that are delivered, and neither acked nor waiting for a retry."""
        return max(0, self.pending - self.waiting)

    @property
    def unaccounted(self) -> int:
        """Number of delivered entries that are neither acked, pending, dead nor removed: 0 unless Redis lost data."""
        total = self.totals.get
        gone = sum(total(name, 0) for name in ("acked", "lost", "resent", "purged", "trimmed"))
        return total("fresh", 0) - self.pending - self.dead - gone


@dataclass(frozen=True, slots=True)
class GroupStats(_HandedOut):
    """Figures of a group, summed over its slots. Each slot is read atomically, one after the other.

    Examples:
        >>> clicks = client.producer(Topic("clicks", TopicType.STREAM)).topic
        >>> client.stream(clicks).add_group("billing", start="all")
        >>> _ = client.producer(clicks).send(StreamMessage("page:1"))
        >>> client.stream(clicks).group("billing").lag
        1
    """

    group: str
    slots: tuple[GroupSlot, ...]

    @property
    def lag(self) -> int | None:
        """Number of entries not yet delivered to the group, on the slots that have the group; `None` if unknown."""
        lags = [slot.lag for slot in self.slots if slot.last_id]
        return None if None in lags else sum(lag or 0 for lag in lags)

    @property
    def pending(self) -> int:
        """Number of entries delivered and not acked."""
        return sum(slot.pending for slot in self.slots)


@dataclass(frozen=True, slots=True)
class StreamSlot:
    """Figures of one slot's stream, read atomically.

    Attributes:
        now_ms: Redis' time of the reading, epoch ms.
        length: Number of entries in the stream, including acked ones.
        first_id: Id of its oldest entry; empty for none.
        last_id: Id of its newest entry; empty for none.
        groups: Names of its groups.
        totals: Counters: accepted (sent), copied (redriven into one group), trimmed, deleted.

    Examples:
        >>> clicks = client.producer(Topic("clicks", TopicType.STREAM, slots=2)).topic
        >>> [slot.length for slot in client.stream(clicks).stats().slots]
        [0, 0]
    """

    topic: str
    slot: int
    now_ms: int
    length: int
    first_id: str
    last_id: str
    groups: tuple[str, ...]
    totals: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def unaccounted(self) -> int:
        """Number of sent entries that are neither in the stream, trimmed nor deleted: 0 unless Redis lost data."""
        total = self.totals.get
        return total("accepted", 0) + total("copied", 0) - self.length - total("trimmed", 0) - total("deleted", 0)


@dataclass(frozen=True, slots=True)
class StreamStats(_Summed):
    """Figures of a stream topic, summed over its slots. Each slot is read atomically, one after the other.

    Examples:
        >>> clicks = client.producer(Topic("clicks", TopicType.STREAM)).topic
        >>> _ = client.producer(clicks).send(StreamMessage("page:1"))
        >>> client.stream(clicks).stats().length
        1
    """

    topic: Topic
    slots: tuple[StreamSlot, ...]

    @property
    def length(self) -> int:
        """Number of entries in the topic, including acked ones."""
        return sum(slot.length for slot in self.slots)

    @property
    def first_id(self) -> str:
        """Id of the oldest entry; empty for none."""
        return min((slot.first_id for slot in self.slots if slot.first_id), key=id_key, default="")

    @property
    def last_id(self) -> str:
        """Id of the newest entry; empty for none."""
        return max((slot.last_id for slot in self.slots if slot.last_id), key=id_key, default="")

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of all groups, sorted."""
        return tuple(sorted({name for slot in self.slots for name in slot.groups}))


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer of a group.

    Attributes:
        pending: Number of pending entries that it holds, on all slots.
        idle_ms: Time since it last claimed or renewed entries, ms.
        gone: Whether it has been idle for two leases, or for the `idle_s` of `StreamTopic.consumers`: no process seems
            to use its name.

    Examples:
        >>> clicks = client.producer(Topic("clicks", TopicType.STREAM)).topic
        >>> consumer = client.consumer(clicks, group="billing", name="worker-1", start="all")
        >>> _ = client.producer(clicks).send(StreamMessage("page:1")), consumer.poll(timeout=5)
        >>> [each.name for each in client.stream(clicks).consumers("billing")]
        ['worker-1']
    """

    group: str
    name: str
    pending: int
    idle_ms: int
    gone: bool
