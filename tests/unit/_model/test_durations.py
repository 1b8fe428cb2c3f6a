from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import FixedTimeMessage, LadderRetry, Topic, TopicType
from rmq._model.times import MAX_DUE_MS, MAX_DURATION_MS, MAX_SCORE, due_ms, duration_ms, instant_ms, seconds
from rmq.errors import InvalidValueError


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (5, 5),
        (MAX_DURATION_MS, MAX_DURATION_MS),
        (0.0, 0),
        (-0.5, 0),
        (0.1, 1),
        (1.0, 1),
        (1.0001, 2),
        (timedelta(0), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=7), 7),
        (timedelta(days=2), 172_800_000),
    ],
)
def test_durations_round_up(value: Any, ms: int) -> None:
    assert duration_ms(value, "x") == ms


@given(st.timedeltas(timedelta(0), timedelta(days=36_600)))
def test_a_duration_is_never_shorter_than_asked_for(value: timedelta) -> None:
    ms = duration_ms(value, "x")
    assert timedelta(0) <= timedelta(milliseconds=ms) - value < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (-1, "between 0 and 100 years"),
        (-1.0, "between 0 and 100 years"),
        (MAX_DURATION_MS + 1, "between 0 and 100 years"),
        (timedelta(microseconds=-1_000), "between 0 and 100 years"),
        (timedelta.max, "between 0 and 100 years"),
        (timedelta.min, "between 0 and 100 years"),
        (1e300, "between 0 and 100 years"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (float("-inf"), "finite"),
        (True, "a timedelta or a number of milliseconds"),
        ("5", "a timedelta or a number of milliseconds"),
        (None, "a timedelta or a number of milliseconds"),
        (Fraction(1, 2), "a timedelta or a number of milliseconds"),
    ],
)
def test_what_is_no_duration_is_refused_by_name_value_and_rule(value: Any, rule: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        duration_ms(value, "lease")
    assert str(refused.value).startswith(f"lease is {value!r}")
    assert rule in str(refused.value)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (1, 1),
        (MAX_SCORE, MAX_SCORE),
        (0.5, 1),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1_000),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=-1))), 7_200_000),
        (datetime.max.replace(tzinfo=UTC), 253_402_300_800_000),
    ],
)
def test_instants_round_up(value: Any, ms: int) -> None:
    assert instant_ms(value, "x") == ms


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (0, "between 1 and 2^53 - 1"),
        (MAX_SCORE + 1, "between 1 and 2^53 - 1"),
        (datetime(1970, 1, 1, tzinfo=UTC), "between 1 and 2^53 - 1"),
        (datetime.min.replace(tzinfo=UTC), "between 1 and 2^53 - 1"),
        (datetime(2026, 1, 1), "no time zone; use an aware datetime"),
        (float("nan"), "finite"),
        (False, "an aware datetime or epoch milliseconds"),
        (timedelta(1), "an aware datetime or epoch milliseconds"),
    ],
)
def test_what_is_no_instant_is_refused_by_name_value_and_rule(value: Any, rule: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        instant_ms(value, "fixed_time")
    assert str(refused.value).startswith(f"fixed_time is {value!r}")
    assert rule in str(refused.value)


class Span(timedelta):
    """A timedelta with an arithmetic of its own, such as pendulum's: what comes of it is something else."""

    def _other(self, *_: object) -> object:
        return object()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __floordiv__ = __divmod__ = __neg__ = _other  # pyright: ignore
    __truediv__ = __mod__ = __abs__ = _other  # pyright: ignore

    def total_seconds(self) -> float:
        return -1.0


class Moment(datetime):
    """A datetime with an arithmetic of its own."""

    def __sub__(self, other: object) -> object:  # pyright: ignore
        return Span(1)

    def __rsub__(self, other: object) -> object:
        return Span(1)

    def utcoffset(self) -> None:
        return None


def test_subclasses_that_redefine_arithmetic() -> None:
    moment = Moment(2030, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    plain = datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert duration_ms(Span(seconds=5), "x") == 5_000
    assert seconds(Span(seconds=5), "x") == 5.0
    assert instant_ms(moment, "x") == due_ms(moment, "x") == instant_ms(plain, "x")
    assert FixedTimeMessage("x", moment).score_ms() == FixedTimeMessage("x", plain).score_ms()
    topic = Topic("x", TopicType.PRIORITY, lease=Span(seconds=5), ttl=Span(minutes=1), max_dead_age=Span(days=2))
    assert (topic.lease_s, topic.ttl_ms) == (5, 60_000)
    assert Topic.from_json(topic.to_json()) == topic
    with pytest.raises(InvalidValueError):
        LadderRetry((Span(seconds=5),))  # pyright: ignore[reportArgumentType] - whole seconds


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1_900_000_000_000_000, "Did you pass microseconds?"),
        (1_900_000_000_000_000_000, "2^53"),
        (MAX_DUE_MS + 1, "Did you pass microseconds?"),
        (float(MAX_DUE_MS + 2_000), "at most 100 years ahead"),
        (datetime(2400, 1, 1, tzinfo=UTC), "at most 100 years ahead"),
    ],
    ids=["microseconds", "nanoseconds", "a little", "float", "datetime"],
)
def test_a_due_time_beyond_100_years_is_a_mistake_in_units(value: Any, hint: str) -> None:
    with pytest.raises(InvalidValueError, match="fixed_time is") as refused:
        FixedTimeMessage("x", value)
    assert hint in str(refused.value)
    assert due_ms(MAX_DUE_MS, "fixed_time") == MAX_DUE_MS
