"""Listeners whose handlers are limited: by what their downstream bears, and by what they share."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from rmq import Adaptive, PriorityMessage, RmqClient, Topic, TopicType
from rmq._model.deliveries import Delivery
from rmq._model.retry import ImmediateRetry
from rmq.errors import InvalidValueError
from tests.conftest import MakeTopic
from tests.support.waiting import wait_until

QUICK = Adaptive(window_s=0.05, longest_pause_s=0.4)


class Busy:
    """Counts who is in a handler."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def work(self, name: str, seconds: float) -> None:
        with self.lock:
            self.now[name] += 1
            self.now["all"] += 1
            for each in (name, "all"):
                self.most[each] = max(self.most[each], self.now[each])
        time.sleep(seconds)
        with self.lock:
            self.now[name] -= 1
            self.now["all"] -= 1
            self.done[name] += 1


def fill(client: RmqClient, topic: Topic, number: int) -> None:
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 2_000) for i in range(number))


def test_a_slow_downstream_is_relieved_and_gets_full_speed_back(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    busy, takes_s = Busy(), [0.02]
    with RmqClient(redis_url) as client:

        @client.listener(topic, threads=8, adaptive=QUICK)
        def handle(delivery: Delivery) -> None:
            busy.work("it", takes_s[0])

        fill(client, topic, 20_000)
        client.start()
        wait_until(lambda: busy.most["it"] == 8, 60, "full speed")
        takes_s[0] = 0.4
        wait_until(lambda: busy.now["it"] <= 1, 60, "relieved")
        takes_s[0], busy.most["it"] = 0.02, 0
        wait_until(lambda: busy.most["it"] == 8, 60, "full speed again")
        client.stop()
        stats = client.inspect(topic).stats()
        assert stats.unaccounted == 0
        assert (stats.in_flight, stats.total("acked")) == (0, busy.done["it"])


def test_a_failing_downstream_gets_few_tries_and_retries_are_not_burnt(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, retry=ImmediateRetry(), max_retries=999)
    tries, broken = [0], [True]
    with RmqClient(redis_url) as client:

        @client.listener(topic, threads=4, adaptive=QUICK)
        def handle(delivery: Delivery) -> None:
            tries[0] += 1
            if broken[0]:
                raise ConnectionError("down")

        fill(client, topic, 300)
        client.start()
        gate = client._listeners.runtimes[0]._gate
        assert gate is not None
        wait_until(lambda: gate.careful, 60, "a pause")
        before, began_s = tries[0], time.monotonic()
        wait_until(lambda: time.monotonic() - began_s > 2, 10)
        assert tries[0] - before < 40 * (time.monotonic() - began_s)  # without it thousands a second
        broken[0] = False
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 300, 60)
        assert client.inspect(topic).stats().dead == 0


def test_a_topic_that_hangs_does_not_starve_its_neighbour(redis_url: str, make_topic: MakeTopic) -> None:
    slow, quick = make_topic(TopicType.PRIORITY), make_topic(TopicType.PRIORITY)
    busy, hang = Busy(), threading.Event()
    with RmqClient(redis_url) as client:

        @client.listener(slow, threads=8)
        def handle_slow(delivery: Delivery) -> None:
            busy.work("slow", 0)
            hang.wait(60)

        @client.listener(quick, threads=8)
        def handle_quick(delivery: Delivery) -> None:
            busy.work("quick", 0.001)

        fill(client, slow, 20)
        client.start(handlers=4)
        wait_until(lambda: client.inspect(slow).stats().in_flight == 3, 60)
        fill(client, quick, 200)
        wait_until(lambda: busy.done["quick"] == 200, 60, "the quick ones get their turn")
        assert busy.done["slow"] == 3
        hang.set()
        wait_until(lambda: client.inspect(slow).stats().total("acked") == 20, 60)


def test_handlers_of_all_listeners_together_are_bounded(redis_url: str, make_topic: MakeTopic) -> None:
    topics = [make_topic(TopicType.PRIORITY, slots=2) for _ in range(3)]
    busy = Busy()
    with RmqClient(redis_url) as client:
        for topic in topics:

            @client.listener(topic, threads=5, weight=2)
            def handle(delivery: Delivery) -> None:
                busy.work(delivery.topic.name, 0.002)

            fill(client, topic, 100)
        client.start(handlers=4)
        wait_until(lambda: sum(busy.done[topic.name] for topic in topics) == 300, 60)
        assert busy.most["all"] <= 4


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan")])
def test_a_weight_out_of_range_is_refused(weight: float, redis_url: str) -> None:
    with RmqClient(redis_url) as client, pytest.raises(InvalidValueError, match="weight"):
        client.listener(Topic("t", TopicType.PRIORITY), weight=weight)
    with RmqClient(redis_url) as client:
        client.listener(Topic("flow-t", TopicType.PRIORITY))(print)
        with pytest.raises(InvalidValueError, match="handlers"):
            client.start(handlers=0)
