"""Schedules on a clock that stands still: what is sent at which time, and what puts, crashes and failures leave behind.

Each check runs on both sides of the library where it has one.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from rmq import (
    PER_MESSAGE,
    BacklogFullError,
    Collect,
    Fixed,
    FixedTimeMessage,
    InvalidMessageError,
    InvalidValueError,
    Max,
    Merge,
    Min,
    Newest,
    Observer,
    RmqClient,
    Schedule,
    SchedulePut,
    Sum,
    Topic,
    TopicType,
    UnknownTopicError,
    WhenFull,
    scan,
    scheduled,
)
from rmq._admin.calls import viewing
from rmq._broker.keys import SCHEDULE_RUNS_KEY
from rmq._model.schema import read_document
from rmq._schedules.schedule import MAX_SCHEDULES, RECURRING, read_schedule
from rmq.testing import Clock, Server, run_schedules, run_until_empty, sent
from tests.support.waiting import wait_until

JOBS = Topic("jobs", TopicType.FIXED_TIME)
HOURLY = Schedule("hourly", JOBS, "job:{scheduled}", every="1h", body="{scheduled}")


@pytest.fixture
def clock(server: Server, rmq: RmqClient) -> Clock:
    clock = server.clock()
    clock.move_to(datetime(2036, 3, 1, 10, 20, tzinfo=UTC))
    return clock


def contents(client: RmqClient, topic: Topic = JOBS) -> list[str]:
    return [each.text for each in sent(client, topic)]


def acknowledge(client: RmqClient, clock: Clock, topic: Topic = JOBS) -> list[str]:
    clock.advance("1ms")  # a delay of 0 is due a millisecond later
    with client.consumer(topic) as consumer:
        deliveries = consumer.poll()
        consumer.ack(deliveries)
    return [each.text for each in deliveries]


def kill_after_claim(client: RmqClient, clock: Clock) -> None:
    """Claim a schedule as a worker does that is killed before it has sent anything, and let its lease expire."""
    with client.consumer(RECURRING) as consumer:
        assert consumer.poll()
    clock.advance("31s")


def test_a_schedule_is_sent_at_each_of_its_times(rmq: RmqClient, clock: Clock) -> None:
    assert rmq.schedules.put(HOURLY) is SchedulePut.NEW
    assert run_schedules(rmq) == 0
    clock.move_to(datetime(2036, 3, 1, 10, 59, 59, tzinfo=UTC))
    assert run_schedules(rmq) == 0
    for hour in (11, 12):
        clock.move_to(datetime(2036, 3, 1, hour, tzinfo=UTC))
        assert run_schedules(rmq) == 1
        assert [(each.text, each.body) for each in sent(rmq, JOBS)] == [
            (f"job:2036-03-01T{hour}:00:00+00:00", f"2036-03-01T{hour}:00:00+00:00".encode())
        ]
        acknowledge(rmq, clock)
    [info] = rmq.schedules.list()
    assert (info.name, info.next, info.last) == (
        "hourly", datetime(2036, 3, 1, 13, tzinfo=UTC), datetime(2036, 3, 1, 12, tzinfo=UTC),
    )  # fmt: skip
    assert (info.late_ms, info.last_late_ms, info.error) == (0, 0, "")
    assert rmq.schedules.get("hourly") == info


@pytest.mark.parametrize("catch_up", [False, True])
def test_after_a_standstill_one_message_is_sent_or_each_missed_one(
    rmq: RmqClient, clock: Clock, catch_up: bool
) -> None:
    rmq.schedules.put(Schedule("hourly", JOBS, "job:{scheduled}", every="1h", catch_up=catch_up))
    clock.advance("3h")
    [info] = rmq.schedules.list()
    assert info.late_ms == (2 * 60 + 20) * 60_000
    assert run_schedules(rmq) == (3 if catch_up else 1)
    expected = [f"job:2036-03-01T{hour}:00:00+00:00" for hour in ((11, 12, 13) if catch_up else (11,))]
    assert sorted(contents(rmq)) == expected
    [info] = rmq.schedules.list()
    assert info.next == datetime(2036, 3, 1, 14, tzinfo=UTC)


def test_at_most_a_thousand_missed_times_are_sent(rmq: RmqClient, clock: Clock) -> None:
    rmq.schedules.put(Schedule("often", JOBS, "job:{scheduled}", every="1m", catch_up=True))
    clock.advance("20h")
    assert run_schedules(rmq) == 1_000
    assert min(contents(rmq)) == "job:2036-03-01T13:41:00+00:00"


def test_a_put_of_the_same_schedule_changes_nothing(rmq: RmqClient, clock: Clock) -> None:
    """Also not while it is late or in flight: every worker puts it at its start."""
    rmq.schedules.put(HOURLY)
    due = rmq.schedules.list()[0].next
    clock.advance("5h")
    assert rmq.schedules.put(Schedule("hourly", "jobs", "job:{scheduled}", every="60m", body="{scheduled}")).value == (
        "unchanged"
    )
    assert rmq.schedules.list()[0].next == due
    with rmq.consumer(RECURRING) as consumer:
        [delivery] = consumer.poll()
        assert rmq.schedules.put(HOURLY) is SchedulePut.UNCHANGED
        delivery.release()
    assert rmq.inspect(RECURRING).stats().backlog == 1
    assert rmq.schedules.list()[0].next == due
    kill_after_claim(rmq, clock)
    assert rmq.schedules.put(HOURLY) is SchedulePut.UNCHANGED


def test_a_changed_schedule_is_due_from_now_on(rmq: RmqClient, clock: Clock) -> None:
    rmq.schedules.put(HOURLY)
    clock.advance("5h")
    assert rmq.schedules.put(Schedule("hourly", JOBS, "other", every="2h")) is SchedulePut.CHANGED
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 1, 16, tzinfo=UTC)
    assert run_schedules(rmq) == 0


def test_a_schedule_that_was_changed_in_flight_stands(rmq: RmqClient, clock: Clock) -> None:
    rmq.schedules.put(HOURLY)
    clock.advance("1h")
    with rmq.consumer(RECURRING) as consumer:
        [delivery] = consumer.poll()
        assert rmq.schedules.put(Schedule("hourly", JOBS, "other", every="2h")) is SchedulePut.CHANGED
        delivery.release()
    [info] = rmq.schedules.list()
    assert (info.schedule.content, info.next) == ("other", datetime(2036, 3, 1, 12, tzinfo=UTC))


def test_a_lower_version_does_not_replace_a_higher_one(rmq: RmqClient, clock: Clock) -> None:
    def put(version: int | None, content: str) -> str:
        return rmq.schedules.put(Schedule("s", JOBS, content, every="1h", version=version)).value

    found = [put(2, "two"), put(1, "one"), put(None, "none"), put(2, "two, too"), put(3, "three"), put(2, "two")]
    assert found == ["new", "outranked", "outranked", "changed", "changed", "outranked"]
    assert rmq.schedules.list()[0].schedule.content == "three"
    del clock


def test_two_clients_do_not_put_at_the_same_time(rmq: RmqClient, server: Server, clock: Clock) -> None:
    """A client that has found a lower version writes before another one looks."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        puts = [Schedule("s", JOBS, f"v{number}", every="1h", version=number) for number in range(40)]
        list(pool.map(rmq.schedules.put, puts))
    assert rmq.schedules.list()[0].schedule.version == 39
    del server, clock


