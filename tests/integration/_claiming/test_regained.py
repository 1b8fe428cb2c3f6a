"""An owner that has its slot back, after the end of its session, still reports what it has handled meanwhile."""

from __future__ import annotations

import pytest
import redis

from rmq import Delivery, Owner, PriorityMessage, RmqClient, StreamMessage, TopicType
from tests.conftest import MakeTopic
from tests.support.core import ACKED, ClaimPlanner, Connections, Fetcher, join_group, rate_key, select
from tests.support.holders import HolderStub
from tests.support.waiting import wait_until

BEFORE, NOW = Owner(1, "zk"), Owner(2, "zk")


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
    planner = ClaimPlanner(connections, topic, (), source=source)
    claims, held = Fetcher(planner, HolderStub()), list[Delivery]()

    def has_all() -> bool:
        held.extend(claims.claim(8).deliveries)
        return len(held) == 8

    planner.set_owned(dict.fromkeys(range(2), BEFORE))
    wait_until(has_all)
    for delivery in held:
        delivery.claim.settle_open(ACKED, (delivery.row,))
    planner.set_owned(dict.fromkeys(range(2), NOW))
    for slot in range(2):
        planner.expect(slot)
    round_ = claims.claim(8, select(held))
    assert (round_.lost, round_.unsent, round_.unconfirmed) == ([], [], [])
    client.producer(topic).send(StreamMessage("x") if kind is TopicType.STREAM else PriorityMessage("x", 1_000))
    last: list[Delivery] = []

    def has_last() -> bool:
        for slot in range(2):
            planner.expect(slot)
        last.extend(claims.claim(8).deliveries)
        return bool(last)

    wait_until(has_last)
    assert [(delivery.text, delivery.owner.epoch) for delivery in last] == [("x", NOW.epoch)]
    last[0].claim.settle_open(ACKED, (last[0].row,))
    claims.claim(0, select(last))


@pytest.fixture
def at_work(client: RmqClient, make_topic: MakeTopic, connections: Connections) -> tuple[ClaimPlanner, Fetcher]:
    """An owner of a slot with two messages."""
    topic = make_topic(TopicType.PRIORITY, slots=1, lease="3s")
    client.producer(topic).send_many(PriorityMessage(each, 1_000) for each in ("a", "b"))
    planner = ClaimPlanner(connections, topic, ())
    planner.set_owned({0: BEFORE})
    return planner, Fetcher(planner, HolderStub())


def claim_one(planner: ClaimPlanner, claims: Fetcher, held: list[Delivery]) -> Delivery:
    """Claim until a message comes."""
    found: list[Delivery] = []

    def has_one() -> bool:
        planner.expect(0)
        found.extend(claims.claim(1, select(held[:])).deliveries)
        held.clear()  # it was settled
        return bool(found)

    wait_until(has_one)
    return found[0]


def test_nothing_is_claimed_beside_what_is_still_being_handled(at_work: tuple[ClaimPlanner, Fetcher]) -> None:
    planner, claims = at_work
    first = claim_one(planner, claims, [])
    planner.set_owned({})
    planner.set_owned({0: NOW})
    for _ in range(3):
        planner.expect(0)
        assert not planner.plan(1, select([first])).requests
        assert not planner.plan(1, [], lambda: [first.claim]).requests
    first.claim.settle_open(ACKED, (first.row,))
    second = claim_one(planner, claims, [first])
    assert (first.lost, second.text != first.text, second.owner.epoch) == (False, True, NOW.epoch)
    assert not planner.regained
    second.claim.settle_open(ACKED, (second.row,))
    claims.claim(0, select([second]))


def test_a_lost_delivery_holds_up_nothing(at_work: tuple[ClaimPlanner, Fetcher]) -> None:
    """Another owner had the slot meanwhile, so that the outcome would be refused anyway."""
    planner, claims = at_work
    first = claim_one(planner, claims, [])
    first.claim.lose([first.row])
    planner.set_owned({0: NOW})
    planner.expect(0)
    assert [visit.owner for visit in planner.plan(1, select([first])).requests] == [NOW]
    assert not planner.regained


def test_a_slot_that_goes_away_again_is_remembered(at_work: tuple[ClaimPlanner, Fetcher]) -> None:
    planner, claims = at_work
    first = claim_one(planner, claims, [])
    planner.set_owned({0: NOW})
    planner.set_owned({})
    assert not planner.plan(1, select([first])).requests
    planner.set_owned({0: NOW})
    planner.expect(0)
    assert not planner.plan(1, select([first])).requests
    first.claim.settle_open(ACKED, (first.row,))
    claims.claim(0, select([first]))


def test_a_claim_sent_ahead_that_is_put_off_gives_its_tokens_back(
    client: RmqClient, make_topic: MakeTopic, connections: Connections, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, max_rate=0.001, max_burst=10)
    client.producer(topic).send_many(PriorityMessage(each, 1_000) for each in ("a", "b"))
    planner = ClaimPlanner(connections, topic, ())
    planner.set_owned({0: BEFORE})
    claims = Fetcher(planner, HolderStub())
    first = claim_one(planner, claims, [])
    planner.set_owned({})
    planner.set_owned({0: NOW})
    planner.expect(0)
    plan = planner.plan(4, select([first]))
    assert (plan.requests, plan.tokens) == ([], 4)
    assert claims.begin(plan).deliveries == []
    assert float(redis_client.hget(rate_key(topic.name), "tokens") or 0) == pytest.approx(9, abs=0.1)  # 0.001/s more
