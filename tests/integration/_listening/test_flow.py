"""Listeners whose handlers are limited, by what their downstream bears, and by what they share: on both sides."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import timedelta

import pytest

from rmq import (
    Adaptive,
    Delivery,
    FixedTimeMessage,
    ImmediateRetry,
    ListenerInfo,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    Topic,
    TopicType,
)
from rmq.errors import InvalidValueError
from rmq.metrics import TopicsCollector
from tests.conftest import MakeTopic
from tests.support.clients import stats_of
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
    if topic.type is TopicType.PRIORITY:
        client.producer(topic).send_many(PriorityMessage(f"m{i}", 2_000) for i in range(number))
    else:
        client.producer(topic).send_many(RangeMergeMessage(f"m{i}", time_range_ms=1) for i in range(number))


def test_a_slow_downstream_is_relieved_and_gets_full_speed_back(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    busy, takes_s = Busy(), [0.02]

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
    stats = stats_of(client, topic)
    assert (stats.in_flight, stats.total("acked")) == (0, busy.done["it"])


class Downstream:
    """Does its work until it is down, and then fails at once; counts its calls from then on."""

    def __init__(self, down: bool) -> None:
        self.lock = threading.Lock()
        self.down = down
        self.done = self.refused = self.running = 0
        self.most_later = 0
        """Most calls at a time after twenty that were refused."""

    def call(self) -> None:
        with self.lock:
            self.running += 1
            if self.down and self.refused >= 20:
                self.most_later = max(self.most_later, self.running)
        try:
            if self.down:
                raise ConnectionError("down")
            time.sleep(0.001)
        finally:
            with self.lock:
                self.running -= 1
                self.done += not self.down
                self.refused += self.down


@pytest.mark.parametrize(("healthy", "kind"), [(0, TopicType.PRIORITY), (500, TopicType.RANGE_MERGE)])
def test_no_message_dies_of_a_downstream_that_fails_at_once(
    healthy: int, kind: TopicType, client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(kind, slots=2, retry=ImmediateRetry(), max_retries=3)
    downstream = Downstream(down=not healthy)

    @client.listener(topic, threads=16, adaptive=Adaptive(window_s=0.02, longest_pause_s=0.1))
    def handle(delivery: Delivery) -> None:
        downstream.call()

    fill(client, topic, 2_000)
    client.start()
    wait_until(lambda: downstream.done >= healthy, 120, "healthy")
    downstream.down = True
    wait_until(lambda: downstream.refused >= 35, 120, "refused")
    assert downstream.most_later <= 1
    downstream.down = False
    wait_until(lambda: stats_of(client, topic).total("acked") == 2_000, 180)
    stats = stats_of(client, topic)
    assert (stats.dead, stats.total("buried")) == (0, 0)
    assert downstream.refused < 150


@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.FIXED_TIME, TopicType.RANGE_MERGE])
def test_what_is_spared_without_retries_stays_as_it_was_sent_and_holds_up_nobody(
    kind: TopicType, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(kind, max_retries=0, ttl=None if kind is TopicType.RANGE_MERGE else timedelta(hours=1))
    seen, refused, down = list[Delivery](), Counter[bytes](), threading.Event()
    down.set()
    with RmqClient(redis_url) as client:

        @client.listener(topic, threads=2, adaptive=Adaptive(window_s=0.02, longest_pause_s=0.1))
        def handle(delivery: Delivery) -> None:
            seen.append(delivery)
            if down.is_set():
                refused[delivery.content] += 1
                raise ConnectionError("down")

        sent_ms, producer = int(time.time() * 1000), client.producer(topic)
        for number in range(12):
            if kind is TopicType.PRIORITY:
                producer.send(PriorityMessage(f"m{number}", 700))
            elif kind is TopicType.FIXED_TIME:
                producer.send(FixedTimeMessage(f"m{number}", fixed_time_ms=sent_ms + 1_000 + number))
            else:
                producer.send(RangeMergeMessage(f"m{number}", time_range_ms=1))
        client.start()
        wait_until(lambda: refused.total() >= 20 and (len(refused) == 12 or not kind.timed), 120, "refused")
        down.clear()
        stats = client.inspect(topic).stats
        wait_until(lambda: stats().total("acked") + stats().dead == 12, 120)
        assert stats().dead <= 4  # what failed before it was known that others fail, too
        assert (stats().total("ttl_expired"), stats().total("refailed"), stats().unaccounted) == (0, 0, 0)
    assert all(each.priority == 700 if kind is TopicType.PRIORITY else each.due_ms > 10**12 for each in seen)  # pyright: ignore[reportOptionalOperand]


def test_a_message_that_always_fails_dies_while_the_others_are_handled(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, retry=ImmediateRetry(), max_retries=3)
    with RmqClient(redis_url) as client:

        @client.listener(topic, threads=4, adaptive=QUICK)
        def handle(delivery: Delivery) -> None:
            if delivery.content.startswith(b"bad"):
                raise ValueError(delivery.content)

        client.producer(topic).send_many(RangeMergeMessage(f"bad{number}", time_range_ms=1) for number in range(8))
        client.producer(topic).send_many(RangeMergeMessage(f"good{number}", time_range_ms=1) for number in range(50))
        client.start()
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 50, 120)
        client.producer(topic).send_many(RangeMergeMessage(f"more{number}", time_range_ms=1) for number in range(50))
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 100, 120)


def test_a_message_that_is_all_there_is_dies_when_it_always_fails(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, retry=ImmediateRetry(), max_retries=3)
    with RmqClient(redis_url) as client:

        @client.listener(topic, threads=4, adaptive=QUICK)
        def handle(delivery: Delivery) -> None:
            raise ValueError(delivery.content)

        fill(client, topic, 1)
        client.start()
        wait_until(lambda: client.inspect(topic).stats().dead == 1, 120)


def test_what_keeps_messages_back_is_seen(redis_url: str, make_topic: MakeTopic) -> None:
    failing = make_topic(TopicType.PRIORITY)
    slow = make_topic(TopicType.PRIORITY, max_rate=1, max_burst=1)
    with RmqClient(redis_url) as client:

        @client.listener(failing, threads=8, adaptive=Adaptive(longest_pause_s=600, window_s=300))
        def fail(delivery: Delivery) -> None:
            raise ConnectionError("down")

        @client.listener(slow)
        def handle(delivery: Delivery) -> None: ...

        fill(client, failing, 20)
        fill(client, slow, 100)
        client.start()

        def seen(topic: Topic) -> ListenerInfo | None:
            infos = [each for worker in client.workers() for each in worker.listeners]
            return next((each for each in infos if each.topic == topic.name), None)

        wait_until(lambda: (each := seen(failing)) is not None and each.paused_ms > 0, 60)
        wait_until(lambda: (each := seen(slow)) is not None and each.throttled, 60)
        info, other = seen(failing), seen(slow)
        assert info is not None
        assert (info.limit, info.allowed, info.throttled) == (1, 0, False)
        assert other is not None
        assert (other.limit, other.allowed, other.paused_ms) == (None, 1, 0)
        samples = {
            (sample.name, sample.labels.get("topic")): sample.value
            for family in TopicsCollector(client, keep_s=0).collect()
            for sample in family.samples
        }
        assert samples["rmq_handlers_allowed", failing.name] == 0
        assert samples["rmq_handlers_allowed", slow.name] == 1
        assert samples["rmq_workers_throttled", slow.name] == 1
        client.stop(drain_s=5)


def test_a_topic_that_hangs_does_not_starve_its_neighbour(client: RmqClient, make_topic: MakeTopic) -> None:
    slow, quick = make_topic(TopicType.PRIORITY), make_topic(TopicType.PRIORITY)
    busy, hang = Busy(), threading.Event()

    @client.listener(slow, threads=8)
    def handle_slow(delivery: Delivery) -> None:
        busy.work("slow", 0)
        hang.wait(60)

    @client.listener(quick, threads=8)
    def handle_quick(delivery: Delivery) -> None:
        busy.work("quick", 0.001)

    fill(client, slow, 20)
    client.start(handlers=4)
    wait_until(lambda: busy.done["slow"] == stats_of(client, slow).in_flight == 3, 60)
    fill(client, quick, 200)
    wait_until(lambda: busy.done["quick"] == 200, 60, "the quick ones get their turn")
    assert busy.done["slow"] == 3
    assert stats_of(client, slow).in_flight == 3, "no more is claimed than may begin"
    hang.set()
    wait_until(lambda: stats_of(client, slow).total("acked") == 20, 60)


@pytest.mark.parametrize("batch", [None, 7])
def test_handlers_of_all_listeners_together_are_bounded(
    batch: int | None, client: RmqClient, make_topic: MakeTopic
) -> None:
    topics = [make_topic(TopicType.PRIORITY, slots=2) for _ in range(3)]
    busy, done = Busy(), Counter[str]()
    for topic in topics:

        @client.listener(topic, threads=5, weight=2, batch=batch)
        def handle(given: Delivery | list[Delivery], name: str = topic.name) -> None:
            busy.work(name, 0.002)
            with busy.lock:
                done[name] += len(given) if isinstance(given, list) else 1

        fill(client, topic, 100)
    client.start(handlers=4)
    wait_until(lambda: done.total() == 300, 60)
    assert busy.most["all"] <= 4


def test_a_weight_or_a_number_of_handlers_out_of_range_is_refused(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    for weight in (0, -1, float("inf"), float("nan")):
        with pytest.raises(InvalidValueError, match="weight"):
            client.listener(topic, weight=weight)
    client.listener(topic)(print)
    with pytest.raises(InvalidValueError, match="handlers"):
        client.start(handlers=0)
