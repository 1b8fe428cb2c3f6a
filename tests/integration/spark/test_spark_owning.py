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


class Worker:
    """A worker whose slots a test says: its query, what its coordinator was told, and Redis, which is real.

    Attributes:
        topic: What the query reads, since `fill`.
        slots: What the coordinator says the worker owns.
        fenced: The newer epochs that the coordinator was told of.
        left: How often the worker has left its cluster.
    """

    topic: Topic
    query: Query

    def __init__(
        self, sender: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic, make_query: MakeQuery
    ) -> None:
        self.sender, self._redis, self._make_topic, self._make_query = sender, redis_client, make_topic, make_query
        self.slots: dict[tuple[str, int], Ownership] = {}
        self.fenced: list[int] = []
        self.left = 0

    def fill(self, number: int, slots: int = 1, lease_s: float = 60.0) -> list[str]:
        """Make a topic with so many messages, all of whose slots the worker owns; return their contents."""
        self.topic = self._make_topic(TopicType.PRIORITY, slots=slots, lease=timedelta(seconds=lease_s))
        self.own(5, range(slots))
        return fill(self.sender, self.topic, number)

    def start(self) -> Query:
        """Start the query."""
        self.query = self._make_query(self.topic, zookeeper="zk1:2181")
        return self.query

    def begin(self, number: int, slots: int = 1, lease_s: float = 60.0) -> tuple[Query, list[str]]:
        """Do both, and have the query read them all as one batch."""
        sent, query = self.fill(number, slots, lease_s), self.start()
        query.plan()
        assert query.read() == sent
        return query, sent

    def own(self, epoch: int, slots: Iterable[int]) -> None:
        """Have the coordinator say that it owns these slots from now on."""
        name = self.topic.name
        self.slots = {(name, slot): Ownership(name, slot, epoch, ENSEMBLE) for slot in slots}

    def told(self) -> None:
        """Let the driver look at what the coordinator says, as a change does."""
        assert self.query.driver._owning is not None
        self.query.driver._owning.refresh_ownership(self.query.driver._owning._coordinator.owned())

    def lose(self, epoch: int) -> None:
        """Have another worker touch slot 0 first."""
        self._redis.hset(slot_keys(self.topic.name, 0).meta, mapping={"epoch": epoch, "ensemble": ENSEMBLE})

    def total(self, name: str) -> int:
        """Return a total of the topic."""
        return self.sender.inspect(self.topic).stats().total(name)

    def earlier_owner_claims(self, slot: int = 0, epoch: int = 4) -> None:
        """Have another worker claim a message."""
        connections = Connections(parse_url(self.sender.url))
        connections.run(claim_slot(self.topic, slot, 1, owner=Owner(epoch, ENSEMBLE)))
        connections.close()


@pytest.fixture
def worker(
    sender: RmqClient,
    redis_client: redis.Redis,
    make_topic: MakeTopic,
    make_query: MakeQuery,
    monkeypatch: pytest.MonkeyPatch,
) -> Worker:
    worker = Worker(sender, redis_client, make_topic, make_query)

    class Shown:
        def __init__(self, *_given: Any, **_options: Any) -> None:
            self.on_change = None

        def owned(self) -> dict[tuple[str, int], Ownership]:
            return worker.slots

        def revoking(self) -> frozenset[tuple[str, int]]:
            return frozenset()

        def awaited(self, _topic: str) -> frozenset[int]:
            return frozenset()

        def fenced(self, epoch: int, ensemble: str, slot: tuple[str, int]) -> None:
            del slot
            assert ensemble == ENSEMBLE
            worker.fenced.append(epoch)

    class Following:
        def __init__(self, *_given: Any) -> None: ...

        def start(self) -> None: ...

        def stop(self) -> None:
            worker.left += 1

    monkeypatch.setattr(owning, "Coordinator", Shown)
    monkeypatch.setattr(owning, "OwnershipFollower", Following)
    return worker


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


