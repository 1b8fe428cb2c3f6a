"""Durations and instants as callers write them, turned into whole milliseconds; and the local clock."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from math import ceil
from numbers import Real

from rmq._model.display import brief
from rmq.errors import InvalidValueError

Duration = int | float | timedelta
"""A length of time: a `timedelta`, or a number of milliseconds."""

Instant = int | float | datetime
"""A point in time: an aware `datetime`, or milliseconds since 1970-01-01 UTC."""

MAX_DURATION_MS = 100 * 366 * 24 * 3600 * 1000
"""A hundred years: anything longer is a mistake in units."""

MAX_DUE_MS = max(int(time.time() * 1000), 1_767_225_600_000) + MAX_DURATION_MS
"""A hundred years ahead, or of 2026 where this machine's clock is not set yet: anything later is a mistake in units."""

_FINER = (("microseconds", 1_000), ("nanoseconds", 1_000_000))

DURATION_RULE = "a duration such as 250ms, 5s, 1m30s, 2h or 7d"
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|min|m|h|d)", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)

MAX_SCORE = 2**53 - 1
"""The largest whole number a ZSET score holds exactly (an IEEE 754 double)."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MS = timedelta(milliseconds=1)
_LAST_MS = 253_402_300_799_999
"""The last ms of the year 9999: a `datetime` ends there."""
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

monotonic_s: Callable[[], float] = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
"""Returns seconds since some fixed moment, on a clock that never jumps and, where the system has one, also runs while
the machine sleeps. Only differences mean something; only Redis' clock decides on dates.

It is called for each message: a function around it would cost more than the clock.
"""


def duration_ms(value: Duration, name: str) -> int:
    """Turn a duration into whole milliseconds, rounded up so that nothing happens early.

    Raises:
        InvalidValueError: Not a duration, negative, not finite, or over 100 years. It calls the value `name`.
    """
    if isinstance(value, timedelta):
        milliseconds = _ms(value)
    else:
        milliseconds = _whole(value, name, "a timedelta or a number of milliseconds")
    if not 0 <= milliseconds <= MAX_DURATION_MS:
        raise InvalidValueError(f"{name} is {brief(value)}; it must lie between 0 and 100 years")
    return milliseconds


def _ms(value: timedelta) -> int:
    """Return whole milliseconds, rounded up; the value's class may have an arithmetic of its own, as pendulum's has."""
    whole, rest = timedelta.__divmod__(value, _ONE_MS)  # -(-value // ms) would overflow at timedelta.max
    return whole + bool(rest)


def check_day(name: str, value: object, lowest: float) -> None:
    """Refuse what is no number of seconds from `lowest` to a day, with `InvalidValueError`."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    if not lowest <= number <= 86_400:  # nan is refused, too: no time would ever be beyond it
        raise InvalidValueError(f"{name} is {value!r}; it must be seconds, from {lowest:g} to 86400")


def seconds(value: float | timedelta, name: str) -> float:
    """Turn a time to wait into seconds: at most 100 years, which is what "for ever" comes to.

    Raises:
        InvalidValueError: Not a number, or negative.
    """
    if type(value) is float and 0.0 <= value <= MAX_DURATION_MS / 1000:
        return value
    if isinstance(value, timedelta):
        value = timedelta.total_seconds(value)
    if not isinstance(value, Real) or isinstance(value, bool) or not value >= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"{name} is {value!r}; it must be 0 or more seconds")
    return float(min(value, MAX_DURATION_MS / 1000))


def due_ms(value: Instant, name: str) -> int:
    """Turn the time at which a message is due into milliseconds since 1970-01-01 UTC, rounded up.

    Raises:
        InvalidValueError: As `instant_ms`, or more than 100 years ahead of the time at which this process began.
    """
    milliseconds = instant_ms(value, name)
    if milliseconds > MAX_DUE_MS:
        unit = next((unit for unit, per_ms in _FINER if milliseconds // per_ms <= MAX_DUE_MS), "")
        hint = f". Did you pass {unit}?" if unit and not isinstance(value, datetime) else ""
        raise InvalidValueError(
            f"{name} is {brief(value)}; it must be at most 100 years ahead, in milliseconds since 1970{hint}"
        )
    return milliseconds


def most(value: int | None, name: str) -> int:
    """Return an upper bound, a whole number from 0: `None` bounds nothing."""
    if value is None:
        return MAX_SCORE
    if type(value) is not int or value < 0:
        raise InvalidValueError(f"{name} is {value!r}; it must be a whole number from 0, or None")
    return min(value, MAX_SCORE)


def instant_ms(value: Instant, name: str) -> int:
    """Turn a point in time into milliseconds since 1970-01-01 UTC, rounded up.

    Raises:
        InvalidValueError: A naive `datetime`, not a number, or out of range.
    """
    if isinstance(value, datetime):
        if datetime.utcoffset(value) is None:
            raise InvalidValueError(f"{name} is {value!r}, which has no time zone; use an aware datetime")
        milliseconds = _ms(datetime.__sub__(value, _EPOCH))  # not `-`, which a subclass may have redefined
    else:
        milliseconds = _whole(value, name, "an aware datetime or epoch milliseconds")
    if not 0 < milliseconds <= MAX_SCORE:
        raise InvalidValueError(f"{name} is {brief(value)}; epoch milliseconds must lie between 1 and 2^53 - 1")
    return milliseconds


def moment_of(epoch_ms: int | None) -> datetime | None:
    """Return a time of Redis' clock as an aware `datetime`; `None` where it is unknown, or beyond the year 9999."""
    return _EPOCH + timedelta(milliseconds=epoch_ms) if epoch_ms and 0 < epoch_ms <= _LAST_MS else None


def _whole(value: object, name: str, expected: str) -> int:
    if type(value) is int:
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise InvalidValueError(f"{name} is {value!r}; it must be finite")
        return -int(-value // 1)
    raise InvalidValueError(f"{name} is {value!r}; it must be {expected}")


def is_duration(text: str) -> bool:
    """Return whether a text is a duration as `parse_duration_ms` reads it."""
    return text == "0" or _DURATION.fullmatch(text) is not None


def parse_duration_ms(text: str, name: str) -> int:
    """Return a duration up to 100 years, such as `5s`, `1m30s`, `250ms` or `0`, in ms, rounded up."""
    if not is_duration(text):
        raise InvalidValueError(f"{name} is {text!r}; it must be {DURATION_RULE}")
    exact = sum(Fraction(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
    try:
        return duration_ms(ceil(exact), name)
    except InvalidValueError:
        raise InvalidValueError(f"{name} is {text!r}; it must lie between 0 and 100 years") from None
