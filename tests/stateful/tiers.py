"""The order in which a claim finds messages where ties are `any`, in plain Python."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

PRIME = 2**26 - 5


def place_of(stamp: int, size: int) -> int:
    """Where a claim with this stamp begins in a tier of so many messages."""
    return int(pow(stamp, 3, PRIME) * 41_475_557 % PRIME / PRIME * size)


def in_order(store: Mapping[bytes, int], stamp: int) -> list[bytes]:
    """All messages: tier after tier, each from its place on and around."""
    ranked = sorted(store, key=lambda content: (store[content], content), reverse=True)
    order: list[bytes] = []
    for _, group in groupby(ranked, key=store.__getitem__):
        tier = list(group)
        place = place_of(stamp, len(tier))
        order += tier[place:] + tier[:place]
    return order


def chosen(
    store: Mapping[bytes, int], prepare: Mapping[bytes, int], limit: int, stamp: int, max_retries: int
) -> list[bytes]:
    """What a claim takes: first of what comes first, where none of it is a retry; then of what is left in store."""
    first = in_order(store, stamp)[:limit]
    if any(store[content] <= max_retries for content in first):
        first = []
    taken = [content for content in first if content not in prepare]
    left = {content: score for content, score in store.items() if content not in taken}
    free = [content for content in in_order(left, stamp) if content not in prepare]
    return taken + free[: limit - len(taken)]
