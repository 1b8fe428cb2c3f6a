"""Lets the calls that threads or tasks make one at a time share round trips to a server.

Whoever calls while nobody else does is served alone, at once. Calls that are made until that reply has come wait for
it, and then go out in one request, which one of their callers sends. So nobody waits for calls that may come, and many
callers pay for two round trips instead of one each.
Source: flat combining (Hendler, Incze, Shavit and Tzafrir, 2010).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rmq._io.backend import Lock, Runtime
from rmq._io.wire import NOTHING
from rmq._transport.call import Call

MOST_SHARED = 64
"""Maximum number of calls in one request: Redis serves nobody else while a script runs."""


class WaitingCall:
    """A call that waits for the round trip of an earlier one.

    Attributes:
        call: The call.
        leads: Whether its caller is to send the waiting calls.
        outcome: What its caller gets; `NOTHING` until another caller has sent it.
    """

    __slots__ = ("_turn", "call", "leads", "outcome")

    def __init__(self, call: Call[Any], turn: Lock) -> None:
        self.call = call
        self.leads = False
        self.outcome: Any = NOTHING
        self._turn = turn
        turn.acquire()

    def wait(self) -> None:
        """Wait until the call has an outcome, or its caller leads."""
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
        self._led = False
        self._waiting: deque[WaitingCall] = deque()

    def __len__(self) -> int:
        """Return the number of calls that wait."""
        return len(self._waiting)

    def enter(self, call: Call[Any]) -> WaitingCall | None:
        """Return `None` if nobody calls: the caller sends the call alone, and then must `leave`. Otherwise queue it."""
        with self._lock:
            if not self._led:
                self._led = True
                return None
            waiting = WaitingCall(call, self._runtime.lock())
            self._waiting.append(waiting)
            return waiting

    def take(self, first: WaitingCall) -> list[WaitingCall]:
        """Return calls that a leader is to send, its own first. It must set their outcomes, and then `leave`."""
        with self._lock:
            number = min(len(self._waiting), MOST_SHARED - 1)
            return [first, *[self._waiting.popleft() for _ in range(number)]]

    def leave(self, served: Sequence[WaitingCall] = (), unsent: Callable[[Call[Any]], object] | None = None) -> None:
        """Hand over to the caller of a waiting call, if there is one, and wake those that were served.

        Args:
            served: The calls that have an outcome.
            unsent: The server could not be reached: returns the outcome of the calls that wait, which are not sent.
        """
        with self._lock:
            failed = [] if unsent is None else [*self._waiting]
            if unsent is not None:
                self._waiting.clear()
                for each in failed:
                    each.outcome = unsent(each.call)
            heir = self._waiting.popleft() if self._waiting else None
            self._led = heir is not None
            if heir is not None:
                heir.leads = True
        if heir is not None:
            heir.wake()
        for each in (*served, *failed):
            each.wake()

    def give_up(self, waiting: WaitingCall) -> None:
        """Remove a call whose caller was interrupted while it waited; if it was to lead, the next one does."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(waiting)
        if waiting.leads:
            self.leave()


def groups_of(calls: Sequence[WaitingCall], multi_slot_scripts: bool) -> list[list[WaitingCall]]:
    """Group calls by the script call that carries them out: those that may be joined, or one alone.

    Args:
        calls: The calls.
        multi_slot_scripts: Whether one script call may access several slots.
    """
    groups: list[list[WaitingCall]] = []
    open_: dict[tuple[str, str], list[WaitingCall]] = {}
    for each in calls:
        call, place = each.call, (each.call.script, "" if multi_slot_scripts else each.call.keys[0])
        group = open_.get(place)
        if call.joining is None:
            groups.append([each])
        elif group is not None and group[0].call.args[: call.joining.head] == call.args[: call.joining.head]:
            group.append(each)
        else:
            group = open_[place] = [each]
            groups.append(group)
    return groups
