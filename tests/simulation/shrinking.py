"""Makes a failing plan small: leaves out faults, sends and workers for as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.simulation.plan import Plan

T = TypeVar("T")


def shrink(plan: Plan, fails: Callable[[Plan], bool], most: int = 300) -> Plan:
    """Return a smaller plan that fails.

    Args:
        plan: A plan that fails.
        fails: Runs a plan, and says whether it fails as the first one did.
        most: So many plans are tried at most.
    """
    left = most

    def tried(candidate: Plan) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    size = -1
    while size != _size(plan) and left > 0:
        size = _size(plan)
        plan = replace(plan, faults=tuple(_fewest(plan.faults, lambda kept: tried(replace(plan, faults=tuple(kept))))))  # noqa: B023
        plan = replace(plan, sends=tuple(_fewest(plan.sends, lambda kept: tried(replace(plan, sends=tuple(kept))))))  # noqa: B023
        for candidate in _simpler(plan):
            if tried(candidate):
                plan = candidate
    return plan


def _size(plan: Plan) -> int:
    return len(plan.faults) + len(plan.sends) + len(plan.workers) + sum(len(send.messages) for send in plan.sends)


def _simpler(plan: Plan) -> list[Plan]:
    """Return plans that are simpler in one respect."""
    struck = {fault.target for fault in plan.faults}
    spare = [worker for worker in plan.workers if worker.name not in struck]
    found = [replace(plan, yields=0.0)] if plan.yields else []
    if len(plan.workers) > 1 and spare:
        found.append(replace(plan, workers=tuple(worker for worker in plan.workers if worker is not spare[0])))
    if plan.sends:
        end_s = max([plan.sends[-1].at_s, *(fault.at_s for fault in plan.faults)]) + 1.0
        if end_s < plan.length_s - 1.0:
            found.append(replace(plan, length_s=end_s))
    singles = tuple(replace(send, messages=send.messages[:1]) for send in plan.sends)
    return [*found, replace(plan, sends=singles)] if singles != plan.sends else found


def _fewest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Return few of some items with which it still fails: halves are left out first, then smaller parts."""
    size = max(1, len(items) // 2)
    while items:
        at, left_out = 0, False
        while at < len(items):
            kept = [*items[:at], *items[at + size :]]
            if fails(kept):
                items, left_out = kept, True
            else:
                at += size
        if size == 1 and not left_out:
            break
        size = max(1, size // 2)
    return items
