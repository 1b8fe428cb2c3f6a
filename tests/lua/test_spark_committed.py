"""Acks of batches that Spark has committed, after their leases have ended: what is done, and what must not get lost."""

from __future__ import annotations

import pytest

from rmq import TopicType
from rmq.spark.calls import Driver, Settled
from tests.conftest import MakeSlot
from tests.lua.test_spark_scripts import SECOND, ack, filled, read, renew
from tests.support.core import Nack


@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.FIXED_TIME, TopicType.RANGE_MERGE])
@pytest.mark.parametrize("body", [None, b"body"])
def test_an_ack_takes_what_a_sweep_has_put_back(kind: TopicType, body: bytes | None, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    due = slot.now_ms + 10 if kind is TopicType.FIXED_TIME else 10
    slot.send(*((b"m%d" % number, due + 1_000 * (kind is TopicType.PRIORITY), body) for number in range(4)))
    slot.advance(100)
    assert len(read(slot).contents) == 4
    renew(slot)
    slot.advance(62_000)
    theirs = slot.claim(1).messages[0]
    assert ack(slot, SECOND) == Settled(3, 1), "what another worker has by now is left to it"
    state = slot.state()
    assert (state.store, state.totals["acked"], state.unaccounted) == ({}, 3, 0)
    assert not state.orphans
    assert slot.ack((theirs.content, theirs.claim_score)) == ()


def test_an_ack_takes_what_another_worker_has_claimed_and_lost_as_well(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 1)
    read(slot)
    for _ in range(3):
        slot.advance(62_000)
        assert len(slot.claim(1).messages) == 1
    slot.advance(62_000)
    slot.claim(0)
    assert slot.state().store == {b"m000": 13}
    assert ack(slot, SECOND) == Settled(1, 0)
    assert slot.state().store == {}


@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.RANGE_MERGE])
def test_what_another_worker_has_at_the_ack_is_done_when_its_lease_ends(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    slot.send((b"a", 1_000, b"body"))
    slot.advance(1_000)
    read(slot)
    slot.advance(62_000)
    (theirs,) = slot.claim(1).messages
    assert ack(slot, SECOND) == Settled(0, 1)
    assert slot.state().prepare == {b"a": theirs.claim_score}, "no new send of it is handled beside the worker"
    slot.send((b"a", 1_000, b"newer"))
    slot.advance(62_000)
    assert [(claimed.content, claimed.body) for claimed in slot.claim(1).messages] == [(b"a", b"newer")]
    state = slot.state()
    assert (state.store, state.totals["acked"], state.unaccounted, state.orphans) == ({}, 1, 0, {})


def test_an_ack_leaves_what_is_not_the_claim_that_ended(make_slot: MakeSlot) -> None:
    """What was claimed anew or sent again since Spark has read it is another message, and would be lost."""
    slot = filled(make_slot, 4)
    read(slot)
    slot.advance(62_000)
    failed, done = slot.claim(2).messages
    overwritten, untouched = sorted(slot.state().store)
    slot.nack(Nack(failed.content, failed.claim_score))
    slot.ack((done.content, done.claim_score))
    slot.send((done.content, 1_000_010))  # a new message, which is claimed, and whose lease ends as well
    assert [claimed.content for claimed in slot.claim(1).messages] == [done.content]
    slot.advance(62_000)
    slot.claim(0)
    slot.send((overwritten, 1_000_020))
    left = {failed.content: 15, done.content: 16, overwritten: 1_000_020}
    assert slot.state().store == left | {untouched: 16}
    assert ack(slot, SECOND) == Settled(1, 3)
    assert slot.state().store == left


def test_an_ack_leaves_what_a_send_without_a_trace_may_have_merged_with(make_slot: MakeSlot) -> None:
    """On RANGE_MERGE a send leaves a message as it is: as long as none has merged in the slot, none was to this one."""
    slot = make_slot(TopicType.RANGE_MERGE)
    slot.send((b"a", 10), (b"b", 10))
    slot.advance(100)
    read(slot)
    slot.advance(62_000)
    slot.claim(0)
    slot.send((b"a", 10))
    assert ack(slot, SECOND) == Settled(0, 2)
    assert set(slot.state().store) == {b"a", b"b"}


def test_what_was_lost_before_a_renewal_is_known_after_it(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 3)
    read(slot)
    slot.advance(62_000)
    assert slot.claim(0, sweep_limit=1).swept == 1
    for _ in range(2):
        assert renew(slot) == Settled(2, 1)
        slot.advance(20_000)
    assert ack(slot) == Settled(3, 0)
    assert slot.state().store == {}


def test_a_released_claim_of_another_worker_does_not_hide_that_spark_has_committed_it(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 1)
    read(slot)
    slot.advance(62_000)
    theirs = slot.claim(1).messages[0]
    slot.nack(Nack(theirs.content, theirs.claim_score, "release", 16))
    assert slot.state().store == {b"m000": 16}
    assert ack(slot, SECOND) == Settled(1, 0)
    assert slot.state().store == {}


@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.RANGE_MERGE])
def test_what_spark_has_committed_is_done_when_another_worker_gives_it_back(
    kind: TopicType, make_slot: MakeSlot
) -> None:
    """In store a later send could merge with it; once the lease of a later claim ended, that send would be gone."""
    slot = make_slot(kind)
    slot.send((b"a", 1_000, b"body"))
    slot.advance(1_000)
    read(slot)
    slot.advance(62_000)
    (theirs,) = slot.claim(1).messages
    assert ack(slot, SECOND) == Settled(0, 1)
    slot.nack(Nack(theirs.content, theirs.claim_score, "release", 16))
    state = slot.state()
    assert (state.store, state.prepare, state.totals["acked"], state.unaccounted) == ({}, {}, 1, 0)
    assert not state.orphans
    slot.send((b"a", 1_000, b"newer"))
    slot.advance(1_000)
    assert [claimed.body for claimed in slot.claim(1).messages] == [b"newer"]
    slot.advance(62_000)
    assert [(claimed.content, claimed.body) for claimed in slot.claim(1).messages] == [(b"a", b"newer")]


def test_what_spark_has_committed_and_another_query_gives_back_is_a_message_like_others(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.RANGE_MERGE)
    slot.send((b"a", 10), (b"b", 10))
    slot.advance(100)
    read(slot)
    slot.advance(62_000)
    slot.claim(0)
    assert len(read(slot, Driver("q2", 1)).contents) == 2
    assert ack(slot, SECOND) == Settled(0, 2)
    for generation in (2, 3):
        read(slot, Driver("q2", generation), max_replays=2)
    (kept,) = read(slot, Driver("q2", 4), max_replays=2).contents
    (back,) = slot.state().store
    slot.send((back, 10, b"newer"))
    slot.advance(100)
    assert [claimed.content for claimed in slot.claim(1).messages] == [back]
    slot.advance(62_000)
    assert back in [claimed.content for claimed in slot.claim(2).messages], "the send that merged with it is not lost"
    assert back != kept
