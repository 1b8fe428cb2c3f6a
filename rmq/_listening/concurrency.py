"""Limits the number of handlers that run in parallel, over all listeners of a process and in each adaptive listener.

A handler runs with a permit. `ConcurrencyLimiter` grants the permits of the process, and `ListenerPermits` is one
listener's view of it. All state is protected by the limiter's lock, `changed`.

`next_share` selects the listener whose handler may start next. It is weighted fair queuing: the listener that has used
the least time, relative to its weight, goes first. One handler is kept free for each idle listener, so that a listener
whose handlers are slow or hang never uses them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rmq._io.backend import Runtime
from rmq._listening.adaptive_limit import Adaptive, AdaptiveLimit
from rmq._model.times import monotonic_s
from rmq.errors import InvalidValueError


class FairShare:
    """The usage of one listener. Times are monotonic seconds.

    Args:
        weight: Its weight relative to the other listeners, more than 0.
    """

    def __init__(self, weight: float = 1.0) -> None:
        self._weight = weight
        self._used_s = 0.0
        self._began_sum_s = 0.0
        self.running = 0
        self.waiting = 0

    @property
    def active(self) -> bool:
        """Whether a handler of the listener runs or waits."""
        return self.running > 0 or self.waiting > 0

    def used_s(self, now_s: float) -> float:
        """Return the time used by ended and running handlers, divided by the weight."""
        return self._used_s + max(0.0, self.running * now_s - self._began_sum_s) / self._weight

    def catch_up(self, least_s: float) -> None:
        """Start from the smallest usage of the active listeners, so that idle time does not give it priority later."""
        self._used_s = max(self._used_s, least_s)

    def begin(self, now_s: float) -> None:
        """Record that a handler starts."""
        self.running += 1
        self._began_sum_s += now_s

    def end(self, began_s: float, now_s: float) -> None:
        """Record that a handler which started at `began_s` has ended."""
        self.running -= 1
        self._began_sum_s -= began_s
        self._used_s += max(0.0, now_s - began_s) / self._weight

    def suspend(self, now_s: float) -> None:
        """Stop counting a running handler that was abandoned."""
        self.running -= 1
        self._began_sum_s -= now_s

    def resume(self, since_s: float, now_s: float) -> None:
        """Count a handler again that was suspended at `since_s`; the time in between is not charged."""
        self.running += 1
        self._began_sum_s += since_s
        self._used_s -= (now_s - since_s) / self._weight


def least_used_s(shares: Sequence[FairShare], now_s: float) -> float:
    """Return the smallest usage of the active listeners; 0 if none is active."""
    return min((share.used_s(now_s) for share in shares if share.active), default=0.0)


def next_share(
    shares: Sequence[FairShare], allowed: Sequence[int], handlers: int | None, now_s: float
) -> FairShare | None:
    """Return the listener that may start one more handler; `None` if none may.

    Args:
        shares: The shares of all listeners.
        allowed: Maximum number of running handlers of each listener.
        handlers: Maximum number of running handlers of all listeners together; `None` for no limit.
        now_s: The time.
    """
    free = len(shares) + 1 if handlers is None else handlers - sum(share.running for share in shares)
    if free <= 0:
        return None
    idle = sum(share.running == 0 for share in shares)
    ready = [
        share
        for share, most in zip(shares, allowed, strict=True)
        if share.waiting and share.running < most and (share.running == 0 or free > idle)
    ]
    return min(ready, key=lambda share: share.used_s(now_s), default=None)


class ConcurrencyLimiter:
    """The limit of parallel handlers of a process, shared by its listeners. Thread-safe.

    A thread waits for a permit with `ListenerPermits.begin`. In an event loop the task that claims must not block: it
    asks with `ListenerPermits.request`, and a callback runs when the permit is granted.

    Args:
        runtime: Provides locks and waits, for threads or an event loop.
        handlers: Maximum number of parallel handlers over all listeners, 1 to 10,000; `None` for no limit.

    Raises:
        InvalidValueError: `handlers` is out of range.
    """

    def __init__(self, runtime: Runtime, handlers: int | None = None) -> None:
        if handlers is not None and (type(handlers) is not int or not 1 <= handlers <= 10_000):
            raise InvalidValueError(f"handlers is {handlers!r}; it must be a whole number from 1 to 10,000, or None")
        self.changed = runtime.condition()
        self.shared = handlers is not None
        self._handlers = handlers
        self.listeners: list[ListenerPermits] = []

    def permits(self, weight: float, adaptive: Adaptive | None, threads: int) -> ListenerPermits:
        """Return the permits of one more listener."""
        limit = None if adaptive is None else AdaptiveLimit(adaptive, threads, monotonic_s())
        permits = ListenerPermits(self, weight, limit, threads)
        self.listeners.append(permits)
        return permits

    def grant_permits(self) -> None:
        """Grant permits to waiting requests as far as the limits allow; the lock is held."""
        now_s, granted = monotonic_s(), False
        while (permits := self.next(now_s)) is not None:
            permits.grant(now_s)
            granted = True
        if granted:
            self.changed.notify_all()

    def next(self, now_s: float) -> ListenerPermits | None:
        """Return the listener that gets the next permit; `None` if none may; the lock is held."""
        shares: Sequence[FairShare] = [permits.share for permits in self.listeners]
        share = next_share(shares, [permits.allowed(now_s) for permits in self.listeners], self._handlers, now_s)
        return None if share is None else self.listeners[shares.index(share)]

    def wait_for_permit(self, share: FairShare) -> None:
        """Count one more waiting request, and grant what may be granted; the lock is held.

        The usage of a listener that was idle is raised to that of the others.
        """
        if not share.active:
            share.catch_up(least_used_s([permits.share for permits in self.listeners], monotonic_s()))
        share.waiting += 1
        self.grant_permits()


@dataclass(slots=True)
class PermitRequest:
    """A request for a permit.

    Attributes:
        waits: Whether the requesting thread is waiting for it now.
        began_s: Time at which it was granted; `None` before.
        on_granted: Called when it is granted, with the limiter's lock held.
    """

    waits: bool = False
    began_s: float | None = None
    on_granted: Callable[[], object] | None = None


class ListenerPermits:
    """The permits of one listener.

    Args:
        pool: The limiter of the process.
        weight: Weight of this listener.
        limit: Its adaptive limit; `None` if only `threads` limits it.
        threads: Its number of threads.
    """

    def __init__(self, pool: ConcurrencyLimiter, weight: float, limit: AdaptiveLimit | None, threads: int) -> None:
        self.share = FairShare(weight)
        self._pool = pool
        self._limit = limit
        self._threads = threads
        self._tickets: dict[int, PermitRequest] = {}  # by thread or own id, in the order of asking
        self._handling: dict[int, float] = {}
        self._suspended: dict[int, float] = {}  # calls whose turns do not count, and since when

    def allowed(self, now_s: float) -> int:
        """Return the number of its handlers that may run now."""
        return self._threads if self._limit is None else self._limit.allowed(now_s)

    @property
    def one_at_a_time(self) -> bool:
        """Whether only one message should be tried at a time."""
        return self._limit is not None and self._limit.one_at_a_time

    @property
    def over_limit(self) -> bool:
        """Whether more handlers run than allowed now, so that a thread must not start another call."""
        return self._limit is not None and self.share.running > self._limit.allowed(monotonic_s())

    def state(self) -> tuple[int | None, float]:
        """Return the adaptive limit of parallel handlers, `None` without one, and the seconds left of a pause."""
        if self._limit is None:
            return None, 0.0
        with self._pool.changed:
            return self._limit.limit, self._limit.pause_s(monotonic_s())

    def begin(self, longest_s: float, thread: int) -> float | None:
        """Wait for a permit; return its start time, to be passed to `end`, or `None` if there was none in time.

        A thread that asks again keeps its place in the queue: with owners a slot has only one thread, which must not
        always come last.
        """
        with self._pool.changed:
            ticket = self._tickets.setdefault(thread, PermitRequest())
            ticket.waits = True
            self._pool.wait_for_permit(self.share)
            until_s = monotonic_s() + longest_s
            while ticket.began_s is None and (left_s := until_s - monotonic_s()) > 0:
                self._pool.changed.wait(left_s)
            if ticket.began_s is None:
                ticket.waits = False
                self.share.waiting -= 1
            return ticket.began_s

    def request(self, on_granted: Callable[[], object]) -> PermitRequest:
        """Request a permit without waiting: `began_s` is set once it is granted, now or just before `on_granted` runs.

        Pass the start time of a granted permit to `end`, or the request to `cancel`.
        """
        ticket = PermitRequest(waits=True)
        with self._pool.changed:
            self._tickets[id(ticket)] = ticket
            self._pool.wait_for_permit(self.share)
            ticket.on_granted = on_granted
        return ticket

    def cancel(self, ticket: PermitRequest) -> None:
        """Cancel a request, or return its permit if it was granted."""
        if ticket.began_s is not None:
            self.end(ticket.began_s)
            return
        with self._pool.changed:
            del self._tickets[id(ticket)]
            self.share.waiting -= 1

    def go_on(self, began_s: float) -> float | None:
        """Exchange a permit for a new one; return `None` if another listener is next or too many handlers run."""
        with self._pool.changed:
            now_s = monotonic_s()
            self.share.end(began_s, now_s)
            self.share.waiting += 1
            mine = self._pool.next(now_s) is self
            self.share.waiting -= 1
            if mine:
                self.share.begin(now_s)
                return now_s
            self._pool.grant_permits()
            return None

    def end(self, began_s: float) -> None:
        """Return a permit."""
        with self._pool.changed:
            self.share.end(began_s, monotonic_s())
            self._pool.grant_permits()

    def grant(self, now_s: float) -> None:
        """Grant a permit to the oldest waiting request; the lock is held."""
        key, ticket = next((key, ticket) for key, ticket in self._tickets.items() if ticket.waits)
        ticket.began_s = now_s
        del self._tickets[key]
        self.share.waiting -= 1
        self.share.begin(now_s)
        if ticket.on_granted is not None:
            ticket.on_granted()

    def call_started(self, call: int) -> None:
        """Record that a call of the handler starts."""
        with self._pool.changed:
            if self._limit is not None:
                self._limit.began(len(self._handling) + 1)
            self._handling[call] = monotonic_s()

    def give_up(self, call: int) -> None:
        """Stop counting a hung call and its permit until it ends, so that another call may start."""
        with self._pool.changed:
            if self._handling.pop(call, None) is not None:  # else it has just ended
                self._suspended[call] = now_s = monotonic_s()
                self.share.suspend(now_s)
                self._pool.grant_permits()

    def call_rejected(self, call: int) -> None:
        """Record the end of a call that did no work, whose duration is not measured."""
        with self._pool.changed:
            if self._handling.pop(call, None) is None:
                self.share.resume(self._suspended.pop(call), monotonic_s())

    def call_ended(self, call: int, messages: int, failed: Sequence[tuple[bytes, int, int]]) -> Sequence[int | None]:
        """Record the end of a call.

        Args:
            call: As for `call_started`.
            messages: Its number of messages.
            failed: Name, number of the attempt and retries left of each failed message.

        Returns:
            For each failed message its delay in ms if it keeps its retry because the downstream is down; `None` if it
            uses up a retry.
        """
        with self._pool.changed:
            limit, now_s, began_s = self._limit, monotonic_s(), self._handling.pop(call, None)
            if began_s is None:  # it was abandoned, and its permit counts again
                self.share.resume(self._suspended.pop(call), now_s)
            if limit is None or began_s is None:
                return [None] * len(failed)
            names = [name for name, _, _ in failed]
            limit.ended((now_s - began_s) / messages, bool(failed), now_s, began_s, names)
            spared = [limit.retry_free_delay_s(attempt, left, now_s) for _, attempt, left in failed]
        return [None if delay_s is None else int(delay_s * 1000) for delay_s in spared]

    def decide(self) -> None:
        """Adjust the adaptive limit if needed. To be called several times a second."""
        if self._limit is not None:
            with self._pool.changed:
                now_s = monotonic_s()
                self._limit.decide(now_s, [now_s - began_s for began_s in self._handling.values()])
                self._pool.grant_permits()
