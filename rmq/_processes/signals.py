"""The orderly end of a program: the first SIGTERM or SIGINT sets an event."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rmq.errors import RmqError

Handler = Callable[[int, FrameType | None], Any] | int | None


def ignore(number: int, frame: FrameType | None) -> None:
    """Handle a signal by nothing. Programs that are started meanwhile would inherit `signal.SIG_IGN`, but not this."""
    del number, frame


def require_main_thread(what: str) -> None:
    """Raise `RmqError` in any thread but the main one, which alone can handle signals."""
    if threading.current_thread() is not threading.main_thread():
        raise RmqError(f"{what} handles signals and so needs the main thread; use start() and stop() elsewhere")


@contextmanager
def until_signal(further: Handler = None) -> Generator[threading.Event]:
    """Give an event that the first SIGTERM or SIGINT sets; the earlier handlers come back behind the block.

    Args:
        further: Handles the signals after the first: a function such as `ignore`, or `signal.SIG_DFL`; by default
            what handled them before the block.

    Raises:
        ValueError: Not called in the main thread.
    """
    ended = threading.Event()
    # None: a handler that C has installed, which Python cannot put back
    before = {each: signal.getsignal(each) or signal.SIG_DFL for each in (signal.SIGTERM, signal.SIGINT)}

    def note(number: int, frame: FrameType | None) -> None:
        del number, frame
        for each, handler in before.items():
            signal.signal(each, handler if further is None else further)
        _thread.start_new_thread(ended.set, ())  # this thread may hold the event's lock at the moment

    try:
        for each in before:
            signal.signal(each, note)
        yield ended
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
