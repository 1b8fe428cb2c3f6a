"""What consumers and listeners share: rounds of claims, and what a failing slot means for the others."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import redis

from rmq import Delivery, Listener, Observer, Observers, PriorityMessage, RmqClient, Topic, TopicType
from rmq._claiming.claim_planner import TROUBLE_PAUSE_S, ClaimPlanner, look
from rmq._claiming.fetcher import Fetcher
from rmq._claiming.rounds import ClaimPlan, FetchResult
from rmq._claiming.wakeups import Wakeups
from rmq._listening.handler_invoker import ListenerSetup
from rmq._listening.worker import PIGGYBACK_S, Worker
from rmq.errors import ScriptFailedError
from tests.conftest import MakeTopic
from tests.support.clients import left_in, stats_of, texts
from tests.support.core import (
    ACKED,
    WHOLE_BATCH,
    Claim,
    Connections,
    Outcomes,
    QueueBroker,
    Selection,
    deliveries_of,
    monotonic_s,
    parse_url,
    select,
    slot_keys,
    whole,
)
from tests.support.holders import HolderStub
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.waiting import LIMIT_S, wait_until

HOLDER = HolderStub()


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: Proxy) -> Iterator[Connections]:
    """Connections through the proxy."""
    with contextlib.closing(Connections(parse_url(proxy.url))) as connections:
        yield connections


def bases_of(topic: Topic) -> dict[int, str]:
    """A slot basis for each slot."""
    return {topic.slot_of(f"{i}".encode()): f"{i}" for i in range(20 * topic.slots)}


def planning(
    connections: Connections, topic: Topic, slots: Sequence[int] | None = None
) -> tuple[ClaimPlanner, Fetcher]:
    """What claims from a topic, from all of its slots unless told."""
    planner = ClaimPlanner(connections, topic, range(topic.slots) if slots is None else slots)
    return planner, Fetcher(planner, HOLDER)


def acked(found: Iterable[Delivery]) -> list[Selection]:
    """Mark what is to be acked, and select it."""
    for delivery in found:
        delivery.claim.settle_open(ACKED, (delivery.row,))
    return select(found)


@pytest.fixture
def topic(client: RmqClient, make_topic: MakeTopic) -> Topic:
    """A topic of two slots with three messages in each."""
    topic = make_topic(TopicType.PRIORITY, slots=2)
    bases = bases_of(topic)
    client.producer(topic).send_many(
        PriorityMessage(f"s{slot} m{i}", 100 - i, slot_basis=bases[slot]) for i in range(3) for slot in (0, 1)
    )
    return topic


def test_a_hint_that_overtakes_the_reply_of_a_claim_is_kept(
    client: RmqClient, make_topic: MakeTopic, proxied: Connections, proxy: Proxy
) -> None:
    """Pitfall 26: the claim found nothing, then something was sent, and the hint is here before the claim's reply."""
    topic = make_topic(TopicType.PRIORITY)
    planner, claims = planning(proxied, topic, [0])
    claims.claim(10)
    planner.expect(0)
    proxy.delay_replies(0.3)
    thread = threading.Thread(target=claims.claim, args=(10,))
    before = proxy.commands("EVALSHA")
    thread.start()
    wait_until(lambda: proxy.commands("EVALSHA") > before)
    planner.take_wakeups(Wakeups(((0, 0),), False))
    assert thread.is_alive()
    thread.join(10)
    assert planner.wait_s(5.0) == 0
    assert claims.claim(10).deliveries == []
    assert planner.wait_s(5.0) == 5.0  # and a hint too many costs one claim


def test_hints_for_slots_of_others_do_no_harm(connections: Connections, make_topic: MakeTopic) -> None:
    planner = ClaimPlanner(connections, make_topic(TopicType.PRIORITY, slots=2), [0])
    claims = Fetcher(planner, HOLDER)
    claims.claim(10)
    planner.take_wakeups(Wakeups((), False))
    planner.take_wakeups(Wakeups(((1, 0),), False))
    assert planner.wait_s(5.0) == 5.0


def test_what_is_claimed_is_shared_out_among_the_slots(connections: Connections, topic: Topic) -> None:
    _, claims = planning(connections, topic)
    found = claims.claim(3).deliveries
    assert sorted(texts(found)) == ["s0 m0", "s0 m1", "s1 m0"]
    round_ = claims.claim(10, acked(found))
    assert sorted(texts(round_.deliveries)) == ["s0 m2", "s1 m1", "s1 m2"]
    assert round_.unsent == []


