"""Stream topics for tests, each checked at the end: nothing vanished, nothing is left that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

from rmq import Consumer, Delivery, GroupStats, RmqClient, StreamDelivery, Topic
from tests.support.core import group_keys, history_key, slot_keys


def check_stream(client: RmqClient, plain: Any, topic: Topic) -> None:
    """Check a stream topic's accounts, and that it has no keys but its own."""
    view = client.stream(topic)
    stats = view.stats()
    assert stats.unaccounted == 0, stats
    names = stats.groups
    known = {history_key(topic.name)}  # of a listener that ran when a minute ended
    for slot in range(topic.slots):
        keys = slot_keys(topic.name, slot)
        known |= {keys.store, keys.meta, keys.audit, keys.sizes}
        for name in names:
            known |= set(astuple(group_keys(topic.name, slot, name)))
    found = {key.decode() for key in plain.keys(f"*{topic.name}*")}
    assert found <= known, found - known
    for group in view.groups():
        assert group.unaccounted == 0, group
        check_sides(plain, topic, group)


def check_sides(plain: Any, topic: Topic, group: GroupStats) -> None:
    """Check that failures, reasons and fields belong to entries that are pending or dead."""
    for slot in range(topic.slots):
        keys = group_keys(topic.name, slot, group.group)
        pending = {row["message_id"] for row in pending_rows(plain, topic, slot, group.group)}
        dead = set(plain.zrange(keys.dead, 0, -1))
        assert set(plain.hkeys(keys.error)) <= pending, (slot, group.group)
        assert set(plain.hkeys(keys.reason)) == set(plain.hkeys(keys.dead_body)) == dead, (slot, group.group)
        waiting = {normal(member) for member in plain.zrange(keys.retry, 0, -1)}
        assert waiting <= pending, (slot, group.group)


def pending_rows(plain: Any, topic: Topic, slot: int, group: str) -> list[dict[str, object]]:
    """What Redis itself says of a group's pending entries."""
    return list(plain.xpending_range(f"{topic.name}_{slot}", group, "-", "+", 100_000))  # pyright: ignore


def normal(member: bytes) -> bytes:
    """An id without the zeros that fill it up."""
    ms, _, sequence = member.partition(b"-")
    return ms + b"-" + str(int(sequence)).encode()


def ids(deliveries: Iterable[Delivery]) -> list[str]:
    """The entries' ids in the order of delivery."""
    return [entry(delivery).id for delivery in deliveries]


def entry(delivery: Delivery) -> StreamDelivery:
    """A delivery of a stream topic as what it is."""
    assert isinstance(delivery, StreamDelivery)
    return delivery


def drain_entries(consumer: Consumer, timeout: float = 0.3, most: int = 1_000) -> list[str]:
    """Poll and ack until nothing comes for `timeout` seconds; return the contents in the order of delivery."""
    found: list[str] = []
    while deliveries := consumer.poll(most, timeout):
        assert consumer.ack(deliveries) == []
        found += [delivery.text for delivery in deliveries]
    return found
