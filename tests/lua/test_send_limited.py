from __future__ import annotations

from dataclasses import replace

import pytest

from rmq import SendResult, TopicType, WhenFull
from rmq.errors import BacklogFullError, FixedTimePassedError
from tests.conftest import MakeSlot
from tests.support.core import Nack, control
from tests.support.slots import T0, SlotState, with_hints

HELD = T0 * 1000 + 3


def test_the_lowest_priority_is_dropped(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, max_backlog=2, when_full=WhenFull.DROP)
    assert slot.send((b"a", 50, b"A"), (b"b", 90)) == SendResult(2, 0)
    assert slot.send((b"c", 70)) == SendResult(1, 0, dropped=1)
    assert slot.send((b"d", 20)) == SendResult(1, 0, dropped=1)  # the one just sent is the lowest
    state = slot.state()
    assert (state.store, state.body) == ({b"b": 90, b"c": 70}, {})
    assert state.totals == {"accepted": 4, "dropped": 2}


@pytest.mark.parametrize("kind", [TopicType.FIXED_TIME, TopicType.RANGE_MERGE])
def test_the_latest_due_time_is_dropped(make_slot: MakeSlot, kind: TopicType) -> None:
    slot = make_slot(kind, max_backlog=2, when_full=WhenFull.DROP)
    base = T0 if kind is TopicType.FIXED_TIME else 0
    assert slot.send((b"soon", base + 10), (b"late", base + 900), (b"later", base + 950)).dropped == 1
    assert slot.send((b"between", base + 500)).dropped == 1
    assert slot.state().store == {b"soon": T0 + 10, b"between": T0 + 500}


def test_what_was_delivered_before_is_never_dropped(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, max_backlog=1, when_full=WhenFull.DROP)
    slot.seed(SlotState(store={b"retry": 3, b"another": 4}))
    assert slot.send((b"a", 50)).dropped == 1
    assert slot.state().store == {b"retry": 3, b"another": 4}


def test_the_body_of_a_dropped_copy_stays_while_its_twin_is_in_flight_or_waits(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, max_backlog=1, when_full=WhenFull.DROP)
    before = slot.seed(
        SlotState(
            store={b"held": 20, b"waiting": 20, b"gone": 20},
            prepare={b"held": HELD},
            retry={b"waiting": HELD + 10_000},
            body={b"held": b"1", b"waiting": b"2", b"gone": b"3"},
        )
    )
    assert slot.send((b"new", 90)).dropped == 3
    after = slot.state()
    assert (after.store, after.body) == ({b"new": 90}, {b"held": b"1", b"waiting": b"2"})
    assert (after.prepare, after.retry) == (before.prepare, before.retry)


def test_1000_new_ones_push_out_1000(make_slot: MakeSlot) -> None:
    # pitfall 12
    slot = make_slot(TopicType.PRIORITY, max_backlog=1_000, when_full=WhenFull.DROP)
    slot.send(*((b"low%d" % n, 20) for n in range(1_000)))
    assert slot.send(*((b"high%d" % n, 30) for n in range(1_000))) == SendResult(1_000, 0, dropped=1_000)
    assert {name[:4] for name in slot.state().store} == {b"high"}


def test_a_past_time_is_refused_before_anything_is_dropped(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, max_backlog=1, when_full=WhenFull.DROP)
    slot.send((b"a", T0 + 1))
    before = slot.state()
    with pytest.raises(FixedTimePassedError, match=str(T0)):
        slot.send((b"b", T0 + 5), (b"c", T0))
    assert slot.state() == before


def test_a_priority_topic_with_a_time_to_live_can_refuse_too(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, max_backlog=1, ttl="1s")
    slot.send((b"a", 50))
    before = slot.state()
    assert before.born == {b"a": T0}
    with pytest.raises(BacklogFullError):
        slot.send((b"b", 50))
    assert slot.state() == before


def test_the_last_send_decides_when_a_priority_message_is_too_old(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, ttl="1s")
    slot.send((b"a", 50, b"A"), (b"b", 60, b"B"))
    slot.advance(600)
    slot.send((b"b", 60, b"B"))
    slot.advance(401)
    reply = slot.claim()
    assert [claimed.content for claimed in reply.messages] == [b"b"]
    state = slot.state()
    assert (state.dead, state.dead_body, state.born) == ({b"a": slot.now_ms}, {b"a": b"A"}, {})
    assert state.reason[b"a"]["type"] == "Expired"
    assert state.reason[b"a"]["attempts"] == 0
    assert state.totals["ttl_expired"] == 1


