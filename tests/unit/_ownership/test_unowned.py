"""Which slots count as having no owner."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from rmq import ListenerInfo, SlotStats, Topic, TopicStats, TopicType, WorkerInfo
from rmq.metrics.collector import Figures, count_unowned

TOPIC = Topic("jobs", TopicType.PRIORITY, slots=4)


def worker(*slots: int, topic: str = "jobs") -> WorkerInfo:
    listener = ListenerInfo(topic, None, 1, slots, (), 0, 0, 0, 0.0, 0.0)
    return WorkerInfo("w", "host", 1, 0, 0, 0, True, (listener,))


def unowned(epochs: tuple[int, ...], *workers: WorkerInfo) -> str:
    slots = tuple(
        SlotStats("jobs", slot, 0, 0, 0, 0, 0, 0, None, 0, epoch, False, {}) for slot, epoch in enumerate(epochs)
    )
    figures = Figures()
    count_unowned(figures, TopicStats(TOPIC, slots), workers)

    class Found(Collector):
        def collect(self):
            return [figures.unowned]

    registry = CollectorRegistry()
    registry.register(Found())
    return generate_latest(registry).decode().splitlines()[-1].removeprefix('rmq_slots_unowned{topic="jobs"} ')


def test_each_slot_that_nobody_has_counts() -> None:
    assert unowned((7, 7, 8, 8), worker(0, 1), worker(2, 3)) == "0.0"
    assert unowned((7, 7, 8, 8), worker(0, 1)) == "2.0"
    assert unowned((7, 7, 8, 8)) == "4.0"
    assert unowned((7, 7, 8, 8), worker(0, 1, 2, 3, topic="other")) == "4.0"


def test_a_slot_that_nobody_has_owned_so_far_counts_beside_others_that_have() -> None:
    assert unowned((7, 0, 0, 8), worker(0)) == "3.0"


def test_without_zookeeper_there_is_nothing_to_count() -> None:
    assert unowned((0, 0, 0, 0)).startswith("# TYPE")
