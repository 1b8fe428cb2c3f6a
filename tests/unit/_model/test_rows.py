"""Columns to send: the same rows, and the same refusals, as of messages one by one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import (
    PER_MESSAGE,
    Collect,
    Fixed,
    FixedTimeMessage,
    Merge,
    Newest,
    PriorityMessage,
    RangeMergeMessage,
    StreamMessage,
    Sum,
    Topic,
    TopicType,
)
from rmq._model.batches import EncodedMessage
from rmq._model.encoding import Encoder
from rmq._model.times import number_ms
from rmq.errors import InvalidBatchError, InvalidMessageError, InvalidValueError
from tests.support.core import encode

WINDOW = Merge(Sum(), window=Fixed("1s"))


def topic_of(kind: TopicType, **settings: Any) -> Topic:
    return Topic("t", kind, slots=64, max_content_bytes=10, max_body_bytes=10, **settings)


MERGE, PRIORITY, FIXED, STREAM = (topic_of(kind) for kind in TopicType)
TOPICS = [MERGE, PRIORITY, topic_of(TopicType.PRIORITY, ties="any"), FIXED, STREAM]
NAMES = {
    TopicType.RANGE_MERGE: "time_range", TopicType.PRIORITY: "priorities", TopicType.FIXED_TIME: "fixed_times",
}  # fmt: skip


def _delayed(content: Any, value: Any, basis: Any, body: Any) -> Any:
    """In columns, numbers are ms."""
    if isinstance(value, int | float):
        try:
            value = timedelta(milliseconds=number_ms(value, "delay"))
        except InvalidValueError as error:
            raise InvalidMessageError(str(error)) from None
    return FixedTimeMessage(content, None, basis, body, delay=value)


def _timed(kind: Any, name: str, content: Any, value: Any, basis: Any, body: Any) -> Any:
    """In columns, numbers are ms."""
    if isinstance(value, int | float):
        return kind(content, None, basis, body, **{name: value})
    return kind(content, value, basis, body)


KINDS: dict[TopicType, Callable[..., Any]] = {
    TopicType.RANGE_MERGE: partial(_timed, RangeMergeMessage, "time_range_ms"),
    TopicType.PRIORITY: PriorityMessage,
    TopicType.FIXED_TIME: partial(_timed, FixedTimeMessage, "fixed_time_ms"),
    TopicType.STREAM: lambda content, value, basis, body: StreamMessage(content, basis, body),
}

texts = st.sampled_from(["a", "ä" * 5, "b", "c\x00"])
odd: st.SearchStrategy[Any] = st.sampled_from(["", "x" * 11, b"x" * 11, "\ud800", 7, None, b"\x00rmq:trace\x00"])
wholes = st.sampled_from([17, 40, 2**19])
odd_values: st.SearchStrategy[Any] = st.sampled_from(
    [0, -1, 2**60, True, 0.5, None, "x", timedelta(seconds=1), datetime.now(UTC) + timedelta(days=1)]
)


ANY_TOPIC = "; it must be a whole number from 1 to the topic's max_priority, by default 1,048,575"
THIS_TOPIC = "; on topic t it must be a whole number "
"""What a message says of a priority, and what columns say, which know their topic."""


def mostly(usual: st.SearchStrategy[Any], rare: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Columns of usual values, all text or all bytes, or with a few odd ones."""
    return st.one_of(
        st.lists(usual, min_size=6, max_size=6),
        st.lists(usual.map(lambda each: each.encode() if isinstance(each, str) else each), min_size=6, max_size=6),
        st.lists(st.one_of(usual, usual, usual, rare), min_size=6, max_size=6),
    )


