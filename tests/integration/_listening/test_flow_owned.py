"""Flow control where each slot belongs to one thread or task: through a real ZooKeeper, on both sides."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from rmq import Adaptive, Delivery, PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import CoordinationError
from rmq.metrics import TopicsCollector
from tests.conftest import Coordinate, MakeTopic
from tests.support.clients import stats_of
from tests.support.sides import Side
from tests.support.waiting import wait_until

SLOTS = 8


@pytest.fixture
def worker(coordinate: Coordinate, redis_url: str, side: Side) -> Iterator[RmqClient]:
    with side.client(redis_url, zookeeper=coordinate()) as client:
        yield client


def send_to_each_slot(client: RmqClient, topic: Topic, number: int) -> None:
    client.producer(topic).send_many(
        PriorityMessage(f"{basis}:{count}", 1_000, slot_basis=str(basis))
        for basis in range(8 * topic.slots)
        for count in range(number)
    )


class Seen:
    """What handlers did: which messages, of which slots, and how many ran at once, in all and in a slot."""

    def __init__(self) -> None:
        self.handled: Counter[str] = Counter()
        self.slots: Counter[int] = Counter()
        self.most = self.most_in_a_slot = 0
        self._running: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()

    def handle(self, delivery: Delivery) -> None:
        place = delivery.topic.name, delivery.slot
        with self._lock:
            self._running[place] += 1
            self.most = max(self.most, self._running.total())
            self.most_in_a_slot = max(self.most_in_a_slot, self._running[place])
        time.sleep(0.002)
        with self._lock:
            self._running[place] -= 1
            self.slots[delivery.slot] += 1
            self.handled[delivery.text] += 1


def test_a_slot_is_in_one_hand_while_slots_move(
    coordinate: Coordinate, redis_url: str, side: Side, client: RmqClient, make_topic: MakeTopic
) -> None:
    topic, seen = make_topic(TopicType.PRIORITY, slots=SLOTS, lease="8s"), Seen()
    producer = client.producer(topic)
    with (
        side.client(redis_url, zookeeper=coordinate()) as first,
        side.client(redis_url, zookeeper=coordinate()) as second,
    ):
        for number, worker in enumerate((first, second)):
            worker.listener(topic, threads=50)(seen.handle)
            worker.start()
            producer.send_many(PriorityMessage(f"m{number}:{i}", 100) for i in range(500))
        with pytest.raises(CoordinationError):
            first.consumer(topic)
        wait_until(lambda: len(seen.handled) > 600, 60)
        first.close()  # its slots go to the other one
        wait_until(lambda: len(seen.handled) == 1_000, 60)
    assert (seen.most_in_a_slot, set(seen.handled.values())) == (1, {1})
    assert seen.most > 2, "slots side by side"
    assert stats_of(client, topic).total("acked") == 1_000


def test_every_owned_slot_gets_its_turn_where_few_may_run(worker: RmqClient, make_topic: MakeTopic) -> None:
    topic, other, seen = make_topic(TopicType.PRIORITY, slots=SLOTS), make_topic(TopicType.PRIORITY), Seen()
    worker.listener(topic, threads=SLOTS)(seen.handle)
    worker.listener(other, weight=3)(seen.handle)
    send_to_each_slot(worker, topic, 5)
    send_to_each_slot(worker, other, 5)
    worker.start(handlers=2)
    wait_until(lambda: worker.inspect(topic).stats().total("acked") == 5 * 8 * SLOTS, 120)
    wait_until(lambda: worker.inspect(other).stats().total("acked") == 5 * 8, 120)
    worker.stop()
    assert set(seen.slots) == set(range(SLOTS))
    assert (seen.most, seen.most_in_a_slot) == (2, 1)
    assert seen.handled.total() == 5 * 8 * (SLOTS + 1), "each once"


def test_an_adaptive_listener_works_off_all_its_slots(worker: RmqClient, make_topic: MakeTopic) -> None:
    topic, seen = make_topic(TopicType.PRIORITY, slots=SLOTS, max_retries=999), Seen()
    down, tried = threading.Event(), threading.Event()

    @worker.listener(topic, threads=SLOTS, adaptive=Adaptive(window_s=0.1, longest_pause_s=0.2))
    def handle(delivery: Delivery) -> None:
        if down.is_set():
            tried.set()
            raise ConnectionError("down")
        seen.handle(delivery)

    worker.start()
    send_to_each_slot(worker, topic, 5)
    wait_until(lambda: set(seen.slots) == set(range(SLOTS)), 120)
    down.set()
    send_to_each_slot(worker, topic, 5)
    assert tried.wait(60)
    down.clear()
    wait_until(lambda: (stats := worker.inspect(topic).stats()).backlog + stats.waiting + stats.in_flight == 0, 120)
    worker.stop()
    assert worker.inspect(topic).stats().dead == 0
    assert seen.most_in_a_slot == 1


def test_slots_without_an_owner_are_counted(worker: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=SLOTS)
    worker.listener(topic)(lambda _: None)

    def unowned() -> float | None:
        families = TopicsCollector(worker, keep_s=0).collect()
        samples = [sample for family in families if family.name == "rmq_slots_unowned" for sample in family.samples]
        return next((sample.value for sample in samples if sample.labels["topic"] == topic.name), None)

    worker.producer(topic).send(PriorityMessage("a", 100))
    assert unowned() is None
    send_to_each_slot(worker, topic, 1)
    worker.start()
    wait_until(lambda: worker.inspect(topic).stats().total("acked") == 1 + 8 * SLOTS, 120)
    wait_until(lambda: unowned() == 0, 60)
    worker.stop()
    wait_until(lambda: unowned() == SLOTS, 60)