def test_a_killed_worker_leaves_the_same_due_time(rmq: RmqClient, clock: Clock) -> None:
    rmq.schedules.put(HOURLY)
    clock.move_to(datetime(2036, 3, 1, 11, tzinfo=UTC))
    kill_after_claim(rmq, clock)
    assert run_schedules(rmq) == 1
    assert contents(rmq) == ["job:2036-03-01T11:00:00+00:00"]
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 1, 12, tzinfo=UTC)
    clock.move_to(datetime(2036, 3, 1, 12, tzinfo=UTC))
    kill_after_claim(rmq, clock)
    acknowledge(rmq, clock)
    assert run_schedules(rmq) == 1
    assert contents(rmq) == ["job:2036-03-01T12:00:00+00:00"]


def test_kills_lose_no_missed_time(rmq: RmqClient, clock: Clock) -> None:
    rmq.schedules.put(Schedule("often", JOBS, "job:{scheduled}", every="1s", catch_up=True))
    clock.advance("3s")
    run_schedules(rmq)
    clock.advance("1s")
    kill_after_claim(rmq, clock)
    assert run_schedules(rmq) == 32
    assert len(contents(rmq)) == 35


def test_a_worker_that_dies_after_the_send_sends_it_once_more_or_not(rmq: RmqClient, clock: Clock) -> None:
    """The due time is noted after the send: what dies before sends again, what dies after goes on with the next."""
    rmq.schedules.put(HOURLY)
    clock.move_to(datetime(2036, 3, 1, 11, tzinfo=UTC))
    run_schedules(rmq)
    kill_now(rmq, clock)
    assert run_schedules(rmq) == 0 or contents(rmq) == ["job:2036-03-01T11:00:00+00:00"]
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 1, 12, tzinfo=UTC)


def kill_now(client: RmqClient, clock: Clock) -> None:
    client.control(RECURRING).promote("hourly")
    kill_after_claim(client, clock)


@dataclass
class Refusing:
    """A topic that refuses what is sent to it, until it is emptied."""

    client: RmqClient
    clock: Clock
    topic: Topic

    def fill(self) -> None:
        self.client.producer(self.topic).send(FixedTimeMessage("fills it", delay="0s"))

    def empty(self) -> None:
        assert acknowledge(self.client, self.clock, self.topic) == ["fills it"]


@pytest.mark.parametrize("when_full", [WhenFull.REFUSE, WhenFull.BLOCK])
def test_a_refused_schedule_comes_again_with_its_due_time(rmq: RmqClient, clock: Clock, when_full: WhenFull) -> None:
    small = Topic("small", TopicType.FIXED_TIME, max_backlog=1, when_full=when_full, full_timeout="1h")
    refusing = Refusing(rmq, clock, small)
    rmq.schedules.put(Schedule("hourly", small, "job:{scheduled}", every="1h"))
    clock.move_to(datetime(2036, 3, 1, 11, tzinfo=UTC))
    refusing.fill()
    for _ in range(20):
        with pytest.raises(AssertionError, match="BacklogFullError"):
            run_schedules(rmq)
        clock.advance("6s")
    [info] = rmq.schedules.list()
    assert info.late_ms == 120_000
    assert "BacklogFullError" in info.error
    refusing.empty()
    assert run_schedules(rmq) == 1
    assert contents(rmq, small) == ["job:2036-03-01T11:00:00+00:00"]
    assert rmq.inspect(RECURRING).stats().dead == 0
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 1, 12, tzinfo=UTC)


