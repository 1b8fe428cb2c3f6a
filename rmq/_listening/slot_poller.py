"""Polls the slots of a listener for due messages: each second, or seldom while hints are proven to arrive."""

from __future__ import annotations

from collections.abc import Sequence

from rmq._claiming.claim_planner import ClaimPlanner
from rmq._claiming.wakeups import Wakeups, WakeupSubscriber
from rmq._io.reports import reporter
from rmq._listening.idle_policy import IdlePolicy
from rmq._listening.listener_thread import LOOK_EVERY_S
from rmq._model.times import monotonic_s

log = reporter("rmq.runtime")

DISTRUST_S = 600.0
"""Seconds for which a listener in economy mode polls as usual after it found a due message without a hint, as from a
producer that may not publish on the channel."""


class SlotPoller:
    """Polls the slots of a listener: all of them each second, or if there are many, part by part.

    Args:
        planners: Claim planners of the slots.
    """

    def __init__(self, planners: Sequence[ClaimPlanner]) -> None:
        self._planners = planners
        self._looked_s = float("-inf")

    def wait_s(self) -> float:
        """Return the seconds until the next poll is due."""
        pause_s = LOOK_EVERY_S / max(planner.parts for planner in self._planners)
        return max(0.0, self._looked_s + pause_s - monotonic_s())

    def step(self, hints: Wakeups) -> None:
        """Poll if it is time, or if hints were missed; raises as `ClaimPlanner.look`.

        Args:
            hints: The hints that were received last.
        """
        if hints.missed or not self.wait_s():
            self._look()

    def _look(self, *, at_all: bool = False) -> None:
        self._looked_s = monotonic_s()
        for planner in self._planners:
            planner.look(at_all=at_all, in_parts=True)


class EconomySlotPoller(SlotPoller):
    """Polls one slot at a time at long intervals while hints are proven to arrive; otherwise as `SlotPoller`.

    Args:
        planners: Claim planners of the slots.
        hints: The subscription, which proves that hints arrive.
        pace: The intervals.
    """

    def __init__(self, planners: Sequence[ClaimPlanner], hints: WakeupSubscriber, pace: IdlePolicy) -> None:
        super().__init__(planners)
        self._hints = hints
        self._pace = pace
        self._turn = 0
        self._saves = False
        self._distrusts_until_s = 0.0

    def step(self, hints: Wakeups) -> None:
        now_s = monotonic_s()
        proven_s = self._hints.probe(self._pace.probe_s)
        if hints.missed or proven_s is None or now_s < self._distrusts_until_s:
            self._saves = False
        if hints.due:
            for planner in self._planners:
                planner.rate_limiter.refresh()
        if self._saves:
            if not self._look_wait_s():
                self._looked_s = now_s
                self._saves = False  # until it has answered
                self._look_at_one()
                self._saves = True
            return
        if proven_s is None or now_s < self._distrusts_until_s:
            super().step(hints)
            return
        self._look(at_all=True)  # finds what was sent before the proof, and heard by nobody
        self._saves = True

    def wait_s(self) -> float:
        if not self._saves:
            return super().wait_s()
        return min(self._look_wait_s(), self._hints.probe_wait_s(self._pace.probe_s))

    def _look_wait_s(self) -> float:
        return max(0.0, self._looked_s + self._pace.look_s - monotonic_s())

    def _look_at_one(self) -> None:
        places = [(planner, slot) for planner in self._planners for slot in sorted(planner.slots)]
        if not places:
            return
        planner, slot = places[self._turn % len(places)]
        self._turn += 1
        if planner.missed_wakeup(slot):
            self._distrusts_until_s = monotonic_s() + DISTRUST_S
            log.warning(
                "topic %s: slot %d had a due message without a wake hint, so this listener polls for %g minutes; "
                "producers may lack the right to publish on the channel wake{%s_%d}",
                planner.topic.name,
                slot,
                DISTRUST_S / 60,
                planner.topic.name,
                slot,
            )
