"""The scripts of streaming queries in slots with owners: whoever has lost a slot changes nothing, and reads nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmq import Owner, TopicType
from rmq.errors import BatchAckedError, DriverReplacedError, EnsembleMismatchError, FencedError
from rmq.spark import Refused
from rmq.spark import calls as spark_calls
from rmq.spark.calls import Chunk, Claim, Driver, Reading, Settled, refuse_contents
from tests.conftest import MakeSlot
from tests.lua.test_spark_scripts import BURY, FIRST, SECOND, contents, filled, query_of
from tests.support.core import NO_OWNER
from tests.support.slots import SlotUnderTest

OLD, OTHER, NEW = Owner(7, "zk"), Owner(8, "zk"), Owner(9, "zk")
EMPTY = Chunk(0, 0, 0, [], [], None)


def read(
    slot: SlotUnderTest, owner: Owner, driver: Driver = FIRST, seq: int = 1, chunk: int = 0, *, strict: bool = True
) -> Chunk:
    owners = {} if owner is NO_OWNER else {0: owner}
    reading = Reading(driver, seq, 1_000, 10, strict, owners=owners)
    return slot.run(spark_calls.read(slot.topic, reading, 0, chunk, 2))


def ack(slot: SlotUnderTest, owner: Owner, driver: Driver = FIRST, chunk: int = 0) -> Settled:
    return slot.run(spark_calls.settle(slot.topic, 0, driver, 1, chunk, "ack", owner))


def renew(slot: SlotUnderTest, owner: Owner, driver: Driver = FIRST) -> Settled:
    return slot.run(spark_calls.settle(slot.topic, 0, driver, 1, 0, "renew", owner))


def forget(slot: SlotUnderTest, driver: Driver = FIRST, chunk: int = 0) -> int:
    return slot.run(spark_calls.forget(slot.topic, 0, driver, 1, chunk))


def owner_of(slot: SlotUnderTest) -> list[bytes | str | None]:
    return slot.client.hmget(slot.keys.meta, ["epoch", "ensemble"])


def test_an_owner_reads_renews_and_acks_and_leaves_its_epoch(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 3)
    assert contents(read(slot, OLD)) == [b"m000", b"m001"]
    assert owner_of(slot) == [b"7", b"zk"]
    assert contents(read(slot, OLD)) == [b"m000", b"m001"]
    assert renew(slot, OLD) == Settled(2, 0)
    assert ack(slot, OLD) == Settled(2, 0)
    assert slot.state().store.keys() == {b"m002"}


@pytest.mark.parametrize("act", [renew, ack])
def test_a_newer_epoch_of_the_same_driver_settles_what_an_older_one_has_read(
    act: Callable[[SlotUnderTest, Owner], Settled], make_slot: MakeSlot
) -> None:
    slot = filled(make_slot, 2)
    read(slot, OLD)
    assert act(slot, NEW) == Settled(2, 0)
    assert owner_of(slot) == [b"9", b"zk"]
    with pytest.raises(FencedError):
        act(slot, OLD)


def test_a_lost_slot_takes_no_ack_no_renewal_and_no_refusal_of_rows(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 2)
    read(slot, OLD)
    refusal = refuse_contents(slot.topic, 0, Claim(FIRST, 1, 0), BURY, [b"m000"])
    assert slot.run(refusal) == Refused(1, 0)
    slot.claim(0, owner=OTHER)
    before = slot.dump()
    for act in (ack, renew):
        for owner in (OLD, NO_OWNER):
            with pytest.raises(FencedError):
                act(slot, owner)
    with pytest.raises(FencedError):
        slot.run(refusal)
    assert slot.dump() == before
    slot.advance(slot.topic.lease_ms + 1)
    assert [each.content for each in slot.claim(10, owner=OTHER).messages] == [b"m000", b"m001"]


def test_another_ensemble_is_refused(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 2)
    read(slot, OLD)
    foreign = Owner(99, "other")
    for act in (read, ack, renew):
        with pytest.raises(EnsembleMismatchError):
            act(slot, foreign)


def test_a_slot_that_was_lost_before_its_read_gives_nothing(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 2)
    slot.claim(0, owner=OTHER)
    before = slot.dump()
    assert read(slot, OLD) == EMPTY
    assert slot.dump() == before
    assert slot.client.exists(query_of(slot).query) == 0
    with pytest.raises(FencedError):
        read(slot, NO_OWNER)


def test_a_slot_that_was_lost_between_two_reads_fails_the_second_one(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 2)
    read(slot, OLD)
    slot.claim(0, owner=OTHER)
    with pytest.raises(FencedError):
        read(slot, OLD)
    assert read(slot, OLD, strict=False) == Chunk(0, 2, 0, [], [], None)
    assert read(slot, OLD) == EMPTY, "forgotten: the batch goes without them"
    assert ack(slot, NEW) == Settled(0, 0), "the slot has come back: nothing is acked that was left out"
    assert len(slot.state().prepare) == 2


def test_what_an_earlier_driver_has_read_is_not_acked_where_this_one_has_lost_the_slot(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 2_000, b"body"), (b"b", 1_000))
    read(slot, OLD)
    slot.claim(0, owner=OTHER)
    assert read(slot, OLD, SECOND) == Chunk(0, 2, 0, [], [], None)
    assert slot.client.exists(query_of(slot).body) == 0
    assert ack(slot, NEW, SECOND) == Settled(0, 0)
    assert slot.state().prepare.keys() == {b"a", b"b"}


def test_a_late_task_of_an_acked_batch_and_of_an_earlier_driver_is_told_so(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 2)
    read(slot, OLD)
    ack(slot, OLD)
    slot.claim(0, owner=OTHER)
    with pytest.raises(BatchAckedError):
        read(slot, OLD)
    read(slot, NEW, SECOND, seq=2)
    with pytest.raises(DriverReplacedError):
        read(slot, OLD)


def test_the_mark_of_an_acked_batch_asks_no_owner(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 2)
    read(slot, OLD)
    slot.claim(0, owner=OTHER)
    assert ack(slot, OLD, chunk=-1) == Settled(0, 0)
    assert slot.client.hget(query_of(slot).query, "acked") == b"1"
    assert owner_of(slot) == [b"8", b"zk"]
    with pytest.raises(FencedError):
        ack(slot, NO_OWNER, chunk=-1)


def test_a_mark_does_not_make_its_driver_the_owner(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 2)
    ack(slot, NEW, chunk=-1)
    assert owner_of(slot) == [None, None]


def test_a_forgotten_chunk_is_not_acked_and_its_messages_come_again(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 2_000, b"body"), (b"b", 1_000))
    read(slot, OLD)
    slot.run(refuse_contents(slot.topic, 0, Claim(FIRST, 1, 0), BURY, [b"a"]))
    slot.claim(0, owner=OTHER)
    assert (forget(slot, SECOND), forget(slot, SECOND)) == (2, 0)
    assert set(slot.client.hkeys(query_of(slot).query)) == {b"generation", b"owner"}
    assert slot.client.exists(query_of(slot).body) == 0
    assert ack(slot, NEW, SECOND) == Settled(0, 0)
    with pytest.raises(DriverReplacedError):
        forget(slot, FIRST)
    with pytest.raises(DriverReplacedError):
        read(slot, OLD, FIRST)
    slot.advance(slot.topic.lease_ms + 1)
    assert {each.content for each in slot.claim(10, owner=NEW).messages} == {b"a", b"b"}


def test_rows_of_an_acked_batch_are_refused_as_such_in_a_slot_with_owners(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 2)
    read(slot, OLD)
    ack(slot, OLD)
    for _ in range(2):
        with pytest.raises(BatchAckedError):
            slot.run(refuse_contents(slot.topic, 0, Claim(FIRST, 1, 0), BURY, [b"m000"]))
        slot.claim(0, owner=OTHER)


def test_a_batch_that_goes_on_without_lost_messages_misses_the_rows_of_a_lost_slot(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 2)
    refusal = refuse_contents(slot.topic, 0, Claim(FIRST, 1, 0), BURY, [b"m000", b"none"])
    read(slot, OLD, strict=False)
    assert slot.run(refusal) == Refused(1, 1)
    slot.claim(0, owner=OTHER)
    before = slot.dump()
    assert slot.run(refusal) == Refused(0, 2)
    assert slot.dump() == before
    read(slot, OLD, strict=False)
    assert slot.run(refusal) == Refused(0, 2), "the chunk is forgotten"


def test_rows_can_be_refused_in_a_slot_that_was_lost_and_has_come_back(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 2)
    refusal = refuse_contents(slot.topic, 0, Claim(FIRST, 1, 0), BURY, [b"m000"])
    read(slot, OLD)
    slot.claim(0, owner=OTHER)
    assert renew(slot, NEW) == Settled(2, 0)
    assert slot.run(refusal) == Refused(1, 0)
    assert ack(slot, NEW) == Settled(1, 0, 0, 1)


def test_a_replay_under_a_newer_epoch_has_the_same_rows(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 5)
    first = contents(read(slot, OLD))
    assert contents(read(slot, NEW, SECOND)) == first
    assert ack(slot, NEW, SECOND) == Settled(2, 0)
