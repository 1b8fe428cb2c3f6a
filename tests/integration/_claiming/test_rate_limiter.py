"""A rate limit holds over all processes, is used up where there is work, and changes while they run."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import redis

from rmq import Delivery, PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import InvalidTopicError
from tests.conftest import MakeTopic
from tests.support.core import RateLimiter, rate_key
from tests.support.waiting import wait_until

CONSUMER = """
import sys, time
from rmq import RmqClient
url, name, seconds = sys.argv[1:]
with RmqClient(url) as client, client.consumer(client.topic(name)) as consumer:
    until_s = time.monotonic() + float(seconds)
    while time.monotonic() < until_s:
        for delivery in consumer.poll(50, 0.5):
            delivery.ack()
            print(delivery.claimed_ms)
"""


def fill(client: RmqClient, topic: Topic, number: int) -> None:
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(number))


def test_several_processes_together_keep_the_rate_and_use_it(redis_url: str, make_topic: MakeTopic) -> None:
    rate, burst, seconds = 100, 20, 4
    topic = make_topic(TopicType.PRIORITY, slots=4, max_rate=rate, max_burst=burst)
    with RmqClient(redis_url) as client:
        fill(client, topic, 2_000)
        command = [sys.executable, "-c", CONSUMER, redis_url, topic.name, str(seconds)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        outputs = [process.communicate(timeout=90)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0]
        claimed = sorted(int(line) for output in outputs for line in output.split())
        assert all(output for output in outputs)
        assert client.inspect(topic).stats().total("acked") == len(claimed)
    began_ms = claimed[0]  # the bucket was full then, and not later
    for number, at_ms in enumerate(claimed, 1):
        # tokens come before their claim, by as long as the machine stands still; with a limit each it would be 1,260
        assert number <= burst + rate * (at_ms - began_ms + 3_000) / 1000
    # in some second or other, in which the machine does not stand still, most of it is used
    assert max(sum(0 <= at_ms - first_ms < 1_000 for at_ms in claimed) for first_ms in claimed) >= 0.5 * rate


def test_a_listener_keeps_the_rate_and_follows_its_changes(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, max_rate=5, max_burst=5)
    seen: list[int] = []
    with RmqClient(redis_url) as client:

        @client.listener(topic, threads=3)
        def handle(delivery: Delivery) -> None:
            seen.append(delivery.claimed_ms)

        fill(client, topic, 400)
        client.start()
        wait_until(lambda: len(seen) >= 60, 60)
        assert len(seen) <= 5 + 5 * (max(seen) - min(seen) + 3_000) / 1000
        client.change_topic(client.topic(topic.name).changed(max_rate=None, max_burst=None))
        wait_until(lambda: len(seen) == 400, 60)
        # and a limit that comes while a process runs without one is found within seconds
        client.change_topic(client.topic(topic.name).changed(max_rate=0.001))
        wait_until(lambda: client._listeners.runners[0].planners[0].rate_limiter.limited, 60)
        fill(client, topic, 50)
        time.sleep(0.5)  # nothing to wait for: it must not go on
        assert len(seen) <= 401  # what was in the bucket
        client.change_topic(client.topic(topic.name).changed(max_rate=None))
        wait_until(lambda: len(seen) == 450, 60)


def test_without_work_no_token_is_used_up(redis_url: str, make_topic: MakeTopic, redis_client: redis.Redis) -> None:
    topic = make_topic(TopicType.PRIORITY, max_rate=0.001, max_burst=10)
    with RmqClient(redis_url) as client, client.consumer(topic) as consumer:
        for _ in range(5):
            assert consumer.poll(100) == []
        fill(client, topic, 3)
        assert len(consumer.poll(100)) == 3
        tokens = float(redis_client.hget(rate_key(topic.name), "tokens") or 0)
        assert tokens == pytest.approx(7, abs=0.1)  # 0.001/s more
        fill(client, topic, 20)
        assert len(consumer.poll(100, 2)) == 7
        assert consumer.poll(100, 0.3) == []
        client.change_topic(client.topic(topic.name).changed(max_rate=None, max_burst=None))
        acked: list[bool] = []
        wait_until(lambda: acked.extend(each.ack() for each in consumer.poll(100, 0.5)) or len(acked) >= 10)
        assert acked == [True] * 10


def test_a_lost_bucket_does_not_lift_the_limit(
    redis_url: str, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    with RmqClient(redis_url) as client, client.consumer(topic) as consumer:  # it knows the topic without a limit
        client.change_topic(client.topic(topic.name).changed(max_rate=0.001, max_burst=3))
        rate_limiter = RateLimiter(client._connections, topic)
        rate_limiter.limited = True  # as `follow` finds it
        redis_client.delete(rate_key(topic.name))
        assert rate_limiter.take(100) == 3
        assert redis_client.hget(rate_key(topic.name), "rate") == b"0.001"
        redis_client.delete(rate_key(topic.name))
        rate_limiter.refund(2)
        assert redis_client.hget(rate_key(topic.name), "rate") == b"0.001"
        # a change that broke off before the bucket was reached can be repeated
        redis_client.hset(rate_key(topic.name), "rate", "77")
        client.change_topic(client.topic(topic.name))
        assert redis_client.hget(rate_key(topic.name), "rate") == b"0.001"
        consumer.close()


@pytest.mark.parametrize("max_rate", [None, 1_000.0])
def test_a_strangers_rate_stops_no_topic(
    redis_url: str, make_topic: MakeTopic, redis_client: redis.Redis, max_rate: float | None
) -> None:
    topic = make_topic(TopicType.PRIORITY, max_rate=max_rate)
    with RmqClient(redis_url) as client, client.consumer(topic) as consumer:
        fill(client, topic, 3)
        for value in ("garbage", "nan", "1e999"):
            redis_client.hset(rate_key(topic.name), "rate", value)
            rate_limiter = RateLimiter(client._registered(topic)[0], topic)
            rate_limiter.refresh()
            assert rate_limiter.take(1) == 1
        assert len(consumer.poll(timeout=50)) == 3
        assert redis_client.hget(rate_key(topic.name), "rate") == repr(max_rate or 0).encode()


@pytest.mark.parametrize("rate", [0, -1, True, "5", float("nan"), 2_000_000])
def test_a_rate_that_is_none_is_refused(rate: object) -> None:
    with pytest.raises(InvalidTopicError, match="max_rate"):
        Topic("t", TopicType.PRIORITY, max_rate=rate)  # pyright: ignore[reportArgumentType]


def test_the_definition_carries_it() -> None:
    topic = Topic("t", TopicType.PRIORITY, max_rate=2.5)
    assert Topic.from_json(topic.to_json()) == topic
    assert topic.rate_burst == 3
    assert "max_rate" not in Topic("t", TopicType.PRIORITY).to_json()
    with pytest.raises(InvalidTopicError, match="max_burst"):
        Topic("t", TopicType.PRIORITY, max_burst=5)


def test_a_claim_that_breaks_off_while_it_gives_tokens_back_keeps_its_messages(
    redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, or a cancellation on the asyncio side: they came back with their lease only."""
    topic = make_topic(TopicType.PRIORITY, slots=1, max_rate=1_000)
    refund, armed = RateLimiter.refund, list[bool]()

    def break_off(rate_limiter: RateLimiter, unused: int) -> None:
        if armed:
            armed.pop()
            raise KeyboardInterrupt
        refund(rate_limiter, unused)

    monkeypatch.setattr(RateLimiter, "refund", break_off)
    with RmqClient(redis_url) as client, client.consumer(topic) as consumer:
        assert consumer.poll(10, 0.1) == []
        client.producer(topic).send_many(PriorityMessage(text, 100) for text in "abc")
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(10, 50)
        found = consumer.poll(10, 2.0)
        assert sorted(each.text for each in found) == ["a", "b", "c"]
        assert {each.attempt for each in found} == {1}
        assert consumer.ack(found) == []
