"""Connections of a node that others share, without a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rmq._io.backend import THREADS, Event, Runtime
from rmq._io.wire import WireTimeoutError
from rmq._servers.nodes import Node
from rmq._servers.urls import Address


class WireStub:
    """A connection that says nothing."""

    def __init__(self) -> None:
        self.connected = False

    def connect(self) -> None:
        self.connected = True

    def can_read(self) -> bool:
        return False

    def call(self, *args: object) -> bytes:
        return b"PONG"

    def close(self) -> None:
        self.connected = False


class Hurried(Runtime):
    """Lets another thread go first as soon as a connection was made."""

    def __init__(self) -> None:
        self.others_turn: Callable[[], object] = lambda: None

    def event(self) -> Event:
        turn, made = self.others_turn, threading.Event()

        class Made(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                found = made.wait(timeout)
                turn()
                return found

            def set(self) -> None:
                made.set()

        return Made()


def node(runtime: Runtime, new_wire: Callable[[], Any] = WireStub) -> Node:
    others: set[Node] = set()
    return Node(Address("h", 1), "h:1", new_wire, lambda wire: frozenset(), lambda wire: None, runtime, others)


def test_a_connection_that_was_made_in_time_is_not_lost_to_another_thread() -> None:
    runtime = Hurried()
    shared = node(runtime)
    taken: list[Any] = []
    runtime.others_turn = lambda: taken.append(shared.checkout())
    wire: Any = shared.checkout(5.0)
    assert wire.connected
    assert wire not in taken
    assert not shared.unresponsive


@pytest.mark.parametrize("in_time", [True, False])
def test_a_caller_that_is_interrupted_leaves_the_connection_for_the_next_one(in_time: bool) -> None:
    runtime, may_connect = Hurried(), threading.Event()

    class Slow(WireStub):
        def connect(self) -> None:
            may_connect.wait(60)
            super().connect()

    def interrupt() -> None:
        raise KeyboardInterrupt

    shared = node(runtime, Slow)
    runtime.others_turn = interrupt
    if in_time:
        may_connect.set()
    with pytest.raises(KeyboardInterrupt):
        shared.checkout(60.0 if in_time else 0.0)
    may_connect.set()
    for thread in threading.enumerate():
        if thread.name == "rmq-connect-h:1":
            thread.join(60)
    assert len(shared._idle) == 1  # pyright: ignore[reportPrivateUsage]


def test_a_connection_that_comes_late_is_there_for_the_next_one() -> None:
    may_connect, made = threading.Event(), list[WireStub]()

    class Slow(WireStub):
        def connect(self) -> None:
            may_connect.wait(10)
            super().connect()
            made.append(self)

    shared = node(THREADS, Slow)
    with pytest.raises(WireTimeoutError, match=r"no connection within 0\.01 s"):
        shared.checkout(0.01)
    assert shared.unresponsive
    shared.close()  # so that the try that is to end the silence ends
    may_connect.set()
    for thread in threading.enumerate():
        if thread.name in ("rmq-connect-h:1", "rmq-try-h:1"):
            thread.join(10)
    assert made
    assert not any(each.connected for each in made), "closed when they are given back, since the node is"
