"""Claims from several slots in one call: each slot is served as by a call of its own."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import pytest

from rmq import Owner, Topic, TopicType
from rmq.errors import FencedError, RmqError, ScriptFailedError
from tests.conftest import MakeSlot
from tests.lua.cases import EXPIRED, FULL, LIVE, OWNER, USED_UP, Example
from tests.support.core import NO_OWNER, SETTLE_ONLY, Call, ClaimPart, ClaimReply, Nack, Outcomes, slot_keys
from tests.support.one_slot import claim_slot, claim_slots
from tests.support.slots import T0, SlotState, SlotUnderTest

QUIET = SlotState(store={b"a": T0 - 2, b"b": T0 - 1, b"later": T0 + 10**6})
HELD = SlotState(store={b"a": T0 - 2, b"h": T0 - 1}, prepare={b"h": LIVE, b"i": LIVE})
SPENT = SlotState(prepare={b"old": EXPIRED, b"older": USED_UP})
STATES = (SlotState(), QUIET, HELD, SPENT, FULL)


def claim_from(slot: SlotUnderTest, *parts: ClaimPart) -> Sequence[ClaimReply[Any] | RmqError]:
    return slot.run(claim_slots(slot.topic, parts))


def slots_of(slot: SlotUnderTest, number: int) -> list[SlotUnderTest]:
    """Return views of the first slots of a topic."""
    views = [copy(slot) for _ in range(number)]
    for index, view in enumerate(views):
        view.keys = slot_keys(slot.topic.name, index)
    return views


def _seed_two(slot: SlotUnderTest) -> None:
    for each in slots_of(slot, 2):
        each.seed(FULL)


def _claim_two(topic: Topic, _: object) -> Call[Any]:
    return claim_slots(topic, [ClaimPart(number, 10, owner=OWNER) for number in range(2)])


EXAMPLES = {"claim: two slots": Example(TopicType.FIXED_TIME, _claim_two, _seed_two, {"slots": 2})}


@pytest.mark.parametrize("kind", [TopicType.FIXED_TIME, TopicType.PRIORITY])
@pytest.mark.parametrize("settings", [{}, {"ttl": "1m"}])
@pytest.mark.parametrize("limit", [10, 0, SETTLE_ONLY])
@pytest.mark.parametrize(
    "settled",
    [
        {},
        {"acks": [(b"h", LIVE), (b"gone", LIVE)]},
        {"nacks": [Nack(b"h", LIVE, "bury", 0, "E", "m"), Nack(b"i", LIVE, "retry", 0, "E", "m")]},
        {"whole": [(LIVE, 2)]},
    ],
)
def test_a_slot_fares_as_with_a_call_of_its_own(
    kind: TopicType, settings: dict[str, Any], settled: dict[str, Any], limit: int, make_slot: MakeSlot
) -> None:
    alone, joined = (make_slot(kind, slots=8, checked=False, **settings) for _ in range(2))
    for each in (alone, joined):
        for slot, state in zip(slots_of(each, len(STATES)), STATES, strict=True):
            slot.seed(state)
    outcomes = [Outcomes() if slot == 1 else Outcomes(**settled) for slot in range(len(STATES))]
    parts = [ClaimPart(slot, 1 if slot == 1 else limit, each, OWNER) for slot, each in enumerate(outcomes)]
    expected = [reply for part in parts for reply in claim_from(alone, part)]
    assert claim_from(joined, *parts) == expected
    for one, other in zip(slots_of(alone, len(STATES)), slots_of(joined, len(STATES)), strict=True):
        assert other.state() == one.state()


@pytest.mark.parametrize("owner", [NO_OWNER, OWNER])
def test_a_call_that_settles_only_does_no_more_in_a_quiet_slot(owner: Owner, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(HELD)
    reply = slot.run(claim_slot(slot.topic, 0, SETTLE_ONLY, Outcomes([(b"h", LIVE), (b"a", LIVE)]), owner=owner))
    assert (reply.messages, reply.stale) == ((), (b"a",))
    state = slot.state()
    assert (state.store, state.prepare) == (HELD.store, {b"i": LIVE})
    assert state.totals["acked"] == 1
    assert state.owner.get("epoch", "0") == str(owner.epoch)


@pytest.mark.parametrize("kind", [TopicType.FIXED_TIME, TopicType.PRIORITY])
def test_a_call_that_settles_only_says_when_the_first_message_is_due(kind: TopicType, make_slot: MakeSlot) -> None:
    """It may have become free by this very call: nobody else would come for it."""
    due = {b"h": T0 - 1 if kind.timed else 50}
    later, empty = {b"later": T0 + 10**6} if kind.timed else {}, SlotState(prepare={b"h": LIVE})
    for state, paused, expected in (
        (SlotState(store=due, prepare={b"h": LIVE}), False, due[b"h"] if kind.timed else T0),
        (SlotState(store=due, prepare={b"h": LIVE}), True, 0),
        (SlotState(store=later, prepare={b"h": LIVE}), False, later.get(b"later", 0)),
        (empty, False, 0),
    ):
        slot = make_slot(kind)
        slot.seed(state)
        if paused:
            slot.client.hset(slot.keys.meta, "paused", "1")
        reply = slot.run(claim_slot(slot.topic, 0, SETTLE_ONLY, Outcomes([(b"h", LIVE)])))
        assert reply.next_due_ms == expected


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize("name", ["store", "prepare", "retry", "meta", "body"])
def test_a_broken_slot_does_not_hold_up_the_others(broken: int, name: str, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, slots=2, checked=False)
    whole = 1 - broken
    slot.client.zadd(slot_keys(slot.topic.name, whole).store, {b"a": T0 - 1})
    slot.client.set(getattr(slot_keys(slot.topic.name, broken), name), "foreign")
    replies = claim_from(slot, ClaimPart(0, 10, owner=OWNER), ClaimPart(1, 10, owner=OWNER))
    failed, served = replies[broken], replies[whole]
    assert isinstance(failed, ScriptFailedError)
    assert "WRONGTYPE" in str(failed)
    assert isinstance(served, ClaimReply)
    assert [message.content for message in served.messages] == [b"a"]


def test_a_slot_of_a_newer_owner_is_refused_by_itself(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, slots=2, checked=False)
    first, second = slots_of(slot, 2)
    first.seed(SlotState(store={b"kept": T0 - 1}, owner={"epoch": "8", "ensemble": OWNER.ensemble}))
    second.seed(SlotState(store={b"a": T0 - 1}))
    fenced, served = claim_from(slot, ClaimPart(0, 10, owner=OWNER), ClaimPart(1, 10, owner=OWNER))
    assert isinstance(fenced, FencedError)
    assert fenced.slot == 0
    assert first.state().store == {b"kept": T0 - 1}
    assert isinstance(served, ClaimReply)
    assert [message.content for message in served.messages] == [b"a"]
    with pytest.raises(FencedError):  # the error of a single slot is that of the call
        claim_from(slot, ClaimPart(0, 10, owner=OWNER))
