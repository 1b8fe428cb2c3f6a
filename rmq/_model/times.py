"""Durations and instants as callers write them, turned into whole milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rmq.errors import InvalidValueError

Duration = int | float | timedelta
"""A length of time: a `timedelta`, or a number of milliseconds."""

Instant = int | float | datetime
"""A point in time: an aware `datetime`, or milliseconds since 1970-01-01 UTC."""

MAX_DURATION_MS = 100 * 366 * 24 * 3600 * 1000
"""A hundred years: anything longer is a mistake in units."""

MAX_SCORE = 2**53 - 1
"""The largest whole number a ZSET score holds exactly (an IEEE 754 double)."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MS = timedelta(milliseconds=1)


def duration_ms(value: Duration, name: str) -> int:
    """Turn a duration into whole milliseconds, rounded up so that nothing happens early.

    Args:
        value: A `timedelta`, or a number of milliseconds; 0 to 100 years.
        name: What to call the value in an error.

    Raises:
        InvalidValueError: Not a duration, negative, not finite, or over 100 years.
    """
    if isinstance(value, timedelta):
        milliseconds = _ceil_ms(value)
    else:
        milliseconds = _whole(value, name, "a timedelta or a number of milliseconds")
    if not 0 <= milliseconds <= MAX_DURATION_MS:
        raise InvalidValueError(f"{name} is {value!r}; it must lie between 0 and 100 years")
    return milliseconds


def instant_ms(value: Instant, name: str) -> int:
    """Turn a point in time into milliseconds since 1970-01-01 UTC, rounded up.

    Args:
        value: An aware `datetime`, or epoch milliseconds, 1 to 2^53 - 1.
        name: What to call the value in an error.

    Raises:
        InvalidValueError: A naive `datetime`, not a number, or out of range.
    """
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidValueError(f"{name} is {value!r}, which has no time zone; use an aware datetime")
        milliseconds = _ceil_ms(value - _EPOCH)
    else:
        milliseconds = _whole(value, name, "an aware datetime or epoch milliseconds")
    if not 0 < milliseconds <= MAX_SCORE:
        raise InvalidValueError(f"{name} is {value!r}; epoch milliseconds must lie between 1 and 2^53 - 1")
    return milliseconds


def _ceil_ms(value: timedelta) -> int:
    whole, rest = divmod(value, _ONE_MS)  # -(-value // ms) would overflow at timedelta.max
    return whole + bool(rest)


def _whole(value: object, name: str, expected: str) -> int:
    if type(value) is int:
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise InvalidValueError(f"{name} is {value!r}; it must be finite")
        return -int(-value // 1)
    raise InvalidValueError(f"{name} is {value!r}; it must be {expected}")
