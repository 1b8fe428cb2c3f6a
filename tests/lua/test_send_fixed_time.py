from __future__ import annotations

from typing import Any

import pytest

from rmq import SendResult, TopicType, WhenFull
from rmq.errors import FixedTimePassedError
from tests.conftest import MakeSlot
from tests.support.core import EncodedMessage, PartlySent, QueueSends, sends
from tests.support.slots import T0, SlotState, SlotUnderTest, with_hints


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


def parts(slot: SlotUnderTest, *messages: tuple[bytes, int, bytes | None], detailed: bool = False) -> SendResult:
    """Send as `send_many` does."""
    calls = sends.send_calls(slot.topic)
    assert isinstance(calls, QueueSends)
    encoded = [EncodedMessage(0, *message) for message in messages]
    return slot.run(with_hints(calls(0, encoded, detailed, partly="each")))


@pytest.mark.parametrize("detailed", [False, True])
@pytest.mark.parametrize("settings", [{}, {"max_backlog": 3, "when_full": WhenFull.DROP}], ids=["plain", "drops"])
def test_times_that_have_passed_are_refused_by_themselves(
    settings: dict[str, Any], detailed: bool, make_slot: MakeSlot
) -> None:
    slot = make_slot(TopicType.FIXED_TIME, **settings)
    slot.send((b"a", T0 + 50), (b"d", T0 + 90, b"old"))
    rows = [(b"a", T0, b"no"), (b"b", T0 + 7, b"B"), (b"c", 5, None), (b"d", T0 + 8, b"new"), (b"e", T0 - 1, b"no")]
    result = parts(slot, *rows, detailed=detailed)
    assert isinstance(result, PartlySent)
    assert (result.new, result.merged, result.done) == (1, 1, 5)
    assert result.refused == dict.fromkeys((0, 2, 4), "RMQ_PAST")
    assert result.outcomes == ((False, True, False, False, False) if detailed else ())
    state = slot.state()
    assert state.store == {b"a": T0 + 50, b"b": T0 + 7, b"d": T0 + 8}
    assert state.body == {b"b": b"B", b"d": b"new"}
    assert state.totals == {"accepted": 4, "merged": 1}
    assert state.hints == [T0 + 50, T0 + 7]


def test_where_no_time_lies_ahead_nothing_is_stored(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    for rows in ([(b"a", T0, b"x")], [(b"a", T0, None), (b"b", 1, None)]):
        with pytest.raises(FixedTimePassedError):
            parts(slot, *rows)
    assert slot.state() == SlotState()
