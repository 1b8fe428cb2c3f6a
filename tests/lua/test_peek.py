from __future__ import annotations

from typing import Any

import pytest

from rmq import TopicType
from tests.conftest import MakeSlot
from tests.support.core import viewing
from tests.support.slots import T0, SlotState

SEEDED = SlotState(
    store={b"a": 2**53 - 1, b"b": 50, b"c": 60},
    prepare={b"d": T0 + 1, b"e": T0},
    retry={b"f": T0},
    body={b"a": b"1", b"d": b"2"},
)


@pytest.mark.parametrize(
    ("kind", "place", "start", "limit", "rows"),
    [
        (TopicType.FIXED_TIME, "store", 0, 2, [(b"b", 50, None), (b"c", 60, None)]),
        (TopicType.FIXED_TIME, "store", 2, 2, [(b"a", 2**53 - 1, b"1")]),
        (TopicType.PRIORITY, "store", 0, 2, [(b"a", 2**53 - 1, b"1"), (b"c", 60, None)]),
        (TopicType.PRIORITY, "prepare", 0, 9, [(b"e", T0, None), (b"d", T0 + 1, b"2")]),
        (TopicType.PRIORITY, "retry", 0, 9, [(b"f", T0, None)]),
        (TopicType.PRIORITY, "retry", 1, 9, []),
        (TopicType.PRIORITY, "store", 0, 0, []),
    ],
)
def test_a_page(
    kind: TopicType,
    place: Any,
    start: int,
    limit: int,
    rows: list[tuple[bytes, int, bytes | None]],
    make_slot: MakeSlot,
) -> None:
    slot = make_slot(kind)
    before = slot.seed(SEEDED)
    messages, more = slot.run(viewing.peek(slot.topic, 0, place, start, limit))
    assert [(message.content, message.score, message.body) for message in messages] == rows
    assert (more, {message.now_ms for message in messages} <= {T0}) == (False, True)
    assert slot.state() == before


def test_a_slot_without_bodies(make_slot: MakeSlot) -> None:
    slot = make_slot()
    slot.seed(SlotState(store={b"%d" % number: number + 1 for number in range(1_500)}))
    messages, _ = slot.run(viewing.peek(slot.topic, 0, "store", 100, 1_000))
    assert [message.score for message in messages] == list(range(101, 1_101))
