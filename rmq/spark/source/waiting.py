"""Waits until messages of a topic may be due, or enough of them for a batch.

It takes a few commands per second for any number of slots.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import inf

from rmq import Topic
from rmq.errors import RmqError
from rmq.spi import monotonic_s
from rmq.spi.scripts import Call, Connections, WakeupSubscriber, look_at_queue

PATIENCE_S = 0.25
"""Seconds for which a look waits for a server that does not answer."""

IDLE_S = 0.2
"""Wait of a trigger for messages if none are due, seconds; short, as it delays the other sources of a query."""

LOOK_EVERY_S = 1.0
"""Interval at which some slots are polled in turn, since wake hints may be lost, and at which due messages are counted
while a batch is delayed, seconds."""

LOOK_SLOTS = 8
"""Minimum number of slots of a poll."""

ROUND_S = 30
"""Time within which all slots are polled, seconds."""

REST_S = 120.0
"""Maximum time until the slots are swept and counted again, seconds, even without hints."""

AGAIN_S = 1.0
"""Pause before a slot is counted again if its due messages could not be planned, seconds: others may have claimed
them."""

MOST_SLOTS = 256
"""Maximum number of slots in a script call."""


Look = Callable[[Sequence[int]], Call[tuple[int, list[int]]]]


class Waiting:
    """Listens for wake hints of sends, and knows when earlier messages become due. Not thread-safe.

    Args:
        connections: Connections to Redis.
        topic: The registered definition.
        look: Returns a call that reads the next due time of each of some slots; by default that of their backlog.

    Attributes:
        slots: Returns the slots to watch; by default all.
    """

    def __init__(self, connections: Connections, topic: Topic, look: Look | None = None) -> None:
        self._connections = connections
        self.slots: Callable[[], Collection[int]] = lambda: range(topic.slots)
        self._look_call = look or partial(look_at_queue, topic)
        self._hints = WakeupSubscriber(connections, topic.name, range(topic.slots))
        self._resting = False
        self._due_s: dict[int, float] = {}
        self._in_vain: set[int] = set()
        self._ahead_s = 0.0
        self._next = 0
        self._look_s = self._end_s = 0.0

    def rest(self) -> None:
        """Start to wait because no batch could be planned: find out when messages become due."""
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
        """Make the next wait end at once, since slots or messages may have changed."""
        self._resting = False

    def is_over(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until messages may be due; return at once if `rest` was not called before.

        Returns:
            True if a batch should be planned.
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
        """Stop listening for wake hints."""
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


SLOTS_A_SECOND = 50
"""Number of slots up to which due messages are counted every `LOOK_EVERY_S`; the interval grows with more slots."""


class Gathering:
    """Decides whether a batch is delayed. Not thread-safe.

    Args:
        least: Minimum number of messages of a batch; 1 or less for no delay.
        delay_s: Time after the last batch or the start after which fewer messages are enough, seconds.
        slots: Number of slots that are counted.
    """

    def __init__(self, least: int, delay_s: float, slots: int) -> None:
        self._least, self._delay_s = least, delay_s
        self._every_s = max(LOOK_EVERY_S, slots / SLOTS_A_SECOND)
        self._batch_s = monotonic_s()
        self._look_s = 0.0

    def is_over(self, timeout_s: float, sleep: Callable[[float], None]) -> bool:
        """Wait up to `timeout_s`, and return whether it is time to count the due messages."""
        pause_s = min(timeout_s, self._look_s - monotonic_s())
        if pause_s > 0:
            sleep(pause_s)
        return pause_s <= 0

    def holds(self, due: int) -> bool:
        """Return whether to delay the batch with this number of due messages; if not, the delay starts again."""
        now_s = monotonic_s()
        left_s = self._batch_s + self._delay_s - now_s
        if due < self._least and left_s > 0:
            self._look_s = now_s + min(left_s, self._every_s) if due else 0.0
            return True
        if due:
            self._batch_s, self._look_s = now_s, 0.0
        return False
