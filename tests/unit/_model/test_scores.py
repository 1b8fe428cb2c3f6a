from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq._model.scores import (
    MAX_SCORE,
    ages_for,
    lease_end_ms,
    retries_left_after_claim,
    retries_left_of,
    score_of,
    stamp_of,
    stamped,
)

MAX_STAMP = MAX_SCORE // 1000 - 1


@given(st.integers(0, MAX_STAMP), st.integers(0, 999))
def test_a_stamp_holds_time_and_retries(stamp: int, left: int) -> None:
    # pitfall 13
    score = stamped(stamp, left)
    assert int(float(score)) == score < 2**53
    assert (stamp_of(score), retries_left_of(score)) == (stamp, left)


def test_stamps_in_ms_are_scores_until_the_year_2255() -> None:
    assert stamped(8_993_808_000_000, 999) < 2**53  # 2255-01-01


@given(st.integers(0, 999), st.integers(1, 2**53 - 1))
def test_fresh_messages_have_all_retries_and_others_one_less(max_retries: int, score: int) -> None:
    expected = max_retries if score > max_retries else score - 1
    assert retries_left_after_claim(score, max_retries) == expected


def test_a_score_below_one_uses_up_no_more_than_all_retries() -> None:
    assert [retries_left_after_claim(score, 16) for score in (1, 0, -5)] == [0, 0, 0]


def test_a_lease_is_never_over_early() -> None:
    now_ms = 1_790_000_000_250
    assert lease_end_ms(stamped(now_ms, 16), 60_000) == now_ms + 60_001
    assert lease_end_ms(stamped(now_ms, 16), 1) == now_ms + 2


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (b"1790000000250016", 1_790_000_000_250_016),
        (b"9007199254740996", 2**53 + 4),
        (b"1152921504606846976", MAX_SCORE),
        (b"-1152921504606846976", -MAX_SCORE),
        (b"500.5", 501),
        (b"-0.5", 0),
        (b"inf", MAX_SCORE),
        (b"-inf", -MAX_SCORE),
        (b"1e+300", MAX_SCORE),
        (b"1.7976931348623157e+308", MAX_SCORE),
    ],
)
def test_scores_that_no_script_wrote_are_read_as_the_nearest(text: bytes, score: int) -> None:
    assert score_of(text) == score


@pytest.mark.parametrize("highest", [1_000, 2**23 - 1])
def test_a_score_with_an_age_says_when_it_was_sent(highest: int) -> None:
    ages, now_ms = ages_for(highest), 1_795_000_000_000
    mark = (now_ms - 1_735_689_600_000) // ages.unit_ms
    for priority in (17, highest):
        sent_ms = ages.sent_ms(priority * ages.scale + ages.scale - 1 - mark)
        assert sent_ms is not None
        assert 0 <= now_ms - sent_ms < ages.unit_ms
    assert ages.sent_ms(16) is None, "of a rollback"
    assert ages.sent_ms((highest + 1) * ages.scale) is None, "promoted"
    assert ages_for(None).sent_ms(1_000) is None
