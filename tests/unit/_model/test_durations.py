from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import (
    ExponentialRetry,
    Fixed,
    FixedTimeMessage,
    JoinMessage,
    LadderRetry,
    Leading,
    RangeMergeMessage,
    Retention,
    Sliding,
    Topic,
    TopicType,
)
from rmq._model.times import (
    MAX_DUE_MS,
    MAX_DURATION_MS,
    due_ms,
    duration_ms,
    duration_text,
    instant_ms,
    seconds,
    usual_ms,
)
from rmq.errors import InvalidMessageError, InvalidValueError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime(2060, 1, 1, 12, tzinfo=UTC)


class Text(str):
    """A text of a class of its own, such as a StrEnum has."""


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (timedelta(0), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=7), 7),
        (timedelta(days=2), 172_800_000),
        (timedelta(milliseconds=MAX_DURATION_MS), MAX_DURATION_MS),
        ("0", 0),
        ("0s", 0),
        ("200ms", 200),
        ("0.1ms", 1),
        ("1d1ms", 86_400_001),
        ("10s", 10_000),
        ("5m", 300_000),
        ("5min", 300_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("36600d", MAX_DURATION_MS),
        ("1.5s", 1_500),
        ("1.0000001s", 1_001),
        (Text("10s"), 10_000),
    ],
)
def test_durations_round_up(value: Any, ms: int) -> None:
    assert duration_ms(value, "x") == duration_ms(value, "x") == ms
    assert usual_ms(value) == (-1 if isinstance(value, Text) else ms)


@given(st.integers(0, MAX_DURATION_MS))
def test_a_duration_as_text_means_exactly_it(ms: int) -> None:
    assert duration_ms(duration_text(ms), "x") == ms


@given(st.timedeltas(timedelta(0), timedelta(days=36_600)))
def test_a_duration_is_never_shorter_than_asked_for(value: timedelta) -> None:
    ms = duration_ms(value, "x")
    assert timedelta(0) <= timedelta(milliseconds=ms) - value < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (timedelta(microseconds=-1_000), "between 0 and 100 years"),
        (timedelta.max, "between 0 and 100 years"),
        (timedelta.min, "between 0 and 100 years"),
        ("36601d", "between 0 and 100 years"),
        ("5 s", "a timedelta, or a text such as 250ms"),
        ("s", "a timedelta, or a text such as 250ms"),
        ("1e3s", "a timedelta, or a text such as 250ms"),
        ("5s1", "a timedelta, or a text such as 250ms"),
        ("5sm", "a timedelta, or a text such as 250ms"),
        ("5µs", "a timedelta, or a text such as 250ms"),
        ("٣s", "a timedelta, or a text such as 250ms"),
        ("5S", "a timedelta, or a text such as 250ms"),
        ("", "a timedelta, or a text such as 250ms"),
        ("-5s", "a timedelta, or a text such as 250ms"),
        (-1, "a timedelta, or a text such as 250ms"),
        (float("nan"), "a timedelta, or a text such as 250ms"),
        (float("inf"), "a timedelta, or a text such as 250ms"),
        (True, "a timedelta, or a text such as 250ms"),
        (None, "a timedelta, or a text such as 250ms"),
        (b"5s", "a timedelta, or a text such as 250ms"),
        pytest.param(10**5_000, "a timedelta, or a text such as 250ms", id="without a repr"),
    ],
)
def test_what_is_no_duration_is_refused_by_name_value_and_rule(value: Any, rule: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        duration_ms(value, "lease")
    if value != 10**5_000:  # which has no repr
        assert str(refused.value).startswith(f"lease is {value!r}")
    assert rule in str(refused.value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (50, "50"),
        (0, "0"),
        (2.5, "2.5"),
        (Decimal("50"), "50"),
        (np.int64(50), "50"),
        (np.float64(2.5), "2.5"),
        ("50", "'50'"),
        ("2.5", "'2.5'"),
    ],
)
def test_of_a_bare_number_the_error_gives_both_readings(value: Any, shown: str) -> None:
    number = shown.strip("'")
    with pytest.raises(InvalidValueError, match=rf"^lease is {shown}: is it '{number}ms' or '{number}s'\? ") as refused:
        duration_ms(value, "lease")
    assert "a timedelta, or a text with its unit" in str(refused.value)


