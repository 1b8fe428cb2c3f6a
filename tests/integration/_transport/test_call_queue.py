"""Calls that servers owe to one owner: silent servers, lost replies, forks, and owners that stop in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import redis

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import (
    ClientClosedError,
    DurabilityError,
    ForkedClientError,
    RedisUnavailableError,
    ReplyLostError,
    RmqError,
)
from tests.support.clients import texts
from tests.support.core import (
    NO_OWNER,
    Call,
    CallQueue,
    ClaimPart,
    Connections,
    EventLoop,
    GreenletTask,
    Outcomes,
    QueueBroker,
    parse_durability,
    parse_url,
    plain,
)
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.topologies import RedisClusterServers
from tests.support.waiting import LIMIT_S, wait_until

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Callable[..., Connections]]:
    """Makes connections, which are closed after the test."""
    made: list[Connections] = []

    def make(url: str, **options: Any) -> Connections:
        settings: dict[str, Any] = {"timeout_s": 3_600.0, "deadline_s": 3_600.0} | options
        made.append(Connections(parse_url(url), **settings))
        return made[-1]

    yield make
    for connections in made:
        connections.close()


def key() -> str:
    return f"q{next(_numbers)}"


def once(call: Call[Any]) -> Call[Any]:
    """A call that must not be repeated."""
    return call._replace(repeatable=False)


def blocked(name: str) -> Call[Any]:
    """A call whose reply comes once something is pushed to the key."""
    return once(plain("BLPOP", name, 0))


def all_completed(queue: CallQueue[str]) -> dict[str, Any]:
    completed: list[tuple[str, Any]] = []
    while queue.owed():
        completed += queue.completions()
    return dict(completed)


class Dropped(list[str]):
    """Tags of dropped calls."""


@pytest.fixture
def dropped() -> Dropped:
    return Dropped()


def test_calls_are_sent_together_and_complete_once(server: RedisServer, connect: Callable[..., Connections]) -> None:
    queue: CallQueue[str] = CallQueue(connect(server.url))
    assert queue.completions() == []
    name = key()
    for index in range(3):
        queue.submit(plain("RPUSH", name, index), f"tag{index}")
    assert list(queue.owed()) == ["tag0", "tag1", "tag2"]
    assert queue.completions(0.0) == [], "nothing was flushed"
    queue.flush()
    assert queue.completions() == [("tag0", 1), ("tag1", 2), ("tag2", 3)]
    assert (list(queue.owed()), queue.completions()) == ([], [])


def test_a_flush_may_wait_for_an_earlier_one_or_not(server: RedisServer, connect: Callable[..., Connections]) -> None:
    connections = connect(server.url)
    queue: CallQueue[str] = CallQueue(connections)
    name = key()
    queue.submit(blocked(name), "blocked")
    queue.flush()
    queue.submit(plain("PING"), "quick")
    queue.flush()
    assert queue.completions() == [("quick", b"PONG")], "a completion is not delayed by another call"
    assert (queue.completions(0.0), list(queue.owed())) == ([], ["blocked"])
    connections.command("RPUSH", name, "a")
    queue.submit(plain("PING"), "again")
    queue.flush()
    assert dict(queue.completions(0.25)) == {"blocked": [name.encode(), b"a"], "again": b"PONG"}, "one server: all"


def test_one_wait_confirms_the_calls_of_a_request(server: RedisServer, connect: Callable[..., Connections]) -> None:
    with Proxy(server.port) as proxy:
        durability = parse_durability("replicated", 1)
        connections = connect(proxy.url, timeout_s=1.0, durability=durability)
        connections.check()
        before = proxy.commands("WAIT")
        queue: CallQueue[int] = CallQueue(connections)
        for index in range(5):
            queue.submit(plain("SET", key(), index)._replace(durable="Repeating it is safe"), index)
        queue.flush()
        completed = queue.completions()
        assert [tag for tag, _ in completed] == [0, 1, 2, 3, 4]
        assert all(isinstance(result, DurabilityError) for _, result in completed)  # there is no replica
        assert proxy.commands("WAIT") == before + 1


def test_a_call_whose_reply_is_lost_is_repeated_or_completes_with_an_error(
    server: RedisServer, connect: Callable[..., Connections], dropped: Dropped
) -> None:
    with Proxy(server.port) as proxy:
        queue: CallQueue[str] = CallQueue(connect(proxy.url), dropped.append)
        safe, unsafe = key(), key()
        proxy.cut_before_reply(command="APPEND")
        queue.submit(plain("APPEND", safe, "x"), "safe")
        queue.submit(once(plain("APPEND", unsafe, "x")), "unsafe")
        queue.flush()
        results = all_completed(queue)
        assert results["safe"] == 2, "carried out, and repeated"
        assert isinstance(results["unsafe"], ReplyLostError)
        assert dropped == []


def test_without_an_answer_a_call_completes_at_its_deadline(connect: Callable[..., Connections]) -> None:
    with RedisServer() as server:
        connections = connect(server.url)
        connections.check()
    queue: CallQueue[str] = CallQueue(connections)
    queue.submit(plain("PING"), "a")
    queue.flush(deadline_s=0.05)
    ((tag, error),) = queue.completions()
    assert (tag, type(error)) == ("a", RedisUnavailableError)


class Silent:
    """A queue over several nodes, the second of which is frozen, and owes the reply to a call."""

    def __init__(self, cluster: RedisClusterServers, connections: Connections) -> None:
        self.victim, self.connections = cluster.servers[1], connections
        names = [name for name in (key() for _ in range(100)) if cluster.owner(name) is self.victim]
        self.frozen = names[0]
        self.healthy = next(name for name in (key() for _ in range(100)) if cluster.owner(name) is not self.victim)
        connections.run_many([plain("DEL", self.frozen), plain("DEL", self.healthy)])  # now there are connections
        self.dropped: list[str] = []
        self.queue: CallQueue[str] = CallQueue(connections, self.dropped.append)

    def __enter__(self) -> Silent:
        self.victim.pause()
        self.queue.submit(once(plain("APPEND", self.frozen, "a")), "silent")
        self.queue.submit(once(plain("APPEND", self.healthy, "a")), "loud")
        return self

    def __exit__(self, *_: object) -> None:
        self.victim.resume()


def test_a_call_whose_server_stays_silent_delays_no_other(
    cluster: RedisClusterServers, connect: Callable[..., Connections]
) -> None:
    with Silent(cluster, connect(cluster.url)) as silent:
        queue = silent.queue
        queue.flush()
        assert queue.completions(0.25) == [("loud", 1)]
        assert list(queue.owed()) == ["silent"]
        assert [*map(silent.connections.unresponsive, (silent.frozen, silent.healthy))] == [True, False]
        for length in range(2, 12):  # whoever waited each time for the silent server would wait for its timeout
            queue.submit(once(plain("APPEND", silent.healthy, "a")), f"loud{length}")
            queue.flush()
            assert queue.completions(3_600.0) == [(f"loud{length}", length)]
        assert queue.completions(3_600.0) == []
        queue.submit(once(plain("APPEND", silent.frozen, "b")), "not sent")
        queue.flush()
        ((tag, error),) = queue.completions(0.25)
        assert (tag, type(error)) == ("not sent", RedisUnavailableError)
    assert queue.completions() == [("silent", 1)], "late, and waited for by default"
    assert (list(queue.owed()), silent.dropped) == ([], [])
    wait_until(lambda: not silent.connections.unresponsive(silent.frozen))


def test_by_default_the_first_completion_ends_the_wait(
    cluster: RedisClusterServers, connect: Callable[..., Connections]
) -> None:
    with Silent(cluster, connect(cluster.url)) as silent:
        silent.queue.flush()
        assert silent.queue.completions() == [("loud", 1)]
        assert silent.queue.completions(0.0) == []
    assert silent.queue.completions() == [("silent", 1)]


class Kept:
    """Something that a call keeps, such as the token of its number."""


def test_a_call_is_not_kept_beyond_its_result(
    cluster: RedisClusterServers, connect: Callable[..., Connections]
) -> None:
    """The number of a numbered call stays open while the call exists, and only so many may be open."""
    with Silent(cluster, connect(cluster.url)) as silent:
        kept = Kept()
        number = weakref.ref(kept)
        silent.queue.submit(plain("GET", silent.healthy).then(lambda reply, kept=kept: (reply, bool(kept))), "kept")
        del kept
        silent.queue.flush()
        assert dict(silent.queue.completions(0.25)) == {"loud": 1, "kept": (b"a", True)}
        assert list(silent.queue.owed()) == ["silent"]
        assert number() is None
    all_completed(silent.queue)


class Interrupted(BaseException):
    """What a signal raises."""


def test_an_interrupted_wait_drops_what_is_owed_and_keeps_what_has_completed(
    cluster: RedisClusterServers, connect: Callable[..., Connections], monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = connect(cluster.url)
    wait_progress = connections.runtime.wait_progress

    def interrupted(wires: Any, timeout_s: float) -> None:
        if len(list(wires)) < 2:  # the reply of the other node has come
            raise Interrupted
        wait_progress(wires, timeout_s)

    with Silent(cluster, connections) as silent:
        queue = silent.queue
        queue.flush()
        monkeypatch.setattr(connections.runtime, "wait_progress", interrupted)
        with pytest.raises(Interrupted):
            queue.completions(3_600.0)
        monkeypatch.undo()
        assert silent.dropped == ["silent"]
        assert list(queue.owed()) == ["loud"]
        assert queue.completions() == [("loud", 1)]
        queue.submit(plain("APPEND", silent.healthy, "z"), "after")
        queue.flush()
        assert queue.completions() == [("after", 2)], "no reply of before is taken for it"


def test_a_closed_client_drops_what_is_submitted(
    server: RedisServer, connect: Callable[..., Connections], dropped: Dropped
) -> None:
    connections = connect(server.url)
    queue: CallQueue[str] = CallQueue(connections, dropped.append)
    queue.submit(plain("PING"), "before")
    queue.flush()
    connections.close()
    queue.submit(plain("PING"), "after")
    with pytest.raises(ClientClosedError):
        queue.flush()
    assert dropped == ["after"]
    assert queue.completions() == [("before", b"PONG")]


def test_a_fork_forgets_its_calls_and_does_not_end_those_of_the_parent(
    server: RedisServer, connect: Callable[..., Connections], dropped: Dropped
) -> None:
    connections = connect(server.url)
    queue: CallQueue[str] = CallQueue(connections, dropped.append)
    name = key()
    queue.submit(blocked(name), "parent's")
    queue.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        status = 1
        try:
            queue.completions(0.0)
        except ForkedClientError:
            status = 0 if (dropped, [*queue.owed()]) == (["parent's"], []) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    connections.command("RPUSH", name, "a")
    assert queue.completions() == [("parent's", [name.encode(), b"a"])]
    assert dropped == []


def test_a_loop_that_closes_leaves_no_connection(server: RedisServer, dropped: Dropped) -> None:
    name = key()
    queues: list[CallQueue[str]] = []

    def submit() -> None:
        connections = Connections(parse_url(server.url), timeout_s=3_600.0, runtime=EventLoop())
        queue: CallQueue[str] = CallQueue(connections, dropped.append)
        queue.submit(blocked(name), "owed")
        queue.flush()
        queues.append(queue)

    async def run() -> None:
        await GreenletTask(submit).drive()

    asyncio.run(run())
    queues.pop().close()  # its loop is closed
    assert dropped == ["owed"]
    with redis.Redis.from_url(server.url) as raw:
        wait_until(lambda: not any(client["cmd"] == "blpop" for client in raw.client_list()))


def test_a_cancelled_wait_drops_the_call_and_closes_its_connection(server: RedisServer, dropped: Dropped) -> None:
    name = key()

    async def run() -> None:
        def wait() -> None:
            connections = Connections(parse_url(server.url), timeout_s=3_600.0, runtime=EventLoop())
            queue: CallQueue[str] = CallQueue(connections, dropped.append)
            queue.submit(blocked(name), "owed")
            queue.flush()
            sent.set()
            queue.completions()

        sent = asyncio.Event()
        task = asyncio.create_task(GreenletTask(wait).drive())
        await sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))
    assert dropped == ["owed"]
    with redis.Redis.from_url(server.url) as raw:
        wait_until(lambda: not any(client["cmd"] == "blpop" for client in raw.client_list()))


def test_what_a_worker_claimed_and_did_not_take_is_redelivered(
    server: RedisServer, connect: Callable[..., Connections], dropped: Dropped
) -> None:
    """It stops in the middle of a claim: its connection is not used again, and the lease brings the message back."""
    topic = Topic(key(), TopicType.PRIORITY, slots=1, lease=timedelta(seconds=1))
    connections = connect(server.url)
    with RmqClient(server.url) as client, client.consumer(topic) as consumer:
        client.producer(topic).send(PriorityMessage("a", 1))
        queue: CallQueue[str] = CallQueue(connections, dropped.append)
        part = ClaimPart(0, 10, Outcomes(), NO_OWNER, 0)
        queue.submit(QueueBroker(connections, topic).claim_call((part,)), "claim")
        queue.flush()
        queue.close()
        assert (dropped, list(queue.owed())) == (["claim"], [])
        assert connections.command("ECHO", "b") == b"b", "the reply to the claim is not read by another call"
        found: list[str] = []
        wait_until(lambda: found.extend(texts(consumer.poll(10, timeout=0.1))) or found)
        assert found == ["a"]


def test_errors_of_replies_are_results(server: RedisServer, connect: Callable[..., Connections]) -> None:
    queue: CallQueue[str] = CallQueue(connect(server.url))
    name = key()
    queue.submit(plain("SET", name, "text"), "set")
    queue.submit(plain("INCR", name), "wrong")
    queue.submit(plain("GET", name), "get")
    queue.flush()
    results = dict(queue.completions())
    assert (results["set"], results["get"]) == (b"OK", b"text")
    assert isinstance(results["wrong"], RmqError)
