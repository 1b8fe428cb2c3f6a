"""Two deliveries of an entry with the same token: of a server that has forgotten the first, or after a release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq import RmqClient, StreamMessage, Topic, TopicType
from rmq._claiming.consumer import Consumer
from rmq._claiming.leases import take_renewal
from rmq._model.deliveries import Delivery
from rmq._model.entries import StreamDelivery
from rmq._model.owner import NO_OWNER
from rmq._model.replies import ClaimReply, ExtendReply, StreamClaimed
from rmq._scripts.streams import Member
from rmq._slots.newest_deliveries import FEWEST_KEPT, NewestDeliveries
from rmq._slots.stream_slots import GroupSlots
from rmq._transport.connections import Connections
from tests.conftest import MakeTopic
from tests.integration._claiming.test_claimer import HOLDER
from tests.support.streams import pending_rows


@pytest.fixture
def topic(client: RmqClient, make_topic: MakeTopic) -> Topic:
    return make_topic(TopicType.STREAM, checked=False, slots=1)


def forget_the_claim(plain: Any, topic: Topic, group: str) -> None:
    """As a failover to a replica that has not heard of it."""
    store = f"{topic.name}_0"
    for row in pending_rows(plain, topic, 0, group):
        plain.xack(store, group, row["message_id"])
    plain.xgroup_setid(store, group, "0")


def poll_one(consumer: Consumer) -> Delivery:
    (delivery,) = consumer.poll(1, 10.0)
    return delivery


@pytest.mark.parametrize("end", [Delivery.ack, Delivery.nack, Delivery.bury, Delivery.release])
def test_a_late_settlement_of_a_forgotten_delivery_does_not_end_the_next_one(
    client: RmqClient, topic: Topic, redis_client: Any, end: Callable[[Delivery], bool]
) -> None:
    client.producer(topic).send(StreamMessage("m"))
    with client.consumer(topic, group="g", start="all") as consumer:
        first = poll_one(consumer)
        forget_the_claim(redis_client, topic, "g")
        second = poll_one(consumer)
        assert isinstance(first, StreamDelivery)
        assert isinstance(second, StreamDelivery)
        assert (first.id, first.attempt, first.retries_left) == (second.id, second.attempt, second.retries_left)
        assert not end(first)
        assert first.lost
        assert len(pending_rows(redis_client, topic, 0, "g")) == 1
        assert consumer.extend([second]) == []
        assert second.ack()
    assert client.stream(topic).group("g").total("acked") == 1


def test_a_forgotten_delivery_is_not_renewed_by_the_lease_of_the_next_one(
    client: RmqClient, topic: Topic, redis_client: Any
) -> None:
    client.producer(topic).send(StreamMessage("m"))
    with client.consumer(topic, group="g", start="all") as consumer:
        first = poll_one(consumer)
        forget_the_claim(redis_client, topic, "g")
        second = poll_one(consumer)
        assert consumer.extend([first, second]) == [first]
        assert [delivery.lost for delivery in (first, second)] == [True, False]
        assert second.ack()


def claimed(entry: bytes) -> StreamClaimed:
    return StreamClaimed(b"m", 1, 1, None, entry, (b"content", b"m"))


def test_a_renewal_that_was_under_way_gives_no_token_back(connections: Connections, topic: Topic) -> None:
    source = GroupSlots(connections, topic, Member("g", "me"))

    def delivered() -> Delivery:
        (delivery,) = source.deliveries(0, ClaimReply(1, 0, 0, 0, (), (claimed(b"1-0"),)), 9e9, HOLDER, NO_OWNER)
        return delivery

    first, second = delivered(), delivered()
    take_renewal([first, second], ExtendReply(1, (1, 1)), 0.0)
    assert (first.claim_score, second.claim_score) == (0, 1)


def test_deliveries_that_nobody_has_are_not_kept(topic: Topic) -> None:
    newest = NewestDeliveries()
    kept: list[StreamDelivery] = []
    for number in range(3 * FEWEST_KEPT):
        delivery = StreamDelivery(topic, 0, claimed(b"%d-0" % number), 1, 9e9, HOLDER)
        newest.add([delivery])
        if number % 100 == 0:
            kept.append(delivery)
    assert len(kept) < len(newest) <= FEWEST_KEPT
    newest.add([StreamDelivery(topic, 0, claimed(kept[0].name), 1, 9e9, HOLDER)])
    assert [delivery.claim_score for delivery in kept[:2]] == [0, 1]
