"""What still has to go to Redis when a program ends in the ordinary way: for a bounded time, and not after a fork."""

from __future__ import annotations

import atexit
from typing import Protocol

from rmq._model.times import monotonic_s

EXIT_S = 2.0
"""How long a program that ends waits for its last acks and for what it gives back, in seconds."""


class Leaver(Protocol):
    """An object that has something to send before the program ends."""

    def leave(self, until_s: float) -> None:
        """Have it sent by a job of one's own, and wait for that until then; do nothing after a fork."""
        ...


def leave_at_exit(leaver: Leaver) -> None:
    """Call its `leave` when the program ends."""
    _AT_WORK.add(leaver)
    atexit.unregister(_leave_all)
    atexit.register(_leave_all)  # the last one runs first: before an embedded server of the same program ends


def has_left(leaver: Leaver) -> None:
    """Forget one that has nothing to send any more."""
    _AT_WORK.discard(leaver)


_AT_WORK: set[Leaver] = set()


def _leave_all() -> None:
    until_s = monotonic_s() + EXIT_S
    for leaver in list(_AT_WORK):
        leaver.leave(until_s)
