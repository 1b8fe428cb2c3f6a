"""What a stored value says of the sends that it stands for, whole or torn."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import Merge, PeekedMessage, Topic, TopicType
from rmq._admin.messages import told
from rmq._model.records import HEAD_BYTES, Record, framed, wanting, wrap, write_record
from rmq._model.times import moment_of

PLAIN = Topic("t", TopicType.PRIORITY)
MERGING = Topic("t", TopicType.PRIORITY, merge=Merge())
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def peeked(stored: bytes | None, topic: Topic = MERGING) -> PeekedMessage:
    body, sends = told(topic, stored)
    return PeekedMessage("t", 0, b"a", body, "store", 50, None, None, **sends)


@pytest.mark.parametrize(
    ("record", "value", "body"),
    [
        (Record(2, 5, 9, 0, "K"), None, None),
        (Record(2, 5, 9, 0, "K", b"="), b"", b""),
        (Record(2, 5, 9, 0, "R", b"=body"), b"body", b"body"),
        (Record(2, 5, 9, 77, "N", b"=" + wrap(b"body", TRACE)), b"body", b"body"),
        (Record(2, 5, 9, 7, "S"), 7, b"7"),
        (Record(2, 5, 9, -0.5, "I"), -0.5, b"-0.5"),
        (Record(2, 5, 9, 0, "X"), 0, b"0"),
        (Record(2, 5, 9, 2, "C", framed([b"a", b"b"])), (b"a", b"b"), None),
        (Record(2, 5, 9, 1, "J", wanting(3) + framed([b"a"])), (b"a",), None),
    ],
)
def test_value_and_body(record: Record, value: Any, body: bytes | None) -> None:
    found = peeked(write_record(record))
    assert (found.value, found.body, found.merged) == (value, body, 2)
    assert (found.first_sent_ms, found.last_sent_ms) == (5, 9)
    assert found.first_sent == datetime(1970, 1, 1, 0, 0, 0, 5_000, UTC)
    assert found.version == (77 if record.kind == "N" else None)
    assert (found.wanted, found.complete) == ((3, False) if record.kind == "J" else (0, True))


def test_a_topic_that_does_not_merge_has_bodies_whatever_they_are() -> None:
    stored = write_record(Record(2, 5, 9, 7, "S"))
    found = peeked(stored, PLAIN)
    assert (found.value, found.body, found.merged, found.number, found.first_sent) == (stored, stored, 1, None, None)


def test_what_is_not_known_is_none() -> None:
    found = peeked(None)
    assert (found.value, found.body, found.merged, found.first_sent, found.last_sent) == (None, None, 1, None, None)
    assert moment_of(0) is moment_of(None) is moment_of(-1) is moment_of(253_402_300_800_000) is None
    assert moment_of(253_402_300_799_999) == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=9), st.data())
def test_a_torn_value_has_the_items_that_are_whole(items: list[bytes], data: st.DataObject) -> None:
    whole = write_record(Record(3, 5, 9, len(items), "C", framed(items)))
    end = data.draw(st.integers(HEAD_BYTES, len(whole)))
    found = peeked(whole[:end])
    assert found.items == tuple(items[: len(found.items)])
    assert end - HEAD_BYTES - sum(4 + len(item) for item in found.items) < 4 + 9
    assert (found.item_count, found.merged) == (len(items), 3)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0, 2.0**70])
def test_numbers_of_no_script(number: float) -> None:
    assert peeked(write_record(Record(2, 5, 9, number, "C"))).item_count == 0
    assert peeked(write_record(Record(2, 5, 9, number, "S"))).body is not None


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"\0rm1" + rest))
def test_no_bytes_raise(stored: bytes) -> None:
    found = peeked(stored)
    assert found.merged >= 1
    assert found.first_sent is None or found.first_sent.tzinfo is UTC
    assert isinstance(found.value, bytes | int | float | tuple)
