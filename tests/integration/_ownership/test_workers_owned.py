"""With ZooKeeper, whoever holds a message in flight is known by name."""

from __future__ import annotations

import threading

import pytest

from rmq import PriorityMessage, RmqClient, TopicType
from tests.conftest import Coordinate, MakeTopic
from tests.support.waiting import wait_until


@pytest.mark.usefixtures("frequent_reports")
def test_the_owner_of_a_slot_holds_what_is_in_flight_there(
    coordinate: Coordinate, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    release = threading.Event()
    workers = [RmqClient(redis_url, zookeeper=coordinate()) for _ in range(2)]

    def listen(worker: RmqClient) -> None:
        @worker.listener(topic, threads=2)
        def handle(delivery: object) -> None:
            del delivery
            release.wait(120)

    with RmqClient(redis_url) as reader:
        for worker in workers:
            listen(worker)
            worker.start()

        def owned() -> dict[str, tuple[int, ...]]:
            found = [each for each in reader.workers() if any(one.topic == topic.name for one in each.listeners)]
            assert all(each.zookeeper for each in found)
            return {each.name: each.listeners[0].slots for each in found}

        try:
            wait_until(lambda: sorted(len(slots) for slots in owned().values()) == [4, 4], 120)
            shares = owned()
            assert sorted(slot for slots in shares.values() for slot in slots) == list(range(8))
            reader.producer(topic).send(PriorityMessage("slow", 100))
            view = reader.inspect(topic)
            wait_until(lambda: len(view.find("slow").holders) == 1, 120)
            found = view.find("slow")
            assert found.slot in shares[found.holders[0]]
        finally:
            release.set()
            for worker in workers:
                worker.close()
        assert owned() == {}
