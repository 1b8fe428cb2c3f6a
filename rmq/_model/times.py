"""Durations and instants as callers write them, turned into whole milliseconds; and the local clock."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache, partial
from math import ceil, isfinite
from numbers import Integral, Number, Real

from rmq._model.display import brief
from rmq.errors import InvalidValueError

Duration = timedelta | str
"""A length of time: a `timedelta`, or a text such as "200ms", "10s" or "1h30m". A number has no unit: it is refused."""

Instant = datetime
"""A point in time: an aware `datetime`."""

MAX_DURATION_MS = 100 * 366 * 24 * 3600 * 1000
"""A hundred years: anything longer is a mistake in units."""

MAX_DUE_MS = max(int(time.time() * 1000), 1_767_225_600_000) + MAX_DURATION_MS
"""A hundred years from now, or from 2026 if this machine's clock is not set: anything later is a mistake in units."""

_EPOCH_MS = re.compile(r"\d{12,16}", re.ASCII)
_TIME_RULE = "a time with a zone, such as 2026-01-31T14:30:00+01:00 or ...Z, or epoch ms"
_FINER = (("microseconds", 1_000), ("nanoseconds", 1_000_000))

_EXAMPLES = "such as 250ms, 5s, 1m30s, 2h or 7d"
DURATION_RULE = f"a duration {_EXAMPLES}"
"""Rule for the text of an option that is a duration, for errors."""
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|min|m|h|d)", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_Flag: type = bool
_PLAIN_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)

MAX_SCORE = 2**53 - 1
"""The largest whole number a ZSET score holds exactly (an IEEE 754 double)."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MS = timedelta(milliseconds=1)
_LAST_MS = 253_402_300_799_999
"""The last ms of the year 9999, the largest `datetime`."""
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

monotonic_s: Callable[[], float] = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
"""Returns seconds since some fixed moment, on a clock that never jumps and, where the system has one, also runs while
the machine sleeps. Only differences are meaningful; all dates come from Redis' clock.

It is called for each message: a function around it would cost more than the clock.
"""


def duration_ms(value: Duration, name: str) -> int:
    """Turn a duration into whole milliseconds, rounded up so that nothing happens early.

    Raises:
        InvalidValueError: The value is neither a `timedelta` nor a text with units, is negative, or exceeds 100 years.
            The error calls it `name`.
    """
    kind, milliseconds = type(value), None
    if kind is str or kind is timedelta:
        milliseconds = _known_ms(value)
    elif isinstance(value, timedelta):
        milliseconds = _ms(value)
    elif isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - of callers it is not known yet
        milliseconds = _known_ms(str.__str__(value))
    if milliseconds is None:
        raise InvalidValueError(_no_duration(value, name))
    if not 0 <= milliseconds <= MAX_DURATION_MS:
        raise InvalidValueError(f"{name} is {brief(value)}; it must lie between 0 and 100 years")
    return milliseconds


def typed_duration_ms(text: str, name: str) -> int:
    """Turn the text of an option into whole milliseconds, as `duration_ms`; errors do not suggest a `timedelta`.

    Raises:
        InvalidValueError: The text is not a duration, or is out of range. The error calls it `name`.
    """
    if is_duration(text):
        return duration_ms(text, name)
    if len(text) <= 40 and is_number(text):
        raise InvalidValueError(f"{name} is {text!r}: is it '{text}ms' or '{text}s'? A duration needs a unit")
    raise InvalidValueError(f"{name} is {brief(text)}; it must be {DURATION_RULE}")


def typed_instant_ms(text: str, name: str) -> int:
    """Turn the text of an option into epoch milliseconds: `2026-01-31T14:30:00Z`, or a number of 12 to 16 digits.

    Raises:
        InvalidValueError: The text is not a time with a zone, or is out of range. The error calls it `name`.
    """
    if _EPOCH_MS.fullmatch(text):
        return epoch_number_ms(int(text), name)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValueError(f"{name} is {text!r}; it must be {_TIME_RULE}") from None
    if moment.utcoffset() is None:
        raise InvalidValueError(f"{name} is {text!r}, which has no zone; it must be {_TIME_RULE}")
    return instant_ms(moment, name)


def usual_ms(value: object) -> int:
    """Return a duration in ms from a cache; -1 for a value that only `duration_ms` can convert or refuse."""
    kind = type(value)
    found = _known_ms(value) if kind is str or kind is timedelta else None  # pyright: ignore[reportArgumentType]
    return -1 if found is None else found


@lru_cache(maxsize=4_096)
def _known_ms(value: str | timedelta) -> int | None:
    """Return a duration in ms, `None` for an invalid text. Cached: a program uses few different durations."""
    return _ms(value) if isinstance(value, timedelta) else _text_ms(value)


def _text_ms(text: str) -> int | None:
    if not is_duration(text):
        return None
    return ceil(sum(Fraction(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text)))


def _no_duration(value: object, name: str) -> str:
    """Return the error text for a value that is not a duration; for a number it suggests two units."""
    number = isinstance(value, Number) and not isinstance(value, _Flag)
    text = brief(value) if type(value) is int else str(value) if number or isinstance(value, str) else ""
    if len(text) <= 40 and is_number(text):
        said = text if number else repr(text)
        return f"{name} is {said}: is it '{text}ms' or '{text}s'? A duration is a timedelta, or a text with its unit"
    return f"{name} is {brief(value)}; it must be a timedelta, or a text {_EXAMPLES}"


def duration_text(milliseconds: int) -> str:
    """Return a duration as a text that means exactly it: `1h30m`, `200ms`, `0s`."""
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms"):
        number, milliseconds = divmod(milliseconds, _UNITS_MS[unit])
        parts += [f"{number}{unit}"] if number else []
    return "".join(parts) or "0s"


def _ms(value: timedelta) -> int:
    """Return whole milliseconds, rounded up; the value's class may have an arithmetic of its own, as pendulum's has."""
    whole, rest = timedelta.__divmod__(value, _ONE_MS)  # -(-value // ms) would overflow at timedelta.max
    return whole + bool(rest)


def check_day(name: str, value: object, lowest: float) -> None:
    """Raise `InvalidValueError` unless the value is a number of seconds from `lowest` to a day."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    if not lowest <= number <= 86_400:  # nan is refused, too: no time would ever be beyond it
        raise InvalidValueError(f"{name} is {value!r}; it must be a number of seconds from {lowest:g} to 86400")


