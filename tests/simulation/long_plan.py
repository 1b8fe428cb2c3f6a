"""Plans of many hours: a site overnight, or for a day. Bugs with long periods show only there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random

from tests.simulation.plan import (
    NO_ECONOMY_KINDS,
    REPLICATED,
    SPARSE_WORKERS,
    Fault,
    Limits,
    Plan,
    SendPlan,
    TopicPlan,
    WorkerPlan,
    fault_in,
    one_restart_at_a_time,
    sends_in,
    when,
)

LONG_LENGTH_S = (6 * 3_600.0, 24 * 3_600.0)
"""A long plan lasts so long: a site overnight, or for a day."""

LONG_SENDS_PER_H, LONG_FAULTS, LONG_ECONOMY = (6.0, 24.0), (4, 40), 0.97
"""Calls that send an hour, faults in all, and in how many long plans the workers idle in economy."""

LONG_LEASES, LONG_RETRIES_MS, LONG_DEAD_S = (10, 60, 120), (60_000, 600_000), (3_600, 30 * 86_400)
"""Leases and the longest retries of topics, and how long dead messages are kept."""

LONG_SESSION_S, LONG_TRIM_EVERY = 30.0, timedelta(minutes=1)

BATCH_CALLS, BATCH_PER_S, DEPLOY_S = 60, 1.0, 15.0
"""Once in a long plan a batch comes: up to so many calls, so fast. And once a new version is deployed: each worker
stops, and starts again, so long after the one before."""

LONG_WAITS: Mapping[str, Sequence[int]] = {
    "range": (200, 60_000, 1_800_000, 14_400_000), "fixed": (3_000, 600_000, 7_200_000, 28_800_000),
    "delayed": (0, 60_000, 3_600_000, 14_400_000),
}  # fmt: skip
"""How long messages wait until they are due, in ms."""


def draw_long_plan(seed: int, limits: Limits | None = None) -> Plan:
    """Draw a plan of many hours: sends, long delays and faults over the whole time, a batch, and a deployment."""
    limits = limits or Limits()
    chance = Random(f"long plan {seed}")
    length_s, economy = chance.uniform(*LONG_LENGTH_S), chance.random() < LONG_ECONOMY
    possible = [each for each in limits.kinds if not (economy and each in NO_ECONOMY_KINDS)]
    kinds = chance.sample(possible, chance.randint(1, min(2, len(possible))))
    retry_ms, dead_s = chance.choice(LONG_RETRIES_MS), chance.choice(LONG_DEAD_S)
    topics = tuple(
        TopicPlan(
            f"{kind}-topic",
            kind,
            chance.choice((1, 2, 4)),
            chance.choice(LONG_LEASES),
            chance.choice((2, 6, 16)),
            retry_ms,
            dead_s,
            LONG_TRIM_EVERY,
        )
        for kind in kinds
    )
    owned = chance.random() < limits.owned
    workers = tuple(
        WorkerPlan(f"worker{i}", chance.choice(("listener", "listener", "batch")), chance.randint(1, 2))
        for i in range(chance.randint(1, SPARSE_WORKERS))
    )
    contents = chance.choice((3, 10, 40))
    sends = sends_in(chance, length_s, topics, chance.uniform(*LONG_SENDS_PER_H) / 3_600, (contents,), LONG_WAITS)
    batch_s = chance.uniform(0.0, length_s - BATCH_CALLS)
    batch = sends_in(chance, chance.uniform(0, BATCH_CALLS), topics, BATCH_PER_S, (contents,), LONG_WAITS)
    batch = tuple(replace(each, at_s=batch_s + each.at_s) for each in batch)
    sends = tuple(_due_before(length_s, topics, each) for each in sorted((*sends, *batch), key=when))
    plan = Plan(
        seed, length_s, topics, workers, sends, owned=owned, replicated=chance.random() < REPLICATED, sparse=True,
        economy=economy, long=True,
    )  # fmt: skip
    faults = [fault_in(chance, plan, limits) for _ in range(chance.randint(*LONG_FAULTS))]
    deploy_s = chance.uniform(60.0, length_s - 600.0)
    faults += [
        Fault(deploy_s + i * DEPLOY_S, "stop", each.name, chance.uniform(1.0, DEPLOY_S))
        for i, each in enumerate(workers)
    ]
    yields = chance.choice((0.0, 0.0, 0.01))
    return replace(
        plan,
        faults=one_restart_at_a_time([_longer(chance, each) for each in sorted(faults, key=when)]),
        yields=yields,
        warm=chance.random() < 0.8,
    )


def _due_before(end_s: float, topics: tuple[TopicPlan, ...], send: SendPlan) -> SendPlan:
    """Let nothing be due after the end of a plan: then there would be hours without sends and faults."""
    if topics[send.topic].kind not in LONG_WAITS:
        return send
    most = int((end_s - send.at_s) * 1_000)
    return replace(send, messages=tuple((number, min(wait_ms, most)) for number, wait_ms in send.messages))


def _longer(chance: Random, fault: Fault) -> Fault:
    """Let some of the faults of a long plan last for minutes, or hours."""
    longest_s = {"lose_hints": 3_600.0, "restart": 120.0, "zk_down": 600.0, "zk_stall": 120.0, "kill": 1_800.0,
                 "slow": 900.0, "stall": 120.0}  # fmt: skip
    if fault.kind not in longest_s or chance.random() < 0.7:
        return fault
    return replace(fault, for_s=chance.uniform(10.0, longest_s[fault.kind]))
