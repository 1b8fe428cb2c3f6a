"""A trace context in front of a body is found again, and no body is taken for one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmq import PriorityMessage, Topic, TopicType
from rmq._model.records import TRACE_MARK, unwrap, wrap
from tests.support.core import encode

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODIES = st.one_of(st.none(), st.binary(max_size=40), st.binary(max_size=40).map(lambda tail: TRACE_MARK + tail))


@given(BODIES, st.sampled_from(["", TRACE]))
def test_what_goes_in_comes_out(body: bytes | None, trace: str) -> None:
    assert unwrap(wrap(body, trace)) == (body, trace)


@given(st.binary(max_size=80))
def test_other_bodies_are_left_as_they_are(body: bytes) -> None:
    assert unwrap(body) == (body, "") or body.startswith(TRACE_MARK)
    assert unwrap(None) == (None, "")


@given(BODIES)
def test_a_body_that_looks_like_an_envelope_survives_without_tracing(body: bytes | None) -> None:
    encoded = encode(Topic("t", TopicType.PRIORITY), PriorityMessage("a", 100, body=body))
    assert unwrap(encoded.body)[0] == body
    assert body is None or body.startswith(TRACE_MARK) or encoded.body is body


def test_a_damaged_envelope_is_a_body() -> None:
    for stored in (
        TRACE_MARK,
        TRACE_MARK + b"abc",
        TRACE_MARK + b"abc\x002",
        TRACE_MARK + b"x" * 2_049 + b"\x001",
        TRACE_MARK + b"\xff\x001a",
    ):
        assert unwrap(stored) == (stored, "")
