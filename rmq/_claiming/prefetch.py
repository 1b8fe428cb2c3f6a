"""Claims deliveries ahead and returns them one by one, so that one round trip serves many calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from rmq._claiming.buffers import CLOSE_S, Buffer, held
from rmq._claiming.consumer import Consumer
from rmq._claiming.rounds import MOST_PREFETCHED, PREFETCH_S, PrefetchSize
from rmq._io.backend import Runtime
from rmq._io.reports import reporter
from rmq._model.deliveries import Delivery
from rmq._model.times import monotonic_s
from rmq.errors import ClientClosedError, RedisUnavailableError

log = reporter("rmq.ahead")

FOREVER_S = 3600.0
"""Longest single wait of a call without a timeout, in seconds."""

HOLD_S = 0.5
"""A delivery not taken within this time, or within a tenth of the lease, is released for other consumers."""

SETTLE_EVERY_S = 0.05
"""Seconds that an ack waits for further acks, and for the caller to receive its value."""


class Prefetch(Buffer):
    """Returns prefetched deliveries one by one. Thread-safe; only one thread at a time waits for Redis.

    It claims as many as the caller takes in a tenth of a second: one at a time for a slow caller.

    Args:
        consumer: Claims the deliveries; no other code may poll it.
        runtime: The runtime: threads, or an event loop.
    """

    def __init__(self, consumer: Consumer, runtime: Runtime) -> None:
        super().__init__(runtime, f"rmq-ahead-{consumer.topic.name}", SETTLE_EVERY_S)
        self._consumer = consumer
        self._turn = runtime.lock(long=True)  # held by the thread that waits at Redis
        self._settling = runtime.lock(long=True)  # held while acks and releases are on their way
        self._ready: deque[Delivery] = deque()
        self._taken: list[Delivery] = []
        self._prefetch = PrefetchSize()
        self._handed_s: float | None = None
        self._handed = 0
        self._claimed_s = 0.0
        self._hold_s = min(HOLD_S, consumer.topic.lease_s / 10)
        self._closed = False

    def next(self, until_s: float | None, most: int = 1) -> list[Delivery]:
        """Wait for the first delivery and return up to `most` that are due, not yet settled; empty after the timeout.

        Args:
            until_s: End of the wait on the clock of `monotonic_s`; `None` to wait for ever.
            most: Maximum number of deliveries.

        Raises:
            ClientClosedError: The prefetch is closed, or was closed in the meantime.
        """
        with self.lock:
            if self._handed_s is not None:  # a longer pause changes nothing more
                self._prefetch.note(self._handed, min(monotonic_s() - self._handed_s, PREFETCH_S))
            self._handed_s = None
        while True:
            if found := self._pop(most):
                return found
            with held(self._turn, -1 if until_s is None else max(0.0, until_s - monotonic_s())) as mine:
                if not mine:
                    return []
                if found := self._pop(most) or self._claim(until_s, most):
                    return found
            if until_s is not None and monotonic_s() >= until_s:
                return []

    def done(self, deliveries: Sequence[Delivery]) -> None:
        """Ack deliveries a little later in the background, several in one call. Does not wait.

        The delay protects a caller that is interrupted before it has received the values.
        """
        try:
            with self.lock:
                self._taken.extend(deliveries)
            self.begin()
        except BaseException:
            with self.lock:
                left = set(map(id, self._taken))
                back = [delivery for delivery in deliveries if id(delivery) in left]
                gone = set(map(id, back))
                self._taken = [delivery for delivery in self._taken if id(delivery) not in gone]
                self._ready.extendleft(reversed(back))
            raise

    def contents(self) -> list[bytes]:
        """Return the contents of deliveries that are claimed and not yet taken."""
        with self.lock:
            return [delivery.content for delivery in self._ready]

    def remove(self, wanted: Callable[[bytes], bool]) -> bool:
        """Ack the first delivery not yet taken whose content is `wanted`; return whether there was one."""
        with self.lock:
            found = next((delivery for delivery in self._ready if wanted(delivery.content)), None)
            if found is None:
                return False
            self._ready.remove(found)
        return found.ack()

    def close(self) -> None:
        """Send the last acks, and release deliveries that were not taken. Waiting calls raise `ClientClosedError`."""
        self._closed = True
        self._consumer.close()
        with held(self._turn, CLOSE_S):
            self._flush(True)

    def _pop(self, most: int) -> list[Delivery]:
        found: list[Delivery] = []
        now_s = monotonic_s()
        with self.lock:
            if self._closed:
                name = self._consumer.topic.name
                raise ClientClosedError(f"this queue on topic {name} is closed; create a new one", topic=name)
            while self._ready and len(found) < most:
                delivery = self._ready.popleft()
                if now_s < delivery.lease_until_s:
                    found.append(delivery)
            if found:
                self._handed_s, self._handed = now_s, len(found)
        return found

    def _claim(self, until_s: float | None, most: int) -> list[Delivery]:
        left_s = FOREVER_S if until_s is None else max(0.0, until_s - monotonic_s())
        found = self._consumer.poll(max(most, min(self._prefetch.messages(), MOST_PREFETCHED)), min(left_s, FOREVER_S))
        if not found:
            return []
        with self.lock:
            self._ready.extend(found)
            self._claimed_s = monotonic_s()
        # none whose lease has ended while this process stood still; if closed, `close` gives all back
        first = self._pop(most)
        if self._ready:
            self.begin()
        return first

    def _settle(self) -> None:
        """Ack the deliveries that were taken."""
        with self.lock:
            taken, self._taken = self._taken, []
        if not taken:
            return
        try:
            self._consumer.ack(taken)
        except RedisUnavailableError as error:  # acked or not: at worst they are delivered once more
            text = "topic %s: values taken from the queue may be redelivered, since their acks failed: %s"
            log.warning(text, self._consumer.topic.name, error)
            now_s = monotonic_s()
            again = [each for each in taken if each.outcome is None and now_s < each.lease_until_s]
            with self.lock:
                self._taken += again
            if again:
                self.begin()

    def _give_back(self) -> None:
        with self.lock:
            left = list(self._ready)
            self._ready.clear()
        if left:
            self._consumer.release(left)

    def _has_pending(self) -> bool:
        return bool(self._ready or self._taken)

    def _flush(self, everything: bool) -> None:
        """Ack the deliveries that were taken; release all others, or those held for too long."""
        with held(self._settling, CLOSE_S):
            self._try(self._settle)
            if everything or self._closed or monotonic_s() - self._claimed_s > self._hold_s:
                self._try(self._give_back)

    def _try(self, step: Callable[[], object]) -> None:
        try:
            step()
        except ClientClosedError:
            with self.lock:
                self._ready.clear()  # it comes back with its lease
                self._taken.clear()
        except Exception as error:
            name = self._consumer.topic.name
            log.warning("topic %s: messages of the queue may be redelivered when their leases expire: %s", name, error)
