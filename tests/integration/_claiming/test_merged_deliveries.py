"""What a delivery of a topic with `merge=` knows, and sends that count once; over both sides."""

from __future__ import annotations

from datetime import datetime

import pytest

from rmq import (
    PER_MESSAGE,
    Collect,
    Delivery,
    Fixed,
    JoinMessage,
    Merge,
    Newest,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    Sliding,
    Sum,
    Topic,
    TopicType,
    json_merge_patch,
)
from rmq.errors import CallChangedError, InvalidValueError
from tests.conftest import MakeTopic
from tests.support.clients import stats_of


def only(client: RmqClient, topic: Topic, read: str = "value") -> tuple[object, Delivery]:
    """Claim the only message that is due; return an attribute of its delivery, and the delivery, acked."""
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll(2, timeout=20)
        found = getattr(delivery, read)
        delivery.ack()
    return found, delivery


def test_a_sum_and_how_many_sends_it_stands_for(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, merge=Merge(Sum()))
    producer = client.producer(topic)
    for number in (5, -1, 0.5):
        producer.send(PriorityMessage("sku:1", 10, body=number))
    producer.send(PriorityMessage("sku:1", 10, body=3, weight=7))
    value, delivery = only(client, topic)
    assert (value, delivery.body, delivery.merged, delivery.items) == (7.5, b"7.5", 10, ())
    assert isinstance(delivery.first_sent, datetime)
    assert isinstance(delivery.last_sent, datetime)
    assert delivery.first_sent_ms is not None
    assert delivery.last_sent_ms is not None
    assert delivery.first_sent_ms <= delivery.last_sent_ms <= delivery.claimed_ms
    assert delivery.first_sent.timestamp() * 1_000 == pytest.approx(delivery.first_sent_ms)
    assert (delivery.wanted, delivery.complete) == (0, True)


def test_the_newest_body_comes_with_its_version(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, merge=Merge(Newest()))
    producer = client.producer(topic)
    for version in (7, 2**53 - 1, 8):
        producer.send(PriorityMessage("sku:1", 10, body=f"price {version}", version=version))
    [peeked] = client.inspect(topic).peek()
    version, delivery = only(client, topic, "version")
    assert peeked.version == version == 2**53 - 1
    assert (delivery.body, delivery.merged) == (b"price 9007199254740991", 3)


def test_items_are_folded_in_the_order_of_sending(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, merge=Merge(Collect(), Fixed("1ms")))
    client.producer(topic).send_many(
        RangeMergeMessage("user:1", body=text) for text in ('{"a":1,"b":[]}', '{"a":null}', '{"c":2}')
    )
    value, delivery = only(client, topic)
    assert value == delivery.items == (b'{"a":1,"b":[]}', b'{"a":null}', b'{"c":2}')
    assert delivery.fold(json_merge_patch) == b'{"b":[],"c":2}'
    assert (delivery.body, delivery.merged) == (None, 3)


def test_a_join_says_which_parts_it_waits_for(client: RmqClient, make_topic: MakeTopic) -> None:
    merge = Merge(Collect(unique=True), Sliding(max_wait="300ms"), PER_MESSAGE)
    topic = make_topic(TopicType.RANGE_MERGE, merge=merge)
    producer = client.producer(topic)
    producer.send(JoinMessage("order:7", "invoice", 3))
    producer.send(JoinMessage("order:7", "invoice", 3))
    complete, late = only(client, topic, "complete")
    assert (complete, late.items, late.wanted, late.merged) == (False, (b"invoice",), 3, 2)
    for part in ("invoice", "label", "photo"):
        producer.send(JoinMessage("order:8", part, 3, time_range_ms=60_000))
    complete, whole = only(client, topic, "complete")
    assert (complete, set(whole.items)) == (True, {b"invoice", b"label", b"photo"})


def test_a_send_with_a_name_counts_once(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, merge=Merge(Sum()))
    producer = client.producer(topic)
    message = PriorityMessage("sku:1", 10, body=5)
    assert producer.send(message, once="order 7") == producer.send(message, once="order 7")
    many = [PriorityMessage(f"sku:{number % 3}", 10, body=1) for number in range(9)]
    assert producer.send_many(many, once="import 1") == producer.send_many(many, once="import 1")
    producer.send_many(many, once="import 2", fold=True)
    producer.send_many(many, once="import 2", fold=True)
    found = {each.text: each.value for each in client.inspect(topic).peek()}
    assert found == {"sku:0": 6, "sku:1": 11, "sku:2": 6}
    assert stats_of(client, topic).total("accepted") == 1 + 9 + 9


def test_a_name_stands_for_the_same_messages(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, merge=Merge(Sum(), window=Fixed("1m")))
    producer = client.producer(topic)
    producer.send(RangeMergeMessage("a", body=1), once="daily")
    with pytest.raises(
        CallChangedError, match=r"once is 'daily', but an earlier call of that name to .* sent other messages"
    ):
        producer.send(RangeMergeMessage("a", body=2), once="daily")

    def many(number: int, more: int = 0, time_range: int = 60_000) -> list[RangeMergeMessage]:
        return [RangeMergeMessage(f"c{i}", time_range_ms=time_range, body=i + more) for i in range(number)]

    assert producer.send_many(many(2_900), once="lines").new == 2_900
    assert producer.send_many(many(2_900, time_range=500), once="lines").new == 2_900, "times are not compared"
    for other in (many(2_899), many(2_901), many(2_900)[::-1], many(2_900, more=1)):
        with pytest.raises(CallChangedError, match="use another name"):
            producer.send_many(other, once="lines")
    assert stats_of(client, topic).total("accepted") == 2_901


def test_folding_before_the_send_leaves_what_single_sends_leave(client: RmqClient, make_topic: MakeTopic) -> None:
    topics = [make_topic(TopicType.PRIORITY, slots=4, merge=Merge(Collect())) for _ in range(2)]
    messages = [PriorityMessage(f"user:{number % 7}", 10, body=str(number)) for number in range(700)]
    folded = client.producer(topics[0]).send_many(iter(messages), fold=True)
    client.producer(topics[1]).send_many(messages)
    assert folded.new == 7
    one, other = ({each.text: (each.items, each.merged) for each in client.inspect(each).peek()} for each in topics)
    assert one == other
    assert one["user:3"] == (tuple(b"%d" % number for number in range(3, 700, 7)), 100)
    assert [stats_of(client, each).total("accepted") for each in topics] == [700, 700]


def test_without_merge_there_is_neither_fold_nor_once(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    producer = client.producer(topic)
    with pytest.raises(InvalidValueError, match=r"once is 'a'; it needs a topic with merge=, and topic .* has none"):
        producer.send(PriorityMessage("a", 10), once="a")
    with pytest.raises(InvalidValueError, match=r"fold is True, but topic .* has no merge"):
        producer.send_many([PriorityMessage("a", 10)], fold=True)
    producer.send(PriorityMessage("a", 10, body="b"))
    value, delivery = only(client, topic)
    assert (value, delivery.merged, delivery.items, delivery.first_sent, delivery.complete) == (b"b", 1, (), None, True)