def test_a_daily_schedule_runs_once_in_the_hour_that_comes_twice(rmq: RmqClient, clock: Clock) -> None:
    rmq.schedules.put(Schedule("nightly", JOBS, "job:{scheduled}", cron="30 2 * * *", tz="Europe/Berlin"))
    clock.move_to(datetime(2036, 10, 25, 21, 59, tzinfo=UTC))
    run_schedules(rmq)
    acknowledge(rmq, clock)
    found: list[str] = []
    for minutes in range(0, 36 * 60, 15):
        clock.move_to(datetime(2036, 10, 25, 22, tzinfo=UTC) + timedelta(minutes=minutes))
        run_schedules(rmq)
        found += acknowledge(rmq, clock)
    assert found == ["job:2036-10-26T02:30:00+02:00", "job:2036-10-27T02:30:00+01:00"]


def test_a_run_by_hand_comes_in_addition(rmq: RmqClient, clock: Clock) -> None:
    rmq.schedules.put(HOURLY)
    assert (rmq.schedules.run_now("hourly"), rmq.schedules.run_now("unknown")) == (True, False)
    assert run_schedules(rmq) == 1
    assert contents(rmq) == ["job:2036-03-01T10:20:00+00:00"]
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 1, 11, tzinfo=UTC)
    clock.advance("2h")
    assert rmq.schedules.run_now("hourly")  # it is late already
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 1, 11, tzinfo=UTC)


DAILY = Schedule("daily", JOBS, "job:{scheduled}", every="1d")


@pytest.mark.parametrize("catch_up", [False, True])
def test_a_run_by_hand_that_is_refused_comes_again(rmq: RmqClient, clock: Clock, catch_up: bool) -> None:
    small = Topic("small", TopicType.FIXED_TIME, max_backlog=1, when_full=WhenFull.REFUSE)
    refusing = Refusing(rmq, clock, small)
    rmq.schedules.put(Schedule("daily", small, "job:{scheduled}", every="1d", catch_up=catch_up))
    clock.advance("1h")
    refusing.fill()
    assert rmq.schedules.run_now("daily")
    clock.advance("2s")
    with pytest.raises(AssertionError, match="BacklogFullError"):
        run_schedules(rmq)
    [info] = rmq.schedules.list()
    assert (info.next, info.late_ms) == (datetime(2036, 3, 1, 11, 20, tzinfo=UTC), 2_000)
    refusing.empty()
    clock.advance("6s")
    assert run_schedules(rmq) == 1
    assert contents(rmq, small) == ["job:2036-03-01T11:20:00+00:00"]
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 2, tzinfo=UTC)
    acknowledge(rmq, clock, small)
    clock.advance("1m")
    rmq.control(RECURRING).promote("daily")
    kill_after_claim(rmq, clock)
    run_schedules(rmq)
    assert contents(rmq, small) == []
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 2, tzinfo=UTC)


def test_a_run_by_hand_survives_a_worker_that_dies(rmq: RmqClient, clock: Clock) -> None:
    rmq.schedules.put(DAILY)
    clock.advance("1h")
    assert rmq.schedules.run_now("daily")
    clock.advance("2s")
    kill_after_claim(rmq, clock)
    assert rmq.schedules.get("daily") == rmq.schedules.list()[0]
    assert rmq.schedules.list()[0].late_ms == 33_000
    assert run_schedules(rmq) == 1
    assert contents(rmq) == ["job:2036-03-01T11:20:00+00:00"]
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 2, tzinfo=UTC)


def test_a_run_by_hand_has_one_time_also_if_it_is_sent_twice(rmq: RmqClient, clock: Clock) -> None:
    """The time of the call, not that at which the schedule became due by it: equal contents merge."""
    rmq.schedules.put(DAILY)
    assert rmq.schedules.run_now("daily")
    clock.advance("5s")
    rmq.control(RECURRING).reschedule("daily", due_in="1s")
    clock.advance("2s")
    assert run_schedules(rmq) == 1
    assert contents(rmq) == ["job:2036-03-01T10:20:00+00:00"]


def test_a_run_by_hand_while_a_schedule_waits_for_its_retry_is_sent(rmq: RmqClient, clock: Clock) -> None:
    rmq.schedules.put(DAILY)
    with rmq.consumer(RECURRING) as consumer:
        clock.advance("14h")
        [delivery] = consumer.poll()
        run_by = f"{datetime(2036, 3, 2, tzinfo=UTC).timestamp() * 1_000:.0f} {clock.now_ms}"
        rmq._connections.command("HSET", SCHEDULE_RUNS_KEY, "daily", run_by)  # pyright: ignore[reportPrivateUsage]
        delivery.nack(delay="1h", error="it was sent, but the release failed")
    clock.advance("1m")
    assert rmq.schedules.run_now("daily")
    assert run_schedules(rmq) == 1
    assert contents(rmq) == ["job:2036-03-02T00:21:00+00:00"]
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 3, tzinfo=UTC)


