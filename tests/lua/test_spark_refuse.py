"""Rows that a streaming query refuses: they move with the ack of their batch, and not before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rmq import Merge, Sum, TopicType
from rmq.errors import BatchAckedError, DriverReplacedError, FencedError
from rmq.spark import Refused
from rmq.spark.calls import Claim, Driver, How, Settled, refuse_contents
from tests.conftest import MakeSlot
from tests.lua.test_spark_merged import add, records
from tests.lua.test_spark_scripts import BURY, FIRST, SECOND, ack, contents, filled, query_of, read, renew
from tests.support.core import Nack
from tests.support.slots import SlotUnderTest

LATER = How(30_000, "", "not now")
NAMES = [b"m000", b"m001", b"m002"]


def refuse(
    slot: SlotUnderTest, names: Sequence[bytes], how: How = BURY, driver: Driver = FIRST, chunk: int = 0
) -> Refused:
    return slot.run(refuse_contents(slot.topic, 0, Claim(driver, 1, chunk), how, names))


def test_nothing_moves_before_the_ack_and_then_what_was_refused_does(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 4)
    read(slot)
    claimed = slot.state().prepare
    assert refuse(slot, [b"m000", b"m001"]) == refuse(slot, [b"m000", b"m001"]) == Refused(2, 0)
    assert refuse(slot, [b"m002"], LATER) == Refused(1, 0)
    assert slot.state().prepare == claimed
    assert contents(read(slot)) == [*NAMES, b"m003"], "the batch is the same as before"
    assert renew(slot) == Settled(4, 0)
    assert ack(slot) == Settled(1, 0, 0, 3)
    state = slot.state()
    assert (state.store, state.prepare) == ({}, {})
    assert state.dead.keys() == {b"m000", b"m001"}
    assert (state.reason[b"m000"]["type"], state.reason[b"m000"]["message"]) == ("ValueError", "bad price")
    due_second = -(-(slot.now_ms + 30_000) // 1_000)
    assert state.retry == {b"m002": due_second * 1_000 + slot.topic.max_retries}
    assert state.error[b"m002"]["message"] == "not now"
    assert set(slot.client.hkeys(query_of(slot).query)) == {b"generation", b"acked"}
    assert ack(slot) == Settled(0, 0)
    assert slot.state() == state


def test_the_last_refusal_of_a_row_counts(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 1)
    read(slot)
    refuse(slot, [b"m000"])
    refuse(slot, [b"m000"], LATER)
    assert ack(slot) == Settled(0, 0, 0, 1)
    assert (slot.state().dead, slot.state().retry.keys()) == ({}, {b"m000"})


def test_a_delivery_that_was_the_last_one_dies_instead_of_coming_back(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 1, max_retries=0)
    read(slot)
    refuse(slot, [b"m000"], LATER)
    assert ack(slot) == Settled(0, 0, 0, 1)
    assert slot.state().dead.keys() == {b"m000"}


def test_rows_of_other_chunks_are_missing(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 3)
    read(slot, limit=2)
    assert refuse(slot, [b"m001", b"m002", b"none"]) == Refused(1, 2)
    assert refuse(slot, [b"m000"], chunk=7) == Refused(0, 1)
    assert ack(slot) == Settled(1, 0, 0, 1)


def test_a_run_after_a_restart_decides_anew(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 3)
    read(slot)
    refuse(slot, [b"m000", b"m001"])
    assert contents(read(slot, SECOND)) == NAMES
    with pytest.raises(DriverReplacedError):
        refuse(slot, [b"m002"])
    assert refuse(slot, [b"m002"], driver=SECOND) == Refused(1, 0)
    assert ack(slot, SECOND) == Settled(2, 0, 0, 1)
    assert slot.state().dead.keys() == {b"m002"}


def test_a_later_driver_acks_what_the_one_before_it_has_refused(make_slot: MakeSlot) -> None:
    # Spark has committed, and the driver was killed before its ack
    slot = filled(make_slot, 3)
    read(slot)
    refuse(slot, [b"m000"])
    refuse(slot, [b"m001"], LATER)
    assert ack(slot, SECOND) == Settled(1, 0, 0, 2)
    assert (slot.state().dead.keys(), slot.state().retry.keys()) == ({b"m000"}, {b"m001"})


def test_what_was_refused_is_not_done_where_its_lease_has_ended(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 3)
    read(slot)
    refuse(slot, [b"m000", b"m001"])
    slot.advance(slot.topic.lease_ms + 2_000)
    [theirs] = slot.claim(1).messages
    assert ack(slot) == Settled(1, 2) if theirs.content in (b"m000", b"m001") else Settled(0, 3)
    refused = {b"m000", b"m001"}
    assert refused - {theirs.content} <= slot.state().store.keys(), "they come again: nothing says that they are done"
    assert slot.nack(Nack(theirs.content, theirs.claim_score)) == ()
    assert refused <= slot.state().store.keys()


def test_beside_a_fresh_copy_what_is_refused_merges_with_it(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 1_001, b"old"), (b"b", 1_000, b"old"))
    read(slot)
    slot.send((b"a", 2_001, b"new"), (b"b", 2_000, b"new"))
    refuse(slot, [b"a"])
    refuse(slot, [b"b"], LATER)
    assert ack(slot) == Settled(0, 0, 0, 2)
    state = slot.state()
    assert (state.store, state.body) == ({b"a": 2_001, b"b": 2_000}, {b"a": b"new", b"b": b"new"})
    assert (state.dead, state.retry, state.prepare) == ({}, {}, {})


def test_an_acked_batch_and_an_owned_slot_take_no_refusals(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 1)
    read(slot)
    ack(slot)
    with pytest.raises(BatchAckedError):
        refuse(slot, [b"m000"])
    slot.send((b"next", 1_000))
    read(slot, seq=2)
    slot.client.hset(slot.keys.meta, mapping={"epoch": 5, "ensemble": "e"})
    with pytest.raises(BatchAckedError):
        refuse(slot, [b"m000"])
    with pytest.raises(FencedError):
        slot.run(refuse_contents(slot.topic, 0, Claim(FIRST, 2, 0), BURY, [b"next"]))


def test_of_a_topic_that_merges_the_value_goes_along(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, merge=Merge(Sum()))
    for content, number in ((b"dead", 1), (b"later", 2), (b"done", 3)):
        add(slot, content, number)
    read(slot)
    add(slot, b"later", 10)
    refuse(slot, [b"dead"])
    refuse(slot, [b"later"], LATER)
    assert ack(slot) == Settled(1, 0, 0, 2)
    state = slot.state()
    assert (records(state.dead_body), records(state.body)) == ({b"dead": (1, 1)}, {b"later": (12, 2)})
    assert (state.store.keys(), state.held, state.retry) == ({b"later"}, {}, {})
