"""The first signal sets an event; what the next ones do, the caller chooses."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rmq._processes.signals import ignore, until_signal

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """What reaches the handlers that were there before."""
    seen: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: seen.append(number)) for number in SIGNALS}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_is_as_ever(first: signal.Signals, second: signal.Signals, heard: list[int]) -> None:
    with until_signal() as ended:
        assert not ended.is_set()
        signal.raise_signal(first)
        assert ended.wait(10)
        assert heard == []
        signal.raise_signal(second)
        assert heard == [second]


def test_a_second_signal_may_be_ignored(heard: list[int]) -> None:
    with until_signal(ignore) as ended:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert ended.wait(10)
    assert heard == []
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_a_second_signal_may_be_handled(heard: list[int]) -> None:
    mine: list[int] = []
    with until_signal(lambda number, frame: mine.append(number)) as ended:
        signal.raise_signal(signal.SIGTERM)
        assert ended.wait(10)
        signal.raise_signal(signal.SIGTERM)
    assert (mine, heard) == ([signal.SIGTERM], [])


@pytest.mark.timeout(30)
def test_a_signal_that_comes_while_the_event_is_waited_for_does_not_hang(heard: list[int]) -> None:
    with until_signal() as ended:
        with ended._cond:  # pyright: ignore[reportAttributeAccessIssue] - as `wait` holds it for a moment
            signal.raise_signal(signal.SIGTERM)
        assert ended.wait(10)
    assert heard == []


def test_what_is_started_after_the_first_signal_can_be_ended_by_one() -> None:
    with until_signal(ignore) as ended:
        signal.raise_signal(signal.SIGTERM)
        assert ended.wait(10)
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
            child.terminate()
            assert child.wait(30) == -signal.SIGTERM
