"""Keeps what was read from Redis, so that many browsers cost it no more than one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from rmq._model.times import monotonic_s

log = logging.getLogger("rmq.dashboard")
T = TypeVar("T")

FRESH_S = 2.0
"""What is younger is not read again."""

REST = 100.0
"""After a reading, nothing of its kind is read for so many times as long as it took: below a percent for each kind."""

LONGEST_REST_S = 60.0
OLD_S = 10.0
"""What nobody has looked at for so long is not shown before it was read again."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: T | None = None
    read_s: float | None = None
    rest_s: float = FRESH_S
    refreshing: bool = False


class Cache:
    """Values by key. Each is read by one thread at a time, and again in the background while somebody looks."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry[Any]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return what `read` has returned lately; what it raises is passed on and not kept."""
        with self._lock:
            entry = cast("_Entry[T]", self._entries.setdefault(key, _Entry[Any]()))
        before = entry.value
        if _too_old(entry):
            with entry.lock:
                if _too_old(entry):  # unless somebody else has just read it
                    _read(entry, read)
        elif _age_s(entry) > entry.rest_s:
            self._refresh(entry, read)
            return cast("T", before)
        return cast("T", entry.value)

    def drop(self) -> None:
        """Forget everything: somebody has changed something and wants to see it."""
        with self._lock:
            self._entries.clear()

    def _refresh(self, entry: _Entry[T], read: Callable[[], T]) -> None:
        with self._lock:
            if entry.refreshing:
                return
            entry.refreshing = True

        def work() -> None:
            try:
                with entry.lock:
                    _read(entry, read)
            except Exception as error:  # the next request reads again, and gets the error
                log.debug("reading again failed: %s", error)
                entry.read_s = None
            finally:
                entry.refreshing = False

        threading.Thread(target=work, name="rmq-dashboard-read", daemon=True).start()


def _age_s(entry: _Entry[Any]) -> float:
    return float("inf") if entry.read_s is None else monotonic_s() - entry.read_s


def _too_old(entry: _Entry[Any]) -> bool:
    return _age_s(entry) > max(OLD_S, 2 * entry.rest_s)


def _read(entry: _Entry[T], read: Callable[[], T]) -> None:
    began_s = monotonic_s()
    entry.value = read()
    entry.read_s = monotonic_s()
    entry.rest_s = min(LONGEST_REST_S, max(FRESH_S, REST * (entry.read_s - began_s)))
