"""A real master with a replica and Sentinels: everything works there, through failovers."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from itertools import count

import pytest

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import RedisUnavailableError
from tests.support.clients import stats_of
from tests.support.exercise import exercise, wake_times
from tests.support.sides import SIDES, Side
from tests.support.topologies import SERVICE, SentinelServers
from tests.support.traffic import SECOND, Traffic
from tests.support.waiting import wait_until

_numbers = count(1)


@pytest.fixture(scope="module")
def servers() -> Iterator[SentinelServers]:
    """A master, a replica, three Sentinels. Tests may fail over, and put everything right again."""
    with SentinelServers() as servers:
        yield servers


@pytest.fixture
def topic() -> Topic:
    return Topic(f"sentinel{os.getpid()}-{next(_numbers)}", TopicType.PRIORITY, slots=4, lease=3 * SECOND)


def make_client(servers: SentinelServers, **options: object) -> RmqClient:
    return RmqClient(servers.url, timeout_s=1.0, **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("side", SIDES, indirect=True)
def test_everything_works(servers: SentinelServers, side: Side) -> None:
    with side.client(servers.url, timeout_s=1.0) as client:
        exercise(client, f"all{next(_numbers)}", slots=4)


def test_an_idle_consumer_wakes_at_once(servers: SentinelServers) -> None:
    with make_client(servers) as client:
        assert wake_times(client, f"wake{next(_numbers)}", slots=8)[-1] < 0.5


def test_a_sentinel_that_is_down_is_passed_over(servers: SentinelServers, topic: Topic) -> None:
    host = "127.0.0.1:1"
    with RmqClient(servers.url.replace("://", f"://{host},"), timeout_s=1.0) as client:
        assert client.producer(topic).send(PriorityMessage("a", 100)).new == 1


def test_a_service_that_nobody_knows(servers: SentinelServers) -> None:
    with RmqClient(servers.url.replace(SERVICE, "other"), timeout_s=1.0, deadline_s=0.5) as client:
        with pytest.raises(RedisUnavailableError, match="watches no master named other"):
            client.topics()


def test_the_master_dies_while_messages_flow(
    servers: SentinelServers, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """Pitfalls 7, 20, 24, 27: both sides turn to the new master, and nothing that was confirmed is lost."""
    caplog.set_level(logging.ERROR, "rmq")
    with Traffic(lambda: make_client(servers, durability="replicated"), topic) as traffic:
        traffic.wait_for(200)
        victim = servers.master
        victim.kill()
        started_s = time.monotonic()
        wait_until(lambda: servers.master is not victim, 20, "failover")
        failover_s = time.monotonic() - started_s
        victim.start()  # comes back as a replica, without which nothing would be confirmed
        accepted = len(traffic.accepted)
        wait_until(lambda: len(traffic.accepted) > accepted + 100, 20, "accepted again")
        traffic.wait_for(100)
        lost = traffic.settle()
        stats_of(traffic.handling, topic)
    print(
        f"failover {failover_s:.1f} s, slowest send {traffic.slowest_send_s:.1f} s, longest silence of the handlers "
        f"{traffic.longest_gap_s:.1f} s, accepted {len(traffic.accepted)}, lost {len(lost)}, delivered twice "
        f"{sum(n > 1 for n in traffic.handled.values())}, errors {len(traffic.errors)}"
    )
    assert lost == set()


def test_an_idle_consumer_survives_a_failover(servers: SentinelServers, topic: Topic) -> None:
    """Pitfall 27: it was waiting on the old master; it wakes for a message on the new one."""
    with make_client(servers) as client, client.consumer(topic) as consumer:
        assert consumer.poll(timeout=0.5) == []
        old = servers.master
        wait_until(lambda: _failed_over(servers), 20, "a failover on request")
        wait_until(lambda: servers.master is not old, 20, "the new master")
        client.producer(topic).send(PriorityMessage("a", 100))
        [delivery] = consumer.poll(timeout=10)
        assert delivery.text == "a"


def _failed_over(servers: SentinelServers) -> bool:
    """Ask for a failover; refused while one goes on or the replica is not fit yet."""
    with servers.sentinels[0].connect() as client:
        try:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE)
        except Exception:
            time.sleep(0.2)
            return False
    return True
