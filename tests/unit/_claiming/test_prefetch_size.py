"""How many messages a worker claims ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq._claiming.rounds import FIRST_GUESS, PREFETCH_S, PrefetchSize


def test_begins_with_a_guess() -> None:
    assert PrefetchSize().messages() == FIRST_GUESS


def test_follows_the_handlers_speed() -> None:
    pace = PrefetchSize()
    pace.note(10, 0.1)  # 10 ms each
    assert pace.messages() == pytest.approx(PREFETCH_S / 0.01, abs=1)
    for _ in range(50):
        pace.note(1, 1.0)
    assert pace.messages() == 1
    for _ in range(50):
        pace.note(100, 0.0)
    assert pace.messages() > 10_000


def test_no_messages_say_nothing_about_speed() -> None:
    pace = PrefetchSize()
    pace.note(0, 5.0)
    assert pace.messages() == FIRST_GUESS


def test_one_slow_message_does_not_stop_claiming_ahead_for_good() -> None:
    pace = PrefetchSize()
    pace.note(1, 30.0)
    assert pace.messages() == 1
    for _ in range(30):
        pace.note(1, 0.001)
    assert pace.messages() > 50


@given(notes=st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 1e6))))
def test_is_at_least_one_message(notes: list[tuple[int, float]]) -> None:
    pace = PrefetchSize()
    for messages, elapsed_s in notes:
        pace.note(messages, elapsed_s)
        assert pace.messages() >= 1


def test_how_long_messages_take_follows_the_pace():
    pace = PrefetchSize()
    assert pace.takes_s(100) == 0.0  # nothing is known
    pace.note(10, 0.01)
    assert pace.takes_s(0) == 0.0
    assert pace.takes_s(20) == pytest.approx(0.02)
    assert pace.messages() == 100
    assert pace.messages(PREFETCH_S / 2) == 50
