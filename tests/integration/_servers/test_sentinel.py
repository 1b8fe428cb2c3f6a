"""A real master with a replica and Sentinels: everything works there, through failovers."""

from __future__ import annotations

import logging
import os
import socketserver
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any

import pytest
from redis.exceptions import ResponseError

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import RedisUnavailableError
from tests.support.clients import stats_of
from tests.support.exercise import exercise, wake
from tests.support.servers import RedisServer, free_port
from tests.support.sides import SIDES, Side
from tests.support.topologies import NEVER_MS, SERVICE, SentinelServers
from tests.support.traffic import SECOND, Traffic
from tests.support.waiting import wait_until

_numbers = count(1)

FAILOVER_S = 120.0
"""A Sentinel rests for 30 s after a pause of 2 s, and repeats a failed election after twice the failover timeout."""


@pytest.fixture(scope="module")
def servers() -> Iterator[SentinelServers]:
    """A master, a replica, three Sentinels. Tests may fail over, and put everything right again."""
    with SentinelServers() as servers:
        yield servers


@pytest.fixture
def topic() -> Topic:
    return Topic(f"sentinel{os.getpid()}-{next(_numbers)}", TopicType.PRIORITY, slots=4, lease=3 * SECOND)


def make_client(servers: SentinelServers, **options: object) -> RmqClient:
    return RmqClient(servers.url, **{"timeout_s": 20.0, **options})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("side", SIDES, indirect=True)
def test_everything_works(servers: SentinelServers, side: Side) -> None:
    with side.client(servers.url, timeout_s=20.0) as client:
        exercise(client, f"all{next(_numbers)}", slots=4)


