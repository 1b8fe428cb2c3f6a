"""A listener's next claim is on its way while its handler runs: bounded, given back, and lost with no message."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import redis

from rmq import (
    Adaptive,
    Delivery,
    DeliveryColumns,
    ExponentialRetry,
    PriorityMessage,
    RmqClient,
    StreamMessage,
    Topic,
    TopicType,
)
from rmq.errors import ScriptFailedError
from tests.conftest import MakeTopic
from tests.integration._claiming.test_claim_planner import HOLDER
from tests.support.clients import left_in, limits_of, run_until, stats_of, texts
from tests.support.core import (
    ACKED,
    BATCHES_S,
    MANY_SLOTS,
    MOST_BATCHED,
    MOST_PREFETCHED,
    NO_OWNER,
    PIGGYBACKED_NACKS,
    ClaimPlan,
    ClaimPlanner,
    ClaimRequest,
    Connections,
    Fetcher,
    ListenerRunner,
    PrefetchSize,
    deliveries_of,
    select,
    slot_keys,
)
from tests.support.waiting import wait_until

SECOND = timedelta(seconds=1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, client: RmqClient, make_topic: MakeTopic) -> None:
    """Handlers count as quick, however long they take, and claims are one batch; and Redis knows the scripts."""
    monkeypatch.setattr(PrefetchSize, "takes_s", lambda _, messages: 0.001 if messages else 0.0)
    messages = PrefetchSize.messages
    monkeypatch.setattr(PrefetchSize, "messages", lambda self, within_s: min(9, messages(self, within_s)))
    with client.consumer(make_topic(TopicType.PRIORITY, slots=4)) as consumer:
        assert consumer.poll() == []


def send(client: RmqClient, topic: Topic, number: int) -> set[str]:
    """Send so many messages; return their contents."""
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 1_000 - i) for i in range(number))
    return {f"m{i}" for i in range(number)}


def in_flight(client: RmqClient, topic: Topic) -> int:
    """How many messages are claimed and not settled."""
    return stats_of(client, topic).in_flight


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("slots", [1, 4])
def test_the_next_claim_is_carried_out_while_the_handler_runs(
    client: RmqClient, make_topic: MakeTopic, slots: int
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=slots)
    wanted = send(client, topic, 40)
    seen: list[str] = []
    most: list[int] = []

    @client.listener(topic, batch=10)
    def handle(deliveries: list[Delivery]) -> None:
        if len(seen) < 20:  # its own, and the ones claimed ahead
            wait_until(lambda: in_flight(client, topic) == 20)
        seen.extend(texts(deliveries))
        most.append(in_flight(client, topic))

    run_until(client, lambda: left_in(stats_of(client, topic))[:3] == (0, 0, 0))
    assert Counter(seen) == Counter(wanted)
    assert max(most) <= 30  # with those whose acks ride on the claim after
    assert stats_of(client, topic).total("delivered") == stats_of(client, topic).total("acked") == 40


def quick_or_slow(client: RmqClient, topic: Topic, pause_s: float) -> list[int]:
    """How much was in flight whenever a handler that takes so long was about to end."""
    found: list[int] = []

    @client.listener(topic, batch=10)
    def handle(deliveries: list[Delivery]) -> None:
        time.sleep(pause_s)
        found.append(in_flight(client, topic) - len(deliveries))

    run_until(client, lambda: left_in(stats_of(client, topic))[:3] == (0, 0, 0))
    return found


def test_slow_handlers_have_nothing_claimed_ahead(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    send(client, topic, 50)
    assert quick_or_slow(client, topic, 0.06) == [0] * 5


@pytest.mark.usefixtures("quick")
def test_adaptive_handlers_have_nothing_claimed_ahead(client: RmqClient, make_topic: MakeTopic) -> None:
    stream = make_topic(TopicType.STREAM, checked=False)
    client.listener(stream, group="g", start="all", batch=10)(lambda deliveries: None)
    adaptive = make_topic(TopicType.PRIORITY)
    client.listener(adaptive, adaptive=Adaptive())(lambda delivery: None)
    plain = make_topic(TopicType.PRIORITY)
    client.listener(plain)(lambda delivery: None)
    client.start()
    runners: list[ListenerRunner] = client._listeners.runners  # pyright: ignore[reportPrivateUsage]
    ahead = {each.topic.name: each._threads[0].may_claim_ahead for each in runners}  # pyright: ignore[reportPrivateUsage]
    client.stop()
    assert ahead == {stream.name: True, adaptive.name: False, plain.name: True}


@pytest.mark.usefixtures("quick")
def test_a_stop_gives_back_what_was_claimed_ahead(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    wanted = send(client, topic, 30)
    begun, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    @client.listener(topic, batch=10)
    def handle(deliveries: list[Delivery]) -> None:
        seen.extend(texts(deliveries))
        begun.set()
        assert go_on.wait(60)

    client.start()
    assert begun.wait(60)
    wait_until(lambda: in_flight(client, topic) == 20)
    stopper = threading.Thread(target=client.stop, args=(30,))
    stopper.start()
    wait_until(lambda: in_flight(client, topic) == 10)  # at once, though the handler still runs
    go_on.set()
    stopper.join(60)
    assert left_in(stats_of(client, topic))[:3] == (20, 0, 0)
    with client.consumer(topic) as other:
        rest = other.poll(100)
        assert {delivery.attempt for delivery in rest} == {1}
        assert set(texts(rest)) == wanted - set(seen)
        other.ack(rest)


@pytest.mark.usefixtures("quick")
def test_what_was_claimed_ahead_of_a_slow_handler_goes_to_others(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    send(client, topic, 20)
    begun, go_on = threading.Event(), threading.Event()

    @client.listener(topic, batch=10)
    def handle(deliveries: list[Delivery]) -> None:
        begun.set()
        assert go_on.wait(60)

    client.start()
    assert begun.wait(60)
    wait_until(lambda: in_flight(client, topic) == 20)
    found: list[Delivery] = []
    with client.consumer(topic) as other:
        wait_until(lambda: found.extend(other.poll(timeout=0.5)) or len(found) == 10)
        assert {delivery.attempt for delivery in found} == {1}
        assert other.ack(found) == []
    go_on.set()
    client.stop()
    assert left_in(stats_of(client, topic))[:3] == (0, 0, 0)


@pytest.mark.usefixtures("quick")
def test_a_connection_that_breaks_below_a_claim_ahead_loses_nothing(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, lease=2 * SECOND)
    wanted = send(client, topic, 200)
    seen: Counter[str] = Counter()
    cuts = 0

    @client.listener(topic, batch=10)
    def handle(deliveries: list[Delivery]) -> None:
        nonlocal cuts
        seen.update(texts(deliveries))
        if cuts < 5:
            cuts += 1
            redis_client.client_kill_filter(_type="normal", skipme=True)

    run_until(client, lambda: left_in(stats_of(client, topic))[:3] == (0, 0, 0) and set(seen) == wanted)
    assert cuts == 5
    assert stats_of(client, topic).total("acked") == 200
    assert stats_of(client, topic).dead == 0


def test_the_next_claim_from_many_slots_begins_while_its_messages_are_made_ready(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the handler takes no time: each slot has a reply, and an ack, of its own."""
    monkeypatch.setattr("rmq._claiming.rounds.FEWEST_SLOTS", 2 * MANY_SLOTS)  # claims that come back full stay wide
    monkeypatch.setattr("rmq._listening.worker.SLOW_S", 60.0)
    monkeypatch.setattr(PrefetchSize, "takes_s", lambda *_: 0.0)
    monkeypatch.setattr(PrefetchSize, "messages", lambda *_: 1)  # a claim is one batch
    topic = make_topic(TopicType.PRIORITY, slots=512)
    client.producer(topic)
    seen: list[str] = []
    ahead: list[bool] = []
    all_sent = threading.Event()

    @client.listener(topic, batch=20)
    def handle(deliveries: list[Delivery]) -> None:
        all_sent.wait(30)
        is_first = not seen  # of a handler of which nothing is known
        seen.extend(texts(deliveries))
        if len({delivery.slot for delivery in deliveries}) >= MANY_SLOTS and len(seen) < 400 and not is_first:
            ahead.append(runner._threads[0].claims.is_ahead)  # pyright: ignore[reportPrivateUsage]

    client.start()
    runner: ListenerRunner = client._listeners.runners[0]  # pyright: ignore[reportPrivateUsage]
    planner = runner.planners[0]
    wait_until(lambda: planner.wait_s(1.0) > 0)  # it has found all slots empty
    wanted = send(client, topic, 640)
    planner.look(at_all=True)  # it knows of all, whatever hints it has heard by now
    all_sent.set()
    wait_until(lambda: left_in(stats_of(client, topic))[:3] == (0, 0, 0))
    client.stop()
    assert Counter(seen) == Counter(wanted)
    assert len(ahead) >= 3
    assert all(ahead)
    assert stats_of(client, topic).total("delivered") == stats_of(client, topic).total("acked") == 640


