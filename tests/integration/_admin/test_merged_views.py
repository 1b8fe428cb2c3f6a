"""What peek, find, search and the dead letters say of messages that merge: in store, in flight, waiting, dead."""

from __future__ import annotations

import pytest
import redis

from rmq import (
    PER_MESSAGE,
    Collect,
    ImmediateRetry,
    JoinMessage,
    Keep,
    Merge,
    PeekedMessage,
    PriorityMessage,
    RmqClient,
    Sliding,
    Sum,
    TopicType,
)
from tests.conftest import MakeTopic
from tests.support.core import slot_keys


def shown(found: PeekedMessage | None) -> tuple[object, int] | None:
    return None if found is None else (found.value, found.merged)


def test_a_value_is_seen_wherever_it_is(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, merge=Merge(Sum()), max_retries=1, retry=ImmediateRetry())
    producer, view = client.producer(topic), client.inspect(topic)
    producer.send_many(PriorityMessage("sku:1", 10, body=number) for number in (4, 3))
    [stored] = view.peek()
    assert (stored.value, stored.body, stored.number, stored.items, stored.merged) == (7, b"7", 7, (), 2)
    assert stored.first_sent is not None
    assert stored.last_sent is not None
    assert stored.first_sent <= stored.last_sent
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll(1, timeout=20)
        producer.send(PriorityMessage("sku:1", 10, body=100))
        found = view.find("sku:1")
        assert (shown(found.in_flight), shown(found.stored), found.waiting) == ((7, 2), (100, 1), None)
        assert [shown(each) for each in view.peek("prepare")] == [(7, 2)]
        client.control(topic).cancel("sku:1")
        delivery.nack(delay="1m")
        producer.send(PriorityMessage("sku:1", 10, body=1))
        found = view.find("sku:1")
        assert (shown(found.waiting), shown(found.stored)) == ((7, 2), (1, 1))
        assert [shown(each) for each in view.pages(0, "retry")] == [(7, 2)]
        places = {each.place: (each.value, each.body, each.body_bytes, each.merged) for each in view.search().messages}
        assert places == {"store": (1, b"1", 1, 1), "retry": (7, b"7", 1, 2)}
        client.control(topic).promote("sku:1")
        [again] = consumer.poll(1, timeout=20)
        assert (again.value, again.merged) == (8, 3)
        again.bury(ValueError("no"))
    [dead] = client.dead(topic).list()
    assert (dead.value, dead.body, dead.merged, dead.first_sent) == (8, b"8", 3, stored.first_sent)
    assert view.find("sku:1").dead == dead
    [found_dead] = view.search(places=["dead"]).messages
    assert (found_dead.value, found_dead.merged, found_dead.last_sent) == (8, 3, dead.last_sent)


def test_items_of_a_large_collection_are_found_in_part(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, merge=Merge(Collect()))
    client.producer(topic).send(PriorityMessage("user:1", 10, body=[f"{number:096d}" for number in range(40)]))
    view = client.inspect(topic)
    [whole], [part] = view.peek(), view.search().messages
    assert (len(whole.items), whole.item_count, whole.value, whole.body) == (40, 40, whole.items, None)
    assert (part.items, part.item_count, part.merged) == (whole.items[:9], 40, 1)
    assert (part.body, part.body_bytes, part.first_sent) == (None, 40 * 100, whole.first_sent)


def test_a_join_and_its_missing_parts(client: RmqClient, make_topic: MakeTopic) -> None:
    merge = Merge(Collect(unique=True), Sliding(max_wait="1h"), PER_MESSAGE)
    topic = make_topic(TopicType.RANGE_MERGE, merge=merge)
    client.producer(topic).send(JoinMessage("order:7", "invoice", 3))
    for [each] in (client.inspect(topic).peek(), client.inspect(topic).search().messages):
        assert (each.items, each.item_count, each.wanted, each.complete) == ((b"invoice",), 1, 3, False)
    [found] = client.inspect(topic).search().messages
    assert found.body_bytes == len(b"invoice") + 4


def test_bodies_of_a_topic_that_keeps_one(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, merge=Merge(Keep()))
    producer = client.producer(topic)
    producer.send(PriorityMessage("bare", 10))
    producer.send(PriorityMessage("empty", 10, body=b""))
    producer.send_many(PriorityMessage("long", 10, body=body) for body in (b"\xff" * 3_000, b"later"))
    view = client.inspect(topic)
    found = {each.text: each for each in view.search().messages}
    assert [(found[name].body, found[name].body_bytes) for name in ("bare", "empty")] == [(None, 0), (b"", 0)]
    assert (found["long"].body_bytes, found["long"].merged) == (3_000, 2)
    assert found["long"].body == b"\xff" * (1_024 - 38)
    assert {each.text: each.value for each in view.peek()} == {"bare": None, "empty": b"", "long": b"\xff" * 3_000}


def test_a_page_with_too_many_bytes_says_that_it_does_not_know(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, merge=Merge(Keep()))
    client.producer(topic).send_many(PriorityMessage(f"m{number}", 10, body=b"b" * 900_000) for number in range(6))
    found = client.inspect(topic).search().messages
    assert sorted(each.merged for each in found) == [0, 0, 1, 1, 1, 1]
    assert {(each.body, each.body_bytes) for each in found if not each.merged} == {(b"", 900_000)}


@pytest.mark.parametrize("place", ["store", "prepare"])
def test_a_body_of_a_hand_that_knows_no_records(
    place: str, client: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, merge=Merge(Sum()))
    client.producer(topic).send(PriorityMessage("a", 10, body=1))
    keys = slot_keys(topic.name, 0)
    with client.consumer(topic) as consumer:
        delivered = consumer.poll(1, timeout=20) if place == "prepare" else []
        redis_client.hset(keys.held if delivered else keys.body, "a", "plain")
        [found] = client.inspect(topic).peek("prepare" if delivered else "store")
        assert (found.value, found.body, found.merged, found.first_sent) == (b"plain", b"plain", 1, None)
        consumer.ack(delivered)
