"""What the driver of a query does where its slots change: tests say what it owns, and Redis is real."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
import redis

from rmq import Owner, Ownership, PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import RedisUnavailableError, ReplyLostError, RmqError
from rmq.spark.slots import QuerySlots
from rmq.spark.source import owning
from tests.conftest import MakeTopic
from tests.integration.spark.test_spark_driver import MakeQuery, Query, fill, make_query
from tests.support.core import Connections, parse_url, slot_keys
from tests.support.one_slot import claim_slot
from tests.support.waiting import wait_until

__all__ = ["make_query"]

LIMIT_S = 30
ENSEMBLE = "zk"


class View:
    """What the coordinators of a test say, and what they were told."""

    def __init__(self) -> None:
        self.slots: dict[tuple[str, int], Ownership] = {}
        self.fenced: list[int] = []
        self.left = 0

    def own(self, topic: Topic, epoch: int, slots: Iterable[int]) -> None:
        self.slots = {(topic.name, slot): Ownership(topic.name, slot, epoch, ENSEMBLE) for slot in slots}


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> View:
    shown = View()

    class Shown:
        def __init__(self, *_given: Any, **_options: Any) -> None:
            self.on_change = None

        def owned(self) -> dict[tuple[str, int], Ownership]:
            return shown.slots

        def revoking(self) -> frozenset[tuple[str, int]]:
            return frozenset()

        def awaited(self, _topic: str) -> frozenset[int]:
            return frozenset()

        def fenced(self, epoch: int, ensemble: str, slot: tuple[str, int]) -> None:
            del slot
            assert ensemble == ENSEMBLE
            shown.fenced.append(epoch)

    class Following:
        def __init__(self, *_given: Any) -> None: ...

        def start(self) -> None: ...

        def stop(self) -> None:
            shown.left += 1

    monkeypatch.setattr(owning, "Coordinator", Shown)
    monkeypatch.setattr(owning, "OwnershipFollower", Following)
    return shown


def owned_query(view: View, make_query: MakeQuery, topic: Topic, epoch: int = 5, **options: str) -> Query:
    view.own(topic, epoch, range(topic.slots))
    return make_query(topic, zookeeper="zk1:2181", **options)


def told(query: Query) -> None:
    """Let the driver look at what the coordinator says, as a change does."""
    assert query.driver._owning is not None
    query.driver._owning.refresh_ownership(query.driver._owning._coordinator.owned())


def taken(redis_client: redis.Redis, topic: Topic, epoch: int, slot: int = 0) -> None:
    """Have another worker touch a slot first."""
    redis_client.hset(slot_keys(topic.name, slot).meta, mapping={"epoch": epoch, "ensemble": ENSEMBLE})


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str, error: RmqError, *, after: bool = False) -> list[str]:
    """Have the next call of a method of `QuerySlots` fail, where wanted after it was carried out."""
    real, failed = getattr(QuerySlots, name), list[str]()

    def failing(self: QuerySlots, *given: Any) -> Any:
        if failed:
            return real(self, *given)
        failed.append(name)
        if after:
            real(self, *given)
        raise error

    monkeypatch.setattr(QuerySlots, name, failing)
    return failed


def earlier_owner_claims(redis_url: str, topic: Topic, slot: int, epoch: int = 4) -> None:
    connections = Connections(parse_url(redis_url))
    connections.run(claim_slot(topic, slot, 1, owner=Owner(epoch, ENSEMBLE)))
    connections.close()


def test_a_lost_reply_to_a_sweep_ends_no_query(
    view: View, sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    sent = fill(sender, topic, 10)
    query = owned_query(view, make_query, topic)
    failed = fail_once(monkeypatch, "tidy", ReplyLostError("no reply"), after=True)
    wait_until(lambda: query.plan() == 10, LIMIT_S)
    assert failed
    assert query.read() == sent
    again = fail_once(monkeypatch, "tidy", ReplyLostError("no reply"), after=True)
    assert query.plan() == 0, "acked"
    assert again


@pytest.mark.parametrize("name", ["tidy", "settle"])
def test_a_lost_reply_ends_no_restart(
    name: str,
    view: View,
    sender: RmqClient,
    make_topic: MakeTopic,
    make_query: MakeQuery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    sent = fill(sender, topic, 10)
    query = owned_query(view, make_query, topic)
    query.plan()
    assert query.read() == sent
    query.restart()
    failed = fail_once(monkeypatch, name, ReplyLostError("no reply"), after=True)
    assert query.read() == sent
    assert failed
    assert query.plan() == 0


def test_a_restart_that_failed_takes_over_again(
    view: View,
    redis_url: str,
    sender: RmqClient,
    make_topic: MakeTopic,
    make_query: MakeQuery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slots counted as taken over before Redis had answered: the next try waited for no lease."""
    topic = make_topic(TopicType.PRIORITY, slots=1, lease=timedelta(seconds=3))
    sent = fill(sender, topic, 3)
    query = owned_query(view, make_query, topic)
    query.plan()
    assert query.read() == sent
    sender.producer(topic).send(PriorityMessage("other", 50))
    earlier_owner_claims(redis_url, topic, 0, epoch=5)
    view.own(topic, 6, [0])
    query.restart()
    fail_once(monkeypatch, "tidy", RedisUnavailableError("no answer"))
    with pytest.raises(RedisUnavailableError):
        query.read()
    assert query.read() == sent
    assert sender.inspect(topic).stats().in_flight == len(sent)


