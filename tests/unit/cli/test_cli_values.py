"""What people type, and what a terminal gets to see: pure."""

from __future__ import annotations

import io
import json
import unicodedata
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import (
    ExponentialRetry,
    FixedTimeMessage,
    ImmediateRetry,
    LadderRetry,
    PriorityMessage,
    RangeMergeMessage,
    Topic,
    TopicType,
)
from rmq.cli.commands.send import MOST_LINE_BYTES, Row, parse_row, read_lines
from rmq.cli.console import GlobalOptions, Session
from rmq.cli.options import (
    parse_count_or_none,
    parse_day,
    parse_past_ms,
    parse_rate,
    parse_retry,
    parse_type,
    payload,
)
from rmq.errors import EnsembleMismatchError, FencedError, InvalidValueError
from rmq.spi import safe_lines, shown, span, typed_instant_ms
from rmq.views.words import from_now, json_payload, when

NOW_MS = 1_790_000_000_000


def test_times() -> None:
    assert typed_instant_ms("2026-01-31T14:30:00Z", "--at") == 1_769_869_800_000
    assert typed_instant_ms("2026-01-31T14:30:00.5+01:00", "--at") == 1_769_866_200_500
    assert typed_instant_ms("1769869800000", "--at") == 1_769_869_800_000


@pytest.mark.parametrize("text", ["", "noon", "2026-01-31", "2026-01-31T14:30:00", "1960-01-01T00:00Z", "5s"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(InvalidValueError, match="--at"):
        typed_instant_ms(text, "--at")


def test_ages_count_back_from_now() -> None:
    assert parse_past_ms("2h", "--after", NOW_MS) == NOW_MS - 7_200_000
    assert parse_past_ms("0", "--after", NOW_MS) == NOW_MS
    assert parse_past_ms("36500d", "--after", NOW_MS) == 1
    assert parse_past_ms("2026-01-31T14:30:00Z", "--after", NOW_MS) == 1_769_869_800_000
    with pytest.raises(InvalidValueError, match="or an age such as 2h"):
        parse_past_ms("soon", "--after", NOW_MS)


@pytest.mark.parametrize("text", ["range-merge", "RANGE_MERGE", "Range-Merge"])
def test_types(text: str) -> None:
    assert parse_type(text, "--type") is TopicType.RANGE_MERGE


def test_a_type_that_is_none() -> None:
    with pytest.raises(InvalidValueError, match="'fifo'; it must be one of range-merge, priority, fixed-time"):
        parse_type("fifo", "--type")


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("immediate", ImmediateRetry()),
        ("exponential", ExponentialRetry()),
        ("exponential:2s,1h", ExponentialRetry("2s", "1h")),
        ("ladder", LadderRetry()),
        ("ladder:1s,1m", LadderRetry(("1s", "1m"))),
    ],
)
def test_retry_policies(text: str, policy: object) -> None:
    assert parse_retry(text, "--retry") == policy


@pytest.mark.parametrize(
    "text", ["", "never", "immediate:1s", "exponential:1s", "exponential:2s,1s", "ladder:", "ladder:1500ms", "ladder:x"]
)
def test_retry_policies_that_are_none(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_retry(text, "--retry")


def test_a_count_or_none() -> None:
    assert parse_count_or_none("none", "--max-backlog") is None
    assert parse_count_or_none("7", "--max-backlog") == 7
    with pytest.raises(InvalidValueError, match="--max-backlog is '-1'"):
        parse_count_or_none("-1", "--max-backlog")


def test_typed_bytes_survive_as_they_were_typed() -> None:
    assert payload("ü") == "ü".encode()
    assert payload(b"\xff\xfe".decode(errors="surrogateescape")) == b"\xff\xfe"


# --- shown


@given(st.one_of(st.text(), st.binary()), st.integers(1, 50))
def test_nothing_shown_is_obeyed(value: str | bytes, most: int) -> None:
    text = shown(value, most)
    assert all(unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for character in text)
    text.encode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"plain \xc3\xbc", "plain ü"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        (b"\xff\x00", "\\xff\\x00"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202eevil\u200b\u2028", "\\u202eevil\\u200b\\u2028"),
        ("\x9b31m", "\\x9b31m"),
        ("\U000e0041", "\\U000e0041"),
        ("[red]no markup[/red]", "[red]no markup[/red]"),
        ("non\u00a0breaking", "non\u00a0breaking"),
    ],
)
def test_shown(value: str | bytes, text: str) -> None:
    assert shown(value) == text


