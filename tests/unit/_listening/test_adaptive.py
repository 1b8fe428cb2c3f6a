"""The number of handlers follows what the downstream bears: relieved within windows, full speed afterwards."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import Adaptive
from rmq._listening.adaptive_limit import STEPS, AdaptiveLimit
from rmq.errors import InvalidValueError


class Run:
    """A limit, and windows that it sees one after the other."""

    def __init__(self, most: int = 32, settings: Adaptive | None = None) -> None:
        self.settings = settings or Adaptive()
        self.now_s = 100.0
        self.most = most
        self.limit = AdaptiveLimit(self.settings, most, self.now_s)
        self.names = itertools.count()

    def window(self, elapsed_s: float, failed: float = 0.0, samples: int = 20, busy: int | None = None) -> int:
        self.now_s += self.settings.window_s
        self.limit.began(self.limit.allowed(self.now_s) if busy is None else busy)
        for number in range(samples):  # failures and others by turns
            self.ended(elapsed_s, int((number + 1) * failed) > int(number * failed))
        self.limit.decide(self.now_s)
        return self.limit.allowed(self.now_s + self.settings.longest_pause_s)

    def ended(self, elapsed_s: float, failed: bool, name: bytes = b"") -> None:
        self.limit.ended(elapsed_s, failed, self.now_s, self.now_s, [name or b"%d" % next(self.names)])

    def warm(self) -> Run:
        for _ in range(2 * STEPS):
            self.window(0.01)
        assert self.limit.allowed(self.now_s) == self.most
        return self


SETTINGS = st.builds(
    Adaptive,
    least=st.integers(1, 5),
    tolerance=st.floats(1.1, 10),
    failures=st.floats(0, 0.9),
    window_s=st.floats(0.05, 2),
    longest_pause_s=st.floats(2, 30),
)
WINDOWS = st.lists(st.tuples(st.floats(1e-6, 60), st.floats(0, 1), st.integers(0, 30), st.integers(0, 64)), max_size=60)


def test_a_single_quick_message_does_not_make_the_others_slow() -> None:
    run = Run()
    for _ in range(2 * STEPS):
        run.window(0.1)
    run.window(0.001, samples=1)
    assert [run.window(0.1, samples=5) for _ in range(20)] == [run.most] * 20
    run.window(0.001)  # many of them are another downstream
    assert run.window(0.1) < run.most


@given(SETTINGS, st.integers(1, 200), WINDOWS)
def test_it_stays_within_its_bounds(
    settings: Adaptive, most: int, windows: list[tuple[float, float, int, int]]
) -> None:
    run = Run(most, settings)
    for elapsed_s, failed, samples, busy in windows:
        number = run.window(elapsed_s, failed, samples, busy)
        assert min(settings.least, most) <= number <= most


@given(st.integers(1, 500), st.floats(0.0001, 1))
def test_a_slow_downstream_is_relieved_in_few_windows_and_gets_all_back(most: int, usual_s: float) -> None:
    run = Run(most)
    for _ in range(2 * STEPS):
        run.window(usual_s)
    assert run.limit.allowed(run.now_s) == most
    slow_s = 10 * usual_s + 0.02
    numbers = [run.window(slow_s) for _ in range(60)]  # half a minute
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[math.ceil(math.log2(most))] == 1
    numbers = [run.window(usual_s) for _ in range(max(STEPS, 20) + 1)]
    assert numbers == sorted(numbers)
    assert numbers[-1] == most


def test_it_starts_low_and_doubles_until_the_first_trouble() -> None:
    run = Run(64)
    assert [run.window(0.01) for _ in range(4)] == [2, 4, 8, 16]
    assert run.window(0.05) == 8
    assert [run.window(0.01) for _ in range(2)] == [11, 14]  # by a twentieth of the most from now on


def test_failures_relieve_it_though_they_are_quick() -> None:
    run = Run().warm()
    numbers = [run.window(0.0001, failed=0.5) for _ in range(6)]
    assert numbers == [16, 8, 4, 2, 1, 1]


def test_a_few_failures_are_no_sign() -> None:
    run = Run().warm()
    assert run.window(0.01, failed=0.1) == 32


@pytest.mark.parametrize(("failures", "calls"), [(0, 5), (0.1, 5), (0.5, 17)])
def test_calls_that_all_fail_are_told_within_few_and_not_after_a_window(failures: float, calls: int) -> None:
    run = Run(settings=Adaptive(least=2, failures=failures)).warm()
    for _ in range(200):
        run.ended(0.01, False)
    for _ in range(calls - 1):
        run.ended(0.0001, True)
    assert run.limit.limit == 32
    run.ended(0.0001, True)
    assert run.limit.limit == 2
    assert run.limit.allowed(run.now_s) == 0
    for _ in range(40):  # they had begun before
        run.ended(0.0001, True)
    assert run.limit.pause_s(run.now_s) == 0.5
    assert run.limit.allowed(run.now_s + 0.5) == 2


def test_where_even_one_fails_there_are_pauses_until_it_works() -> None:
    run = Run(settings=Adaptive(longest_pause_s=3)).warm()
    pauses: list[float] = []
    for _ in range(5):
        for _ in range(5):
            run.ended(0.01, True)
        pauses.append(run.limit.pause_s(run.now_s))
        assert run.limit.one_at_a_time
        run.now_s += pauses[-1]
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0]
    run.ended(0.01, False)
    assert not run.limit.one_at_a_time
    assert run.limit.allowed(run.now_s) == 1


def test_what_began_before_a_pause_does_not_end_it() -> None:
    run = Run().warm()
    for _ in range(5):
        run.ended(0.01, True)
    run.limit.ended(0.01, False, run.now_s + 0.6, run.now_s - 3)
    assert run.limit.one_at_a_time


def spared_s(run: Run, name: bytes, left: int) -> float | None:
    run.ended(0.01, True, name)
    return run.limit.retry_free_delay_s(4 - left, left, run.now_s)


def test_no_message_dies_of_a_downstream_that_is_down() -> None:
    run = Run(settings=Adaptive(window_s=0.5, longest_pause_s=5)).warm()
    assert [spared_s(run, b"%d" % number, 3) for number in range(4)] == [None] * 4
    assert spared_s(run, b"4", 3) == 0.5
    for number, after_s in enumerate([0.5, 1, 2, 4, 60, 600]):
        run.now_s += after_s
        delay_s = spared_s(run, b"%d" % number, 0)
        assert delay_s is not None
        assert 0.5 <= delay_s <= 600
        assert delay_s >= min(600, run.limit.pause_s(run.now_s))
    run.now_s += 5
    run.ended(0.01, False)
    assert spared_s(run, b"1", 0) is None  # the others work: now it is its own fault
    assert spared_s(run, b"2", 0) == 0.5  # or not


def test_a_message_that_fails_alone_dies_as_ever() -> None:
    run = Run()
    spared: list[float | None] = []
    for left in (3, 2, 1, 0, 0):
        spared.append(spared_s(run, b"bad", left))
        run.now_s += 10
    assert spared == [None, None, None, 30, None]  # it is compared once with others, of which there are none


def test_a_message_that_failed_while_others_worked_dies_at_once() -> None:
    run = Run()
    assert spared_s(run, b"bad", 3) is None
    run.ended(0.01, False)
    assert [spared_s(run, b"bad", left) for left in (2, 1, 0)] == [None] * 3


def test_handlers_that_hang_are_a_sign_before_they_end() -> None:
    run = Run().warm()
    run.now_s += 1
    run.limit.decide(run.now_s, [5.0] * 32)
    assert run.limit.allowed(run.now_s) == 16
    run.now_s += 1
    run.limit.decide(run.now_s, [0.001] * 3)  # just begun: nothing is known yet
    assert run.limit.allowed(run.now_s) == 16


def test_what_nobody_uses_is_not_raised() -> None:
    run = Run()
    run.window(0.01)
    assert [run.window(0.01, busy=1) for _ in range(30)][-1] < 5


def test_what_stays_slow_becomes_usual_in_the_end() -> None:
    run = Run().warm()
    numbers = [run.window(0.1) for _ in range(2_000)]
    assert numbers[60] == 1
    assert numbers[-1] == 32


@pytest.mark.parametrize(
    "bad",
    [{"least": 0}, {"least": 1.5}, {"tolerance": 1}, {"failures": 1}, {"failures": -0.1}, {"window_s": 0},
     {"window_s": 6}, {"tolerance": float("nan")}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidValueError):
        Adaptive(**bad)  # pyright: ignore[reportArgumentType]