def test_a_slot_that_fails_neither_hides_the_others_nor_has_outcomes_sent_twice(
    client: RmqClient, connections: Connections, make_topic: MakeTopic, redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    topic = make_topic(TopicType.PRIORITY, slots=2, checked=False)
    bases = bases_of(topic)
    producer = client.producer(topic)
    producer.send_many(PriorityMessage(f"s{slot}", 100, slot_basis=bases[slot]) for slot in (0, 1))
    planner, claims = planning(connections, topic)
    found = claims.claim(10).deliveries
    assert sorted(texts(found)) == ["s0", "s1"]
    redis_client.set(slot_keys(topic.name, 1).retry, "someone else's")
    with caplog.at_level(logging.WARNING):
        round_ = claims.claim(0, acked(found))
    assert round_.deliveries == []
    assert texts(deliveries_of(round_.unsent)) == [
        "s1"
    ]  # to be sent again as long as its lease runs; the other one is done
    assert "WRONGTYPE" in caplog.text
    assert client.inspect(topic).stats([0]).total("acked") == 1
    # nothing to settle and nothing claimed: raised, and the slot is left alone for a moment
    planner.expect(1)
    with pytest.raises(ScriptFailedError, match="slot 1"):
        claims.claim(10)
    assert 0 < planner.wait_s(5.0) <= TROUBLE_PAUSE_S
    producer.send(PriorityMessage("more", 100, slot_basis=bases[0]))
    planner.expect(0)
    assert texts(claims.claim(10).deliveries) == ["more"]


def test_a_look_at_a_broken_slot_does_not_hide_what_is_due_in_the_others(
    connections: Connections, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, checked=False)
    planner, claims = planning(connections, topic)
    claims.claim(10)
    redis_client.set(slot_keys(topic.name, 0).store, "someone else's")
    redis_client.zadd(slot_keys(topic.name, 3).store, {"quiet": 100})
    with pytest.raises(ScriptFailedError, match="slot 0"):
        planner.look()
    assert texts(claims.claim(10).deliveries) == ["quiet"]


def test_a_round_with_nothing_to_send_waits_for_no_server(
    client: RmqClient, connections: Connections, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to read the topology, which waits for a server that stands still; handlers waited with it."""

    def dispatch(*_: object) -> None:
        raise AssertionError("something was sent")

    client.producer(topic).send(PriorityMessage("a", 100))
    claims = Fetcher(ClaimPlanner(connections, topic, range(topic.slots)), HOLDER)
    [claim] = claims.claim(1).claims
    claim.settle_open(ACKED)
    monkeypatch.setattr(Connections, "dispatch", dispatch)
    monkeypatch.setattr(connections, "unresponsive_nodes", {1})
    monkeypatch.setattr(ClaimPlanner, "is_unresponsive", lambda *_: True)
    round_ = claims.carry_out(ClaimPlan([], False), [whole(claim)])
    assert (round_.claims, round_.settled, round_.unsent) == ([], [], [whole(claim)]), "its server is silent"


def test_a_lost_reply_is_not_asked_for_again_at_once(
    client: RmqClient, topic: Topic, proxied: Connections, proxy: Proxy
) -> None:
    """Pitfall 1: each such claim may strand messages until their lease ends."""
    planner, claims = planning(proxied, topic)
    claims.claim(0)
    proxy.cut_before_reply(command="EVALSHA")
    planner.expect(0)
    round_ = claims.claim(1)
    assert round_.deliveries == []
    assert stats_of(client, topic).in_flight == 1
    planner.expect(1)
    assert len(claims.claim(2).deliveries) in (1, 2)


def test_an_outcome_that_never_got_out_is_handed_back(client: RmqClient, topic: Topic, proxy: Proxy) -> None:
    connections = Connections(parse_url(proxy.url), deadline_s=0.3)
    _, claims = planning(connections, topic)
    found = claims.claim(10).deliveries
    acked(found)
    proxy.refuse_connections()
    proxy.cut_now()
    wait_until(lambda: set(deliveries_of(claims.claim(0, select(found)).unsent)) == set(found))
    proxy.normal()
    assert claims.claim(0, select(found)).unsent == []
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)
    connections.close()


def test_wait_ends_when_woken(connections: Connections, make_topic: MakeTopic) -> None:
    planner = ClaimPlanner(connections, make_topic(TopicType.PRIORITY), [0])
    claims = Fetcher(planner, HOLDER)
    claims.claim(10)
    thread = threading.Thread(target=planner.wait, args=(3_600.0,))
    thread.start()
    planner.wake_all()
    planner.expect(0)
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_slot_that_may_not_be_claimed_from_any_more_is_not_asked_for_without_a_pause(
    connections: Connections, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq._claiming.claim_planner.TROUBLE_PAUSE_S", 60.0)
    may_claim = False
    planner = ClaimPlanner(connections, topic, [0, 1], lambda slot, owner: slot == 1 or may_claim)
    claims = Fetcher(planner, HOLDER)
    planner.look()
    assert {delivery.slot for delivery in claims.claim(10).deliveries} == {1}
    assert planner.wait_s(5.0) == 5.0
    may_claim = True
    planner.expect(0)
    assert {delivery.slot for delivery in claims.claim(10).deliveries} == {0}


def test_outcomes_ride_on_claims_from_their_slot_and_all_go_where_nothing_is_due(
    client: RmqClient, connections: Connections, topic: Topic
) -> None:
    planner, claims = planning(connections, topic)
    held = claims.claim(4).claims
    for claimed in held:
        claimed.settle_open(ACKED)
    plans: list[ClaimPlan] = []

    def claim(limit: int) -> list[Claim]:
        """As a listener's thread does."""
        plans.append(plan := planner.plan(limit))
        slots = {visit.slot for visit in plan.requests}
        settled = [one for one in held if not plan.busy or one.slot in slots]
        held[:] = [one for one in held if one not in settled]
        return claims.carry_out(plan, [*map(whole, settled)]).claims

    claim(1)
    assert stats_of(client, topic).total("acked") == 2
    left = claim(10)
    assert (stats_of(client, topic).total("acked"), held) == (4, [])
    for claimed in left:
        claimed.settle_open(ACKED)
    held += left
    claim(10)
    assert (len(plans[0].requests), plans[-1].busy) == (1, False)


@pytest.mark.parametrize(("room", "acks"), [(1, [0, 2, 4, 5, 5]), (0, [0, 5, 5, 5, 5])])
def test_an_idle_worker_settles_a_few_slots_at_a_time_but_all_where_it_has_no_room(
    room: int,
    acks: list[int],
    client: RmqClient,
    connections: Connections,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To settle 900 of 1,024 slots in one round kept messages waiting for 30 to 60 ms that became due meanwhile."""
    monkeypatch.setattr("rmq._listening.worker.MOST_SETTLED", 2)
    monkeypatch.setattr("rmq._listening.worker.PIGGYBACK_S", 60.0)
    monkeypatch.setattr(Worker, "claims_ahead", lambda *args: False)
    topic = make_topic(TopicType.PRIORITY, slots=8)
    bases = bases_of(topic)
    client.producer(topic).send_many(PriorityMessage(f"{slot}", 1, slot_basis=bases[slot]) for slot in range(5))
    worker = a_worker(connections, topic)
    while worker.planner.wait_s(1.0) == 0:  # each slot is due until a claim says otherwise
        worker.round()
    assert worker.calls.handled == 5
    monkeypatch.setattr(worker, "room", lambda: room)
    acked = [stats_of(client, topic).total("acked")]
    rounds: list[bool] = []
    for _ in range(4):
        rounds.append(worker.round())
        acked.append(stats_of(client, topic).total("acked"))
    assert acked == acks
    assert rounds == [before < after for before, after in pairwise(acks)]
    assert worker.held.all() == []


def test_a_message_that_waited_for_its_twin_is_due_once_that_one_is_acked(
    client: RmqClient, connections: Connections, make_topic: MakeTopic
) -> None:
    """Another thread has found it in flight, and would look again in a second only."""
    topic = make_topic(TopicType.PRIORITY, slots=2)
    planner, claims = planning(connections, topic)
    client.producer(topic).send(PriorityMessage("a", 100))
    found = claims.claim(10).deliveries
    client.producer(topic).send(PriorityMessage("a", 100))
    planner.expect(found[0].slot)
    assert claims.claim(10).deliveries == []
    assert planner.wait_s(5.0) == 5.0
    claims.claim(0, acked(found))
    assert texts(claims.claim(10).deliveries) == ["a"]


def test_an_outcome_does_not_put_back_the_search_behind_thousands_in_flight(
    connections: Connections, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, checked=False)
    keys = slot_keys(topic.name, 0)
    planner, claims = planning(connections, topic, [0])
    redis_client.zadd(keys.store, {"first": 2_000})
    found = claims.claim(1).deliveries
    twins = {f"twin {number}": 1_000 for number in range(1_500)}
    redis_client.zadd(keys.store, {**twins, "behind": 500})
    redis_client.zadd(keys.prepare, dict.fromkeys(twins, found[0].claim_score))
    planner.expect(0)
    assert claims.claim(1).deliveries == []  # a search ends after about 1,000
    claims.claim(0, acked(found))
    assert texts(claims.claim(1).deliveries) == ["behind"]


def test_a_look_that_took_long_does_not_spoil_what_is_known_of_redis_time(
    make_topic: MakeTopic, proxied: Connections, proxy: Proxy
) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=2)
    planner, claims = planning(proxied, topic)
    planner.look()
    claims.claim(1)
    planner.expect(0)
    claims.claim(1)
    schedule, at_s = planner.due_times, monotonic_s()
    known_ms = schedule._advance(at_s)  # pyright: ignore[reportPrivateUsage]
    proxy.delay_replies(0.3)
    planner.look()
    assert schedule._advance(at_s) >= known_ms  # pyright: ignore[reportPrivateUsage]


def test_acks_of_a_claim_that_come_late_are_carried_out_while_nobody_else_has_it(
    client: RmqClient, connections: Connections, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    """Redis acks a claim as a whole only while its lease runs; handed back, they would be dropped as too late."""
    topic = make_topic(TopicType.PRIORITY, slots=2)
    bases = bases_of(topic)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100, slot_basis=bases[0]) for i in range(3))
    _, claims = planning(connections, topic)
    [found] = claims.claim(10).claims
    found.settle_open(ACKED)
    found.score -= 100_000
    found.lease_until_s -= 100
    redis_client.zadd(slot_keys(topic.name, 0).prepare, dict.fromkeys(found.rows.contents, found.score))
    assert claims.claim(0, [whole(found)]).unsent == []
    assert stats_of(client, topic).total("acked") == 3


def a_worker(connections: Connections, topic: Topic, observers: Observers | None = None) -> Worker:
    planner, _ = planning(connections, topic)
    setup = ListenerSetup(Listener(topic, lambda delivery: None), threading.Event(), observers=observers or Observers())
    return Worker(setup, planner, 0)


def test_a_batch_counts_whole_also_if_its_handler_takes_from_the_list(
    client: RmqClient, connections: Connections, topic: Topic
) -> None:
    listener = Listener(topic, lambda got: got.__delitem__(slice(1, None)), batch=6)
    worker = Worker(ListenerSetup(listener, threading.Event()), planning(connections, topic)[0], 0)
    while stats_of(client, topic).total("acked") < 6:
        worker.round()
    assert worker.calls.handled == 6


def held_by(worker: Worker, limit: int) -> list[Delivery]:
    """What a worker claims and holds."""
    found = worker.claims.claim(limit).deliveries
    worker.held.claims = [claim for claim, _ in select(found)]
    return found


def test_outcomes_that_come_too_late_are_not_given_up_in_silence(
    connections: Connections, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    worker = a_worker(connections, topic)
    late, other = worker.claims.claim(10).claims
    worker.held.claims = [late, other]
    late.lease_until_s = 0.0
    with caplog.at_level(logging.WARNING):
        worker._drop(FetchResult(unsent=[whole(late), whole(other)]))  # pyright: ignore[reportPrivateUsage]
    assert (worker.held.claims, list(late.lost)) == ([other], [1] * 3)
    assert "the acks or nacks of 3 messages did not reach Redis before their leases expired" in caplog.text


def test_outcomes_with_a_lost_reply_are_not_told_as_carried_out(
    client: RmqClient, topic: Topic, proxied: Connections, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """They may be, or not: nothing is sent again, the leases settle it."""

    told: list[Delivery] = []

    class Watch(Observer):
        def settled(self, deliveries: Sequence[Delivery]) -> None:
            told.extend(deliveries)

    observers = Observers()
    observers.all.append(Watch())
    worker = a_worker(proxied, topic, observers)
    found = held_by(worker, 4)
    found[0].claim.settle_open(ACKED, (found[0].row,))
    worker.settle_only()
    assert told == found[:1]
    proxy.cut_before_reply(command="EVALSHA")
    acked(found[1:])
    with caplog.at_level(logging.WARNING):
        worker.settle_only()
    assert (told, worker.held.all()) == (found[:1], [])
    assert "the reply to the outcomes of 3 deliveries was lost" in caplog.text
    assert stats_of(client, topic).total("acked") == 4


def test_an_ack_does_not_ride_on_beside_a_slow_handler(
    client: RmqClient, connections: Connections, topic: Topic
) -> None:
    worker = a_worker(connections, topic)
    found = held_by(worker, 1)
    found[0].claim.settle_open(ACKED, (found[0].row,))
    worker.held.defer_acks(0.0)
    worker.calls.began_s = monotonic_s() + 60
    worker.return_stalled()
    assert stats_of(client, topic).total("acked") == 0
    worker.calls.began_s -= 60 + PIGGYBACK_S
    worker.return_stalled()
    assert stats_of(client, topic).total("acked") == 1
    assert worker.held.all() == []


@pytest.mark.parametrize("end", ["stop", "end", "hand over"])
def test_no_ack_rides_on_when_its_worker_stops_ends_or_hands_over(
    end: str, client: RmqClient, connections: Connections, topic: Topic
) -> None:
    worker = a_worker(connections, topic)
    acked(held_by(worker, 4))
    worker.held.defer_acks(0.0)
    assert (len(worker.held.deferred), worker.slots_held()) == (2, {0, 1})
    if end == "stop":
        worker.release_waiting()
    elif end == "end":
        worker.finish()
    else:
        assert worker.has_left(0)
    assert stats_of(client, topic).total("acked") == 4
    assert worker.held.all() == []


def test_a_worker_ends_after_acks_that_another_thread_just_sends(
    client: RmqClient, connections: Connections, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop gives back in a thread of its own, beside the worker that ends."""
    worker = a_worker(connections, topic)
    acked(held_by(worker, 4))
    worker.held.defer_acks(0.0)
    taking, going_on = threading.Event(), threading.Event()
    take = worker.held.take_deferred

    def take_slowly(*args: Any) -> None:
        if taking.is_set():
            take(*args)
            return
        deferred, worker.held.deferred = worker.held.deferred, {}
        taking.set()
        going_on.wait(60)
        worker.held.deferred = deferred
        take(*args)

    monkeypatch.setattr(worker.held, "take_deferred", take_slowly)
    stop, end = threading.Thread(target=worker.release_waiting), threading.Thread(target=worker.finish)
    stop.start()
    assert taking.wait(60)
    end.start()
    end.join(0.3)
    assert end.is_alive()
    going_on.set()
    end.join(60)
    assert stats_of(client, topic).total("acked") == 4
    stop.join(60)


def test_to_give_back_does_not_go_on_for_what_a_server_does_not_take(
    connections: Connections, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other outcomes may go with each call, as long as handlers are at work."""
    worker = a_worker(connections, topic)
    left, calls = iter([100, 40, 40, 40]), list[None]()

    def settle_only() -> bool:
        calls.append(None)
        return True

    monkeypatch.setattr(worker, "settle_only", settle_only)
    monkeypatch.setattr(worker, "going_back", lambda: next(left))
    worker.release_waiting()
    assert len(calls) == 3


def test_to_give_back_goes_on_beside_what_an_earlier_claim_could_not_settle(
    client: RmqClient, connections: Connections, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its acks were asked for by name, and counted as if this call's outcomes had not been sent."""
    monkeypatch.setattr("rmq._claiming.fetcher.PIGGYBACKED_NACKS", 1)
    worker = a_worker(connections, topic)
    first, second = worker.claims.claim(4).claims
    first.outcomes[0] = ACKED
    worker.claims.claim(0, [Selection(first, [0])])
    worker.held.claims = [first, second]
    worker.waiting.append(whole(second))
    first.outcomes[1] = ACKED
    first.busy = True
    monkeypatch.setattr(worker.claims, "_kept", FetchResult(unsent=[Selection(first, [1])]))
    worker.release_waiting()
    assert (len(second), worker.going_back()) == (2, 0)
    assert stats_of(client, topic).total("acked") == 1


def test_to_give_back_ends_once_the_handler_that_was_slow_has_ended(
    connections: Connections, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread claims again by then: that must not go back."""
    worker = a_worker(connections, topic)
    worker.held.claims = worker.claims.claim(4).claims
    worker.waiting.extend(map(whole, worker.held.claims))
    settle_only, calls = worker.settle_only, list[bool]()

    def settle() -> bool:
        calls.append(settle_only())
        worker.calls.began_s = monotonic_s()  # the next handler
        found = worker.claims.claim(1).claims
        worker.held.claims += found
        worker.waiting.extend(map(whole, found))
        return calls[-1]

    monkeypatch.setattr(worker, "settle_only", settle)
    worker.calls.began_s = monotonic_s() - 60
    worker.return_stalled()
    assert calls == [True]
    assert [claim.outcomes for claim, _ in worker.waiting] == [[None]]
    monkeypatch.undo()
    worker.release_waiting()


def test_many_whole_claims_are_acked_in_several_calls(
    make_topic: MakeTopic, redis_client: redis.Redis, proxied: Connections, proxy: Proxy
) -> None:
    """Pitfall 16: a script that has written can't be stopped."""
    topic = make_topic(TopicType.PRIORITY, slots=2, checked=False)
    prepare = slot_keys(topic.name, 0).prepare
    seconds: Any = redis_client.time()
    scores = [(seconds[0] * 1_000 + number) * 1_000 for number in range(300)]
    redis_client.zadd(prepare, {f"{score} {half}": score for score in scores for half in "ab"})
    writer = QueueBroker(proxied, topic)
    claims = [(score, 2) for score in scores]
    wrong = [(score, 3) for score in (scores[0], scores[-1])]
    mixed = [wrong[0], *claims[1:-1], wrong[1]]
    parts = [mixed[first : first + WHOLE_BATCH] for first in range(0, len(mixed), WHOLE_BATCH)]
    replies = proxied.run_many([writer.settle_call(0, Outcomes(whole=part)) for part in parts])
    assert [score for reply in replies for score in reply.unmatched] == [scores[0], scores[-1]]
    assert proxy.commands("EVALSHA") in (2, 3, 4)  # one more each, where the script was not loaded
    assert redis_client.zcard(prepare) == 4


def test_an_outcome_that_comes_while_a_claim_is_under_way_is_not_dropped(
    client: RmqClient, make_topic: MakeTopic, proxied: Connections, proxy: Proxy
) -> None:
    """As lanes of the asyncio side do, and a thread that stops the listener."""
    topic = make_topic(TopicType.PRIORITY, slots=2)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(2))
    worker = a_worker(proxied, topic)
    found = held_by(worker, 10)
    assert len(found) == 2
    proxy.delay_replies(0.3)
    found[0].claim.settle_open(ACKED, (found[0].row,))
    before = proxy.commands("EVALSHA")
    thread = threading.Thread(target=worker.round)
    thread.start()
    wait_until(lambda: proxy.commands("EVALSHA") > before)
    found[1].claim.settle_open(ACKED, (found[1].row,))
    thread.join(10)
    assert [bytes(claim.ended) for claim in worker.held.claims] in ([b"\1\0"], [b"\0"])
    worker.finish()
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)


def test_many_slots_are_looked_at_part_by_part(
    client: RmqClient, connections: Connections, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1_024)
    planner, claims = planning(connections, topic)

    def look_at_a_part() -> None:
        look(connections, [(planner, slot) for slot in planner.next_slots(256)])

    while planner.wait_s(1.0) == 0:  # each is due until a claim says otherwise
        claims.claim(500)
    bases = bases_of(topic)
    client.producer(topic).send_many(
        PriorityMessage(f"m{slot}", 100, slot_basis=bases[slot]) for slot in (5, 300, 600, 999)
    )
    found: list[list[str]] = []
    for _ in range(4):
        look_at_a_part()
        found.append(texts(claims.claim(10).deliveries))
    assert found == [["m5"], ["m300"], ["m600"], ["m999"]]
