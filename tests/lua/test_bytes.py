"""Scripts are bounded in bytes as well as in number: what is large is handed over, moved and read in several calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq import Redriven, TopicType
from rmq.spark import calls as spark_calls
from tests.conftest import MakeSlot, MakeTopic
from tests.support.core import (
    SETTLE_ONLY,
    ClaimPart,
    ClaimReply,
    Connections,
    EncodedMessage,
    Member,
    Nack,
    Outcomes,
    StreamClaimed,
    claims,
    dead,
    sends,
    streams,
    viewing,
)
from tests.support.one_slot import claim_group, claim_slot, claim_slots
from tests.support.slots import T0, SlotState, SlotUnderTest, with_hints

MIB = 1_048_576
KINDS = [TopicType.PRIORITY, TopicType.FIXED_TIME]
HELD = T0 * 1000 + 16


def names(reply: Any) -> list[bytes]:
    return [message.content for message in reply.messages]


def claim(slot: SlotUnderTest, limit: int = 1_000, most_bytes: int = 1_000, **settled: Any) -> ClaimReply:
    return slot.run(claim_slot(slot.topic, 0, limit, Outcomes(**settled), most_bytes=most_bytes))


def fill(slot: SlotUnderTest, sizes: dict[bytes, int]) -> None:
    """Seed due messages, in the order in which they are delivered."""
    order = list(sizes) if slot.topic.type.timed else list(sizes)[::-1]
    first = T0 - 1_000 if slot.topic.type.timed else 1_000
    store = {name: first + index for index, name in enumerate(order)}
    slot.seed(SlotState(store=store, body={name: b"x" * size for name, size in sizes.items() if size}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_takes_what_fits_and_says_that_more_is_due(make_slot: MakeSlot, kind: TopicType) -> None:
    slot = make_slot(kind)
    fill(slot, {b"a": 400, b"b": 0, b"c": 400, b"d": 5_000, b"e": 10})
    seen: list[list[bytes]] = []
    for _ in range(3):
        reply = claim(slot)
        assert [message.body is None for message in reply.messages] == [name == b"b" for name in names(reply)]
        seen.append(names(reply))
        left = sum(map(len, seen)) < 5
        assert (0 < reply.next_due_ms <= slot.now_ms) == left
    assert seen == [[b"a", b"b", b"c"], [b"d"], [b"e"]], "one message may have any size"
    state = slot.state()
    assert (state.store, state.totals["delivered"], "retried" in state.totals) == ({}, 5, False)
    assert {score % 1000 for score in state.prepare.values()} == {16}


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_one_behind_twins_in_flight_is_delivered(make_slot: MakeSlot, kind: TopicType) -> None:
    slot = make_slot(kind)
    fill(slot, {b"held": 5_000, b"held too": 5_000, b"a": 5_000, b"b": 5_000})
    slot.client.zadd(slot.keys.prepare, {"held": HELD, "held too": HELD})
    slot.client.hincrby(slot.keys.meta, "accepted", 2)
    assert [names(claim(slot)) for _ in range(3)] == [[b"a"], [b"b"], []]


def test_large_contents_without_bodies_are_bounded_too(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.seed(SlotState(store={b"%03d" % number + b"x" * 2_000: 1_000 + number for number in range(200)}))
    assert len(claim(slot, most_bytes=10_000).messages) == 4
    assert claim(slot, 0).next_due_ms == slot.now_ms
    assert len(claim(slot, most_bytes=MIB).messages) == 196


def test_a_joined_claim_is_bounded_in_all(make_topic: MakeTopic, connections: Connections) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    for slot in range(4):
        messages = [EncodedMessage(slot, b"%d %d" % (slot, number), 1_000 + number, b"x" * 600) for number in range(3)]
        connections.run(sends.send_calls(topic)(slot, messages))
    parts = [ClaimPart(slot, 3) for slot in range(4)]
    replies: Any = connections.run(claim_slots(topic, parts, most_bytes=2_000))
    assert [len(reply.messages) for reply in replies] == [3, 0, 0, 0]
    assert all(reply.next_due_ms == reply.now_ms for reply in replies[1:])


@pytest.mark.parametrize("twins", [2, 40])
def test_a_slot_of_twins_in_flight_leaves_a_joined_claim_its_bound(
    twins: int, make_topic: MakeTopic, connections: Connections
) -> None:
    """Twins are passed over: they neither use the bytes up, nor make the next message the first of the call."""
    topic = make_topic(TopicType.PRIORITY, slots=4)
    claim_of, send = claims.queue_claims(topic), sends.send_calls(topic)
    flights = [EncodedMessage(1, b"held %02d" % number, 1_000, b"x" * 20) for number in range(twins)]
    for _ in range(2):
        connections.run(send(1, flights))
        connections.run(claim_of([ClaimPart(1, 1_000)]))
    for slot, size in ((0, 600), (2, 5_000), (3, 600)):
        connections.run(send(slot, [EncodedMessage(slot, b"%d" % slot, 1_000, b"x" * size)]))
    parts = [ClaimPart(slot, 1_000) for slot in range(4)]
    replies: list[Any] = [connections.run(claim_of(parts, 1_500)) for _ in range(2)]
    assert [[len(reply.messages) for reply in each] for each in replies] == [[1, 0, 0, 0], [0, 0, 1, 0]]


def test_who_gives_back_tells_the_others(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 50), (b"b", 60))
    held = slot.claim().messages
    before = len(slot.state().hints)
    nacks = [Nack(message.content, message.claim_score, "release", message.store_score) for message in held]
    slot.run(with_hints(claim_slot(slot.topic, 0, 0, outcomes=Outcomes(nacks=nacks[:1]))))
    parts = [ClaimPart(0, SETTLE_ONLY), ClaimPart(0, SETTLE_ONLY, Outcomes(nacks=nacks[1:]))]
    slot.run(with_hints(claim_slots(slot.topic, parts)))
    assert slot.state().hints[before:] == [0, 0]
    slot.run(with_hints(claim_slot(slot.topic, 0, 1)))
    held = slot.run(with_hints(claim_slot(slot.topic, 0, 1))).messages
    slot.run(
        with_hints(claim_slot(slot.topic, 0, 1, outcomes=Outcomes(nacks=[Nack(held[0].content, held[0].claim_score)])))
    )
    assert len(slot.state().hints) == before + 2, "who claims takes it himself, or knows of it"


def dead_slot(make_slot: MakeSlot, number: int = 7, size: int = MIB) -> SlotUnderTest:
    slot = make_slot(TopicType.PRIORITY)
    contents = [b"%d" % index for index in range(number)]
    slot.seed(
        SlotState(
            dead={content: T0 - 100 + int(content) for content in contents},
            reason={content: {"type": "E"} for content in contents},
            dead_body=dict.fromkeys(contents, b"x" * size),
        )
    )
    return slot


def test_the_dead_are_listed_and_redriven_in_parts(make_slot: MakeSlot) -> None:
    slot = dead_slot(make_slot)
    page = slot.run(dead.list_dead(slot.topic, 0, 0, 256))
    assert [message.content for message in page] == [b"0", b"1", b"2"], "those with their contents have 4 MiB"
    assert len(slot.run(dead.list_dead(slot.topic, 0, 5, 256))) == 2
    assert slot.redrive("priority", 50, limit=256) == [Redriven.DONE] * 4
    assert slot.redrive("priority", 50, b"4", b"none", b"5") == [Redriven.DONE, Redriven.ABSENT, Redriven.DONE]
    assert len(slot.state().dead) == 1


def test_a_page_of_large_ones_is_cut(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    fill(slot, {b"%d" % number: MIB for number in range(6)})
    rows, more = slot.run(viewing.peek(slot.topic, 0, "store", 0, 1_000))
    assert ([message.content for message in rows], more) == ([b"0", b"1", b"2"], True)
    rows, more = slot.run(viewing.peek(slot.topic, 0, "store", 3, 3))
    assert (len(rows), more) == (3, False)


def test_what_dies_with_a_large_body_dies_in_parts(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, ttl="1s")
    fill(slot, {b"%d" % number: MIB for number in range(6)})
    slot.advance(2_000)
    first = slot.claim()
    assert (len(slot.state().dead), first.messages, first.next_due_ms) == (4, (), slot.now_ms)
    slot.claim()
    assert len(slot.state().dead) == 6
    used_up = {b"u%d" % number: (T0 - 100_000) * 1000 for number in range(6)}
    slot.client.zadd(slot.keys.prepare, used_up)  # pyright: ignore[reportArgumentType]
    slot.client.hset(slot.keys.body, mapping=dict.fromkeys(used_up, b"x" * MIB))  # pyright: ignore[reportArgumentType]
    slot.client.hincrby(slot.keys.meta, "accepted", 6)
    reply = slot.claim(0)
    assert (len(slot.state().dead), reply.swept, reply.next_due_ms) == (10, 4, slot.now_ms)
    assert slot.claim(0).swept == 2
    assert slot.state().totals["expired"] == 6


def test_a_chunk_of_a_query_is_bounded(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    fill(slot, {b"%d" % number: MIB for number in range(6)})
    reading = spark_calls.Reading(spark_calls.Driver("q1", 1), 1, 1_000, 9, True)
    for again in range(2):
        chunk = slot.run(spark_calls.read(slot.topic, reading, 0, 0, 1_000))
        assert (chunk.claimed, chunk.contents) == (3, [b"0", b"1", b"2"]), again
    assert len(slot.state().store) == 3


def test_a_chunk_may_be_bounded_closer(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    fill(slot, {b"%d" % number: MIB for number in range(6)})
    reading = spark_calls.Reading(spark_calls.Driver("q1", 1), 1, 2_000, 9, True, 2 * MIB + 1_000)
    for again in range(2):
        chunk = slot.run(spark_calls.read(slot.topic, reading, 0, 0, 1_000))
        assert chunk.contents == [b"0", b"1"], again
    one = replace(reading, chunk_bytes=1)
    assert slot.run(spark_calls.read(slot.topic, one, 0, 1, 1_000)).contents == [b"2"], "one has any size"


def test_a_scan_leaves_large_ones_to_be_read_by_name(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    fill(slot, {b"%d" % number: MIB for number in range(6)})
    page = slot.run(spark_calls.read_place(slot.topic, 0, "store", "scan", "0", 1_000))
    assert (len(page.rows), len(page.rest)) == (3, 3)
    slot.cancel(page.rest[0])
    rest = slot.run(spark_calls.read_place(slot.topic, 0, "store", "named", contents=page.rest))
    assert [row[0] for row in rest.rows] == list(page.rest[1:])
    assert all(row[2] == b"x" * MIB for row in (*page.rows, *rest.rows))
    assert rest.rest == []


def test_a_claim_from_a_stream_is_bounded(make_topic: MakeTopic, connections: Connections) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, max_body_bytes=16 * MIB)
    connections.run(streams.join(topic, 0, "g", "all"))
    sizes = [1_000_000, 3_500_000, 10, *[10] * 30, 5_000_000, 5_000_000]
    for number, size in enumerate(sizes):
        message = EncodedMessage(0, b"%d" % number, 0, b"x" * size)
        connections.run(streams.sends(topic)(0, [message], False))
    me, seen = Member("g", "me"), list[int]()
    while len(seen) < len(sizes):
        reply = connections.run(claim_group(topic, 0, me, 1_000))
        if len(seen) + len(reply.messages) < len(sizes):
            assert reply.next_due_ms == reply.now_ms
        found = [len(message.body or b"") for message in reply.messages]
        assert sum(found) < 12 * MIB, "how large they are shows only when they are read"
        seen += found
        held: list[StreamClaimed] = list(reply.messages)  # pyright: ignore[reportAssignmentType]
        assert {message.claim_score for message in held} == {1}
    assert seen == sizes
    reply = connections.run(
        claim_group(topic, 0, me, 1_000)
    )  # the page before may just have held all that it asked for
    assert (reply.messages, reply.next_due_ms == reply.now_ms) == ((), False)
    pages: list[int] = []
    low = "-"
    while page := connections.run(streams.read_range(topic, 0, low, "+", 1_000, down=False)):
        low = f"({page[-1].id}"
        pages.append(len(page))
    assert (sum(pages), len(pages) > 1) == (len(sizes), True)
    low, high = "-", "+"
    while page := connections.run(streams.read_range(topic, 0, low, high, 1_000, down=True)):
        high = f"({page[-1].id}"
        pages.append(-len(page))
    assert sum(pages) == 0


@pytest.mark.parametrize("verb", ["release", "bury"])
def test_what_comes_back_to_a_stream_is_bounded(verb: str, make_topic: MakeTopic, connections: Connections) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    connections.run(streams.join(topic, 0, "g", "all"))
    me = Member("g", "me")
    for number in range(6):
        connections.run(streams.sends(topic)(0, [EncodedMessage(0, b"%d" % number, 0, b"x" * MIB)], False))
        reply = connections.run(claim_group(topic, 0, me, 10))
        held: list[StreamClaimed] = list(reply.messages)  # pyright: ignore[reportAssignmentType]
        nacks = [Nack(held[0].id, 1, verb, 0)]
        if verb == "bury" or number == 5:
            connections.run(claim_group(topic, 0, me, 0, outcomes=Outcomes(nacks=nacks)))
    if verb == "release":
        return
    page = connections.run(dead.list_dead(topic, 0, 0, 256, "g"))
    assert len(page) == 4
    assert len(connections.run(dead.list_dead(topic, 0, 4, 256, "g"))) == 2


@pytest.mark.parametrize("disturbed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_large_contents_are_bounded_wherever_they_stand(make_slot: MakeSlot, kind: TopicType, disturbed: bool) -> None:
    slot = make_slot(kind)
    larges = {b"%03d" % number + b"x" * 60_000: 0 for number in range(300)}
    fill(slot, {**{b"small %d" % number: 0 for number in range(300)}, **larges})
    if disturbed:
        slot.client.zadd(slot.keys.dead, {"dead": T0})
        slot.client.hincrby(slot.keys.meta, "accepted", 1)
    sizes: list[int] = []
    while messages := slot.run(claim_slot(slot.topic, 0, 1_000)).messages:
        sizes.append(sum(len(message.content) for message in messages))
    assert len(slot.state().prepare) == 600
    assert max(sizes) <= claims.CLAIM_BYTES
    assert len(sizes) <= 6, "each is as full as may be"
    assert not slot.state().unaccounted


def test_many_slots_with_large_contents_are_read_only_as_far_as_they_fit(
    make_topic: MakeTopic, connections: Connections
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    for slot in range(4):
        messages = [
            EncodedMessage(slot, b"%d %d" % (slot, number) + b"x" * 900, 1_000 + number, None) for number in range(9)
        ]
        connections.run(sends.send_calls(topic)(slot, messages))
    parts = [ClaimPart(slot, 9) for slot in range(4)]
    replies: Any = connections.run(claim_slots(topic, parts, most_bytes=4_000))
    assert [len(reply.messages) for reply in replies] == [4, 0, 0, 0]
    assert all(reply.next_due_ms == reply.now_ms for reply in replies)


def test_a_query_reads_large_contents_in_parts(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    fill(slot, {b"%03d" % number + b"x" * 60_000: 0 for number in range(100)})
    reading = spark_calls.Reading(spark_calls.Driver("q1", 1), 1, 1_000, 9, True)
    chunk = slot.run(spark_calls.read(slot.topic, reading, 0, 0, 1_000))
    assert len(chunk.contents) == claims.CLAIM_BYTES // 60_003


def test_pages_and_scans_of_large_contents_are_cut(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    contents = [b"%03d" % number + b"x" * 60_000 for number in range(500)]
    slot.seed(
        SlotState(
            store={content: 1_000 + index for index, content in enumerate(contents)},
            dead={content: T0 - 1_000 + index for index, content in enumerate(contents)},
        )
    )
    seen: list[bytes] = []
    more = True
    while more:
        rows, more = slot.run(viewing.peek(slot.topic, 0, "store", len(seen), 1_000))
        assert 0 < len(rows) < 70
        seen += [message.content for message in rows]
    assert seen == contents[::-1]
    assert len(slot.run(dead.list_dead(slot.topic, 0, 0, 1_000))) < 70
    found, cursor = set[bytes](), "0"
    while cursor:
        page = slot.run(spark_calls.read_place(slot.topic, 0, "store", "scan", cursor, 1_000))
        assert len(page.rows) < 300
        found.update(row[0] for row in page.rows)
        cursor = page.cursor
    assert found == set(contents)
    found, cursors = set[bytes](), ["0", "", "", "0"]
    while any(cursor not in {"", "0"} for cursor in cursors) or not found:
        nexts, messages = slot.run(viewing.search(slot.topic, 0, b"*", 1_000, cursors))
        assert len(messages) < 600
        found.update(message.content for message in messages)
        cursors = ["" if each == "0" else each for each in nexts]
    assert found == set(contents)


def test_large_contents_are_swept_expired_and_redriven_in_parts(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, ttl="1s")
    names = [b"%03d" % number + b"x" * 60_000 for number in range(100)]
    fill(slot, dict.fromkeys(names, 0))
    slot.advance(5_000)
    sizes: list[int] = []
    while slot.claim(0).next_due_ms:
        sizes.append(len(slot.state().dead))
    assert (sizes, len(slot.state().dead)) == ([70], 100)
    assert len(slot.redrive("at", slot.now_ms + 100, limit=256)) == 70
    assert len(slot.redrive("at", slot.now_ms + 100, limit=256)) == 30
    slot.advance(200)
    while slot.run(claim_slot(slot.topic, 0, 1_000)).messages:
        pass
    slot.advance(slot.topic.lease_ms + 9)
    assert [slot.claim(0).swept for _ in range(3)] == [70, 30, 0]
    slot.client.zunionstore(slot.keys.retry, {slot.keys.store: 1_000})
    slot.client.delete(slot.keys.store)
    assert [slot.claim(0).swept for _ in range(3)] == [70, 30, 0]
    assert not slot.state().unaccounted