def test_long_payloads_are_cut_and_measured() -> None:
    assert shown("x" * 200) == "x" * 200
    assert shown("ü" * 300) == "ü" * 200 + "… (600 bytes)"
    assert shown(b"\x00" * 1_000_000) == ("\\x00" * 50) + "… (1,000,000 bytes)"


def test_lines_stay_lines() -> None:
    assert safe_lines("a\n\x1bb\n") == "a\n\\x1bb\n"


@given(st.binary())
def test_json_payloads_come_back(value: bytes) -> None:
    line = json.dumps({"content": json_payload(value)}).encode()
    assert line.isascii()
    assert parse_row(line, Row(b"")).content == value
    assert json_payload(None) is None


def test_times_as_they_are_shown() -> None:
    assert when(1_769_869_800_250) == "2026-01-31 14:30:00.250Z"
    assert when(2**53 - 1) == f"epoch ms {2**53 - 1}"
    spans = [span(ms) for ms in (0, 999, 1_000, 4_280, 60_000, 190_000, 7_500_000, 273_600_000)]
    assert spans == ["0 ms", "999 ms", "1 s", "4.2 s", "1 m", "3 m 10 s", "2 h 5 m", "3 d 4 h"]
    assert (from_now(5_000, 1_000), from_now(1_000, 5_000)) == ("in 4 s", "4 s ago")


# --- rows

RANGE_MERGE = Topic("t", TopicType.RANGE_MERGE)
PRIORITY = Topic("t", TopicType.PRIORITY)
FIXED_TIME = Topic("t", TopicType.FIXED_TIME)


def test_rows_become_messages_of_the_topic() -> None:
    assert Row(b"a", time_range_ms=5).message(RANGE_MERGE) == RangeMergeMessage(b"a", time_range_ms=5)
    assert Row(b"a", b"b", b"c", priority=20).message(PRIORITY) == PriorityMessage(b"a", 20, b"c", b"b")
    assert Row(b"a", fixed_time_ms=7).message(FIXED_TIME) == FixedTimeMessage(b"a", fixed_time_ms=7)
    assert Row(b"a", delay_ms=7).message(FIXED_TIME) == FixedTimeMessage(b"a", delay="7ms")
    assert Row(b"a", delay_ms=0).message(FIXED_TIME) == FixedTimeMessage(b"a", delay="0s")


@pytest.mark.parametrize(
    ("row", "topic", "rule"),
    [
        (Row(b"a"), RANGE_MERGE, "require --time-range"),
        (Row(b"a"), PRIORITY, "require --priority"),
        (Row(b"a"), FIXED_TIME, "require --at or --in"),
        (Row(b"a", time_range_ms=5, priority=20), RANGE_MERGE, "do not take --priority"),
        (Row(b"a", delay_ms=5, priority=20), PRIORITY, "do not take --at or --in"),
        (Row(b"a", delay_ms=5, fixed_time_ms=20), FIXED_TIME, "cannot be combined"),
        (Row(b"a", delay_ms=10**18), FIXED_TIME, "delay is 1000000000000000000; it must lie between 0 and 100 years"),
        (Row(b"a", delay_ms=-5), FIXED_TIME, "delay is -5; it must lie between 0 and 100 years"),
    ],
)
def test_rows_that_do_not_fit_the_topic(row: Row, topic: Topic, rule: str) -> None:
    with pytest.raises(InvalidValueError, match=rule):
        row.message(topic)


