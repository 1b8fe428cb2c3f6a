"""How a task folds equal contents: with the result that Redis would have, were the rows sent one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import Topic, TopicType
from rmq._model.batches import Batch, EncodedMessage, Rows
from rmq.spark.sink.holding import HeldRows, held_rows

ROWS = [
    EncodedMessage(0, b"A", 100_000, b"old"),
    EncodedMessage(0, b"B", 7_000, None),
    EncodedMessage(0, b"A", 5_000, b"new"),
    EncodedMessage(1, b"A", 6_000, b"elsewhere"),
]


def taken(held: HeldRows) -> dict[int, list[EncodedMessage]]:
    return {slot: list(rows) for slot, rows in held.take().items()}


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (TopicType.RANGE_MERGE, ROWS[0]._replace(body=b"new")),
        (TopicType.PRIORITY, ROWS[2]),
        (TopicType.FIXED_TIME, ROWS[2]),
    ],
)
def test_the_row_stays_that_redis_would_keep(kind: TopicType, kept: EncodedMessage) -> None:
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
            EncodedMessage,
            st.integers(0, 3),
            st.sampled_from([b"A", b"B", b"C"]),
            st.integers(1, 9),
            BODIES,
            st.just(()),
        )
    )
)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("kind", [TopicType.RANGE_MERGE, TopicType.PRIORITY])
@given(parts=PARTS, bodied=st.booleans())
def test_columns_hold_what_single_rows_would(
    kind: TopicType, fold: bool, parts: list[list[EncodedMessage]], bodied: bool
) -> None:
    held = held_rows(Topic("t", kind, slots=4), fold, 1_000_000, 10_000_000)
    wanted: dict[int, list[EncodedMessage]] = {}
    for part in parts:
        rows = part if bodied else [row._replace(body=None) for row in part]
        held.add(Rows.of(rows) if bodied else without_bodies(Rows.of(rows)))
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


def without_bodies(rows: Rows) -> Rows:
    return Rows(rows.slots, rows.contents, rows.values)


ENTRY = EncodedMessage(1, b"fv", 0, None, (b"f", b"v"))


@pytest.mark.parametrize("rows", [ROWS, [ENTRY, ENTRY], []], ids=["messages", "entries", "none"])
def test_rows_are_the_messages_in_their_order(rows: list[EncodedMessage]) -> None:
    columns = Rows.of(rows)
    assert list(columns) == rows
    assert list(columns[1:3]) == rows[1:3]
    assert columns.without({}) is columns
    assert list(columns.without({0, 2})) == [row for index, row in enumerate(rows) if index not in {0, 2}]
    batches = {slot: Batch(slot) for slot in columns.places}
    for slot, places in columns.places.items():
        batches[slot].extend(columns, places)
    assert [row for batch in batches.values() for row in batch] == sorted(rows, key=lambda row: row.slot)
    assert [batch.size_bytes for batch in batches.values()] == [
        sum(len(row.content) + len(row.body or b"") for row in batch) for batch in batches.values()
    ]
