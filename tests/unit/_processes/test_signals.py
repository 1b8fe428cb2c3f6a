"""The first signal sets an event; what the next ones do, the caller chooses."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rmq._processes.signals import handlers_put_back, ignore, until_signal

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


def test_a_forked_process_has_the_earlier_handlers_and_no_wake_up_descriptor(heard: list[int]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, until_signal() as ended, until_signal(ignore):
        ours.setblocking(False)
        theirs.setblocking(False)
        signal.set_wakeup_fd(ours.fileno())
        try:
            child = os.fork()
            if not child:
                try:
                    signal.raise_signal(signal.SIGTERM)
                    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
                    os._exit(0 if heard == [signal.SIGTERM] and not blocked else 3)
                finally:
                    os._exit(4)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert signal.set_wakeup_fd(-1) == ours.fileno()
        finally:
            signal.set_wakeup_fd(-1)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        assert not ended.is_set()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


async def _run_after(loop_handler: bool) -> object:
    if loop_handler:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, int)
    with handlers_put_back() as before:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    return before[signal.SIGTERM]


@pytest.mark.parametrize("loop_handler", [False, True])
@pytest.mark.usefixtures("heard")  # which puts back what other tests have left in this process
def test_half_a_handler_of_an_event_loop_is_not_put_back(loop_handler: bool) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert asyncio.run(_run_after(loop_handler)) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
