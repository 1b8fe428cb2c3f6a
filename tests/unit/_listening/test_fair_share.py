"""Listeners share a process's handlers by their weights, and none has them all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq._listening.concurrency import FairShare, least_used_s, next_share

PLENTY = 1_000


class Clockwork:
    """Handlers that take a fixed time per listener, all of them always wanting more."""

    def __init__(self, weights: Sequence[float], takes_s: Sequence[float], handlers: int) -> None:
        self.shares = [FairShare(weight) for weight in weights]
        self.takes_s = takes_s
        self.handlers = handlers
        self.running: list[tuple[float, float, int]] = []
        self.done = [0] * len(self.shares)
        self.used_s = [0.0] * len(self.shares)
        for share in self.shares:
            share.waiting = PLENTY

    def run(self, seconds: float) -> None:
        now_s = 0.0
        while now_s < seconds:
            while (share := next_share(self.shares, [PLENTY] * len(self.shares), self.handlers, now_s)) is not None:
                number = self.shares.index(share)
                share.begin(now_s)
                self.running.append((now_s + self.takes_s[number], now_s, number))
            assert sum(share.running for share in self.shares) == len(self.running) <= self.handlers
            self.running.sort()
            now_s, began_s, number = self.running.pop(0)
            self.shares[number].end(began_s, now_s)
            self.done[number] += 1
            self.used_s[number] += now_s - began_s


def test_equal_weights_get_equal_time_however_long_their_handlers_take() -> None:
    work = Clockwork([1, 1], [1.0, 0.01], 4)
    work.run(200)
    assert 0.9 < work.used_s[0] / work.used_s[1] < 1.1


def test_three_to_one() -> None:
    work = Clockwork([3, 1], [0.02, 0.02], 8)
    work.run(100)
    assert 2.7 < work.used_s[0] / work.used_s[1] < 3.3


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.01, 5)), min_size=2, max_size=5),
    st.integers(5, 12),
)
def test_nobody_starves(parts: list[tuple[float, float]], handlers: int) -> None:
    work = Clockwork([weight for weight, _ in parts], [takes_s for _, takes_s in parts], handlers)
    work.run(60)
    assert min(work.done) >= 10  # one handler at least is always its own: 60 s of it, at up to 5 s each


def test_one_that_hangs_leaves_a_handler_for_each_of_the_others() -> None:
    slow, quick, quiet = FairShare(), FairShare(), FairShare()
    shares = [slow, quick, quiet]
    slow.waiting = PLENTY
    for _ in range(20):
        if next_share(shares, [PLENTY] * 3, 5, 1.0) is slow:
            slow.begin(1.0)
    assert slow.running == 3
    quick.waiting = 1
    assert next_share(shares, [PLENTY] * 3, 5, 99.0) is quick


def test_with_fewer_handlers_than_listeners_they_take_turns() -> None:
    work = Clockwork([1, 1, 1], [0.1, 0.1, 0.1], 1)
    work.run(30)
    assert max(work.done) - min(work.done) <= 1


def test_one_that_was_away_does_not_make_the_others_wait_for_its_past() -> None:
    busy, back = FairShare(), FairShare()
    busy.begin(0.0)
    busy.waiting = 1
    back.catch_up(least_used_s([busy, back], 100.0))
    assert back.used_s(100.0) == 100.0


def test_what_a_listener_itself_allows_bounds_it() -> None:
    share = FairShare()
    share.waiting = PLENTY
    assert next_share([share], [0], None, 0.0) is None
    assert next_share([share], [1], None, 0.0) is share
    share.begin(0.0)
    assert next_share([share], [1], None, 0.0) is None