def test_a_run_by_hand_of_an_earlier_schedule_of_the_name_is_not_sent(rmq: RmqClient, clock: Clock) -> None:
    rmq.schedules.put(HOURLY)
    assert rmq.schedules.run_now("hourly")
    clock.advance("1m")
    assert rmq.schedules.put(Schedule("hourly", JOBS, "other", every="2h")) is SchedulePut.CHANGED
    kill_now(rmq, clock)
    run_schedules(rmq)
    assert contents(rmq) == []
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 1, 12, tzinfo=UTC)


def test_one_message_stands_for_all_missed_times_also_if_its_worker_dies(rmq: RmqClient, clock: Clock) -> None:
    """A worker that dies after it has noted the run, and before the release, leaves no second message."""
    rmq.schedules.put(HOURLY)
    clock.advance("5h")
    assert run_schedules(rmq) == 1
    acknowledge(rmq, clock)
    kill_now(rmq, clock)
    run_schedules(rmq)
    assert contents(rmq) == []
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 1, 16, tzinfo=UTC)


def test_a_removed_schedule_is_gone(rmq: RmqClient, clock: Clock) -> None:
    rmq.schedules.put(HOURLY)
    clock.advance("1h")
    run_schedules(rmq)
    assert (rmq.schedules.remove("hourly", actor="ann"), rmq.schedules.remove("hourly")) == (True, False)
    assert (rmq.schedules.list(), rmq.schedules.get("hourly")) == ([], None)
    clock.advance("3h")
    assert run_schedules(rmq) == 0
    assert [(line.actor, line.action) for line in rmq.inspect(RECURRING).audit()][-1] == ("ann", "cancel")
    assert rmq.schedules.put(HOURLY) is SchedulePut.NEW
    assert rmq.schedules.list()[0].last is None


@pytest.mark.parametrize("again", [False, True])
def test_a_schedule_is_removed_while_it_is_in_flight(rmq: RmqClient, clock: Clock, again: bool) -> None:
    rmq.schedules.put(HOURLY)
    clock.advance("1h")
    with rmq.consumer(RECURRING) as consumer:
        [delivery] = consumer.poll()
        assert rmq.schedules.remove("hourly")
        assert (rmq.schedules.list(), rmq.schedules.remove("hourly"), rmq.schedules.run_now("hourly")) == (
            [],
            False,
            False,
        )
        assert not again or rmq.schedules.put(HOURLY) is SchedulePut.NEW
        delivery.release()
    clock.advance("1ms")  # a delay of 0 is due a millisecond later
    run_schedules(rmq)
    assert [info.name for info in rmq.schedules.list()] == (["hourly"] if again else [])
    assert rmq.inspect(RECURRING).stats().backlog == again


def test_a_schedule_is_removed_while_it_is_in_flight_and_was_changed(rmq: RmqClient, clock: Clock) -> None:
    """Of the two copies a cancel takes only the one in the backlog."""
    rmq.schedules.put(HOURLY)
    clock.advance("1h")
    with rmq.consumer(RECURRING) as consumer:
        [delivery] = consumer.poll()
        assert rmq.schedules.put(Schedule("hourly", JOBS, "other", every="2h")) is SchedulePut.CHANGED
        assert rmq.schedules.remove("hourly")
        assert (rmq.schedules.list(), rmq.schedules.remove("hourly")) == ([], False)
        delivery.release()
    clock.advance("1ms")
    run_schedules(rmq)
    assert (rmq.schedules.list(), rmq.inspect(RECURRING).stats().backlog) == ([], 0)


def test_a_schedule_ends(rmq: RmqClient, clock: Clock) -> None:
    until = datetime(2036, 3, 1, 12, tzinfo=UTC)
    rmq.schedules.put(Schedule("s", JOBS, "job:{scheduled}", every="1h", until=until, catch_up=True))
    clock.advance("5h")
    assert run_schedules(rmq) == 2
    assert rmq.schedules.list() == []
    assert rmq.schedules.put(Schedule("s", JOBS, "c", every="1h", until=until)) is SchedulePut.OVER
    assert rmq.schedules.list() == []


def kept(client: RmqClient) -> list[bytes]:
    """Return the fields that are kept about runs."""
    return client._connections.command("HKEYS", SCHEDULE_RUNS_KEY)  # pyright: ignore[reportPrivateUsage]


def test_nothing_is_kept_of_a_schedule_that_has_ended(rmq: RmqClient, clock: Clock) -> None:
    until = datetime(2036, 3, 1, 12, tzinfo=UTC)
    rmq.schedules.put(Schedule("s", JOBS, "job", every="1h", until=until))
    rmq.schedules.run_now("s")
    clock.advance("1h")
    run_schedules(rmq)
    assert kept(rmq) == [b"s"]
    clock.advance("5h")
    assert (run_schedules(rmq), kept(rmq)) == (1, [])