def test_a_query_that_ends_with_what_is_available_waits_for_leases_in_its_slots(
    view: View, redis_url: str, sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, lease=timedelta(seconds=1))
    sent = fill(sender, topic, 6)
    earlier_owner_claims(redis_url, topic, 0)
    query = owned_query(view, make_query, topic)
    query.driver.freeze()
    assert query.plan() == 5, "what was due at the start"
    assert set(query.read()) < set(sent)
    assert query.plan() == 0


def test_a_query_that_waits_for_leases_ends_where_it_loses_the_slot(
    view: View, redis_url: str, sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, lease=timedelta(seconds=60))
    fill(sender, topic, 6)
    earlier_owner_claims(redis_url, topic, 0)
    query = owned_query(view, make_query, topic)
    query.driver.freeze()
    planned: list[int] = []
    planning = threading.Thread(target=lambda: planned.append(query.plan()))
    planning.start()
    wait_until(lambda: query.driver._owning is not None and bool(query.driver._owning.awaited), LIMIT_S)
    told(query)
    view.slots = {}
    told(query)
    planning.join(LIMIT_S)
    assert planned == [0]


def test_an_epoch_that_fences_is_passed_on_and_logged_once(
    view: View,
    redis_client: redis.Redis,
    sender: RmqClient,
    make_topic: MakeTopic,
    make_query: MakeQuery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1)
    fill(sender, topic, 3)
    taken(redis_client, topic, 99)
    query = owned_query(view, make_query, topic)
    with caplog.at_level(logging.INFO, "rmq.spark"):
        for _ in range(3):
            assert query.plan() == 0
            query.driver._waiting.stir()
    assert set(view.fenced) == {99}
    assert len(view.fenced) == 3
    assert caplog.text.count("has a newer owner (epoch 99); this query owned it in epoch 5") == 1


