from __future__ import annotations

import pytest

from rmq import SendResult, TopicType, WhenFull
from tests.conftest import MakeSlot
from tests.support.core import EncodedMessage, sends
from tests.support.slots import T0, SlotState, SlotUnderTest, with_hints


def send(slot: SlotUnderTest, *messages: tuple[bytes, int], body: bytes | None = None) -> SendResult:
    encoded = [EncodedMessage(0, content, delay_ms, body) for content, delay_ms in messages]
    return slot.run(with_hints(sends.send_calls(slot.topic, delayed=True)(0, encoded)))


@pytest.mark.parametrize("options", [{}, {"max_backlog": 9, "when_full": WhenFull.DROP}])
def test_delays_count_from_now_and_the_last_send_decides(make_slot: MakeSlot, options: dict[str, object]) -> None:
    slot = make_slot(TopicType.FIXED_TIME, **options)
    assert send(slot, (b"a", 50), (b"b", 60), (b"c", 60)).new == 3
    assert send(slot, (b"a", 70), (b"b", 1), body=b"last").merged == 2
    assert slot.state() == SlotState(
        store={b"a": T0 + 70, b"b": T0 + 1, b"c": T0 + 60},
        body={b"a": b"last", b"b": b"last"},
        totals={"accepted": 5, "merged": 2},
        hints=[T0 + 50, T0 + 1],
    )


def test_a_delay_is_exact(make_slot: MakeSlot) -> None:
    # pitfall 13
    slot = make_slot(TopicType.FIXED_TIME)
    send(slot, (b"a", 3_162_240_000_001))
    assert slot.state().store == {b"a": T0 + 3_162_240_000_001}
