"""What happens in a simulation, drawn from its seed: topics, processes, sends and faults. A failing plan is shrunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random

from rmq import ExponentialRetry, Fixed, Merge, Retention, Sum, Topic, TopicType

KINDS = ("range", "fixed", "priority", "sum", "stream", "delayed")

GROUPS = ("g0", "g1")
"""The groups of a stream topic."""

NUMBERED = {"stream": "s", "delayed": "d"}
"""Kinds of which each send has a content of its own: this letter, and its number."""

KEPT_ENTRIES, TRIM_EVERY = 20, timedelta(seconds=2)
"""How a stream is trimmed: what all groups have acked goes soon."""

SUM_WINDOW_MS = 500

ZOOKEEPER_FAULTS = ("zk_stall", "zk_expire", "zk_expire", "zk_down")

HARSH, QUIET = 1 / 3, 1 / 8
"""So many plans are harsh, or quiet."""

SPARSE = 1 / 50
"""So many plans are sparse: about an hour of a site with little to do."""

SPARSE_LENGTH_S, SPARSE_SENDS_PER_S, SPARSE_WORKERS = 3_600.0, 0.02, 2

SLOW, SCHEDULED = 1 / 10, 1 / 20
"""So many plans have slow handlers beside idle workers, or schedules; see `slow_plan` and `scheduled_plan`."""

ECONOMY = 0.9
"""In so many sparse plans the workers idle in economy."""

NO_ECONOMY_KINDS = ("delayed",)
"""Kinds whose workers poll."""

REPLICATED = 0.5
"""In so many plans the sends wait for a replica."""

LAGS, LAGS_REPLICATED = (0.0, 0.0, 0.05, 1.0), (0.0, 1.0, 4.0, 4.0)
"""How many seconds of writes a failover forgets. Where sends wait for a replica it is often longer than they wait."""

BURST_S, MOST_DIVIDED = 5.0, 3
"""In plans with bursts, the sends of so long a time are one burst, and calls of so few messages are divided."""

AT_SEND = 3.0
"""A stall that waits until its process sends the message of a schedule."""

QUIET_LENGTH, QUIET_SENDS = 4.0, 0.03
"""How much longer a quiet plan is, and how many of the sends a second it has."""

MOST_BITS = 50
"""Sends of one content of a Sum: each is a bit of its own, so that a sum tells of which sends it consists."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic: `kind` is one of KINDS."""

    name: str
    kind: str
    slots: int
    lease_s: int
    max_retries: int
    longest_retry_ms: int = 2_000
    dead_s: int = 30 * 86_400
    trim_every: timedelta = TRIM_EVERY

    @property
    def longest_retries_s(self) -> float:
        """How long a message that always fails waits in all, at most."""
        return self.max_retries * self.longest_retry_ms / 1_000

    def topic(self) -> Topic:
        """Return its definition; of a delayed queue the one that the queue registers."""
        type_ = {
            "fixed": TopicType.FIXED_TIME,
            "ticks": TopicType.FIXED_TIME,
            "delayed": TopicType.FIXED_TIME,
            "priority": TopicType.PRIORITY,
            "stream": TopicType.STREAM,
        }.get(self.kind, TopicType.RANGE_MERGE)
        if self.kind == "delayed":
            return Topic(self.name, type_, slots=self.slots, lease=timedelta(seconds=self.lease_s))
        return Topic(
            self.name,
            type_,
            slots=self.slots,
            lease=timedelta(seconds=self.lease_s),
            max_retries=self.max_retries,
            retry=ExponentialRetry("100ms", timedelta(milliseconds=self.longest_retry_ms)),
            max_dead_age=timedelta(seconds=self.dead_s),
            merge=Merge(Sum(), window=Fixed(timedelta(milliseconds=SUM_WINDOW_MS))) if self.kind == "sum" else None,
            retention=Retention(max_length=KEPT_ENTRIES, every=self.trim_every, approximate=False)
            if self.kind == "stream"
            else None,
        )


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """A consuming process: how it consumes (`listener`, `batch`, `poll`), and with how many threads."""

    name: str
    style: str
    threads: int