@pytest.mark.parametrize("by_claim", [True, False])
def test_a_released_priority_message_gets_its_time_anew(make_slot: MakeSlot, by_claim: bool) -> None:
    slot = make_slot(TopicType.PRIORITY, ttl="1s")
    slot.send((b"a", 50))
    claimed = slot.claim().messages[0]
    slot.advance(900)
    release = Nack(b"a", claimed.claim_score, "release", 50)
    if by_claim:
        slot.claim(0, nacks=[release])
    else:
        slot.nack(release)
    assert slot.state().born == {b"a": slot.now_ms}
    slot.advance(1_000)
    assert [each.content for each in slot.claim().messages] == [b"a"]


def test_a_time_message_is_too_old_so_long_after_it_was_due(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, ttl="1s")
    slot.send((b"old", T0 + 10), (b"just in time", T0 + 11), (b"later", T0 + 5_000))
    slot.advance(1_011)
    assert [each.content for each in slot.claim().messages] == [b"just in time"]
    assert slot.state().dead == {b"old": slot.now_ms}


def test_more_than_one_call_may_bury_are_never_delivered_instead(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, ttl="1s")
    slot.send((b"a", T0 + 10), (b"b", T0 + 11), (b"c", T0 + 12), (b"fresh", T0 + 2_000))
    slot.advance(2_000)
    first = slot.claim(sweep_limit=2)
    assert [each.content for each in first.messages] == [b"fresh"], "it is not held up by what has outlived its time"
    assert first.next_due_ms == slot.now_ms, "there is more to do at once"
    assert slot.state().totals["ttl_expired"] == 2
    assert slot.claim(sweep_limit=2).messages == ()
    assert slot.state().totals["ttl_expired"] == 3


def test_what_failed_before_is_left_to_its_retries(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, ttl="1ms")
    slot.seed(SlotState(store={b"retry": 3, b"late": T0}))
    slot.advance(10**6)
    assert [each.content for each in slot.claim(sweep_limit=1).messages] == [b"retry"]
    assert list(slot.state().dead) == [b"late"], "retries do not hide what has outlived its time"


def test_a_dead_one_of_the_same_content_is_replaced(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, ttl="1s")
    before = slot.seed(
        SlotState(
            store={b"a": T0 - 2_000},
            dead={b"a": T0 - 5_000},
            reason={b"a": {"type": "ValueError"}},
            dead_body={b"a": b"1"},
        )
    )
    slot.claim()
    state = slot.state()
    assert (state.store, state.dead, state.dead_body) == ({}, {b"a": T0}, {})
    assert state.totals == replace(before).totals | {"merged": 1, "ttl_expired": 1}


def test_a_redriven_priority_message_gets_its_time_anew(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, ttl="1s")
    slot.send((b"a", 50))
    slot.advance(1_001)
    slot.claim()
    slot.advance(500)
    slot.redrive("priority", 60, b"a")
    assert slot.state().born == {b"a": slot.now_ms}


def test_the_search_of_a_claim_begins_anew_when_ranks_have_moved(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, ttl="1s")
    slot.seed(SlotState(store={b"old": T0 - 1_001, b"a": T0 - 3, b"b": T0 - 2}))
    assert {each.content for each in slot.claim(start=1).messages} == {b"a", b"b"}


@pytest.mark.parametrize("how", ["reschedule", "promote"])
@pytest.mark.parametrize("delay_ms", [0, 500])
def test_what_steering_makes_fresh_again_can_grow_too_old(make_slot: MakeSlot, how: str, delay_ms: int) -> None:
    slot = make_slot(TopicType.PRIORITY, ttl="1s")
    slot.send((b"a", 50), (b"b", 40))
    slot.nack(Nack(b"a", slot.claim(1).messages[0].claim_score, "retry", delay_ms))
    slot.advance(100)
    if how == "reschedule":
        slot.reschedule("priority", 60, b"a", b"b")
    else:
        slot.run(with_hints(control.promote(slot.topic, 0, [b"a", b"b"])))
    assert slot.state().born == {b"a": T0 + 100, b"b": T0}, "steering is no send"
    slot.advance(1_001)
    assert slot.claim().messages == ()
    assert slot.state().dead.keys() == {b"a", b"b"}


@pytest.mark.parametrize("how", ["cancel", "purge"])
def test_what_leaves_the_backlog_leaves_no_age_behind(make_slot: MakeSlot, how: str) -> None:
    slot = make_slot(TopicType.PRIORITY, ttl="1s")
    slot.send((b"a", 50), (b"b", 60))
    if how == "cancel":
        slot.cancel(b"a")
    else:
        slot.run(control.purge_backlog(slot.topic, 0, "store", 1))
    assert slot.state().born == {b"b": T0}


def test_ages_of_what_is_gone_hold_up_no_delivery(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, ttl="1s")
    gone = {b"gone%d" % number: T0 for number in range(2_000)}  # as a version before this one left them
    slot.seed(SlotState(born=gone))
    slot.advance(1_001)
    slot.send((b"a", 50))
    assert [each.content for each in slot.claim().messages] == [b"a"]
    assert slot.state().born == {}
