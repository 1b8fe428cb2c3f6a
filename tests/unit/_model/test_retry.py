from __future__ import annotations

import os
import random
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
    policy = ExponentialRetry(base="100ms", cap=timedelta(seconds=1))
    assert [policy.delay_ms(attempt, 0.0) for attempt in range(1, 7)] == [50, 100, 200, 400, 500, 500]
    assert ExponentialRetry(base="1ms", cap="1ms").delay_ms(1, 0.0) == 0


def test_the_ladder() -> None:
    policy = LadderRetry()
    assert [policy.delay_ms(attempt, 0.9) for attempt in range(1, 17)] == [step * 1000 for step in LADDER_S]
    assert policy.delay_ms(99, 0.0) == 7_200_000
    assert (LADDER_S[0], LADDER_S[-1], len(LADDER_S)) == (10, 7_200, 16)


@pytest.mark.parametrize(
    "policy",
    [
        ImmediateRetry(),
        ExponentialRetry(),
        ExponentialRetry("5ms", timedelta(hours=1)),
        LadderRetry(),
        LadderRetry(("0s", "9s")),
    ],
)
def test_json_and_back(policy: RetryPolicy) -> None:
    again = retry_from_json(policy.to_json())
    assert again == policy
    assert hash(again) == hash(policy)
    assert repr(again) == repr(policy)


def test_policies_differ_by_their_values() -> None:
    assert ExponentialRetry("1ms") != ExponentialRetry("2ms")
    assert ExponentialRetry() != LadderRetry()
    assert LadderRetry(["1s", "2s"]) == LadderRetry(("1s", "2s"))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("base", "cap"), [("0s", "5s"), ("6s", "5s")])
def test_exponential_bounds(base: str, cap: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"base is '{base}' and cap is '{cap}'; Exponential"):
        ExponentialRetry(base, cap)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((), "at least one step"),
        ((timedelta(-1),), "a step of LadderRetry is .* between 0 and 100 years"),
        (("1.5s",), "a step of LadderRetry is '1.5s'; it must be whole seconds"),
        ((10, 60), r"a step of LadderRetry is 10: is it '10ms' or '10s'\?"),
        ((True,), "a step of LadderRetry is True; it must be a timedelta"),
        (("36601d",), "a step of LadderRetry is '36601d'; it must lie between 0 and 100 years"),
        ("12", "steps of LadderRetry is '12'; it must be a tuple"),
        (7, "steps of LadderRetry is 7; it must be a tuple"),
    ],
)
def test_ladder_bounds(steps: Any, text: str) -> None:
    with pytest.raises(InvalidValueError, match=text):
        LadderRetry(steps)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(
        InvalidValueError, match="'fibonacci' is unknown; it must be one of immediate, exponential, ladder"
    ):
        retry_from_json({"policy": "fibonacci"})


def test_jitter_is_drawn_from_0_to_1() -> None:
    assert all(0 <= draw_jitter() < 1 for _ in range(100))


def test_the_generator_of_the_program_is_left_alone() -> None:
    random.seed(7)
    before = random.getstate()
    assert len({draw_jitter() for _ in range(10)}) == 10
    assert random.getstate() == before


def test_a_child_does_not_draw_what_its_parent_draws() -> None:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, repr(draw_jitter()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as told:
        assert told.read() != repr(draw_jitter())