@given(st.data(), st.sampled_from(TOPICS), st.integers(0, 6), st.booleans())
def test_rows_are_the_messages_that_they_stand_for(
    data: st.DataObject, topic: Topic, number: int, delays: bool
) -> None:
    delays = delays and topic is FIXED
    make = _delayed if delays else KINDS[topic.type]
    contents = data.draw(mostly(texts, odd))[:number]
    bodies = data.draw(st.none() | mostly(st.none() | texts, odd))
    bases = data.draw(st.none() | mostly(st.none() | texts, odd))
    value = data.draw(mostly(wholes, odd_values) | (st.nothing() if topic.type.timed else wholes))
    bodies, bases = (None if column is None else column[:number] for column in (bodies, bases))
    values: list[Any] = value[:number] if isinstance(value, list) else [value] * number
    given_: dict[str, Any] = {}
    if topic.type in NAMES:
        given_["delays" if delays else NAMES[topic.type]] = value[:number] if isinstance(value, list) else value
    expected: list[EncodedMessage] = []
    refusal = ""
    for index in range(number):
        basis, body = bases[index] if bases else None, bodies[index] if bodies else None
        try:
            expected.append(encode(topic, make(contents[index], values[index], basis, body)))
        except InvalidMessageError as error:
            refusal = f"row {index} of send_columns: {str(error).replace(ANY_TOPIC, THIS_TOPIC)}"
            break
    if refusal:
        with pytest.raises(InvalidBatchError) as refused:
            Encoder(topic).columns(contents, given_, bodies, bases)
        told = str(refused.value)
        assert told.startswith(refusal) if THIS_TOPIC in refusal else told == refusal
        assert (refused.value.stored, refused.value.not_stored, refused.value.topic) == (0, (), "t")
    else:
        rows = Encoder(topic).columns(tuple(contents), given_, bodies, bases)
        assert len(rows) == number
        assert list(rows) == expected


def test_plain_columns_are_looked_at_as_a_whole() -> None:
    """No object for each row: else there would be a column of fields."""
    for contents in (["a", "b"], [b"a", b"b"], pa.array(["a", "b"]), pa.chunked_array([["a"], ["b"]])):
        for priorities in (5, [4, 5], pa.array([4, 5])):
            rows = Encoder(PRIORITY).columns(
                contents, {"priorities": priorities}, bodies=[None, "x"], slot_bases=["k", None]
            )
            assert not rows.fields
            assert (list(rows.contents), list(rows.values)) == ([b"a", b"b"], [5, 5] if priorities == 5 else [4, 5])
            assert (rows.bodies, rows.slots) == ([None, b"x"], [PRIORITY.slot_of(b"k"), PRIORITY.slot_of(b"b")])


def test_one_time_for_all_rows_has_a_unit() -> None:
    assert list(Encoder(MERGE).columns(["a", "b"], {"time_range": "5s"}).values) == [5_000, 5_000]
    moment = datetime(2060, 1, 1, tzinfo=UTC)
    assert list(Encoder(FIXED).columns(["a"], {"fixed_times": moment}).values) == [int(moment.timestamp()) * 1000]
    with pytest.raises(InvalidValueError, match=r"time_range is 5: is it '5ms' or '5s'\?"):
        Encoder(MERGE).columns(["a", "b"], {"time_range": 5})
    with pytest.raises(InvalidValueError, match="fixed_times is 5; it must be an aware datetime"):
        Encoder(FIXED).columns(["a"], {"fixed_times": 5})
    assert list(Encoder(FIXED).columns(["a", "b"], {"delays": timedelta(seconds=5)}).values) == [-5_000, -5_000]
    assert list(Encoder(FIXED).columns(["a", "b"], {"delays": "0s"}).values) == [-1, -1]
    with pytest.raises(InvalidValueError, match=r"delays is 5: is it '5ms' or '5s'\?"):
        Encoder(FIXED).columns(["a", "b"], {"delays": 5})


def test_columns_of_a_topic_that_merges_are_what_its_reducer_takes() -> None:
    topic = topic_of(TopicType.RANGE_MERGE, merge=WINDOW)
    rows = Encoder(topic).columns(["a", "b"], {}, bodies=[1, 2.5])
    assert list(rows) == [encode(topic, RangeMergeMessage(c, body=n)) for c, n in (("a", 1), ("b", 2.5))]
    with pytest.raises(InvalidBatchError, match="row 1 of send_columns: "):
        Encoder(topic).columns(["a", "b"], {}, bodies=[1, "x"])