def test_a_lost_reply_to_a_sweep_ends_no_query(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, query = worker.fill(10, slots=2), worker.start()
    failed = fail_once(monkeypatch, "tidy", ReplyLostError("no reply"), after=True)
    wait_until(lambda: query.plan() == 10, LIMIT_S)
    assert failed
    assert query.read() == sent
    again = fail_once(monkeypatch, "tidy", ReplyLostError("no reply"), after=True)
    assert query.plan() == 0, "acked"
    assert again


@pytest.mark.parametrize("name", ["tidy", "settle"])
def test_a_lost_reply_ends_no_restart(name: str, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    query, sent = worker.begin(10, slots=2)
    query.restart()
    failed = fail_once(monkeypatch, name, ReplyLostError("no reply"), after=True)
    assert query.read() == sent
    assert failed
    assert query.plan() == 0


def test_a_restart_that_failed_takes_over_again(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slots counted as taken over before Redis had answered: the next try waited for no lease."""
    query, sent = worker.begin(3, lease_s=3)
    worker.sender.producer(worker.topic).send(PriorityMessage("other", 50))
    worker.earlier_owner_claims(epoch=5)
    worker.own(6, [0])
    query.restart()
    fail_once(monkeypatch, "tidy", RedisUnavailableError("no answer"))
    with pytest.raises(RedisUnavailableError):
        query.read()
    assert query.read() == sent
    assert worker.sender.inspect(worker.topic).stats().in_flight == len(sent)


def test_a_query_that_ends_with_what_is_available_waits_for_leases_in_its_slots(worker: Worker) -> None:
    sent = worker.fill(6, lease_s=1)
    worker.earlier_owner_claims()
    query = worker.start()
    query.driver.freeze()
    assert query.plan() == 5, "what was due at the start"
    assert set(query.read()) < set(sent)
    assert query.plan() == 0


def test_a_query_that_waits_for_leases_ends_where_it_loses_the_slot(worker: Worker) -> None:
    worker.fill(6)
    worker.earlier_owner_claims()
    query = worker.start()
    query.driver.freeze()
    planned: list[int] = []
    planning = threading.Thread(target=lambda: planned.append(query.plan()))
    planning.start()
    wait_until(lambda: query.driver._owning is not None and bool(query.driver._owning.awaited), LIMIT_S)
    worker.told()
    worker.slots = {}
    worker.told()
    planning.join(LIMIT_S)
    assert planned == [0]


def test_an_epoch_that_fences_is_passed_on_and_logged_once(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    worker.fill(3)
    worker.lose(99)
    query = worker.start()
    with caplog.at_level(logging.INFO, "rmq.spark"):
        for _ in range(3):
            assert query.plan() == 0
            query.driver._waiting.stir()
    assert set(worker.fenced) == {99}
    assert len(worker.fenced) == 3
    assert caplog.text.count("has a newer owner (epoch 99); this query owned it in epoch 5") == 1


def test_a_restart_counts_nothing_as_lost_that_it_never_had(worker: Worker) -> None:
    query, _ = worker.begin(20, slots=2)
    query.driver.ack(query.batch)
    worker.own(5, [0])
    query.restart()
    query.driver.ack(query.batch)
    assert query.driver.figures.totals["lost"] == 0


def test_a_batch_without_some_slots_is_renewed_without_warnings(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    query, _ = worker.begin(20, slots=2, lease_s=3)
    worker.own(6, [0])
    query.restart()
    query.read()
    for _ in range(2):
        query.driver._renew()
    assert "other workers may receive" not in caplog.text
    worker.slots = {}
    worker.lose(7)
    for _ in range(2):
        query.driver._renew()
    assert caplog.text.count("other workers may receive") == 1


@pytest.mark.parametrize("error", [RedisUnavailableError("no answer"), ReplyLostError("no reply")])
def test_an_owed_ack_is_sent_until_redis_answers(
    error: RmqError, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, _ = worker.begin(3)
    worker.lose(6)
    worker.slots = {}
    query.driver.ack(query.batch)
    assert worker.total("acked") == 0, "another worker has the slot"
    worker.own(7, [0])
    worker.told()
    failed = fail_once(monkeypatch, "settle", error)
    query.driver.plan(query.batch, None)
    assert failed
    assert worker.total("acked") == 0

    def acked() -> bool:
        assert query.driver.plan(query.batch, None) is None, "committed: they do not come again"
        return worker.total("acked") == 3

    wait_until(acked, LIMIT_S)


def test_a_stop_while_it_waits_for_slots_leaves_the_cluster(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.fill(0)
    query = worker.start()

    def end(_self: Any) -> dict[int, Owner]:
        raise SystemExit(143)

    monkeypatch.setattr(owning.OwnedSlots, "owned", end)
    with pytest.raises(SystemExit):
        query.plan()
    assert worker.left == 1


def test_a_worker_too_many_is_told_so(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(owning, "SETTLE_S", -9.9)  # of a session of 10 s
    worker.fill(0)
    worker.slots = {}
    assert worker.start().plan() == 0
    assert "owns no slot: the topic has more workers than slots (1)" in caplog.text


def test_a_renewal_that_ends_after_the_ack_keeps_no_slot(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    query, _ = worker.begin(3, lease_s=3)
    worker.lose(6)
    worker.own(7, [0])
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
    assert worker.total("acked") == 3


def test_waiting_for_leases_costs_few_commands(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.fill(1, slots=64)
    mine = worker.topic.slot_of(b"m0")
    worker.earlier_owner_claims(mine)
    query = worker.start()
    assert query.plan() == 0
    swept: list[Sequence[int]] = []
    real = QuerySlots.tidy

    def tidy(self: QuerySlots, owners: Any = None) -> Any:
        swept.append(sorted(owners))
        return real(self, owners)

    monkeypatch.setattr(QuerySlots, "tidy", tidy)
    wait_until(lambda: query.plan() == 0 and len(swept) >= 2, LIMIT_S)
    assert swept == [[mine]] * len(swept)
