"""What the tests against one real Redis share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmq import ImmediateRetry, RmqClient, Topic, TopicType
from rmq.testing import Server
from tests.conftest import MakeTopic
from tests.support.sides import SIDES, Side, side_of
from tests.support.slots import forget_topic
from tests.support.streams import check_stream
from tests.support.topologies import RedisClusterServers

MakeStream = Callable[..., Topic]

BOTH_SIDES = {
    f"test_{part}"
    for part in (
        "order producer consumer streams resuming delayed_queue dead control deletion faults merged_deliveries stop "
        "retry_after flow flow_owned listener"
    ).split()
}
"""Modules whose tests run over both sides."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of some modules over the asyncio side, too."""
    if "side" in metafunc.fixturenames and metafunc.definition.path.stem in BOTH_SIDES:
        metafunc.parametrize("side", SIDES, indirect=True)


@pytest.fixture
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """One side of the library."""
    with side_of(getattr(request, "param", "threads")) as side:
        yield side


@pytest.fixture
def client(redis_url: str, side: Side) -> Iterator[RmqClient]:
    """A client of the shared Redis."""
    with side.client(redis_url, deadline_s=10.0) as client:
        yield client


@pytest.fixture
def make_stream(make_topic: MakeTopic, client: RmqClient, redis_client: Any) -> Iterator[MakeStream]:
    """Make stream topics; after the test each is checked and deleted."""
    made: list[Topic] = []

    def make(**definition: object) -> Topic:
        made.append(make_topic(TopicType.STREAM, checked=False, **{"retry": ImmediateRetry(), **definition}))
        return made[-1]

    yield make
    try:
        for topic in made:
            check_stream(client, redis_client, topic)
    finally:
        for topic in made:
            forget_topic(redis_client, topic.name)


@pytest.fixture
def frequent_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers say what they do ten times a second, and not every five seconds."""
    monkeypatch.setattr("rmq._listening.listener_set.BEAT_S", 0.1)


@pytest.fixture(scope="session")
def cluster_servers() -> Iterator[RedisClusterServers]:
    with RedisClusterServers(3) as servers:
        yield servers


@pytest.fixture(scope="module")
def cluster(cluster_servers: RedisClusterServers) -> RedisClusterServers:
    """Three masters without replicas, which are empty, and the same for all modules.

    Tests may move hash slots and freeze a node for a while, and must not kill: make a `RedisClusterServers` for that.
    """
    for server in cluster_servers.servers:
        cluster_servers.ask(server, "FLUSHALL")
    return cluster_servers


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of `rmq.testing`, whose clock a test can stop."""
    with Server() as server:
        yield server


@pytest.fixture
def rmq(server: Server) -> Iterator[RmqClient]:
    """A client of that server, which is empty."""
    server.flush()
    with server.client() as client:
        yield client