def test_a_json_row_wins_over_the_defaults() -> None:
    defaults = Row(b"", body=b"default", delay_ms=5)
    row = parse_row(b'{"content": "a", "fixed_time": "2026-01-31T14:30:00Z", "slot_basis": "b"}', defaults)
    assert row == Row(b"a", b"default", b"b", fixed_time_ms=1_769_869_800_000)
    row = parse_row(b'{"content": "a", "delay": "7s"}', Row(b"", fixed_time_ms=5))
    assert row == Row(b"a", delay_ms=7_000)
    row = parse_row(b'{"content": "a", "delay": 7, "fixed_time": 9}', Row(b""))
    with pytest.raises(InvalidValueError, match="cannot be combined"):
        row.message(FIXED_TIME)
    row = parse_row(b'{"content": {"base64": "//4="}, "time_range": "5s"}', Row(b""))
    assert row == Row(b"\xff\xfe", time_range_ms=5_000)
    row = parse_row(b'{"content": "a", "time_range": 5, "fixed_time": 9, "priority": 3}', Row(b""))
    assert row == Row(b"a", time_range_ms=5, fixed_time_ms=9, priority=3)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b"{", "invalid JSON"),
        (b"\xff", "invalid JSON"),
        (b"[" * 100_000, "invalid JSON"),
        (b"[]", "the line must be a JSON object"),
        (b"{}", '"content" is missing'),
        (b'{"content": "a", "x": 1}', "unknown key 'x'"),
        (b'{"content": 5}', "must be a string"),
        (b'{"content": {"base64": "?"}}', "not valid base64"),
        (b'{"content": {"base64": 5}}', "not valid base64"),
        (b'{"content": "\\ud800"}', "lone surrogate"),
        (b'{"content": "a", "priority": true}', "whole number"),
        (b'{"content": "a", "time_range": 1.5}', "whole number"),
        (b'{"content": "a", "delay": "7"}', "delay is '7': is it '7ms' or '7s'"),
        (b'{"content": "a", "delay": true}', "delay is true; it must be a whole number"),
    ],
)
def test_json_rows_that_break_a_rule(line: bytes, rule: str) -> None:
    with pytest.raises(InvalidValueError, match=rule):
        parse_row(line, Row(b""))


def test_lines_end_in_any_way_and_empty_ones_are_left_out() -> None:
    assert list(read_lines(io.BytesIO(b"a\r\n\n b \nc"))) == [(1, b"a"), (3, b" b "), (4, b"c")]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.cli.commands.send.MOST_LINE_BYTES", 8)
    assert MOST_LINE_BYTES > 16 * 1_048_576 * 6
    with pytest.raises(InvalidValueError, match="line 2 is too long; it must have fewer than 8 bytes"):
        list(read_lines(io.BytesIO(b"a\n" + b"x" * 9)))


def test_times_are_taken_to_the_ms() -> None:
    moment = datetime(2026, 1, 31, tzinfo=UTC) + timedelta(microseconds=1)
    assert typed_instant_ms(moment.isoformat(), "--at") == 1_769_817_600_001


@pytest.mark.parametrize(("text", "rate"), [("500", 500), ("500/s", 500), ("30/m", 0.5), ("1800/h", 0.5), ("0.5", 0.5)])
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text, "--rate") == rate


@pytest.mark.parametrize("text", ["", "0", "0/s", "-1", "5/d", "5 /s", "nan", "1e3", "inf"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"--rate is .*500/s"):
        parse_rate(text, "--rate")


def test_days() -> None:
    assert parse_day("2026-11-20", "--day") == date(2026, 11, 20)
    for text in ("", "2026-02-30", "20261120", "2026-11-20T03", "yesterday"):
        with pytest.raises(InvalidValueError, match=r"--day is .*2026-11-20"):
            parse_day(text, "--day")


def test_a_slot_of_another_owner_points_to_the_command_that_moves_it(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(GlobalOptions())
    session.fail(FencedError("owned through ZooKeeper", topic="t"))
    assert "`rmq adopt t`" in capsys.readouterr().err
    session.fail(EnsembleMismatchError("another ensemble", topic="t"))
    assert "`rmq adopt t`" in capsys.readouterr().err
    session.fail(FencedError("touched by a newer owner", topic="t", epoch=7))
    assert "adopt" not in capsys.readouterr().err
