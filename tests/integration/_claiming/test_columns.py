"""Deliveries as columns: the same as one by one, also where some rows fail, lose their lease or were retried before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq import (
    Consumer,
    Delivery,
    DeliveryColumns,
    ImmediateRetry,
    Merge,
    Observer,
    RmqClient,
    Sum,
    Topic,
    TopicType,
    poll_all,
)
from rmq.errors import AlreadySettledError, InvalidValueError
from tests.conftest import MakeTopic
from tests.support.clients import left_in, run_until, stats_of
from tests.support.core import Claim, Fetcher
from tests.support.waiting import wait_until

SOON: dict[TopicType, dict[str, Any]] = {
    TopicType.RANGE_MERGE: {"time_range": "1ms"},
    TopicType.PRIORITY: {"priorities": 5},
}


def send(client: RmqClient, topic: Topic, number: int, bodies: bool = False) -> None:
    values = SOON[topic.type]
    contents = [b"%d" % index for index in range(number)]
    client.producer(topic).send_columns(contents, bodies=contents if bodies else None, **values)


def seen(each: Delivery) -> tuple[Any, ...]:
    return each.content, each.body, each.slot, each.attempt, each.retries_left, each.due_ms, each.priority, each.merged


def rows_of(columns: DeliveryColumns) -> list[tuple[Any, ...]]:
    lists = (
        columns.contents, columns.bodies, columns.slots, columns.attempts, columns.retries_left, columns.due_ms,
        columns.priorities, columns.merged,
    )  # fmt: skip
    return list(zip(*lists, strict=True))


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("kind", SOON)
def test_columns_are_what_a_poll_would_have_brought(
    client: RmqClient, make_topic: MakeTopic, kind: TopicType, slots: int
) -> None:
    topic = make_topic(kind, slots=slots, retry=ImmediateRetry())
    send(client, topic, 300, bodies=True)
    with client.consumer(topic) as consumer:
        for delivery in consumer.poll(40, timeout=2):
            delivery.nack()
        found: list[DeliveryColumns] = []
        while sum(map(len, found)) < 300:
            found.append(consumer.poll_columns(100, timeout=5))
            assert 0 < len(found[-1]) <= 100
        for columns in found:
            assert rows_of(columns) == [seen(each) for each in columns.deliveries]
            assert columns.deliveries is not columns.deliveries
            assert [*map(id, columns.deliveries)] == [*map(id, columns.deliveries)]
            assert columns.values == columns.bodies == columns.contents
            assert columns.claimed_ms == [each.claimed_ms for each in columns.deliveries]
        attempts = [attempt for columns in found for attempt in columns.attempts]
        assert (attempts.count(2), attempts.count(1)) == (40, 260)
        assert [columns.ack() for columns in found] == [[]] * len(found)
        assert len(consumer.poll_columns()) == 0
        assert consumer.poll_columns().ack() == []
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)


def test_an_ack_of_whole_claims_makes_no_object_for_a_row(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    send(client, topic, 400)
    with client.consumer(topic) as consumer:
        columns = consumer.poll_columns(400)
        monkeypatch.setattr(Claim, "deliveries", lambda *args: pytest.fail("a row got an object"))
        assert columns.ack() == []
        monkeypatch.undo()
        with pytest.raises(AlreadySettledError):
            columns.ack([3])
        with pytest.raises(AlreadySettledError):
            columns.deliveries[3].nack()
        assert columns.ack() == []  # nothing is open
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)


def test_rows_end_apart(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, retry=ImmediateRetry(), max_retries=3)
    send(client, topic, 100)
    with client.consumer(topic) as consumer:
        columns = consumer.poll_columns(100)
        with pytest.raises(InvalidValueError, match="row is 100; it must be a whole number of 0 or more, below 100"):
            columns.nack([1, 100])
        assert columns.nack([1, 2, 2], error="not yet") == []
        assert columns.bury([3], error=LookupError("never")) == []
        assert columns.release([4]) == []
        with pytest.raises(AlreadySettledError):
            columns.ack([0, 1])
        assert columns.deliveries[5].ack()
        assert columns.ack() == []
        again = {each.content: each for each in consumer.poll(10)}
        assert {content: each.attempt for content, each in again.items()} == {
            columns.contents[1]: 2, columns.contents[2]: 2, columns.contents[4]: 1,
        }  # fmt: skip
        consumer.ack(again.values())
    [dead] = client.dead(topic).list()
    assert (dead.content, dead.error_type, dead.error_message) == (columns.contents[3], "LookupError", "never")
    client.dead(topic).purge()


def test_rows_that_are_no_longer_held_are_told(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, lease="1s", retry=ImmediateRetry())
    send(client, topic, 20)
    with client.consumer(topic) as first, client.consumer(topic) as second:
        columns = first.poll_columns(20)
        taken: list[Delivery] = []
        while len(taken) < 20:  # once the lease is over
            taken += second.poll(20, timeout=5)
        kept = {each.content for each in taken[:7]}
        assert columns.lost == [each.lost for each in columns.deliveries]
        second.ack(taken[7:])
        assert [columns.contents[row] for row in columns.ack()] == columns.contents
        assert columns.lost == [True] * 20
        assert {each.content for each in taken if each.outcome is None} == kept
        second.ack(taken[:7])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.integers(0, 59), st.sampled_from(["ack", "nack", "bury", "release"]), max_size=12))
def test_outcomes_of_columns_are_those_of_deliveries(
    client: RmqClient, make_topic: MakeTopic, outcomes: dict[int, str]
) -> None:
    left: list[Any] = []
    for columnar in (True, False):
        topic = make_topic(TopicType.PRIORITY, slots=2, retry=ImmediateRetry())
        send(client, topic, 60)
        with client.consumer(topic) as consumer:
            columns = consumer.poll_columns(60)
            deliveries = {int(each.content): each for each in ([] if columnar else columns.deliveries)}
            rows = {int(content): row for row, content in enumerate(columns.contents)}
            for name, verb in outcomes.items():
                if columnar:
                    assert getattr(columns, verb)([rows[name]]) == []
                else:
                    assert getattr(deliveries[name], verb)()
            if columnar:
                assert columns.ack() == []
            else:
                consumer.ack([each for each in deliveries.values() if each.outcome is None])
            stats = stats_of(client, topic)
            totals = {name: stats.total(name) for name in ("acked", "retried", "released", "buried")}
            again = consumer.poll(60)
            left.append((totals, sorted((each.content, each.attempt) for each in again)))
            consumer.ack(again)
            client.dead(topic).purge()
    assert left[0] == left[1]


class Watching(Observer):
    def __init__(self) -> None:
        self.told: list[Delivery] = []

    def settled(self, deliveries: Any) -> None:
        self.told += deliveries


@pytest.mark.parametrize("watched", [False, True], ids=["plain", "observed"])
def test_a_listener_acks_columns_when_its_handler_returns(
    client: RmqClient, make_topic: MakeTopic, watched: bool
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    watching = Watching()
    if watched:
        client.observers.all.append(watching)
    send(client, topic, 3_000)
    got: list[bytes] = []
    sizes: list[int] = []

    @client.listener(topic, batch=100, columns=True, threads=2)
    def handle(columns: DeliveryColumns) -> None:
        sizes.append(len(columns))
        got.extend(columns.contents)

    client.start()
    wait_until(lambda: len(got) >= 3_000)
    assert client.stop() == []
    assert sorted(map(int, got)) == list(range(3_000))
    assert max(sizes) <= 100
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)
    assert stats_of(client, topic).total("acked") == 3_000
    assert sorted(int(each.content) for each in watching.told) == (list(range(3_000)) if watched else [])


def test_a_listener_nacks_what_is_named_and_what_its_handler_raised_on(
    client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, retry=ImmediateRetry(), max_retries=5)
    send(client, topic, 200)
    lock, attempts = threading.Lock(), dict[bytes, list[int]]()

    @client.listener(topic, batch=50, columns=True, threads=2)
    def handle(columns: DeliveryColumns) -> None:
        with lock:
            for content, attempt in zip(columns.contents, columns.attempts, strict=True):
                attempts.setdefault(content, []).append(attempt)
        fresh = [row for row, attempt in enumerate(columns.attempts) if attempt == 1]
        alone = len(fresh) == len(columns)
        named = [row for row in fresh if not alone or int(columns.contents[row]) % 2]
        assert columns.nack(named, error="odd") == []
        if alone:
            raise LookupError("the rest")

    run_until(client, lambda: stats_of(client, topic).total("acked") == 200)
    assert set(map(tuple, attempts.values())) == {(1, 2)}
    assert stats_of(client, topic).total("retried") == 200


def test_leases_of_columns_are_renewed_while_a_handler_runs(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, lease="1s")
    send(client, topic, 60)
    got: list[list[bytes]] = []

    @client.listener(topic, batch=60, columns=True)
    def handle(columns: DeliveryColumns) -> None:
        got.append(columns.contents)
        if len(got) > 1:
            return
        first = [(each.claim_score, each.lease_until_s) for each in columns.deliveries]
        wait_until(
            lambda: all(
                each.claim_score > score and each.lease_until_s > until_s
                for each, (score, until_s) in zip(columns.deliveries, first, strict=True)
            )
        )
        columns.nack([0])

    run_until(client, lambda: stats_of(client, topic).total("acked") == 60, timeout=30)
    stats = stats_of(client, topic)
    assert (stats.total("expired"), stats.total("retried"), stats.total("delivered")) == (0, 1, 61)


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Have Ctrl-C come once, right after a method of a consumer has brought something."""
    bring: Callable[..., Any] = getattr(owner, name)

    def interrupted(self: Any, *args: Any) -> None:
        brought = bring(self, *args)
        monkeypatch.setattr(owner, name, bring)
        if owner is Fetcher:
            self._kept = brought  # as where it comes between the reply and the return
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("reads", ["poll_all", "poll", "poll_columns"])
@pytest.mark.parametrize(("owner", "name"), [(Fetcher, "claim"), (Consumer, "_fill")])
def test_what_an_interrupted_poll_of_columns_has_claimed_comes_with_the_next_read(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, reads: str, owner: type, name: str
) -> None:
    topic, contents = make_topic(TopicType.PRIORITY), [b"%d" % index for index in range(20)]
    send(client, topic, 20)
    with client.consumer(topic) as consumer:
        interrupt(monkeypatch, owner, name)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll_columns(timeout=5)
        if reads == "poll_columns":
            assert sorted(consumer.poll_columns(timeout=5).contents) == sorted(contents)
            return
        found = poll_all([consumer], timeout=5) if reads == "poll_all" else consumer.poll(timeout=5)
        assert sorted(delivery.content for delivery in found) == sorted(contents)
        assert all(delivery.ack() for delivery in found[1:])
        assert stats_of(client, topic).in_flight == 1


