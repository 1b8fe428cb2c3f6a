"""A clock that stands still: for test clients only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rmq import (
    FixedTimeMessage,
    InvalidValueError,
    Keep,
    Leading,
    Merge,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    Topic,
    TopicType,
)
from rmq.testing import Clock, Server, assert_sent
from rmq.testing.clock import CLOCK_KEY, scripts_on_clock
from tests.support.core import default_scripts
from tests.support.waiting import wait_until

WINDOWS = Topic("windows", TopicType.RANGE_MERGE)
LETTERS = Topic("letters", TopicType.FIXED_TIME)
HOUR_MS = 3_600_000


def test_what_is_due_waits_for_the_clock(rmq: RmqClient, clock: Clock) -> None:
    rmq.producer(WINDOWS).send(RangeMergeMessage("item:1", time_range_ms=HOUR_MS))
    consumer = rmq.consumer(WINDOWS)
    clock.advance(timedelta(milliseconds=HOUR_MS - 1))
    assert consumer.poll() == []
    clock.advance("1ms")
    assert [delivery.text for delivery in consumer.poll()] == ["item:1"]


def test_due_times_are_exact(rmq: RmqClient, clock: Clock) -> None:
    rmq.producer(WINDOWS).send(RangeMergeMessage("item:1", time_range_ms=HOUR_MS))
    assert assert_sent(rmq, WINDOWS, "item:1").due == clock.now + timedelta(hours=1)


def test_leases_end_by_the_clock(rmq: RmqClient, clock: Clock) -> None:
    rmq.producer(LETTERS).send(FixedTimeMessage("to ann", fixed_time_ms=clock.now_ms + 1))
    clock.advance("1ms")
    consumer = rmq.consumer(LETTERS)
    [first] = consumer.poll()
    clock.advance(timedelta(milliseconds=LETTERS.lease_ms + 1))
    [again] = rmq.consumer(LETTERS).poll()
    assert again.attempt == 2
    assert not first.ack()
    assert again.ack()


def test_times_to_live_and_windows_go_by_the_clock(rmq: RmqClient, clock: Clock) -> None:
    old = Topic("old", TopicType.PRIORITY, ttl=timedelta(hours=1))
    rmq.producer(old).send(PriorityMessage("a", 5))
    clock.advance(timedelta(milliseconds=HOUR_MS + 1))
    assert rmq.consumer(old).poll() == []
    assert rmq.inspect(old).stats().total("ttl_expired") == 1
    leading = Topic("leading", TopicType.RANGE_MERGE, merge=Merge(Keep(), window=Leading(timedelta(hours=1))))
    producer, consumer = rmq.producer(leading), rmq.consumer(leading)
    producer.send(RangeMergeMessage("a"))
    assert len(consumer.poll()) == 1  # it leads
    producer.send(RangeMergeMessage("a"))
    assert consumer.poll() == []
    clock.advance(timedelta(milliseconds=HOUR_MS))
    assert len(consumer.poll()) == 1


def test_a_clock_begins_now_and_moves_to_a_moment(clock: Clock) -> None:
    assert abs(clock.now - datetime.now(UTC)) < timedelta(minutes=5)
    there = datetime(2100, 1, 1, 12, tzinfo=UTC)
    clock.move_to(there)
    assert clock.now == there
    with pytest.raises(InvalidValueError, match="must not be before the clock's time"):
        clock.move_to(there - timedelta(milliseconds=1))
    with pytest.raises(InvalidValueError, match=r"^by is "):
        clock.advance(timedelta(-1))


def test_started_listeners_follow_the_clock(rmq: RmqClient, clock: Clock) -> None:
    seen: list[str] = []
    rmq.listener(WINDOWS)(lambda delivery: seen.append(delivery.text))
    rmq.producer(WINDOWS).send(RangeMergeMessage("item:1", time_range_ms=HOUR_MS))
    rmq.start()
    clock.advance(timedelta(milliseconds=HOUR_MS))
    wait_until(lambda: seen == ["item:1"])


def test_the_next_flush_lets_the_time_go_on(server: Server, rmq: RmqClient, clock: Clock) -> None:
    clock.move_to(datetime(2100, 1, 1, tzinfo=UTC))
    server.flush()
    rmq.producer(WINDOWS).send(RangeMergeMessage("item:1", time_range_ms=HOUR_MS))
    due = assert_sent(rmq, WINDOWS).due
    assert due is not None
    assert due.year < 2100


def test_other_clients_go_by_redis_time(server: Server, clock: Clock) -> None:
    clock.move_to(datetime(2100, 1, 1, tzinfo=UTC))
    with RmqClient(server.url) as other:
        other.producer(WINDOWS).send(RangeMergeMessage("item:1", time_range_ms=HOUR_MS))
        due = assert_sent(other, WINDOWS).due
    assert due is not None
    assert due.year < 2100


def test_no_script_that_ships_knows_the_key() -> None:
    shipped, ours = default_scripts(), scripts_on_clock()
    names = shipped.names()
    assert [name for name in names if CLOCK_KEY in shipped.text(name)] == []
    timed = [name for name in names if "'TIME'" in shipped.text(name)]
    assert timed
    assert [name for name in names if CLOCK_KEY in ours.text(name)] == timed
