"""What is wrong with the topics of a Redis: findings in figures that were read, worst first. Pure.

The command line (`rmq status`) and the dashboard's overview show the same findings. A `Reading` holds what was read at
one time, and `findings_of` decides, without I/O, what in it needs attention. A finding names the topic, the reason in
words, and the command that shows more. Figures of ten minutes ago come from the history; where no process records it,
a growth (of dead messages, of contents that fail again) is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Self

from rmq import (
    GroupStats,
    ListenerInfo,
    Minute,
    ServerMemory,
    SparkQuery,
    StreamStats,
    Topic,
    TopicStats,
    TopicType,
    UnreadableTopic,
    WhenFull,
    WorkerInfo,
)
from rmq.spi import RECURRING, counted, shown, span

WAITED_MS = 10_000
"""Time in ms from which due messages, ended leases and due retries that nobody takes up are reported."""

LATE_MS = 300_000
"""Waiting time in ms from which a topic or group counts as behind."""

LONG_MS, USUAL_TIMES = 60_000, 10
"""A handler runs too long after this time in ms, if that is this many times its p99 of the last five minutes."""

LONGEST_MS = 600_000
"""Time in ms after which any handler runs too long."""

GROWTH_MINUTES = 10
"""Minutes over which a growth is measured."""

NEARLY_FULL, FULL = 0.85, 0.95
"""Shares of Redis' `maxmemory` from which its use is a warning, and critical."""

QUERY_MS = 60_000
"""Age in ms up to which the report of a Spark query counts as that of a running one."""


class Severity(Enum):
    """How bad a finding is: `CRITICAL` keeps messages waiting, or loses them; `WARNING` will, or may."""

    CRITICAL = "critical"
    WARNING = "warning"


class Kind(Enum):
    """What a finding is about, the worst first, each with the command that shows more.

    Attributes:
        command: The command; `{topic}` stands for the topic's name.
    """

    _value_: str
    command: str

    def __new__(cls, value: str, command: str) -> Self:
        """Return a member with this value."""
        member = object.__new__(cls)
        member._value_, member.command = value, command
        return member

    NO_WORKER = "no-worker", "rmq workers"
    NOT_CLAIMED = "not-claimed", "rmq workers"
    UNOWNED = "unowned", "rmq workers"
    HUNG_HANDLER = "hung-handler", "rmq workers --json"
    MEMORY = "memory", "rmq stats"
    UNACCOUNTED = "unaccounted", "rmq stats {topic} --slots"
    BEHIND = "behind", "rmq stats {topic}"
    LONG_HANDLER = "long-handler", "rmq workers --json"
    FAILING = "failing", "rmq search {topic} --place retry"
    FAILING_AGAIN = "failing-again", "rmq search {topic} --place retry"
    DEAD_GROWING = "dead-growing", "rmq dead list {topic}"
    PAUSED = "paused", "rmq audit {topic}"
    HELD_BACK = "held-back", "rmq topics show {topic}"
    FULL = "full", "rmq topics show {topic}"
    SILENT = "silent", "rmq workers"
    UNREADABLE = "unreadable", "rmq topics"
    DELETING = "deleting", "rmq topics delete --help"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that needs attention.

    Attributes:
        text: The reason, escaped for terminals, without the name of the topic.
        topic: Name of the topic; `None` if it is about a worker or a server.
        group: Stream topics: the group.
        worker: Name of the worker whose handler it is about.
        number: Number of messages concerned, or 0.
    """

    severity: Severity
    kind: Kind
    text: str
    topic: str | None = None
    group: str | None = None
    worker: str | None = None
    number: int = 0

    @property
    def about(self) -> str:
        """The topic, or the group and its topic; empty if it is about a worker or a server."""
        return " @ ".join(filter(None, (self.topic, self.group)))

    @property
    def command(self) -> str:
        """The command that shows more."""
        return self.kind.command.format(topic=self.topic)

    def to_document(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        values = {"severity": self.severity.value, "kind": self.kind.value, "command": self.command}
        return asdict(self) | values


@dataclass(frozen=True, slots=True)
class TopicReading:
    """Figures of a topic at one time.

    Attributes:
        figures: Its sizes and totals; for a stream topic the sums over its groups.
        paused: Number of paused slots; for a stream topic of all its groups.
        stats: Figures of its slots; `None` for a stream topic.
        stream: Figures of its slots; `None` for other types.
        groups: Stream topics: the groups.
        unread_ms: Stream topics: age of the oldest entry that a group has not read, by group, ms.
        earlier: The record of about `GROWTH_MINUTES` minutes before; `None` if none is recorded.
        last: The newest record; `None` if none is recorded.
        queries: Reports of Spark queries.
        trouble: The error if the topic could not be read, else empty.
        rates: Messages sent, merged, acked, retried and buried per second; empty without a reading to compare with.
    """

    topic: Topic
    figures: Minute
    paused: int = 0
    stats: TopicStats | None = None
    stream: StreamStats | None = None
    groups: tuple[GroupStats, ...] = ()
    unread_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    earlier: Minute | None = None
    last: Minute | None = None
    queries: Sequence[SparkQuery] = ()
    trouble: str = ""
    rates: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def oldest_ms(self) -> int | None:
        """Waiting time of the oldest due message or unread entry, ms, 0 for none; `None` if it is unknown."""
        if self.stats is not None:
            return self.stats.oldest_wait_ms
        return max(self.unread_ms.values(), default=0)

    def read_by_spark(self, group: str | None = None) -> bool:
        """Return whether a Spark query reads from the topic; on a stream topic it has the name of its group."""
        sources = (each for each in self.queries if each.role == "source" and group in (None, each.name))
        return any(each.silent_ms < QUERY_MS for each in sources)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of a Redis at one time."""

    topics: Sequence[TopicReading]
    workers: Sequence[WorkerInfo] = ()
    memory: Mapping[str, ServerMemory] = field(default_factory=dict[str, ServerMemory])
    unreadable: Sequence[UnreadableTopic] = ()
    deleting: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def active(self) -> list[WorkerInfo]:
        """The workers that have reported in time."""
        return [worker for worker in self.workers if not worker.stale]

    def serving(self, topic: str, group: str | None = None) -> list[tuple[WorkerInfo, ListenerInfo]]:
        """Return the listeners of active workers for a topic, or for a group of it, with their workers."""
        listeners = ((worker, one) for worker in self.active for one in worker.listeners)
        return [(worker, one) for worker, one in listeners if (one.topic, one.group) == (topic, group)]

    def listeners(self, topic: str, group: str | None = None) -> list[ListenerInfo]:
        """Return the listeners of active workers for a topic, or for a group of it."""
        return [one for _, one in self.serving(topic, group)]


