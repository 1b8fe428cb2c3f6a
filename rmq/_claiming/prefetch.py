"""Deliveries claimed ahead of those who take them one by one, so that a trip to Redis serves many."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rmq.blocking import Blocking
from rmq.clock import monotonic_s
from rmq.consumer import Consumer
from rmq.delivery import Delivery
from rmq.errors import RedisUnavailableError, RmqError
from rmq.pace import AHEAD_S, Pace

log = logging.getLogger("rmq.ahead")

FOREVER_S = 3600.0
"""Who waits without an end waits in turns of so long."""

HOLD_S = 0.5
"""What nobody has taken for so long, or for a tenth of the lease if that is shorter, goes back to the others."""

SETTLE_EVERY_S = 0.05
"""How long an ack waits for its neighbours."""


class Ahead:
    """Hands deliveries out one by one. Thread-safe; one of its threads waits at Redis at a time.

    It claims as many as are taken in a tenth of a second, so one at a time for those who are slow.

    Args:
        consumer: Claims; nobody else may poll it.
        blocking: How to wait.
    """

    def __init__(self, consumer: Consumer, blocking: Blocking) -> None:
        self._consumer = consumer
        self._blocking = blocking
        self._lock = blocking.lock()  # nothing waits while it is held
        self._turn = blocking.lock(long=True)  # held by the one that waits at Redis
        self._ready: deque[Delivery] = deque()
        self._taken: list[Delivery] = []
        self._pace = Pace()
        self._handed_s: float | None = None
        self._claimed_s = 0.0
        self._hold_s = min(HOLD_S, consumer.topic.lease_s / 10)
        self._looked_after = False

    def next(self, until_s: float | None) -> Delivery | None:
        """Wait for a delivery and return it, open; `None` where nothing was due in time.

        Args:
            until_s: Wait until then, on the clock of `monotonic_s`; `None` for ever.
        """
        self._note_pace()
        while True:
            if delivery := self._pop():
                return delivery
            with self._my_turn(until_s) as mine:
                if not mine:
                    return None
                if delivery := self._pop() or self._claim(until_s):
                    return delivery
            if until_s is not None and monotonic_s() >= until_s:
                return None

    def take(self, until_s: float | None) -> Delivery | None:
        """Wait for a delivery, and return it as one that is done: its ack goes out with those of its neighbours."""
        while delivery := self.next(until_s):
            with self._lock:
                self._taken.append(delivery)
                alone = not self._ready
            if not alone or delivery not in self._settle():  # else somebody else has it by now
                return delivery
        return None

    def contents(self) -> list[bytes]:
        """Return what is claimed and nobody has taken yet."""
        with self._lock:
            return [delivery.content for delivery in self._ready]

    def remove(self, wanted: Callable[[bytes], bool]) -> bool:
        """Ack one that nobody has taken yet, by its content; return whether there was one."""
        with self._lock:
            found = next((delivery for delivery in self._ready if wanted(delivery.content)), None)
            if found is None:
                return False
            self._ready.remove(found)
        return found.ack()

    def close(self) -> None:
        """Send the last acks, and give back what nobody has taken."""
        try:
            self._settle()
            self._give_back()
        except RmqError as error:
            log.warning(
                "topic %s: what was claimed ahead comes back with its lease: %s", self._consumer.topic.name, error
            )
        self._consumer.close()

    def _note_pace(self) -> None:
        with self._lock:
            if self._handed_s is not None:  # a long pause says no more than one that claims nothing ahead
                self._pace.note(1, min(monotonic_s() - self._handed_s, AHEAD_S))
            self._handed_s = None

    def _pop(self) -> Delivery | None:
        now_s = monotonic_s()
        with self._lock:
            while self._ready:
                delivery = self._ready.popleft()
                if now_s < delivery.lease_until_s:
                    self._handed_s = now_s
                    return delivery
        return None

    def _claim(self, until_s: float | None) -> Delivery | None:
        left_s = FOREVER_S if until_s is None else max(0.0, until_s - monotonic_s())
        found = self._consumer.poll(self._pace.ahead(), min(left_s, FOREVER_S))
        if not found:
            return None
        with self._lock:
            self._ready.extend(found[1:])
            self._handed_s = self._claimed_s = monotonic_s()
        if len(found) > 1:
            self._look_after()
        return found[0]

    @contextmanager
    def _my_turn(self, until_s: float | None) -> Generator[bool]:
        mine = self._turn.acquire(timeout=-1 if until_s is None else max(0.0, until_s - monotonic_s()))
        try:
            yield mine
        finally:
            if mine:
                self._turn.release()

    def _settle(self) -> list[Delivery]:
        """Ack what was taken; return what was no longer ours."""
        with self._lock:
            taken, self._taken = self._taken, []
        if not taken:
            return []
        try:
            return self._consumer.ack(taken)
        except RedisUnavailableError as error:  # acked or not: they are in hand, and at worst come once more
            log.warning("topic %s: %s", self._consumer.topic.name, error)
            now_s = monotonic_s()
            again = [each for each in taken if each.outcome is None and now_s < each.lease_until_s]
            with self._lock:
                self._taken += again
            if again:
                self._look_after()
            return []

    def _give_back(self) -> None:
        with self._lock:
            left = list(self._ready)
            self._ready.clear()
        if left:
            self._consumer.release(left)

    def _look_after(self) -> None:
        """Have somebody look after what is claimed ahead, until there is nothing more of it."""
        with self._lock:
            if self._looked_after:
                return
            self._looked_after = True
        self._blocking.job(self._until_none_is_left, f"rmq-ahead-{self._consumer.topic.name}").start()

    def _until_none_is_left(self) -> None:
        while True:
            self._blocking.sleep(SETTLE_EVERY_S)
            try:
                self._settle()
                if monotonic_s() - self._claimed_s > self._hold_s:
                    self._give_back()
            except RmqError as error:
                log.warning("topic %s: %s", self._consumer.topic.name, error)
            with self._lock:
                if not self._ready and not self._taken:
                    self._looked_after = False
                    return
