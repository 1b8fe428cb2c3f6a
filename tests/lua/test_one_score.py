"""Claims of messages that all have one score: they are read and handed over without it."""

from __future__ import annotations

import pytest

from rmq import TopicType
from tests.conftest import MakeSlot
from tests.support.claims import Claimed
from tests.support.core import ClaimPart
from tests.support.one_slot import claim_slot, claim_slots
from tests.support.slots import T0, SlotState, SlotUnderTest

FRESH = T0 * 1000 + 16
NAMES = [b"%04d" % number for number in range(600)]
both_orders = pytest.mark.parametrize("kind", [TopicType.FIXED_TIME, TopicType.PRIORITY])


def slot_of(make_slot: MakeSlot, kind: TopicType) -> SlotUnderTest:
    return make_slot(kind) if kind.timed else make_slot(kind, ties="oldest")


def of_one_score(slot: SlotUnderTest, names: list[bytes] = NAMES, **others: int) -> int:
    """Fill the store with contents of one score, which is returned, and others with scores relative to that."""
    score = T0 - 5 if slot.topic.type.timed else 5_000
    store = {**dict.fromkeys(names, score), **{name.encode(): score + more for name, more in others.items()}}
    slot.seed(SlotState(store=store))
    return score


def claimed(names: list[bytes], score: int) -> tuple[Claimed, ...]:
    return tuple(Claimed(name, score, FRESH, None) for name in names)


def in_order(slot: SlotUnderTest, names: list[bytes] = NAMES) -> list[bytes]:
    return names if slot.topic.type.timed else names[::-1]


def without_score(slot: SlotUnderTest, limit: int) -> bool:
    """Whether a claim that finds what is there now would hand it over without scores."""
    before = slot.state()
    [[reply]] = slot.connections.run_many([claim_slot(slot.topic, 0, limit)._replace(parse=list)])
    slot.client.flushdb()
    slot.set_clock(T0)
    slot.seed(before)
    return reply[9] != b""


@both_orders
@pytest.mark.parametrize("limit", [2, 256, 257, 599, 600])
def test_the_first_of_one_score(make_slot: MakeSlot, kind: TopicType, limit: int) -> None:
    slot = slot_of(make_slot, kind)
    score = of_one_score(slot)
    assert without_score(slot, limit)
    reply = slot.run(claim_slot(slot.topic, 0, limit))
    taken, left = in_order(slot)[:limit], in_order(slot)[limit:]
    assert reply.messages == claimed(taken, score)
    assert (slot.state().prepare, slot.state().store) == (dict.fromkeys(taken, FRESH), dict.fromkeys(left, score))
    assert slot.state().totals["delivered"] == limit
    first_due = score if kind.timed else T0
    assert reply.next_due_ms == (first_due if left else T0 + slot.topic.lease_ms + 1)


@both_orders
@pytest.mark.parametrize("limit", [4, 6, 8])
def test_all_that_is_due(make_slot: MakeSlot, kind: TopicType, limit: int) -> None:
    slot = slot_of(make_slot, kind)
    others = {"later": 6} if kind.timed else {}
    score = of_one_score(slot, NAMES[:4], **others)
    assert without_score(slot, limit)
    reply = slot.run(claim_slot(slot.topic, 0, limit))
    assert reply.messages == claimed(in_order(slot, NAMES[:4]), score)
    assert slot.state().store == ({b"later": score + 6} if kind.timed else {})
    assert reply.next_due_ms == (T0 + 1 if kind.timed else T0 + slot.topic.lease_ms + 1)


@both_orders
@pytest.mark.parametrize("limit", [5, 6, 100])
def test_what_else_is_due_comes_in_its_order(make_slot: MakeSlot, kind: TopicType, limit: int) -> None:
    slot = slot_of(make_slot, kind)
    score = of_one_score(slot, NAMES[:4], other=3 if kind.timed else -3)
    assert not without_score(slot, limit)
    expected = (
        *claimed(in_order(slot, NAMES[:4]), score),
        Claimed(b"other", score + (3 if kind.timed else -3), FRESH, None),
    )
    assert slot.run(claim_slot(slot.topic, 0, limit)).messages == expected
    assert slot.state().store == {}


