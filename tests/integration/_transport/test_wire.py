"""Connections to a real Redis, and to servers that do what a real one seldom does."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmq import PriorityMessage, RmqClient, TopicType
from rmq._io.backend import THREADS
from rmq._io.wire import NOTHING, ReplyError, Wire, WireBrokenError, wire_factory
from tests.conftest import MakeTopic
from tests.support.waiting import wait_until

Serve = Callable[..., Wire]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Make a wire to a server that has agreed to everything until then and now does what it is told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads: list[threading.Thread] = []
        wires: list[Wire] = []
        end = threading.Event()

        def make(act: Callable[[socket.socket], object], timeout_s: float = 20.0) -> Wire:
            connected = threading.Event()

            def run() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(0.05)
                    while not connected.is_set():
                        try:
                            connection.sendall(b"+OK\r\n" * connection.recv(65_536).count(b"*"))
                        except TimeoutError:
                            continue
                    connection.settimeout(None)
                    act(connection)
                    end.wait(30)

            threads.append(threading.Thread(target=run))
            threads[-1].start()
            wire = wire_factory(f"redis://127.0.0.1:{listener.getsockname()[1]}", timeout_s)()
            wires.append(wire)
            wire.connect()
            connected.set()
            return wire

        yield make
        end.set()
        for wire in wires:
            wire.close()
        for thread in threads:
            thread.join(10)


def test_connections_may_break_and_be_made_anew_without_end(redis_url: str) -> None:
    make = wire_factory(redis_url, 5.0)
    for _ in range(300):
        wire = make()
        wire.connect()
        assert wire.call("PING") == b"PONG"
        wire.close()


def test_a_dropped_wire_closes_its_connection_before_its_parts_are_collected(redis_url: str) -> None:
    """In a cycle, the socket might be collected before the connection that would close it, and warn."""
    wire = wire_factory(redis_url, 5.0)()
    wire.connect()
    connection: Any = getattr(wire, "_connection")  # noqa: B009  # kept, as by a cycle of which the wire is a part
    assert connection._sock is not None
    del wire
    assert connection._sock is None


def test_a_reply_may_come_in_pieces_and_several_at_once(serve: Serve) -> None:
    def act(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"*2\r\n$5\r\nhello\r\n:7\r\n":
            connection.sendall(bytes([byte]))
        connection.sendall(b"+a\r\n-ERR no\r\n$-1\r\n")

    wire = serve(act)
    assert wire.read() == [b"hello", 7]
    assert wire.read() == b"a"
    with pytest.raises(ReplyError, match="ERR no"):
        wire.read()
    assert wire.can_read()  # read from the socket already
    assert wire.read() is None
    assert not wire.can_read()


@pytest.mark.parametrize(
    ("sent", "trouble"),
    [
        (b"", "no reply in time"),
        (b"$5\r\nhel", "no reply in time"),
        (b"HTTP/1.1 400\r\n", "(?i)protocol error"),
    ],
)
def test_what_is_no_reply_breaks_the_wire(sent: bytes, trouble: str, serve: Serve) -> None:
    with pytest.raises(WireBrokenError, match=trouble):
        serve(lambda connection: connection.sendall(sent), 1.5).read()


def test_a_reply_that_is_cut_off_breaks_the_wire(serve: Serve) -> None:
    def act(connection: socket.socket) -> None:
        connection.sendall(b"$5\r\nhel")
        connection.shutdown(socket.SHUT_RDWR)

    with pytest.raises(WireBrokenError, match="closed"):
        serve(act).read()


def test_a_server_that_takes_nothing_does_not_hold_a_large_request_for_ever(serve: Serve) -> None:
    wire = serve(lambda connection: None, 1.5)
    with pytest.raises(WireBrokenError, match="in time"):
        wire.send_command("SET", "a", bytes(50_000_000))


def test_a_large_request_gets_through_a_slow_line(serve: Serve) -> None:
    """Each piece has the timeout, not the whole request."""
    size, timeout_s, begun = 30_000_000, 3.0, threading.Event()

    def act(connection: socket.socket) -> None:
        begun.set()
        left = size
        while left > 0:
            left -= len(connection.recv(min(left, 400_000)))
            time.sleep(0.1)
        connection.sendall(b"+OK\r\n")

    wire = serve(act, timeout_s)
    assert begun.wait(60)
    started_s = time.monotonic()
    wire.send(bytes(size))
    assert wire.read() == b"OK"
    assert time.monotonic() - started_s > 2 * timeout_s


def test_what_is_posted_does_not_wait_for_a_server_that_takes_nothing(serve: Serve) -> None:
    wire = serve(lambda connection: None, 3_600.0)
    wire.post(bytes(50_000_000))
    wire.push()
    assert wire.unsent
    assert wire.read(wait=False) is NOTHING


def test_what_is_posted_goes_out_as_the_server_takes_it(serve: Serve) -> None:
    begun = threading.Event()

    def act(connection: socket.socket) -> None:
        begun.set()
        left = 20_000_000
        while left > 0:
            left -= len(connection.recv(1_000_000))
        connection.sendall(b":7\r\n")

    wire = serve(act)
    assert begun.wait(10)
    wire.post(bytes(20_000_000))
    while (reply := wire.read(wait=False)) is NOTHING:
        THREADS.wait_progress([wire], 5.0)
        wire.push()
    assert (reply, wire.unsent) == (7, False)


def test_a_process_with_more_than_a_thousand_files_open_can_wait_for_replies(redis_url: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1_300:
        pytest.skip(f"the system allows this process {hard} open files, which `select` knows")
    if soft != resource.RLIM_INFINITY and soft < 1_300:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1_300, hard))
    files: list[int] = []
    try:
        while not files or files[-1] < 1_100:  # more than `select` knows
            files.append(os.open(os.devnull, os.O_RDONLY))
        wire = wire_factory(redis_url, 5.0)()
        wire.connect()
        assert wire.fileno() > 1_100
        assert not wire.can_read(0.01)
        wire.send_command("PING")
        assert wire.can_read(5.0)
        assert wire.read() == b"PONG"
        wire.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_poll_as_under_eventlet(redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("select.poll")
    topic = make_topic(TopicType.PRIORITY, slots=4)
    handled: list[str] = []
    with RmqClient(redis_url) as client:
        client.listener(topic)(lambda delivery: handled.append(delivery.text))
        client.producer(topic).send_many(PriorityMessage(f"m{number}", 1, body=b"x" * 100_000) for number in range(40))
        client.start()
        wait_until(lambda: len(handled) == 40)
