"""What the overview says of rates and ages, by a clock that the test hands in."""

from __future__ import annotations

import pytest

from rmq import Minute, PriorityMessage, RmqClient, StreamMessage, TopicType
from rmq.dashboard.queries import Reader
from tests.conftest import MakeTopic


class Watch:
    """A reader of the dashboard at times that the test chooses."""

    def __init__(self, client: RmqClient) -> None:
        self.now_s = 1_800_000_000.0
        self.reader = Reader(client, lambda: self.now_s)

    def after(self, seconds: float) -> Reader:
        """Let time pass; the next reading is a new one."""
        self.now_s += seconds
        self.reader.cache.drop()
        return self.reader


@pytest.fixture
def watch(client: RmqClient) -> Watch:
    return Watch(client)


def test_a_burst_and_an_idle_time_are_not_a_rate(client: RmqClient, make_topic: MakeTopic, watch: Watch) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    producer = client.producer(topic)
    watch.reader.overview()
    producer.send_many(PriorityMessage(f"job:{number}", 5) for number in range(6_000))
    burst = watch.after(45)
    assert burst.overview().rates == {}
    assert burst.topic_now(topic.name).rates == {}
    later = watch.after(3)
    assert later.overview().rates["accepted"] == 0
    assert later.topic_now(topic.name).rates["accepted"] == 0
    with client.consumer(topic) as consumer:
        consumer.ack(consumer.poll(1_000, timeout=5))
    assert watch.after(12 * 60).topic_now(topic.name).rates == {}
    assert watch.after(3).topic_now(topic.name).rates["acked"] == 0
    producer.send_many(PriorityMessage(f"more:{number}", 5) for number in range(50))
    assert watch.after(10).topic_now(topic.name).rates["accepted"] == 5


def test_a_rate_and_the_chart_beside_it_say_the_same(client: RmqClient, make_topic: MakeTopic, watch: Watch) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("a", 5))
    for seconds in (0, 3, 3):
        watch.after(seconds).topic_now(topic.name)
    [throughput] = [each for each in watch.reader.charts(topic.name, "1h") if each.id == "rate"]
    assert throughput.lines[0].now == "0"
    assert watch.reader.topic_now(topic.name).rates["accepted"] == 0


def test_charts_begin_with_the_figures(client: RmqClient, make_topic: MakeTopic, watch: Watch) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("a", 5))
    minute = int(watch.now_s // 60)
    watch.after(0).topic_now(topic.name)
    assert {each.last_ms - each.first_ms for each in watch.reader.charts(topic.name, "24h")} == {60_000}
    for age in (20, 10):
        client.history().append(topic.name, Minute(minute - age, backlog=age))
    watch.after(0).topic_now(topic.name)
    charts = watch.reader.charts(topic.name, "24h")
    assert {each.first_ms for each in charts} == {(minute - 20) * 60_000}
    assert {each.last_ms - each.first_ms for each in watch.reader.charts(topic.name, "15m")} == {15 * 60_000}


def test_the_age_of_the_oldest_for_priorities_and_groups(
    client: RmqClient, make_topic: MakeTopic, watch: Watch
) -> None:
    topic, events = make_topic(TopicType.PRIORITY), make_topic(TopicType.STREAM, checked=False)
    plain = make_topic(TopicType.PRIORITY, ties="any")
    client.producer(topic).send_many([PriorityMessage("low", 1), PriorityMessage("high", 9)])
    client.producer(plain).send(PriorityMessage("a", 100))
    client.producer(events).send(StreamMessage("e"))
    client.stream(events).add_group("billing", "all")
    sent_ms = client.inspect(topic).stats().slots[0].oldest_sent_ms
    assert sent_ms is not None
    assert 0 <= client.inspect(topic).stats().slots[0].now_ms - sent_ms < 60_000
    reader = watch.after(0)
    assert reader.topic_now(topic.name).oldest_ms is not None
    assert reader.topic_now(plain.name).oldest_ms is None
    assert set(reader.topic_now(events.name).unread_ms) == {"billing"}
