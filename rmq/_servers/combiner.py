"""Lets the calls that threads or tasks make one at a time share round trips to a server.

Whoever calls while few others do is served alone, at once. If as many requests are under way as the runtime wants,
later calls wait for a reply to one of these, and then go out in one request, which one of their callers sends. So
nobody waits for calls that may come, and many callers pay for few round trips. To a server that is far away, more
requests are under way, since there the callers' time is worth more than their requests cost.
Source: flat combining (Hendler, Incze, Shavit and Tzafrir, 2010).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rmq._io.backend import Lock, Runtime
from rmq._io.wire import NOTHING

MOST_SHARED = 64
"""Maximum number of calls in one request: Redis serves nobody else while a script runs."""

FAR_S, MOST_FAR = 0.000_5, 16
"""From this round-trip time on, in seconds, so many requests may be under way; else as many as the runtime says."""

FORGOTTEN, FORGOTTEN_S = 1.02, 0.000_01
"""The shortest round trip grows by this factor and these seconds with each one, so that a longer way is noticed."""


class WaitingCall:
    """A call that waits for the round trip of an earlier one.

    Attributes:
        call: The call; what is in it is not looked at here.
        combines: Whether its caller is to send the waiting calls together.
        outcome: What its caller gets; `NOTHING` until another caller has sent it.
    """

    __slots__ = ("_turn", "call", "combines", "outcome")

    def __init__(self, call: Any, turn: Lock) -> None:
        self.call = call
        self.combines = False
        self.outcome: Any = NOTHING
        self._turn = turn
        turn.acquire()

    def wait(self) -> None:
        """Wait until the call has an outcome, or its caller combines."""
        self._turn.acquire()

    def wake(self) -> None:
        """End the wait."""
        self._turn.release()


class Combiner:
    """The calls of one server that may share round trips. Thread-safe.

    Args:
        runtime: The runtime: threads, or an event loop.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._near = self._places = runtime.calls_at_once
        self._free = deque([True] * self._near)
        """A place for each request that may be under way; taken and put back without the lock, which costs more."""
        self._waiting: deque[WaitingCall] = deque()
        self._shortest_s = 0.0

    def enter(self, call: Any) -> WaitingCall | None:
        """Return `None` if the caller is to send the call alone, and then to `leave`. Otherwise queue it."""
        try:
            self._free.pop()
            return None
        except IndexError:
            pass
        with self._lock:
            with suppress(IndexError):  # a place was put back before the lock was acquired
                self._free.pop()
                return None
            waiting = WaitingCall(call, self._runtime.lock())
            self._waiting.append(waiting)
            return waiting

    def take(self, first: WaitingCall) -> list[WaitingCall]:
        """Return the calls that their first caller is to send. It must set their outcomes, and then `leave`."""
        with self._lock:
            number = min(len(self._waiting), MOST_SHARED - 1)
            return [first, *[self._waiting.popleft() for _ in range(number)]]

    def leave(
        self,
        round_trip_s: float = 0.0,
        served: Sequence[WaitingCall] = (),
        unsent: Callable[[Any], object] | None = None,
    ) -> None:
        """Hand over to the callers of waiting calls, if there are any, and wake those that were served.

        Args:
            round_trip_s: How long the request and its replies took; 0 if it failed.
            served: The calls that have an outcome.
            unsent: The server could not be reached: returns the outcome of the calls that wait, which are not sent.
        """
        if not self._waiting and not served:
            self._free.append(True)
            if not self._waiting:
                return
            with suppress(IndexError):  # a call was queued meanwhile; else who has taken the place leaves later
                self._free.pop()
                self.leave(round_trip_s, served, unsent)
            return
        failed: list[WaitingCall] = []
        with self._lock:
            if unsent is not None:
                failed += self._waiting
                self._waiting.clear()
                for each in failed:
                    each.outcome = unsent(each.call)
            if round_trip_s:
                self._shortest_s = min(round_trip_s, self._shortest_s * FORGOTTEN + FORGOTTEN_S)
            chosen = self._hand_over()
        for each in (*served, *failed):
            each.wake()
        for each in chosen:  # last: they take along what those send next
            each.wake()

    def _hand_over(self) -> list[WaitingCall]:
        """Divide the caller's place, and places that a server far away gets, among waiting calls; return those."""
        places = self._near if self._shortest_s < FAR_S else MOST_FAR
        change = max(-1, places - self._places)
        self._places += change
        chosen: list[WaitingCall] = []
        for _ in range(1 + change):
            if self._waiting:
                chosen.append(self._waiting.popleft())
                chosen[-1].combines = True
            else:
                self._free.append(True)
        return chosen

    def give_up(self, waiting: WaitingCall) -> None:
        """Remove a call whose caller was interrupted while it waited; if it was to combine, the next one does."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(waiting)
        if waiting.combines:
            self.leave()
