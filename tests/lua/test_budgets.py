"""What a call moves and folds is bounded by what it costs, not by numbers of messages; the rest is left, and told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq import Collect, Fixed, Merge, TopicType
from rmq.spark import calls
from rmq.spark.calls import Claim, Driver, How, Settled, refuse_contents
from rmq.spark.slots import QuerySlots
from tests.conftest import MakeSlot
from tests.support.core import Nack, Outcomes, Record, control, framed, read_record, write_record
from tests.support.one_slot import claim_slot, settle_slot
from tests.support.slots import T0, SlotState, SlotUnderTest, write_state

HELD = T0 * 1000 + 5
EXPIRED = (T0 - 10**8) * 1000 + 5
FAR_MS = T0 + 10**6
NUMBER = 20
NAMES = [b"x%02d" % number for number in range(NUMBER)]

SHAPES = {
    "64 KiB": (Collect(), 60, 1_000),
    "a set of 1,000 items": (Collect(unique=True), 1_000, 8),
    "1 MiB": (Collect(max_bytes=1 << 20), 20, 50_000),
}
"""How many items of how many bytes a message has: two of these fold in about a millisecond, or in ten."""

Shape = tuple[Collect, int, int]


@pytest.fixture(params=SHAPES.values(), ids=list(SHAPES))
def shape(request: pytest.FixtureRequest) -> Shape:
    return request.param


def made(make_slot: MakeSlot, shape: Shape, kind: TopicType = TopicType.RANGE_MERGE, **settings: Any) -> SlotUnderTest:
    window = Fixed("5s") if kind is TopicType.RANGE_MERGE else None
    return make_slot(kind, merge=Merge(shape[0], window), **settings)


def values(shape: Shape, prefix: str, names: list[bytes] = NAMES) -> dict[bytes, bytes]:
    collect, number, size = shape
    items = framed(f"{prefix}{index:0{size - 1}}".encode() for index in range(number))
    return dict.fromkeys(names, write_record(Record(1, T0, T0, number, "U" if collect.unique else "C", items)))


def items_of(stored: bytes) -> int:
    record = read_record(stored)
    assert record is not None
    return len(record.items)


def flights(shape: Shape, score: int = HELD) -> SlotState:
    """Messages in flight, each with a fresh copy in store."""
    return SlotState(
        prepare=dict.fromkeys(NAMES, score),
        held=values(shape, "h"),
        store=dict.fromkeys(NAMES, FAR_MS),
        body=values(shape, "f"),
    )


def check_folded(slot: SlotUnderTest, shape: Shape, done: int) -> None:
    """The first `done` are folded, the others are as they were."""
    state = slot.state()
    assert 0 < done <= 8
    assert state.unaccounted == 0
    assert [items_of(state.body[name]) for name in NAMES] == [shape[1] * (1 + (n < done)) for n in range(NUMBER)]


@pytest.mark.parametrize(("verb", "number"), [("release", FAR_MS), ("retry", 0)])
def test_nacks_beside_fresh_copies_are_looked_at_as_far_as_they_may_cost(
    verb: str, number: int, shape: Shape, make_slot: MakeSlot
) -> None:
    slot = made(make_slot, shape)
    slot.seed(flights(shape))
    nacks = [Nack(name, HELD, verb, number, "E", "m") for name in NAMES]
    done = NUMBER - slot.run(settle_slot(slot.topic, 0, Outcomes(nacks=nacks))).left
    assert slot.state().prepare.keys() == set(NAMES[done:])
    check_folded(slot, shape, done)
    calls = 1
    while done < NUMBER:
        reply = slot.run(settle_slot(slot.topic, 0, Outcomes(nacks=nacks[done:])))
        assert (reply.stale, reply.left < NUMBER - done) == ((), True)
        done, calls = NUMBER - reply.left, calls + 1
    assert calls >= 3
    assert slot.state().prepare == {}


def test_nacks_that_bury_again_are_looked_at_as_far_as_they_may_cost(shape: Shape, make_slot: MakeSlot) -> None:
    slot = made(make_slot, shape)
    slot.seed(
        SlotState(
            prepare=dict.fromkeys(NAMES, HELD),
            held=values(shape, "h"),
            dead=dict.fromkeys(NAMES, T0 - 1),
            dead_body=values(shape, "d"),
            reason={name: {} for name in NAMES},
        )
    )
    nacks = [Nack(name, HELD, "bury", 0, "E", "m") for name in NAMES]
    done = NUMBER - slot.run(settle_slot(slot.topic, 0, Outcomes(nacks=nacks))).left
    state = slot.state()
    assert 0 < done <= 8
    assert state.prepare.keys() == set(NAMES[done:])
    assert state.unaccounted == 0


def test_nacks_of_a_claim_are_looked_at_as_far_as_they_may_cost(shape: Shape, make_slot: MakeSlot) -> None:
    slot = made(make_slot, shape)
    slot.seed(flights(shape))
    nacks = [Nack(name, HELD, "release", FAR_MS) for name in NAMES]
    reply = slot.run(claim_slot(slot.topic, 0, 0, Outcomes(nacks=nacks)))
    assert reply.nacked is not None
    assert reply.next_due_ms == slot.now_ms
    check_folded(slot, shape, reply.nacked)


@pytest.mark.parametrize("waits", [False, True])
def test_a_sweep_folds_as_far_as_it_may_cost(waits: bool, shape: Shape, make_slot: MakeSlot) -> None:
    slot = made(make_slot, shape)
    state = flights(shape, EXPIRED)
    if waits:
        due = dict.fromkeys(NAMES, (T0 // 1000 - 60) * 1000 + 3)
        state = SlotState(retry=due, held=state.held, store=state.store, body=state.body)
    slot.seed(state)
    reply = slot.claim(0)
    assert reply.next_due_ms == slot.now_ms
    check_folded(slot, shape, reply.swept)


def test_a_claim_folds_what_waited_for_a_retry_as_far_as_it_may_cost(shape: Shape, make_slot: MakeSlot) -> None:
    slot = made(make_slot, shape)
    state = flights(shape)
    later = dict.fromkeys(NAMES, (T0 // 1000 + 600) * 1000 + 3)
    slot.seed(SlotState(retry=later, held=state.held, store=dict.fromkeys(NAMES, T0 - 1), body=state.body))
    seen: list[int] = []
    while sum(seen) < NUMBER:
        reply = slot.claim()
        seen.append(len(reply.messages))
        assert 0 < seen[-1] <= 8
        assert {items_of(each.body) for each in reply.messages} == {2 * shape[1]}
    assert slot.state().unaccounted == 0


def test_what_outlives_its_time_dies_again_as_far_as_that_may_cost(shape: Shape, make_slot: MakeSlot) -> None:
    slot = made(make_slot, shape, TopicType.PRIORITY, ttl="1s")
    slot.seed(
        SlotState(
            store=dict.fromkeys(NAMES, 10**6),
            body=values(shape, "f"),
            born=dict.fromkeys(NAMES, T0 - 10**6),
            dead=dict.fromkeys(NAMES, T0 - 1),
            dead_body=values(shape, "d"),
            reason={name: {} for name in NAMES},
        )
    )
    reply = slot.claim()
    left = len(slot.state().store)
    assert NUMBER - 8 <= left < NUMBER
    assert (len(reply.messages), reply.next_due_ms) == (0, slot.now_ms)


def test_a_redrive_folds_as_far_as_it_may_cost(shape: Shape, make_slot: MakeSlot) -> None:
    slot = made(make_slot, shape)
    state = flights(shape)
    slot.seed(
        SlotState(
            dead=dict.fromkeys(NAMES, T0 - 1),
            dead_body=state.held,
            reason={name: {} for name in NAMES},
            store=state.store,
            body=state.body,
        )
    )
    check_folded(slot, shape, len(slot.redrive("after", 5_000, *NAMES)))


@pytest.mark.parametrize("promoted", [False, True])
def test_who_steers_folds_as_far_as_it_may_cost(promoted: bool, shape: Shape, make_slot: MakeSlot) -> None:
    slot = made(make_slot, shape)
    state = flights(shape)
    later = dict.fromkeys(NAMES, (T0 // 1000 + 600) * 1000 + 3)
    slot.seed(SlotState(retry=later, held=state.held, store=state.store, body=state.body))
    call = control.promote(slot.topic, 0, NAMES)
    if not promoted:
        call = control.reschedule(slot.topic, 0, NAMES, ("after", 5_000))
    check_folded(slot, shape, len(slot.run(call)))


def test_of_a_set_that_dies_again_and_again_the_newest_items_stay(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(5_000, unique=True), Fixed("5s")))
    for round_ in range(4):
        shape = (Collect(unique=True), 3_000, 8)
        slot.client.zadd(slot.keys.prepare, {"x": HELD})
        write_state(slot.client, slot.keys, SlotState(held=values(shape, str(round_), [b"x"])))
        slot.client.hincrby(slot.keys.meta, "accepted", 1)
        slot.nack(Nack(b"x", HELD, "bury", 0, "E", "m"))
    record = read_record(slot.state().dead_body[b"x"])
    assert record is not None
    assert record.number == len(record.items) == 10_000
    assert record.items[0] == b"00002000"


# what has outlived its time to live holds up nothing

KINDS: dict[str, tuple[TopicType, dict[str, Any]]] = {
    "fixed time": (TopicType.FIXED_TIME, {}),
    "range merge": (TopicType.RANGE_MERGE, {}),
    "priority": (TopicType.PRIORITY, {}),
    "priority, ties any": (TopicType.PRIORITY, {"ties": "any"}),
    "merging": (TopicType.PRIORITY, {"merge": Merge(Collect())}),
}
OUTLIVED = 3_000


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def outlived(request: pytest.FixtureRequest, make_slot: MakeSlot) -> SlotUnderTest:
    """A slot with more that has outlived its time than one claim buries, and that would be delivered first."""
    return seeded(make_slot, request.param[0], request.param[1], OUTLIVED)


def seeded(make_slot: MakeSlot, kind: TopicType, settings: dict[str, Any], number: int) -> SlotUnderTest:
    """Return a slot with as many messages that have outlived their time."""
    slot = make_slot(kind, ttl="1s", **settings)
    old = [b"old%04d" % number for number in range(number)]
    score = T0 - 5_000 if kind.timed else 2**50
    body = values((Collect(), 1, 8), "o", old) if settings.get("merge") else {}
    born = {} if kind.timed else dict.fromkeys(old, T0 - 5_000)
    slot.seed(SlotState(store=dict.fromkeys(old, score), born=born, body=body))
    return slot


def put(slot: SlotUnderTest, *names: bytes, score: int | None = None) -> None:
    """Put messages into store that have not outlived their time."""
    timed = slot.topic.type.timed
    own = (T0 - 1 if timed else 2**49) if score is None else score
    slot.client.zadd(slot.keys.store, dict.fromkeys(names, own))
    if slot.topic.merge is not None:
        write_state(slot.client, slot.keys, SlotState(body=values((Collect(), 1, 8), "f", list(names))))
    if not timed and own > slot.topic.max_retries:
        slot.client.zadd(slot.keys.born, dict.fromkeys(names, T0 - 1))
    slot.client.hincrby(slot.keys.meta, "accepted", len(names))


def test_what_is_fresh_is_claimed_while_others_are_buried(outlived: SlotUnderTest) -> None:
    put(outlived, b"fresh", b"fresher")
    reply = outlived.claim()
    assert sorted(each.content for each in reply.messages) == [b"fresh", b"fresher"]
    assert reply.next_due_ms == outlived.now_ms, "there is more to bury"
    state = outlived.state()
    assert 0 < len(state.dead) < OUTLIVED
    assert state.prepare.keys() == {b"fresh", b"fresher"}
    assert (state.unaccounted, state.orphans) == (0, {})
    assert outlived.claim().messages == ()
    while outlived.claim().next_due_ms == outlived.now_ms:
        pass
    assert len(outlived.state().dead) == OUTLIVED


def test_what_was_rolled_back_is_claimed_while_others_are_buried(outlived: SlotUnderTest) -> None:
    put(outlived, b"again", score=3)
    put(outlived, b"fresh")
    found = {each.content: each.store_score for each in outlived.claim().messages}
    found |= {each.content: each.store_score for each in outlived.claim().messages}
    assert found.keys() == {b"again", b"fresh"} if outlived.topic.type.timed else {b"fresh"}


def test_a_claim_among_outlived_ones_takes_as_many_as_it_may(outlived: SlotUnderTest) -> None:
    put(outlived, *[b"fresh%d" % number for number in range(5)])
    seen = [len(outlived.claim(2).messages) for _ in range(4)]
    assert seen == [2, 2, 1, 0]


def test_what_is_in_flight_is_not_claimed_among_outlived_ones(outlived: SlotUnderTest) -> None:
    put(outlived, b"fresh", b"twin")
    outlived.client.zadd(outlived.keys.prepare, {"twin": HELD})
    outlived.client.hincrby(outlived.keys.meta, "accepted", 1)
    assert [each.content for each in outlived.claim().messages] == [b"fresh"]


def test_what_stands_among_many_in_flight_is_claimed_while_others_are_buried(outlived: SlotUnderTest) -> None:
    """The search goes on where the one before ended, although burials move the ranks of what it has seen."""
    names = [b"n%04d" % number for number in range(2_500)]
    free, flying = names[49::50], [name for place, name in enumerate(names, 1) if place % 50]
    put(outlived, *names)
    outlived.client.zadd(outlived.keys.prepare, dict.fromkeys(flying, HELD))
    outlived.client.hincrby(outlived.keys.meta, "accepted", len(flying))
    found, start, claims = list[bytes](), 0, 0
    while claims == 0 or start > 0:
        reply = outlived.claim(start=start)
        found, start, claims = [*found, *(each.content for each in reply.messages)], reply.resume, claims + 1
        assert reply.next_due_ms == outlived.now_ms, "there is more to bury"
    assert (sorted(found), 1 < claims < 9) == (free, True)


@pytest.mark.parametrize(("kind", "settings"), KINDS.values(), ids=list(KINDS))
def test_a_search_goes_on_at_the_first_rank_where_all_before_is_buried(
    kind: TopicType, settings: dict[str, Any], make_slot: MakeSlot
) -> None:
    slot = seeded(make_slot, kind, settings, 1)
    put(slot, b"fresh")
    assert [each.content for each in slot.claim(start=1).messages] == [b"fresh"]
    assert slot.state().dead.keys() == {b"old0000"}


def test_a_paused_slot_buries_and_hands_out_nothing(outlived: SlotUnderTest) -> None:
    put(outlived, b"fresh")
    outlived.client.hset(outlived.keys.meta, "paused", 1)
    assert outlived.claim().messages == ()
    assert 0 < len(outlived.state().dead) < OUTLIVED


def test_of_younger_ones_the_highest_priority_goes_first(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, ttl="1s")
    old = {b"old%04d" % number: 2**50 for number in range(OUTLIVED)}
    slot.seed(SlotState(store=old, born=dict.fromkeys(old, T0 - 5_000)))
    for number in (3, 1, 2):
        put(slot, b"p%d" % number, score=2**40 + number)
    assert [each.content for each in slot.claim(2).messages] == [b"p3", b"p2"]


# what queries of Spark give back, bury or refuse


def chunk_of(slot: SlotUnderTest, driver: int = 1, max_replays: int = 10) -> list[bytes]:
    """Read the first chunk of a batch."""
    reading = calls.Reading(Driver("q", driver), 1, 1_000, max_replays, False)
    return slot.run(calls.read(slot.topic, reading, 0, 0, 1_000)).contents


def read_by_spark(make_slot: MakeSlot, shape: Shape, **settings: Any) -> tuple[SlotUnderTest, list[bytes]]:
    """A slot of which a query has read as many messages as its chunk takes."""
    slot = made(make_slot, shape, TopicType.PRIORITY, **settings)
    slot.seed(SlotState(store=dict.fromkeys(NAMES, 5_000), body=values(shape, "h")))
    names = chunk_of(slot)
    assert len(names) >= 2
    return slot, names


def put_twins(slot: SlotUnderTest, shape: Shape, names: list[bytes]) -> None:
    """Send the contents again."""
    slot.client.zadd(slot.keys.store, dict.fromkeys(names, 7_000))
    write_state(slot.client, slot.keys, SlotState(body=values(shape, "f", names)))
    slot.client.hincrby(slot.keys.meta, "accepted", len(names))


def put_dead(slot: SlotUnderTest, shape: Shape, names: list[bytes]) -> None:
    """Let the contents have died before."""
    dead = SlotState(
        dead=dict.fromkeys(names, T0 - 1), dead_body=values(shape, "d", names), reason={name: {} for name in names}
    )
    write_state(slot.client, slot.keys, dead)
    slot.client.hincrby(slot.keys.meta, "accepted", len(names))


MANY = (Collect(max_bytes=1 << 20), 2, 30_000)
"""What a chunk takes ten of and more; a fold is cheap, but that with a long list of the dead or of store is not."""
LONG = (Collect(max_bytes=1 << 20), 30, 30_000)


def test_what_a_replay_gives_back_folds_as_far_as_it_may_cost_and_the_rest_waits(make_slot: MakeSlot) -> None:
    slot, names = read_by_spark(make_slot, MANY)
    put_twins(slot, LONG, names)
    kept = chunk_of(slot, 2, max_replays=0)
    state = slot.state()
    given_back = [name for name in names if name not in kept]
    assert 0 < len(state.retry) < len(given_back)
    assert set(state.retry) <= set(given_back)
    assert set(state.retry.values()) == {T0 // 1000 * 1000 + slot.topic.max_retries}
    assert state.unaccounted == 0
    while slot.claim(0).swept:
        pass
    state = slot.state()
    assert (state.retry, state.prepare.keys()) == ({}, set(kept))
    assert {name: items_of(state.body[name]) for name in names} == {name: 32 - 2 * (name in kept) for name in names}
    assert {state.store[name] for name in given_back} == {7_000}, "the fresh copy stands as it is"
    assert state.unaccounted == 0


def test_of_a_replay_as_many_die_again_as_may_be_and_the_others_by_their_leases(make_slot: MakeSlot) -> None:
    slot, names = read_by_spark(make_slot, MANY, max_retries=0)
    put_dead(slot, LONG, names)
    assert chunk_of(slot, 2) == []
    state = slot.state()
    left = list(state.prepare)
    assert 0 < len(left) < len(names)
    assert {items_of(state.dead_body[name]) for name in names if name not in left} == {32}
    slot.advance(slot.topic.lease_ms + 2_000)
    while slot.claim(0).swept:
        pass
    state = slot.state()
    assert (state.prepare, {items_of(body) for body in state.dead_body.values()}) == ({}, {32})
    assert {reason.get("type") for reason in state.reason.values()} == {"ReplaysUsedUp", "LeaseExpired"}
    assert state.unaccounted == 0


@pytest.mark.parametrize("again", [put_twins, put_dead])
def test_an_ack_ends_what_was_refused_as_far_as_it_may_cost_and_goes_on(
    again: Callable[..., None], make_slot: MakeSlot
) -> None:
    slot, names = read_by_spark(make_slot, MANY)
    *refused, taken = names
    how = How(5_000 if again is put_twins else None, "ValueError", "bad")
    assert slot.run(refuse_contents(slot.topic, 0, Claim(Driver("q", 1), 1, 0), how, refused)).noted == len(refused)
    again(slot, LONG, names)
    ack = calls.settle(slot.topic, 0, Driver("q", 1), 1, 0, "ack")
    first = slot.run(ack)
    assert 0 < first.refused < len(refused)
    assert first == Settled(0, 0, 0, first.refused, 1)
    assert slot.state().prepare.keys() == {*refused[first.refused :], taken}
    assert slot.state().unaccounted == 0
    settled = QuerySlots(slot.connections, slot.topic).settle(Driver("q", 1), 1, [(0, 0)], "ack")
    left = len(refused) - first.refused
    assert (settled.refused, settled.done, settled.lost, settled.found) == (left, {0: 1}, 0, {0: left + 1})
    state = slot.state()
    assert (state.prepare, state.held) == ({}, {})
    ends = state.body if again is put_twins else state.dead_body
    assert {items_of(ends[name]) for name in refused} == {32}
    assert state.unaccounted == 0
    assert slot.run(ack) == Settled(0, 0)
