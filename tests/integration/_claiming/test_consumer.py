"""Consuming by pull: polls, settling, leases, order, fairness, wake-ups."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import redis

from rmq import (
    Consumer,
    Delivery,
    FixedTimeMessage,
    ImmediateRetry,
    PriorityMessage,
    Producer,
    RangeMergeMessage,
    RmqClient,
    Topic,
    TopicType,
)
from rmq.errors import AlreadySettledError, InvalidValueError, RedisUnavailableError, ScriptFailedError
from tests.conftest import MakeTopic
from tests.support.clients import drain, left_in, stats_of, texts
from tests.support.core import Call, Connections, Outcomes, QueueBroker, slot_keys
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.sides import Side
from tests.support.waiting import wait_until

SECOND = timedelta(seconds=1)


def redis_ms(redis_client: redis.Redis) -> int:
    seconds, microseconds = redis_client.time()  # pyright: ignore[reportGeneralTypeIssues]
    return seconds * 1000 + microseconds // 1000


# --- polls


@pytest.mark.parametrize("most", [0, -1, 10_001, 1.5, True])
def test_max_messages_out_of_range(client: RmqClient, make_topic: MakeTopic, most: int) -> None:
    with pytest.raises(InvalidValueError, match="max_messages"):
        client.consumer(make_topic(TopicType.PRIORITY)).poll(most)


@pytest.mark.parametrize("timeout", [-0.1, timedelta(seconds=-1), float("nan")])
def test_timeout_out_of_range(client: RmqClient, make_topic: MakeTopic, timeout: float | timedelta) -> None:
    with pytest.raises(InvalidValueError, match="timeout"):
        client.consumer(make_topic(TopicType.PRIORITY)).poll(timeout=timeout)


@pytest.mark.parametrize("slot", [-1, 4, True, "0"])
def test_a_slot_that_the_topic_does_not_have(client: RmqClient, make_topic: MakeTopic, slot: int) -> None:
    with pytest.raises(InvalidValueError, match="0 to 3"):
        client.consumer(make_topic(TopicType.PRIORITY, slots=4), [0, slot])


def test_a_poll_that_does_not_wait_looks_first_unless_enough_slots_are_known_to_be_due(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    producer, basis = client.producer(topic), {topic.slot_of(f"{i}".encode()): f"{i}" for i in range(100)}
    producer.send_many(PriorityMessage(f"s{n % 4} m{n}", 100, slot_basis=basis[n % 4]) for n in range(12))

    def calls() -> int:
        stats: Any = redis_client.info("commandstats")
        return stats["cmdstat_evalsha"]["calls"]

    with client.consumer(topic) as consumer:
        assert consumer.ack(consumer.poll(4)) == []
        assert [delivery.ack() for delivery in consumer.poll(1)] == [True]  # the server has the scripts from here on
        before = calls()
        assert [delivery.ack() for delivery in consumer.poll(1)] == [True]
        assert calls() == before + 2
        assert len(consumer.poll(100)) == 6
        producer.send(PriorityMessage("of a slot that was empty", 100, slot_basis=basis[2]))
        assert texts(consumer.poll(1)) == ["of a slot that was empty"]
        producer.send_many(PriorityMessage(f"once more {n}", 100, slot_basis=basis[0]) for n in range(2))
        assert len(consumer.poll(1)) == 1
        producer.send(PriorityMessage("of another slot", 100, slot_basis=basis[1]))
        assert sorted(delivery.slot for delivery in consumer.poll(2)) == [0, 1]


def test_only_the_given_slots(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(100))
    with client.consumer(topic, [2, 2]) as consumer:
        assert consumer.slots == (2,)
        found = consumer.poll(1_000)
    assert {delivery.slot for delivery in found} == {2}
    assert set(texts(found)) == {f"m{i}" for i in range(100) if topic.slot_of(f"m{i}".encode()) == 2}


def test_polls_that_do_not_wait_see_what_was_sent_after_an_empty_one(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    producer = client.producer(topic)
    with client.consumer(topic) as consumer:
        for i in range(10):
            assert consumer.poll() == []
            producer.send(PriorityMessage(f"m{i}", 100))
            assert drain(consumer, timeout=0) == [f"m{i}"]


def test_more_than_one_call_can_carry(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(3_500))
    with client.consumer(topic) as consumer:
        first = consumer.poll(3_000)
        assert len(first) == 3_000
        assert consumer.ack(first) == []
        assert len(drain(consumer, timeout=0)) == 500
    assert stats_of(client, topic).total("acked") == 3_500


def test_the_timeout_is_kept(client: RmqClient, make_topic: MakeTopic) -> None:
    with client.consumer(make_topic(TopicType.PRIORITY)) as consumer:
        start = time.monotonic()
        assert consumer.poll(timeout=timedelta(milliseconds=200)) == []
        assert 0.2 <= time.monotonic() - start < 30


# --- order and time


def test_highest_priority_first_and_retries_last(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, retry=ImmediateRetry())
    client.producer(topic).send_many(PriorityMessage(f"p{p}", p) for p in (20, 99, 17, 50))
    with client.consumer(topic) as consumer:
        [first] = consumer.poll(1)
        assert (first.text, first.priority, first.attempt) == ("p99", 99, 1)
        assert first.nack()
        found = consumer.poll(10)
        assert texts(found) == ["p50", "p20", "p17", "p99"]
        assert (found[-1].priority, found[-1].attempt, found[-1].retries_left) == (None, 2, 15)
        consumer.ack(found)


def test_fixed_times_in_order_and_never_early(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=2)
    now_ms = redis_ms(redis_client)
    due = {f"m{i}": now_ms + 4_000 + 60 * ((7 * i) % 10) for i in range(10)}
    client.producer(topic).send_many(
        FixedTimeMessage(content, fixed_time_ms=time_ms) for content, time_ms in due.items()
    )
    found: list[Delivery] = []
    with client.consumer(topic) as consumer:
        while len(found) < len(due):
            deliveries = consumer.poll(10, timeout=50)
            seen_ms = redis_ms(redis_client)
            for delivery in deliveries:
                assert delivery.due_ms == due[delivery.text] <= delivery.claimed_ms <= seen_ms
            found += deliveries
            consumer.ack(deliveries)
    assert sorted(texts(found)) == sorted(due)
    for slot in range(2):  # of several slots that are due, any comes first
        times = [due[delivery.text] for delivery in found if delivery.slot == slot]
        assert times == sorted(times)


def test_a_merge_message_is_not_delivered_before_its_window_ends(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.RANGE_MERGE)
    before_ms = redis_ms(redis_client)
    client.producer(topic).send(RangeMergeMessage("a", time_range_ms=400))
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll(timeout=50)
        assert delivery.claimed_ms >= before_ms + 400
        assert delivery.ack()


# --- settling


def test_acked_is_gone_and_settled_only_once(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many(PriorityMessage(c, 100, body=f"body of {c}") for c in "abc")
    with client.consumer(topic) as consumer:
        a, b, c = consumer.poll()
        assert a.body == b"body of " + a.content
        assert a.ack()
        assert consumer.ack([b, c]) == []
        for delivery in (a, b, c):
            with pytest.raises(AlreadySettledError):
                delivery.ack()
        with pytest.raises(AlreadySettledError):
            consumer.ack([a])
        assert consumer.poll() == []
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)


def test_nack_with_a_delay_comes_back_then(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("a", 100, body="x"))
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll()
        assert delivery.nack(delay=SECOND, error=ValueError("not yet"))
        assert consumer.poll() == []
        assert left_in(stats_of(client, topic)) == (0, 0, 1, 0)
        [again] = consumer.poll(timeout=50)
        assert again.claimed_ms - delivery.claimed_ms >= 1_000
        assert (again.attempt, again.body) == (2, b"x")
        assert again.ack()


def test_release_uses_no_retry_and_keeps_the_place(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many([PriorityMessage("a", 100), PriorityMessage("b", 90)])
    with client.consumer(topic) as consumer:
        for _ in range(3):
            [delivery] = consumer.poll(1)
            assert (delivery.text, delivery.attempt, delivery.priority) == ("a", 1, 100)
            assert delivery.release()


def test_seventeen_deliveries_then_dead_with_its_reason(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=2, retry=ImmediateRetry())
    client.producer(topic).send(RangeMergeMessage("item:13", time_range_ms=1, body="poison"))
    attempts: list[int] = []
    with client.consumer(topic) as consumer:
        while found := consumer.poll(timeout=0 if attempts else 5):
            attempts.append(found[0].attempt)
            assert found[0].nack(error=RuntimeError(f"failed {len(attempts)}"))
    assert attempts == list(range(1, 18))
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 1)
    [dead] = client.dead(topic).list()
    assert (dead.text, dead.body, dead.attempts) == ("item:13", b"poison", 17)
    assert (dead.error_type, dead.error_message) == ("RuntimeError", "failed 17")
    assert dead.first_failed_ms <= dead.last_failed_ms == dead.died_ms


def test_bury_is_dead_at_once(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("a", 100))
    with client.consumer(topic) as consumer:
        assert consumer.poll()[0].bury("hopeless")
    [dead] = client.dead(topic).list()
    assert (dead.attempts, dead.error_type, dead.error_message) == (1, "", "hopeless")


def test_sent_again_in_flight_it_is_delivered_after_the_ack_and_never_beside_it(
    client: RmqClient, make_topic: MakeTopic
) -> None:
    """Pitfall 34."""
    topic = make_topic(TopicType.PRIORITY, slots=2)
    producer = client.producer(topic)
    producer.send(PriorityMessage("a", 100, body="old"))
    with client.consumer(topic) as consumer, client.consumer(topic) as other:
        [delivery] = consumer.poll()
        assert producer.send(PriorityMessage("a", 100, body="new")).new == 1
        assert consumer.poll() == other.poll() == []
        assert other.poll(timeout=1.2) == []
        assert delivery.ack()
        [again] = other.poll(timeout=50)
        assert (again.text, again.body, again.attempt) == ("a", b"new", 1)
        assert again.ack()
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)


# --- leases


def test_an_expired_lease_is_delivered_again_and_the_late_ack_changes_nothing(
    client: RmqClient, make_topic: MakeTopic
) -> None:
    """Pitfall 31."""
    topic = make_topic(TopicType.PRIORITY, lease=SECOND)
    client.producer(topic).send_many(PriorityMessage(c, 100) for c in "abc")
    with client.consumer(topic) as consumer, client.consumer(topic) as other:
        late = consumer.poll()
        assert len(late) == 3
        again = other.poll(timeout=50)
        assert [delivery.attempt for delivery in again] == [2, 2, 2]
        assert again[0].claimed_ms > late[0].claimed_ms + 1_000
        assert consumer.ack(late[:1]) == late[:1]
        assert late[1].nack() is False
        assert consumer.extend(late[2:]) == late[2:]
        assert all(delivery.lost for delivery in late)
        assert left_in(stats_of(client, topic)) == (0, 3, 0, 0)
        assert other.ack(again) == []
    assert stats_of(client, topic).total("expired") == 3


def test_an_extended_lease_is_not_delivered_again(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, lease=4 * SECOND)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(1_100))
    with client.consumer(topic) as consumer, client.consumer(topic) as other:
        held = consumer.poll(2_000)
        assert len(held) == 1_100
        until_s = time.monotonic() + 6
        while time.monotonic() < until_s:
            assert consumer.extend(held) == []
            assert other.poll(timeout=0.4) == []
        assert consumer.ack(held) == []
    assert stats_of(client, topic).total("expired") == 0


# --- fairness


def flood(client: RmqClient, topic: Topic, slot: int, number: int) -> list[int]:
    """Fill one slot with `number` messages and the others with one each; return the others."""
    producer = client.producer(topic)
    bases = {topic.slot_of(f"{i}".encode()): f"{i}" for i in range(1_000)}
    producer.send_many(PriorityMessage(f"flood{i}", 100, slot_basis=bases[slot]) for i in range(number))
    others = [other for other in range(topic.slots) if other != slot]
    producer.send_many(PriorityMessage(f"rare{other}", 100, slot_basis=bases[other]) for other in others)
    return others


@pytest.mark.parametrize("most", [1, 5, 100])
def test_a_flooded_slot_does_not_starve_the_others(client: RmqClient, make_topic: MakeTopic, most: int) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=32)
    others = flood(client, topic, 7, 2_000)
    seen: Counter[int] = Counter()
    with client.consumer(topic) as consumer:
        polls = 0
        while len(seen) < 32:
            deliveries = consumer.poll(most)
            consumer.ack(deliveries)
            seen.update(delivery.slot for delivery in deliveries)
            polls += 1
            assert polls <= 3 * 32, seen
    assert all(seen[other] == 1 for other in others)


def test_a_slot_whose_hints_were_lost_is_served_though_another_is_flooded(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    """Pitfall 25: a consumer that is never idle looks, too."""
    topic = make_topic(TopicType.PRIORITY, slots=2)
    flood(client, topic, 0, 5_000)
    with client.consumer(topic) as consumer:
        drained = consumer.poll(2)
        assert {delivery.slot for delivery in drained} == {0, 1}
        consumer.ack(drained)
        # behind the consumer's back: no hint tells of it
        redis_client.zadd(slot_keys(topic.name, 1).store, {"quiet": 100})
        redis_client.hincrby(slot_keys(topic.name, 1).meta, "accepted", 1)
        found: list[str] = []

        def poll() -> bool:
            deliveries = consumer.poll(1, timeout=1)
            consumer.ack(deliveries)
            found.extend(texts(deliveries))
            return "quiet" in found

        wait_until(poll)
        assert len(found) < 5_000


def test_a_broken_slot_does_not_take_the_others_down(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, checked=False)
    redis_client.set(slot_keys(topic.name, 2).retry, "someone else's")
    basis = next(f"{i}" for i in range(100) if topic.slot_of(f"{i}".encode()) == 1)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100, slot_basis=basis) for i in range(20))
    found: list[str] = []
    with client.consumer(topic) as consumer, caplog.at_level(logging.WARNING):

        def poll() -> bool:
            try:
                deliveries = consumer.poll(5, timeout=0.1)
            except ScriptFailedError as error:
                assert "WRONGTYPE" in str(error)  # noqa: PT017
                return False
            assert all(delivery.attempt == 1 for delivery in deliveries)
            consumer.ack(deliveries)
            found.extend(texts(deliveries))
            return len(found) == 20

        wait_until(poll)
    assert sorted(found) == sorted(f"m{i}" for i in range(20))
    assert "slot 2" in caplog.text


def test_what_was_claimed_before_a_slot_fails_is_handed_over(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=32, checked=False)
    bases = {topic.slot_of(f"{i}".encode()): f"{i}" for i in range(1_000)}
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100, slot_basis=bases[i]) for i in range(16))
    redis_client.set(slot_keys(topic.name, 16).retry, "someone else's")
    with client.consumer(topic, range(17)) as consumer, caplog.at_level(logging.WARNING):
        found = consumer.poll(100)  # sixteen slots in the first round of claims, the broken one in the second
        assert sorted(texts(found)) == sorted(f"m{i}" for i in range(16))
        assert "WRONGTYPE" in caplog.text
        assert all(delivery.still_owner() for delivery in found)
        assert consumer.ack(found) == []

        def raises() -> bool:
            try:
                return consumer.poll(100, timeout=0.1) == [] and False
            except ScriptFailedError as error:
                return "slot 16" in str(error)

        wait_until(raises)  # when the others have nothing to give, it says what is wrong


# --- waking up


def idle_consumer(client: RmqClient, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Consumer:
    """A consumer that has nothing to do and never looks by itself, so that only a hint can wake it."""
    monkeypatch.setattr("rmq._claiming.consumer.LOOK_EVERY_S", 3600.0)
    consumer = client.consumer(topic)
    assert consumer.poll(timeout=0.2) == []
    return consumer


def test_a_hint_wakes_an_idle_consumer(
    client: RmqClient, make_topic: MakeTopic, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=64)
    producer = client.producer(topic)
    with idle_consumer(client, topic, monkeypatch) as consumer:
        for i in range(20):
            # due in 50 ms: sent before the consumer waits, as the hint stays in its socket
            producer.send(RangeMergeMessage(f"m{i}", time_range_ms=50))
            [delivery] = consumer.poll(timeout=50)
            assert delivery.text == f"m{i}"
            assert delivery.ack()


def test_each_change_that_makes_something_due_wakes(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, retry=ImmediateRetry())
    producer = client.producer(topic)
    far = RangeMergeMessage("a", timedelta(hours=1))
    with idle_consumer(client, topic, monkeypatch) as consumer, client.consumer(topic) as other:
        producer.send(far)
        assert consumer.poll(timeout=0.1) == []
        client.control(topic).reschedule("a", due_in="0s")
        [delivery] = consumer.poll(timeout=50)
        assert delivery.nack()  # back at once
        [delivery] = other.poll(timeout=50)
        assert delivery.nack()  # by somebody else
        [delivery] = consumer.poll(timeout=50)
        assert delivery.bury()
        assert consumer.poll(timeout=0.1) == []
        client.dead(topic).redrive()
        [delivery] = consumer.poll(timeout=50)
        assert delivery.ack()


def test_idle_and_without_hints_it_finds_by_looking(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    """Pitfall 25: hints may get lost."""
    topic = make_topic(TopicType.PRIORITY, slots=4)
    with client.consumer(topic) as consumer:
        assert consumer.poll(timeout=0.1) == []
        redis_client.zadd(slot_keys(topic.name, 3).store, {"quiet": 100})
        redis_client.hincrby(slot_keys(topic.name, 3).meta, "accepted", 1)
        assert texts(consumer.poll(timeout=50)) == ["quiet"]


@pytest.mark.parametrize("type", [TopicType.RANGE_MERGE, TopicType.PRIORITY])
def test_an_idle_consumer_of_64_slots_sends_fewer_than_five_commands_a_second(
    redis_server: RedisServer, redis_client: redis.Redis, side: Side, make_topic: MakeTopic, type: TopicType
) -> None:
    topic = make_topic(type, slots=64)
    with Proxy(redis_server.port) as proxy, side.client(proxy.url) as client, client.consumer(topic) as consumer:
        if type is TopicType.RANGE_MERGE:  # something to come in each slot must not keep it busy
            client.producer(topic).send_many(RangeMergeMessage(f"m{i}", timedelta(hours=1)) for i in range(1_000))
        assert consumer.poll(timeout=0.5) == []
        before, began_ms = proxy.commands(), redis_ms(redis_client)
        assert consumer.poll(timeout=2) == []
        sent, took_ms = proxy.commands() - before, redis_ms(redis_client) - began_ms
    assert sent < 5 * took_ms / 1_000


# --- whole claims


def in_flight(client: RmqClient, topic: Topic) -> set[bytes]:
    return {message.content for message in client.inspect(topic).peek("prepare", 100)}


def test_a_whole_claim_is_acked_without_its_contents(
    connections: Connections, redis_server: RedisServer, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    with Proxy(redis_server.port) as proxy, RmqClient(proxy.url) as client, client.consumer(topic) as consumer:
        client.producer(topic).send_many(PriorityMessage(f"{'content' * 20}{i}", 100) for i in range(50))
        found = consumer.poll(50)
        assert len(found) == 50
        loads = QueueBroker(connections, topic).settle_call(0, Outcomes(whole=[(1, 1)]))  # the script
        assert connections.run(loads).unmatched == (1,)
        before = proxy.commands("EVALSHA")
        assert consumer.ack(found) == []
        assert proxy.commands("EVALSHA") == before + 1
        assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)


def test_claims_of_one_moment_are_not_taken_for_one_another(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(40))
    with client.consumer(topic) as one, client.consumer(topic) as other:
        mine, theirs = one.poll(20), other.poll(20)
        assert one.ack(mine) == []
        assert in_flight(client, topic) == {each.content for each in theirs}
        part = theirs[:10]
        assert other.ack(part) == []
        assert in_flight(client, topic) == {each.content for each in theirs[10:]}
        assert other.ack(theirs[10:]) == []
    assert stats_of(client, topic).total("acked") == 40


def test_a_whole_claim_with_bodies_leaves_none_behind(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100, body="b") for i in range(20))
    with client.consumer(topic) as consumer:
        assert consumer.ack(consumer.poll(20)) == []
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)


@pytest.mark.parametrize("verb", ["ack", "release"])
def test_what_was_settled_before_a_call_failed_stays_settled(
    verb: str, connections: Connections, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be settled again, and be taken for lost."""
    topic = make_topic(TopicType.PRIORITY)
    Producer(connections, topic).send_many(PriorityMessage(f"m{i:04}", 100, body="b") for i in range(300))
    run_many = connections.run_many

    def fail_from_the_second_on(calls: Sequence[Call[Any]], patience_s: float) -> list[Any]:
        return run_many(calls[:1], patience_s) + [RedisUnavailableError("cut off")] * (len(calls) - 1)

    monkeypatch.setattr("rmq._claiming.consumer.MAX_BATCH", 256)
    monkeypatch.setattr("rmq._claiming.consumer.NACK_BATCH", 256)
    with Consumer(connections, topic) as consumer:
        found = consumer.poll(300)
        settle = getattr(consumer, verb)
        with monkeypatch.context() as patched:
            patched.setattr(connections, "run_many", fail_from_the_second_on)
            with pytest.raises(RedisUnavailableError):
                settle(found)
        left = [delivery for delivery in found if delivery.outcome is None]
        assert len(left) == 44
        assert settle(left) == []