@pytest.mark.parametrize("kept", [5, 20])
def test_a_consumer_that_closes_gives_back_the_columns_that_no_poll_returned(
    client: RmqClient, make_topic: MakeTopic, kept: int
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    send(client, topic, 20)
    consumer = client.consumer(topic)
    columns = consumer.poll_columns(kept, timeout=5)
    consumer._return_buffer.keep(columns._selections)  # pyright: ignore[reportPrivateUsage]
    consumer.close()
    stats = stats_of(client, topic)
    assert (stats.backlog, stats.in_flight, stats.total("released"), stats.total("retried")) == (20, 0, kept, 0)


def test_columns_of_a_topic_that_merges(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, merge=Merge(Sum()))
    client.producer(topic).send_columns(["a", "b", "a"], priorities=5, bodies=[1, 2, 3])
    with client.consumer(topic) as consumer:
        columns = consumer.poll_columns()
        rows = zip(columns.contents, columns.bodies, columns.values, columns.merged, strict=True)
        assert sorted(rows) == [(b"a", b"4", 4, 2), (b"b", b"2", 2, 1)]
        assert columns.ack() == []


def test_where_there_are_no_columns(client: RmqClient, make_topic: MakeTopic) -> None:
    stream, topic = make_topic(TopicType.STREAM, checked=False), make_topic(TopicType.PRIORITY)
    with pytest.raises(InvalidValueError, match=r"STREAM topics .* do not support columns"):
        client.listener(stream, columns=True, batch=5, group="g")
    with pytest.raises(InvalidValueError, match="columns is True and batch is None; columns need batch="):
        client.listener(topic, columns=True)
    consumer = client.consumer(stream, group="g")
    with pytest.raises(InvalidValueError, match="is STREAM, which cannot be polled as columns; use poll"):
        consumer.poll_columns()