@pytest.mark.parametrize("slots", [1, 4])
def test_the_next_claim_of_many_entries_begins_while_they_are_made_ready(
    client: RmqClient,
    make_topic: MakeTopic,
    redis_client: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    slots: int,
) -> None:
    """Also where the handler takes no time: to make deliveries of so many takes the client long enough."""
    monkeypatch.setattr(PrefetchSize, "takes_s", lambda *_: 0.0)  # this one asks Redis, which may take long
    monkeypatch.setattr(PrefetchSize, "messages", lambda *_: 1)  # a claim is one batch
    topic = make_topic(TopicType.STREAM, checked=False, slots=slots)
    client.producer(topic).send_many(StreamMessage(f"e{i}") for i in range(1_000))
    seen: list[str] = []
    held: list[int] = []

    @client.listener(topic, group="g", start="all", batch=100)
    def handle(deliveries: list[Delivery]) -> None:
        seen.extend(texts(deliveries))
        if 300 <= len(seen) <= 500:
            wait_until(lambda: client.stream(topic).group("g").pending >= 200)
        held.append(client.stream(topic).group("g").pending)

    run_until(client, lambda: len(seen) == 1_000 and client.stream(topic).group("g").pending == 0)
    assert Counter(seen) == Counter(f"e{i}" for i in range(1_000))
    if slots == 1:
        assert seen == [f"e{i}" for i in range(1_000)]
    assert max(held) <= 300  # with those whose acks ride on the claim after
    group = client.stream(topic).group("g")
    assert group.total("delivered") == group.total("acked") == 1_000
    stale = [record for record in caplog.records if "lease had been lost" in record.message]
    assert stale == []  # each ack is sent once
    rows = [row for slot in range(slots) for row in redis_client.xinfo_consumers(f"{topic.name}_{slot}", "g")]
    assert [row["name"] for row in rows if b"#" in row["name"]] == []


