from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import ExponentialRetry, ImmediateRetry, LadderRetry, RetryPolicy
from rmq._model.retry import LADDER_S, draw_jitter, retry_from_json
from rmq.errors import InvalidValueError

jitters = st.floats(0, 1, exclude_max=True)


def test_immediate() -> None:
    assert ImmediateRetry().delay_ms(7, 0.5) == 0


@given(st.integers(1, 10_000), jitters)
def test_exponential_waits_between_half_and_all_and_at_most_the_cap(attempt: int, jitter: float) -> None:
    full = min(600_000, 1_000 * 2 ** (attempt - 1))
    assert full // 2 <= ExponentialRetry().delay_ms(attempt, jitter) <= full


def test_exponential_doubles() -> None:
    policy = ExponentialRetry(base=100, cap=timedelta(seconds=1))
    assert [policy.delay_ms(attempt, 0.0) for attempt in range(1, 7)] == [50, 100, 200, 400, 500, 500]
    assert ExponentialRetry(base=1, cap=1).delay_ms(1, 0.0) == 0


def test_the_ladder() -> None:
    policy = LadderRetry()
    assert [policy.delay_ms(attempt, 0.9) for attempt in range(1, 17)] == [step * 1000 for step in LADDER_S]
    assert policy.delay_ms(99, 0.0) == 7_200_000
    assert (LADDER_S[0], LADDER_S[-1], len(LADDER_S)) == (10, 7_200, 16)


@pytest.mark.parametrize(
    "policy",
    [ImmediateRetry(), ExponentialRetry(), ExponentialRetry(5, timedelta(hours=1)), LadderRetry(), LadderRetry((0, 9))],
)
def test_json_and_back(policy: RetryPolicy) -> None:
    again = retry_from_json(policy.to_json())
    assert again == policy
    assert hash(again) == hash(policy)
    assert repr(again) == repr(policy)


def test_policies_differ_by_their_values() -> None:
    assert ExponentialRetry(1) != ExponentialRetry(2)
    assert ExponentialRetry() != LadderRetry()
    assert LadderRetry([1, 2]) == LadderRetry((1, 2))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("base", "cap"), [(0, 5), (6, 5)])
def test_exponential_bounds(base: int, cap: int) -> None:
    with pytest.raises(InvalidValueError, match=rf"0 < base <= cap, not base={base}, cap={cap}"):
        ExponentialRetry(base, cap)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((), "at least one step"),
        ((-1,), "step -1 must be whole seconds, from 0"),
        ((1.5,), "step 1.5 must be whole seconds"),
        ((True,), "step True must be whole seconds"),
        ((100 * 366 * 86_400 + 1,), "step 3162240001 must be whole seconds"),
        ("12", "steps '12' must be a tuple"),
        (7, "steps 7 must be a tuple"),
    ],
)
def test_ladder_bounds(steps: Any, text: str) -> None:
    with pytest.raises(InvalidValueError, match=text):
        LadderRetry(steps)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="'fibonacci' is unknown; known: immediate, exponential, ladder"):
        retry_from_json({"policy": "fibonacci"})


def test_jitter_is_drawn_from_0_to_1() -> None:
    assert all(0 <= draw_jitter() < 1 for _ in range(100))
