"""A thousand contents in a call, and numbers of 16 digits: no command gets too many, and nothing is rounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rmq import ControlResult, Redriven, TopicType
from rmq.errors import FixedTimePassedError
from tests.conftest import MakeSlot
from tests.lua.cases import FAILURE
from tests.support.core import ExtendReply
from tests.support.slots import T0, SlotState, SlotUnderTest

NAMES = [b"%d" % number for number in range(1_000)]
DONE = [ControlResult.DONE] * 1_000
LATEST = 2**53 - 1
HELD = {name: (T0 - number) * 1_000 + 999 for number, name in enumerate(NAMES)}
DEAD = SlotState(dead={name: T0 + number for number, name in enumerate(NAMES)}, reason=dict.fromkeys(NAMES, FAILURE))

Act = Callable[[SlotUnderTest], object]

CALLS: dict[str, tuple[SlotState, Act, object, SlotState]] = {
    "reschedule": (
        SlotState(retry=HELD),
        lambda slot: slot.reschedule("at", LATEST, *NAMES),
        DONE,
        SlotState(store=dict.fromkeys(NAMES, LATEST), hints=[LATEST]),
    ),
    "redrive": (
        DEAD,
        lambda slot: slot.redrive("at", LATEST, *NAMES),
        [Redriven.DONE] * 1_000,
        SlotState(store=dict.fromkeys(NAMES, LATEST), totals={"redriven": 1_000}, hints=[LATEST]),
    ),
    "acks of a thousand claims": (
        SlotState(prepare=HELD),
        lambda slot: slot.ack(*HELD.items()),
        (),
        SlotState(totals={"acked": 1_000}),
    ),
    "renewals of a thousand claims": (
        SlotState(prepare=HELD),
        lambda slot: slot.extend(*HELD.items()),
        ExtendReply(T0, ((T0 + 1) * 1_000 + 999,) * 1_000),
        SlotState(prepare=dict.fromkeys(NAMES, (T0 + 1) * 1_000 + 999)),
    ),
}
"""What a slot holds, what is done, the answer, and what the slot holds then: its totals without `accepted`."""


@pytest.mark.parametrize("case", CALLS)
def test_1000_at_once(case: str, make_slot: MakeSlot) -> None:
    # pitfalls 12, 13
    seeded, act, answer, after = CALLS[case]
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(seeded)
    assert act(slot) == answer
    assert slot.state() == replace(after, totals={"accepted": 1_000, **after.totals})


@pytest.mark.parametrize(
    ("kind", "now_ms", "sent", "scores"),
    [
        (TopicType.PRIORITY, T0, (LATEST, LATEST - 1, 1_780_000_000_123_457), None),
        (TopicType.FIXED_TIME, T0, (LATEST, 1_790_000_000_123_456), None),
        (TopicType.FIXED_TIME, T0, (-3_162_240_000_001,), (T0 + 3_162_240_000_001,)),  # a delay
        (TopicType.RANGE_MERGE, LATEST - 9, (1, 9), (LATEST - 8, LATEST)),
    ],
)
def test_scores_are_exact(
    kind: TopicType, now_ms: int, sent: tuple[int, ...], scores: tuple[int, ...] | None, make_slot: MakeSlot
) -> None:
    # pitfall 13
    slot = make_slot(kind)
    slot.set_clock(now_ms)
    slot.send(*zip(NAMES, sent, strict=False))
    state = slot.state()
    assert tuple(state.store.values()) == tuple(sorted(scores or sent))
    assert state.hints == [min(scores or sent) if kind.timed else 0]


@pytest.mark.parametrize(
    "act",
    [
        lambda slot: slot.send((b"b", T0 + 50), (b"c", T0)),
        lambda slot: slot.reschedule("at", T0, b"a"),
        lambda slot: slot.redrive("at", T0, b"dead"),
    ],
    ids=["send", "reschedule", "redrive"],
)
def test_a_time_that_does_not_lie_ahead_is_refused(act: Act, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    before = slot.seed(SlotState(store={b"a": T0 + 9}, dead={b"dead": T0 - 3}, reason={b"dead": {}}))
    with pytest.raises(FixedTimePassedError, match=f"fixed_time {T0} is in the past.* {T0} ms"):
        act(slot)
    assert slot.state() == before