def test_a_stop_gives_back_entries_that_were_claimed_ahead(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    client.producer(topic).send_many(StreamMessage(f"e{i}") for i in range(500))
    begun, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    @client.listener(topic, group="g", start="all", batch=100)
    def handle(deliveries: list[Delivery]) -> None:
        seen.extend(texts(deliveries))
        if len(seen) > 200:
            begun.set()
            assert go_on.wait(60)

    client.start()
    assert begun.wait(60)
    wait_until(lambda: client.stream(topic).group("g").pending >= 200)
    stopper = threading.Thread(target=client.stop, args=(30,))
    stopper.start()
    go_on.set()
    stopper.join(60)
    assert client.stream(topic).group("g").in_flight == 0
    with client.consumer(topic, group="g") as other:
        rest = other.poll(1_000, 1.0)
        while more := other.poll(1_000):
            rest += more
        assert {delivery.attempt for delivery in rest} == {1}
        assert Counter(seen + texts(rest)) == Counter(f"e{i}" for i in range(500))
        assert other.ack(rest) == []


# --- the executor


@pytest.fixture
def at_work(
    client: RmqClient, connections: Connections, make_topic: MakeTopic
) -> Callable[[], tuple[Topic, ClaimPlanner]]:
    """A topic of one slot with five messages, and its planner."""

    def make() -> tuple[Topic, ClaimPlanner]:
        topic = make_topic(TopicType.PRIORITY, checked=False)
        send(client, topic, 5)
        return topic, ClaimPlanner(connections, topic, [0])

    return make


def test_what_is_settled_ahead_is_under_way_until_it_is_collected(
    client: RmqClient, at_work: Callable[[], tuple[Topic, ClaimPlanner]]
) -> None:
    topic, planner = at_work()
    claims = Fetcher(planner, HOLDER)
    found = claims.claim(2).deliveries
    for delivery in found:
        delivery.claim.settle_open(ACKED, (delivery.row,))
        delivery.claim.busy = True
    assert not claims.is_ahead
    begun = claims.begin(planner.plan(2), select(found))
    claims.free(select(found))
    assert (begun.deliveries, begun.unsent) == ([], [])
    assert claims.is_ahead
    assert claims.has_earlier
    assert claims.pending_slots() == {0}
    assert all(delivery.claim.busy for delivery in found)
    round_ = claims.collect()
    assert texts(round_.deliveries) == ["m2", "m3"]
    assert deliveries_of(round_.settled) == found
    assert not any(delivery.claim.busy for delivery in found)
    assert not claims.is_ahead
    assert not claims.has_earlier
    assert stats_of(client, topic).total("acked") == 2


def test_an_error_of_a_claim_ahead_is_raised_and_its_outcomes_are_sent_again(
    client: RmqClient, redis_client: redis.Redis, at_work: Callable[[], tuple[Topic, ClaimPlanner]]
) -> None:
    topic, planner = at_work()
    claims = Fetcher(planner, HOLDER)
    keys = slot_keys(topic.name, 0)
    redis_client.set(keys.retry, "someone else's")
    planner.expect(0)
    claims.begin(planner.plan(2))
    with pytest.raises(ScriptFailedError, match="WRONGTYPE"):
        claims.collect()
    redis_client.delete(keys.retry)
    planner.expect(0)
    found = claims.claim(2).deliveries
    for delivery in found:
        delivery.claim.settle_open(ACKED, (delivery.row,))
    redis_client.set(keys.retry, "someone else's")
    claims.begin(planner.plan(2), select(found))
    round_ = claims.collect()
    assert (deliveries_of(round_.unsent), round_.settled) == (found, [])
    assert not any(delivery.claim.busy for delivery in found)
    redis_client.delete(keys.retry)
    assert claims.claim(0, select(found)).unsent == []
    assert stats_of(client, topic).total("acked") == 2


def test_the_next_claim_begins_before_the_deliveries_are_made(
    client: RmqClient, at_work: Callable[[], tuple[Topic, ClaimPlanner]]
) -> None:
    topic, planner = at_work()
    claims = Fetcher(planner, HOLDER)
    claims.claim(1)
    claims.begin(planner.plan(2))
    come: list[tuple[int, int]] = []

    def begin_next(number: int, slots: int) -> None:
        come.append((number, slots))
        claims.begin(planner.plan(1))

    assert texts(claims.collect(begin_next).deliveries) == ["m1", "m2"]
    assert claims.is_ahead

    def fail(number: int, slots: int) -> None:
        come.append((number, slots))
        raise ScriptFailedError("refused")

    assert texts(claims.collect(fail).deliveries) == ["m3"]
    assert come == [(2, 1), (1, 1)]
    assert not claims.is_ahead
    assert texts(claims.claim(5).deliveries) == ["m4"]
    assert stats_of(client, topic).in_flight == 5


def test_no_claim_begins_from_there_while_slots_have_come_back_in_a_newer_epoch(
    at_work: Callable[[], tuple[Topic, ClaimPlanner]],
) -> None:
    """It would be planned before what has come is held, and might fence it."""
    _, planner = at_work()
    claims, begun = Fetcher(planner, HOLDER), list[int]()
    claims.claim(1)
    for regained in ({0}, set[int]()):
        planner.regained = regained
        claims.begin(ClaimPlan([ClaimRequest(0, NO_OWNER, 1)], True))
        assert len(claims.collect(lambda number, _: begun.append(number)).deliveries) == 1
    assert begun == [1]


def test_a_reply_that_another_call_takes_is_not_lost(at_work: Callable[[], tuple[Topic, ClaimPlanner]]) -> None:
    _, planner = at_work()
    claims = Fetcher(planner, HOLDER)
    claims.claim(1)
    claims.begin(planner.plan(2))
    assert texts(claims.claim(0).deliveries) == ["m1", "m2"]
    assert not claims.is_ahead


@pytest.mark.parametrize("slots", [1, 4])
def test_quick_handlers_of_small_batches_claim_several_at_a_time(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    monkeypatch.setattr("rmq._listening.worker.SLOW_S", 60.0)  # a machine that stands still for a moment
    limits = limits_of(monkeypatch)
    topic = make_topic(TopicType.PRIORITY, slots=slots)
    wanted = send(client, topic, 999)
    seen: list[list[str]] = []

    @client.listener(topic, batch=7)
    def handle(deliveries: list[Delivery]) -> None:
        seen.append(texts(deliveries))

    run_until(client, lambda: left_in(stats_of(client, topic))[:3] == (0, 0, 0))
    assert Counter(text for part in seen for text in part) == Counter(wanted)
    assert max(map(len, seen)) == 7
    assert limits[0] == 7  # nothing is known of the handler yet
    assert 7 < max(limits) <= MOST_BATCHED
    assert all(limit % 7 == 0 for limit in limits)


def test_batches_that_take_their_time_are_claimed_one_at_a_time(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = limits_of(monkeypatch)
    topic = make_topic(TopicType.PRIORITY)
    send(client, topic, 50)
    assert quick_or_slow(client, topic, 0.06) == [0] * 5
    assert set(limits) <= {0, 10}


def test_batches_of_a_few_milliseconds_are_claimed_one_at_a_time(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a process that is killed would repeat more than one of them."""
    limits = limits_of(monkeypatch)
    topic = make_topic(TopicType.PRIORITY)
    send(client, topic, 200)
    client.listener(topic, batch=10)(lambda deliveries: time.sleep(BATCHES_S))
    run_until(client, lambda: left_in(stats_of(client, topic))[:3] == (0, 0, 0))
    assert set(limits) <= {0, 10}


def test_quick_handlers_of_columns_claim_a_batch_from_each_of_several_slots(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim in columns is acked as a whole, so it must not be larger than a batch."""
    monkeypatch.setattr("rmq._listening.worker.SLOW_S", 60.0)  # a machine that stands still for a moment
    limits = limits_of(monkeypatch)
    topic = make_topic(TopicType.PRIORITY, slots=8)
    wanted = send(client, topic, 999)
    seen: list[list[str]] = []

    @client.listener(topic, batch=20, columns=True)
    def handle(columns: DeliveryColumns) -> None:
        seen.append([content.decode() for content in columns.contents])

    run_until(client, lambda: left_in(stats_of(client, topic))[:3] == (0, 0, 0))
    assert Counter(text for part in seen for text in part) == Counter(wanted)
    assert max(map(len, seen)) == 20 < max(limits)


def test_claims_of_adaptive_handlers_are_one_batch(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = limits_of(monkeypatch)
    topic = make_topic(TopicType.PRIORITY)
    send(client, topic, 500)
    client.listener(topic, batch=10, adaptive=Adaptive())(lambda deliveries: None)
    run_until(client, lambda: left_in(stats_of(client, topic))[:3] == (0, 0, 0))
    assert set(limits) <= {0, 1, 10}


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim asks for as many messages as one may, once the handler is known not to be slow."""

    def messages(self: PrefetchSize, within_s: float = 0.0) -> int:
        del within_s
        return MOST_PREFETCHED if self.is_known and self.takes_s(1) < 0.01 else 1

    monkeypatch.setattr(PrefetchSize, "messages", messages)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("batch", [None, 10])
def test_what_waits_goes_back_once_a_handler_has_become_slow(
    client: RmqClient, make_topic: MakeTopic, batch: int | None
) -> None:
    """Also where no call takes as long as the watcher would wait: else it waited for all of them together."""
    topic = make_topic(TopicType.PRIORITY)
    send(client, topic, 999)
    held: list[int] = []
    quick = 100

    def handle(got: Any) -> None:
        nonlocal quick
        quick -= batch or 1
        if quick <= 0:
            time.sleep(0.3)
            held.append(in_flight(client, topic))

    client.listener(topic, batch=batch)(handle)
    run_until(client, lambda: len(held) >= 4)
    assert held[0] > 100  # claimed while it was quick
    assert min(held[1:4]) < 100


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("batch", [None, 10])
def test_a_handler_that_fails_at_once_does_not_hold_the_whole_backlog(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, batch: int | None
) -> None:
    """A call takes along so many nacks of a slot, and a claim may bring far more messages."""
    monkeypatch.setattr("rmq._listening.worker.SLOW_S", 60.0)  # the handler asks Redis, which may take long
    topic = make_topic(TopicType.PRIORITY, retry=ExponentialRetry(base=timedelta(hours=1), cap=timedelta(hours=2)))
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(3_000))
    held: list[int] = []
    calls = count()

    def handle(got: Any) -> None:
        if next(calls) % 10 == 0:
            held.append(in_flight(client, topic))
        raise ValueError("no")

    client.listener(topic, batch=batch)(handle)
    run_until(client, lambda: stats_of(client, topic).waiting >= 1_500)
    # what is handled, what is claimed ahead, and what goes back with the calls after
    assert max(held) <= 2 * MOST_PREFETCHED + 3 * PIGGYBACKED_NACKS


def test_nothing_is_claimed_ahead_of_a_handler_of_which_nothing_is_known(
    client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2 * MANY_SLOTS)
    send(client, topic, 900)
    begun, go_on = threading.Event(), threading.Event()
    held: list[int] = []

    @client.listener(topic, batch=300)
    def handle(deliveries: list[Delivery]) -> None:
        if not held:
            held.append(len(deliveries))
            begun.set()
            assert go_on.wait(60)

    client.start()
    assert begun.wait(60)
    time.sleep(0.2)
    assert in_flight(client, topic) == held[0]
    go_on.set()
    wait_until(lambda: left_in(stats_of(client, topic))[:3] == (0, 0, 0))
    client.stop()
