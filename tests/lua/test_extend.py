from __future__ import annotations

from dataclasses import replace

from tests.conftest import MakeSlot
from tests.support.core import ExtendReply
from tests.support.slots import T0, SlotState

NOW_S = T0 // 1000


def held(left: int, ago_s: int = 0, later: int = 0) -> int:
    return (T0 - ago_s * 1000 + later) * 1000 + left


def test_the_lease_counts_from_now_with_the_same_retries(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(SlotState(prepare={b"a": held(3, 50), b"b": held(16), b"c": held(2, 5)}, body={b"a": b"1"}))
    assert slot.extend((b"a", held(3, 50)), (b"b", held(16))) == ExtendReply(T0, (held(3, later=1), held(16, later=1)))
    assert slot.state() == replace(before, prepare={b"a": held(3, later=1), b"b": held(16, later=1), b"c": held(2, 5)})


def test_a_stale_one_changes_nothing_and_is_told(make_slot: MakeSlot) -> None:
    # pitfall 31
    slot = make_slot()
    before = slot.seed(SlotState(store={b"back": 3}, prepare={b"theirs": held(2, 5), b"mine": held(3, 5)}))
    claims = (b"theirs", held(3, 50)), (b"back", held(3, 50)), (b"mine", held(3, 5)), (b"gone", 1)
    assert slot.extend(*claims).claim_scores == (None, None, held(3), None)
    assert slot.state() == replace(before, prepare={b"theirs": held(2, 5), b"mine": held(3)})


def test_an_extended_lease_is_not_swept(make_slot: MakeSlot) -> None:
    slot = make_slot()
    slot.send((b"a", 1))
    slot.advance(1_000)
    claimed = slot.claim().messages[0]
    slot.advance(60_000)
    token = slot.extend((b"a", claimed.claim_score)).claim_scores[0]
    slot.advance(60_000)
    assert slot.claim().messages == ()
    assert slot.ack((b"a", token or 0)) == ()
