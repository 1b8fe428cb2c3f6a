"""Plans with slow handlers beside idle workers in economy: nothing may wait behind a handler while others are idle."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.plan import (
    REPLICATED,
    Fault,
    Limits,
    Plan,
    SendPlan,
    TopicPlan,
    WorkerPlan,
    fault_in,
    one_restart_at_a_time,
    when,
)

SLOW_LENGTH_S, SLOW_FAULTS, SLOW_LEASES = (300.0, 900.0), 2, (5, 10, 30)
"""How long such a plan lasts, faults in all, and leases of its topics."""

SLOW_KINDS = ("fixed", "fixed", "range", "range", "sum", "priority", "stream")
"""Most of its topics have messages that are due later: of these no hint tells in the moment when they are claimed."""

BURSTS_APART_S, BURSTS = 25.0, (1, 10, 20, 40)
"""Between two bursts the workers become idle. The messages of a burst are due at once, and quick but for a few: so
several of them are claimed together."""

SLOW_WAITS_MS = {"fixed": (2_000, 5_000, 12_000), "range": (20, 3_000, 9_000)}

SLOW_OWNED = 0.15


def draw_slow_plan(seed: int, limits: Limits | None = None) -> Plan:
    """Draw a plan of some minutes, with bursts of messages of which each has a content of its own."""
    limits = limits or Limits()
    chance = Random(f"slow plan {seed}")
    length_s = chance.uniform(*SLOW_LENGTH_S)
    kind = chance.choice(SLOW_KINDS)
    topic = TopicPlan(
        f"{kind}-topic", kind, chance.choice((1, 1, 2)), chance.choice(SLOW_LEASES), chance.choice((2, 6))
    )
    workers = tuple(
        WorkerPlan(f"worker{i}", chance.choice(("listener", "listener", "listener", "batch")), chance.randint(1, 2))
        for i in range(chance.randint(2, limits.workers))
    )
    plan = Plan(
        seed,
        length_s,
        (topic,),
        workers,
        _bursts(chance, length_s, kind),
        owned=chance.random() < SLOW_OWNED,
        replicated=chance.random() < REPLICATED,
        economy=True,
        slow=True,
    )
    faults: list[Fault] = [fault_in(chance, plan, limits) for _ in range(chance.randint(0, SLOW_FAULTS))]
    return replace(
        plan,
        faults=one_restart_at_a_time(sorted(faults, key=when)),
        yields=chance.choice((0.0, 0.0, 0.01)),
        warm=chance.random() < 0.8,
    )


def _bursts(chance: Random, length_s: float, kind: str) -> tuple[SendPlan, ...]:
    found: list[SendPlan] = []
    at_s, number = 5.0, 0
    while (at_s := at_s + chance.expovariate(1 / BURSTS_APART_S)) < length_s:
        size, wait_ms = chance.choice(BURSTS), chance.choice(SLOW_WAITS_MS.get(kind, (0,)))
        what = [chance.randint(100, 120) if kind == "priority" else wait_ms for _ in range(size)]
        messages = tuple((number + i, what[i]) for i in range(size))
        found.append(SendPlan(at_s, f"producer{chance.randrange(2)}", 0, messages))
        number += size
    return tuple(found)
