"""Records: their bytes, and how two of them fold."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq._model.records import (
    MARK,
    MAX_WHOLE,
    TRACE_MARK,
    Record,
    fold,
    framed,
    read_record,
    traced,
    unwrap,
    wanting,
    wrap,
    write_record,
)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

bodies = st.none() | st.binary(max_size=20)
items = st.lists(st.sampled_from([b"", b"a", b"bb", b"\x01\x00\x00\x00", b"a\x00"]), min_size=1, max_size=5)
small = st.integers(-(2**20), 2**20)


@st.composite
def records(draw: st.DrawFn, kind: str, wanted: int = 0) -> Record:
    number, value = 0, b""
    if kind in "KRN":
        body = draw(bodies)
        value = b"" if body is None else b"=" + body
        number = draw(st.integers(0, 3)) if kind == "N" else 0
    elif kind in "XIS":
        number = draw(small)
    else:
        found = draw(items) if kind == "C" else list(dict.fromkeys(draw(items)))
        number, value = len(found), (wanting(draw(st.integers(1, 9))) if kind == "J" else b"") + framed(found)
    first = draw(st.integers(0, 5))
    last = first + draw(st.integers(0, 5)) if first else 0
    return Record(draw(st.integers(1, 2**31)), first, last, number, kind, value)


of_one_kind = st.sampled_from("KRNXISCUJ").flatmap(lambda kind: st.lists(records(kind), min_size=3, max_size=3))


def test_the_bytes_of_a_record() -> None:
    stored = write_record(Record(3, 1_000, 2_000, 7, "N", b"=body"))
    assert stored == b"\x00rm1" + struct.pack("<dddd", 3, 1_000, 2_000, 7) + b"N" + b"=body"
    assert len(write_record(Record(1, 0, 0, -2.5, "S"))) == 37


@given(of_one_kind)
def test_to_bytes_and_back(some: list[Record]) -> None:
    for record in some:
        assert read_record(write_record(record)) == record


@given(of_one_kind)
def test_folding_is_associative_and_loses_no_send(some: list[Record]) -> None:
    a, b, c = some
    folded = fold(fold(a, b), c)
    assert folded == fold(a, fold(b, c))
    assert folded.count == a.count + b.count + c.count
    assert folded.first_ms == min((each.first_ms for each in some if each.first_ms), default=0)
    assert folded.last_ms == max(each.last_ms for each in some)


@given(of_one_kind)
def test_what_a_fold_keeps(some: list[Record]) -> None:
    folded = fold(fold(some[0], some[1]), some[2])
    numbers = [record.number for record in some]
    everything = [item for record in some for item in record.items]
    match folded.kind:
        case "K":
            assert folded.body == some[0].body
        case "R":
            bodies = [record.body for record in some if record.body is not None]
            assert folded.body == (bodies[-1] if bodies else None)
        case "N":
            newest = max(numbers)
            assert folded.number == newest
            assert folded.body == [record.body for record in some if record.number == newest][-1]
        case "X" | "I" | "S":
            assert folded.number == {"X": max, "I": min, "S": sum}[folded.kind](numbers)
            assert folded.value == b""
        case "C":
            assert list(folded.items) == everything
        case _:
            assert list(folded.items) == list(dict.fromkeys(everything))
            assert folded.wanted == some[2].wanted
    if folded.kind in "CUJ":
        assert folded.number == len(folded.items)


@given(st.lists(st.integers(-(2**40), 2**40), min_size=2, max_size=50))
def test_sums_of_whole_numbers_are_exact(numbers: list[int]) -> None:
    total = Record(1, 0, 0, numbers[0], "S")
    for number in numbers[1:]:
        total = fold(total, Record(1, 0, 0, number, "S"))
    assert total.number == sum(numbers)
    assert type(total.number) is int


def test_sums_of_flights_beyond_the_range_become_the_nearest_double() -> None:
    most = Record(1, 0, 0, MAX_WHOLE, "S")
    assert fold(most, replace(most, number=2)).number == float(2**53)
    assert fold(replace(most, number=1.5), replace(most, number=2)).number == 3.5


def test_where_kinds_differ_the_newer_value_stands() -> None:
    older, newer = Record(2, 5, 9, 3, "S"), Record(1, 0, 0, 0, "K", b"=x")
    assert fold(older, newer) == Record(3, 5, 9, 0, "K", b"=x")
    assert fold(newer, older) == Record(3, 5, 9, 3, "S")


@given(st.binary(max_size=80), st.booleans())
def test_garbage_is_read_without_an_error(tail: bytes, marked: bool) -> None:
    stored = MARK + tail if marked else tail
    record = read_record(stored)
    assert record is not None
    assert record.count >= 1
    assert (record.first_ms >= 0, record.last_ms >= 0, record.wanted >= 0) == (True, True, True)
    assert record.items is not None
    for other in (Record(1, 0, 0, 1, record.kind), Record(1, 0, 0, 1, "C", framed([b"a"]))):
        assert fold(record, other).count == record.count + 1
        assert write_record(fold(other, record)).startswith(MARK)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0])
def test_counts_and_times_of_no_script(number: float) -> None:
    stored = MARK + struct.pack("<dddd", number, number, number, number) + b"J" + struct.pack("<d", number)
    record = read_record(stored)
    assert record is not None
    assert (record.count, record.first_ms, record.last_ms, record.wanted, record.items) == (1, 0, 0, 0, ())


def test_a_value_without_the_mark_is_a_body() -> None:
    assert read_record(None) == Record(1, 0, 0, 0, "K")
    for stored in (b"", b"plain", MARK, MARK + b"short", wrap(b"a", TRACE)):
        record = read_record(stored)
        assert record is not None
        assert record == Record(1, 0, 0, 0, "K", b"=" + stored)
        assert record.body == stored


def test_torn_frames_end_the_items() -> None:
    value = framed([b"one", b"two"])
    assert Record(1, 0, 0, 2, "C", value[:-1]).items == (b"one",)
    assert Record(1, 0, 0, 2, "C", value + b"\xff\xff\xff\xff").items == (b"one", b"two")


def test_only_their_own_kinds_have_bodies_items_and_parts() -> None:
    value = wanting(3) + framed([b"a"])
    assert Record(1, 0, 0, 1, "J", value).wanted == 3
    assert Record(1, 0, 0, 1, "J", value).items == (b"a",)
    assert (Record(1, 0, 0, 1, "C", value).wanted, Record(1, 0, 0, 1, "K", value).items) == (0, ())
    assert (Record(1, 0, 0, 1, "J", value).body, Record(1, 0, 0, 1, "S", b"=x").body) == (None, None)
    assert (Record(1, 0, 0, 0, "K").body, Record(1, 0, 0, 0, "K", b"=").body) == (None, b"")


@pytest.mark.parametrize("kind", "KRN")
@pytest.mark.parametrize("body", [None, b"", b"text", TRACE_MARK + b"like an envelope"])
def test_a_trace_context_goes_before_the_body(kind: str, body: bytes | None) -> None:
    kept = wrap(body, "") if body is not None and body.startswith(TRACE_MARK) else body
    stored = write_record(Record(2, 0, 0, 0, kind, b"" if kept is None else b"=" + kept))
    record = read_record(traced(stored, TRACE))
    assert record is not None
    assert unwrap(record.body) == (body, TRACE)
    assert (record.count, record.kind) == (2, kind)
    assert traced(traced(stored, "other"), TRACE) == traced(stored, TRACE)


@pytest.mark.parametrize("kind", "XISCUJ")
def test_numbers_and_items_have_no_trace_context(kind: str) -> None:
    stored = write_record(Record(1, 0, 0, 1, kind, framed([b"a"])))
    assert traced(stored, TRACE) == stored
