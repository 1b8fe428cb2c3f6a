"""A name that moves to a promoted replica while the old master lives on as its replica: everybody follows."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from rmq import Delivery, PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import UnsafeRedisError
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.sides import SIDES, Side
from tests.support.waiting import wait_until

_numbers = count(1)


class Name:
    """A name, two servers behind it, and which of them is the master."""

    def __init__(self) -> None:
        self.old = RedisServer(("repl-diskless-sync-delay 0",))
        self.new = RedisServer((f"replicaof 127.0.0.1 {self.old.port}",))
        self.proxy = Proxy(self.old.port)
        self.url = self.proxy.url

    def move(self) -> None:
        """Promote the replica, make the old master its replica, and let the name lead to the new one."""
        with self.old.connect() as old, self.new.connect() as new:
            wait_until(lambda: new.info("replication")["master_link_status"] == "up", message="the replica to follow")
            written = old.info("replication")["master_repl_offset"]
            wait_until(
                lambda: new.info("replication")["slave_repl_offset"] >= written, message="the replica to have all"
            )
            new.replicaof("NO", "ONE")  # pyright: ignore[reportUnknownMemberType]
            old.replicaof("127.0.0.1", str(self.new.port))  # pyright: ignore[reportUnknownMemberType]
        self.proxy.lead_to(self.new.port)

    def stop(self) -> None:
        self.proxy.close()
        self.old.stop()
        self.new.stop()


@pytest.fixture
def name() -> Iterator[Name]:
    name = Name()
    yield name
    name.stop()


@pytest.fixture
def topic() -> Topic:
    return Topic(f"moved{os.getpid()}-{next(_numbers)}", TopicType.PRIORITY, slots=2)


@pytest.mark.parametrize("side", SIDES, indirect=True)
def test_sends_and_claims_follow(name: Name, side: Side, topic: Topic) -> None:
    with side.client(name.url, timeout_s=20.0) as client:
        producer, consumer = client.producer(topic), client.consumer(topic)
        assert producer.send(PriorityMessage("before", 100)).new == 1
        name.move()
        assert producer.send(PriorityMessage("after", 100)).new == 1
        found: list[Any] = []
        wait_until(lambda: found.extend(consumer.poll(10, timeout=1)) or len(found) == 2, message="both messages")
        assert {delivery.content for delivery in found} == {b"before", b"after"}
        for delivery in found:
            delivery.ack()
        assert client.inspect(topic).stats().total("acked") == 2
    with RmqClient(name.new.url) as new:
        assert new.inspect(topic).stats().total("acked") == 2


def test_a_listener_follows_and_is_woken_by_the_new_master(name: Name, topic: Topic) -> None:
    handled: list[bytes] = []
    with RmqClient(name.url, timeout_s=20.0) as client, RmqClient(name.url, timeout_s=20.0) as sender:

        @client.listener(topic)
        def _(delivery: Delivery) -> None:
            handled.append(delivery.content)

        client.start()
        producer = sender.producer(topic)
        producer.send(PriorityMessage("before", 100))
        wait_until(lambda: handled == [b"before"], message="the first message")
        name.move()
        producer.send(PriorityMessage("after", 100))
        wait_until(lambda: handled == [b"before", b"after"], message="the message after the move")

        def subscribed() -> bool:
            with name.new.connect() as new:
                return len(new.pubsub_channels("wake*")) == 2  # pyright: ignore

        wait_until(subscribed, message="the subscriptions at the new master")


def test_who_only_reads_follows(name: Name, topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    """It never hears READONLY; what it reads from the old master would be right only as long as that follows."""
    caplog.set_level(logging.WARNING, "rmq")
    with RmqClient(name.url, timeout_s=20.0) as reader:
        reader.producer(topic).send(PriorityMessage("before", 100))
        inspection = reader.inspect(topic)
        name.move()
        with name.old.connect() as old:  # the link between them breaks: the old one stays behind
            old.config_set("masterauth", "wrong")
            old.replicaof("127.0.0.1", "1")  # pyright: ignore[reportUnknownMemberType]
        with RmqClient(name.new.url) as sender:
            sender.producer(topic).send(PriorityMessage("after", 100))
        wait_until(lambda: inspection.stats().total("accepted") == 2, message="the figures of the new master")
        assert "has become a replica; reconnecting" in caplog.text


def test_an_economical_worker_follows_by_its_report(name: Name, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears its own proofs on the replica, and asks for the role only every five minutes."""
    monkeypatch.setattr("rmq._listening.watcher.BEAT_S", 0.2)
    handled: list[str] = []
    with RmqClient(name.url, timeout_s=20.0) as client:
        client.listener(topic)(lambda delivery: handled.append(delivery.text))
        client.start(idle="economy")
        with RmqClient(name.url) as sender:
            sender.producer(topic).send(PriorityMessage("before", 100))
            wait_until(lambda: handled == ["before"])
        name.move()
        with RmqClient(name.new.url) as sender:
            sender.producer(topic).send(PriorityMessage("after", 100))
        wait_until(lambda: handled == ["before", "after"])


