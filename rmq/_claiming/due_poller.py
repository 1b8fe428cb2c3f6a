"""Looks when each slot is due, beside hints and what claims say: catches what these have missed."""

from __future__ import annotations

from collections.abc import Sequence

from rmq.blocking import Condition
from rmq.clock import monotonic_s
from rmq.connections import Connections
from rmq.errors import RmqError, ScriptFailedError
from rmq.rounds import PATIENCE_S, Source
from rmq.schedule import Schedule

LOOK_SLOTS = 256
"""Slots looked at in one script call."""

ROTATED_SLOTS = 8
"""Slots of a cluster looked at in turn, while hints arrive: an idle consumer of any number of slots stays quiet."""


class Looker:
    """Asks Redis when each slot is due, and tells the schedule.

    Args:
        connections: Where the topic is.
        source: Its slots.
        schedule: What is known of them.
        changed: Held while the schedule is told, and notified then.

    Attributes:
        missed: Whether hints may have been missed since the last look at all slots.
    """

    def __init__(self, connections: Connections, source: Source, schedule: Schedule, changed: Condition) -> None:
        self.missed = True
        self._connections = connections
        self._source = source
        self._schedule = schedule
        self._changed = changed
        self._next = 0

    def look(self, at_all: bool) -> None:
        """Look at the slots whose turn it is, or at all of them; raises as `Claimer.look`."""
        slots = self._slots_to_look_at(at_all)
        failed: list[RmqError] = []
        for first in range(0, len(slots), LOOK_SLOTS):
            part = slots[first : first + LOOK_SLOTS]
            if self._connections.multi_slot_scripts:
                asked_s = monotonic_s()
                try:
                    self._take(part, self._connections.run(self._source.look_call(part)), asked_s)
                    continue
                except ScriptFailedError:  # one broken slot must not hide the others
                    pass
            failed += self._look_one_by_one(part)
        if failed:
            self.missed = True
            raise failed[0]

    def _slots_to_look_at(self, at_all: bool) -> list[int]:
        slots = self._schedule.slots
        if at_all or self.missed or self._connections.multi_slot_scripts:
            self.missed = False
            return slots
        first, self._next = self._next % max(1, len(slots)), self._next + ROTATED_SLOTS
        return (slots[first:] + slots[:first])[:ROTATED_SLOTS]

    def _look_one_by_one(self, slots: Sequence[int]) -> list[RmqError]:
        """Look at slots of a cluster; return the errors of those whose node is down."""
        failed: list[RmqError] = []
        asked_s = monotonic_s()
        answers = self._connections.run_many([self._source.look_call([slot]) for slot in slots], PATIENCE_S)
        for slot, answer in zip(slots, answers, strict=True):
            if isinstance(answer, RmqError):
                failed.append(answer)
            else:
                self._take([slot], answer, asked_s)
        return failed

    def _take(self, slots: Sequence[int], answer: tuple[int, list[int]], asked_s: float) -> None:
        now_ms, times = answer
        with self._changed:
            self._schedule.sync_clock(now_ms, monotonic_s(), asked_s)
            for slot, due_ms in zip(slots, times, strict=True):
                if due_ms:
                    self._schedule.hint(slot, due_ms)
            self._changed.notify_all()
