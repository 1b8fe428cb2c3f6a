"""Waiting for what happens elsewhere, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 50.0
"""Only against hanging; below the usual lease of 60 s, so that what its end alone would bring is still missed."""

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


def wait_until(condition: Callable[[], T | None], timeout: float = LIMIT_S, message: str = "") -> T:
    """Call `condition` until it returns something true, and return that.

    Args:
        condition: Called at once, then with pauses of 1 to 50 ms. What it raises is passed on.
        timeout: When to give up, in seconds. The condition gets a last chance after it. A test that passes only in time
            fails on a busy machine: prove the order or the number of things instead.
        message: What was waited for, for the error.

    Raises:
        AssertionError: It was still false after `timeout`. Carries `message` and the last value.
    """
    deadline = time.monotonic() + timeout
    pause_s = _FIRST_PAUSE_S
    while True:
        late = time.monotonic() >= deadline
        value = condition()
        if value:
            return value
        if late:
            raise AssertionError(f"not within {timeout:g} s: {message or repr(condition)} (last value: {value!r})")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
