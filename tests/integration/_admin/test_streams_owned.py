"""Stream topics with ZooKeeper: each group has one owner per slot, and a key's messages are handled in order."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from rmq import Adoption, Delivery, ImmediateRetry, Owner, RmqClient, StreamMessage, TopicType
from rmq.errors import EnsembleMismatchError
from tests.conftest import Coordinate, MakeTopic
from tests.support.core import ClaimPart, Member, Outcomes, StreamBroker
from tests.support.streams import check_stream
from tests.support.waiting import wait_until


def test_each_group_has_one_owner_per_slot_and_order_survives_a_handover(
    coordinate: Coordinate, redis_url: str, client: RmqClient, make_topic: MakeTopic, redis_client: Any
) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, slots=8, lease=timedelta(seconds=8), retry=ImmediateRetry())
    producer, view = client.producer(topic), client.stream(topic)
    keys = [f"k{number}" for number in range(16)]

    def send(numbers: range) -> None:
        producer.send_many(StreamMessage(f"{key}:{number}", slot_basis=key) for number in numbers for key in keys)

    order: dict[str, list[str]] = {group: [] for group in ("a", "b")}
    lock = threading.Lock()

    def listen(worker: RmqClient, group: str) -> None:
        @worker.listener(topic, group=group, start="all", threads=2)
        def handle(delivery: Delivery) -> None:
            with lock:
                order[group].append(delivery.text)
            time.sleep(0.001)

    workers = [RmqClient(redis_url, zookeeper=coordinate()) for _ in range(2)]
    for worker in workers:
        for group in order:
            listen(worker, group)
    try:
        workers[0].start()
        send(range(60))
        workers[1].start()  # slots move while messages are handled
        send(range(60, 120))
        wait_until(lambda: all(view.group(group).total("acked") >= 16 * 60 for group in order), 60)
        workers[0].stop()  # and back again
        wait_until(lambda: all(view.group(group).total("acked") == 16 * 120 for group in order), 60)
    finally:
        for worker in workers:
            worker.close()
    check_stream(client, redis_client, topic)
    for group, handled in order.items():
        assert len(handled) == 16 * 120, group
        for key in keys:
            mine = [text for text in handled if text.startswith(f"{key}:")]
            assert mine == [f"{key}:{number}" for number in range(120)], (group, key)
        assert all(slot.epoch > 0 for slot in view.group(group).slots)


def test_groups_go_on_with_another_ensemble_once_it_adopts_them(
    coordinate: Coordinate, redis_url: str, client: RmqClient, make_topic: MakeTopic, redis_client: Any
) -> None:
    # pitfall 41; a chroot of its own is an ensemble of its own
    topic = make_topic(TopicType.STREAM, checked=False, slots=4)
    view, groups = client.stream(topic), ("a", "b")
    handled: dict[str, list[str]] = {group: [] for group in groups}

    def worker(chroot: str) -> RmqClient:
        made = RmqClient(redis_url, zookeeper=coordinate(chroot=chroot))
        for group in groups:
            made.listener(topic, group=group, start="all")(
                lambda delivery, group=group: handled[group].append(delivery.text)
            )
        return made

    def consume(chroot: str, content: str) -> None:
        with worker(chroot) as at_work:
            at_work.start()
            client.producer(topic).send_many(StreamMessage(content, slot_basis=f"k{each}") for each in range(20))
            wait_until(lambda: all(handled[group].count(content) == 20 for group in groups), 60)
            wait_until(lambda: all(slot.epoch for name in groups for slot in view.group(name).slots), 60)

    def adopt(chroot: str, from_ensemble: str | None = None) -> Adoption:
        with worker(chroot) as adopter:
            return adopter.adopt(topic, from_ensemble)

    old, new = (f"/{topic.name}-{name}" for name in ("old", "new"))
    consume(old, "old")
    shown = adopt(new)
    ((before, number),) = shown.stored.items()
    assert (number, shown.moved) == (8, 0)
    connections = client._registered(topic)[0]
    stranger = StreamBroker(connections, topic, Member("a", "stranger"))
    with pytest.raises(EnsembleMismatchError):
        connections.run(stranger.claim_call([ClaimPart(0, 0, Outcomes([(b"1-1", 1)]), Owner(10**9, shown.ensemble))]))
    with pytest.raises(EnsembleMismatchError):
        adopt(new, "some third one")
    assert [adopt(new, before).moved for _ in range(2)] == [8, 0]
    consume(new, "new")
    assert client.adopt(topic, shown.ensemble).moved == 8  # and away from ZooKeeper
    client.producer(topic).send(StreamMessage("free"))
    for group in groups:
        with client.consumer(topic, group=group) as consumer:
            (delivery,) = consumer.poll(10, 50)
            assert (delivery.text, delivery.ack()) == ("free", True)
    check_stream(client, redis_client, topic)


def test_an_owner_that_resumes_waits_for_no_lease_and_keeps_the_order(
    coordinate: Coordinate, redis_url: str, client: RmqClient, make_topic: MakeTopic, redis_client: Any
) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, slots=2)  # a lease is a minute
    handled: list[tuple[str, int]] = []
    client.producer(topic).send_many(StreamMessage(f"m{number}", slot_basis="k") for number in range(20))
    with client.consumer(topic, group="g", start="all", name="pod-0") as gone:
        assert len(gone.poll(10)) == 10
    with RmqClient(redis_url, zookeeper=coordinate()) as worker:

        @worker.listener(topic, group="g", resume_as="pod-0")
        def handle(delivery: Delivery) -> None:
            handled.append((delivery.text, delivery.attempt))

        worker.start()
        wait_until(lambda: client.stream(topic).group("g").total("acked") == 20)
    check_stream(client, redis_client, topic)
    assert handled == [(f"m{number}", 2 if number < 10 else 1) for number in range(20)]
