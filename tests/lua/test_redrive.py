from __future__ import annotations

from dataclasses import replace

import pytest

from rmq import Redriven, TopicType
from tests.conftest import MakeSlot
from tests.support.slots import T0, SlotState

DONE, MERGED, ABSENT = Redriven.DONE, Redriven.MERGED, Redriven.ABSENT
DEAD = {b"young": T0 - 1, b"old": T0 - 3, b"middle": T0 - 2}
SEEDED = SlotState(dead=DEAD, reason={key: {} for key in DEAD}, dead_body={b"old": b"1"})


@pytest.mark.parametrize(
    ("kind", "how", "value", "score"),
    [
        (TopicType.RANGE_MERGE, "after", 0, T0),
        (TopicType.FIXED_TIME, "at", T0 + 9, T0 + 9),
        (TopicType.PRIORITY, "priority", 2**53 - 1, 2**53 - 1),  # pitfall 13
    ],
)
def test_the_longest_dead_first_with_their_bodies(
    kind: TopicType, how: str, value: int, score: int, make_slot: MakeSlot
) -> None:
    # pitfall 28
    slot = make_slot(kind)
    before = slot.seed(SEEDED)
    assert slot.redrive(how, value, limit=2) == [DONE, DONE]
    assert slot.state() == replace(
        before,
        store={b"old": score, b"middle": score},
        dead={b"young": T0 - 1},
        reason={b"young": {}},
        body={b"old": b"1"},
        dead_body={},
        totals={"accepted": 3, "redriven": 2},
        hints=[score if kind.timed else 0],
    )


def test_named_ones(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(SEEDED)
    assert slot.redrive("after", 5, b"middle", b"absent", b"middle") == [DONE, ABSENT, ABSENT]
    assert slot.state() == replace(
        before,
        store={b"middle": T0 + 5},
        dead={b"young": T0 - 1, b"old": T0 - 3},
        reason={b"young": {}, b"old": {}},
        totals={"accepted": 3, "redriven": 1},
        hints=[T0 + 5],
    )


def test_named_ones_only_if_they_died_when_they_were_seen(make_slot: MakeSlot) -> None:
    # pitfall 31
    slot = make_slot()
    before = slot.seed(SEEDED)
    died_ms = [T0 - 3, T0 - 4, T0 - 2]
    assert slot.redrive("after", 5, b"old", b"young", b"absent", died_ms=died_ms) == [DONE, ABSENT, ABSENT]
    assert slot.state() == replace(
        before,
        store={b"old": T0 + 5},
        dead={b"young": T0 - 1, b"middle": T0 - 2},
        reason={b"young": {}, b"middle": {}},
        body={b"old": b"1"},
        dead_body={},
        totals={"accepted": 3, "redriven": 1},
        hints=[T0 + 5],
    )


@pytest.mark.parametrize("overwrite", [False, True])
def test_onto_a_fresh_copy_whose_body_is_newer(overwrite: bool, make_slot: MakeSlot) -> None:
    slot = make_slot()
    fresh, only_trace = (b"a", b"b", b"c", b"d"), b"\x00rmq:trace\x0000-1\x000"
    slot.seed(
        SlotState(
            store=dict.fromkeys(fresh, T0 + 9),
            dead=dict.fromkeys(fresh, 1),
            reason={name: {} for name in fresh},
            body={b"a": b"fresh", b"b": b"fresh", b"d": only_trace},
            dead_body={b"a": b"dead", b"c": b"dead", b"d": b"dead"},
        )
    )
    assert slot.redrive("after", 5, overwrite=overwrite) == [MERGED] * 4
    assert slot.state() == SlotState(
        store=dict.fromkeys(fresh, T0 + 5 if overwrite else T0 + 9),
        body={b"a": b"fresh", b"b": b"fresh"} | ({b"c": b"dead", b"d": b"dead"} if overwrite else {b"d": only_trace}),
        totals={"accepted": 8, "merged": 4},
        hints=[T0 + 5],
    )


def test_a_redriven_one_has_all_its_retries(make_slot: MakeSlot) -> None:
    slot = make_slot(max_retries=3)
    slot.seed(SEEDED)
    slot.redrive("after", 0)
    assert {m.claim_score % 1000 for m in slot.claim().messages} == {3}


def test_beside_a_delivery_in_flight_it_waits(make_slot: MakeSlot) -> None:
    # pitfall 34
    slot = make_slot()
    slot.seed(SlotState(prepare={b"a": slot.claim_score(1)}, dead={b"a": 1}))
    assert slot.redrive("after", 0) == [DONE]
    assert slot.claim().messages == ()
    slot.ack((b"a", slot.claim_score(1)))
    assert len(slot.claim().messages) == 1


@pytest.mark.parametrize("names", [[], [b"absent"]])
def test_nothing_to_do(names: list[bytes], make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(SEEDED if names else SlotState())
    assert slot.redrive("after", 0, *names) == [ABSENT] * len(names)
    assert slot.state() == before