def test_a_restart_counts_nothing_as_lost_that_it_never_had(
    view: View, sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    sent = fill(sender, topic, 20)
    query = owned_query(view, make_query, topic)
    query.plan()
    assert query.read() == sent
    query.driver.ack(query.batch)
    view.own(topic, 5, [0])
    query.restart()
    query.driver.ack(query.batch)
    assert query.driver.figures.totals["lost"] == 0


def test_a_batch_without_some_slots_is_renewed_without_warnings(
    view: View,
    redis_client: redis.Redis,
    sender: RmqClient,
    make_topic: MakeTopic,
    make_query: MakeQuery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, lease=timedelta(seconds=3))
    fill(sender, topic, 20)
    query = owned_query(view, make_query, topic)
    query.plan()
    query.read()
    view.own(topic, 6, [0])
    query.restart()
    query.read()
    for _ in range(2):
        query.driver._renew()
    assert "other workers claimed" not in caplog.text
    view.slots = {}
    taken(redis_client, topic, 7)
    for _ in range(2):
        query.driver._renew()
    assert caplog.text.count("other workers claimed") == 1


@pytest.mark.parametrize("error", [RedisUnavailableError("no answer"), ReplyLostError("no reply")])
def test_an_owed_ack_is_sent_until_redis_answers(
    error: RmqError,
    view: View,
    redis_client: redis.Redis,
    sender: RmqClient,
    make_topic: MakeTopic,
    make_query: MakeQuery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1)
    fill(sender, topic, 3)
    query = owned_query(view, make_query, topic)
    query.plan()
    query.read()
    taken(redis_client, topic, 6)
    view.slots = {}
    query.driver.ack(query.batch)
    assert sender.inspect(topic).stats().total("acked") == 0, "another worker has the slot"
    view.own(topic, 7, [0])
    told(query)
    failed = fail_once(monkeypatch, "settle", error)
    query.driver.plan(query.batch, None)
    assert failed
    assert sender.inspect(topic).stats().total("acked") == 0

    def acked() -> bool:
        assert query.driver.plan(query.batch, None) is None, "committed: they do not come again"
        return sender.inspect(topic).stats().total("acked") == 3

    wait_until(acked, LIMIT_S)


def test_a_stop_while_it_waits_for_slots_leaves_the_cluster(
    view: View, sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1)
    sender.producer(topic)
    query = make_query(topic, zookeeper="zk1:2181")

    def end(_self: Any) -> dict[int, Owner]:
        raise SystemExit(143)

    monkeypatch.setattr(owning.OwnedSlots, "owned", end)
    with pytest.raises(SystemExit):
        query.plan()
    assert view.left == 1


def test_a_worker_too_many_is_told_so(
    view: View,
    sender: RmqClient,
    make_topic: MakeTopic,
    make_query: MakeQuery,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(owning, "SETTLE_S", -9.9)  # of a session of 10 s
    topic = make_topic(TopicType.PRIORITY, slots=1)
    sender.producer(topic)
    assert make_query(topic, zookeeper="zk1:2181").plan() == 0
    assert "owns no slot: the topic has more workers than slots (1)" in caplog.text


def test_a_renewal_that_ends_after_the_ack_keeps_no_slot(
    view: View,
    redis_client: redis.Redis,
    sender: RmqClient,
    make_topic: MakeTopic,
    make_query: MakeQuery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, lease=timedelta(seconds=3))
    fill(sender, topic, 3)
    query = owned_query(view, make_query, topic)
    query.plan()
    query.read()
    taken(redis_client, topic, 6)
    view.own(topic, 7, [0])
    real, acked = query.driver._renewals.settle, list[bool]()

    def slow(*given: Any) -> Any:
        done = real(*given)
        if not acked:
            acked.append(True)
            query.driver.ack(query.batch)
        return done

    monkeypatch.setattr(query.driver._renewals, "settle", slow)
    query.driver._renew()
    assert acked
    assert query.driver._owning is not None
    assert query.driver._owning._kept is None
    assert sender.inspect(topic).stats().total("acked") == 3


def test_waiting_for_leases_costs_few_commands(
    view: View,
    redis_url: str,
    sender: RmqClient,
    make_topic: MakeTopic,
    make_query: MakeQuery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=64, lease=timedelta(seconds=60))
    sender.producer(topic).send(PriorityMessage("x", 1_000))
    mine = topic.slot_of(b"x")
    earlier_owner_claims(redis_url, topic, mine)
    query = owned_query(view, make_query, topic)
    assert query.plan() == 0
    swept: list[Sequence[int]] = []
    real = QuerySlots.tidy

    def tidy(self: QuerySlots, owners: Any = None) -> Any:
        swept.append(sorted(owners))
        return real(self, owners)

    monkeypatch.setattr(QuerySlots, "tidy", tidy)
    wait_until(lambda: query.plan() == 0 and len(swept) >= 2, LIMIT_S)
    assert swept == [[mine]] * len(swept)