def seconds(value: float | timedelta, name: str) -> float:
    """Turn a time to wait into seconds, at most 100 years, so that an infinite time is valid, too.

    Raises:
        InvalidValueError: The time is not a number or a `timedelta`, or is negative.
    """
    if type(value) is float and 0.0 <= value <= MAX_DURATION_MS / 1000:
        return value
    if isinstance(value, timedelta):
        value = timedelta.total_seconds(value)
    if not isinstance(value, Real) or isinstance(value, bool) or not value >= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"{name} is {value!r}; it must be 0 or more seconds, or a timedelta")
    return float(min(value, MAX_DURATION_MS / 1000))


def due_ms(value: Instant, name: str) -> int:
    """Turn the time at which a message is due into milliseconds since 1970-01-01 UTC, rounded up.

    Raises:
        InvalidValueError: As `instant_ms`, or more than 100 years ahead of the time at which this process began.
    """
    milliseconds = instant_ms(value, name)
    if milliseconds > MAX_DUE_MS:
        raise InvalidValueError(f"{name} is {brief(value)}; it must be at most 100 years ahead")
    return milliseconds


def due_number_ms(value: float, name: str) -> int:
    """Round a due time, in milliseconds since 1970-01-01 UTC, up to a whole number. Raises as `due_ms`."""
    milliseconds = epoch_number_ms(value, name)
    if milliseconds > MAX_DUE_MS:
        unit = next((unit for unit, per_ms in _FINER if milliseconds // per_ms <= MAX_DUE_MS), "")
        hint = f". Did you pass {unit}?" if unit else ""
        raise InvalidValueError(
            f"{name} is {brief(value)}; it must be at most 100 years ahead, in milliseconds since 1970{hint}"
        )
    return milliseconds


def epoch_number_ms(value: float, name: str) -> int:
    """Round a number of milliseconds since 1970-01-01 UTC up to a whole number. Raises as `instant_ms`."""
    milliseconds = _whole(value, name, "a number of milliseconds since 1970")
    if not 0 < milliseconds <= MAX_SCORE:
        raise InvalidValueError(f"{name} is {brief(value)}; epoch milliseconds must lie between 1 and 2^53 - 1")
    return milliseconds


def number_ms(value: float, name: str) -> int:
    """Round a number of milliseconds up to a whole number. Raises the same errors as `duration_ms`."""
    milliseconds = _whole(value, name, "a number of milliseconds")
    if not 0 <= milliseconds <= MAX_DURATION_MS:
        raise InvalidValueError(f"{name} is {brief(value)}; it must lie between 0 and 100 years")
    return milliseconds


def instant_ms(value: Instant, name: str) -> int:
    """Turn a point in time into milliseconds since 1970-01-01 UTC, rounded up.

    Raises:
        InvalidValueError: The value is not an aware `datetime`, or is not after 1970-01-01 UTC.
    """
    if isinstance(value, datetime):  # pyright: ignore[reportUnnecessaryIsInstance] - of callers it is not known yet
        if datetime.utcoffset(value) is None:
            raise InvalidValueError(f"{name} is {value!r}, which has no time zone; use an aware datetime")
        milliseconds = _ms(datetime.__sub__(value, _EPOCH))  # not `-`, which a subclass may have redefined
    else:
        raise InvalidValueError(f"{name} is {brief(value)}; it must be an aware datetime")
    if not 0 < milliseconds <= MAX_SCORE:
        raise InvalidValueError(f"{name} is {brief(value)}; it must be after 1970-01-01 00:00 UTC")
    return milliseconds


def moment_of(epoch_ms: int | None) -> datetime | None:
    """Return a time of Redis' clock as an aware `datetime`; `None` if it is unknown or beyond the year 9999."""
    return _EPOCH + timedelta(milliseconds=epoch_ms) if epoch_ms and 0 < epoch_ms <= _LAST_MS else None


def moment_at(epoch_ms: int) -> datetime:
    """Return a time as an aware `datetime`; later times than `datetime` can represent become the last one."""
    return _EPOCH + timedelta(milliseconds=min(epoch_ms, _LAST_MS))


def _whole(value: object, name: str, expected: str) -> int:
    if isinstance(value, Integral) and value is not True and value is not False:
        return int(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise InvalidValueError(f"{name} is {value!r}; it must be finite")
        return -int(-value // 1)
    raise InvalidValueError(f"{name} is {brief(value)}; it must be {expected}")


def is_number(text: str) -> bool:
    """Return whether a text is a number without a unit."""
    return _PLAIN_NUMBER.fullmatch(text) is not None


def is_duration(text: str) -> bool:
    """Return whether a text is a duration: numbers, each with its unit (ms, s, m, min, h, d), or 0."""
    return text == "0" or _DURATION.fullmatch(text) is not None
