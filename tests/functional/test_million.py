"""Many messages in one process each for sender and listener: nothing is lost, and memory stays flat."""

from __future__ import annotations

from benchmarks.support import flow, loads
from benchmarks.support.servers import standalone
from rmq import RmqClient, TopicType

LIMIT_MB = 150


def memory(number: int) -> list[float]:
    """Let so many messages flow; return the most memory of the sender and of the listener, MB; 0 without /proc."""
    with standalone() as servers, RmqClient(servers.url) as client:
        # as fast as it can; at a rate, the sender makes the messages while it sends them
        figures = flow.flow(servers, "range merge", number, rate=1_000_000)
        stats = client.inspect(loads.topic(TopicType.RANGE_MERGE, flow.SLOTS)).stats()
    assert [stats.total(each) for each in ("accepted", "merged", "acked")] == [number, 0, number]
    assert (stats.backlog, stats.in_flight, stats.waiting, stats.dead, stats.unaccounted) == (0, 0, 0, 0, 0)
    return [figures["sender_peak_mb"], figures["consumer_peak_mb"]]


def test_fifty_thousand_messages_in_flat_memory() -> None:
    for few, many in zip(memory(25_000), memory(50_000), strict=True):
        assert max(few, many) < LIMIT_MB
        assert many - few < 10
