"""What a task folds before it sends leaves in Redis what its rows leave that are sent one by one. Needs no JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from rmq import (
    PER_MESSAGE,
    Collect,
    Fixed,
    Keep,
    Leading,
    Max,
    Merge,
    Min,
    Newest,
    Overflow,
    PriorityRule,
    Replace,
    Sliding,
    Sum,
    Topic,
    TopicType,
)
from rmq.spark.marks import Mark, send_once
from rmq.spark.options import parse_options
from rmq.spark.sink.columns import layout_of
from rmq.spark.sink.encoding import encode_rows
from rmq.spark.sink.holding import held_rows, in_order
from rmq.spark.sink.sender import HELD_BYTES, cut
from tests.support.core import EncodedMessage, Reducer, Rows, sends, slot_keys
from tests.support.servers import RedisServer
from tests.support.slots import T0, SlotState, SlotUnderTest, read_state

pytestmark = pytest.mark.slow

WIDE = Collect(max_items=100_000, max_bytes=1_048_576)
WIDE_SET = replace(WIDE, max_items=5_000, unique=True)
DROPS = [Collect(max_items=3, when_full=full) for full in (Overflow.DROP_OLDEST, Overflow.DROP_NEWEST)]
BODIES = (Keep, Replace, Newest)

bodies = st.none() | st.binary(max_size=5) | st.just(b"\x00rm1")
parts = st.binary(min_size=1, max_size=3)
exact = st.integers(-(2**40), 2**40) | st.integers(-(2**20), 2**20).map(lambda number: number / 1024)
REDUCERS = (
    *(None, Keep(), Replace(), Newest(), Max(), Min(), Sum()),
    *(WIDE, WIDE_SET, *DROPS),
)
windows = st.sampled_from(
    [None, Fixed("500ms"), Sliding("500ms", max_wait="1s500ms"), Leading("500ms"), Leading("500ms", False)]
)
EXAMPLES = many if (many := settings().max_examples) > 100 else 40
"""Of each of 33 pairs of a reducer and a type."""
JOIN = Merge(WIDE_SET, Sliding("500ms", max_wait="1s500ms"), PER_MESSAGE)


class Write(NamedTuple):
    """Rows of a task, how many it holds back at most, and how many go into a call."""

    kind: TopicType
    merge: Merge | None
    rows: list[dict[str, Any]]
    hold: int
    chunk: int


@st.composite
def writes(draw: st.DrawFn, reducer: Reducer | None, kind: TopicType) -> Write:
    priority = draw(st.sampled_from(list(PriorityRule))) if kind is TopicType.PRIORITY else PriorityRule.LAST
    merge = None if reducer is None else Merge(reducer, priority=priority)
    if reducer is not None and kind is TopicType.RANGE_MERGE:
        merge = Merge(reducer, draw(windows), draw(st.sampled_from([None, None, 3, 5])))
        if isinstance(reducer, Collect) and reducer.unique:
            merge = draw(st.sampled_from([merge, JOIN]))
    row = {"content": st.sampled_from([b"a", b"b"])} | _due(kind)
    if merge is None or isinstance(merge.reduce, BODIES):
        row["body"] = bodies
    elif merge.joins:
        row |= {"part": parts, "of": st.integers(2, 4)}
    elif isinstance(merge.reduce, Collect):
        row["items"] = st.lists(parts, min_size=1, max_size=3)
    else:
        row["value"] = exact.map(float)
    if merge is not None:
        row["weight"] = st.integers(1, 5)
        row |= {"version": st.integers(0, 3)} if isinstance(merge.reduce, Newest) else {}
    rows = draw(st.lists(st.fixed_dictionaries(row), min_size=2, max_size=12))
    return Write(kind, merge, rows, draw(st.sampled_from([2, 5, 100])), draw(st.sampled_from([1, 2, 100])))


def _due(kind: TopicType) -> dict[str, st.SearchStrategy[Any]]:
    if kind is TopicType.RANGE_MERGE:
        return {"time_range": st.integers(1, 3_000)}
    if kind is TopicType.PRIORITY:
        return {"priority": st.integers(1_000, 9_000)}
    return {"fixed_time": st.integers(T0 + 1, T0 + 3_000)}


@pytest.fixture(scope="module")
def slot(spark_server: RedisServer) -> Iterator[SlotUnderTest]:
    slot = SlotUnderTest(f"{spark_server.url}?db=3", Topic("folded", TopicType.RANGE_MERGE))
    yield slot
    slot.client.flushdb()
    slot.close()


def encoded(topic: Topic, rows: Sequence[dict[str, Any]]) -> Rows:
    """Return rows as the sink makes messages of them."""
    batch = pa.RecordBatch.from_pylist(list(rows), schema=_schema(rows[0]))
    layout = layout_of(
        from_arrow_schema(batch.schema), topic, parse_options({"url": "redis://any", "topic": topic.name})
    )
    found, bad = encode_rows(layout, batch)
    assert not bad
    return found


def _schema(row: dict[str, Any]) -> Any:
    kinds = {"body": pa.binary(), "content": pa.binary(), "part": pa.binary(), "items": pa.list_(pa.binary())}
    return pa.schema([(name, kinds.get(name, pa.float64() if name == "value" else pa.int64())) for name in row])


def folded_calls(topic: Topic, write: Write) -> Iterator[list[EncodedMessage]]:
    """Yield the messages of each call, as a task cuts them."""
    held = held_rows(topic, True, write.hold, HELD_BYTES)
    rows = encoded(topic, write.rows)
    while held.number or len(rows):
        taken = held.add(rows)
        rows = rows[taken:]
        if not taken:
            for found in held.take().values():
                for ordered in in_order(topic, found):
                    yield from map(list, cut(ordered, write.chunk))


def left_by(slot: SlotUnderTest, topic: Topic, send: Callable[[], None]) -> SlotState:
    """Return what sends leave in an empty slot."""
    slot.client.flushdb()
    slot.set_clock(T0)
    send()
    return read_state(slot.client, slot_keys(topic.name, 0), topic.merge is not None)


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", [TopicType.RANGE_MERGE, TopicType.FIXED_TIME, TopicType.PRIORITY])
@pytest.mark.parametrize("reducer", REDUCERS, ids=repr)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_rows_that_a_task_folds_leave_what_rows_leave_that_are_sent_one_by_one(
    data: st.DataObject, reducer: Reducer | None, kind: TopicType, slot: SlotUnderTest
) -> None:
    write = data.draw(writes(reducer, kind))
    topic = Topic("folded", write.kind, merge=write.merge)

    def one_by_one() -> None:
        send = sends.send_calls(topic)
        for message in encoded(topic, write.rows):
            slot.run(send(0, [message]))

    def folded() -> None:
        calls = list(folded_calls(topic, write))
        for number, messages in [*enumerate(calls), *enumerate(calls)]:  # the task is run again
            mark = Mark("query", 1, 0, 60).of(number, messages, topic.merge is not None)
            slot.run(send_once(topic, 0, messages, mark))

    expected, found = left_by(slot, topic, one_by_one), left_by(slot, topic, folded)
    if topic.merge is None:  # what is folded in a task is not counted: Redis does not hear of it
        expected, found = replace(expected, totals={}), replace(found, totals={})
    assert replace(found, hints=[]) == replace(expected, hints=[])
    if topic.merge is not None:
        assert found.totals["accepted"] == sum(row["weight"] for row in write.rows)


def test_every_row_of_a_content_is_in_one_message_where_nothing_parts_them() -> None:
    """The property above holds for rows that nothing folds, too: they are folded."""
    for reducer in (Keep(), Replace(), Max(), Min(), Sum(), WIDE, WIDE_SET):
        topic = Topic("folded", TopicType.PRIORITY, merge=Merge(reducer))
        name = {"K": "body", "R": "body", "C": "items", "U": "items"}.get(topic.merge.kind if topic.merge else "")
        values: dict[str | None, Any] = {"body": b"x", "items": [b"x"], None: 2.0}
        row = {"content": b"a", "priority": 5_000, name or "value": values[name], "weight": 3}
        write = Write(topic.type, topic.merge, [row, {**row, "content": b"b"}] * 4, 100, 100)
        [messages] = folded_calls(topic, write)
        assert [content for content, _ in groupby(messages, lambda each: each.content)] == [b"a", b"b"]
        assert len(messages) == 2