def test_hints_wake_an_idle_consumer(servers: SentinelServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._claiming.consumer.LOOK_EVERY_S", 3_600.0)
    with make_client(servers) as client:
        wake(client, f"wake{next(_numbers)}", slots=8)


def test_a_sentinel_that_is_down_is_passed_over(servers: SentinelServers, topic: Topic) -> None:
    host = "127.0.0.1:1"
    with RmqClient(servers.url.replace("://", f"://{host},"), timeout_s=1.0) as client:
        assert client.producer(topic).send(PriorityMessage("a", 100)).new == 1


@pytest.fixture
def stale() -> Iterator[RedisServer]:
    """A Sentinel that was cut off from the others, and names a master that is dead."""
    watch = (f"sentinel monitor {SERVICE} 127.0.0.1 {free_port()} 2",)
    with RedisServer(watch, arguments=("--sentinel",)) as sentinel:
        yield sentinel


def behind(servers: SentinelServers, first: list[RedisServer]) -> str:
    hosts = "".join(f"127.0.0.1:{each.port}," for each in first)
    return servers.url.replace("://", f"://{hosts}")


@pytest.mark.parametrize("side", SIDES, indirect=True)
def test_a_sentinel_that_names_a_dead_master_is_passed_over(
    servers: SentinelServers, stale: RedisServer, topic: Topic, side: Side
) -> None:
    with side.client(behind(servers, [stale]), timeout_s=1.0, deadline_s=5.0) as client:
        producer = client.producer(topic)
        assert producer.send(PriorityMessage("a", 100)).new == 1
        assert producer.send(PriorityMessage("b", 100)).new == 1


def test_a_sentinel_that_names_a_replica_is_passed_over(topic: Topic) -> None:
    with RedisServer() as master, RedisServer((f"replicaof 127.0.0.1 {master.port}",)) as replica:
        watched = [f"sentinel monitor {SERVICE} 127.0.0.1 {server.port} 2" for server in (replica, master)]
        with (
            RedisServer((watched[0],), arguments=("--sentinel",)) as stale,
            RedisServer((watched[1],), arguments=("--sentinel",)) as right,
        ):
            url = f"redis+sentinel://127.0.0.1:{stale.port},127.0.0.1:{right.port}/{SERVICE}"
            with RmqClient(url, timeout_s=1.0, deadline_s=5.0) as client:
                assert client.producer(topic).send(PriorityMessage("a", 100)).new == 1


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_master_of_the_newest_failover_counts_in_whatever_order_sentinels_stand(newest_first: bool) -> None:
    """A Sentinel that was cut off may name a master of long ago that still lives."""
    with RedisServer() as old, RedisServer() as new:
        watched = [
            (f"sentinel monitor {SERVICE} 127.0.0.1 {server.port} 2", f"sentinel config-epoch {SERVICE} {epoch}")
            for server, epoch in ((old, 3), (old, 3), (new, 4))
        ]
        with ExitStack() as stack:
            sentinels = [stack.enter_context(RedisServer(each, arguments=("--sentinel",))) for each in watched]
            hosts = [f"127.0.0.1:{each.port}" for each in (reversed(sentinels) if newest_first else sentinels)]
            with RmqClient(f"redis+sentinel://{','.join(hosts)}/{SERVICE}", deadline_s=30.0) as client:
                assert client.producer(Topic("a", TopicType.PRIORITY)).send(PriorityMessage("a", 100)).new == 1
            with old.connect() as wrong, new.connect() as right:
                assert (wrong.dbsize(), right.zcard("a_0")) == (0, 1)


@pytest.mark.parametrize("replicas", [1, 2])
def test_unequal_priorities_of_replicas_are_warned_of_once(replicas: int, caplog: pytest.LogCaptureFixture) -> None:
    """Sentinel promotes the replica with the lowest priority, and not the one that has most."""

    def seen(sentinel: RedisServer) -> set[int]:
        with sentinel.connect() as client:
            found: Any = client.sentinel_slaves(SERVICE)
            return {int(each["slave-priority"]) for each in found}

    with SentinelServers(replicas=2, sentinels=1) as servers:
        options: dict[str, Any] = {"durability": "replicated", "replicas": replicas, "timeout_s": 30.0}
        with RmqClient(servers.url, **options) as client:
            client.topics()
        assert "replica-priority" not in caplog.text
        servers.servers[1].config_set("replica-priority", 10)
        wait_until(lambda: seen(servers.sentinels[0]) == {10, 100}, 60.0)
        with RmqClient(servers.url, **options) as client:
            for _ in range(3):
                client._connections.router.invalidate()  # pyright: ignore[reportPrivateUsage]
                client.topics()
    warnings = [each.getMessage() for each in caplog.records if "replica-priority" in each.getMessage()]
    text = "durability replicated waits for 1 of 2 replicas of queue, whose replica-priority values differ (10, 100)"
    assert [each.partition(":")[0] for each in warnings] == ([text] if replicas == 1 else [])


@contextmanager
def saying(reply: bytes) -> Generator[int]:
    """A server that answers every command with the same bytes; its port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while data := self.request.recv(4_096):
                    self.request.sendall(reply if b"GET-MASTER" in data else b"+OK\r\n" * data.count(b"*"))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "reply",
    [
        b":1\r\n",
        b"*1\r\n$1\r\na\r\n",
        b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"*2\r\n$4\r\na..b\r\n$4\r\n6379\r\n",
        b"*2\r\n$5\r\nh/?x=\r\n$4\r\n6379\r\n",
        b"*2\r\n$9\r\n127.0.0.1\r\n$5\r\n99999\r\n",
    ],
)
def test_a_sentinel_that_names_nonsense_is_passed_over(servers: SentinelServers, topic: Topic, reply: bytes) -> None:
    with saying(reply) as port:
        url = servers.url.replace("://", f"://127.0.0.1:{port},")
        with RmqClient(url, timeout_s=1.0, deadline_s=5.0) as client:
            assert client.producer(topic).send(PriorityMessage("a", 100)).new == 1


def test_frozen_sentinels_hold_nobody_for_long(
    servers: SentinelServers, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is waited for a moment only, and at length only if no other Sentinel answers."""
    monkeypatch.setattr("rmq._servers.sentinel.QUICK_S", 1.5)
    monkeypatch.setattr("rmq._servers.sentinel.CONNECT_S", 3_600.0)
    frozen = [RedisServer((f"sentinel monitor {SERVICE} 127.0.0.1 1 2",), arguments=("--sentinel",)) for _ in range(3)]
    try:
        for sentinel in frozen:
            sentinel.pause()
        with RmqClient(behind(servers, frozen), timeout_s=3_600.0, deadline_s=3_600.0) as client:
            assert client.producer(topic).send(PriorityMessage("a", 100)).new == 1
    finally:
        for sentinel in frozen:
            sentinel.resume()
            sentinel.stop()


def test_a_service_that_nobody_knows(servers: SentinelServers) -> None:
    with RmqClient(servers.url.replace(SERVICE, "other"), timeout_s=1.0, deadline_s=0.5) as client:
        with pytest.raises(RedisUnavailableError, match="watches no master named other"):
            client.topics()


@pytest.mark.timeout(240)
def test_the_master_dies_while_messages_flow(
    servers: SentinelServers, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """Pitfalls 7, 20, 24, 27: both sides turn to the new master, and nothing that was confirmed is lost."""
    caplog.set_level(logging.ERROR, "rmq")
    with Traffic(lambda: make_client(servers, durability="replicated", timeout_s=1.0), topic) as traffic:
        traffic.wait_for(200)
        victim = servers.master
        victim.kill()
        servers.take_for_dead_after()
        started_s = time.monotonic()
        wait_until(lambda: servers.master is not victim, FAILOVER_S, "failover")
        failover_s = time.monotonic() - started_s
        servers.take_for_dead_after(NEVER_MS)
        victim.start()  # comes back as a replica, without which nothing would be confirmed
        accepted = len(traffic.accepted)
        wait_until(lambda: len(traffic.accepted) > accepted + 100, message="accepted again")
        traffic.wait_for(100)
        lost = traffic.settle()
        stats_of(traffic.handling, topic)
    print(
        f"failover {failover_s:.1f} s, slowest send {traffic.slowest_send_s:.1f} s, longest silence of the handlers "
        f"{traffic.longest_gap_s:.1f} s, accepted {len(traffic.accepted)}, lost {len(lost)}, delivered twice "
        f"{sum(n > 1 for n in traffic.handled.values())}, errors {len(traffic.errors)}"
    )
    assert lost == set()


@pytest.mark.timeout(240)
def test_an_idle_consumer_survives_a_failover(servers: SentinelServers, topic: Topic) -> None:
    """Pitfall 27: it was waiting on the old master; it wakes for a message on the new one."""
    with make_client(servers) as client, client.consumer(topic) as consumer:
        assert consumer.poll(timeout=0.5) == []
        old = servers.master
        wait_until(lambda: _failed_over(servers, old), FAILOVER_S, "a failover on request")
        client.producer(topic).send(PriorityMessage("a", 100))
        [delivery] = consumer.poll(timeout=50)
        assert delivery.text == "a"


def _failed_over(servers: SentinelServers, old: RedisServer) -> bool:
    """Return whether there is a new master; else ask for one.

    A Sentinel refuses while a failover goes on, or the replica is not fit yet. It gives up what it has begun where the
    replica does not answer within the failover timeout (3 s), or where it itself rests: so one request is not enough.
    """
    if servers.master is not old:
        return True
    with servers.sentinels[0].connect() as client, suppress(ResponseError):
        client.execute_command("SENTINEL", "FAILOVER", SERVICE)
    return False
