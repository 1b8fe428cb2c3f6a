"""What is due, and what is weighed, when a value folds back into the one of a fresh copy."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmq import PER_MESSAGE, Collect, Fixed, Keep, Leading, Merge, Sliding, TopicType
from rmq.errors import CollectionFullError
from tests.conftest import MakeSlot
from tests.lua.test_send_merged import record
from tests.support.core import Nack, read_record
from tests.support.slots import T0, SlotState, SlotUnderTest

MINUTE_MS = 60_000
MIB = 1 << 20


def items(slot: SlotUnderTest) -> tuple[bytes, ...]:
    found = read_record(slot.state().body[b"x"])
    assert found is not None
    return found.items


def fly(slot: SlotUnderTest, sent: bytes, fresh: bytes) -> Nack:
    """Have `x` in flight, and sent again; returns what gives the flight back."""
    slot.send((b"x", 500, sent))
    slot.advance(500)
    (flight,) = slot.claim().messages
    slot.send((b"x", MINUTE_MS, fresh))
    return Nack(flight.content, flight.claim_score)


# a join whose parts are all there by a fold

JOIN = Merge(Collect(unique=True), max_count=PER_MESSAGE)
PARTS = (record("J", b"a", wanted=2), record("J", b"b", wanted=2))


@pytest.mark.parametrize("delay_ms", [0, 5_000])
def test_a_flight_that_completes_a_fresh_join_makes_it_due(delay_ms: int, make_slot: MakeSlot) -> None:
    slot = make_slot(merge=JOIN)
    flight = fly(slot, *PARTS)
    hints = len(slot.state().hints)
    slot.nack(Nack(flight.content, flight.claim_score, "retry", delay_ms))
    state = slot.state()
    assert state.store == {b"x": T0 + 500}
    assert items(slot) == (b"a", b"b")
    assert state.hints[hints:] == [0]


def test_a_flight_that_was_never_begun_completes_a_fresh_join(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=JOIN)
    flight = fly(slot, *PARTS)
    slot.nack(Nack(flight.content, flight.claim_score, "release", T0 + 500))
    assert slot.state().store == {b"x": T0 + 500}


def test_a_lease_that_ends_completes_a_fresh_join(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=JOIN, lease="5s")
    fly(slot, *PARTS)
    slot.advance(10_000)
    (claimed,) = slot.claim().messages
    found = read_record(claimed.body)
    assert found is not None
    assert found.items == (b"a", b"b")


def test_a_retry_that_is_due_completes_a_fresh_join(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=JOIN)
    slot.send((b"x", 500, PARTS[0]))
    slot.advance(500)
    (flight,) = slot.claim().messages
    slot.nack(Nack(flight.content, flight.claim_score, "retry", 2_000))
    slot.send((b"x", MINUTE_MS, PARTS[1]))
    slot.advance(4_000)
    assert [claimed.content for claimed in slot.claim().messages] == [b"x"]


def test_a_flight_that_does_not_complete_a_fresh_join_leaves_its_time(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=JOIN)
    flight = fly(slot, record("J", b"a", wanted=3), record("J", b"b", wanted=3))
    slot.nack(flight)
    assert slot.state().store == {b"x": T0 + 500 + MINUTE_MS}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_redrive_that_completes_a_fresh_join_makes_it_due_unless_it_says_when(
    overwrite: bool, make_slot: MakeSlot
) -> None:
    slot = make_slot(merge=JOIN)
    flight = fly(slot, *PARTS)
    slot.nack(Nack(flight.content, flight.claim_score, "bury"))
    hints = len(slot.state().hints)
    slot.redrive("at", T0 + 9_000, b"x", overwrite=overwrite)
    state = slot.state()
    assert state.store == {b"x": T0 + (9_000 if overwrite else 500)}
    assert state.hints[hints:] == [T0 + 9_000 if overwrite else 0]
    assert items(slot) == (b"a", b"b")


def test_who_sets_a_time_by_hand_is_obeyed(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=JOIN)
    slot.send((b"x", 500, PARTS[0]))
    slot.advance(500)
    (flight,) = slot.claim().messages
    slot.nack(Nack(flight.content, flight.claim_score, "retry", 2_000))
    slot.send((b"x", MINUTE_MS, PARTS[1]))
    slot.reschedule("at", T0 + 30_000, b"x")
    assert slot.state().store == {b"x": T0 + 30_000}


# a set of items that a failed flight fills


@pytest.mark.parametrize("window", [Fixed("500ms"), Sliding("500ms", max_wait=timedelta(milliseconds=2 * MINUTE_MS))])
def test_a_send_to_what_a_flight_has_filled_goes_along_and_makes_it_due(
    window: Fixed | Sliding, make_slot: MakeSlot
) -> None:
    slot = make_slot(merge=Merge(Collect(max_items=2), window))
    slot.nack(fly(slot, record("C", b"1"), record("C", b"2")))
    assert slot.state().store == {b"x": T0 + 500 + MINUTE_MS}
    hints = len(slot.state().hints)
    slot.send((b"x", MINUTE_MS, record("C", b"3")), (b"x", MINUTE_MS, record("C", b"4")))
    state = slot.state()
    assert items(slot) == (b"1", b"2", b"3", b"4")
    assert state.store == {b"x": T0 + 500}
    assert state.hints[hints:] == [T0 + 500]
    with pytest.raises(CollectionFullError):
        slot.send((b"x", MINUTE_MS, record("C", b"5")))


@pytest.mark.parametrize("window", [Fixed("500ms"), Sliding("500ms", max_wait=timedelta(milliseconds=2 * MINUTE_MS))])
@pytest.mark.parametrize("bounds", [Collect(max_items=2), Collect(max_bytes=10)])
def test_what_goes_along_with_what_a_flight_has_filled_is_bounded(
    window: Fixed | Sliding, bounds: Collect, make_slot: MakeSlot
) -> None:
    slot = make_slot(merge=Merge(bounds, window))
    slot.nack(fly(slot, record("C", b"1"), record("C", b"2")))
    before = slot.dump()
    more = [(b"x", MINUTE_MS, record("C", b"%d" % number)) for number in range(3, 8)]
    with pytest.raises(CollectionFullError):
        slot.send(*more)
    assert slot.dump() == before
    slot.send(*more[:4])
    assert len(items(slot)) == 6


@pytest.mark.parametrize("overflow", ["release", "refuse"])
def test_what_a_flight_has_filled_is_refused_where_it_cannot_be_released(overflow: str, make_slot: MakeSlot) -> None:
    kind = TopicType.PRIORITY if overflow == "release" else TopicType.RANGE_MERGE
    slot = make_slot(kind, merge=Merge(Collect(max_items=2, when_full=overflow)))
    slot.nack(fly(slot, record("C", b"1"), record("C", b"2")))
    before = slot.dump()
    with pytest.raises(CollectionFullError):
        slot.send((b"x", MINUTE_MS, record("C", b"3")))
    assert slot.dump() == before


# windows of which messages leave early


def test_messages_that_leave_early_do_not_put_off_the_window(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Keep(), Leading("10s"), max_count=2))
    one = (b"x", 10_000, record("K"))
    slot.send(one)
    slot.ack(*[(claimed.content, claimed.claim_score) for claimed in slot.claim().messages])
    for _ in range(5):
        slot.advance(1)
        slot.send(one, one)
        assert slot.state().store == {b"x": slot.now_ms}, "two sends need not wait"
        slot.ack(*[(claimed.content, claimed.claim_score) for claimed in slot.claim().messages])
    slot.send(one)
    assert slot.state().store == {b"x": T0 + 10_000}
    assert slot.state().cool == {b"x": T0 + 20_000}


def test_a_window_ends_when_it_did_whatever_time_a_hand_gave_its_message(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Keep(), Leading("10s"), max_count=3))
    one = (b"x", 10_000, record("K"))
    slot.send(one)
    slot.ack(*[(claimed.content, claimed.claim_score) for claimed in slot.claim().messages])
    slot.send(one)
    slot.reschedule("at", T0 + 2_000, b"x")
    slot.send(one, one)
    assert slot.state().store == {b"x": T0}
    assert slot.state().cool == {b"x": T0 + 20_000}


# bytes


def test_a_retry_that_waits_does_not_make_claims_small(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Keep()))
    flying, due = [b"0%d" % number for number in range(100)], [b"1%d" % number for number in range(250)]
    large = record("K")[:-1] + b"K=" + b"." * 60_000
    slot.seed(
        SlotState(
            store=dict.fromkeys([*flying, *due], T0 - 1),
            prepare=dict.fromkeys(flying, slot.claim_score(2)),
            retry={b"waits": (T0 + MINUTE_MS) // 1_000 * 1_000 + 2},
            body=dict.fromkeys([*flying, *due], record("K", at_ms=T0)),
            held=dict.fromkeys([*flying, b"waits"], large),
        )
    )
    assert [len(slot.claim(100).messages) for _ in range(4)] == [100, 100, 50, 0]


def test_a_claim_weighs_what_waits_for_a_retry_too(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Keep()))
    names = [b"%d" % number for number in range(12)]
    large = record("K")[:-1] + b"K=" + b"." * MIB
    slot.seed(
        SlotState(
            store=dict.fromkeys(names, T0 - 1),
            retry=dict.fromkeys(names, (T0 + MINUTE_MS) // 1_000 * 1_000 + 2),
            body=dict.fromkeys(names, record("K", at_ms=T0)),
            held=dict.fromkeys(names, large),
        )
    )
    number = 0
    while claimed := slot.claim().messages:
        assert sum(len(each.body or b"") for each in claimed) < 5 * MIB
        number += len(claimed)
    assert number == len(names)


def test_a_sweep_weighs_what_folds_back(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Keep()))
    names = [b"%d" % number for number in range(12)]
    large = record("K")[:-1] + b"K=" + b"." * MIB
    slot.seed(
        SlotState(
            retry=dict.fromkeys(names, (T0 - MINUTE_MS) // 1_000 * 1_000 + 2),
            held=dict.fromkeys(names, large),
        )
    )
    reply = slot.claim(1)
    assert 0 < reply.swept < len(names)
    assert reply.next_due_ms == T0, "there is more to sweep"
