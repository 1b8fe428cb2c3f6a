"""`rmq status`, on real figures."""

from __future__ import annotations

import pytest
import redis

from rmq import PriorityMessage, RmqClient, StreamMessage, Topic, TopicType
from rmq.views.findings import findings_of
from rmq.views.reading import read_all
from tests.conftest import MakeTopic
from tests.support.cli import Cli
from tests.support.core import WORKER_INFOS_KEY, WORKERS_KEY
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def no_worker_of_another_test(redis_client: redis.Redis) -> None:
    """Forget the reports of workers that other tests have killed: each is a finding for minutes."""
    redis_client.delete(WORKERS_KEY, WORKER_INFOS_KEY)


def test_status_says_what_is_wrong_and_what_shows_more(cli: Cli, client: RmqClient, priority: Topic) -> None:
    assert cli("status", priority.name).out.startswith("Nothing needs attention: 1 topic")
    client.producer(priority).send_many(PriorityMessage(f"job:{number}", 100) for number in range(60))
    ran = cli("status", priority.name, code=1)
    assert f"critical  {priority.name}: no worker listens: 60 messages due" in ran.out
    assert "          rmq workers\n" in ran.out
    document = cli("status", priority.name, "--json", code=1).json
    found = next(each for each in document["findings"] if each["topic"])
    assert (found["severity"], found["kind"], found["command"]) == ("critical", "no-worker", "rmq workers")
    [topic] = document["topics"]
    assert (topic["topic"], topic["due_now"], topic["rates"]) == (priority.name, 60, None)

    @client.listener(priority)
    def work(delivery: object) -> None:
        del delivery

    client.start()
    try:
        wait_until(lambda: not client.inspect(priority).stats().backlog and client.workers(), 60)
        assert "Nothing needs attention" in cli("status", priority.name).out
    finally:
        client.stop()


@pytest.mark.slow
def test_status_of_messages_that_nobody_takes_up(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY, lease="1s")).topic
    client.producer(topic).send_many(PriorityMessage(f"job:{number}", 100) for number in range(3))
    with client.consumer(topic) as consumer:
        deliveries = consumer.poll()
        assert len(deliveries) == 3
        wait_until(lambda: findings_of(read_all(client, [topic.name])), 60)
        text = "no worker listens: 3 messages in flight or waiting for a retry, the first overdue for 1"
        assert f"critical  {topic.name}: {text}" in cli("status", topic.name, code=1).out
        for delivery in deliveries:
            delivery.ack()
    assert "Nothing needs attention" in cli("status", topic.name).out


@pytest.mark.slow
def test_status_of_entries_that_a_group_has_read_and_nobody_takes_up(
    cli: Cli, client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = client.producer(make_topic(TopicType.STREAM, checked=False, lease="1s")).topic
    client.producer(topic).send_many(StreamMessage(f"e{number}") for number in range(3))
    with client.consumer(topic, group="billing", start="all") as consumer:
        held, waiting, done = consumer.poll(3)
        done.ack()
        waiting.nack(delay="1s")
        assert client.stream(topic).group("billing").lag == 0
        wait_until(lambda: findings_of(read_all(client, [topic.name])), 60)
        text = "no worker listens: 2 entries in flight or waiting for a retry, the first overdue for 1"
        assert f"critical  {topic.name} @ billing: {text}" in cli("status", topic.name, code=1).out
        held.ack()
        wait_until(lambda: [each.ack() for each in consumer.poll(3)], 60)
    assert "Nothing needs attention" in cli("status", topic.name).out


def test_status_of_a_pause_is_a_warning_only(cli: Cli, client: RmqClient, priority: Topic) -> None:
    client.control(priority).pause()
    ran = cli("status", priority.name)
    assert f"warning   {priority.name}: 2 of 2 slots are paused; 0 due there" in ran.out
    assert f"rmq audit {priority.name}" in ran.out
    client.control(priority).resume()


def test_status_of_a_group(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = client.producer(make_topic(TopicType.STREAM, checked=False)).topic
    client.stream(topic).add_group("billing", "all")
    client.producer(topic).send(StreamMessage("a"))
    assert f"{topic.name} @ billing: no worker listens: 1 entry unread" in cli("status", topic.name, code=1).out
    [group] = cli("status", topic.name, "--json", code=1).json["topics"][0]["groups"]
    assert group["lag"] == 1
    assert group["oldest_unread_ms"] >= 0


def test_status_of_a_topic_that_is_not_there(cli: Cli) -> None:
    assert "nix is not registered" in cli("status", "nix", code=1).err
