from __future__ import annotations

from dataclasses import replace

import pytest

from rmq import Owner, TopicType
from rmq.errors import FencedError
from tests.conftest import MakeSlot
from tests.support.core import Nack
from tests.support.slots import T0, SlotState

NOW_S = T0 // 1000
NOW = str(T0)
OLD = {"first_ms": "5", "last_ms": "6", "type": "Old", "message": "old"}


def held(left: int) -> int:
    return T0 * 1000 + left


def failed(first_ms: str = NOW) -> dict[str, str]:
    return {"first_ms": first_ms, "last_ms": NOW, "type": "E", "message": "m"}


def nack(content: bytes, left: int, verb: str = "retry", number: int = 0) -> Nack:
    return Nack(content, held(left), verb, number, "E", "m")


def test_back_to_store_at_once_with_its_retries_left(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(
        SlotState(
            prepare={b"first": held(16), b"later": held(3)}, error={b"later": OLD, b"first": OLD}, body={b"first": b"1"}
        )
    )
    assert slot.nack(nack(b"first", 16), nack(b"later", 3)) == ()
    assert slot.state() == replace(
        before,
        store={b"first": 16, b"later": 3},
        prepare={},
        # a first delivery's failure starts afresh; what failed before it was another message of this content
        error={b"first": failed() | {"again": "1"}, b"later": failed("5")},
        totals={"accepted": 2, "retried": 2, "refailed": 1},
        hints=[0],
    )


@pytest.mark.parametrize(
    ("delay_ms", "due_s"), [(1, NOW_S + 1), (750, NOW_S + 1), (751, NOW_S + 2), (10_000, NOW_S + 11)]
)
def test_to_retry_never_early(delay_ms: int, due_s: int, make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(SlotState(prepare={b"a": held(3)}, body={b"a": b"1"}))
    slot.nack(nack(b"a", 3, "retry", delay_ms))
    assert slot.state() == replace(
        before,
        prepare={},
        retry={b"a": due_s * 1000 + 3},
        error={b"a": failed()},
        totals={"accepted": 1, "retried": 1},
    )


@pytest.mark.parametrize(("left", "after"), [(0, 1), (3, 4), (15, 16), (16, 16)])
def test_one_that_is_spared_comes_later_with_its_retries_and_never_dies(
    left: int, after: int, make_slot: MakeSlot
) -> None:
    slot = make_slot()
    before = slot.seed(SlotState(prepare={b"a": held(left)}, body={b"a": b"1"}))
    slot.nack(nack(b"a", left, "spare", 10_000))
    assert slot.state() == replace(
        before,
        prepare={},
        retry={b"a": (NOW_S + 11) * 1000 + after},
        error={b"a": failed()},
        totals={"accepted": 1, "retried": 1},
    )


@pytest.mark.parametrize(("left", "verb", "attempts"), [(0, "retry", 17), (0, "bury", 17), (16, "bury", 1)])
def test_to_the_dead(left: int, verb: str, attempts: int, make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(SlotState(prepare={b"a": held(left)}, body={b"a": b"1"}, error={b"a": OLD}))
    slot.nack(nack(b"a", left, verb, 500))
    first_ms, reason, again = ("5", {}, {}) if left < 16 else (NOW, {"again": "1"}, {"refailed": 1})
    assert slot.state() == replace(
        before,
        prepare={},
        body={},
        error={},
        dead={b"a": T0},
        reason={b"a": {**failed(first_ms), **reason, "attempts": attempts}},
        dead_body={b"a": b"1"},
        totals={"accepted": 1, "buried": 1, **again},
    )


def test_dying_again_replaces_the_earlier_death(make_slot: MakeSlot) -> None:
    slot = make_slot()
    slot.seed(SlotState(prepare={b"a": held(0)}, dead={b"a": 1}, reason={b"a": OLD}, dead_body={b"a": b"old"}))
    slot.nack(nack(b"a", 0))
    assert slot.state() == SlotState(
        dead={b"a": T0},
        reason={b"a": {**failed(), "attempts": 17}},
        totals={"accepted": 2, "merged": 1, "buried": 1},
    )


@pytest.mark.parametrize("kind", [kind for kind in TopicType if kind is not TopicType.STREAM])
@pytest.mark.parametrize(
    ("left", "verb", "number"), [(3, "retry", 0), (3, "retry", 900), (0, "retry", 0), (0, "spare", 900), (3, "bury", 0)]
)
def test_a_fresh_copy_stands(kind: TopicType, left: int, verb: str, number: int, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    before = slot.seed(
        SlotState(store={b"a": T0 + 9}, prepare={b"a": held(left)}, body={b"a": b"new"}, error={b"a": OLD})
    )
    slot.nack(nack(b"a", left, verb, number))
    exhausted = {"exhausted": 1} if (left, verb) == (0, "retry") or verb == "bury" else {}
    state = slot.state()
    assert replace(state, hints=[]) == replace(
        before, prepare={}, error={b"a": failed("5")}, totals={"accepted": 2, "merged": 1, **exhausted}
    )


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


def test_a_release_uses_up_no_retry(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(
        SlotState(prepare={b"fresh": held(16), b"again": held(2)}, body={b"fresh": b"1"}, error={b"again": OLD})
    )
    slot.nack(nack(b"fresh", 16, "release", T0 - 7), nack(b"again", 2, "release", 3))
    assert slot.state() == replace(
        before, prepare={}, store={b"fresh": T0 - 7, b"again": 3}, totals={"accepted": 2, "released": 2}, hints=[0]
    )


def test_a_release_onto_a_fresh_copy(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(SlotState(store={b"a": T0 + 9}, prepare={b"a": held(2)}, error={b"a": OLD}))
    slot.nack(nack(b"a", 2, "release", 3))
    assert slot.state() == replace(before, prepare={}, totals={"accepted": 2, "merged": 1, "released": 1}, hints=[0])


@pytest.mark.parametrize("verb", ["retry", "spare", "bury", "release"])
def test_a_stale_nack_changes_nothing_and_is_told(verb: str, make_slot: MakeSlot) -> None:
    # pitfall 31
    slot = make_slot()
    before = slot.seed(SlotState(store={b"back": 4}, prepare={b"theirs": held(2)}))
    assert slot.nack(nack(b"theirs", 3, verb, 1), nack(b"back", 3, verb, 1)) == (b"theirs", b"back")
    assert slot.state() == before


def test_priority_behind_every_priority(make_slot: MakeSlot) -> None:
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


def test_1000_at_once_and_the_dead_stay_bounded(make_slot: MakeSlot) -> None:
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


def test_an_older_owner_is_refused(make_slot: MakeSlot) -> None:
    # pitfall 41
    slot = make_slot()
    slot.seed(SlotState(prepare={b"a": held(3)}, owner={"epoch": "7", "ensemble": "zk"}))
    before = slot.dump()
    with pytest.raises(FencedError):
        slot.nack(nack(b"a", 3), owner=Owner(6, "zk"))
    assert slot.dump() == before
    assert slot.nack(nack(b"a", 3), owner=Owner(8, "zk")) == ()
    assert slot.state().owner == {"epoch": "8", "ensemble": "zk"}
