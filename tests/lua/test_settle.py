"""Settlements of queues: acks, nacks and whole claims, on each type of topic and by each call that carries them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rmq import Owner, TopicType
from rmq.errors import FencedError, RmqError
from tests.conftest import MakeSlot
from tests.support.core import ALL_SETTLED, Nack, Outcomes, SettleReply, claims, slot_keys
from tests.support.one_slot import claim_slot, settle_slot
from tests.support.slots import T0, SlotState, SlotUnderTest, with_hints

QUEUES = [kind for kind in TopicType if kind is not TopicType.STREAM]
NOW, NOW_S = str(T0), T0 // 1000
OLD = {"first_ms": "5", "last_ms": "6", "type": "Old", "message": "old"}


def held(left: int) -> int:
    return T0 * 1000 + left


def failed(first_ms: str = NOW, **more: object) -> dict[str, Any]:
    return {"first_ms": first_ms, "last_ms": NOW, "type": "E", "message": "m", **more}


def nack(content: bytes, left: int, verb: str = "retry", number: int = 0) -> Nack:
    return Nack(content, held(left), verb, number, "E", "m")


MINE, OTHER = held(16), held(15)


@dataclass(frozen=True)
class Case:
    """A slot, what is settled there, the reply, and what of the slot is another then: its totals without `accepted`."""

    before: SlotState
    outcomes: Outcomes
    changes: dict[str, Any]
    reply: SettleReply = ALL_SETTLED


def nacked(before: SlotState, *nacks: Nack, stale: tuple[bytes, ...] = (), **changes: Any) -> Case:
    return Case(before, Outcomes(nacks=nacks), changes, SettleReply(stale))


FAILED = SlotState(prepare={b"a": held(3)}, body={b"a": b"1"})
BESIDE = SlotState(store={b"a": T0 + 9}, prepare={b"a": held(2)}, error={b"a": OLD})
THEIRS = SlotState(store={b"back": 4}, prepare={b"theirs": held(2)})
CASES: dict[str, Case] = {
    "what is acked is gone, with body and failure": Case(
        SlotState(
            prepare={b"a": MINE, b"b": MINE, b"c": OTHER}, body={b"a": b"1", b"c": b"3"}, error={b"a": OLD, b"c": OLD}
        ),
        Outcomes([(b"a", MINE), (b"b", MINE)]),
        {"prepare": {b"c": OTHER}, "body": {b"c": b"3"}, "error": {b"c": OLD}, "totals": {"acked": 2}},
    ),
    "a stale ack changes nothing": Case(  # pitfall 31
        SlotState(prepare={b"theirs": OTHER, b"mine": MINE}, body={b"theirs": b"1"}),
        Outcomes([(b"theirs", MINE), (b"mine", MINE), (b"gone", MINE), (b"mine", OTHER)]),
        {"prepare": {b"theirs": OTHER}, "totals": {"acked": 1}},
        SettleReply((b"theirs", b"gone", b"mine")),
    ),
    "an ack leaves the body of a fresh copy": Case(  # pitfall 34
        SlotState(store={b"a": T0 + 9}, prepare={b"a": MINE, b"b": MINE}, body={b"a": b"1", b"b": b"2"}),
        Outcomes([(b"a", MINE), (b"b", MINE)]),
        {"prepare": {}, "body": {b"a": b"1"}, "totals": {"acked": 2}},
    ),
    "a whole claim is acked without names": Case(
        SlotState(prepare={b"a": MINE, b"b": MINE, b"c": OTHER}),
        Outcomes(whole=[(MINE, 2)]),
        {"prepare": {b"c": OTHER}, "totals": {"acked": 2}},
    ),
    "a claim of which something is gone is not acked as a whole": Case(
        SlotState(prepare={b"a": MINE, b"b": MINE, b"c": OTHER}),
        Outcomes(whole=[(MINE, 3), (OTHER, 1)]),
        {"prepare": {b"a": MINE, b"b": MINE}, "totals": {"acked": 1}},
        SettleReply(unmatched=(MINE,)),
    ),
    "with bodies no claim is acked as a whole": Case(
        FAILED, Outcomes(whole=[(held(3), 1)]), {}, SettleReply(unmatched=(held(3),))
    ),
    "with failures no claim is acked as a whole": Case(
        SlotState(prepare={b"a": MINE}, error={b"a": OLD}),
        Outcomes(whole=[(MINE, 1)]),
        {},
        SettleReply(unmatched=(MINE,)),
    ),
    "nacks, acks and whole claims in one call": Case(
        SlotState(prepare={b"a": MINE, b"b": OTHER, b"c": held(3)}),
        Outcomes([(b"a", MINE)], [nack(b"c", 3), nack(b"b", 16)], [(OTHER, 1), (MINE, 1)]),
        {
            "store": {b"c": 3},
            "prepare": {},
            "error": {b"c": failed()},
            "totals": {"acked": 2, "retried": 1},
            "hints": [0],
        },
        SettleReply((b"b",), (MINE,)),
    ),
    "a nack puts back at once, with the retries left": nacked(
        SlotState(
            prepare={b"first": held(16), b"later": held(3)}, error={b"later": OLD, b"first": OLD}, body={b"first": b"1"}
        ),
        nack(b"first", 16),
        nack(b"later", 3),
        store={b"first": 16, b"later": 3},
        prepare={},
        # a first delivery's failure starts afresh; what failed before it was another message of this content
        error={b"first": failed(again="1"), b"later": failed("5")},
        totals={"retried": 2, "refailed": 1},
        hints=[0],
    ),
    **{
        f"a retry in {delay_ms} ms is never early": nacked(
            FAILED,
            nack(b"a", 3, "retry", delay_ms),
            prepare={},
            retry={b"a": due_s * 1000 + 3},
            error={b"a": failed()},
            totals={"retried": 1},
        )
        for delay_ms, due_s in ((1, NOW_S + 1), (750, NOW_S + 1), (751, NOW_S + 2), (10_000, NOW_S + 11))
    },
    **{
        f"what is spared with {left} retries left has {after}": nacked(
            SlotState(prepare={b"a": held(left)}, body={b"a": b"1"}),
            nack(b"a", left, "spare", 10_000),
            prepare={},
            retry={b"a": (NOW_S + 11) * 1000 + after},
            error={b"a": failed()},
            totals={"retried": 1},
        )
        for left, after in ((0, 1), (3, 4), (15, 16), (16, 16))
    },
    **{
        f"a {verb} with {left} retries left ends among the dead": nacked(
            SlotState(prepare={b"a": held(left)}, body={b"a": b"1"}, error={b"a": OLD}),
            nack(b"a", left, verb, 500),
            prepare={},
            body={},
            error={},
            dead={b"a": T0},
            reason={b"a": failed("5", attempts=17) if left < 16 else failed(again="1", attempts=1)},
            dead_body={b"a": b"1"},
            totals={"buried": 1, **({} if left < 16 else {"refailed": 1})},
        )
        for left, verb in ((0, "retry"), (0, "bury"), (16, "bury"))
    },
    "another death replaces the earlier one": nacked(
        SlotState(prepare={b"a": held(0)}, dead={b"a": 1}, reason={b"a": OLD}, dead_body={b"a": b"old"}),
        nack(b"a", 0),
        prepare={},
        dead={b"a": T0},
        reason={b"a": failed(attempts=17)},
        dead_body={},
        totals={"merged": 1, "buried": 1},
    ),
    **{
        f"a fresh copy stands beside a {verb} in {number} ms with {left} left": nacked(
            replace(BESIDE, prepare={b"a": held(left)}, body={b"a": b"new"}),
            nack(b"a", left, verb, number),
            prepare={},
            error={b"a": failed("5")},
            totals={"merged": 1, **({"exhausted": 1} if verb == "bury" or (left, verb) == (0, "retry") else {})},
            hints=[0] if (left, verb, number) == (3, "retry", 0) else [],
        )
        for left, verb, number in (
            (3, "retry", 0),
            (3, "retry", 900),
            (0, "retry", 0),
            (0, "spare", 900),
            (3, "bury", 0),
        )
    },
    "a release uses up no retry": nacked(
        SlotState(prepare={b"fresh": held(16), b"again": held(2)}, body={b"fresh": b"1"}, error={b"again": OLD}),
        nack(b"fresh", 16, "release", T0 - 7),
        nack(b"again", 2, "release", 3),
        prepare={},
        store={b"fresh": T0 - 7, b"again": 3},
        totals={"released": 2},
        hints=[0],
    ),
    "a release beside a fresh copy": nacked(
        BESIDE, nack(b"a", 2, "release", 3), prepare={}, totals={"merged": 1, "released": 1}, hints=[0]
    ),
    **{
        f"a stale {verb} changes nothing": nacked(  # pitfall 31
            THEIRS, nack(b"theirs", 3, verb, 1), nack(b"back", 3, verb, 1), stale=(b"theirs", b"back")
        )
        for verb in ("retry", "spare", "bury", "release")
    },
    "16-digit claim scores are compared exactly": Case(  # pitfall 13
        SlotState(prepare={b"a": MINE}), Outcomes([(b"a", MINE - 1)]), {}, SettleReply((b"a",))
    ),
}


def alone(slot: SlotUnderTest, outcomes: Outcomes, owner: Owner) -> SettleReply:
    return slot.run(with_hints(settle_slot(slot.topic, 0, outcomes, owner)))


def in_several(slot: SlotUnderTest, outcomes: Outcomes, owner: Owner) -> SettleReply:
    """Settle beside a part of another slot before it, and one behind it that is stale."""
    settle = claims.settlements(slot.topic)
    parts = [settle(1, Outcomes()), settle(0, outcomes, owner), settle(1, Outcomes([(b"x", 1)], [Nack(b"y", 1)]))]
    first, reply, last = slot.run(with_hints(settle.joined(parts)))
    assert (first, last) == (ALL_SETTLED, SettleReply((b"y", b"x")))
    assert not slot.client.exists(slot_keys(slot.topic.name, 1).meta)
    if isinstance(reply, RmqError):
        raise reply
    return reply


def with_a_claim(slot: SlotUnderTest, outcomes: Outcomes, owner: Owner) -> SettleReply:
    reply = slot.run(with_hints(claim_slot(slot.topic, 0, 0, outcomes, owner=owner)))
    return SettleReply(reply.stale, reply.unmatched)


def renewed(slot: SlotUnderTest, outcomes: Outcomes, owner: Owner) -> SettleReply:
    del outcomes  # the lease is renewed instead
    assert slot.extend((b"a", MINE), owner=owner).claim_scores == (MINE + 1_000,)
    return ALL_SETTLED


Carrier = Callable[[SlotUnderTest, Outcomes, Owner], SettleReply]
CARRIERS: list[Carrier] = [alone, in_several, with_a_claim]


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", QUEUES)
def test_what_becomes_of_a_slot(kind: TopicType, case: str, carrier: Carrier, make_slot: MakeSlot) -> None:
    slot, row = make_slot(kind), CASES[case]
    before = slot.seed(row.before)
    assert carrier(slot, row.outcomes, claims.NO_OWNER) == row.reply
    totals = before.totals | row.changes.get("totals", {})
    assert slot.state() == replace(before, **(row.changes | {"totals": totals}))


@pytest.mark.parametrize("carrier", [*CARRIERS, renewed])
@pytest.mark.parametrize("outcomes", [Outcomes([(b"a", MINE)]), Outcomes(nacks=[Nack(b"a", MINE)])])
def test_an_older_owner_is_refused(outcomes: Outcomes, carrier: Carrier, make_slot: MakeSlot) -> None:
    # pitfall 41
    slot = make_slot()
    slot.seed(SlotState(prepare={b"a": MINE}, owner={"epoch": "7", "ensemble": "zk"}))
    before = slot.dump()
    with pytest.raises(FencedError):
        carrier(slot, outcomes, Owner(6, "zk"))
    assert slot.dump() == before
    assert carrier(slot, outcomes, Owner(8, "zk")) == ALL_SETTLED
    assert slot.state().owner == {"epoch": "8", "ensemble": "zk"}


def test_several_slots_share_what_a_call_may_move(make_slot: MakeSlot) -> None:
    """The nacks of a slot that are left as they are can be sent again: those before have used up the bytes."""
    slot = make_slot(checked=False)
    large = b"x" * 3_000_000
    settle = claims.settlements(slot.topic)
    for number in (0, 1):
        keys = slot_keys(slot.topic.name, number)
        for name in (b"a", b"b"):
            slot.client.zadd(keys.prepare, {name: held(3)})
            slot.client.hset(keys.body, name, large)
    parts = [settle(number, Outcomes(nacks=[nack(b"a", 3, "bury"), nack(b"b", 3, "bury")])) for number in (0, 1)]
    assert slot.run(settle.joined(parts)) == [ALL_SETTLED, SettleReply(left=2)]
    assert slot.run(settle.joined(parts[1:])) == [ALL_SETTLED]


def test_2500_acks_at_once_some_stale(make_slot: MakeSlot) -> None:
    # pitfall 12
    slot = make_slot()
    prepare = {b"%d" % number: OTHER if number % 1_000 == 7 else MINE for number in range(2_500)}
    slot.seed(SlotState(prepare=prepare, body=dict.fromkeys(prepare, b"1")))
    assert slot.ack(*((name, MINE) for name in prepare)) == (b"7", b"1007", b"2007")
    state = slot.state()
    assert set(state.prepare) == set(state.body) == {b"7", b"1007", b"2007"}


def test_1000_nacks_at_once_and_the_dead_stay_bounded(make_slot: MakeSlot) -> None:
    # pitfall 12, 36
    slot = make_slot(max_dead=300)
    slot.seed(SlotState(prepare={b"%d" % number: held(0) for number in range(1_000)}))
    slot.nack(*(nack(b"%d" % number, 0) for number in range(1_000)))
    state = slot.state()
    assert len(state.dead) == len(state.reason) == 750
    assert state.totals == {"accepted": 1_000, "buried": 1_000, "trimmed": 250}
    for _ in range(2):
        slot.claim()
    assert len(slot.state().dead) == 300


@pytest.mark.parametrize(("verb", "sent_first"), [("retry", True), ("bury", True), ("retry", False)])
def test_a_content_that_fails_and_is_sent_again_is_counted_until_its_ack(
    verb: str, sent_first: bool, make_slot: MakeSlot
) -> None:
    """Each send has all its retries, so that it never dies. It is sent before its failure, or while it waits."""
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 100))
    for number in range(4):
        [message] = slot.claim(1).messages
        assert message.claim_score % 1000 == 16
        if sent_first:
            slot.send((b"a", 100))
        slot.nack(Nack(b"a", message.claim_score, verb, 60_000, "E", "m"))
        if not sent_first:
            slot.send((b"a", 100))
        assert slot.state().error[b"a"].get("again") == (str(number) if number else None)
        assert slot.state().totals.get("refailed", 0) == number
    [message] = slot.claim(1).messages
    slot.ack((b"a", message.claim_score))
    assert slot.state().error == {}
    assert (slot.state().dead, slot.state().totals["refailed"]) == ({}, 3)


def test_a_retry_stands_behind_every_priority(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 10**6), (b"b", 17))
    claimed = slot.claim(1).messages[0]
    slot.nack(Nack(claimed.content, claimed.claim_score))
    assert [m.content for m in slot.claim().messages] == [b"b", b"a"]


def test_errors_of_any_text(make_slot: MakeSlot) -> None:
    slot = make_slot()
    slot.seed(SlotState(prepare={b"a": held(0)}))
    text = 'ü "quoted" \\ \x00 \n 🚀'
    slot.nack(Nack(b"a", held(0), "retry", 0, "E", text))
    assert slot.state().reason[b"a"]["message"] == text
