"""Finding, steering and limits on a Redis Cluster, whose nodes each hold a part of a topic."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rmq import (
    ControlResult,
    ImmediateRetry,
    PriorityMessage,
    RmqClient,
    StreamMessage,
    Topic,
    TopicType,
    WhenFull,
)
from rmq.errors import TopicDeletedError
from tests.support.clients import run_until
from tests.support.topologies import RedisClusterServers
from tests.support.waiting import wait_until


@pytest.fixture
def client(cluster: RedisClusterServers) -> Iterator[RmqClient]:
    with RmqClient(cluster.url) as client:
        yield client


def test_find_search_and_steer(client: RmqClient) -> None:
    topic = Topic(f"steer{os.getpid()}", TopicType.PRIORITY, slots=16, max_retries=0, retry=ImmediateRetry())
    client.producer(topic).send_many(PriorityMessage(f"item:{n}", 100 + n, body="b") for n in range(300))
    view, control = client.inspect(topic), client.control(topic, actor="alice")
    assert view.find("item:7").stored is not None
    assert control.promote("item:7") is ControlResult.DONE
    assert control.reprioritise("item:8", 2_000) is ControlResult.DONE
    assert control.cancel("item:9") is ControlResult.DONE
    assert view.find("item:9", everywhere=True).gone
    found: set[str] = set()
    cursor = None
    while True:
        page = view.search(prefix="item:", cursor=cursor)
        found |= {each.text for each in page.messages}
        cursor = page.cursor
        if cursor is None:
            break
    assert len(found) == 299
    assert control.pause() == 16
    with client.consumer(topic) as consumer:
        assert consumer.poll(10, timeout=0.2) == []
        assert control.resume() == 16
        for delivery in consumer.poll(40, timeout=50):
            delivery.nack(error=ValueError("no"))
    wait_until(lambda: view.stats().dead > 0)
    reasons = view.dead_reasons()
    assert (reasons.exact, set(reasons.counts)) == (True, {"ValueError"})
    dead = view.search(places=["dead"]).messages[0]
    control.redrive(dead.content)
    assert control.purge("store", confirm=topic.name) > 0
    stats = view.stats()
    assert (stats.backlog, stats.unaccounted) == (0, 0)
    assert {line.action for line in view.audit()} == {
        "promote", "reprioritise", "cancel", "pause", "resume", "redrive", "purge",
    }  # fmt: skip


def test_drop_and_time_to_live(client: RmqClient) -> None:
    topic = Topic(
        f"limits{os.getpid()}", TopicType.PRIORITY, slots=8, max_backlog=80, when_full=WhenFull.DROP, ttl="1ms"
    )
    assert client.producer(topic).send_many(PriorityMessage(f"m{n}", 100 + n) for n in range(800)).dropped == 720
    view = client.inspect(topic)
    with client.consumer(topic) as consumer:
        wait_until(lambda: consumer.poll(100, timeout=0) == [] and view.stats().backlog == 0)
    stats = view.stats()
    assert (stats.total("dropped"), stats.unaccounted) == (720, 0)


def test_workers(client: RmqClient, cluster: RedisClusterServers) -> None:
    topic = Topic(f"census{os.getpid()}", TopicType.PRIORITY, slots=4)

    @client.listener(topic)
    def handle(delivery: object) -> None:
        del delivery

    with RmqClient(cluster.url) as reader:
        run_until(client, lambda: len(reader.workers()) == 1)
        assert reader.workers() == []


@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.STREAM])
def test_a_topic_is_deleted_on_all_nodes(client: RmqClient, cluster: RedisClusterServers, kind: TopicType) -> None:
    topic = Topic(f"gone{os.getpid()}{kind.name}", kind, slots=16)
    messages = [
        PriorityMessage(f"item:{n}", 100) if kind is TopicType.PRIORITY else StreamMessage(f"item:{n}")
        for n in range(99)
    ]
    with RmqClient(cluster.url) as living:
        producer = living.producer(topic)
        producer.send_many(messages)
        if kind is TopicType.STREAM:
            client.stream(topic).add_group("billing", "all")
        assert client.delete_topic(topic.name, force=True).messages == 99
        for message in messages[:20]:
            with pytest.raises(TopicDeletedError):
                producer.send(message)
        assert client.producer(topic).send_many(messages).new == 99
        producer.send(messages[0])
