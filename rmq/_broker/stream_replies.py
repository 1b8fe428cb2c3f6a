"""Parses what claims of stream topics answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, cast

from rmq._broker.claiming import rest_of
from rmq._model.entries import body_of, content_of, own_score
from rmq._model.replies import ClaimReply, StreamClaimed

_claimed = cast(
    "Callable[[tuple[bytes, int, int, bytes | None, bytes, Any]], StreamClaimed]",
    partial(tuple.__new__, StreamClaimed),  # pyright: ignore[reportUnknownMemberType] - see `rmq._broker.claiming`
)


def claimed_entries(reply: list[Any]) -> ClaimReply[StreamClaimed]:
    """Parse the reply to one claim."""
    now_ms, next_due_ms, swept, stale, items, lost, ids, contents, tail, unmatched, stamp, number = reply[:12]
    first = own_score(int(stamp))
    messages = _entries(items or (), first)
    if ids:  # nothing of Python's own per entry: most of a claim's cost is here
        messages += map(_claimed, zip(contents, repeat(1), repeat(first), repeat(None), ids, repeat(()), strict=False))
        messages += _entries(tail or (), first)
    return ClaimReply(
        int(now_ms),
        int(next_due_ms),
        0,
        int(swept),
        tuple(stale or ()),
        tuple(messages),
        tuple(map(int, unmatched or ())),
        tuple(lost or ()),
        (first, int(number)) if stamp != b"0" else None,
        *rest_of(reply[12:]),
    )


def _entries(items: Sequence[Any], own: int) -> list[StreamClaimed]:
    """Parse entries with all of their fields; `own` is the score of those in the claim's own name."""
    messages: list[StreamClaimed] = []
    at = 0
    while at < len(items):
        deliveries, first = items[at + 1] or own, at + 3
        last = first + items[at + 2]
        flat = items[first:last]
        messages.append(_claimed((content_of(flat), deliveries, deliveries, body_of(flat), items[at], flat)))
        at = last
    return messages
