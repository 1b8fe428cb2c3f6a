"""Deliveries are claimed ahead and taken one by one, so that one trip to Redis serves many takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rmq._claiming.consumer import Consumer
from rmq._claiming.leaving import CLOSE_S, Caretaker, held
from rmq._claiming.prefetch_size import PREFETCH_S, PrefetchSize
from rmq._io.backend import Blocking
from rmq._model.deliveries import Delivery
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq.errors import ClientClosedError, RedisUnavailableError

log = reporter("rmq.ahead")

FOREVER_S = 3600.0
"""Longest single wait of a take without a timeout."""

HOLD_S = 0.5
"""A delivery that nobody takes within this time, or within a tenth of the lease, goes back to other consumers."""

SETTLE_EVERY_S = 0.05
"""How long an ack waits for further acks, and until the caller has its value."""


class Prefetch:
    """Hands deliveries out one by one. Thread-safe; one thread at a time waits at Redis.

    It claims as many as are taken in a tenth of a second, so one at a time for a slow caller.

    Args:
        consumer: Claims; nobody else may poll it.
        blocking: How to wait.
    """

    def __init__(self, consumer: Consumer, blocking: Blocking) -> None:
        self._consumer = consumer
        self._turn = blocking.lock(long=True)  # held by the thread that waits at Redis
        self._settling = blocking.lock(long=True)  # held while acks and releases are on their way
        self._ready: deque[Delivery] = deque()
        self._taken: list[Delivery] = []
        self._prefetch = PrefetchSize()
        self._handed_s: float | None = None
        self._claimed_s = 0.0
        self._hold_s = min(HOLD_S, consumer.topic.lease_s / 10)
        self._closed = False
        self._care = Caretaker(
            blocking,
            f"rmq-ahead-{consumer.topic.name}",
            lambda: self._ready or self._taken,
            self._tidy,
            SETTLE_EVERY_S,
        )

    def next(self, until_s: float | None) -> Delivery | None:
        """Wait for a delivery and return it unsettled; `None` where nothing was due in time.

        Args:
            until_s: Wait until then, on the clock of `monotonic_s`; `None` for ever.

        Raises:
            ClientClosedError: It is closed, or was closed in the meantime.
        """
        self._note_speed()
        while True:
            if delivery := self._pop():
                return delivery
            with held(self._turn, -1 if until_s is None else max(0.0, until_s - monotonic_s())) as mine:
                if not mine:
                    return None
                if delivery := self._pop() or self._claim(until_s):
                    return delivery
            if until_s is not None and monotonic_s() >= until_s:
                return None

    def done(self, delivery: Delivery) -> None:
        """Ack a delivery a moment later, together with its neighbours. Does not wait.

        The delay protects a caller that is interrupted before it has the value.
        """
        try:
            with self._care.lock:
                self._taken.append(delivery)
            self._care.begin()
        except BaseException:
            with self._care.lock:
                if delivery in self._taken:
                    self._taken.remove(delivery)
                    self._ready.appendleft(delivery)
            raise

    def contents(self) -> list[bytes]:
        """Return what is claimed and nobody has taken yet."""
        with self._care.lock:
            return [delivery.content for delivery in self._ready]

    def remove(self, wanted: Callable[[bytes], bool]) -> bool:
        """Ack a delivery that nobody has taken yet, by its content; return whether there was one."""
        with self._care.lock:
            found = next((delivery for delivery in self._ready if wanted(delivery.content)), None)
            if found is None:
                return False
            self._ready.remove(found)
        return found.ack()

    def close(self) -> None:
        """Send the last acks, and give back what nobody has taken. Waiting calls raise `ClientClosedError`."""
        self._closed = True
        self._consumer.close()
        with held(self._turn, CLOSE_S):
            self._tidy(True)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ClientClosedError(
                f"this queue on {self._consumer.topic.name} is closed; make a new one", topic=self._consumer.topic.name
            )

    def _note_speed(self) -> None:
        with self._care.lock:
            if self._handed_s is not None:  # a longer pause changes nothing more
                self._prefetch.note(1, min(monotonic_s() - self._handed_s, PREFETCH_S))
            self._handed_s = None

    def _pop(self) -> Delivery | None:
        now_s = monotonic_s()
        with self._care.lock:
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
        with self._care.lock:
            self._ready.extend(found)
            self._claimed_s = monotonic_s()
        first = (
            self._pop()
        )  # none whose lease has ended while this process stood still; if closed, `close` gives all back
        if self._ready:
            self._care.begin()
        return first

    def _settle(self) -> None:
        """Ack what was taken."""
        with self._care.lock:
            taken, self._taken = self._taken, []
        if not taken:
            return
        try:
            self._consumer.ack(taken)
        except RedisUnavailableError as error:  # acked or not: at worst they are delivered once more
            log.warning("topic %s: %s", self._consumer.topic.name, error)
            now_s = monotonic_s()
            again = [each for each in taken if each.outcome is None and now_s < each.lease_until_s]
            with self._care.lock:
                self._taken += again
            if again:
                self._care.begin()

    def _give_back(self) -> None:
        with self._care.lock:
            left = list(self._ready)
            self._ready.clear()
        if left:
            self._consumer.release(left)

    def _tidy(self, everything: bool) -> None:
        """Ack what was taken, and give back everything else, or what is held for too long."""
        with held(self._settling, CLOSE_S):
            self._try(self._settle)
            if everything or self._closed or monotonic_s() - self._claimed_s > self._hold_s:
                self._try(self._give_back)

    def _try(self, step: Callable[[], object]) -> None:
        try:
            step()
        except ClientClosedError:
            with self._care.lock:
                self._ready.clear()  # it comes back with its lease
                self._taken.clear()
        except Exception as error:
            name = self._consumer.topic.name
            log.warning("topic %s: prefetched messages come back with their leases: %s", name, error)
