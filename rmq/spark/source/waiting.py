"""Waits until something of a topic may be due, at the price of a few commands a second, however many slots it has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import inf

from rmq._broker import claims
from rmq._claiming.claim_plan import PATIENCE_S
from rmq._claiming.wakeups import WakeupSubscriber
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq.errors import RmqError

IDLE_S = 0.2
"""How long a trigger waits for something to do where nothing is due: a query with several sources is held up by it."""

LOOK_EVERY_S = 1.0
"""A hint may get lost: so some slots are looked at that often, all in turn."""

LOOK_SLOTS = 8
"""Slots of one such look, at least."""

ROUND_S = 30
"""All slots are looked at within this time."""

REST_S = 120.0
"""Longest time until the slots are swept and counted anew, whatever was heard."""

AGAIN_S = 1.0
"""Pause before a slot is counted anew where something is due, and nothing could be planned: others have it."""

MOST_SLOTS = 256
"""Slots in one script call."""


Look = Callable[[Sequence[int]], Call[tuple[int, list[int]]]]


class Waiting:
    """Hears of sends, and knows when what was sent before is due. For one thread.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        look: Builds the question when each of some slots has something to do; by default for what is in store.

    Attributes:
        slots: Returns the slots that count; by default all.
    """

    def __init__(self, connections: Connections, topic: Topic, look: Look | None = None) -> None:
        self._connections = connections
        self.slots: Callable[[], Collection[int]] = lambda: range(topic.slots)
        self._look_call = look or partial(claims.look, topic)
        self._hints = WakeupSubscriber(connections, topic.name, range(topic.slots))
        self._resting = False
        self._due_s: dict[int, float] = {}
        self._in_vain: set[int] = set()
        self._ahead_s = 0.0
        self._next = 0
        self._look_s = self._end_s = 0.0

    def rest(self) -> None:
        """Note that nothing could be planned, and find out when something will be due."""
        now_s = monotonic_s()
        self._resting, self._end_s = True, now_s + REST_S
        try:
            self._due_s.clear()
            self._note(self._hints.read(0).due)
            self._look(self.slots())
        except RmqError:  # the next plan says so
            self._resting = False
            return
        due = {slot for slot, due_s in self._due_s.items() if due_s <= monotonic_s()}
        for slot in due & self._in_vain:
            self._due_s[slot] = now_s + AGAIN_S
        self._in_vain = due

    def stir(self) -> None:
        """Note that something has changed: the next wait is over at once."""
        self._resting = False

    def is_over(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for something that may be due; at once where nothing says that nothing is.

        Returns:
            Whether to plan.
        """
        until_s = monotonic_s() + timeout_s
        while self._resting:
            now_s = monotonic_s()
            soonest_s = min(self._end_s, *self._due_s.values()) if self._due_s else self._end_s
            if soonest_s <= now_s:
                break
            if now_s >= until_s:
                return False
            try:
                if now_s >= self._look_s:
                    self._look(self._turn())
                else:
                    self._listen(min(until_s, soonest_s, self._look_s) - now_s)
            except RmqError:
                break  # the plan says so, or has more patience
        self._resting = False
        return True

    def close(self) -> None:
        """Hear no more hints."""
        self._hints.close()

    def _listen(self, timeout_s: float) -> None:
        hints = self._hints.read(timeout_s)
        self._note(hints.due)
        if hints.missed:
            self._look(self.slots())
        elif not self._hints.connected:
            self._connections.runtime.sleep(timeout_s)

    def _note(self, due: tuple[tuple[int, int], ...]) -> None:
        counted = self.slots()
        for slot, due_ms in due:
            if slot not in counted:
                continue
            due_s = due_ms / 1_000 - self._ahead_s if due_ms else 0.0
            self._due_s[slot] = min(due_s, self._due_s.get(slot, inf))
            self._in_vain.discard(slot)

    def _turn(self) -> Collection[int]:
        slots = sorted(self.slots())
        number = len(slots)
        if not self._hints.connected or not number:
            return slots
        size = min(number, max(LOOK_SLOTS, -(-number // ROUND_S)))
        first, self._next = self._next % number, (self._next + size) % number
        return [slots[place % number] for place in range(first, first + size)]

    def _look(self, looked_at: Collection[int]) -> None:
        self._look_s = monotonic_s() + LOOK_EVERY_S
        slots, size = list(looked_at), 1 if self._connections.multi_node else MOST_SLOTS
        parts = [slots[first : first + size] for first in range(0, len(slots), size)]
        answers = self._connections.run_many([self._look_call(part) for part in parts], PATIENCE_S)
        asked_s = monotonic_s()
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, RmqError):
                raise answer
            now_ms, times = answer
            self._ahead_s = now_ms / 1_000 - asked_s
            for slot, due_ms in zip(part, times, strict=True):
                self._due_s[slot] = asked_s + (due_ms - now_ms) / 1_000 if due_ms else inf
