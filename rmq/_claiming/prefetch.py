"""Deliveries claimed ahead of those who take them one by one, so that a trip to Redis serves many."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rmq._claiming.consumer import Consumer
from rmq._claiming.leaving import EXIT_S, has_left, leave_at_exit
from rmq._claiming.prefetch_size import PREFETCH_S, PrefetchSize
from rmq._io.backend import Blocking, Lock
from rmq._model.deliveries import Delivery
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq.errors import ClientClosedError, RedisUnavailableError

log = reporter("rmq.ahead")

FOREVER_S = 3600.0
"""Who waits without an end waits in turns of so long."""

HOLD_S = 0.5
"""What nobody has taken for so long, or for a tenth of the lease if that is shorter, goes back to the others."""

SETTLE_EVERY_S = 0.05
"""How long an ack waits: for its neighbours, and until its value is in its taker's hands."""

CLOSE_S = 3.0
"""So long `close` waits for the one that waits at Redis, which looks once a second whether it should, and so long for
acks that are on their way."""


class Prefetch:
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
        self._settling = blocking.lock(long=True)  # held while acks and releases are on their way
        self._ready: deque[Delivery] = deque()
        self._taken: list[Delivery] = []
        self._prefetch = PrefetchSize()
        self._handed_s: float | None = None
        self._claimed_s = 0.0
        self._hold_s = min(HOLD_S, consumer.topic.lease_s / 10)
        self._looked_after = False
        self._idle = blocking.event()
        self._closed = self._ending = False
        self._pid = os.getpid()

    def next(self, until_s: float | None) -> Delivery | None:
        """Wait for a delivery and return it, open; `None` where nothing was due in time.

        Args:
            until_s: Wait until then, on the clock of `monotonic_s`; `None` for ever.

        Raises:
            ClientClosedError: It is closed, or was closed in the meantime.
        """
        self._note_speed()
        while True:
            if delivery := self._pop():
                return delivery
            with _held(self._turn, -1 if until_s is None else max(0.0, until_s - monotonic_s())) as mine:
                if not mine:
                    return None
                if delivery := self._pop() or self._claim(until_s):
                    return delivery
            if until_s is not None and monotonic_s() >= until_s:
                return None

    def take(self, until_s: float | None) -> Delivery | None:
        """Wait for a delivery, and return it as one that is done: its ack goes out a moment later."""
        delivery = self.next(until_s)
        if delivery is not None:
            self.done(delivery)
        return delivery

    def done(self, delivery: Delivery) -> None:
        """Ack a delivery a moment later, together with its neighbours. Does not wait.

        Not at once: whoever is interrupted before the value is in its hands shall not lose it.
        """
        try:
            with self._lock:
                self._taken.append(delivery)
            self._look_after()
        except BaseException:
            with self._lock:
                if delivery in self._taken:
                    self._taken.remove(delivery)
                    self._ready.appendleft(delivery)
            raise

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
        """Send the last acks, and give back what nobody has taken. Who waits meets `ClientClosedError`."""
        self._closed = True
        self._consumer.close()
        with _held(self._turn, CLOSE_S), _held(self._settling, CLOSE_S):
            for step in (self._settle, self._give_back):
                try:
                    step()
                except Exception as error:
                    log.warning(
                        "topic %s: prefetched messages come back with their leases: %s",
                        self._consumer.topic.name,
                        error,
                    )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ClientClosedError(
                f"this queue on {self._consumer.topic.name} is closed; make a new one", topic=self._consumer.topic.name
            )

    def _note_speed(self) -> None:
        with self._lock:
            if self._handed_s is not None:  # a long pause says no more than one that claims nothing ahead
                self._prefetch.note(1, min(monotonic_s() - self._handed_s, PREFETCH_S))
            self._handed_s = None

    def _pop(self) -> Delivery | None:
        now_s = monotonic_s()
        with self._lock:
            self._refuse_closed()
            while self._ready:
                delivery = self._ready.popleft()
                if now_s < delivery.lease_until_s:
                    self._handed_s = now_s
                    return delivery
        return None

    def _claim(self, until_s: float | None) -> Delivery | None:
        left_s = FOREVER_S if until_s is None else max(0.0, until_s - monotonic_s())
        found = self._consumer.poll(self._prefetch.messages(), min(left_s, FOREVER_S))
        if not found:
            return None
        with self._lock:
            self._ready.extend(found[1:])
            self._handed_s = self._claimed_s = monotonic_s()
            if self._closed:  # `close` waits, and gives it back
                self._ready.append(found[0])
            self._refuse_closed()
        if len(found) > 1:
            self._look_after()
        return found[0]

    def _settle(self) -> None:
        """Ack what was taken."""
        with self._lock:
            taken, self._taken = self._taken, []
        if not taken:
            return
        try:
            self._consumer.ack(taken)
        except RedisUnavailableError as error:  # acked or not: they are in hand, and at worst come once more
            log.warning("topic %s: %s", self._consumer.topic.name, error)
            now_s = monotonic_s()
            again = [each for each in taken if each.outcome is None and now_s < each.lease_until_s]
            with self._lock:
                self._taken += again
            if again:
                self._look_after()

    def _give_back(self) -> None:
        with self._lock:
            left = list(self._ready)
            self._ready.clear()
        if left:
            self._consumer.release(left)

    def _look_after(self) -> None:
        """Have somebody look after what is claimed ahead or taken, until there is nothing more of it."""
        with self._lock:
            if self._looked_after:
                return
            self._looked_after = True
            self._idle.clear()
        try:
            if self._blocking.outlives_main:
                leave_at_exit(self)
            self._blocking.job(self._until_none_is_left, f"rmq-ahead-{self._consumer.topic.name}").start()
        except BaseException as error:
            self._is_idle()
            if not isinstance(error, RuntimeError):
                raise
            self._settle()  # no more threads: the program ends, or has too many

    def _until_none_is_left(self) -> None:
        try:
            while True:
                self._blocking.sleep(SETTLE_EVERY_S)
                if self._tidy():
                    return
        except self._blocking.interruptions:
            self._blocking.last_words(self._leave, EXIT_S)
            raise
        except BaseException:
            self._is_idle()
            raise

    def _tidy(self) -> bool:
        """Ack, and give back what is held for too long; return whether nothing is left to look after."""
        try:
            with _held(self._settling, CLOSE_S):
                self._settle()
                if self._ending or monotonic_s() - self._claimed_s > self._hold_s:
                    self._give_back()
        except ClientClosedError:
            with self._lock:
                self._ready.clear()  # it comes back with its lease
                self._taken.clear()
        except Exception as error:
            log.warning("topic %s: %s", self._consumer.topic.name, error)
        return self._is_idle(unless_busy=not self._ending)

    def _leave(self) -> None:
        self._ending = True
        self._tidy()

    def _is_idle(self, *, unless_busy: bool = False) -> bool:
        with self._lock:
            if unless_busy and (self._ready or self._taken):
                return False
            self._looked_after = False
            self._idle.set()
        has_left(self)
        return True

    def leave(self, until_s: float) -> None:
        """Have the last acks sent, and the rest given back, by whoever looks after it; wait for that until then."""
        if os.getpid() == self._pid:  # after a fork nobody does, and a lock may be held for ever
            self._ending = True
            self._idle.wait(max(0.0, until_s - monotonic_s()))


@contextmanager
def _held(lock: Lock, timeout_s: float) -> Generator[bool]:
    """Hold a lock, if it is free in time; yield whether it is held."""
    held = lock.acquire(timeout=timeout_s)
    try:
        yield held
    finally:
        if held:
            lock.release()
