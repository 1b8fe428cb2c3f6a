"""What consumers and listeners share: rounds of claims, and what a failing slot means for the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence

import pytest
import redis

from rmq import PriorityMessage, RmqClient, TopicType
from rmq.claimer import FEWEST_SLOTS, MOST_SLOTS, TROUBLE_PAUSE_S, Claimer, next_width
from rmq.clock import monotonic_s
from rmq.connections import Connections
from rmq.delivery import ACKED, Delivery, Outcome
from rmq.errors import ScriptFailedError
from rmq.keys import slot_keys
from rmq.topics import Topic
from rmq.urls import parse_url
from rmq.wakeups import Hints
from rmq.worker import Listener, Worker
from tests.conftest import MakeTopic
from tests.support.clients import left_in, stats_of, texts
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


class HolderStub:
    """Leaves outcomes noted, as a listener's worker does."""

    def settle(self, delivery: Delivery, outcome: Outcome) -> bool:
        return True

    def still_owner(self, delivery: Delivery) -> bool:
        return True


HOLDER = HolderStub()


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def topic(client: RmqClient, make_topic: MakeTopic) -> Topic:
    """A topic of two slots with three messages in each."""
    topic = make_topic(TopicType.PRIORITY, slots=2)
    bases = {topic.slot_of(f"{i}".encode()): f"{i}" for i in range(100)}
    client.producer(topic).send_many(
        PriorityMessage(f"s{slot} m{i}", 100 - i, slot_basis=bases[slot]) for i in range(3) for slot in (0, 1)
    )
    return topic


def test_a_hint_that_overtakes_the_reply_of_a_claim_is_kept(
    client: RmqClient, make_topic: MakeTopic, proxy: Proxy
) -> None:
    """Pitfall 26: the claim found nothing, then something was sent, and the hint is here before the claim's reply."""
    topic = make_topic(TopicType.PRIORITY)
    connections = Connections(parse_url(proxy.url))
    claimer = Claimer(connections, topic, [0])
    claimer.claim(10, HOLDER)
    claimer.expect(0)
    proxy.delay_replies(0.3)
    thread = threading.Thread(target=claimer.claim, args=(10, HOLDER))
    before = proxy.commands("EVALSHA")
    thread.start()
    wait_until(lambda: proxy.commands("EVALSHA") > before)
    claimer.take_hints(Hints(((0, 0),), False))
    assert thread.is_alive()
    thread.join(10)
    assert claimer.wait_s(5.0) == 0
    assert claimer.claim(10, HOLDER).deliveries == []
    assert claimer.wait_s(5.0) == 5.0  # and a hint too many costs one claim
    connections.close()


def test_hints_for_slots_of_others_do_no_harm(connections: Connections, make_topic: MakeTopic) -> None:
    claimer = Claimer(connections, make_topic(TopicType.PRIORITY, slots=2), [0])
    claimer.claim(10, HOLDER)
    claimer.take_hints(Hints((), False))
    claimer.take_hints(Hints(((1, 0),), False))
    assert claimer.wait_s(5.0) == 5.0


def test_what_is_claimed_is_shared_out_among_the_slots(connections: Connections, topic: Topic) -> None:
    claimer = Claimer(connections, topic, [0, 1])
    found = claimer.claim(3, HOLDER).deliveries
    assert sorted(texts(found)) == ["s0 m0", "s0 m1", "s1 m0"]
    for delivery in found:
        delivery.mark(ACKED)
    round_ = claimer.claim(10, HOLDER, found)
    assert sorted(texts(round_.deliveries)) == ["s0 m2", "s1 m1", "s1 m2"]
    assert round_.unsent == []


