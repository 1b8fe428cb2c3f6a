from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq._model.times import MAX_DURATION_MS, MAX_SCORE, duration_ms, instant_ms
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
