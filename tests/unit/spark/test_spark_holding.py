"""How a task folds equal contents: with the result that Redis would have, were the rows sent one by one."""

from __future__ import annotations

import pytest

from rmq import Topic, TopicType
from rmq._model.messages import Encoded
from rmq.spark.sink.holding import held_rows

ROWS = [
    Encoded(0, b"A", 100_000, b"old"),
    Encoded(0, b"B", 7_000, None),
    Encoded(0, b"A", 5_000, b"new"),
    Encoded(1, b"A", 6_000, b"elsewhere"),
]


@pytest.mark.parametrize(
    ("kind", "kept"),
    [(TopicType.RANGE_MERGE, ROWS[0]), (TopicType.PRIORITY, ROWS[2]), (TopicType.FIXED_TIME, ROWS[2])],
)
def test_the_row_stays_that_redis_would_keep(kind: TopicType, kept: Encoded) -> None:
    held = held_rows(Topic("t", kind, slots=2), fold=True)
    held.add(ROWS[:2])
    held.add(ROWS[2:])
    assert (held.number, held.folded) == (3, 1)
    assert held.take() == {0: [kept, ROWS[1]], 1: [ROWS[3]]}
    assert held.number == 0


def test_unfolded_all_rows_stay_in_their_order() -> None:
    held = held_rows(Topic("t", TopicType.RANGE_MERGE, slots=2), fold=False)
    held.add(ROWS)
    assert held.take() == {0: ROWS[:3], 1: ROWS[3:]}
