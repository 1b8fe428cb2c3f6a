"""What a delivery says about the sends that it stands for."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from rmq import Delivery, Merge, Sum, Topic, TopicType, json_merge_patch
from rmq._model.claims import MergedDelivery
from rmq._model.deliveries import value_of
from rmq._model.records import TRACE_MARK, Record, framed, wanting, wrap, write_record
from tests.support.claims import Claimed, claim_of
from tests.unit._model.test_delivery import HolderStub

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def deliver(stored: Record | bytes | None, kind: type[Delivery] = MergedDelivery) -> Delivery:
    body = write_record(stored) if isinstance(stored, Record) else stored
    topic = Topic("t", TopicType.RANGE_MERGE, merge=Merge())
    return claim_of(topic, Claimed(b"a", 1_000, 2_000, body), holder=HolderStub(), kind=kind).delivery(0)


def test_a_topic_without_merge_counts_nothing() -> None:
    delivery = deliver(b"body", Delivery)
    assert (delivery.merged, delivery.value, delivery.items) == (1, b"body", ())
    assert (delivery.first_sent, delivery.last_sent) == (None, None)
    assert (delivery.first_sent_ms, delivery.last_sent_ms) == (None, None)
    assert (delivery.wanted, delivery.complete, delivery.fold(json_merge_patch, {})) == (0, True, {})
    assert delivery.version is None


def test_only_what_keeps_the_newest_has_a_version() -> None:
    assert deliver(Record(2, 1, 1, 77, "N", b"=body")).version == 77
    assert deliver(Record(2, 1, 1, 0, "N", b"=body")).version == 0
    assert deliver(b"a body without a record").version is None
    for number in (math.nan, math.inf, 1.5, -1):  # of no script
        assert deliver(Record(2, 1, 1, number, "N", b"=body")).version is None
    for kind in "KRXISCUJ":
        assert deliver(Record(2, 1, 1, 77, kind)).version is None


def test_how_many_sends_and_when() -> None:
    delivery = deliver(Record(3, 1_000, 61_500, 0, "K", b"=first"))
    assert delivery.merged == 3
    assert (delivery.first_sent_ms, delivery.last_sent_ms) == (1_000, 61_500)
    assert delivery.first_sent == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert delivery.last_sent == datetime(1970, 1, 1, 0, 1, 1, 500_000, tzinfo=UTC)
    assert (delivery.content, delivery.slot, delivery.attempt) == (b"a", 0, 17)


@pytest.mark.parametrize("value", [b"", b"=body", b"=" + wrap(b"body", TRACE), b"\x01\x00\x00\x00a"])
@pytest.mark.parametrize("number", [7, 2.5, -(2.0**60), math.nan, math.inf])
@pytest.mark.parametrize("kind", "KRNXISCUJ?")
def test_a_value_that_is_read_alone_is_that_of_the_record(kind: str, number: float, value: bytes) -> None:
    stored = write_record(Record(1, 1, 1, number, kind, value))
    for each in (stored, stored[:36], b"x" + stored, None):
        alone, whole = deliver(each), deliver(each)
        assert repr(alone.value) == repr(value_of(whole.record, whole.body))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
        assert (alone.trace, alone.body, alone.items) == (whole.trace, whole.body, whole.items)


@pytest.mark.parametrize("kind", "KRN")
@pytest.mark.parametrize(
    ("value", "body", "trace"),
    [
        (b"", None, ""),
        (b"=", b"", ""),
        (b"=text", b"text", ""),
        (b"=" + wrap(b"text", TRACE), b"text", TRACE),
        (b"=" + wrap(None, TRACE), None, TRACE),
        (b"=" + wrap(TRACE_MARK + b"x", ""), TRACE_MARK + b"x", ""),
    ],
)
def test_bodies(kind: str, value: bytes, body: bytes | None, trace: str) -> None:
    delivery = deliver(Record(1, 1, 1, 0, kind, value))
    assert (delivery.body, delivery.value, delivery.trace, delivery.items) == (body, body, trace, ())


@pytest.mark.parametrize("kind", "XIS")
@pytest.mark.parametrize(
    ("number", "value", "text"),
    [(-4.0, -4, b"-4"), (2.5, 2.5, b"2.5"), (2**53 - 1, 2**53 - 1, b"9007199254740991"), (math.inf, math.inf, b"inf")],
)
def test_numbers(kind: str, number: float, value: Any, text: bytes) -> None:
    delivery = deliver(Record(2, 1, 1, number, kind))
    assert (delivery.value, delivery.body, delivery.items, delivery.trace) == (value, text, (), "")
    assert type(delivery.value) is type(value)


def deliver_sums(*stored: Record | bytes | None) -> list[Delivery]:
    """Deliver what is stored on a topic that sums, as one claim."""
    bodies = [write_record(each) if isinstance(each, Record) else each for each in stored]
    rows = [Claimed(b"%d" % row, 1_000, 2_000, body) for row, body in enumerate(bodies)]
    topic = Topic("t", TopicType.RANGE_MERGE, merge=Merge(Sum()))
    return claim_of(topic, *rows, holder=HolderStub(), kind=MergedDelivery).deliveries()


def test_numbers_of_a_claim_are_read_together() -> None:
    numbers = [0.0, -0.0, 1.0, -4.0, 2.5, 2.0**53 - 1, 2.0**53, -(2.0**60), math.inf, math.nan]
    records = [Record(2, 1, 1, number, "XIS"[place % 3]) for place, number in enumerate(numbers)]
    together, alone = deliver_sums(*records), [deliver_sums(record, None)[0] for record in records]
    assert together[0].claim.numbers
    assert not alone[0].claim.numbers
    assert repr([each.value for each in together]) == repr([each.value for each in alone])
    assert [each.body for each in together] == [each.body for each in alone]


@pytest.mark.parametrize("other", [None, b"plain", Record(1, 1, 1, 3, "K", b"=body"), Record(1, 1, 1, 1, "S", b"more")])
def test_where_one_is_no_number_each_is_read_by_itself(other: Record | bytes | None) -> None:
    first, second = deliver_sums(Record(2, 1, 1, 5, "S"), other)
    assert not first.claim.numbers
    assert (first.value, first.body) == (5, b"5")
    assert repr(second.value) == repr(value_of(second.record, second.body))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


@pytest.mark.parametrize("kind", "CU")
def test_items(kind: str) -> None:
    delivery = deliver(Record(2, 1, 1, 2, kind, framed([b'{"a":1}', b'{"b":2,"a":null}'])))
    assert delivery.items == delivery.value == (b'{"a":1}', b'{"b":2,"a":null}')
    assert (delivery.body, delivery.wanted, delivery.complete) == (None, 0, True)
    assert delivery.fold(json_merge_patch) == b'{"b":2}'
    assert delivery.fold(json_merge_patch, {"c": 3}) == {"c": 3, "b": 2}
    assert delivery.fold(lambda total, item: total + len(item), 0) == 23


def test_one_item_and_none() -> None:
    assert deliver(Record(1, 1, 1, 1, "C", framed([b"only"]))).fold(max) == b"only"
    none = deliver(Record(1, 1, 1, 0, "C"))
    assert (none.items, none.fold(max), none.fold(max, b"start")) == ((), None, b"start")


@pytest.mark.parametrize(("parts", "complete"), [([b"a"], False), ([b"a", b"b"], True), ([b"a", b"b", b"c"], True)])
def test_a_join(parts: list[bytes], complete: bool) -> None:
    delivery = deliver(Record(5, 1, 1, len(parts), "J", wanting(2) + framed(parts)))
    assert (delivery.items, delivery.wanted, delivery.complete) == (tuple(parts), 2, complete)


@pytest.mark.parametrize("stored", [None, b"plain", wrap(b"plain", TRACE)])
def test_values_of_those_who_know_no_records(stored: bytes | None) -> None:
    delivery = deliver(stored)
    assert delivery.body == (None if stored is None else b"plain")
    assert (delivery.merged, delivery.first_sent, delivery.last_sent_ms) == (1, None, None)


@pytest.mark.parametrize("time_ms", [0, 2**53])
def test_times_that_are_none(time_ms: int) -> None:
    delivery = deliver(Record(1, time_ms, time_ms, 0, "K"))
    assert (delivery.first_sent, delivery.last_sent) == (None, None)
