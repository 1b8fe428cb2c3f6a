"""The rights that docs/operations.md asks for are enough: everything runs under exactly that ACL (pitfall 46)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq import DeadFilter, FixedTimeMessage, PriorityMessage, RangeMergeMessage, RmqClient, Topic, TopicType
from rmq.delivery import Delivery
from rmq.results import ControlResult
from rmq.retry import ImmediateRetry
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

OPERATIONS = Path(__file__).resolve().parent.parent.parent / "docs" / "operations.md"


@pytest.fixture
def client() -> Iterator[RmqClient]:
    text = re.search(r"```\n(ACL SETUSER.*?)```", OPERATIONS.read_text("utf-8"), re.DOTALL)
    assert text is not None
    with RedisServer() as server:
        server.connect().execute_command(*text[1].split())
        with RmqClient(f"redis://rmq:secret@127.0.0.1:{server.port}") as client:
            yield client


def test_everything_runs_under_the_documented_rights(client: RmqClient) -> None:
    jobs = Topic("shop.jobs", TopicType.PRIORITY, slots=2, max_retries=1, retry=ImmediateRetry())
    seen: list[str] = []

    @client.listener(jobs)
    def work(delivery: Delivery) -> None:
        seen.append(delivery.text)
        if delivery.text == "bad":
            raise ValueError("no")

    client.start()
    producer = client.producer(jobs)
    producer.send_many(PriorityMessage(f"job:{i}", 100, body=b"b" if i % 2 else None) for i in range(50))
    producer.send(PriorityMessage("bad", 200))
    wait_until(lambda: client.inspect(jobs).stats().total("acked") == 50, 30)
    wait_until(lambda: client.inspect(jobs).stats().dead == 1, 30)
    client.stop()
    assert sorted(set(seen)) == sorted(["bad", *(f"job:{i}" for i in range(50))])
    dead = client.dead(jobs)
    assert [message.error_type for message in dead.list(DeadFilter(matching="b*"))] == ["ValueError"]
    assert dead.redrive().redriven == 1
    assert client.reschedule(jobs, "bad", priority=300) is ControlResult.DONE
    assert client.promote(jobs, "bad") is ControlResult.DONE
    assert (client.pause(jobs), client.resume(jobs)) == (2, 2)
    assert client.inspect(jobs).find("bad").stored is not None
    assert [found.text for found in client.inspect(jobs).search("b*").messages] == ["bad"]
    assert client.inspect(jobs).dead_reasons().total == 0
    assert len(client.inspect(jobs).audit()) == 6
    assert client.workers() == []
    assert client.cancel(jobs, "bad") is ControlResult.DONE
    assert client.inspect(jobs).stats().unaccounted == 0
    assert [topic.name for topic in client.topics()] == ["shop.jobs"]


def test_both_time_topics_too(client: RmqClient) -> None:
    merged = Topic("shop.merged", TopicType.RANGE_MERGE)
    timed = Topic("shop.timed", TopicType.FIXED_TIME)
    for _ in range(2):
        client.producer(merged).send(RangeMergeMessage("a", 50))
    now_ms = client.inspect(merged).stats().slots[0].now_ms
    client.producer(timed).send(FixedTimeMessage("b", now_ms + 500))
    for topic, content in ((merged, "a"), (timed, "b")):
        with client.consumer(topic) as consumer:
            found: list[Delivery] = []
            wait_until(lambda found=found, consumer=consumer: found.extend(consumer.poll(timeout=1.0)) or found, 20)
            assert [delivery.text for delivery in found] == [content]
            assert consumer.extend(found) == []
            assert found[0].nack(delay=0)
            assert [again.ack() for again in consumer.poll(timeout=5.0)] == [True]
        assert client.inspect(topic).peek() == []
