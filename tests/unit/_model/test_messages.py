from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import FixedTimeMessage, PriorityMessage, RangeMergeMessage, Topic, TopicType
from rmq._model.batches import EncodedMessage
from rmq._model.messages import payload_bytes
from rmq._model.records import TRACE_MARK, wrap
from rmq.errors import InvalidMessageError
from tests.support.core import encode

DAY_MS = 86_400_000
MERGE, PRIORITY, FIXED, _ = (Topic("t", kind, slots=1_024) for kind in TopicType)


class Color(StrEnum):
    RED = "red"


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.none() | st.binary() | st.binary().map(TRACE_MARK.__add__),
    st.none() | st.text("äb"),
)
def test_encoding(content: str, body: bytes | None, basis: str | None) -> None:
    raw = content.encode()
    slot = MERGE.slot_of(raw if basis is None else basis.encode())
    kept = wrap(body, "") if body is not None and body.startswith(TRACE_MARK) else body  # it looks like an envelope
    assert encode(MERGE, RangeMergeMessage(content, time_range_ms=5, slot_basis=basis, body=body)) == EncodedMessage(
        slot, raw, 5, kept
    )
    assert encode(PRIORITY, PriorityMessage(raw, 17, basis, body)) == EncodedMessage(slot, raw, 17, kept)
    assert encode(FIXED, FixedTimeMessage(content, fixed_time_ms=7, slot_basis=basis, body=body)) == EncodedMessage(
        slot, raw, 7, kept
    )


def test_equal_contents_as_text_and_bytes_are_one_content() -> None:
    assert payload_bytes("ä", "content") == payload_bytes("ä".encode(), "content") == "ä".encode()
    assert payload_bytes(Color.RED, "content") == b"red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "content is 7; it must be str or bytes"),
        (None, "content is None; it must be str or bytes"),
        (bytearray(b"a"), "content is bytearray(b'a'); it must be str or bytes"),
        ("\ud800", "cannot be written as UTF-8"),
    ],
)
def test_payloads_are_text_or_bytes(value: Any, text: str) -> None:
    # pitfall 43
    with pytest.raises(InvalidMessageError) as refused:
        payload_bytes(value, "content")
    assert text in str(refused.value)


@pytest.mark.parametrize("priority", [0, -1, 2**53, 1.0, True, "5", None])
def test_priority_bounds(priority: Any) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        PriorityMessage("a", priority)
    rule = "it must be a whole number from 1 to the topic's max_priority, by default 1,048,575"
    assert str(refused.value) == f"priority is {priority!r}; {rule}"


def test_a_priority_lies_above_the_retries_where_equal_ones_go_in_any_order() -> None:
    topic = Topic("t", TopicType.PRIORITY, ties="any")
    with pytest.raises(
        InvalidMessageError, match="priority is 16; on topic t it must be a whole number above max_retries, which is 16"
    ):
        encode(topic, PriorityMessage("a", 16))
    assert encode(topic, PriorityMessage("a", 2**53 - 1)).value == 2**53 - 1
    assert encode(topic.changed(max_retries=0), PriorityMessage("a", 1)).value == 1


def test_a_priority_beside_an_age_has_its_bounds() -> None:
    assert encode(PRIORITY, PriorityMessage("a", 1)).value == 1
    assert encode(PRIORITY, PriorityMessage("a", 2**20 - 1)).value == 2**20 - 1
    with pytest.raises(InvalidMessageError, match=r"priority is 1048576; .* from 1 to max_priority, which is 1048575"):
        encode(PRIORITY, PriorityMessage("a", 2**20))


@pytest.mark.parametrize(
    ("delay", "value"),
    [
        ("0s", -1),
        ("1ms", -1),
        ("5s", -5_000),
        (timedelta(microseconds=1_001), -2),
        (timedelta(days=36_600), -36_600 * DAY_MS),
    ],
)
@pytest.mark.parametrize("body", [None, "body", b"\x00rmq:trace\x00"])
def test_a_delay_is_encoded_below_0(delay: Any, value: int, body: Any) -> None:
    message = FixedTimeMessage("a", delay=delay, body=body)
    assert (message.score_ms(), encode(FIXED, message).value) == (value, value)
    with pytest.raises(InvalidMessageError, match="takes PriorityMessage, not FixedTimeMessage"):
        encode(PRIORITY, message)


@pytest.mark.parametrize("content", ["", b"", "x" * 11, "ä" * 6])
def test_content_bounds(content: Any) -> None:
    # pitfall 43
    topic = MERGE.changed(max_content_bytes=10)
    with pytest.raises(InvalidMessageError, match=r"has \d+ bytes; on topic t it must have 1 to 10"):
        encode(topic, RangeMergeMessage(content, time_range_ms=5))
    assert encode(topic, RangeMergeMessage("ä" * 5, time_range_ms=5)).content == "ä".encode() * 5


def test_body_bounds() -> None:
    # pitfall 43
    topic = MERGE.changed(max_body_bytes=3)
    assert encode(topic, RangeMergeMessage("a", time_range_ms=5, body="abc")).body == b"abc"
    assert encode(topic, RangeMergeMessage("a", time_range_ms=5, body="")).body == b""
    with pytest.raises(InvalidMessageError, match="body of b'a' has 4 bytes; on topic t it must have at most 3"):
        encode(topic, RangeMergeMessage("a", time_range_ms=5, body="abcd"))


@pytest.mark.parametrize("part", ["content", "slot_basis", "body"])
def test_no_part_may_be_of_another_type(part: str) -> None:
    fields: dict[str, Any] = {"content": "a", "time_range_ms": 5, part: 7}
    message = RangeMergeMessage(**fields)
    with pytest.raises(InvalidMessageError, match=f"{part} is 7"):
        encode(MERGE, message)


def test_a_topic_takes_messages_of_its_type_only() -> None:
    with pytest.raises(
        InvalidMessageError, match="topic t is PRIORITY and takes PriorityMessage, not FixedTimeMessage"
    ):
        encode(PRIORITY, FixedTimeMessage("a", fixed_time_ms=5))
    with pytest.raises(InvalidMessageError, match="takes RangeMergeMessage, not str"):
        encode(MERGE, "a")  # pyright: ignore[reportArgumentType]