def findings_of(reading: Reading) -> list[Finding]:
    """Return what needs attention, the worst first. Pure."""
    found = [finding for topic in reading.topics for finding in _of_topic(reading, topic)]
    found += [*_of_workers(reading), *_of_memory(reading.memory)]
    unheard = sum(each.number for each in found if each.kind is Kind.NO_WORKER)
    if unheard and not reading.active:
        found.append(Finding(Severity.CRITICAL, Kind.NO_WORKER, "no worker is alive", number=unheard))
    found += [Finding(Severity.WARNING, Kind.UNREADABLE, shown(each.reason, 300)) for each in reading.unreadable[:3]]
    for name, since in [*reading.deleting.items()][:3]:
        text = f"its deletion was begun at {since}; if it was interrupted, `rmq topics delete {name}` completes it"
        found.append(Finding(Severity.WARNING, Kind.DELETING, text, name))
    ranks = {each: rank for rank, each in enumerate([*Severity, *Kind])}

    def rank(each: Finding) -> tuple[object, ...]:
        return ranks[each.severity], ranks[each.kind], -each.number, each.topic is not None, each.about

    return sorted(found, key=rank)


def worst_first(topics: Iterable[TopicReading], findings: Sequence[Finding]) -> list[TopicReading]:
    """Return topics by their worst finding, those without one by the waiting time of their oldest message."""
    ranks = {each.topic: rank for rank, each in reversed([*enumerate(findings)])}
    return sorted(
        topics, key=lambda each: (ranks.get(each.topic.name, len(findings)), -(each.oldest_ms or 0), each.topic.name)
    )


def all_well(reading: Reading) -> str:
    """Return the sentence that says that nothing needs attention."""
    if not reading.topics:
        return "Nothing needs attention: there are no topics yet"
    oldest_ms = max(each.oldest_ms or 0 for each in reading.topics)
    wait = f"the oldest due message has waited for {span(oldest_ms)}" if oldest_ms else "nothing is due"
    numbers = f"{counted(len(reading.topics), 'topic')}, {counted(len(reading.active), 'worker')}"
    return f"Nothing needs attention: {numbers}, {wait}"


def _of_topic(reading: Reading, topic: TopicReading) -> Iterator[Finding]:
    name = topic.topic.name
    if topic.trouble:
        yield Finding(Severity.WARNING, Kind.UNREADABLE, shown(topic.trouble, 300), name)
        return
    if topic.stats is not None:
        yield from _of_queue(reading, topic, topic.stats)
        yield from _failing(reading.listeners(name), name, None)
    for group in topic.groups:
        yield from _of_group(reading, topic, group)
        yield from _failing(reading.listeners(name, group.group), name, group.group)
    yield from _growing(topic)


