"""The dashboard and the history on a Redis Cluster: what they read lies on several servers."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from tests.support.dashboard import served
from tests.support.topologies import RedisClusterServers

TOPIC = Topic("spread", TopicType.PRIORITY, slots=32)


@pytest.fixture
def client(cluster: RedisClusterServers) -> Iterator[RmqClient]:
    with RmqClient(cluster.url) as client:
        yield client


def test_history_and_pages(client: RmqClient) -> None:
    client.producer(TOPIC).send_many(PriorityMessage(f"m{i}", 100) for i in range(300))
    now_ms, minute = client.history().take_turn()
    assert minute is not None
    assert minute == now_ms // 60_000
    assert client.history().take_turn()[1] is None
    client.history().record(minute)
    assert [each.backlog for each in client.history().last("spread")] == [300]
    assert client.history().last()[0].backlog == 300
    with served(client) as address, httpx.Client(base_url=address, timeout=60, trust_env=False) as browser:
        for path in (
            "/", "/topic/spread", "/topic/spread/slot/31", "/workers", "/search?topic=spread&pattern=m1*",
            "/message?topic=spread&content=m7", "/dead?topic=spread", "/audit?topic=spread",
        ):  # fmt: skip
            assert browser.get(path).status_code == 200, path
        assert "300" in browser.get("/").text
        assert "In the backlog" in browser.get("/message?topic=spread&content=m7").text
