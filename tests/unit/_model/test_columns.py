"""Messages column by column, and the encoders of topics: the same as message by message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import FixedTimeMessage, PriorityMessage, RangeMergeMessage, StreamMessage, Topic, TopicType
from rmq._broker.sends import QueueSends
from rmq._model.batches import Batch, EncodedMessage
from rmq._model.encoding import Encoder
from rmq._model.messages import Message
from rmq.errors import InvalidMessageError

encodeds = st.builds(
    EncodedMessage,
    st.just(3),
    st.binary(min_size=1, max_size=3),
    st.integers(1, 9),
    st.none() | st.binary(max_size=3),
    st.just(()) | st.tuples(st.binary(min_size=1, max_size=2), st.binary(max_size=2)),
)


@given(st.lists(encodeds, min_size=1, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_columns_are_a_sequence_of_what_they_were_made_of(
    messages: list[EncodedMessage], first: int, last: int
) -> None:
    appended = Batch(3)
    for message in messages:
        appended.add(message)
    for columns in (appended, Batch.of(messages)):
        assert list(columns) == messages
        assert [columns[index] for index in range(-len(messages), len(messages))] == [*messages, *messages]
        assert list(columns[first:last]) == messages[first:last]
        assert Batch.of(columns) is columns
        with pytest.raises(IndexError):
            columns[len(messages)]


def plain_args(messages: Sequence[EncodedMessage]) -> list[Any]:
    pairs = [part for message in messages for part in (message.value, message.content)]
    bodies = [(index, message.body) for index, message in enumerate(messages, 1) if message.body is not None]
    return pairs + [part for pair in bodies for part in pair]


@given(st.lists(encodeds, min_size=1, max_size=12))
def test_the_arguments_of_a_send_are_those_of_its_messages(messages: list[EncodedMessage]) -> None:
    topic = Topic("t", TopicType.PRIORITY, ties="any")
    args = QueueSends(topic)(3, messages).args
    assert args == QueueSends(topic)(3, Batch.of(messages)).args
    assert [arg for arg in args if isinstance(arg, bytes)] == [
        arg for arg in plain_args(messages) if isinstance(arg, bytes)
    ]


class Tier(IntEnum):
    GOLD = 40


payloads: st.SearchStrategy[Any] = st.sampled_from(
    ["a", "ä" * 5, b"a", b"x" * 10, b"x" * 11, "", "\ud800", b"\x00rmq:trace\x00", 7, None]
)
values = st.sampled_from(
    [1, 16, 17, 40, Tier.GOLD, 2**20, 2**52, timedelta(seconds=1), datetime.now(UTC) + timedelta(days=1), True, 0.5]
)
VALUES: dict[Any, list[str]] = {
    RangeMergeMessage: ["time_range", "time_range_ms"],
    PriorityMessage: ["priority"],
    FixedTimeMessage: ["fixed_time", "fixed_time_ms", "delay"],
}
TOPICS = [
    Topic("t", kind, slots=64, max_content_bytes=10, max_body_bytes=10, **settings)  # pyright: ignore[reportArgumentType]
    for kind, settings in [
        (TopicType.RANGE_MERGE, {}),
        (TopicType.PRIORITY, {}),
        (TopicType.PRIORITY, {"ties": "any"}),
        (TopicType.FIXED_TIME, {}),
        (TopicType.STREAM, {}),
    ]
]


@given(st.data())
def test_an_encoder_does_the_same_with_plain_messages_as_with_others(data: st.DataObject) -> None:
    topic = data.draw(st.sampled_from(TOPICS))
    kind: Any = data.draw(
        st.sampled_from([RangeMergeMessage, PriorityMessage, FixedTimeMessage, FixedTimeMessage, StreamMessage])
    )
    rest: dict[str, Any] = {"slot_basis": data.draw(st.none() | payloads), "body": data.draw(st.none() | payloads)}
    if kind is StreamMessage:
        message: Message = StreamMessage(data.draw(payloads), **rest)
    else:
        rest |= {"weight": data.draw(st.sampled_from([1, 1, 1, 2])), "version": data.draw(st.sampled_from([None, 3]))}
        rest[data.draw(st.sampled_from(VALUES[kind]))] = data.draw(values)
        try:
            message = kind(data.draw(payloads), **rest)
        except InvalidMessageError:
            return
    assert outcome(Encoder(topic).one, message) == outcome(checked(topic), message)


def checked(topic: Topic) -> Callable[[Message], tuple[Any, ...]]:
    """Return what checks a message in the long way."""
    return Encoder(topic)._checked  # pyright: ignore[reportPrivateUsage]


def outcome(encoder: Callable[[Message], tuple[Any, ...]], message: Message) -> tuple[Any, ...]:
    try:
        return encoder(message)
    except InvalidMessageError as refused:
        return str(refused), refused.topic
