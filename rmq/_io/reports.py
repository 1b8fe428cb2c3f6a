"""Loggers that never raise, whatever the logging configuration of the program does, or that say each thing once.

A filter or a handler that a program adds may raise. That would end a thread that renews leases, or lose messages that
were just claimed. So the library logs only through `reporter`.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, cast

from rmq._model.times import monotonic_s

REPEAT_S = 10.0
"""Interval in which further warnings of the same kind are left out, in seconds."""

MOST_TOLD = 1_000
"""Maximum number of names that a `PassedOver` remembers, as foreign documents may be unlimited in number."""

_TRACEBACK: Any = BaseException.__dict__["__traceback__"]


MOST_TEXT, MOST_TRACEBACK = 4_000, 16_000
"""Maximum lengths in characters of a value, and of a traceback with its errors, in a line: a handler's error may have
20 MB."""


def _cut(value: object) -> object:
    """Return an argument of a log line, cut if it is long."""
    if isinstance(value, BaseException):
        text = str(value)
        return value if len(text) <= MOST_TEXT else _cut(text)
    if isinstance(value, str | bytes) and len(value) > MOST_TEXT:
        return value[:MOST_TEXT]
    return value


def _cut_traceback(exc_info: Any) -> str:
    """Return the beginning and the end of a traceback whose errors have long texts; "" if the texts are short."""
    error: Any = sys.exc_info()[1] if exc_info is True else exc_info
    if type(error) is tuple:
        error = cast("Any", error)[1]
    chain: list[Any] = [error]
    try:
        for each in chain:
            if isinstance(each, BaseException) and len(chain) < 100:
                seen = set(map(id, chain))
                chain += [new for new in (each.__cause__, each.__context__) if new is not None and id(new) not in seen]
                chain += cast("Any", each).exceptions if isinstance(each, BaseExceptionGroup) else ()
        if sum(len(str(each)) + sum(map(len, getattr(each, "__notes__", ()))) for each in chain) <= MOST_TRACEBACK:
            return ""
        text = "".join(traceback.format_exception(error))
    except BaseException as trouble:  # of the error's own methods: logging says what it can
        if not passes_over(trouble):
            raise
        return ""
    return f"{text[: MOST_TRACEBACK // 2]}\n… ({len(text):,} characters)\n{text[-(MOST_TRACEBACK // 2) :]}"


class Reporter(logging.LoggerAdapter[logging.Logger]):
    """A logger that never raises. Errors of the program's logging go to standard error, as in `logging`."""

    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **options: Any) -> None:
        """Log a line, if the level is enabled."""
        if not self.logger.isEnabledFor(level):
            return
        try:
            args = tuple(map(_cut, args))
            if (exc_info := options.get("exc_info")) and (text := _cut_traceback(exc_info)):
                msg, args, options["exc_info"] = f"{msg}\n%s", (*args, text), None
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


class Sparing:
    """Logs warnings that may occur many times a second: the first of a kind at once, then one every `REPEAT_S` seconds.

    Thread-safe. The next warning states how many were left out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[object, tuple[float, int]] = {}

    def warning(self, log: Reporter, kind: object, text: str, *args: object, exc_info: bool = False) -> None:
        """Log a warning, unless one of its kind was logged a moment ago.

        Args:
            log: The logger.
            kind: Kind of the warning; warnings of equal kinds are limited together.
            text: The format string, as for `logging`.
            args: Its arguments.
            exc_info: Whether to add the traceback.
        """
        now_s = monotonic_s()
        with self._lock:
            logged_s, left_out = self._kinds.get(kind, (float("-inf"), 0))
            if now_s - logged_s < REPEAT_S:
                self._kinds[kind] = logged_s, left_out + 1
                return
            self._kinds[kind] = now_s, 0
        if left_out:
            text, args = f"{text} (similar warnings in the last %.0f s: %d)", (*args, now_s - logged_s, left_out)
        log.warning(text, *args, exc_info=exc_info, stacklevel=2)


class PassedOver:
    """Logs once for each document why it is ignored, and again if the reason changes."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: dict[str, str] = {}

    def tell(self, name: str, error: Exception) -> None:
        """Log a warning, unless this document was ignored for the same reason before."""
        reason = str(error)
        if self._told.get(name) == reason or (name not in self._told and len(self._told) >= MOST_TOLD):
            return
        self._told[name] = reason
        self._log.warning("ignored: %s", reason)
        if len(self._told) == MOST_TOLD:
            self._log.warning("%d unreadable documents in Redis are ignored; further ones are not logged", MOST_TOLD)


def passes_over(error: BaseException) -> bool:
    """Return whether an error of foreign code may be ignored. An interruption of the main thread may not."""
    return isinstance(error, Exception) or threading.current_thread() is not threading.main_thread()


def traced(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return the argument `exc_info` for an error without calling its methods, which its class may override."""
    return type(error), error, _TRACEBACK.__get__(error)


def reporter(name: str) -> Reporter:
    """Return the `Reporter` that logs to the logger of this name."""
    return Reporter(logging.getLogger(name))