def _of_queue(reading: Reading, topic: TopicReading, stats: TopicStats) -> Iterator[Finding]:
    name, listeners = topic.topic.name, reading.listeners(topic.topic.name)
    open_ = TopicStats(stats.topic, tuple(slot for slot in stats.slots if not slot.paused))
    # each process with listeners runs schedules
    served = topic.read_by_spark() or (name == RECURRING.name and bool(reading.active))
    yield from _waiting(name, None, open_.due_now, open_.oldest_wait_ms, open_, listeners, topic, served=served)
    if topic.paused:
        held = sum(slot.due_now for slot in stats.slots if slot.paused)
        slots = f"{topic.paused:,} of {counted(len(stats.slots), 'slot')} {'is' if topic.paused == 1 else 'are'} paused"
        yield Finding(Severity.WARNING, Kind.PAUSED, f"{slots}; {held:,} due there", name, number=held)
    most = topic.topic.max_backlog
    if most and stats.backlog >= 0.9 * most:
        then = {WhenFull.REFUSE: "refuses sends", WhenFull.BLOCK: "makes sends wait", WhenFull.DROP: "drops messages"}
        text = (
            f"the backlog has {stats.backlog:,} of at most {most:,} messages; a full slot {then[topic.topic.when_full]}"
        )
        yield Finding(Severity.WARNING, Kind.FULL, text, name, number=stats.backlog)
    if lost := stats.unaccounted:
        text = f"{counted(abs(lost), 'message')} {'missing' if lost > 0 else 'too many'}, by the topic's totals"
        yield Finding(Severity.CRITICAL, Kind.UNACCOUNTED, text, name, number=abs(lost))
    if any(slot.epoch for slot in stats.slots) and not served:  # then all slots have owners, even those of epoch 0
        owned = {slot for one in listeners for slot in one.slots}
        filled = [slot for slot in stats.slots if slot.backlog + slot.in_flight + slot.waiting]
        if unowned := sum(slot.slot not in owned for slot in filled):
            text = f"{counted(unowned, 'slot has', 'slots have')} no owner; messages there wait"
            yield Finding(Severity.CRITICAL, Kind.UNOWNED, text, name, number=unowned)


def _of_group(reading: Reading, topic: TopicReading, group: GroupStats) -> Iterator[Finding]:
    name, age_ms = topic.topic.name, topic.unread_ms.get(group.group, 0)
    listeners = reading.listeners(name, group.group)
    paused = sum(slot.paused for slot in group.slots)
    if paused:
        slots = f"{paused:,} of {counted(len(group.slots), 'slot')} {'is' if paused == 1 else 'are'} paused"
        lag = group.lag or 0
        yield Finding(Severity.WARNING, Kind.PAUSED, f"{slots}; {lag:,} unread", name, group.group, number=lag)
    if paused < len(group.slots):
        served = topic.read_by_spark(group.group)
        open_ = GroupStats(group.group, tuple(slot for slot in group.slots if not slot.paused))
        yield from _waiting(name, group.group, group.lag or 0, age_ms, open_, listeners, topic, served=served)


