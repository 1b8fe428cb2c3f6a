"""Claims from several slots in one call: each slot is served as by a call of its own."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rmq import Owner, TopicType
from rmq.errors import FencedError, ScriptFailedError
from tests.conftest import MakeSlot
from tests.lua.cases import EXPIRED, FULL, LIVE, OWNER, USED_UP
from tests.support.core import Call, ClaimReply, Nack, Outcomes, claims, slot_keys
from tests.support.slots import T0, SlotState, SlotUnderTest, scripts_under_test

QUIET = SlotState(store={b"a": T0 - 2, b"b": T0 - 1, b"later": T0 + 10**6})
HELD = SlotState(store={b"a": T0 - 2, b"h": T0 - 1}, prepare={b"h": LIVE, b"i": LIVE})
SPENT = SlotState(prepare={b"old": EXPIRED, b"older": USED_UP})


def claim_at(slot: SlotUnderTest, number: int, limit: int = 10) -> Call[ClaimReply]:
    return claims.claim(slot.topic, number, limit, owner=OWNER)


def store(slot: SlotUnderTest, number: int) -> dict[bytes, float]:
    found: Any = slot.client.zrange(slot_keys(slot.topic.name, number).store, 0, -1, withscores=True)
    return dict(found)


@pytest.mark.parametrize("kind", [TopicType.FIXED_TIME, TopicType.PRIORITY])
@pytest.mark.parametrize("settings", [{}, {"ttl": "1m"}])
@pytest.mark.parametrize("state", [SlotState(), QUIET, HELD, SPENT, FULL])
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
    kind: TopicType, settings: dict[str, Any], state: SlotState, settled: dict[str, Any], make_slot: MakeSlot
) -> None:
    alone, joined = make_slot(kind, **settings), make_slot(kind, slots=1, **settings)
    for slot in (alone, joined):
        slot.seed(state)
    expected = alone.run(claims.claim(alone.topic, 0, 10, Outcomes(**settled), owner=OWNER))
    found = joined.run(claims.claim_many([claims.claim(joined.topic, 0, 10, Outcomes(**settled), owner=OWNER)]))
    assert found == [expected]
    assert joined.state() == alone.state()


@pytest.mark.parametrize("owner", [Owner(0, ""), OWNER])
def test_a_brief_call_for_a_quiet_slot_settles_and_no_more(owner: Owner, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(HELD)
    call = claims.claim(slot.topic, 0, 0, owner=owner, outcomes=Outcomes([(b"h", LIVE), (b"a", LIVE)]))
    [reply] = slot.run(claims.claim_many([call], [True]))
    assert isinstance(reply, ClaimReply)
    assert (reply.messages, reply.stale) == ((), (b"a",))
    state = slot.state()
    assert (state.store, state.prepare) == (HELD.store, {b"i": LIVE})
    assert state.totals["acked"] == 1
    assert state.owner.get("epoch", "0") == str(owner.epoch)


@pytest.mark.parametrize("kind", [TopicType.FIXED_TIME, TopicType.PRIORITY])
def test_a_brief_call_says_when_the_first_message_is_due(kind: TopicType, make_slot: MakeSlot) -> None:
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
        call = claims.claim(slot.topic, 0, 0, outcomes=Outcomes([(b"h", LIVE)]))
        [reply] = slot.run(claims.claim_many([call], [True]))
        assert isinstance(reply, ClaimReply)
        assert reply.next_due_ms == expected


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize("name", ["store", "prepare", "retry", "meta", "body"])
def test_a_broken_slot_does_not_hold_up_the_others(broken: int, name: str, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, slots=2, checked=False)
    whole = 1 - broken
    slot.client.zadd(slot_keys(slot.topic.name, whole).store, {b"a": T0 - 1})
    slot.client.set(getattr(slot_keys(slot.topic.name, broken), name), "foreign")
    replies = slot.run(claims.claim_many([claim_at(slot, 0), claim_at(slot, 1)]))
    failed, served = replies[broken], replies[whole]
    assert isinstance(failed, ScriptFailedError)
    assert "WRONGTYPE" in str(failed)
    assert isinstance(served, ClaimReply)
    assert [message.content for message in served.messages] == [b"a"]


def test_a_slot_of_a_newer_owner_is_refused_by_itself(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, slots=2, checked=False)
    slot.client.zadd(slot_keys(slot.topic.name, 0).store, {b"kept": T0 - 1})
    slot.client.zadd(slot_keys(slot.topic.name, 1).store, {b"a": T0 - 1})
    slot.client.hset(slot_keys(slot.topic.name, 0).meta, mapping={"epoch": OWNER.epoch + 1, "ensemble": OWNER.ensemble})
    fenced, served = slot.run(claims.claim_many([claim_at(slot, 0), claim_at(slot, 1)]))
    assert isinstance(fenced, FencedError)
    assert fenced.slot == 0
    assert store(slot, 0) == {b"kept": T0 - 1}
    assert isinstance(served, ClaimReply)
    assert [message.content for message in served.messages] == [b"a"]


def test_a_full_redis_can_be_drained_of_several_slots(make_slot: MakeSlot) -> None:  # pitfall 9
    slot = make_slot(TopicType.FIXED_TIME, slots=2, checked=False)
    for number in (0, 1):
        slot.client.zadd(slot_keys(slot.topic.name, number).store, {b"a%d" % number: T0 - 1})
    call = claims.claim_many([claim_at(slot, 0), claim_at(slot, 1)])
    text = scripts_under_test()["claim_many"]
    slot.client.script_load(text.text)
    slot.run(claims.claim_many([claim_at(slot, 0, 0), claim_at(slot, 1, 0)]))  # loads it with the clock of the tests
    slot.client.config_set("maxmemory", 1)
    try:
        replies = slot.run(call)
    finally:
        slot.client.config_set("maxmemory", 0)
    assert [len(each.messages) for each in replies if isinstance(each, ClaimReply)] == [1, 1]


def test_it_touches_the_declared_keys_alone(make_slot: MakeSlot) -> None:  # pitfall 18
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(FULL)
    call = claims.claim_many([claim_at(slot, 0)])
    text = scripts_under_test()["claim_many"]
    keys = [f"~{key}" for key in call.keys]
    slot.client.execute_command("ACL", "SETUSER", "narrow", "reset", "on", "nopass", *keys, "+@all")
    with slot.as_user("narrow") as client:
        client.script_load(text.text)
        reply: Any = client.evalsha(text.sha, len(call.keys), *call.keys, *call.args)
    assert not isinstance(reply[0], bytes | redis.ResponseError)
