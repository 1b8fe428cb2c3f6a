"""Loggers whose callers go on, whatever the program's own logging does.

A filter or a handler that a program adds may raise. Here that would end a thread that renews leases, or lose what a
claim has brought. So all of the library's log lines go through `reporter`.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

_TRACEBACK: Any = BaseException.__dict__["__traceback__"]


class Reporter(logging.LoggerAdapter[logging.Logger]):
    """A logger that raises nothing. What the program's logging raised goes to standard error, as `logging` does it."""

    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **options: Any) -> None:
        """Log a line, if the level is wanted."""
        if not self.logger.isEnabledFor(level):
            return
        try:
            self.logger.log(level, msg, *args, stacklevel=stacklevel + 1, **options)
        except BaseException as error:
            if not passes_over(error):
                raise
            if logging.raiseExceptions:
                try:
                    traceback.print_exc(file=sys.stderr)
                except BaseException as trouble:
                    if not passes_over(trouble):
                        raise


def passes_over(error: BaseException) -> bool:
    """Return whether an error of foreign code may be passed over: not an interruption of the main thread."""
    return isinstance(error, Exception) or threading.current_thread() is not threading.main_thread()


def traced(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return what `exc_info` takes, without asking the error: its class may have a truth or a traceback of its own."""
    return type(error), error, _TRACEBACK.__get__(error)


def reporter(name: str) -> Reporter:
    """Return the reporter of a logger."""
    return Reporter(logging.getLogger(name))
