"""Looking without touching."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmq import FixedTimeMessage, PriorityMessage, RangeMergeMessage, RmqClient, TopicType
from rmq.errors import InvalidValueError
from tests.conftest import MakeTopic
from tests.support.clients import left_in, stats_of


def test_a_fresh_topic(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=128)
    stats = stats_of(client, topic)
    assert len(stats.slots) == 128
    assert (left_in(stats), stats.due_now, stats.oldest_due_ms, stats.lateness_ms) == ((0, 0, 0, 0), 0, None, 0)
    assert stats.total("accepted") == 0
    assert client.inspect(topic).peek() == []
    assert list(client.inspect(topic).pages(0, "store")) == []


def test_every_place_is_counted(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=2)
    producer = client.producer(topic)
    producer.send_many(RangeMergeMessage(f"m{i}", time_range_ms=1) for i in range(20))
    with client.consumer(topic) as consumer:
        found = consumer.poll(1_000, timeout=50)
        while len(found) < 20:
            found += consumer.poll(1_000, timeout=50)
        for delivery in found[:3]:
            assert delivery.bury()
        for delivery in found[3:8]:
            assert delivery.nack(delay=timedelta(hours=1))
        assert consumer.ack(found[8:12]) == []
        producer.send_many(RangeMergeMessage(f"later{i}", timedelta(hours=1)) for i in range(30))
        stats = stats_of(client, topic)
        assert left_in(stats) == (30, 8, 5, 3)
        assert stats.due_now == 0
        assert stats.total("acked") == 4
        assert stats_of(client, topic).lateness_ms == 0
        assert sum(len(client.inspect(topic).stats([slot]).slots) for slot in (0, 1)) == 2
        consumer.ack(found[12:])


def test_lateness(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME)
    now_ms = stats_of(client, topic).slots[0].now_ms
    client.producer(topic).send_many(
        [FixedTimeMessage("a", fixed_time_ms=now_ms + 200), FixedTimeMessage("b", fixed_time_ms=now_ms + 9_000_000)]
    )
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll(timeout=50)
        assert delivery.release()
    stats = stats_of(client, topic)
    assert (stats.oldest_due_ms, stats.due_now) == (now_ms + 200, 1)
    assert stats.lateness_ms == stats.slots[0].now_ms - now_ms - 200 >= 0


def test_peek_shows_each_place_in_the_order_of_delivery(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, lease=timedelta(seconds=30))
    client.producer(topic).send_many(PriorityMessage(f"p{p}", p, body=f"body {p}") for p in (50, 90, 70))
    inspection = client.inspect(topic)
    with client.consumer(topic) as consumer:
        first, second = consumer.poll(2)
        assert first.nack(delay="0s")
        [fresh, retried] = inspection.peek()
        assert (fresh.text, fresh.body, fresh.priority, fresh.due_ms, fresh.retries_left) == (
            "p50", b"body 50", 50, None, None,
        )  # fmt: skip
        assert retried.priority is None
        assert (retried.text, retried.score, retried.due_ms, retried.retries_left) == ("p90", 16, None, 15)
        [held] = inspection.peek("prepare")
        assert (held.text, held.due_ms, held.retries_left) == ("p70", second.claim_score // 1000 + 30_001, 16)
        assert second.nack(delay=timedelta(hours=1))
        [waiting] = inspection.peek("retry")
        assert (waiting.text, waiting.place, waiting.retries_left) == ("p70", "retry", 16)
        assert waiting.due_ms is not None
        assert 3_590_000 < waiting.due_ms - second.claimed_ms < 3_610_000
    assert [peeked.text for peeked in inspection.peek(limit=1)] == ["p50"]
    assert inspection.peek(slots=[]) == []


def test_pages(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many(PriorityMessage(f"m{i:03}", 100 + i) for i in range(25))
    pages = list(client.inspect(topic).pages(0, "store", page=10))
    assert [peeked.text for peeked in pages] == [f"m{i:03}" for i in reversed(range(25))]
    assert len(list(client.inspect(topic).pages(0, "store", page=5))) == 25
    assert pages[0].topic == topic.name


def test_content_that_is_not_text(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage(b"\xff\x00", 100))
    [peeked] = client.inspect(topic).peek()
    assert (peeked.content, peeked.text) == (b"\xff\x00", "\\xff\x00")


@pytest.mark.parametrize(
    "options", [{"place": "dead"}, {"limit": 0}, {"limit": 1_001}, {"limit": 1.5}, {"slots": [2]}, {"slots": [True]}]
)
def test_options_of_peek_out_of_range(client: RmqClient, make_topic: MakeTopic, options: dict[str, object]) -> None:
    inspection = client.inspect(make_topic(TopicType.PRIORITY, slots=2))
    with pytest.raises(InvalidValueError):
        inspection.peek(**options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidValueError, match="slot -1"):
        inspection.stats([-1])
