"""Caches values read from Redis, so that many browsers cause no more reads than one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rmq.spi import monotonic_s

log = logging.getLogger("rmq.dashboard")
T = TypeVar("T")

FRESH_S = 2.0
"""Age in seconds up to which a value is not read again."""

REST = 100.0
"""A value is read again after this multiple of the time that its read took, so that reads take < 1 % of Redis' time."""

LONGEST_REST_S = 60.0
OLD_S = 10.0
"""Age in seconds from which a value is read again before it is shown."""


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: Any = None
    read_s: float | None = None
    rest_s: float = FRESH_S
    refreshing: bool = False


class Cache:
    """Values by key. One thread at a time reads a value; while pages use it, it is refreshed in the background."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return the cached value of a key, or that of `read` if it is too old. Errors of `read` are not cached."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
        before = entry.value
        if _too_old(entry):
            with entry.lock:
                if _too_old(entry):  # another thread may have read it meanwhile
                    _read(entry, read)
        elif _age_s(entry) > entry.rest_s:
            self._refresh(entry, read)
            return before
        return entry.value

    def rest_s(self, key: Hashable) -> float:
        """Return the time in seconds after which the value of a key is read again."""
        entry = self._entries.get(key)
        return FRESH_S if entry is None else entry.rest_s

    def drop(self) -> None:
        """Drop all values, so that a change shows at once."""
        with self._lock:
            self._entries.clear()

    def _refresh(self, entry: _Entry, read: Callable[[], T]) -> None:
        with self._lock:
            if entry.refreshing:
                return
            entry.refreshing = True

        def work() -> None:
            try:
                with entry.lock:
                    _read(entry, read)
            except Exception as error:  # the next request reads the value again, and gets the error
                log.debug("cannot refresh a cached value: %s", error)
                entry.read_s = None
            finally:
                entry.refreshing = False

        threading.Thread(target=work, name="rmq-dashboard-read", daemon=True).start()


def _age_s(entry: _Entry) -> float:
    return float("inf") if entry.read_s is None else monotonic_s() - entry.read_s


def _too_old(entry: _Entry) -> bool:
    return _age_s(entry) > max(OLD_S, 2 * entry.rest_s)


def _read(entry: _Entry, read: Callable[[], T]) -> None:
    began_s = monotonic_s()
    entry.value = read()
    entry.read_s = monotonic_s()
    entry.rest_s = min(LONGEST_REST_S, max(FRESH_S, REST * (entry.read_s - began_s)))
