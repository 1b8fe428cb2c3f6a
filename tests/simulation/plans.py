"""Which plan belongs to a seed."""

from __future__ import annotations

from random import Random

from tests.simulation.long_plan import draw_long_plan
from tests.simulation.plan import Limits, Plan, draw_plan
from tests.simulation.scheduled_plan import draw_scheduled_plan
from tests.simulation.slow_plan import draw_slow_plan


def plan_of(seed: int, limits: Limits, *, long: bool = False) -> Plan:
    """Draw the plan of a seed: a long one where that is wanted, else one of many kinds."""
    if long:
        return draw_long_plan(seed, limits)
    if Random(f"scheduled {seed}").random() < limits.scheduled:
        return draw_scheduled_plan(seed, limits)
    if Random(f"slow {seed}").random() < limits.slow:
        return draw_slow_plan(seed, limits)
    return draw_plan(seed, limits)
