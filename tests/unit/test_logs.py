"""JSON lines: what a record is about, and payloads that do no harm."""

from __future__ import annotations

import json
import logging
import sys

from hypothesis import given
from hypothesis import strategies as st

from rmq import Delivery, JsonFormatter, LogContext, Topic, TopicType
from rmq.logs import about
from tests.support.claims import Claimed, claim_of

EVIL = b"\x1b[31mred\x1b]0;title\x07 <script>\xff\xfe\r\nforged: line"


def delivery_of(content: bytes, body: bytes | None = None) -> Delivery:
    claimed = Claimed(content, 100, 1_790_000_000_016, body)
    return claim_of(Topic("jobs", TopicType.PRIORITY), claimed, slot=3).delivery(0)


def line_of(message: str, *args: object, deliveries: list[Delivery] | None = None, error: bool = False) -> str:
    record = logging.LogRecord("rmq.test", logging.WARNING, "x.py", 1, message, args, sys.exc_info() if error else None)
    if deliveries is not None:
        for name, value in about(deliveries).items():
            setattr(record, name, value)
    return JsonFormatter().format(record)


def test_it_says_what_it_is_about() -> None:
    found = json.loads(line_of("handler failed: %r", ValueError("no"), deliveries=[delivery_of(b"item:42")]))
    assert found["message"] == "handler failed: ValueError('no')"
    assert (found["level"], found["logger"]) == ("warning", "rmq.test")
    assert (found["topic"], found["slot"], found["content"]) == ("jobs", 3, "item:42")
    assert (found["attempt"], found["fencing_token"]) == (1, None)
    assert found["time"].endswith("+00:00")
    assert "deliveries" not in found


def test_of_a_batch_the_first_and_how_many() -> None:
    found = json.loads(line_of("x", deliveries=[delivery_of(b"a"), delivery_of(b"b")]))
    assert (found["content"], found["deliveries"]) == ("a", 2)


def test_a_handler_s_own_lines_say_which_message_it_handles() -> None:
    with LogContext().handling([delivery_of(b"mine")]):
        assert json.loads(line_of("in the handler"))["content"] == "mine"
    assert "content" not in json.loads(line_of("after it"))


def test_payloads_are_escaped_and_cut() -> None:
    try:
        raise ValueError(EVIL.decode(errors="replace"))
    except ValueError:
        line = line_of("%s", EVIL.decode(errors="replace"), deliveries=[delivery_of(EVIL)], error=True)
    found = json.loads(line)
    for text in (found["message"], found["content"], found["traceback"]):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "\\x1b[31mred" in found["content"]
    assert "\\xff" in found["content"]
    long = json.loads(line_of("%s", "x" * 10**6, deliveries=[delivery_of(b"y" * 60_000)]))
    assert len(long["message"]) < 5_000
    assert len(long["content"]) < 300


@given(st.binary(min_size=1, max_size=100), st.text(max_size=100))
def test_whatever_it_is_it_is_one_harmless_line(content: bytes, text: str) -> None:
    line = line_of("%s", text, deliveries=[delivery_of(content)])
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["topic"] == "jobs"
