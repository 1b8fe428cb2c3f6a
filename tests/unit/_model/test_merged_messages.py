"""What the messages of topics with `merge=` carry."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rmq import (
    PER_MESSAGE,
    Collect,
    Fixed,
    FixedTimeMessage,
    InvalidMessageError,
    JoinMessage,
    Keep,
    Max,
    Merge,
    Min,
    Newest,
    PriorityMessage,
    RangeMergeMessage,
    Replace,
    Sliding,
    StreamMessage,
    Sum,
    Topic,
    TopicType,
)
from rmq._model.records import TRACE_MARK, Record, framed, read_record, wanting, wrap
from tests.support.core import encode

WINDOW = Fixed("5s")


def topic(reduce: Any, type: TopicType = TopicType.RANGE_MERGE, **settings: Any) -> Topic:
    window = WINDOW if type is TopicType.RANGE_MERGE else None
    return Topic("t", type, slots=1_024, merge=Merge(reduce, window), **settings)


def joining(most: int = 1_000, window: Any = None) -> Topic:
    window = window or Sliding(max_wait="1h")
    return Topic("t", TopicType.RANGE_MERGE, merge=Merge(Collect(most, unique=True), window, PER_MESSAGE))


def recorded(made: Topic, message: Any) -> Record:
    record = read_record(encode(made, message).body)
    assert record is not None
    assert (record.first_ms, record.last_ms) == (0, 0)
    return record


@pytest.mark.parametrize("reduce", [Keep(), Replace()])
@pytest.mark.parametrize(("body", "value"), [(None, b""), ("", b"="), (b"\xff", b"=\xff"), ("ä", "=ä".encode())])
def test_bodies(reduce: Any, body: Any, value: bytes) -> None:
    kind = "K" if reduce == Keep() else "R"
    assert recorded(topic(reduce), RangeMergeMessage("a", body=body)) == Record(1, 0, 0, 0, kind, value)
    assert recorded(topic(reduce), RangeMergeMessage("a", body=body, weight=2**31)).count == 2**31


@pytest.mark.parametrize("reduce", [Keep(), Replace(), Newest()])
def test_a_body_that_looks_like_an_envelope_comes_in_one(reduce: Any) -> None:
    version = 1 if reduce == Newest() else None
    record = recorded(topic(reduce), RangeMergeMessage("a", body=TRACE_MARK + b"x", version=version))
    assert record.body == wrap(TRACE_MARK + b"x", "")


def test_versions() -> None:
    newest = topic(Newest())
    for version in (0, 2**53 - 1):
        record = recorded(newest, RangeMergeMessage("a", body="b", version=version))
        assert (record.kind, record.number, record.body) == ("N", version, b"b")


@pytest.mark.parametrize(("reduce", "kind"), [(Max(), "X"), (Min(), "I"), (Sum(), "S")])
@pytest.mark.parametrize("body", [0, -3, 2**53 - 1, -(2**53 - 1), 0.5, -1e15])
def test_numbers(reduce: Any, kind: str, body: Any) -> None:
    record = recorded(topic(reduce), RangeMergeMessage("a", body=body))
    assert record == Record(1, 0, 0, body, kind)


def test_a_maximum_may_be_any_finite_number() -> None:
    assert recorded(topic(Max()), RangeMergeMessage("a", body=-1e300)).number == -1e300


def test_items() -> None:
    record = recorded(topic(Collect()), RangeMergeMessage("a", body="ä"))
    assert record == Record(1, 0, 0, 1, "C", framed(["ä".encode()]))
    record = recorded(topic(Collect()), RangeMergeMessage("a", body=("x", TRACE_MARK, b"", "x"), weight=9))
    assert (record.count, record.number, record.items) == (9, 4, (b"x", TRACE_MARK, b"", b"x"))
    record = recorded(topic(Collect(unique=True)), RangeMergeMessage("a", body=["x", b"y", b"x"]))
    assert (record.kind, record.number, record.items) == ("U", 2, (b"x", b"y"))


def test_the_other_types_carry_records_too() -> None:
    sums, newest = topic(Sum(), TopicType.PRIORITY), topic(Newest(), TopicType.FIXED_TIME)
    assert encode(sums, PriorityMessage("a", 7, body=-2, weight=3)).value == 7
    assert recorded(sums, PriorityMessage("a", 7, body=-2, weight=3)) == Record(3, 0, 0, -2, "S")
    assert encode(newest, FixedTimeMessage("a", fixed_time_ms=9, body="b", version=4)).value == 9
    assert recorded(newest, FixedTimeMessage("a", fixed_time_ms=9, body="b", version=4)) == Record(
        1, 0, 0, 4, "N", b"=b"
    )


def test_the_time_range_is_that_of_the_message_or_of_the_window() -> None:
    assert encode(topic(Keep()), RangeMergeMessage("a")).value == 5_000
    assert encode(topic(Keep()), RangeMergeMessage("a", timedelta(seconds=1))).value == 1_000
    assert encode(joining(), JoinMessage("a", "p", 2)).value == 3_600_000
    assert encode(joining(), JoinMessage("a", "p", 2, time_range_ms=0.5)).value == 1


@pytest.mark.parametrize("made", [Topic("t", TopicType.RANGE_MERGE), Topic("t", TopicType.RANGE_MERGE, merge=Merge())])
def test_without_a_window_each_message_names_a_time_range(made: Topic) -> None:
    assert encode(made, RangeMergeMessage("a", time_range_ms=5)).value == 5
    with pytest.raises(InvalidMessageError, match="time_range is None, and topic t has no default window; give"):
        encode(made, RangeMergeMessage("a"))


def test_a_part_of_a_join() -> None:
    made = joining(most=3)
    record = recorded(made, JoinMessage("order:7", "invoice", of=3))
    assert record == Record(1, 0, 0, 1, "J", wanting(3) + framed([b"invoice"]))
    assert (record.wanted, record.items) == (3, (b"invoice",))
    basis = encode(made.changed(max_retries=1), JoinMessage("order:7", "invoice", 1, slot_basis="customer"))
    assert basis.slot == made.slot_of(b"customer")
    assert (basis.content, basis.fields) == (b"order:7", ())


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (lambda: JoinMessage("a", "", 1), "part is ''; it must not be empty"),
        (lambda: JoinMessage("a", b"", 1), "part is b''; it must not be empty"),
        (lambda: JoinMessage("a", "p", 0), "the argument of= is 0; it must be a whole number of 1 or more"),
        (lambda: JoinMessage("a", "p", True), "the argument of= is True; it must be a whole number of 1 or more"),
        (lambda: JoinMessage("a", "p", 1, time_range_ms=0), "time_range_ms is 0; it must be more than 0"),
        (
            lambda: JoinMessage("a", "p", 1, time_range_ms=-1),
            "time_range_ms is -1; it must lie between 0 and 100 years",
        ),
        (lambda: JoinMessage("a", "p", 4), "of= for b'a' is 4; on topic t it must be at most max_items, which is 3"),
        (lambda: JoinMessage("a", 5, 3), "part is 5; it must be str or bytes"),  # type: ignore[arg-type]
        (lambda: JoinMessage("", "p", 3), "content b'' has 0 bytes"),
        (
            lambda: RangeMergeMessage("a", time_range_ms=5, body="p"),
            "topic t joins parts and takes JoinMessage, not RangeMergeMess",
        ),
        (lambda: PriorityMessage("a", 5), "topic t joins parts and takes JoinMessage, not PriorityMessage"),
        (lambda: StreamMessage("a"), "topic t joins parts and takes JoinMessage, not StreamMessage"),
    ],
)
def test_what_a_join_refuses(message: Any, text: str) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        encode(joining(most=3), message())
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "made",
    [
        Topic("t", TopicType.RANGE_MERGE),
        topic(Collect(unique=True)),
        topic(Sum(), TopicType.PRIORITY),
        Topic("t", TopicType.STREAM),
    ],
)
def test_other_topics_refuse_parts(made: Topic) -> None:
    with pytest.raises(InvalidMessageError, match=r"topic t is \w+ and takes \w+, not JoinMessage"):
        encode(made, JoinMessage("a", "p", 2))


@pytest.mark.parametrize(
    ("reduce", "said", "text"),
    [
        (Newest(), {"body": "b"}, "version of b'a' is None; on topic t it must be a whole number from 0 to 2^53 - 1"),
        (Newest(), {"version": -1}, "version of b'a' is -1; on topic t it must be a whole number from 0 to 2^53 - 1"),
        (Newest(), {"version": 2**53}, "version of b'a' is 9007199254740992; on topic t"),
        (Newest(), {"version": True}, "version of b'a' is True; on topic t"),
        (Newest(), {"version": 1.0}, "version of b'a' is 1.0; on topic t"),
        (Newest(), {"version": 1, "body": 5}, "body is 5; it must be str or bytes"),
        (
            Keep(),
            {"version": 1},
            "version of b'a' is 1; topic t takes no version; only topics with merge=Merge(Newest()) take one",
        ),
        (
            Sum(),
            {"version": 0, "body": 1},
            "version of b'a' is 0; topic t takes no version; only topics with merge=Merge(Newest()) ",
        ),
        (Keep(), {"weight": 0}, "weight of b'a' is 0; it must be a whole number from 1 to 2147483648"),
        (Keep(), {"weight": 2**31 + 1}, "weight of b'a' is 2147483649; it must be a whole number from 1 to 2147483648"),
        (Keep(), {"weight": 1.0}, "weight of b'a' is 1.0; it must be a whole number"),
        (Keep(), {"weight": True}, "weight of b'a' is True; it must be a whole number"),
        (Keep(), {"body": 5}, "body is 5; it must be str or bytes"),
        (Replace(), {"body": ("a",)}, "body is ('a',); it must be str or bytes"),
        (Keep(), {"body": b"x" * 101}, "body of b'a' has 101 bytes; on topic t it must have at most 100"),
        (Sum(), {}, "body of b'a' is None; on topic t it must be a number from -(2^53 - 1) to 2^53 - 1"),
        (Sum(), {"body": "5"}, "body of b'a' is '5'; on topic t it must be a number"),
        (Sum(), {"body": True}, "body of b'a' is True; on topic t it must be a number"),
        (Sum(), {"body": 2**53}, "body of b'a' is 9007199254740992; on topic t it must be a number"),
        (Sum(), {"body": 1e300}, "body of b'a' is 1e+300; on topic t it must be a number from -(2^53 - 1) to 2^53"),
        (Sum(), {"body": (1, 2)}, "body of b'a' is (1, 2); on topic t it must be a number"),
        (Max(), {"body": float("nan")}, "body of b'a' is nan; on topic t it must be a number from -(2^53 - 1) to"),
        (Max(), {"body": float("inf")}, "body of b'a' is inf; on topic t it must be a number from"),
        (Min(), {"body": -(2**53)}, "body of b'a' is -9007199254740992; on topic t it must be a number"),
        (Min(), {"body": 10**400}, "on topic t it must be a number"),
        (Collect(), {}, "body of b'a' is None; on topic t, which collects items, it must be an item or"),
        (Collect(), {"body": ()}, "body of b'a' is (); on topic t, which collects items, it must be an item"),
        (Collect(), {"body": ("a", None)}, "body of b'a' is ('a', None); on topic t, which collects items"),
        (Collect(), {"body": ("a", 5)}, "item is 5; it must be str or bytes"),
        (Collect(), {"body": 5}, "item is 5; it must be str or bytes"),
        (
            Collect(2),
            {"body": ("a", "b", "a")},
            "has 3 items, 15 bytes including 4 per item; topic t collects",
        ),
        (
            Collect(max_bytes=10),
            {"body": "1234567"},
            "has 1 item, 11 bytes including 4 per item; topic t coll",
        ),
        (
            Collect(max_bytes=500),
            {"body": "1" * 101},
            "item of b'a' has 101 bytes; on topic t it must have at most 100",
        ),
    ],
)
def test_what_a_topic_that_merges_refuses(reduce: Any, said: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        encode(topic(reduce, max_body_bytes=100), RangeMergeMessage("a", **said))
    assert text in str(refused.value)


def test_bounds_of_a_collect_are_taken_up() -> None:
    made = topic(Collect(2, 10, unique=True))
    assert recorded(made, RangeMergeMessage("a", body=("a", "b", "a"))).number == 2
    assert recorded(made, RangeMergeMessage("a", body="123456")).number == 1


@pytest.mark.parametrize(
    ("type", "message"),
    [
        (TopicType.RANGE_MERGE, RangeMergeMessage("a", time_range_ms=5)),
        (TopicType.PRIORITY, PriorityMessage("a", 5)),
        (TopicType.FIXED_TIME, FixedTimeMessage("a", fixed_time_ms=5)),
    ],
)
@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"weight": 2}, "weight of b'a' is 2, but topic t has no merge=; omit the weight"),
        ({"version": 0}, "version of b'a' is 0, but topic t has no merge=; omit the version"),
        ({"body": 5}, "body is 5; it must be str or bytes"),
        ({"body": ("a",)}, "body is ('a',); it must be str or bytes"),
    ],
)
def test_a_topic_without_merge_takes_nothing_of_it(
    type: TopicType, message: Any, said: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        encode(Topic("t", type), replace(message, **said))
    assert text in str(refused.value)
    assert encode(Topic("t", type), message).body is None


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            RangeMergeMessage("a", time_range_ms=5, version=1),
            "RangeMergeMessage(content='a', time_range_ms=5, slot_basis=None, body=None, version=1, weight=1)",
        ),
        (
            PriorityMessage("a", 5, "b", b"c", weight=2),
            "PriorityMessage(content='a', priority=5, slot_basis='b', body=b'c', version=None, weight=2)",
        ),
        (
            FixedTimeMessage("a", fixed_time_ms=5, body="b"),
            "FixedTimeMessage(content='a', fixed_time_ms=5, slot_basis=None, body='b', delay=None, version=None, "
            "weight=1)",
        ),
    ],
)
def test_messages_are_values(message: Any, text: str) -> None:
    assert repr(message) == text
    assert replace(message) == message == pickle.loads(pickle.dumps(message))
    assert hash(replace(message)) == hash(message)
    assert replace(message, weight=7) != message
    with pytest.raises(AttributeError):
        message.weight = 7
