"""What observers are told, and that they cannot do harm."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import pytest

from rmq import Delivery, Observer, PriorityMessage, RmqClient, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


class Settled(Observer):
    """Notes what is settled, and may fail at it."""

    def __init__(self, fails: bool = False) -> None:
        self.contents: list[str] = []
        self._fails = fails

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        self.contents += [delivery.text for delivery in deliveries]
        if self._fails:
            raise RuntimeError("no room for figures")


def test_outcomes_that_were_given_up_are_not_told() -> None:
    observer, begun, ended = Settled(), threading.Event(), threading.Event()
    with RedisServer() as server, RmqClient(server.url, timeout_s=0.2, deadline_s=0.4) as client:
        client.observers.all.append(observer)
        topic = Topic("given-up", TopicType.PRIORITY, lease=timedelta(seconds=1))

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            if delivery.text == "last":
                begun.set()
                ended.wait(60)

        client.producer(topic).send(PriorityMessage("first", 100))
        client.start()
        wait_until(lambda: observer.contents == ["first"], 60)
        client.producer(topic).send(PriorityMessage("last", 100))
        assert begun.wait(60)
        server.kill()
        ended.set()
        client.stop()
        assert observer.contents == ["first"]


def test_an_observer_that_fails_settles_nothing_twice(redis_url: str, make_topic: MakeTopic) -> None:
    topic, observer = make_topic(TopicType.PRIORITY), Settled(fails=True)
    with RmqClient(redis_url) as client:
        client.observers.all.append(observer)

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            del delivery

        client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(30))
        client.start()
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 30, 60)
        client.stop()
    assert sorted(observer.contents) == sorted(f"m{i}" for i in range(30))


class Broken(Observer):
    """Fails before or after what it watches."""

    def __init__(self, before: bool) -> None:
        self._before = before

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        del topic, messages
        self._fail(self._before)
        yield ""
        self._fail(True)

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        del deliveries
        self._fail(self._before)
        yield
        self._fail(True)

    def _fail(self, now: bool) -> None:
        if now:
            raise RuntimeError("no room for figures")


@pytest.mark.parametrize("before", [True, False])
def test_neither_sends_nor_handlers_fail_with_an_observer(redis_url: str, make_topic: MakeTopic, before: bool) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=0)
    with RmqClient(redis_url) as client:
        client.observers.all.append(Broken(before))

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            if delivery.text == "bad":
                raise ValueError("no")

        producer = client.producer(topic)
        assert producer.send(PriorityMessage("good", 100)).new == 1
        assert producer.send_many([PriorityMessage("bad", 100)]).new == 1
        client.start()
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 1, 60)
        wait_until(lambda: client.inspect(topic).stats().dead == 1, 60)
        client.stop()
        assert [message.error_type for message in client.dead(topic).list()] == ["ValueError"]


class Falsy(Exception):
    """An error that counts as nothing, as an exception does that is a container, too, and empty."""

    def __len__(self) -> int:
        return 0


class Seen(Observer):
    """Notes how handlers end."""

    def __init__(self) -> None:
        self.ends: list[type[BaseException] | None] = []

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        del deliveries
        try:
            yield
        except BaseException as error:
            self.ends.append(type(error))
            raise
        self.ends.append(None)


def test_observers_are_told_of_an_error_that_counts_as_nothing(redis_url: str, make_topic: MakeTopic) -> None:
    topic, observer = make_topic(TopicType.PRIORITY, max_retries=0), Seen()
    with RmqClient(redis_url) as client:
        client.observers.all.append(observer)

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            raise Falsy

        client.producer(topic).send(PriorityMessage("bad", 100))
        client.start()
        wait_until(lambda: client.inspect(topic).stats().dead == 1, 60)
        client.stop()
    assert observer.ends == [Falsy]
