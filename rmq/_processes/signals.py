"""What a process of workers sets for itself as a whole: its signal handlers, and what its garbage collector visits.

The first SIGTERM or SIGINT sets an event, for a graceful shutdown. A process that is forked meanwhile, such as a
`multiprocessing.Process` that a handler starts, is excluded. It gets the earlier signal handlers and no wake-up
descriptor, which is a socket shared with the parent: the parent's event loop would take the child's signals for its
own.
"""

from __future__ import annotations

import _thread
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from rmq.errors import RmqError

Handler = Callable[[int, FrameType | None], Any] | int | None


HUNG, HUNG_GRACE_S = 75, 5.0
"""Exit code of a process that ends because a handler hangs (`EX_TEMPFAIL` of BSD's sysexits.h: a restart may help), and
the seconds after which it ends even if the handler still runs."""

FROZEN_BY_PYTHON = 1_000
"""With this many frozen objects or more, the program has frozen some itself; Python 3.12 freezes 375 at its start."""


def exit_hung() -> NoReturn:
    """Exit this process with `HUNG`, even if threads still run."""

    def end() -> None:
        time.sleep(HUNG_GRACE_S)
        os._exit(HUNG)

    threading.Thread(target=end, name="rmq-exit", daemon=True).start()
    raise SystemExit(HUNG)


def ignore(number: int, frame: FrameType | None) -> None:
    """Ignore a signal. Unlike `signal.SIG_IGN`, this is not inherited by programs that are started."""
    del number, frame


def require_main_thread(caller: str) -> None:
    """Raise `RmqError` unless called in the main thread, the only one that can handle signals."""
    if threading.current_thread() is not threading.main_thread():
        raise RmqError(
            f"{caller} handles signals, which is possible in the main thread only; use start() and stop() elsewhere"
        )


@contextmanager
def until_signal(further: Handler = None) -> Generator[threading.Event]:
    """Yield an event that the first SIGTERM or SIGINT sets. The earlier handlers are restored after the block.

    Args:
        further: Handler of later signals: a function such as `ignore`, or `signal.SIG_DFL`; the earlier handlers by
            default.

    Raises:
        ValueError: Not called in the main thread.
    """
    ended = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        del number, frame
        for handled, handler in before.items():
            signal.signal(handled, handler if further is None else further)
        _thread.start_new_thread(ended.set, ())  # this thread may hold the event's lock

    with handlers_put_back() as before:
        for handled in before:
            signal.signal(handled, note)
        yield ended


@contextmanager
def handlers_put_back() -> Generator[dict[int, Handler]]:
    """Restore the present handlers of SIGTERM and SIGINT after the block, and in every process forked within it.

    Yields:
        The present handlers.
    """
    before: dict[int, Handler] = {number: _present(number) for number in (signal.SIGTERM, signal.SIGINT)}
    _put_back_in_forks.append(before)
    try:
        yield before
    finally:
        if before in _put_back_in_forks:  # not in a forked process
            _put_back_in_forks.remove(before)
        for number, handler in before.items():
            signal.signal(number, handler)


def _present(number: int) -> Handler:
    handler = signal.getsignal(number)
    # None is a handler installed by C. Neither it nor that of an event loop can be restored
    if handler is None or getattr(handler, "__module__", "") == "asyncio.unix_events":
        return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return handler


_put_back_in_forks: list[dict[int, Handler]] = []
_mask_before_fork = threading.local()
forks: int = 0
"""Number of forks between the process that imported this module and this one."""


def _before_fork() -> None:
    """Block signals until the child has its own handlers: before, they would stop the parent's event loop."""
    if _put_back_in_forks:
        _mask_before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))


def _after_fork() -> None:
    mask, _mask_before_fork.mask = getattr(_mask_before_fork, "mask", None), None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    global forks
    forks += 1
    try:
        if _put_back_in_forks:
            signal.set_wakeup_fd(-1)
        while _put_back_in_forks:
            for number, handler in _put_back_in_forks.pop().items():
                signal.signal(number, handler)
    finally:
        _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def end_fork(error: BaseException | None) -> NoReturn:
    """Exit a forked process as Python would exit: the thread or event loop it was forked from does not exist in it.

    Args:
        error: The exception it raised, if any. `SystemExit` has the exit code; others are printed, with exit code 1.
    """
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
    elif error is not None:
        code = 1
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # None, or closed
            stream.flush()
    os._exit((code & 0xFF) if isinstance(code, int) else 0 if code is None else 1)


def freeze_objects() -> bool:
    """Exclude all existing objects from later garbage collections; return whether that was done.

    A full collection visits every object while all threads are stopped: with the 50,000 objects of a small program it
    takes 20 to 40 ms every few seconds, which delays messages. Does nothing if the program has frozen objects itself or
    disabled the collector. `gc.unfreeze` undoes it.
    """
    if not (hasattr(gc, "freeze") and gc.isenabled() and gc.get_freeze_count() < FROZEN_BY_PYTHON):
        return False
    gc.collect()
    gc.freeze()
    return True


@contextmanager
def frozen_objects() -> Generator[None]:
    """Freeze objects within a block, and unfreeze them at its end."""
    done = freeze_objects()
    try:
        yield
    finally:
        if done:
            gc.unfreeze()
