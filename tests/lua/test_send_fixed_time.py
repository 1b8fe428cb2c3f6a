from __future__ import annotations

import pytest

from rmq import TopicType
from rmq.errors import FixedTimePassedError
from tests.conftest import MakeSlot
from tests.support.slots import T0, SlotState


def test_the_last_send_decides(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.send((b"a", T0 + 50, b"first"), (b"b", T0 + 60))
    assert slot.send((b"a", T0 + 70), (b"b", T0 + 1)).merged == 2
    assert slot.state() == SlotState(
        store={b"a": T0 + 70, b"b": T0 + 1},
        body={b"a": b"first"},
        totals={"accepted": 4, "merged": 2},
        hints=[T0 + 50, T0 + 1],
    )


@pytest.mark.parametrize("late_ms", [0, 1, 10**9])
def test_a_time_that_does_not_lie_ahead_refuses_the_batch(late_ms: int, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    with pytest.raises(FixedTimePassedError, match=f"fixed_time {T0 - late_ms} is in the past.* {T0} ms"):
        slot.send((b"a", T0 + 50), (b"b", T0 - late_ms))
    assert slot.state() == SlotState()


def test_the_largest_time_is_exact(make_slot: MakeSlot) -> None:
    # pitfall 13
    slot = make_slot(TopicType.FIXED_TIME)
    slot.send((b"a", 2**53 - 1), (b"b", 1_790_000_000_123_456))
    assert slot.state().store == {b"a": 2**53 - 1, b"b": 1_790_000_000_123_456}
