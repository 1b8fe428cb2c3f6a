"""What each durability level loses when a node dies, and what it says when it can't keep its promise."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from rmq import (
    DelayedQueue,
    Fixed,
    Merge,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    StreamMessage,
    Sum,
    Topic,
    TopicType,
)
from rmq.errors import DurabilityError
from tests.support.clients import stats_of
from tests.support.core import TOPICS_KEY
from tests.support.link import LaggingLink
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

_numbers = count(1)


@pytest.fixture
def topic() -> Topic:
    return Topic(f"durable{os.getpid()}-{next(_numbers)}", TopicType.PRIORITY, slots=4)


class Pair:
    """A master and a replica without Sentinels."""

    def __init__(self) -> None:
        self.master = RedisServer(("appendonly yes", "repl-diskless-sync yes", "repl-diskless-sync-delay 0"))
        self.replica = RedisServer((f"replicaof 127.0.0.1 {self.master.port}", "appendonly yes"))
        wait_until(self.in_step, message="the replica to follow")

    def in_step(self) -> bool:
        with self.replica.connect() as client:
            return client.info("replication")["master_link_status"] == "up"

    def stop(self) -> None:
        self.master.stop()
        self.replica.stop()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.stop()


def test_replicated_waits_for_the_replica(pair: Pair, topic: Topic) -> None:
    with RmqClient(pair.master.url, durability="replicated", timeout_s=10) as client:
        producer = client.producer(topic)
        assert producer.send(PriorityMessage("a", 100)).new == 1
        assert producer.send_many(PriorityMessage(f"m{i}", 100) for i in range(3_000)).new == 3_000
        with pair.replica.connect() as replica:
            assert sum(replica.zcard(f"{topic.name}_{slot}") for slot in range(4)) == 3_001  # pyright: ignore


def test_what_is_not_confirmed_is_told_and_stored(pair: Pair, topic: Topic) -> None:
    with RmqClient(pair.master.url, durability="replicated", timeout_s=10) as client:
        client.producer(topic).send(PriorityMessage("a", 100))
    with RmqClient(pair.master.url, durability="replicated", timeout_s=0.6) as client:
        producer = client.producer(topic)
        pair.replica.pause()
        message = PriorityMessage("b", 100)
        with pytest.raises(DurabilityError, match="stored on the master, but not confirmed: 0 of 1 replicas") as caught:
            producer.send(message)
        assert (caught.value.stored, caught.value.unknown, caught.value.not_stored) == (0, (message,), ())
        with pytest.raises(DurabilityError) as caught:
            producer.send_many(PriorityMessage(f"m{i}", 100) for i in range(100))
        assert len(caught.value.unknown) == 100
        pair.replica.resume()
        wait_until(pair.in_step)
    with RmqClient(pair.master.url, durability="replicated", timeout_s=10) as client:
        assert client.producer(topic).send(message).merged == 1
        with client.consumer(topic) as consumer:  # consuming waits for nobody
            assert len(consumer.poll(1_000)) == 102
        stats_of(client, topic)


def test_the_error_says_what_comes_of_sending_again(pair: Pair, topic: Topic) -> None:
    """Each of these acts counts twice where it is simply repeated, or does not, and the text says so."""
    sums = Topic(f"{topic.name}-sums", TopicType.RANGE_MERGE, merge=Merge(Sum(), window=Fixed("1m")))
    log = Topic(f"{topic.name}-log", TopicType.STREAM)
    with RmqClient(pair.master.url, durability="replicated", timeout_s=10) as client:
        for each in (topic, sums, log):
            client.producer(each)
        with DelayedQueue(client, f"{topic.name}-later"):
            pass
    pair.replica.pause()
    acts: dict[str, Callable[[RmqClient], object]] = {
        "Sending it again is safe: it merges": lambda client: client.producer(topic).send(PriorityMessage("a", 100)),
        "counts each message once more, unless both calls have": lambda client: client.producer(sums).send(
            RangeMergeMessage("a", body=5)
        ),
        "a second time; those with `id=` are not": lambda client: client.producer(log).send(StreamMessage("a")),
        "a second element, unless the queue has merge=True": lambda client: DelayedQueue(
            client, f"{topic.name}-later"
        ).offer("a", "1m"),
        "Repeating it is safe": lambda client: client.control(topic).cancel("a"),
        "deletes messages that were sent in the meantime": lambda client: client.control(sums).purge(
            "store", confirm=sums.name
        ),
    }
    with RmqClient(pair.master.url, durability="replicated", timeout_s=0.6) as client:
        for said, act in acts.items():
            with pytest.raises(DurabilityError, match=re.escape(said)) as caught:
                act(client)
            if "element" in said:
                assert caught.value.unknown == (("a", "1m"),), "what the user has offered"
    pair.replica.resume()


def test_a_topic_is_registered_and_changed_as_safely_as_its_messages(pair: Pair, topic: Topic) -> None:
    pair.replica.pause()
    for _ in range(2):  # the second finds it registered, and not confirmed
        with RmqClient(pair.master.url, durability="replicated", timeout_s=0.6) as client:
            with pytest.raises(DurabilityError, match="is on the master, but not confirmed: 0 of 1 replicas"):
                client.producer(topic)
    with RmqClient(pair.master.url) as client:  # who asks for no more than the master does not wait
        assert client.producer(topic).topic == topic
    pair.replica.resume()
    wait_until(pair.in_step)
    with RmqClient(pair.master.url, durability="replicated", timeout_s=10) as client, pair.replica.connect() as replica:
        assert client.producer(topic).topic == topic
        assert replica.hexists(TOPICS_KEY, topic.name)
        text = pair.master.connect().hget(TOPICS_KEY, topic.name)
        assert isinstance(text, bytes)
        assert Topic.from_json(text) == topic
        assert b"unconfirmed" not in text
    pair.replica.pause()
    with RmqClient(pair.master.url, durability="replicated", timeout_s=0.6) as client:
        assert client.producer(topic).topic == topic  # confirmed once and for all
        for _ in range(2):
            with pytest.raises(DurabilityError, match="is on the master, but not confirmed: 0 of 1 replicas"):
                client.change_topic(topic.changed(max_retries=3))
    pair.replica.resume()
    wait_until(pair.in_step)
    with RmqClient(pair.master.url, durability="replicated", timeout_s=10) as client:
        assert client.change_topic(topic.changed(max_retries=3)).max_retries == 3


def test_too_few_replicas_are_told_at_the_start(pair: Pair, topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    with RmqClient(pair.master.url, durability="replicated", replicas=2, timeout_s=0.4) as client:
        with pytest.raises(DurabilityError, match=r"[01] of 2 replicas"):
            client.producer(topic).send(PriorityMessage("a", 100))
    assert "has 1 of the 2 replicas for durability replicated" in caplog.text


def test_replicas_without_persistence_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Pitfall 21."""
    caplog.set_level(logging.WARNING, "rmq")
    with RedisServer() as master, RedisServer((f"replicaof 127.0.0.1 {master.port}",)):
        with master.connect() as admin:
            wait_until(lambda: admin.info("replication")["connected_slaves"] == 1)
            with RmqClient(master.url) as client:
                client.topics()
            assert "has replicas but no persistence: if it restarts" in caplog.text
            caplog.clear()
            admin.config_set("save", "3600 1")
            with RmqClient(master.url) as client:
                client.topics()
            assert caplog.text == ""


