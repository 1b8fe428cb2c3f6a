"""Plans with schedules: a usual plan, or one of many hours, in which they are put, changed, removed and run by hand."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.long_plan import draw_long_plan
from tests.simulation.plan import AT_SEND, Fault, Limits, Plan, ScheduleChange, SchedulePlan, TopicPlan, draw_plan

HOURS = 0.08
"""So many plans with schedules last for many hours."""

SCHEDULED_LENGTH_S, SCHEDULED_SENDS_PER_S, SCHEDULED_FAULTS = 150.0, 0.1, 12

EVERY_MS, LONG_EVERY_MS = (1_000, 2_000, 7_000, 30_000), (600_000, 3_600_000)
"""Intervals of schedules, and of those in a plan of many hours."""

CHANGES = ("change", "older", "remove", "run", "run")

GIVEN_UP_S = 12.0
"""A send is given up before a stall of this length ends."""

TICKS = "ticks"
"""The topic to which schedules send, and its kind."""


def draw_scheduled_plan(seed: int, limits: Limits | None = None) -> Plan:
    """Draw a plan whose workers run schedules besides their other work."""
    limits = limits or Limits()
    limits = replace(limits, kinds=tuple(each for each in limits.kinds if each != "delayed"))
    chance = Random(f"scheduled plan {seed}")
    if chance.random() < HOURS:
        plan, intervals = replace(draw_long_plan(seed, limits), economy=True), LONG_EVERY_MS
    else:
        sizes = {"length_s": SCHEDULED_LENGTH_S, "sends_per_s": SCHEDULED_SENDS_PER_S, "faults": SCHEDULED_FAULTS}
        plan, intervals = draw_plan(seed, replace(limits, sparse=0.0, slow=0.0, **sizes)), EVERY_MS
    workers = tuple(replace(each, style="listener" if each.style == "poll" else each.style) for each in plan.workers)
    topics = (*plan.topics, TopicPlan(TICKS, TICKS, chance.choice((1, 2)), chance.choice((5, 10)), 6))
    schedules = tuple(
        SchedulePlan(f"s{number}", chance.choice(intervals), chance.random() < 0.6)
        for number in range(chance.randint(1, 4))
    )
    changes = (
        ScheduleChange(chance.uniform(0, plan.length_s), chance.choice(CHANGES), chance.choice(schedules).name)
        for _ in range(chance.randint(0, 8))
    )
    changes = tuple(sorted(changes, key=lambda each: each.at_s))
    faults = tuple(_at_send(each) if each.target.startswith("worker") else each for each in plan.faults)
    return replace(plan, workers=workers, topics=topics, schedules=schedules, schedule_changes=changes, faults=faults)


def _at_send(fault: Fault) -> Fault:
    """Let a stall that waits for a handler wait for the send of a schedule, and last until that is given up."""
    if fault.kind != "stall" or not fault.what:
        return fault
    return replace(fault, what=AT_SEND, for_s=max(fault.for_s, GIVEN_UP_S))
