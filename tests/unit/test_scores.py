from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmq.scores import lease_end_second, retries_left_after_claim, retries_left_of, second_of, stamped

MAX_SECOND = (2**53 - 1) // 1000 - 1


@given(st.integers(0, MAX_SECOND), st.integers(0, 999))
def test_a_stamp_holds_second_and_retries(second: int, left: int) -> None:
    # pitfall 13
    score = stamped(second, left)
    assert int(float(score)) == score < 2**53
    assert (second_of(score), retries_left_of(score)) == (second, left)


@given(st.integers(0, 999), st.integers(1, 2**53 - 1))
def test_fresh_messages_have_all_retries_and_others_one_less(max_retries: int, score: int) -> None:
    expected = max_retries if score > max_retries else score - 1
    assert retries_left_after_claim(score, max_retries) == expected


def test_a_lease_is_never_over_early() -> None:
    assert lease_end_second(100, 60) == 161
