"""Which dead messages are meant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rmq import DeadFilter, DeadMessage
from rmq._admin.dead_letters import ALL
from rmq.errors import InvalidValueError

DIED_MS = 1_790_000_000_000
DIED = datetime.fromtimestamp(DIED_MS / 1000, UTC)
DEAD = DeadMessage("t", 0, b"item:42", None, DIED_MS, "ValueError", "bad", 17, DIED_MS - 9, DIED_MS)


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        (ALL, True),
        (DeadFilter(frozenset({b"item:42", b"other"})), True),
        (DeadFilter(frozenset({b"other"})), False),
        (DeadFilter(frozenset()), False),
        (DeadFilter(matching="item:*"), True),
        (DeadFilter(matching="item:4?"), True),
        (DeadFilter(matching="item:[0-3]*"), False),
        (DeadFilter(matching="ITEM:*"), False),
        (DeadFilter(error_type="ValueError"), True),
        (DeadFilter(error_type="KeyError"), False),
        (DeadFilter(died_after=DIED), True),
        (DeadFilter(died_after=DIED + timedelta(milliseconds=1)), False),
        (DeadFilter(died_before=DIED), False),
        (DeadFilter(died_before=DIED + timedelta(milliseconds=1)), True),
        (
            DeadFilter(
                died_after=DIED - timedelta(milliseconds=5),
                died_before=DIED + timedelta(milliseconds=5),
                matching="*42",
                error_type="ValueError",
            ),
            True,
        ),
        (
            DeadFilter(
                died_after=DIED - timedelta(milliseconds=5),
                died_before=DIED + timedelta(milliseconds=5),
                matching="*43",
                error_type="ValueError",
            ),
            False,
        ),
    ],
)
def test_all_conditions_must_hold(where: DeadFilter, meant: bool) -> None:
    assert where(DEAD) is meant


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="died_before"):
        DeadFilter(died_before=datetime(2026, 1, 1))(DEAD)


def test_content_that_is_not_text_matches_by_its_escapes() -> None:
    odd = DeadMessage("t", 0, b"\xff1", None, DIED_MS, "", "", 1, DIED_MS, DIED_MS)
    assert odd.text == "\\xff1"
    assert DeadFilter(matching="?xff*")(odd)
