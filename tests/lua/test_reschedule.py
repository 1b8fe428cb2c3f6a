from __future__ import annotations

from dataclasses import replace

import pytest

from rmq import ControlResult, TopicType
from tests.conftest import MakeSlot
from tests.support.slots import T0, SlotState

HELD = T0 * 1000 + 3
DONE, IN_FLIGHT, ABSENT = ControlResult.DONE, ControlResult.IN_FLIGHT, ControlResult.ABSENT
SEEDED = SlotState(
    store={b"stored": T0 + 9, b"twice": T0 + 9, b"resent": T0 + 9},
    prepare={b"held": HELD, b"resent": HELD},
    retry={b"waiting": HELD, b"twice": HELD},
    body={b"waiting": b"1"},
    error={b"waiting": {}},
)


@pytest.mark.parametrize(
    ("kind", "how", "value", "score"),
    [
        (TopicType.RANGE_MERGE, "after", 5_000, T0 + 5_000),
        (TopicType.RANGE_MERGE, "after", 0, T0),
        (TopicType.FIXED_TIME, "at", T0 + 1, T0 + 1),
        (TopicType.FIXED_TIME, "at", 2**53 - 1, 2**53 - 1),  # pitfall 13
        (TopicType.PRIORITY, "priority", 2**53 - 1, 2**53 - 1),
    ],
)
def test_a_new_score_in_store(kind: TopicType, how: str, value: int, score: int, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    before = slot.seed(SEEDED)
    names = b"stored", b"waiting", b"twice", b"held", b"resent", b"absent"
    assert slot.reschedule(how, value, *names) == [DONE, DONE, DONE, IN_FLIGHT, DONE, ABSENT]
    assert slot.state() == replace(
        before,
        store=dict.fromkeys([b"stored", b"waiting", b"twice", b"resent"], score),
        retry={},
        totals={"accepted": 7, "merged": 1},
        hints=[score if kind.timed else 0],
    )
