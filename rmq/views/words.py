"""Texts for terminals, pages and JSON: times, merge settings, and the sends that messages combine. Pure."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from enum import Enum
from math import isfinite
from typing import TypeAlias

from rmq import (
    Collect,
    DeadMessage,
    Delivery,
    Fixed,
    FoundMessage,
    Keep,
    Max,
    Merge,
    Min,
    Newest,
    Overflow,
    PeekedMessage,
    PriorityRule,
    Replace,
    Sliding,
    Sum,
    Topic,
    TopicType,
)
from rmq.spi import shown, span

Carrier: TypeAlias = Delivery | PeekedMessage | FoundMessage | DeadMessage
"""A message that combines sends."""

MOST_SHOWN_ITEMS = 20
MOST_ITEM_CHARACTERS = 40

_KEPT = {
    Keep: "the first body", Replace: "the newest body", Newest: "the body of the largest version",
    Max: "the largest number", Min: "the smallest number", Sum: "the sum of the numbers",
}  # fmt: skip
_FULL = {
    Overflow.RELEASE: "a full message is due at once",
    Overflow.REFUSE: "then sends are refused",
    Overflow.DROP_OLDEST: "then the oldest items are dropped",
    Overflow.DROP_NEWEST: "then the newest items are dropped",
}
_PRIORITY = {
    PriorityRule.LAST: "the last one sent",
    PriorityRule.HIGHEST: "the highest one sent",
    PriorityRule.LOWEST: "the lowest one sent",
    PriorityRule.SUM: "the sum of those sent",
}


def merge_name(merge: Merge | None) -> str:
    """Return a merge in a word or two, as it is typed: `sum`, `collect unique`, `join`; `-` for none."""
    if merge is None:
        return "-"
    if isinstance(merge.reduce, Collect):
        return "join" if merge.joins else "collect unique" if merge.reduce.unique else "collect"
    return type(merge.reduce).__name__.lower()


def merge_words(topic: Topic) -> dict[str, str]:
    """Return a topic's merge settings in words, by the name of the setting; empty for a topic without `merge`."""
    merge = topic.merge
    if merge is None:
        return {}
    words = {"merge": f"{merge_name(merge)}: {_kept(merge)}"}
    if isinstance(merge.reduce, Collect):
        full = _FULL[merge.overflow(topic.type)]
        words["items"] = f"up to {merge.reduce.max_items:,} of {merge.reduce.max_bytes:,} bytes; {full}"
    if topic.type is TopicType.RANGE_MERGE:
        words["window"] = _window(merge)
    if merge.joins:
        words["max count"] = "due at once when all parts have arrived"
    elif merge.max_count is not None:
        words["max count"] = f"due at once with {merge.max_count:,} sends"
    if topic.type is TopicType.PRIORITY:
        words["priority"] = _PRIORITY[PriorityRule(merge.priority)]
    return words


def _kept(merge: Merge) -> str:
    if isinstance(merge.reduce, Collect):
        return "each part once" if merge.joins else "each item once" if merge.reduce.unique else "all items"
    return _KEPT[type(merge.reduce)]


def _window(merge: Merge) -> str:
    window = merge.window
    if window is None:
        return "each message sets its own; that of the first send counts"
    if isinstance(window, Fixed):
        return f"fixed, due {span(window.range_ms)} after the first send"
    if isinstance(window, Sliding):
        if window.quiet is None:
            return f"sliding, due {span(window.max_wait_ms)} after the first send"
        quiet, longest = span(window.range_ms), span(window.max_wait_ms)
        return f"sliding, due {quiet} after the last send, or {longest} after the first"
    rest = "at its end" if window.trailing else "dropped"
    return f"leading, first send at once, others within {span(window.range_ms)} {rest}"


def sends(number: int) -> str:
    """Return the number of sends that a message combines, in words. 0 means that the number is unknown."""
    return f"{number:,} {'send' if number == 1 else 'sends'}" if number else "-"


def sends_words(message: Carrier) -> str:
    """Return the number of sends that a message combines, with its version if it has one: `2 sends, version 7`."""
    return sends(message.merged) + ("" if message.version is None else f", version {message.version}")


def age_words(message: Carrier, now_ms: int) -> str:
    """Return the age of the first and the last send of a message: `2 m - 3.1 s ago`.

    Only one age if both are about the same, or if only one is known; `-` if neither is known.
    """
    known = (message.first_sent_ms, message.last_sent_ms)
    ages = [_coarse(max(0, now_ms - each_ms)) for each_ms in known if each_ms is not None]
    return f"{' - '.join(dict.fromkeys(ages))} ago" if ages else "-"


def _coarse(ms: int) -> str:
    """Return a length of time in its largest unit."""
    return " ".join(span(ms).split()[:2])


def item_count(message: Carrier) -> int:
    """Return the number of a message's items, including items missing from a truncated list."""
    return len(message.items) if isinstance(message, Delivery) else message.item_count


def plain_value(message: Carrier) -> bytes | int | float | str | tuple[bytes, ...] | None:
    """Return the combined value of a message's sends for JSON; a number that JSON cannot represent becomes a string."""
    value = message.value
    return value if not isinstance(value, float) or isfinite(value) else str(value)


def value_words(message: Carrier) -> str:
    """Return a message's body, number or items, escaped, on one line: `2 of 3: invoice, label`; empty for no body."""
    value = message.value
    if isinstance(value, bytes):
        return shown(value)
    if not isinstance(value, tuple):
        return "" if value is None else str(value)
    return f"{count_words(message)}: {items_words(message)}"


def labelled_value(message: Carrier) -> tuple[str, str] | None:
    """Return the name and the escaped text of a message's value; `None` for a message without a body."""
    value = message.value
    if value is None:
        return None
    if isinstance(value, tuple):
        return "parts" if message.wanted else "items", value_words(message)
    return "body" if isinstance(value, bytes) else "value", value_words(message)


def count_words(message: Carrier) -> str:
    """Return the number of a message's items, or of the parts that have arrived: `5`, `2 of 3`."""
    count = f"{item_count(message):,}"
    return f"{count} of {message.wanted:,}" if message.wanted else count


def items_words(message: Carrier, most: int = MOST_SHOWN_ITEMS) -> str:
    """Return the first items of a message, escaped and cut, with commas between them."""
    first = [shown(item, MOST_ITEM_CHARACTERS) for item in message.items[:most]]
    return ", ".join([*first, *(["…"] if item_count(message) > len(first) else [])])


def dashed(kind: Enum) -> str:
    """Return the name of a setting in lower case with hyphens: `range-merge`."""
    return kind.value.lower().replace("_", "-")


def json_payload(value: bytes | None) -> str | dict[str, str] | None:
    """Return bytes for JSON: as text if they are UTF-8, else `{"base64": ...}`."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def when(epoch_ms: int) -> str:
    """Return a time as `2026-01-31 14:30:00.250Z`; beyond the year 9999 as epoch ms."""
    try:
        moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"epoch ms {epoch_ms}"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{epoch_ms % 1000:03d}Z"


def milliseconds(ms: float | None) -> str:
    """Return the duration of a handler call in words, with one decimal below 10 ms; `–` for `None`."""
    return "–" if ms is None else f"{ms:.1f} ms" if ms < 10 else span(ms)


def from_now(epoch_ms: int, now_ms: int) -> str:
    """Return a time relative to `now_ms`: `in 4.2 s` or `3 m ago`."""
    ahead_ms = epoch_ms - now_ms
    return f"in {span(ahead_ms)}" if ahead_ms > 0 else f"{span(-ahead_ms)} ago"
