"""When a listener looks by itself whether something is due: each second, or seldom while hints are proven to arrive."""

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
"""So long a listener in economy polls again after it has found a message of which no hint had told: for example, that
of a producer who has no right to the channel."""


class SlotPoller:
    """Looks at the slots of a listener: at all of them each second, at many of them part by part.

    Args:
        planners: Who has to know.
    """

    def __init__(self, planners: Sequence[ClaimPlanner]) -> None:
        self._planners = planners
        self._looked_s = float("-inf")

    def wait_s(self) -> float:
        """Return how long no look is due, in seconds."""
        pause_s = LOOK_EVERY_S / max(planner.parts for planner in self._planners)
        return max(0.0, self._looked_s + pause_s - monotonic_s())

    def step(self, hints: Wakeups) -> None:
        """Look if it is time; raises as `ClaimPlanner.look`.

        Args:
            hints: What was heard last.
        """
        if hints.missed or not self.wait_s():
            self._look()

    def _look(self, *, at_all: bool = False) -> None:
        self._looked_s = monotonic_s()
        for planner in self._planners:
            planner.look(at_all=at_all, in_parts=True)


class EconomySlotPoller(SlotPoller):
    """Looks at one slot now and then, as long as hints are proven to arrive; else at all of them each second.

    Args:
        planners: Who has to know.
        hints: Proves that hints arrive.
        pace: How often.
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
                "topic %s: slot %d had a message of which no wake hint told, so this listener polls for %g minutes; "
                "producers may lack the right to publish on the channel wake{%s_%d}",
                planner.topic.name,
                slot,
                DISTRUST_S / 60,
                planner.topic.name,
                slot,
            )
