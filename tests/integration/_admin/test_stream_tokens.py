"""Two deliveries of an entry with the same token: of a server that has forgotten the first, or after a release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq import Consumer, Delivery, RmqClient, StreamDelivery, StreamMessage, Topic, TopicType
from tests.conftest import MakeTopic
from tests.integration._claiming.test_claim_planner import HOLDER
from tests.support.core import (
    FEWEST_KEPT,
    NO_OWNER,
    OWN_FROM,
    Claim,
    ClaimReply,
    Connections,
    EntryRows,
    ExtendReply,
    Member,
    NewestDeliveries,
    StreamBroker,
    StreamClaimed,
    group_keys,
    slot_keys,
    take_renewal,
    whole,
)
from tests.support.streams import pending_rows

STAMP = 5 * 10**12
"""Later than any clock says."""


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


def fill(client: RmqClient, topic: Topic, *numbers: int) -> None:
    """Send so many entries to each slot."""
    for slot, number in enumerate(numbers):
        basis = basis_of(topic, slot)
        client.producer(topic).send_many(StreamMessage(f"{each}", slot_basis=basis) for each in range(number))


def basis_of(topic: Topic, slot: int) -> str:
    return next(str(each) for each in range(1_000) if topic.slot_of(str(each).encode()) == slot)


def set_stamp(plain: Any, topic: Topic, slot: int, stamp: int) -> None:
    """Let the next claim in a name of its own have the stamp behind this one."""
    plain.hset(slot_keys(topic.name, slot).meta, "stamp", stamp)
    plain.hset(group_keys(topic.name, slot, "g").group, "stamp", stamp - 1)


def test_claims_of_two_slots_with_one_stamp_are_acked_each_by_itself(
    client: RmqClient, make_topic: MakeTopic, redis_client: Any
) -> None:
    """Redis acks all that a claim still holds: the client has to know that nothing of it is open."""
    topic = make_topic(TopicType.STREAM, checked=False, slots=2)
    fill(client, topic, 40 + OWN_FROM, 36 + OWN_FROM)
    with client.consumer(topic, group="g", start="all") as consumer:
        consumer.ack(consumer.poll(2 * OWN_FROM, 10.0))
        for slot in range(2):
            set_stamp(redis_client, topic, slot, STAMP)
        page = consumer.poll(100, 10.0)
        assert len({delivery.claim_score for delivery in page}) == 1
        parts = [[delivery for delivery in page if delivery.slot == slot] for slot in range(2)]
        assert [len(part) for part in parts] == [40, 36]
        assert consumer.ack(parts[0][:36]) == []
        assert len(pending_rows(redis_client, topic, 0, "g")) == 4
        assert consumer.ack(parts[1]) == []
        assert len(pending_rows(redis_client, topic, 1, "g")) == 0
        assert consumer.ack(parts[0][36:]) == []
        assert len(pending_rows(redis_client, topic, 0, "g")) == 0


def test_a_process_under_its_old_name_gets_what_claims_held_in_names_of_their_own(
    client: RmqClient, topic: Topic, redis_client: Any
) -> None:
    fill(client, topic, 5 * OWN_FROM)
    with client.consumer(topic, group="g", start="all", resume_as="pod") as before:
        held = [each for _ in range(3) for each in before.poll(OWN_FROM, 10.0)]
    assert len(redis_client.xinfo_consumers(f"{topic.name}_0", "g")) == 3
    with client.consumer(topic, group="g", resume_as="pod") as after:
        found: list[Delivery] = []
        while page := after.poll(1_000, 0.2):
            found += page
        again = {delivery.name for delivery in found if delivery.attempt == 2}
        assert again == {delivery.name for delivery in held}
        assert len(found) == 5 * OWN_FROM
        with client.consumer(topic, group="g", name="late") as late:  # its acks come too late
            assert late.poll() == []
        assert before.ack(held) == held
        assert after.ack(found) == []
    rows = redis_client.xinfo_consumers(f"{topic.name}_0", "g")
    assert [row["name"] for row in rows if b"#" in row["name"] or row["pending"]] == []
    assert client.stream(topic).group("g").pending == 0


def test_a_late_ack_of_a_forgotten_claim_does_not_end_the_next_one(
    client: RmqClient, topic: Topic, redis_client: Any
) -> None:
    fill(client, topic, 2 * OWN_FROM)
    with client.consumer(topic, group="g", start="all") as consumer:
        consumer.poll(OWN_FROM, 10.0)
        set_stamp(redis_client, topic, 0, STAMP)
        first = consumer.poll(OWN_FROM, 10.0)
        forget_the_claim(redis_client, topic, "g")
        set_stamp(redis_client, topic, 0, STAMP)
        second = consumer.poll(2 * OWN_FROM, 10.0)
        assert {delivery.name for delivery in first} < {delivery.name for delivery in second}
        assert consumer.ack(first) == first
        assert len(pending_rows(redis_client, topic, 0, "g")) == len(second) == 2 * OWN_FROM
        assert consumer.ack(second) == []
        assert pending_rows(redis_client, topic, 0, "g") == []


def claimed(entry: bytes) -> StreamClaimed:
    return StreamClaimed(b"m", 1, 1, None, entry, (b"content", b"m"))


def test_a_renewal_that_was_under_way_gives_no_token_back(connections: Connections, topic: Topic) -> None:
    source = StreamBroker(connections, topic, Member("g", "me"))

    def delivered() -> Claim:
        (claim,) = source.claims(0, ClaimReply(1, 0, 0, 0, (), (claimed(b"1-0"),)), 9e9, HOLDER, NO_OWNER)
        return claim

    first, second = delivered(), delivered()
    take_renewal([whole(first), whole(second)], ExtendReply(1, (1, 1)), 0.0)
    assert (first.score_of(0), second.score_of(0)) == (0, 1)


def test_deliveries_that_nobody_has_are_not_kept(topic: Topic) -> None:
    newest = NewestDeliveries()
    kept: list[Claim] = []
    for number in range(3 * FEWEST_KEPT):
        claim = Claim(topic, 0, EntryRows([claimed(b"%d-0" % number)], "g"), 1, 9e9, HOLDER)
        newest.add(claim)
        if number % 100 == 0:
            kept.append(claim)
    assert len(kept) < len(newest) <= FEWEST_KEPT
    newest.add(Claim(topic, 0, EntryRows([claimed(kept[0].rows.names[0])], "g"), 1, 9e9, HOLDER))
    assert [claim.score_of(0) for claim in kept[:2]] == [0, 1]
