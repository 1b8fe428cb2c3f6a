"""Listeners that own their slots: a handler that hangs, two ensembles, tokens for outside, what a flush forgets."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from rmq import Coordinator, Delivery, Listener, PriorityMessage, RmqClient, StreamMessage, Topic, TopicType
from tests.conftest import Coordinate, MakeTopic
from tests.integration._ownership.test_zookeeper import plain_client
from tests.support.core import ENSEMBLES_KEY, redis_identity
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperEnsemble


@pytest.fixture
def coordinator(coordinate: Coordinate) -> Coordinator:
    return coordinate()


def send(client: RmqClient, topic: Topic, number: int) -> None:
    client.producer(topic).send_many(PriorityMessage(f"m{index}", 10) for index in range(number))


@pytest.mark.parametrize("timeout", [None, timedelta(seconds=0.5)])
def test_slots_leave_a_thread_in_which_a_handler_of_another_slot_hangs(
    coordinator: Coordinator,
    redis_url: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    timeout: timedelta | None,
) -> None:
    monkeypatch.setattr("rmq._listening.listener_runner.HANGS_S", 1.0)
    monkeypatch.setattr("rmq._ownership.follower.OWNED_LOOK_S", 0.5)
    topic = make_topic(TopicType.PRIORITY, slots=8)
    release, lock = threading.Event(), threading.Lock()
    done: list[str] = []
    running: set[int] = set()
    hung: list[int] = []

    def handle(delivery: Delivery) -> None:
        with lock:
            assert delivery.slot not in running, "two handlers of one slot"
            running.add(delivery.slot)
            hangs = not hung
            hung.extend([delivery.slot] * hangs)
        if hangs:
            release.wait(300)
        with lock:
            running.discard(delivery.slot)
            done.append(delivery.text)

    with RmqClient(redis_url, zookeeper=coordinator) as client:
        client.add(Listener(topic, handle, threads=4, timeout=timeout))
        client.start(drain_s=5)
        wait_until(lambda: len(coordinator.owned()) == 8, 120)
        send(client, topic, 400)
        stats = client.inspect(topic).stats
        wait_until(lambda: sum(not (slot.backlog or slot.in_flight) for slot in stats().slots) == 7, 120)
        [stuck] = [slot for slot in stats().slots if slot.backlog or slot.in_flight]
        assert [stuck.slot] == hung
        wait_until(
            lambda: any(f"slot {stuck.slot}; messages of that slot" in each for each in coordinator.troubles), 60
        )
        assert running == {stuck.slot}
        release.set()
        wait_until(lambda: len(set(done)) == 400, 120)
        wait_until(lambda: coordinator.troubles == (), 60)


def test_a_worker_of_another_ensemble_says_that_its_slots_are_anothers(
    coordinator: Coordinator, coordinate: Coordinate, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    done: list[str] = []
    other = coordinate(chroot=f"/{topic.name}")
    with ExitStack() as stack:
        clients = [stack.enter_context(RmqClient(redis_url, zookeeper=each)) for each in (coordinator, other)]
        for client in clients:
            client.add(Listener(topic, lambda delivery: done.append(delivery.text)))
        clients[0].start()
        send(clients[0], topic, 10)
        wait_until(lambda: len(done) == 10, 120)
        clients[1].start()
        wait_until(lambda: len(other.owned()) == 2, 120)
        send(clients[0], topic, 20)
        wait_until(lambda: any("from 2 of its slots" in each for each in other.troubles), 120)
        assert any(f"ensemble {coordinator.ensemble}, not through this one" in each for each in other.troubles)
        assert coordinator.troubles == ()
        wait_until(lambda: len(done) == 30, 120)
        assert coordinator.ensemble is not None
        clients[0].stop()
        clients[1].adopt(topic, coordinator.ensemble)
        send(clients[1], topic, 10)
        wait_until(lambda: len(done) == 40, 120)
        wait_until(lambda: other.troubles == (), 60)


@pytest.mark.parametrize("kind", ["plain", "columns", "stream"])
def test_tokens_go_on_growing_after_zookeeper_was_rebuilt(
    zookeeper: ZooKeeperEnsemble, coordinator: Coordinator, redis_url: str, make_topic: MakeTopic, kind: str
) -> None:
    topic = make_topic(TopicType.STREAM if kind == "stream" else TopicType.PRIORITY, checked=kind != "stream", slots=2)
    tokens: list[Any] = []

    def handle(given: Any) -> None:
        tokens.extend(given.fencing_tokens if kind == "columns" else [given.fencing_token])

    def work(owner: Coordinator, from_ensemble: str | None = None) -> tuple[int, str]:
        with RmqClient(redis_url, zookeeper=owner) as client:
            options: Any = {"group": "g", "start": "all"} if kind == "stream" else {}
            options = {"columns": True, "batch": 5} if kind == "columns" else options
            client.add(Listener(topic, handle, **options))
            if from_ensemble is not None:
                client.adopt(topic, from_ensemble)
                return 0, ""
            client.start()
            wait_until(lambda: len(owner.owned()) == 2, 120)
            epochs = [each.epoch for each in owner.owned().values()]
            message, before = StreamMessage if kind == "stream" else partial(PriorityMessage, priority=1), len(tokens)
            client.producer(topic).send_many(message(f"{before}-{number}") for number in range(10))
            wait_until(lambda: len(tokens) == before + 10, 120)
            return max(epochs), owner.ensemble or ""

    with plain_client(zookeeper.hosts) as busy:  # so that the new one counts less
        for _ in range(300):
            busy.delete(busy.create("/busy", ephemeral=True))
    first, ensemble = work(coordinator)
    with ZooKeeperEnsemble(tick_ms=500) as rebuilt:
        work(Coordinator(rebuilt.hosts), ensemble)
        second, _ = work(Coordinator(rebuilt.hosts))
    assert second < first
    old, new = tokens[:10], tokens[10:]
    assert None not in tokens
    assert max(old, key=int) <= first < min(new, key=int) < 2**63


def test_the_highest_epoch_is_told_again_to_a_redis_that_has_forgotten_it(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_identity, "IDENTIFY_EVERY_S", 0.1)
    monkeypatch.setattr(redis_identity, "IDENTITY_LOOK_S", 0.1)
    with RedisServer() as server, RmqClient(server.url, zookeeper=coordinator) as client:
        client.add(Listener(Topic("t", TopicType.PRIORITY, slots=2), lambda delivery: None))
        client.start()
        redis = server.connect()
        wait_until(lambda: len(coordinator.owned()) == 2 and redis.zcard(ENSEMBLES_KEY), 120)
        highest = max(each.epoch for each in coordinator.owned().values())
        redis.flushall()
        assert coordinator.ensemble is not None
        wait_until(lambda: redis.zscore(ENSEMBLES_KEY, coordinator.ensemble or "") == highest, 60)


def test_a_handler_that_stops_its_client_keeps_its_slot_until_it_returns(
    coordinator: Coordinator, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    with RmqClient(redis_url) as watching, RmqClient(redis_url, zookeeper=coordinator) as client:
        returned: list[bool] = []

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            client.stop(drain_s=60)
            owned = bool(coordinator.owned() or coordinator.revoking())  # not given away yet
            returned.append(owned)

        send(watching, topic, 1)
        client.start()
        wait_until(lambda: watching.inspect(topic).stats().total("acked") == 1, 60)
        assert returned == [True]


def test_a_worker_with_zookeeper_is_ready_once_it_owns_its_slots(
    coordinator: Coordinator, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    with RmqClient(redis_url, zookeeper=coordinator) as client:
        client.add(Listener(topic, print))
        client.start(drain_s=5)
        wait_until(lambda: client.health().ready, 60)
        assert len(coordinator.owned()) == 2
        client.stop(5)
        assert client.health().reasons == ("no listener is running",)