def test_a_replica_can_still_be_read(name: Name, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._servers.nodes.LOOK_S", 0.0)
    with RmqClient(name.url) as client:
        client.producer(topic).send(PriorityMessage("a", 100))

    def followed() -> bool:
        with RmqClient(name.new.url) as reader:
            return reader.topics() != [] and reader.inspect(topic).stats().total("accepted") == 1

    wait_until(followed, message="the replica to follow")
    with RmqClient(name.new.url) as reader:
        inspection = reader.inspect(topic)
        assert [inspection.stats().total("accepted") for _ in range(10)] == [1] * 10


def test_a_user_without_info_follows_a_refusal(name: Name, topic: Topic) -> None:
    """INFO is not a right that everybody has: then a refused write is what tells."""
    for server in (name.old, name.new):
        with server.connect() as plain:
            plain.execute_command("ACL", "SETUSER", "narrow", "on", ">pw", "~*", "&*", "+@all", "-info")  # pyright: ignore
    url = name.url.replace("redis://", "redis://narrow:pw@")
    with RmqClient(url, timeout_s=20.0) as client:
        producer = client.producer(topic)
        producer.send(PriorityMessage("before", 100))
        name.move()
        assert producer.send(PriorityMessage("after", 100)).new == 1


def test_a_server_is_checked_at_each_new_connection(topic: Topic) -> None:
    """Its settings may be others after a restart."""
    with RedisServer() as server, RmqClient(server.url, timeout_s=20.0) as client:
        producer = client.producer(topic)
        producer.send(PriorityMessage("a", 100))
        server.config_set("maxmemory-policy", "allkeys-lru")
        assert producer.send(PriorityMessage("b", 100)).new == 1  # over the connection that is there
        with server.connect() as plain:
            plain.client_kill_filter(_type="normal")  # pyright: ignore[reportUnknownMemberType]
        with pytest.raises(UnsafeRedisError, match="maxmemory-policy allkeys-lru"):
            producer.send(PriorityMessage("c", 100))
        server.config_set("maxmemory-policy", "noeviction")
        assert producer.send(PriorityMessage("c", 100)).new == 1


def test_a_warning_about_a_server_is_logged_once(caplog: pytest.LogCaptureFixture, topic: Topic) -> None:
    caplog.set_level(logging.WARNING, "rmq")
    with RedisServer(("maxmemory-policy volatile-ttl",)) as server, RmqClient(server.url, timeout_s=20.0) as client:
        producer = client.producer(topic)
        for content in "abc":
            producer.send(PriorityMessage(content, 100))
            with server.connect() as plain:
                plain.client_kill_filter(_type="normal")  # pyright: ignore[reportUnknownMemberType]
        assert caplog.text.count("has maxmemory-policy volatile-ttl") == 1