@pytest.mark.parametrize(("durability", "loses"), [("memory", True), ("replicated", False)])
def test_what_a_dead_master_takes_along(durability: str, loses: bool, topic: Topic) -> None:
    """Pitfall 20: the replica is behind when the master dies for good. What had not been confirmed is what is lost."""
    master = RedisServer(("appendonly yes", "repl-diskless-sync yes", "repl-diskless-sync-delay 0"))
    link = LaggingLink(master.port)
    replica = RedisServer((f"replicaof 127.0.0.1 {link.port}",))
    accepted: set[str] = set()
    try:
        with replica.connect() as admin:
            wait_until(lambda: admin.info("replication")["master_link_status"] == "up")
        with RmqClient(master.url, durability=durability, timeout_s=0.4) as client:
            producer = client.producer(topic)
            for i in range(20):
                if i == 15:
                    link.hold()
                try:
                    producer.send(PriorityMessage(f"m{i}", 100))
                    accepted.add(f"m{i}")
                except DurabilityError:
                    pass
        master.kill()
        with replica.connect() as admin:
            admin.execute_command("REPLICAOF", "NO", "ONE")
        with RmqClient(replica.url) as client, client.consumer(topic) as consumer:
            found = {delivery.text for delivery in consumer.poll(100, 1)}
    finally:
        link.close()
        replica.stop()
        master.stop()
    lost = accepted - found
    print(f"durability {durability}: {len(accepted)} accepted, {len(lost)} lost")
    assert len(lost) >= 5 if loses else not lost