def test_nothing_is_kept_of_a_schedule_that_was_removed(rmq: RmqClient, clock: Clock) -> None:
    """Also if it was in flight then: its last delivery forgets its runs once it is acked."""
    rmq.schedules.put(HOURLY)
    clock.advance("1h")
    run_schedules(rmq)
    clock.advance("1h")
    with rmq.consumer(RECURRING) as consumer:
        [delivery] = consumer.poll()
        rmq.schedules.remove("hourly")
        assert kept(rmq) == [b"hourly"]
        delivery.release()
    clock.advance("1ms")
    run_schedules(rmq)
    assert kept(rmq) == []


def test_a_put_of_a_schedule_forgets_what_a_crash_left(rmq: RmqClient, clock: Clock) -> None:
    """A process may die after the last ack, and before it forgets the runs. Reading writes nothing."""
    ended = Schedule("s", JOBS, "c", every="1h", until=clock.now - timedelta(hours=2))
    for name in ("s", "other", "again"):
        rmq._connections.command("HSET", SCHEDULE_RUNS_KEY, name, "1 1")  # pyright: ignore[reportPrivateUsage]
    rmq.schedules.put(HOURLY)
    assert [each.name for each in rmq.schedules.list()] == ["hourly"]
    assert rmq.schedules.put(ended) is SchedulePut.OVER
    assert not rmq.schedules.remove("other")
    rmq.schedules.put(Schedule("again", JOBS, "c", every="1h"))
    assert [each.last for each in rmq.schedules.list()] == [None, None]
    assert sorted(kept(rmq)) == [b"again", b"hourly"]