def _waiting(
    name: str,
    group: str | None,
    due: int,
    age_ms: int | None,
    stats: TopicStats | GroupStats,
    listeners: Sequence[ListenerInfo],
    topic: TopicReading,
    *,
    served: bool,
) -> Iterator[Finding]:
    """Yield why due messages, or unread entries of a group, wait; without any, that others are not taken up again."""
    nouns = ("entry", "entries") if group else ("message",)
    if not due:  # then a slot that is overdue has an ended lease or a due retry
        late = [slot for slot in stats.slots if slot.overdue_ms >= WAITED_MS]
        if not listeners and not served and (left := sum(slot.in_flight + slot.waiting for slot in late)):
            overdue = span(max(slot.overdue_ms for slot in late))
            text = f"no worker listens: {counted(left, *nouns)} in flight or waiting for a retry"
            text += f", the first overdue for {overdue}"
            yield Finding(Severity.CRITICAL, Kind.NO_WORKER, text, name, group, number=left)
        return
    in_flight = stats.in_flight
    waits = f"{counted(due, *nouns)} {'unread' if group else 'due'}"
    waits += f", the oldest for {span(age_ms)}" if age_ms else ""
    long_ms = age_ms is None or age_ms >= WAITED_MS
    throttled = any(each.throttled for each in listeners)
    paused_ms = min((each.paused_ms for each in listeners), default=0)
    if not listeners and not served and (long_ms or not in_flight):
        text = f"no worker listens: {waits}"
        yield Finding(Severity.CRITICAL, Kind.NO_WORKER, text, name, group, number=due)
    elif paused_ms:
        text = f"all listeners pause, for {span(paused_ms)} more, because handlers fail or asked for it: {waits}"
        yield Finding(Severity.CRITICAL, Kind.NOT_CLAIMED, text, name, group, number=due)
    elif not in_flight and long_ms and listeners and age_ms and not throttled:
        text = f"nothing is claimed, although {counted(len(listeners), 'listener is', 'listeners are')} alive: {waits}"
        yield Finding(Severity.CRITICAL, Kind.NOT_CLAIMED, text, name, group, number=due)
    elif topic.topic.type is not TopicType.PRIORITY and age_ms is not None and age_ms >= LATE_MS:
        yield Finding(Severity.WARNING, Kind.BEHIND, waits, name, group, number=due)
    if throttled:
        limit = f" of {topic.topic.max_rate:g} messages per second" if topic.topic.max_rate else ""
        yield Finding(Severity.WARNING, Kind.HELD_BACK, f"the rate limit{limit} holds back {waits}", name, group)


def _failing(listeners: Sequence[ListenerInfo], name: str, group: str | None) -> Iterator[Finding]:
    handled, failed = (sum(getattr(each, rate) for each in listeners) for rate in ("handled_per_s", "failed_per_s"))
    if failed and failed >= handled / 2:
        text = f"handlers fail: {failed:.1f} of {handled:.1f} messages per second"
        yield Finding(Severity.WARNING, Kind.FAILING, text, name, group, number=round(failed))


def _growing(topic: TopicReading) -> Iterator[Finding]:
    if topic.earlier is None:
        return
    minutes = max(1, topic.figures.minute - topic.earlier.minute)
    during = f"in {counted(minutes, 'minute')}"
    again = (topic.figures.refailed or 0) - (topic.earlier.refailed or 0)
    if topic.earlier.refailed is not None and again > 0:
        text = f"messages that were sent again after a failure fail again: {counted(again, 'failure')} {during}"
        yield Finding(Severity.WARNING, Kind.FAILING_AGAIN, text, topic.topic.name, number=again)
    more = topic.figures.dead - topic.earlier.dead
    if more > 0:
        text = f"{more:,} more dead {during}, {topic.figures.dead:,} in all"
        yield Finding(Severity.WARNING, Kind.DEAD_GROWING, text, topic.topic.name, number=more)


def _of_workers(reading: Reading) -> Iterator[Finding]:
    known = {each.topic.name for each in reading.topics}
    for worker in reading.workers:
        if worker.stale:
            text = f"worker {shown(worker.name, 80)} has been silent for {span(worker.silent_ms)}, and may have stopped"
            yield Finding(Severity.WARNING, Kind.SILENT, text, worker=worker.name)
            continue
        for each in worker.listeners:
            if not each.running or each.topic not in known:
                continue
            first = max(each.running, key=lambda one: (one.hung, one.running_ms))
            running_ms = first.running_ms + worker.silent_ms
            usual_ms = each.times.quantile_ms(0.99)
            unusual = usual_ms is not None and running_ms >= max(LONG_MS, USUAL_TIMES * usual_ms)
            if not first.hung and running_ms < LONGEST_MS and not unusual:
                continue
            kind = Kind.HUNG_HANDLER if first.hung else Kind.LONG_HANDLER
            severity = Severity.CRITICAL if first.hung else Severity.WARNING
            what = shown(first.content, 80) or counted(first.messages, "message")
            text = f"a handler has run with {what} for {span(running_ms)}" + (" and is hung" if first.hung else "")
            text += f", on worker {shown(worker.name, 80)}"
            yield Finding(severity, kind, text, each.topic, each.group, worker.name, running_ms)


def _of_memory(memory: Mapping[str, ServerMemory]) -> Iterator[Finding]:
    for server, each in memory.items():
        share = each.used_bytes / each.limit_bytes if each.limit_bytes else 0.0
        if share >= NEARLY_FULL:
            severity = Severity.CRITICAL if share >= FULL else Severity.WARNING
            then = "sends are refused" if share >= 1 else "sends are refused when it is full"
            name = "" if server.startswith(":") else f" {shown(server, 80)}"  # no other server
            text = f"Redis{name} uses {share:.0%} of its maxmemory; {then}"
            yield Finding(severity, Kind.MEMORY, text, number=each.used_bytes)
