"""Redis' clock is set back while deliveries of a stream are in hand: their leases end late by their own length at most.

The scripts live in virtual time: Redis itself counts the ages of deliveries from times that lie ahead then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rmq import Owner, Topic, TopicType
from tests.conftest import MakeTopic
from tests.simulation.stream_clock import TIMES_KEY, SimulatedScripts
from tests.support.core import NO_OWNER, Ack, Connections, Member, Outcomes, group_keys, parse_url, slot_keys, streams
from tests.support.one_slot import claim_group, settle_group
from tests.support.slots import CLOCK_KEY, READ_FAKE_CLOCK, T0, scripts_under_test

LEASE_MS = 3_000
GONE, ME = Member("g", "gone"), Member("g", "me")
BACK = pytest.mark.parametrize("back_ms", [25_000, 3_600_000, 2_000])


class Group:
    """A group on slot 0 of a stream, and its clock."""

    def __init__(self, connections: Connections, client: Any, topic: Topic) -> None:
        self.connections, self.client, self.topic, self.now_ms = connections, client, topic, T0
        self.keys, self.own = slot_keys(topic.name, 0), group_keys(topic.name, 0, "g")
        client.xgroup_create(self.keys.store, "g", "0", mkstream=True)
        self.advance(0)

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.client.set(CLOCK_KEY, self.now_ms)

    def send(self, number: int) -> None:
        for index in range(number):
            self.client.xadd(self.keys.store, {"content": index})
        self.client.hincrby(self.keys.meta, "accepted", number)

    def claim(self, member: Member, limit: int = 1_000, owner: Owner = NO_OWNER, own: int = 0) -> list[Ack]:
        self.reply = self.connections.run(claim_group(self.topic, 0, member, limit, owner=owner, own=own))
        return [(message.content, message.claim_score) for message in self.reply.messages]

    def due_in_ms(self) -> int:
        now_ms, (due_ms,) = self.connections.run(streams.look(self.topic, [0], "g"))
        return max(0, due_ms - now_ms) if due_ms else -1


@pytest.fixture
def group(make_topic: MakeTopic, redis_url: str, redis_client: Any) -> Iterator[Group]:
    scripts = scripts_under_test(SimulatedScripts, READ_FAKE_CLOCK)
    connections = Connections(parse_url(redis_url), scripts=scripts)
    topic = make_topic(TopicType.STREAM, checked=False, slots=1, lease=f"{LEASE_MS}ms")
    yield Group(connections, redis_client, topic)
    connections.close()
    for key in redis_client.scan_iter(f"{TIMES_KEY}*"):
        redis_client.delete(key)


@BACK
def test_a_lease_ends_after_its_length_counted_from_when_the_clock_is_seen_set_back(group: Group, back_ms: int) -> None:
    group.send(2)
    assert group.claim(GONE) == [(b"0", 1), (b"1", 1)]
    group.advance(1_000)
    group.advance(-back_ms)
    assert group.due_in_ms() == 0
    assert group.claim(ME) == []
    assert 0 < group.reply.next_due_ms - group.reply.now_ms <= LEASE_MS
    group.advance(LEASE_MS - 1)
    assert group.claim(ME) == [], "no lease ends early"
    group.advance(2)
    assert group.due_in_ms() == 0
    assert group.claim(ME) == [(b"0", 2), (b"1", 2)]


@BACK
def test_leases_begin_once_more_and_not_again_and_again(group: Group, back_ms: int) -> None:
    group.send(1)
    assert group.claim(GONE) == [(b"0", 1)]
    group.advance(-back_ms)
    for _ in range(LEASE_MS // 100):
        assert group.claim(ME) == []
        group.advance(100)
    group.advance(1)
    assert group.claim(ME) == [(b"0", 2)]


@BACK
def test_a_new_owner_waits_for_one_lease(group: Group, back_ms: int) -> None:
    group.send(3)
    before, after = Owner(1, "zk"), Owner(2, "zk")
    assert group.claim(GONE, 2, before) == [(b"0", 1), (b"1", 1)]
    group.advance(500)
    group.advance(-back_ms)
    assert group.claim(ME, owner=after) == []
    group.advance(LEASE_MS + 1)
    assert group.claim(ME, owner=after) == [(b"0", 2), (b"1", 2), (b"2", 1)]


@pytest.mark.parametrize("number", [255, 256, 600, 1_200])
def test_many_leases_begin_once_more_step_by_step(group: Group, number: int) -> None:
    group.send(number)
    assert len(group.claim(GONE) + group.claim(GONE)) == number
    group.advance(-25_000)
    steps, noted = 0, b" "
    while b" " in noted:
        assert group.due_in_ms() == 0
        assert group.claim(ME) == []
        noted, steps = group.client.hget(group.own.group, "seen"), steps + 1
        assert b" " not in noted or group.reply.next_due_ms == group.reply.now_ms, "the next step is due at once"
    assert (noted, steps) == (b"%d" % group.now_ms, number // 256 + 1)
    group.advance(LEASE_MS + 1)
    found: list[Ack] = []
    while len(found) < number:
        found += group.claim(ME)
        group.advance(25)
    assert sorted(content for content, _ in found) == sorted(b"%d" % index for index in range(number))


def test_a_claim_in_a_name_of_its_own_is_acked_as_a_whole_after_the_clock_was_set_back(group: Group) -> None:
    group.send(50)
    assert len(group.claim(GONE, own=group.now_ms)) == 50
    own = group.reply.own
    assert own is not None
    group.advance(-25_000)
    assert group.claim(ME) == []
    assert group.connections.run(settle_group(group.topic, 0, GONE, Outcomes(whole=[own]))).unmatched == ()
    assert group.client.hget(group.own.group, "acked") == b"50"


def test_what_was_deleted_is_counted_as_lost(group: Group) -> None:
    group.send(2)
    group.claim(GONE)
    [first, _] = [entry for entry, _ in group.client.xrange(group.keys.store)]
    group.client.xdel(group.keys.store, first)
    group.advance(-25_000)
    assert group.claim(ME) == []
    group.advance(LEASE_MS + 1)
    assert group.claim(ME) == [(b"1", 2)]
    assert group.client.hget(group.own.group, "lost") == b"1"
    assert group.client.xpending(group.keys.store, "g")["pending"] == 1


def test_redis_time_is_noted_once_a_second_at_most(group: Group) -> None:
    noted: set[bytes] = set()
    for _ in range(40):
        group.send(1)
        group.claim(ME)
        group.advance(100)
        noted.add(group.client.hget(group.own.group, "seen"))
    assert 4 <= len(noted) <= 40 * 100 // (LEASE_MS // 10) + 1