WRITERS: dict[str, Callable[[Any], object]] = {
    "time_range": lambda value: RangeMergeMessage("a", value),
    "time_range of a part": lambda value: JoinMessage("a", "part", 2, value),
    "lease": lambda value: Topic("t", TopicType.PRIORITY, lease=value),
    "ttl": lambda value: Topic("t", TopicType.PRIORITY, ttl=value),
    "max_dead_age": lambda value: Topic("t", TopicType.PRIORITY, max_dead_age=value),
    "full_timeout": lambda value: Topic("t", TopicType.PRIORITY, full_timeout=value),
    "base": lambda value: ExponentialRetry(value),
    "cap": lambda value: ExponentialRetry(cap=value),
    "step": lambda value: LadderRetry((value,)),
    "Fixed": lambda value: Fixed(value),
    "Leading": lambda value: Leading(value),
    "quiet": lambda value: Sliding(value, max_wait="1h"),
    "max_wait": lambda value: Sliding(max_wait=value),
    "max_age": lambda value: Retention(max_age=value),
    "every": lambda value: Retention(every=value),
}


@pytest.mark.parametrize("make", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize(
    "number", [5, 5.0, Decimal(5), np.int32(5), "5"], ids=["int", "float", "Decimal", "numpy", "text"]
)
def test_where_a_duration_is_stored_or_sent_it_has_a_unit(make: Callable[[Any], object], number: Any) -> None:
    with pytest.raises(ValueError, match=r" is '?(5|5\.0)'?: is it '(5|5\.0)ms' or '(5|5\.0)s'\?"):
        make(number)
    assert make("5s") == make(timedelta(seconds=5)) == make(Span(seconds=5))


def test_numbers_are_taken_where_the_name_has_the_unit() -> None:
    assert RangeMergeMessage("a", time_range_ms=50) == RangeMergeMessage("a", "50ms")
    assert (RangeMergeMessage("a", "0.2ms").score_ms(), FixedTimeMessage("a", fixed_time_ms=0.5).score_ms()) == (1, 1)
    assert RangeMergeMessage("a", time_range_ms=49.5) == RangeMergeMessage("a", time_range_ms=np.int64(50))  # type: ignore[arg-type]
    assert JoinMessage("a", "p", 2, time_range_ms=50) == JoinMessage("a", "p", 2, "50ms")
    moment = datetime(2060, 1, 1, tzinfo=UTC)
    assert FixedTimeMessage("a", moment) == FixedTimeMessage("a", fixed_time_ms=instant_ms(moment, "x"))
    assert RangeMergeMessage("a", "1h").time_range == timedelta(hours=1)
    assert RangeMergeMessage("a").time_range is RangeMergeMessage("a").time_range_ms is None
    assert FixedTimeMessage("a", moment).fixed_time == moment
    assert replace(RangeMergeMessage("a", "1h"), content="b") == RangeMergeMessage("b", "1h")
    assert replace(FixedTimeMessage("a", moment), fixed_time_ms=5_000).fixed_time_ms == 5_000
    delayed = FixedTimeMessage("a", delay="1h")
    assert delayed == FixedTimeMessage("a", delay=timedelta(hours=1)) != FixedTimeMessage("a", delay="2h")
    assert (delayed.delay, delayed.fixed_time, delayed.fixed_time_ms) == (timedelta(hours=1), None, None)
    assert replace(delayed, body="x") == pickle.loads(pickle.dumps(FixedTimeMessage("a", delay="1h", body="x")))
    assert FixedTimeMessage("a", moment).delay is None
    assert eval(repr(RangeMergeMessage("a", "1h"))) == RangeMergeMessage("a", "1h")
    assert eval(repr(ExponentialRetry("1s", "1h30m"))) == ExponentialRetry("1s", "1h30m")
    assert eval(repr(LadderRetry())) == LadderRetry()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: RangeMergeMessage("a", "5s", time_range_ms=5_000),
            "time_range is '5s' and time_range_ms is 5000; give only one",
        ),
        (lambda: RangeMergeMessage("a", time_range_ms=0), "time_range_ms is 0; it must be more than 0"),
        (lambda: RangeMergeMessage("a", "0s"), "time_range is '0s'; it must be more than 0"),
        (
            lambda: RangeMergeMessage("a", timedelta(0)),
            r"time_range is datetime.timedelta\(0\); it must be more than 0",
        ),
        (lambda: RangeMergeMessage("a", timedelta(-1)), "time_range is .*; it must lie between 0 and 100 years"),
        (lambda: RangeMergeMessage("a", True), "time_range is True; it must be a timedelta, or a text such as"),  # type: ignore[arg-type]
        (lambda: FixedTimeMessage("a", True), "fixed_time is True; it must be an aware datetime"),  # type: ignore[arg-type]
        (lambda: FixedTimeMessage("a", datetime(2026, 1, 1)), "fixed_time is .* no time zone; use an aware datetime"),
        (lambda: FixedTimeMessage("a", EPOCH), "fixed_time is .*; it must be after 1970"),
        (lambda: RangeMergeMessage("a", time_range_ms=-1), "time_range_ms is -1; it must lie between 0 and 100 years"),
        (lambda: RangeMergeMessage("a", time_range_ms=True), "time_range_ms is True; it must be a number of millisec"),
        (lambda: RangeMergeMessage("a", time_range_ms="5s"), "time_range_ms is '5s'; it must be a number of millisec"),  # type: ignore[arg-type]
        (lambda: RangeMergeMessage("a", time_range_ms=float("nan")), "time_range_ms is nan; it must be finite"),
        (lambda: FixedTimeMessage("a"), "fixed_time and delay are None; give one of them: an aware datetime"),
        (lambda: FixedTimeMessage("a", NOON, delay="5s"), "fixed_time is .* and delay is '5s'; give only one"),
        (
            lambda: FixedTimeMessage("a", fixed_time_ms=5, delay=timedelta(0)),
            r"fixed_time_ms is 5 and delay is datetime.timedelta\(0\); give only one",
        ),
        (lambda: FixedTimeMessage("a", delay=timedelta(-1)), "delay is .*; it must lie between 0 and 100 years"),
        (lambda: FixedTimeMessage("a", delay="99999999d"), "delay is '99999999d'; it must lie between 0 and 100 years"),
        (lambda: FixedTimeMessage("a", delay="-5s"), "delay is '-5s'; it must be a timedelta, or a text"),
        (lambda: FixedTimeMessage("a", delay=50), r"delay is 50: is it '50ms' or '50s'\?"),  # type: ignore[arg-type]
        (lambda: FixedTimeMessage("a", delay=10**400), "delay is 10+.*; it must be a timedelta, or a text"),  # type: ignore[arg-type]
        (lambda: FixedTimeMessage("a", delay=True), "delay is True; it must be a timedelta, or a text"),  # type: ignore[arg-type]
        (lambda: FixedTimeMessage("a", delay=float("nan")), "delay is nan; it must be a timedelta, or a text"),  # type: ignore[arg-type]
        (lambda: FixedTimeMessage("a", delay=NOON), "delay is .*; it must be a timedelta, or a text"),  # type: ignore[arg-type]
        (
            lambda: FixedTimeMessage("a", NOON, fixed_time_ms=5),
            "fixed_time is .* and fixed_time_ms is 5; give only one",
        ),
        (
            lambda: FixedTimeMessage("a", 1_795_739_653),  # type: ignore[arg-type]
            r"fixed_time is 1795739653; it must be an aware datetime\. Milli",
        ),  # type: ignore[arg-type]
        (lambda: FixedTimeMessage("a", "2030-01-01"), "fixed_time is '2030-01-01'; it must be an aware datetime"),  # type: ignore[arg-type]
        (lambda: FixedTimeMessage("a", fixed_time_ms=0), "fixed_time_ms is 0; epoch milliseconds must lie between 1"),
    ],
)
def test_of_times_of_messages_the_error_names_the_argument(make: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidMessageError, match=f"^{text}"):
        make()


@pytest.mark.parametrize(
    ("value", "ms"),
    [
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
        (1_790_000_000_000, "an aware datetime"),
        (EPOCH, "after 1970-01-01 00:00 UTC"),
        (datetime.min.replace(tzinfo=UTC), "after 1970-01-01 00:00 UTC"),
        (datetime(2026, 1, 1), "no time zone; use an aware datetime"),
        (False, "an aware datetime"),
        (timedelta(1), "an aware datetime"),
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
    assert LadderRetry((Span(seconds=5),)).steps_s == (5,)


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
    name = "fixed_time" if isinstance(value, datetime) else "fixed_time_ms"
    made: dict[str, Any] = {name: value}
    with pytest.raises(InvalidValueError, match=f"{name} is") as refused:
        FixedTimeMessage("x", **made)
    assert hint in str(refused.value)
    assert FixedTimeMessage("x", fixed_time_ms=MAX_DUE_MS).fixed_time_ms == MAX_DUE_MS
