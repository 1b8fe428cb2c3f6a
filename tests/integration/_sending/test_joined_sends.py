"""Small batches for many slots share script calls; what goes wrong in one slot harms no other."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from rmq import FixedTimeMessage, PriorityMessage, RmqClient, SendError, Topic, TopicType
from rmq.errors import BacklogFullError, FixedTimePassedError, ScriptFailedError
from tests.conftest import MakeTopic
from tests.support.core import slot_keys

FAR_MS = 4_000_000_000_000


def script_calls(plain: redis.Redis) -> int:
    stats: Any = plain.info("commandstats")
    return stats.get("cmdstat_evalsha", {"calls": 0})["calls"]


def at_slot(topic: Topic, slot: int, number: int = 0) -> str:
    """Return the content with a number of those that belong to a slot."""
    found = (f"c{index}" for index in range(10**6) if topic.slot_of(b"c%d" % index) == slot)
    return next(content for index, content in enumerate(found) if index == number)


@pytest.mark.parametrize("outcomes", [False, True])
def test_a_message_for_each_of_many_slots_takes_few_calls(
    outcomes: bool, client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=64, ties="oldest")
    producer = client.producer(topic)
    messages = [PriorityMessage(at_slot(topic, slot), 1 + slot, body=f"body {slot}") for slot in range(64)]
    producer.send_many(messages[:2])  # loads the script
    before = script_calls(redis_client)
    result = producer.send_many(messages, outcomes=outcomes)
    assert script_calls(redis_client) - before == 2
    assert (result.new, result.merged) == (62, 2)
    assert result.outcomes == ((False, False, *[True] * 62) if outcomes else ())
    with client.consumer(topic) as consumer:
        found = {each.text: each.body for _ in range(64) for each in consumer.poll(10)}
    assert found == {message.content: b"body %d" % slot for slot, message in enumerate(messages)}


def test_large_batches_have_calls_of_their_own_beside_small_ones(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    many = [PriorityMessage(at_slot(topic, 3, number), 5) for number in range(300)]
    few = [PriorityMessage(at_slot(topic, slot), 5) for slot in range(8)]
    assert client.producer(topic).send_many([*few, *many]).new == 307
    assert {each.slot: each.backlog for each in client.inspect(topic).stats().slots} == {
        slot: 300 if slot == 3 else 1 for slot in range(8)
    }


def test_what_a_slot_refuses_is_told_and_the_others_have_theirs(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, max_backlog=8)
    producer = client.producer(topic)
    producer.send_many([PriorityMessage(at_slot(topic, 1, number), 5) for number in (1, 2)])
    messages = [PriorityMessage(at_slot(topic, slot), 5) for slot in range(4)]
    with pytest.raises(BacklogFullError, match="slot 1 of topic") as caught:
        producer.send_many(messages)
    assert (caught.value.stored, caught.value.not_stored, caught.value.unknown) == (3, (messages[1],), ())


def test_a_time_that_has_passed_is_told_by_its_slot(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=4)
    messages = [
        FixedTimeMessage(at_slot(topic, slot), fixed_time_ms=FAR_MS if slot != 2 else 1_000) for slot in range(4)
    ]
    with pytest.raises(FixedTimePassedError, match="fixed_time 1000 is in the past") as caught:
        client.producer(topic).send_many(messages)
    assert (caught.value.stored, caught.value.not_stored) == (3, (messages[2],))


def test_a_user_without_a_right_to_one_slot_sends_to_the_others(
    redis_url: str, client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    client.producer(topic)
    keys = [f"~{key}" for slot in (0, 1, 3) for key in astuple(slot_keys(topic.name, slot))]
    redis_client.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "~rmq:*", *keys, "&*", "+@all")
    try:
        place = urlsplit(redis_url)
        with RmqClient(place._replace(netloc=f"narrow:secret@{place.netloc}").geturl()) as narrow:
            messages = [PriorityMessage(at_slot(topic, slot), 5) for slot in range(4)]
            with pytest.raises(SendError, match="slot 2") as caught:
                narrow.producer(topic).send_many(messages)
    finally:
        redis_client.execute_command("ACL", "DELUSER", "narrow")
    assert isinstance(caught.value.__cause__, ScriptFailedError)
    assert (caught.value.stored, caught.value.not_stored) == (3, (messages[2],))
