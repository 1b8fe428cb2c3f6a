"""Durations of handlers: quantiles, sums, and reports of strangers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import HandlerTimes
from rmq._model.workers import BUCKETS, TimesCounter


def times_of(*seconds: float) -> HandlerTimes:
    counter = TimesCounter()
    for each in seconds:
        counter.note(each)
    return HandlerTimes.of(counter.counts)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_a_quantile_is_right_to_within_a_tenth(seconds: list[float], quantile: float) -> None:
    rank = max(1, -int(-quantile * len(seconds) // 1))
    exact_ms = sorted(seconds)[rank - 1] * 1_000
    assert times_of(*seconds).quantile_ms(quantile) == pytest.approx(exact_ms, rel=0.1)


def test_times_of_several_workers_add_up() -> None:
    quick, slow = times_of(*[0.01] * 99), times_of(8.0)
    both = quick + slow
    assert both.count == 100
    assert both == HandlerTimes.summed([slow, quick]) == HandlerTimes.from_json(both.to_json())
    assert both.quantile_ms(0.5) == quick.quantile_ms(0.5)
    assert both.quantile_ms(1.0) == slow.quantile_ms(0.5)


def test_the_ends() -> None:
    assert times_of(0.0, -1.0).counts == ((0, 2),)
    assert times_of(1e30).counts == ((BUCKETS - 1, 1),)
    assert times_of().quantile_ms(0.5) is None


@pytest.mark.parametrize(
    "value", [{"x": 1}, {"-1": 1}, {str(BUCKETS): 1}, {"0": -1}, {"0": 2**60}, {"0": "1"}, {"0": 1.5}]
)
def test_what_is_no_report(value: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"have whole numbers|invalid literal"):
        HandlerTimes.from_json(value)
