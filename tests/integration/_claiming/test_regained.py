"""An owner that has its slot back, after the end of its session, still reports what it has handled meanwhile."""

from __future__ import annotations

import pytest

from rmq import PriorityMessage, RmqClient, StreamMessage, TopicType
from rmq._claiming.claim_executor import ClaimExecutor
from rmq._claiming.claimer import Claimer
from rmq._model.deliveries import ACKED, Delivery
from rmq._model.owner import Owner
from rmq._slots.stream_slots import join_group
from rmq._transport.connections import Connections
from tests.conftest import MakeTopic
from tests.support.waiting import wait_until

BEFORE, NOW = Owner(1, "zk"), Owner(2, "zk")


class HolderStub:
    """Leaves outcomes noted, as a listener's thread does."""

    settle = None

    def still_owner(self, delivery: Delivery) -> bool:
        return True


@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.STREAM])
def test_what_was_handled_before_is_settled_before_the_new_epoch_fences_the_old_one(
    client: RmqClient, make_topic: MakeTopic, connections: Connections, kind: TopicType
) -> None:
    topic = make_topic(kind, slots=2, checked=kind is not TopicType.STREAM)
    contents = [f"m{i}" for i in range(8)]
    if kind is TopicType.STREAM:
        client.producer(topic).send_many(map(StreamMessage, contents))
    else:
        client.producer(topic).send_many(PriorityMessage(each, 1_000) for each in contents)
    source = join_group(connections, topic, "g", "all") if kind is TopicType.STREAM else None
    claimer = Claimer(connections, topic, (), source=source)
    claims, held = ClaimExecutor(claimer, HolderStub()), list[Delivery]()

    def has_all() -> bool:
        held.extend(claims.claim(8).deliveries)
        return len(held) == 8

    claimer.set_owned(dict.fromkeys(range(2), BEFORE))
    wait_until(has_all)
    for delivery in held:
        delivery.mark(ACKED)
    claimer.set_owned(dict.fromkeys(range(2), NOW))
    for slot in range(2):
        claimer.expect(slot)
    round_ = claims.claim(8, held)
    assert (round_.lost, round_.unsent, round_.unconfirmed) == ([], [], [])
    client.producer(topic).send(StreamMessage("x") if kind is TopicType.STREAM else PriorityMessage("x", 1_000))
    last: list[Delivery] = []

    def has_last() -> bool:
        for slot in range(2):
            claimer.expect(slot)
        last.extend(claims.claim(8).deliveries)
        return bool(last)

    wait_until(has_last)
    assert [(delivery.text, delivery.epoch) for delivery in last] == [("x", NOW.epoch)]
    last[0].mark(ACKED)
    claims.claim(0, last)
