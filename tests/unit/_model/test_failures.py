"""What is kept of a failure, whoever wrote it: one that cannot be read hides only itself."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import Failure, HandlerTimes, ListenerInfo, Minute, RunningHandler, Topic, TopicType, WorkerInfo
from rmq._admin.calls.dead import dead_message
from rmq._admin.messages import read_failure
from rmq._model.schema import SCHEMA_VERSION
from rmq._transport.call import Call
from rmq._transport.refusals import unreadable
from rmq.errors import InvalidValueError, ScriptFailedError, UnreadableDocumentError

TOPIC = Topic("t", TopicType.FIXED_TIME)
UNREADABLE = "(the record of the failure cannot be read)"


def test_a_record() -> None:
    text = b'{"type":"E","message":"m","attempts":3,"first_ms":"1","last_ms":"2","new":{}}'
    assert read_failure(text) == (Failure("E", "m", 1, 2), 3)
    assert read_failure(None, 7) == read_failure(b"", 7) == (Failure("", "", 7, 7), 0)


@pytest.mark.parametrize("text", [b"garbage", b"[]", b"7", b"null", b"[" * 200_000, b"9" * 5_000, b"\xff"])
def test_what_is_no_record(text: bytes) -> None:
    assert read_failure(text, 7) == (Failure("", UNREADABLE, 7, 7), 0)


@pytest.mark.parametrize("value", [None, [], {}, True, "x" * 99, "-1", -1, 2**53, 1e300, float("nan"), "9" * 30, "1.5"])
def test_values_of_another_type_are_left_out(value: object) -> None:
    names = ("attempts", "first_ms", "last_ms")
    failure, attempts = read_failure(json.dumps(dict.fromkeys(names, value)).encode(), 7)
    assert (attempts, failure.first_ms, failure.last_ms) in ((0, 7, 7), (1, 1, 1))
    assert read_failure(json.dumps({"type": value if not isinstance(value, str) else 7}).encode())[0].type == ""


def test_half_a_pair_of_surrogates_can_be_sent() -> None:
    record, _ = read_failure(rb'{"type":"\ud800","message":"a\udfffb"}')
    assert (record.type.encode(), record.message.encode()) == (rb"\ud800", rb"a\udfffb")


@given(st.binary(max_size=50) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_no_bytes_raise(data: bytes) -> None:
    assert dead_message(TOPIC, 0, b"a", b"5", data, None).died_ms == 5


def test_a_reply_that_cannot_be_read_names_the_slot() -> None:
    call = Call("stats", ("k",), [], int, True, "orders", 3)
    error = unreadable(call, ValueError("x" * 5_000))
    assert isinstance(error, ScriptFailedError)
    assert str(error).startswith("slot 3 of topic orders has a value that RMQ cannot read")
    assert (error.topic, error.slot) == ("orders", 3)
    assert len(str(error)) < 500
    refused = InvalidValueError("not 1")
    assert unreadable(call, refused) is refused


LISTENER = ListenerInfo(
    "orders",
    None,
    2,
    (0, 1, 5),
    (1,),
    3,
    4,
    5,
    0.5,
    0.25,
    HandlerTimes(((40, 7), (60, 1))),
    (RunningHandler(1, "a", 1, 250),),
)
WORKER = WorkerInfo("w", "host", 7, 8, 9, 10, True, (LISTENER,))


def test_a_workers_report_there_and_back_with_fields_of_a_newer_version() -> None:
    text = json.loads(WORKER.to_json())
    assert text["version"] == SCHEMA_VERSION
    text["new"] = text["listeners"][0]["new"] = 1
    assert WorkerInfo.from_json(json.dumps(text).encode(), "w", 9, 10) == WORKER


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": "0-999999999999"},
        {"slots": "0-16383,0-16383,0-16383"},
        {"slots": "-5"},
        {"slots": "7-3"},
        {"slots": 7},
        {"busy_slots": "x"},
        {"threads": "many"},
        {"handled_per_s": float("nan")},
        {"failed_per_s": float("inf")},
        {"in_flight": float("inf")},
        {"topic": None, "handled": None},
        {"times": {"0": -1}},
        {"times": 7},
        {"running": [{"slot": "x"}]},
        {"running": [7]},
    ],
)
def test_a_strangers_report_is_refused(changes: dict[str, object]) -> None:
    text = json.loads(WORKER.to_json())
    text["listeners"][0] |= changes
    with pytest.raises(UnreadableDocumentError, match="the report of worker w cannot be read"):
        WorkerInfo.from_json(json.dumps(text).encode(), "w", 9, 10)


def test_a_report_for_newer_readers_is_refused() -> None:
    text = {**json.loads(WORKER.to_json()), "min_reader": SCHEMA_VERSION + 1}
    with pytest.raises(UnreadableDocumentError, match="upgrade this RMQ"):
        WorkerInfo.from_json(json.dumps(text).encode(), "w", 9, 10)


@pytest.mark.parametrize("record", [b"9" * 400, b"1 -5", b"1 " + b"9" * 5_000, b"1 1e5", b"x", b"", b"1 nan"])
def test_a_minute_that_cannot_be_shown_is_left_out(record: bytes) -> None:
    assert Minute.from_bytes(record) is None