def test_nothing_is_claimed_before_it_is_due(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(SlotState(store=dict.fromkeys(NAMES[:9], T0 + 1)))
    reply = slot.run(claim_slot(slot.topic, 0, 5))
    assert (reply.messages, reply.next_due_ms, slot.state().prepare) == ((), T0 + 1, {})


@both_orders
def test_what_was_rolled_back_keeps_its_retries(make_slot: MakeSlot, kind: TopicType) -> None:
    slot = slot_of(make_slot, kind)
    slot.seed(SlotState(store=dict.fromkeys(NAMES[:9], 3)))
    assert {each.claim_score for each in slot.run(claim_slot(slot.topic, 0, 5)).messages} == {T0 * 1000 + 2}


@both_orders
@pytest.mark.parametrize("held", [[b"0000"], [b"0003"], [b"0008"], [b"0000", b"0001", b"0002", b"0003", b"0008"]])
def test_what_is_in_flight_is_passed_over(make_slot: MakeSlot, kind: TopicType, held: list[bytes]) -> None:
    slot = slot_of(make_slot, kind)
    score = 5_000 if kind is TopicType.PRIORITY else T0 - 5
    twins = dict.fromkeys(held, (T0 - 7) * 1000 + 16)
    slot.seed(SlotState(store=dict.fromkeys(NAMES[:9], score), prepare=twins))
    free = [name for name in in_order(slot, NAMES[:9]) if name not in held]
    reply = slot.run(claim_slot(slot.topic, 0, 4))
    assert reply.messages == claimed(free[:4], score)
    assert slot.state().prepare == {**twins, **dict.fromkeys(free[:4], FRESH)}
    assert slot.state().store == dict.fromkeys([*held, *free[4:]], score)


@both_orders
@pytest.mark.parametrize(("most_bytes", "number"), [(4 * 9, 9), (4 * 9 - 1, 8), (1, 1)])
def test_no_more_bytes_than_there_is_room_for(
    make_slot: MakeSlot, kind: TopicType, most_bytes: int, number: int
) -> None:
    slot = slot_of(make_slot, kind)
    score = of_one_score(slot, NAMES[:9])
    reply = slot.run(claim_slot(slot.topic, 0, 9, most_bytes=most_bytes))
    assert reply.messages == claimed(in_order(slot, NAMES[:9])[:number], score)
    assert len(slot.state().store) == 9 - number


def test_a_paused_slot_hands_over_nothing(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    of_one_score(slot, NAMES[:9])
    slot.client.hset(slot.keys.meta, "paused", "1")
    assert slot.run(claim_slot(slot.topic, 0, 9)).messages == ()


def test_several_slots_share_the_room(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    score = of_one_score(slot, NAMES[:9])
    first, second = slot.run(claim_slots(slot.topic, [ClaimPart(0, 4)] * 2, most_bytes=4 * 6))
    assert not isinstance(first, Exception)
    assert not isinstance(second, Exception)
    assert first.messages == claimed(NAMES[:4], score)
    assert [each.content for each in second.messages] == NAMES[4:6]


@both_orders
@pytest.mark.parametrize("step", [0, 1], ids=["one score", "several scores"])
def test_twins_in_flight_that_fill_the_room_hold_up_nothing(make_slot: MakeSlot, kind: TopicType, step: int) -> None:
    """Their contents took all the bytes that a claim may hand over: it handed over nothing, time and again."""
    slot, names = slot_of(make_slot, kind), NAMES[:9]
    first = T0 - 20 if kind.timed else 5_000
    store = {name: first + step * number for number, name in enumerate(names)}
    in_flight = names[:4] if kind.timed else names[-4:]
    slot.seed(SlotState(store=store, prepare=dict.fromkeys(in_flight, FRESH)))
    reply = slot.run(claim_slot(slot.topic, 0, 4, most_bytes=16))
    assert reply.messages
