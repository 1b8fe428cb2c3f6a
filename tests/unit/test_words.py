"""How topics merge, and what messages stand for, in words: pure."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rmq import (
    PER_MESSAGE,
    Collect,
    Fixed,
    Keep,
    Leading,
    Max,
    Merge,
    Min,
    Newest,
    PeekedMessage,
    Replace,
    Sliding,
    Sum,
    Topic,
    TopicType,
)
from rmq.views.words import (
    age_words,
    labelled_value,
    merge_name,
    merge_words,
    plain_value,
    sends,
    sends_words,
    value_words,
)

NOW_MS = 1_790_000_000_000


def message(body: bytes | None = None, **folded: Any) -> PeekedMessage:
    return PeekedMessage("t", 0, b"a", body, "store", 0, None, None, NOW_MS, **folded)


@pytest.mark.parametrize(
    ("merge", "name"),
    [
        (None, "-"),
        (Merge(), "replace"),
        (Merge(Replace()), "replace"),
        (Merge(Newest()), "newest"),
        (Merge(Min()), "min"),
        (Merge(Collect()), "collect"),
        (Merge(Collect(unique=True)), "collect unique"),
        (Merge(Collect(unique=True), max_count=PER_MESSAGE), "join"),
    ],
)
def test_names_of_merges(merge: Merge | None, name: str) -> None:
    assert merge_name(merge) == name


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (None, "each message sets its own; that of the first send counts"),
        (Fixed("5s"), "fixed, due 5 s after the first send"),
        (Sliding("2s", max_wait="30s"), "sliding, due 2 s after the last send, or 30 s after the first"),
        (Sliding(max_wait="1h"), "sliding, due 1 h after the first send"),
        (Leading("1m"), "leading, first send at once, others within 1 m at its end"),
        (Leading("1m", trailing=False), "leading, first send at once, others within 1 m dropped"),
    ],
)
def test_windows_in_words(window: Any, words: str) -> None:
    assert merge_words(Topic("t", TopicType.RANGE_MERGE, merge=Merge(Keep(), window)))["window"] == words


def test_each_type_says_what_it_has() -> None:
    assert merge_words(Topic("t", TopicType.PRIORITY)) == {}
    merge = Merge(Max(), priority="highest")
    assert merge_words(Topic("t", TopicType.PRIORITY, merge=merge)) == {
        "merge": "max: the largest number",
        "priority": "the highest one sent",
    }
    assert merge_words(Topic("t", TopicType.FIXED_TIME, merge=Merge(Collect(max_items=5)))) == {
        "merge": "collect: all items",
        "items": "up to 5 of 65,536 bytes; then sends are refused",
    }
    assert merge_words(Topic("t", TopicType.RANGE_MERGE, merge=Merge(Sum(), Fixed("1ms"), 7)))["max count"] == (
        "due at once with 7 sends"
    )


def test_values_in_words() -> None:
    assert (value_words(message()), labelled_value(message())) == ("", None)
    assert labelled_value(message(b"\x1b[31m")) == ("body", "\\x1b[31m")
    assert labelled_value(message(b"-4", number=-4)) == ("value", "-4")
    items = tuple(b"item %d\n" % number for number in range(3))
    assert labelled_value(message(items=items, item_count=3)) == ("items", "3: item 0\\n, item 1\\n, item 2\\n")
    assert labelled_value(message(items=items[:1], item_count=1_000)) == ("items", "1,000: item 0\\n, …")
    assert labelled_value(message(items=items, item_count=3, wanted=5)) == (
        "parts",
        "3 of 5: item 0\\n, item 1\\n, item 2\\n",
    )
    assert value_words(message(items=(b"x" * 99,), item_count=1)) == f"1: {'x' * 40}… (99 bytes)"
    assert value_words(message(items=(b"x",) * 99, item_count=99)).endswith("x, …")


def test_numbers_that_json_has_not_become_text() -> None:
    assert plain_value(message(b"1.5", number=1.5)) == 1.5
    assert plain_value(message(b"inf", number=math.inf)) == "inf"


def test_sends_in_words() -> None:
    assert [sends(number) for number in (0, 1, 1_234)] == ["-", "1 send", "1,234 sends"]
    assert sends_words(message(merged=2)) == "2 sends"
    assert sends_words(message(merged=2, version=0)) == "2 sends, version 0"
    first, last = NOW_MS - 3_600_000, NOW_MS - 90_000
    assert age_words(message(), NOW_MS) == "-"
    assert age_words(message(first_sent_ms=first, last_sent_ms=last), NOW_MS) == "1 h - 1 m ago"
    assert age_words(message(first_sent_ms=last, last_sent_ms=last + 1), NOW_MS) == "1 m ago"
    assert age_words(message(last_sent_ms=last), NOW_MS) == "1 m ago"
    assert age_words(message(first_sent_ms=NOW_MS + 5, last_sent_ms=NOW_MS + 5), NOW_MS) == "0 ms ago"
