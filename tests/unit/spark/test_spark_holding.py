"""How a task folds equal contents: with the result that Redis would have, were the rows sent one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import Topic, TopicType
from rmq._model.messages import Encoded
from rmq.spark.sink.holding import HeldRows, held_rows
from rmq.spark.sink.rows import Rows

ROWS = [
    Encoded(0, b"A", 100_000, b"old"),
    Encoded(0, b"B", 7_000, None),
    Encoded(0, b"A", 5_000, b"new"),
    Encoded(1, b"A", 6_000, b"elsewhere"),
]


def taken(held: HeldRows) -> dict[int, list[Encoded]]:
    return {slot: list(rows) for slot, rows in held.take().items()}


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (TopicType.RANGE_MERGE, ROWS[0]._replace(body=b"new")),
        (TopicType.PRIORITY, ROWS[2]),
        (TopicType.FIXED_TIME, ROWS[2]),
    ],
)
def test_the_row_stays_that_redis_would_keep(kind: TopicType, kept: Encoded) -> None:
    held = held_rows(Topic("t", kind, slots=2), True, 100, 10_000)
    held.add(Rows.of(ROWS[:2]))
    held.add(Rows.of(ROWS[2:]))
    assert (held.number, held.folded) == (3, 1)
    assert taken(held) == {0: [kept, ROWS[1]], 1: [ROWS[3]]}
    assert held.number == 0


def test_unfolded_all_rows_stay_in_their_order() -> None:
    held = held_rows(Topic("t", TopicType.RANGE_MERGE, slots=2), False, 100, 10_000)
    held.add(Rows.of(ROWS))
    assert taken(held) == {0: ROWS[:3], 1: ROWS[3:]}


BODIES = st.one_of(st.none(), st.binary(max_size=3))
PARTS = st.lists(
    st.lists(
        st.builds(
            Encoded, st.integers(0, 3), st.sampled_from([b"A", b"B", b"C"]), st.integers(1, 9), BODIES, st.just(())
        )
    )
)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("kind", [TopicType.RANGE_MERGE, TopicType.PRIORITY])
@given(parts=PARTS, bodied=st.lists(st.booleans(), min_size=1))
def test_columns_hold_what_single_rows_would(
    kind: TopicType, fold: bool, parts: list[list[Encoded]], bodied: list[bool]
) -> None:
    """Some parts have a column of bodies, others none."""
    held = held_rows(Topic("t", kind, slots=4), fold, 1_000_000, 10_000_000)
    wanted: dict[int, list[Encoded]] = {}
    for part, has_bodies in zip(parts, cycle(bodied), strict=False):
        rows = part if has_bodies else [row._replace(body=None) for row in part]
        held.add(Rows.of(rows) if has_bodies else replace(Rows.of(rows), bodies=()))
        for row in rows:
            kept = wanted.setdefault(row.slot, [])
            place = next((n for n, other in enumerate(kept) if fold and other.content == row.content), None)
            if place is None:
                kept.append(row)
            else:
                body = kept[place].body if row.body is None else row.body
                kept[place] = (row if kind is TopicType.PRIORITY else kept[place])._replace(body=body)
    number = sum(map(len, wanted.values()))
    assert (held.number, held.folded) == (number, sum(map(len, parts)) - number)
    assert taken(held) == wanted


ENTRY = Encoded(1, b"fv", 0, None, (b"f", b"v"))


@pytest.mark.parametrize("rows", [ROWS, [ENTRY, ENTRY], []], ids=["messages", "entries", "none"])
def test_rows_are_a_sequence_of_messages(rows: list[Encoded]) -> None:
    columns = Rows.of(rows)
    assert Rows.of(columns) is columns
    assert list(columns) == rows
    assert [columns[index] for index in range(len(rows))] == rows
    assert [columns[index - len(rows)] for index in range(len(rows))] == rows
    assert list(columns[1:3]) == rows[1:3]
    assert columns.without({}) is columns
    assert list(columns.without({0, 2})) == [row for index, row in enumerate(rows) if index not in {0, 2}]
    assert [row for part in columns.by_slot() for row in part] == sorted(rows, key=lambda row: row.slot)
    with pytest.raises(IndexError):
        columns[len(rows)]
