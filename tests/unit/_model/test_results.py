from __future__ import annotations

from rmq import DeadMessage, SendResult, SlotStats


def test_accepted_is_new_and_merged() -> None:
    assert SendResult(3, 4).accepted == 7


def test_contents_that_are_no_text_are_shown_all_the_same() -> None:
    dead = DeadMessage("t", 0, b"\xffa\xc3\xa4", None, 1, "", "", 1, 1, 1)
    assert dead.text == "\\xffaä"


def test_the_accounts() -> None:
    totals = {"accepted": 100, "merged": 10, "acked": 20, "cancelled": 5, "purged": 4, "trimmed": 1, "delivered": 999}
    stats = SlotStats("t", 0, 1, 30, 0, 15, 10, 5, None, 0, 0, False, totals)
    assert stats.unaccounted == 0
    assert SlotStats("t", 0, 1, 1, 0, 0, 0, 0, None, 0, 0, False, {}).unaccounted == -1