@pytest.mark.parametrize(
    ("topic", "columns", "says"),
    [
        (PRIORITY, {"contents": "abc"}, "contents is 'abc'; it must be a list, a tuple or an Arrow array"),
        (PRIORITY, {"contents": iter(["a"])}, "it must be a list, a tuple or an Arrow array"),
        (PRIORITY, {"values": {}}, "priorities is None; topic t is PRIORITY and needs it"),
        (
            PRIORITY,
            {"values": {"priorities": [5]}},
            "priorities has 1 value and contents has 2; they must have the same length",
        ),
        (PRIORITY, {"values": {"priorities": [5, 0]}}, "priority is 0; on topic t it must be a whole number from 1 to"),
        (PRIORITY, {"bodies": ["x"]}, "bodies has 1 value and contents has 2"),
        (PRIORITY, {"slot_bases": ["x"] * 3}, "slot_bases has 3 values and contents has 2"),
        (PRIORITY, {"bodies": {"a": 1}}, "bodies is {'a': 1}; it must be a list"),
        (PRIORITY, {"values": {"priorities": {5}}}, "priorities is {5}; it must be a list, a tuple or an Arrow array"),
        (FIXED, {}, "priorities is 5; topic t is FIXED_TIME and takes either fixed_times or delays"),
        (
            FIXED,
            {"values": {"fixed_times": [9, 9], "delays": "5s"}},
            "delays is '5s'; topic t is FIXED_TIME and takes either fixed_times or delays",
        ),
        (FIXED, {"values": {}}, "fixed_times is None and delays is None; topic t is FIXED_TIME and needs one of them"),
        (
            FIXED,
            {"values": {"delays": [5, -1]}},
            "row 1 of send_columns: delay is -1; it must lie between 0 and 100 years",
        ),
        (
            FIXED,
            {"values": {"delays": [5, True]}},
            "row 1 of send_columns: delay is True; it must be a number of milliseconds",
        ),
        (FIXED, {"values": {"delays": [5, float("nan")]}}, "row 1 of send_columns: delay is nan; it must be finite"),
        (FIXED, {"values": {"delays": [5, 2**53]}}, f"row 1 of send_columns: delay is {2**53}; it must lie between 0"),
        (FIXED, {"values": {"delays": [5, None]}}, "row 1 of send_columns: fixed_time and delay are None"),
        (
            FIXED,
            {"values": {"fixed_times": [-5, 5]}},
            "row 0 of send_columns: fixed_time_ms is -5; epoch milliseconds must",
        ),
        (
            PRIORITY,
            {"values": {"priorities": 5, "delays": "5s"}},
            "delays is '5s'; topic t is PRIORITY and takes priorities",
        ),
        (MERGE, {"values": {"delays": "5s"}}, "delays is '5s'; topic t is RANGE_MERGE and takes time_range"),
        (STREAM, {}, "priorities is 5; topic t is STREAM and takes no such column"),
        (
            topic_of(TopicType.PRIORITY, merge=Merge(Newest())),
            {},
            "topic t merges by Newest and needs a version, for which there is no column; use send_many",
        ),
        (
            topic_of(
                TopicType.RANGE_MERGE, merge=Merge(Collect(unique=True), window=Fixed("9ms"), max_count=PER_MESSAGE)
            ),
            {"values": {}},
            "topic t takes JoinMessage, for which there is no column; use send_many",
        ),
    ],
)
def test_what_is_no_column_of_the_topic_is_refused(topic: Topic, columns: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"contents": ["a", "b"], "values": {"priorities": 5}, **columns}
    with pytest.raises(InvalidValueError) as refused:
        Encoder(topic).columns(**arguments)
    assert says in str(refused.value)