@dataclass(frozen=True, slots=True)
class SendPlan:
    """A call that sends: when, by whom, to which topic, and for each message its content and its delay or priority."""

    at_s: float
    producer: str
    topic: int
    messages: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong.

    Attributes:
        at_s: When.
        kind: `cut`, `lose_reply`, `lose_request`, `lose_hints`, `stall`, `slow`, `pause`, `kill`, `stop`, `restart`; of
            ZooKeeper `zk_stall`, `zk_expire`, `zk_down`.
        target: A process; empty for all, or for the server.
        for_s: How long; of `kill` and `stop`: until it is started again.
        what: `pause`, `kill`, `stall`, `zk_stall`, `zk_expire`: 1 for as soon as a handler runs there, 2 for as soon as
            one has run for some time; `stall`: `AT_SEND` for when a schedule's message is sent; `slow`: how many times;
            `restart`: how many seconds are forgotten: so far lags the replica that takes over; `lose_*`: which call
            from now on.
        script: `lose_*`: part of the name of the script.
    """

    at_s: float
    kind: str
    target: str = ""
    for_s: float = 0.0
    what: float = 0.0
    script: str = ""


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """A schedule: its name, its interval in ms, which some versions double, and whether it catches up."""

    name: str
    every_ms: int
    catch_up: bool


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """What becomes of a schedule, and when: `change`, `older` (a lower version is put), `remove`, `run` (by hand).

    Whatever it is, one that was removed is put again.
    """

    at_s: float
    what: str
    name: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All that happens; what the scheduler and the network draw follows from the seed, too.

    Attributes:
        seed: The seed.
        length_s: How long sends and faults go on.
        topics: The topics.
        workers: The consuming processes.
        sends: The sends, by time.
        faults: The faults, by time.
        yields: How often a task is interrupted where it asks for the time.
        warm: Whether the scripts are loaded at the beginning.
        owned: Whether there is a ZooKeeper: then workers own slots.
        harsh: Whether many handlings of one content take about as long as a lease.
        replicated: Whether a send counts only once a replica has it; else with the master.
        sparse: Whether there is little to do, for about an hour; one content fails mostly, and has all its retries.
        economy: Whether the workers idle in economy.
        long: Whether it is sparse, and lasts for many hours.
        slow: Whether most handlers are quick, and few of them take much longer than a lease.
        bursts: Whether a producer makes the calls that are due at the same time at once, a thread each.
        schedules: The schedules, and `schedule_changes` what becomes of them, by time.
    """

    seed: int
    length_s: float
    topics: tuple[TopicPlan, ...]
    workers: tuple[WorkerPlan, ...]
    sends: tuple[SendPlan, ...]
    faults: tuple[Fault, ...] = ()
    yields: float = 0.0
    warm: bool = True
    owned: bool = False
    harsh: bool = False
    replicated: bool = False
    sparse: bool = False
    economy: bool = False
    long: bool = False
    slow: bool = False
    bursts: bool = False
    schedules: tuple[SchedulePlan, ...] = ()
    schedule_changes: tuple[ScheduleChange, ...] = ()

    @property
    def kind(self) -> str:
        """Its kind, as the sums of a campaign tell them apart."""
        kinds = {
            "scheduled": bool(self.schedules),
            "long": self.long,
            "slow": self.slow,
            "sparse": self.sparse,
            "harsh": self.harsh,
        }
        return next((name for name, holds in kinds.items() if holds), "usual")

    def described(self) -> str:
        """Return it in lines."""
        settings = f"yields {self.yields:g}, scripts loaded: {self.warm}, ZooKeeper: {self.owned}"
        settings += f", sends replicated: {self.replicated}, economy: {self.economy}"
        lines = [f"seed {self.seed}: {self.length_s:g} s, {settings}"]
        lines += [f"  {each}" for each in (*self.topics, *self.workers, *self.schedules, *self.schedule_changes)]
        lines += [f"  {each}" for each in (*self.sends, *self.faults)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the simulations are that `draw_plan` draws."""

    length_s: float = 60.0
    workers: int = 3
    sends_per_s: float = 1.2
    faults: int = 8
    kinds: tuple[str, ...] = KINDS
    owned: float = 0.35
    sparse: float = SPARSE
    slow: float = SLOW
    scheduled: float = SCHEDULED
    fault_kinds: tuple[str, ...] = field(
        default=(
            "cut",
            "lose_reply",
            "lose_reply",
            "lose_request",
            "lose_hints",
            "stall",
            "slow",
            "pause",
            "pause",
            "kill",
            "stop",
            "restart",
        )
    )


def draw_plan(seed: int, limits: Limits | None = None) -> Plan:
    """Draw a plan.

    A harsh one has many faults, short leases and many long handlings of few contents. In a quiet one there is so little
    to do that what is forgotten is not found by chance. A sparse one lasts about an hour, and a long one many.
    """
    limits = limits or Limits()
    chance = Random(f"plan {seed}")
    drawn = chance.random()
    sparse = Random(f"length {seed}").random() < limits.sparse
    harsh, quiet = not sparse and drawn < HARSH, not sparse and drawn > 1 - QUIET
    economy = sparse and Random(f"idle {seed}").random() < ECONOMY
    if sparse:
        limits = replace(
            limits,
            length_s=SPARSE_LENGTH_S,
            sends_per_s=SPARSE_SENDS_PER_S,
            workers=min(limits.workers, SPARSE_WORKERS),
            kinds=tuple(each for each in limits.kinds if not (economy and each in NO_ECONOMY_KINDS)),
        )
    length_s = limits.length_s * chance.uniform(0.5, 1.5) * (QUIET_LENGTH if quiet else 1)
    kinds = chance.sample(limits.kinds, chance.randint(1, min(2, len(limits.kinds))))
    topics = tuple(
        TopicPlan(
            f"{kind}-topic",
            kind,
            chance.choice((1, 2, 4)),
            chance.choice((2, 3) if harsh else (2, 3, 5, 10)),
            chance.choice((2, 6, 16)),
            8_000 if sparse else 2_000,
        )
        for kind in kinds
    )
    owned = chance.random() < (limits.owned if not harsh else min(1.0, 2 * limits.owned))
    styles = ("listener", "listener", "batch") if owned or economy else ("listener", "listener", "batch", "poll")
    workers = tuple(
        WorkerPlan(f"worker{i}", chance.choice(styles), chance.randint(1, 3))
        for i in range(chance.randint(2 if harsh else 1, limits.workers))
    )
    sends_per_s = limits.sends_per_s * (QUIET_SENDS if quiet else 1)
    sends = sends_in(chance, length_s, topics, sends_per_s, (3,) if harsh else (3, 10, 40))
    replicated, bursts = chance.random() < REPLICATED, bool(seed % 2)
    plan = Plan(
        seed,
        length_s,
        topics,
        workers,
        in_bursts(sends) if bursts else sends,
        owned=owned,
        harsh=harsh,
        replicated=replicated,
        sparse=sparse,
        economy=economy,
        bursts=bursts,
    )
    faults = sorted(
        (
            fault_in(chance, plan, limits)
            for _ in range(chance.randint(0, 3 * limits.faults if harsh else limits.faults))
        ),
        key=when,
    )
    if quiet:
        faults.append(Fault(length_s / 2, "lose_hints", "", length_s))
    yields = chance.choice((0.0, 0.0, 0.01, 0.1))
    return replace(plan, faults=one_restart_at_a_time(faults), yields=yields, warm=chance.random() < 0.8)


def when(what: Fault | SendPlan) -> float:
    """Return when something happens."""
    return what.at_s


WAITS: Mapping[str, Sequence[int]] = {
    "range": (20, 200, 1_000, 4_000), "fixed": (1_500, 3_000, 6_000, 1_500, 3_000, 6_000, 0),
    "delayed": (0, 200, 1_500, 4_000),
}  # fmt: skip
"""How long messages wait until they are due, in ms; a fixed time that has passed is refused."""


def sends_in(
    chance: Random,
    length_s: float,
    topics: tuple[TopicPlan, ...],
    per_s: float,
    sizes: tuple[int, ...],
    waits: Mapping[str, Sequence[int]] = WAITS,
) -> tuple[SendPlan, ...]:
    """Draw sends over a time, so many a second, with one of some numbers of contents."""
    found: list[SendPlan] = []
    contents = chance.choice(sizes)
    at_s = 0.0
    while (at_s := at_s + chance.expovariate(per_s)) < length_s:
        topic = chance.randrange(len(topics))
        size = chance.choice((1, 1, 1, 3, 12))
        what = {
            "range": lambda: chance.choice(waits["range"]),
            "fixed": lambda: chance.choice(waits["fixed"]),
            "priority": lambda: chance.randint(100, 120),
            "sum": lambda: 0,
            "stream": lambda: 0,
            "delayed": lambda: chance.choice(waits["delayed"]),
        }[topics[topic].kind]
        messages = tuple((chance.randrange(contents), what()) for _ in range(size))
        found.append(SendPlan(at_s, f"producer{chance.randrange(2)}", topic, messages))
    return tuple(found)


def in_bursts(sends: tuple[SendPlan, ...]) -> tuple[SendPlan, ...]:
    """Let all sends of some seconds be due at the same time, at one of two producers.

    Calls of one message share round trips, unless they wait for a call with the same content. So those of a few
    messages are divided, and these calls come first.
    """
    found: list[SendPlan] = []
    for send in sends:
        burst, messages = int(send.at_s // BURST_S), send.messages
        for part in [(each,) for each in messages] if len(messages) <= MOST_DIVIDED else [messages]:
            found.append(SendPlan(burst * BURST_S, f"producer{burst % 2}", send.topic, part))
    return tuple(sorted(found, key=lambda each: (each.at_s, len(each.messages))))


def fault_in(chance: Random, plan: Plan, limits: Limits) -> Fault:
    """Draw a fault."""
    at_s = chance.uniform(1.0, plan.length_s)
    kind = chance.choice(_fault_kinds(plan, limits))
    workers = [worker.name for worker in plan.workers]
    producers = ["producer0", "producer1"]
    everyone = [*workers, *workers, *producers]
    if kind.startswith("zk"):
        return _zookeeper_fault(chance, at_s, kind, workers, plan.harsh)
    lease_s = max(topic.lease_s for topic in plan.topics)
    at_work = chance.choice((0.0, 1.0, 2.0) if plan.harsh else (0.0, 1.0))
    match kind:
        case "cut":
            return Fault(at_s, kind, chance.choice([*everyone, ""]))
        case "lose_reply" | "lose_request":
            script = chance.choice(("", "claim", "settle", "settle", "extend", "send", "send"))
            callers = everyone if not script else producers if script == "send" else workers
            return Fault(at_s, kind, chance.choice([*callers, ""]), what=chance.randint(1, 5), script=script)
        case "lose_hints":
            return Fault(at_s, kind, chance.choice([*workers, ""]), chance.choice((0.5, 5.0, 60.0)))
        case "stall":
            whom, for_s = chance.choice(everyone), chance.choice((0.3, 1.0, 3.0, 1.2 * lease_s, 2.0 * lease_s))
            return Fault(at_s, kind, whom, for_s, at_work)
        case "slow":
            return Fault(at_s, kind, "", chance.uniform(1, 20), chance.choice((10.0, 100.0, 1_000.0)))
        case "pause":
            for_s = chance.choice((0.1, 1.0, 1.1 * lease_s, 1.3 * lease_s, 3.0 * lease_s))
            return Fault(at_s, kind, chance.choice(workers), for_s, at_work)
        case "kill" | "stop":
            return Fault(at_s, kind, chance.choice(workers), chance.uniform(0.1, 10), at_work)
        case _:
            lags = LAGS_REPLICATED if plan.replicated else LAGS
            return Fault(at_s, "restart", "", chance.choice((0.05, 1.0, 4.0)), chance.choice(lags))


def _fault_kinds(plan: Plan, limits: Limits) -> list[str]:
    """Return the kinds of faults of a plan, each as often as it shall be drawn."""
    kinds = list(limits.fault_kinds)
    if plan.owned:
        kinds += ZOOKEEPER_FAULTS * (2 if plan.harsh else 1)
    if plan.replicated:
        kinds.append("restart")
    return kinds


def _zookeeper_fault(chance: Random, at_s: float, kind: str, workers: list[str], harsh: bool) -> Fault:
    if kind == "zk_expire":
        return Fault(at_s, kind, chance.choice(workers), what=chance.choice((1.0, 2.0) if harsh else (0.0, 1.0)))
    for_s = chance.choice((0.5, 3.0, 5.0, 8.0, 15.0))
    if kind == "zk_down":
        return Fault(at_s, kind, "", for_s)
    return Fault(at_s, kind, chance.choice(workers), for_s, chance.choice((0.0, 2.0) if harsh else (0.0, 1.0)))


def one_restart_at_a_time(faults: list[Fault]) -> tuple[Fault, ...]:
    """Leave out restarts that would begin before the one before is over: there is one copy of the data."""
    kept: list[Fault] = []
    free_s = 0.0
    for fault in faults:
        if fault.kind == "restart":
            if fault.at_s - fault.what <= free_s:
                continue
            free_s = fault.at_s + fault.for_s
        kept.append(fault)
    return tuple(kept)