def test_the_list_has_schedules_that_move_while_it_is_read(
    rmq: RmqClient, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule that is claimed after the first page moves the others up by one place."""
    names = [f"s{number:04}" for number in range(1_002)]
    for name in names:
        rmq.schedules.put(Schedule(name, JOBS, name, every="1h"))
    clock.advance("1h")
    peek = viewing.peek
    with rmq.consumer(RECURRING) as consumer:

        def after_a_claim(topic: Topic, slot: int, place: Any, start: int, limit: int) -> Any:
            assert start != 1_000 or consumer.poll(1)
            return peek(topic, slot, place, start, limit)

        monkeypatch.setattr(viewing, "peek", after_a_claim)
        assert [each.name for each in rmq.schedules.list()] == names


def test_errors_are_read_in_one_call(rmq: RmqClient, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Topic("small", TopicType.FIXED_TIME, max_backlog=1, when_full=WhenFull.REFUSE)
    Refusing(rmq, clock, small).fill()
    for number in range(20):
        rmq.schedules.put(Schedule(f"s{number}", small, f"c{number}", every="1h"))
    clock.advance("1h")
    for _ in range(20):
        with pytest.raises(AssertionError, match="BacklogFullError"):
            run_schedules(rmq)
    calls = 0

    def counted(call: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        return run(call, *args)

    connections = rmq._connections  # pyright: ignore[reportPrivateUsage]
    run = connections.run
    monkeypatch.setattr(connections, "run", counted)
    assert ["BacklogFullError" in each.error for each in rmq.schedules.list()] == [True] * 20
    assert calls <= 6


def test_ten_thousand_schedules(rmq: RmqClient, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused; a change, a removal and the list work on, the list in calls of 1,000 schedules."""

    def messages(numbers: range) -> Iterator[FixedTimeMessage]:
        for number in numbers:
            body = Schedule(f"s{number:05}", JOBS, "job:{scheduled}", every="1h").put_at(1).to_json()
            yield FixedTimeMessage(f"s{number:05}", delay="40m", body=body)

    rmq.schedules.put(HOURLY)
    rmq.producer(RECURRING).send_many(messages(range(MAX_SCHEDULES - 1)))
    with pytest.raises(BacklogFullError, match="schedule more was not stored: there are 10,000 schedules already"):
        rmq.schedules.put(Schedule("more", JOBS, "job", every="1h"))
    assert kept(rmq) == [b"hourly"]
    assert rmq.schedules.put(Schedule("hourly", JOBS, "other", every="2h")) is SchedulePut.CHANGED
    assert rmq.schedules.run_now("s00007")
    connections = rmq._connections  # pyright: ignore[reportPrivateUsage]
    run, calls = connections.run, list[Any]()
    monkeypatch.setattr(connections, "run", lambda call, *args: calls.append(call) or run(call, *args))
    assert len(rmq.schedules.list()) == MAX_SCHEDULES
    assert len(calls) <= 15
    assert rmq.schedules.remove("s00008")
    assert rmq.schedules.put(Schedule("more", JOBS, "job", every="1h")) is SchedulePut.NEW


def test_a_cron_schedule_is_listed_where_its_times_cannot_be_computed(
    rmq: RmqClient, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that has the dashboard, but not the extra."""
    rmq.schedules.put(Schedule("nightly", JOBS, "job", cron="30 2 * * *"))
    clock.advance("1d")
    kill_after_claim(rmq, clock)
    monkeypatch.setitem(sys.modules, "cronsim", None)
    [info] = rmq.schedules.list()
    assert (info, info.due_ms, info.next) == (rmq.schedules.get("nightly"), None, None)


def test_a_worker_starts_after_the_end_of_its_schedule(rmq: RmqClient, clock: Clock) -> None:
    handled: list[str] = []

    @rmq.scheduled("s", every="1h", until=clock.now + timedelta(hours=1))
    def handle(delivery: Any) -> None:
        handled.append(delivery.text)

    clock.advance("5h")
    rmq.producer(Topic("s", TopicType.FIXED_TIME)).send(FixedTimeMessage("sent by hand", delay="0s"))
    rmq.start()
    clock.advance("1ms")
    wait_until(lambda: handled == ["sent by hand"])
    rmq.stop()
    assert rmq.schedules.list() == []


@pytest.mark.parametrize("type_", list(TopicType))
def test_every_type_of_topic_takes_messages_of_schedules(rmq: RmqClient, clock: Clock, type_: TopicType) -> None:
    topic = Topic(f"kind.{type_.value}", type_)
    priority = 7 if type_ is TopicType.PRIORITY else None
    rmq.schedules.put(Schedule("s", topic, "job", every="1h", priority=priority, body="data"))
    clock.advance("1h")
    assert run_schedules(rmq) == 1
    assert [(each.text, each.body, each.priority) for each in sent(rmq, topic)] == [("job", b"data", priority)]


def test_a_window_of_the_topic_applies(rmq: RmqClient, clock: Clock) -> None:
    topic = Topic("collected", TopicType.RANGE_MERGE, merge=Merge(Collect(max_items=9), window=Fixed("10m")))
    rmq.schedules.put(Schedule("s", topic, "job", every="1h", body="data"))
    clock.advance("1h")
    run_schedules(rmq)
    [message] = sent(rmq, topic)
    assert (message.due, message.text) == (clock.now + timedelta(minutes=10), "job")


def test_what_cannot_be_sent_is_refused_where_it_is_put(rmq: RmqClient, clock: Clock) -> None:
    ranked, summed = Topic("ranked", TopicType.PRIORITY), Topic("small", TopicType.FIXED_TIME, max_body_bytes=3)
    refused: list[tuple[Callable[[], Schedule], type[Exception], str]] = [
        (lambda: Schedule("s", ranked, "c", every="1h"), InvalidValueError, "is None; it must be a priority, because"),
        (lambda: Schedule("s", JOBS, "c", every="1h", priority=5), InvalidValueError, "must be None, because topic"),
        (lambda: Schedule("s", ranked, "c", every="1h", priority=2**40), InvalidMessageError, "priority"),
        (lambda: Schedule("s", summed, "c", every="1h", body="data"), InvalidMessageError, "3"),
        (lambda: Schedule("s", "unknown", "c", every="1h"), UnknownTopicError, "unknown"),
        (lambda: "s", InvalidValueError, "is 's'; it must be a Schedule"),  # type: ignore[list-item, return-value]
    ]
    for schedule, error, text in refused:
        with pytest.raises(error, match=text):
            rmq.schedules.put(schedule())
    assert rmq.topics() == []
    for call in (rmq.schedules.remove, rmq.schedules.run_now, rmq.schedules.get):
        with pytest.raises(InvalidValueError, match="name of a schedule is 'ä'; it must be 1 to 128 characters"):
            call("ä")
    assert rmq.schedules.list() == []
    del clock


@dataclass
class Price:
    """A payload."""

    pence: int


def merging(reduce: Any, **options: Any) -> Topic:
    return Topic("merging", TopicType.RANGE_MERGE, merge=Merge(reduce, window=Fixed("1s"), **options))


JOINED = merging(Collect(unique=True), max_count=PER_MESSAGE)
TYPED = Topic("typed", TopicType.FIXED_TIME, payload=Price)
SMALL = Topic("small", TopicType.FIXED_TIME, max_content_bytes=30)
PARTLY = Topic("partly", TopicType.PRIORITY, max_priority=5)


@pytest.mark.parametrize(
    ("topic", "options", "text"),
    [
        *(
            (merging(reduce), {"body": "7"}, "body of b'c' is '7'; on topic merging it must be a number from ")
            for reduce in (Sum(), Max(), Min())
        ),
        (merging(Sum()), {}, "body of b'c' is None; on topic merging it must be a number from "),
        (merging(Newest()), {"body": "7"}, "version of b'c' is None; on topic merging it must be a whole number"),
        (merging(Collect(max_items=9)), {}, "on topic merging, which collects items, it must be an item"),
        (merging(Collect(max_items=9, max_bytes=9)), {"body": "1234567"}, "max_bytes=9"),
        (JOINED, {"body": "part"}, "topic merging joins parts and takes JoinMessage, not RangeMergeMessage"),
        (TYPED, {"body": "text"}, "the body cannot be decoded as Price: "),
        (TYPED, {}, "the message has no body; topic typed needs one, which holds a payload"),
        (TYPED, {"body": '{"pence":"{scheduled}"}'}, "the body cannot be decoded as Price: "),
        (SMALL, {"content": "12345{scheduled}"}, "has 34 bytes; on topic small it must have 1 to 30"),
        (PARTLY, {"priority": 6}, "priority is 6; on topic partly it must be a whole number from 1 to max_priority"),
        (PARTLY, {"priority": 0}, "priority is 0; it must be a whole number from 1"),
        (JOBS, {"content": "\ud800"}, "cannot be written as UTF-8"),
    ],
)  # fmt: skip
def test_a_schedule_that_its_topic_never_takes_is_refused(
    rmq: RmqClient, topic: Topic, options: dict[str, Any], text: str
) -> None:
    """Not when it is due: also where the topic is named, and where only a run by hand would be refused."""
    for given in (topic, topic.name) if topic.payload is None else (topic,):
        if given == topic.name:
            rmq.producer(topic)
        with pytest.raises(InvalidMessageError) as caught:
            rmq.schedules.put(Schedule("s", given, **{"content": "c", "every": "1h", **options}))
        assert text in str(caught.value)
        assert f"topic {topic.name} does not take the messages of schedule s: " in str(caught.value)
        assert [each.name for each in rmq.topics()] == ([topic.name] if given == topic.name else [])


@pytest.mark.parametrize(
    ("topic", "body", "found"),
    [
        (Topic("typed", TopicType.RANGE_MERGE, payload=Price), '{"pence":7}', b'{"pence":7}'),
        (replace(merging(Collect(max_items=9)), payload=Price), '{"pence":7}', None),
        (merging(Collect(max_items=9)), "item", None),
    ],
)
def test_payloads_and_items_of_schedules_are_taken(
    rmq: RmqClient, clock: Clock, topic: Topic, body: str, found: bytes | None
) -> None:
    rmq.schedules.put(Schedule("s", topic, "c", every="1h", body=body))
    clock.advance("1h")
    assert run_schedules(rmq) == 1
    clock.advance("2s")
    with rmq.consumer(topic) as consumer:
        [delivery] = consumer.poll()
        assert (delivery.body, delivery.items) == (found, () if found else (body.encode(),))
        assert delivery.payload == Price(7) if found else topic.payload is None or delivery.payloads == [Price(7)]
        delivery.ack()


def test_without_schedules_nothing_is_registered(rmq: RmqClient, clock: Clock) -> None:
    assert (rmq.schedules.list(), rmq.schedules.remove("s"), rmq.schedules.run_now("s")) == ([], False, False)
    assert (run_schedules(rmq), rmq.topics()) == (0, [])
    del clock


def test_a_body_that_nobody_can_read_waits_and_is_replaced_by_a_put(rmq: RmqClient, clock: Clock) -> None:
    rmq.producer(RECURRING).send(FixedTimeMessage("hourly", delay="0s", body='{"version": 99, "min_reader": 99}'))
    clock.advance("1ms")
    with pytest.raises(AssertionError, match="upgrade this RMQ"):
        run_schedules(rmq)
    assert rmq.schedules.list() == []
    assert rmq.schedules.put(HOURLY) is SchedulePut.CHANGED
    clock.advance("1h")
    assert run_schedules(rmq) == 1


def test_started_listeners_run_schedules_that_are_put_before_and_after(rmq: RmqClient) -> None:
    handled: list[str] = []

    @rmq.listener(JOBS)
    def handle(delivery: Any) -> None:
        handled.append(delivery.text)

    rmq.start()
    rmq.schedules.put(Schedule("often", JOBS, "often:{scheduled}", every="1s"))
    wait_until(lambda: len(handled) >= 2)
    rmq.stop()
    assert rmq.inspect(RECURRING).stats().in_flight == 0
    rmq.start()
    before = len(handled)
    wait_until(lambda: len(handled) >= before + 2)
    rmq.schedules.remove("often")
    wait_until(lambda: rmq.inspect(RECURRING).stats().backlog == 0)


@pytest.mark.parametrize("catch_up", [False, True])
def test_after_a_clock_that_was_ahead_a_run_by_hand_goes_on_from_now(
    rmq: RmqClient, clock: Clock, catch_up: bool
) -> None:
    rmq.schedules.put(Schedule("hourly", JOBS, "job:{scheduled}", every="1h", catch_up=catch_up))
    clock.advance("10h")
    assert run_schedules(rmq) == (10 if catch_up else 1)
    acknowledge(rmq, clock)
    clock._set(clock.now_ms - 7 * 3_600_000)  # pyright: ignore[reportPrivateUsage]
    assert run_schedules(rmq) == 0
    assert rmq.schedules.run_now("hourly")
    assert run_schedules(rmq) == 1
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 1, 14, tzinfo=UTC)


def send_as_newer(client: RmqClient, clock: Clock, schedule: Schedule, **fields: Any) -> bytes:
    """Put a schedule as a newer version would; return its body."""
    client.producer(JOBS)
    fields = {**json.loads(schedule.put_at(clock.now_ms).to_json()), **fields}
    due_ms, body = schedule.next_ms(clock.now_ms), json.dumps(fields)
    client.producer(RECURRING).send(FixedTimeMessage(schedule.name, fixed_time_ms=due_ms, body=body))
    return body.encode()


def test_what_a_newer_version_adds_survives_an_older_worker(rmq: RmqClient, clock: Clock) -> None:
    body = send_as_newer(rmq, clock, HOURLY, version=99, note="of a newer version")
    assert rmq.schedules.put(HOURLY) is SchedulePut.UNCHANGED
    for hour in (11, 12):
        clock.move_to(datetime(2036, 3, 1, hour, tzinfo=UTC))
        assert run_schedules(rmq) == 1
        assert acknowledge(rmq, clock) == [f"job:2036-03-01T{hour}:00:00+00:00"]
    kill_now(rmq, clock)
    run_schedules(rmq)
    assert [each.body for each in rmq.inspect(RECURRING).peek()] == [body]


def test_an_older_worker_leaves_a_schedule_to_newer_ones(
    rmq: RmqClient, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is late by a minute for each claim of an older worker, and no time of it is missing."""
    often = Schedule("often", JOBS, "job:{scheduled}", every="20s", catch_up=True)
    send_as_newer(rmq, clock, often, version=99, min_reader=99)
    found: list[str] = []
    for _ in range(3):
        clock.advance("20s")
        with pytest.raises(AssertionError, match="upgrade this RMQ"):
            run_schedules(rmq)
        clock.advance("61s")
        with monkeypatch.context() as newer:
            newer.setattr("rmq._model.schema.read_document", partial(read_document, reader=99))
            run_schedules(rmq)
        found += acknowledge(rmq, clock)
        read_schedule.cache_clear()
    first = datetime(2036, 3, 1, 10, 20, 20, tzinfo=UTC)
    assert sorted(found) == [f"job:{(first + timedelta(seconds=20 * each)).isoformat()}" for each in range(12)]


class HeldUp(Observer):
    """Holds up who sends, once Redis has the message."""

    def __init__(self) -> None:
        self.sent, self.go = threading.Event(), threading.Event()

    def after_send(self, topic: Topic, messages: int) -> None:
        self.sent.set()
        assert self.go.wait(60.0)


@pytest.mark.parametrize("drain_s", [60.0, 0.1])
def test_a_stop_while_a_schedule_is_sent(server: Server, rmq: RmqClient, clock: Clock, drain_s: float) -> None:
    """It waits for the release; where it does not, the due time comes again with the lease's end, and merges."""
    held, at_11 = HeldUp(), ["job:2036-03-01T11:00:00+00:00"]
    with server.client() as stopped:
        stopped.observers.all.append(held)
        stopped.listener(Topic("other", TopicType.FIXED_TIME))(lambda delivery: None)
        stopped.schedules.put(HOURLY)
        stopped.start()
        clock.move_to(datetime(2036, 3, 1, 11, tzinfo=UTC))
        assert held.sent.wait(60.0)
        stop = threading.Thread(target=stopped.stop, args=(drain_s,))
        stop.start()
        if drain_s > 1:
            held.go.set()
        stop.join(60.0)
        assert not stop.is_alive()
    held.go.set()
    assert (contents(rmq), run_schedules(rmq)) == (at_11, 0)
    assert rmq.inspect(RECURRING).stats().in_flight == int(drain_s < 1)
    clock.advance("31s")
    assert run_schedules(rmq) == int(drain_s < 1)
    assert contents(rmq) == at_11
    assert rmq.schedules.list()[0].next == datetime(2036, 3, 1, 12, tzinfo=UTC)


def test_a_handler_that_is_only_a_schedule(rmq: RmqClient, clock: Clock) -> None:
    handled: list[tuple[str, bytes | None]] = []

    @rmq.scheduled("close-orders", cron="30 2 * * *", tz="Europe/Berlin")
    def close(delivery: Any) -> None:
        handled.append((delivery.text, delivery.body))

    @rmq.scheduled("report", every="1d", catch_up=True)
    def report(delivery: Any) -> None:
        handled.append((delivery.text, delivery.body))

    assert run_schedules(rmq) == 0
    clock.advance("36h")
    assert run_schedules(rmq) == 2
    run_until_empty(rmq, clock=clock)
    day = b"2036-03-02T00:00:00+00:00"
    assert sorted(handled) == [
        ("close-orders", b"2036-03-02T02:30:00+01:00"), (f"report:{day.decode()}", day),
    ]  # fmt: skip


def test_scheduled_handlers_are_found_by_scan_and_put_at_the_start(rmq: RmqClient) -> None:
    module = ModuleType("jobs_of_a_test")
    handled: list[str] = []

    @scheduled("often", every="1s")
    def often(delivery: Any) -> None:
        handled.append(delivery.text)

    vars(module)["often"] = often
    rmq.add(*scan(module))
    rmq.start()
    wait_until(lambda: len(handled) >= 2)
    assert [each.name for each in rmq.schedules.list()] == ["often"]
    rmq.stop()


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("a:b", {"every": "1h"}, "topic name is 'a:b'"),
        ("a", {}, "must have either cron or every"),
        ("a", {"every": "1h", "timeout": "0s"}, "timeout"),
    ],
)
def test_wrong_options_of_a_scheduled_handler_are_refused(name: str, options: Any, text: str) -> None:
    def handle(delivery: Any) -> None:
        del delivery

    with pytest.raises(InvalidValueError, match=text):
        scheduled(name, **options)(handle)