def test_a_slot_that_fails_neither_hides_the_others_nor_has_outcomes_sent_twice(
    client: RmqClient, connections: Connections, make_topic: MakeTopic, redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    topic = make_topic(TopicType.PRIORITY, slots=2, checked=False)
    bases = {topic.slot_of(f"{i}".encode()): f"{i}" for i in range(100)}
    producer = client.producer(topic)
    producer.send_many(PriorityMessage(f"s{slot}", 100, slot_basis=bases[slot]) for slot in (0, 1))
    claimer = Claimer(connections, topic, [0, 1])
    found = claimer.claim(10, HOLDER).deliveries
    assert sorted(texts(found)) == ["s0", "s1"]
    redis_client.set(slot_keys(topic.name, 1).retry, "someone else's")
    for delivery in found:
        delivery.mark(ACKED)
    with caplog.at_level(logging.WARNING):
        round_ = claimer.claim(0, HOLDER, found)
    assert round_.deliveries == []
    assert texts(round_.unsent) == ["s1"]  # to be sent again as long as its lease runs; the other one is done
    assert "WRONGTYPE" in caplog.text
    assert client.inspect(topic).stats([0]).total("acked") == 1
    # nothing to settle and nothing claimed: raised, and the slot is left alone for a moment
    claimer.expect(1)
    with pytest.raises(ScriptFailedError, match="slot 1"):
        claimer.claim(10, HOLDER)
    assert 0 < claimer.wait_s(5.0) <= TROUBLE_PAUSE_S
    producer.send(PriorityMessage("more", 100, slot_basis=bases[0]))
    claimer.expect(0)
    assert texts(claimer.claim(10, HOLDER).deliveries) == ["more"]


def test_a_look_at_a_broken_slot_does_not_hide_what_is_due_in_the_others(
    connections: Connections, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, checked=False)
    claimer = Claimer(connections, topic, range(4))
    claimer.claim(10, HOLDER)
    redis_client.set(slot_keys(topic.name, 0).store, "someone else's")
    redis_client.zadd(slot_keys(topic.name, 3).store, {"quiet": 100})
    with pytest.raises(ScriptFailedError, match="slot 0"):
        claimer.look()
    assert texts(claimer.claim(10, HOLDER).deliveries) == ["quiet"]


def test_a_lost_reply_is_not_asked_for_again_at_once(client: RmqClient, topic: Topic, proxy: Proxy) -> None:
    """Pitfall 1: each such claim may strand messages until their lease ends."""
    connections = Connections(parse_url(proxy.url))
    claimer = Claimer(connections, topic, [0, 1])
    claimer.claim(0, HOLDER)
    proxy.cut_before_reply(command="EVALSHA")
    claimer.expect(0)
    assert claimer.claim(1, HOLDER).deliveries == []
    assert claimer.lost_replies == 1
    assert stats_of(client, topic).in_flight == 1
    claimer.expect(1)
    assert len(claimer.claim(2, HOLDER).deliveries) in (1, 2)
    connections.close()


def test_an_outcome_that_never_got_out_is_handed_back(client: RmqClient, topic: Topic, proxy: Proxy) -> None:
    connections = Connections(parse_url(proxy.url), deadline_s=0.3)
    claimer = Claimer(connections, topic, [0, 1])
    found = claimer.claim(10, HOLDER).deliveries
    for delivery in found:
        delivery.mark(ACKED)
    proxy.refuse_connections()
    proxy.cut_now()
    wait_until(lambda: claimer.claim(0, HOLDER, found).unsent == found, 10)
    proxy.normal()
    assert claimer.claim(0, HOLDER, found).unsent == []
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)
    connections.close()


def test_wait_ends_when_woken(connections: Connections, make_topic: MakeTopic) -> None:
    claimer = Claimer(connections, make_topic(TopicType.PRIORITY), [0])
    claimer.claim(10, HOLDER)
    thread = threading.Thread(target=claimer.wait, args=(60.0,))
    started_s = monotonic_s()
    thread.start()
    claimer.wake_all()
    claimer.expect(0)
    thread.join(10)
    assert monotonic_s() - started_s < 10


def test_fewer_slots_at_once_where_they_are_full_and_more_where_they_are_not() -> None:
    assert next_width(16, 500, 500) == 8
    assert next_width(16, 500, 100) == 32
    assert next_width(FEWEST_SLOTS, 10, 10) == FEWEST_SLOTS
    assert next_width(MOST_SLOTS, 10, 0) == MOST_SLOTS


def test_outcomes_ride_on_claims_from_their_slot_and_all_go_where_nothing_is_due(
    client: RmqClient, connections: Connections, topic: Topic
) -> None:
    claimer = Claimer(connections, topic, [0, 1])
    held = claimer.claim(4, HOLDER).deliveries
    for delivery in held:
        delivery.mark(ACKED)
    asked: list[list[int] | None] = []

    def board(slots: Sequence[int] | None) -> list[Delivery]:
        asked.append(None if slots is None else sorted(slots))
        boarded = [delivery for delivery in held if slots is None or delivery.slot in slots]
        for delivery in boarded:
            held.remove(delivery)
        return boarded

    claimer.claim(1, HOLDER, board=board)
    assert stats_of(client, topic).total("acked") == 2
    left = claimer.claim(10, HOLDER, board=board).deliveries
    assert (stats_of(client, topic).total("acked"), held) == (4, [])
    for delivery in left:
        delivery.mark(ACKED)
    held += left
    claimer.claim(10, HOLDER, board=board)
    assert asked[0] is not None
    assert len(asked[0]) == 1
    assert asked[-1] is None


def test_an_outcome_that_comes_while_a_claim_is_under_way_is_not_dropped(
    redis_url: str, make_topic: MakeTopic, proxy: Proxy
) -> None:
    """As lanes of the asyncio side do, and a thread that stops the listener."""
    topic = make_topic(TopicType.PRIORITY, slots=2)
    with RmqClient(redis_url) as client:
        client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(2))
        connections = Connections(parse_url(proxy.url))
        claimer = Claimer(connections, topic, [0, 1])
        worker = Worker(Listener(topic, lambda delivery: None), claimer, threading.Event(), None, 0)
        found = claimer.claim(10, worker).deliveries
        assert len(found) == 2
        worker.held.deliveries = list(found)
        proxy.delay_replies(0.3)
        found[0].mark(ACKED)
        before = proxy.commands("EVALSHA")
        thread = threading.Thread(target=worker._round)  # pyright: ignore[reportPrivateUsage]
        thread.start()
        wait_until(lambda: proxy.commands("EVALSHA") > before)
        found[1].mark(ACKED)
        thread.join(10)
        assert found[1] in worker.held.deliveries
        worker._finish()  # pyright: ignore[reportPrivateUsage]
        assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)
        connections.close()
