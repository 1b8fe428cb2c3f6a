"""A slot that knows how large its bodies are at most is claimed from without asking for the size of each one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rmq import Collect, Merge, TopicType
from tests.conftest import MakeSlot, MakeTopic
from tests.support.core import (
    CLAIM_BYTES,
    ClaimPart,
    ClaimReply,
    Connections,
    EncodedMessage,
    Member,
    Record,
    framed,
    sends,
    slot_keys,
    streams,
    write_record,
)
from tests.support.one_slot import claim_group, claim_slot, claim_slots
from tests.support.slots import T0, SlotState, SlotUnderTest

MIB = 1_048_576
BOUND = 4_096
KINDS = [TopicType.PRIORITY, TopicType.FIXED_TIME]


def send(slot: SlotUnderTest, *sizes: int, first: int = 0) -> None:
    """Send messages with bodies of these sizes, in the order in which they are delivered."""
    batch = [EncodedMessage(0, b"%04d" % (first + n), 9_000 - first - n, b"x" * size) for n, size in enumerate(sizes)]
    slot.run(sends.send_calls(slot.topic)(0, batch))


def claim(slot: SlotUnderTest, limit: int = 1_000, most_bytes: int = CLAIM_BYTES) -> list[int]:
    """Claim, and return the sizes of the bodies."""
    reply: ClaimReply = slot.run(claim_slot(slot.topic, 0, limit, most_bytes=most_bytes))
    return [len(message.body or b"") for message in reply.messages]


def asked(slot: SlotUnderTest) -> int:
    """Return how often the size of a body was asked for; count anew."""
    stats: Any = slot.client.info("commandstats")
    slot.client.config_resetstat()
    return stats.get("cmdstat_hstrlen", {}).get("calls", 0)


def known(slot: SlotUnderTest) -> bool:
    return slot.client.hget(slot.keys.meta, "body_bound") == b"%d" % BOUND


def test_small_bodies_of_a_new_slot_cost_no_command_each(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    send(slot, *[36] * 700)
    send(slot, *[BOUND] * 100, first=700)
    asked(slot)
    assert claim(slot) == [36] * 700 + [BOUND] * 100
    assert asked(slot) <= 8, "the first and the last of each page"


def test_a_claim_is_as_full_as_may_be(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    send(slot, *[100] * 300)
    assert known(slot)
    assert claim(slot, most_bytes=20_000) == [100] * (20_000 // 104)


def test_a_joined_claim_is_as_full_as_may_be(make_topic: MakeTopic, connections: Connections) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    for slot in range(4):
        batch = [EncodedMessage(slot, b"%d %03d" % (slot, n), 1_000, b"x" * 20) for n in range(100)]
        connections.run(sends.send_calls(topic)(slot, batch))
    parts = [ClaimPart(slot, 100) for slot in range(4)]
    replies: Any = connections.run(claim_slots(topic, parts, most_bytes=412_000))
    assert [len(reply.messages) for reply in replies] == [100] * 4


@pytest.mark.parametrize("batch", [1, 2])
def test_a_large_body_ends_what_is_known(make_slot: MakeSlot, batch: int) -> None:
    slot = make_slot(TopicType.PRIORITY)
    send(slot, *[10] * 20)
    send(slot, *[MIB] * batch, first=20)
    assert not known(slot)
    for number in range(6):
        send(slot, MIB, first=30 + number)
    while sizes := claim(slot):
        assert sum(sizes) <= CLAIM_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_its_twin_in_flight_takes_no_room(make_slot: MakeSlot, kind: TopicType) -> None:
    """Else claims of large bodies come one by one, as long as others have earlier copies in hand."""
    slot = make_slot(kind)
    large = [100_000 + n for n in range(8)]
    for number, size in enumerate(large[:4]):
        send_one(slot, number, size)
    slot.advance(100_000)
    assert len(claim(slot, limit=4)) == 4
    for number, size in enumerate(large):
        send_one(slot, number, size)
    slot.advance(40_000)
    assert claim(slot, most_bytes=400_100) == large[4:]


def send_one(slot: SlotUnderTest, number: int, size: int) -> None:
    """Send a message that is delivered before those with larger numbers."""
    due = slot.now_ms + 1_000 + number if slot.topic.type is TopicType.FIXED_TIME else 9_000 - number
    slot.run(sends.send_calls(slot.topic)(0, [EncodedMessage(0, b"%04d" % number, due, b"x" * size)]))


def test_a_large_body_as_the_first_one_makes_nothing_known(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    send(slot, BOUND + 1)
    assert not known(slot)


def test_a_redriven_large_body_ends_what_is_known(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.seed(SlotState(dead={b"d": T0 - 5}, reason={b"d": {"type": "E"}}, dead_body={b"d": b"x" * (BOUND + 1)}))
    slot.client.hset(slot.keys.meta, "body_bound", BOUND)
    slot.redrive("priority", 50, limit=5)
    assert not known(slot)


def test_what_was_not_known_is_found_out(make_slot: MakeSlot) -> None:
    """Bodies of the release before, which notes nothing."""
    slot = make_slot(TopicType.PRIORITY)
    bodies = {b"%04d" % n: b"x" * 10 for n in range(20)}
    slot.seed(SlotState(store=dict.fromkeys(bodies, 1_000), body=bodies))
    asked(slot)
    assert claim(slot, 15) == [10] * 15
    assert (asked(slot), known(slot)) == (15, False), "others may be larger"
    send(slot, *[10] * 5, first=100)
    held = slot.run(claim_slot(slot.topic, 0, 0)).messages
    assert held == ()
    assert claim(slot) == [10] * 10
    assert not known(slot), "those in flight have not been asked"


def test_who_has_asked_all_of_them_knows(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    bodies = {b"%04d" % n: b"x" * 10 for n in range(20)}
    slot.seed(SlotState(store=dict.fromkeys(bodies, 1_000), body=bodies))
    assert claim(slot) == [10] * 20
    assert known(slot)


def test_one_large_among_all_is_not_passed_over(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    bodies = {b"%04d" % n: b"x" * (BOUND + (n == 7)) for n in range(20)}
    slot.seed(SlotState(store=dict.fromkeys(bodies, 1_000), body=bodies))
    assert sum(claim(slot)) == 20 * BOUND + 1
    assert not known(slot)


def test_a_slot_without_bodies_gets_to_know(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.seed(SlotState(store={b"a": 1_000}))
    claim(slot)
    assert known(slot)


def test_a_large_body_of_the_release_before_is_noticed(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    send(slot, *[10] * 5)
    for number in range(8):  # as it sends them: nothing is noted
        slot.client.hset(slot.keys.body, f"{100 + number:04}", b"x" * MIB)
        slot.client.zadd(slot.keys.store, {f"{100 + number:04}": 8_000 - number})
        slot.client.hincrby(slot.keys.meta, "accepted", 1)
    assert claim(slot, 6) == [10] * 5 + [MIB]
    assert not known(slot)
    assert claim(slot) == [MIB] * 3


def test_many_large_bodies_of_the_release_before_are_not_read_at_once(make_slot: MakeSlot) -> None:
    """One small send has noted the bound: 200 bodies of 1 MiB were handed over by one script of two seconds."""
    slot = make_slot(TopicType.PRIORITY)
    send(slot, 10)
    assert claim(slot) == [10]
    assert known(slot)
    for number in range(40):
        slot.client.hset(slot.keys.body, f"{100 + number:04}", b"x" * (MIB // 2))
        slot.client.zadd(slot.keys.store, {f"{100 + number:04}": 8_000 - number})
        slot.client.hincrby(slot.keys.meta, "accepted", 1)
    assert claim(slot) == [MIB // 2] * 7
    assert not known(slot)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_known_changes_no_claim(make_slot: MakeSlot, kind: TopicType, seed: int) -> None:
    """Two slots with the same messages, one of which does not know."""
    chance = random.Random(seed)
    slot = make_slot(kind)
    sizes = [chance.choice((0, 5, 700, BOUND)) for _ in range(chance.choice((30, 400, 900)))]
    contents = [b"%04d" % n + b"c" * chance.choice((0, 0, 500)) for n in range(len(sizes))]
    scores = {content: (T0 - n if kind.timed else 1_000 + n) for n, content in enumerate(contents)}
    state = SlotState(
        store=scores, body={content: b"x" * size for content, size in zip(contents, sizes, strict=True) if size}
    )
    twins = {content: T0 * 1000 + 16 for content in chance.sample(contents, chance.choice((0, 20)))}
    plan = [(chance.choice((1, 10, 600)), chance.choice((3_000, 60_000, 10**6))) for _ in range(200)]
    seen: list[list[tuple[Any, ...]]] = []
    for bound in (0, BOUND):
        slot.client.flushdb()
        slot.set_clock(T0)
        slot.seed(state)
        if bound:
            slot.client.hset(slot.keys.meta, "body_bound", bound)
        if twins:
            slot.client.zadd(slot.keys.prepare, twins)
            slot.client.hincrby(slot.keys.meta, "accepted", len(twins))
        found: list[tuple[Any, ...]] = []
        for limit, most_bytes in plan:
            reply: ClaimReply = slot.run(claim_slot(slot.topic, 0, limit, most_bytes=most_bytes))
            found += [(len(found), each.content, each.body) for each in reply.messages]
            found.append((len(reply.messages), reply.next_due_ms))
        seen.append(found)
    assert seen[0] == seen[1]


def test_entries_of_a_new_stream_are_read_at_once(make_topic: MakeTopic, connections: Connections) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    connections.run(streams.join(topic, 0, "g", "all"))
    batch = [EncodedMessage(0, b"%d" % number, 0, None) for number in range(200)]
    connections.run(streams.sends(topic)(0, batch, False))
    connections.command("CONFIG", "RESETSTAT")
    reply = connections.run(claim_group(topic, 0, Member("g", "me"), 200))
    stats: Any = connections.command("INFO", "commandstats")
    assert len(reply.messages) == 200
    assert b"cmdstat_xreadgroup:calls=2," in stats, "32, then all that fit for certain"


def test_a_large_entry_of_the_release_before_is_noticed(make_topic: MakeTopic, connections: Connections) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    connections.run(streams.join(topic, 0, "g", "all"))
    connections.run(streams.sends(topic)(0, [EncodedMessage(0, b"a", 0, None)], False))
    call = streams.sends(topic)(0, [EncodedMessage(0, b"a", 0, None)], False)
    for _ in range(40):
        connections.command("XADD", call.keys[0], "*", "content", "b", "body", b"x" * MIB)
    read: list[int] = []
    while reply := connections.run(claim_group(topic, 0, Member("g", "me"), 9)).messages:
        read.append(len(reply))
    assert read[0] == 9
    assert set(read[1:]) == {4}


def test_many_large_entries_of_the_release_before_are_not_read_at_once(
    make_topic: MakeTopic, connections: Connections
) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    connections.run(streams.join(topic, 0, "g", "all"))
    connections.run(streams.sends(topic)(0, [EncodedMessage(0, b"a", 0, None)], False))
    assert len(connections.run(claim_group(topic, 0, Member("g", "me"), 10)).messages) == 1
    for _ in range(100):
        connections.command("XADD", slot_keys(topic.name, 0).store, "*", "p", b"x" * (MIB // 4))
    assert 1 <= len(connections.run(claim_group(topic, 0, Member("g", "me"), 1_000)).messages) <= 32


@pytest.mark.parametrize(("size", "handed_over"), [(4_000, range(200, 300)), (100, range(1_000, 1_001))])
def test_values_of_a_topic_that_merges_are_weighed_a_page_at_a_time(
    size: int, handed_over: range, make_slot: MakeSlot
) -> None:
    slot = make_slot(TopicType.PRIORITY, merge=Merge(Collect()))
    record = write_record(Record(1, 1, 1, 1, "C", framed([b"x" * size])))
    for first in range(0, 1_000, 500):
        batch = [EncodedMessage(0, b"%04d" % n, 9_000, record) for n in range(first, first + 500)]
        slot.run(sends.send_calls(slot.topic)(0, batch))
    assert known(slot)
    asked(slot)
    assert len(claim(slot)) in handed_over, "moving a value counts four times its bytes"
    assert asked(slot) <= 16
