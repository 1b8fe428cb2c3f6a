"""Lists of messages by state over a whole topic: sorted, in pages, and bounded whatever the topic holds.

Two ways lead to a list. The messages of one state in the order of their delivery are merged from the beginnings of all
slots, exactly, however many there are. Any other order, a pattern, or several states at once need all messages, so a
search collects up to `MOST_LISTED` of them, which are then sorted; the page says where that was not all.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, get_args

from rmq import FoundMessage, Inspection, PeekedMessage, Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spi import AnyPlace
from rmq.views.reading import search_pages

PAGE = 50
"""Number of messages on a page."""

MOST_LISTED, BUDGET = 2_000, 20_000
"""Maximum number of messages that a list collects, and that it examines for them."""

FARTHEST = 10_000
"""Last position up to which the order of delivery can be paged through."""

PLACES: tuple[AnyPlace, ...] = get_args(AnyPlace)
Listed: TypeAlias = FoundMessage | PeekedMessage

SORTS = {
    "next": "next first",
    "last": "last first",
    "content": "content",
    "slot": "slot",
    "retries": "fewest retries left",
}
"""Orders of a list: name in addresses -> words. Dead messages come in the order of their deaths."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of a list.

    Attributes:
        rows: Its messages.
        total: Number of messages of which the list is a page; `None` if more may follow.
        more: Position of the next page, 0 for none.
        cursor: Where a search that has not seen all messages continues; `None` otherwise.
    """

    rows: Sequence[Listed]
    total: int | None
    more: int
    cursor: str | None = None


def list_messages(
    view: Inspection, places: tuple[AnyPlace, ...], pattern: str, sort: str, first: int, cursor: str | None = None
) -> Listing:
    """Return a page of messages.

    Args:
        view: The topic.
        places: States to list.
        pattern: Pattern for the content, with `*`, `?` and `[...]`; empty for all.
        sort: One of `SORTS`.
        first: Position of the first message of the page.
        cursor: Where to continue a search; `None` to begin.

    Raises:
        InvalidValueError: The position, the pattern or the cursor is out of range.
    """
    if first > FARTHEST:
        raise InvalidValueError(f"first is {first:,}; a list shows at most {FARTHEST:,} messages: search by content")
    if len(places) == 1 and places != ("dead",) and not pattern and sort == "next" and cursor is None:
        rows = list(itertools.islice(_in_order(view, places[0], first), first, first + PAGE + 1))
        return Listing(rows[:PAGE], None, first + PAGE if len(rows) > PAGE and first + PAGE <= FARTHEST else 0)
    pages = list(search_pages(view, pattern or None, MOST_LISTED, BUDGET, places=places, cursor=cursor))
    found = {(each.slot, each.content, each.place): each for page in pages for each in page.messages}
    cursor = pages[-1].cursor
    rows = sorted(found.values(), key=partial(_sort_key, view.topic, sort))
    return Listing(rows[first : first + PAGE], len(rows), first + PAGE if first + PAGE < len(rows) else 0, cursor)


def _in_order(view: Inspection, place: Any, first: int) -> Iterator[PeekedMessage]:
    """Yield the messages of a state in the order of their delivery, merged from all slots."""
    size = min(1_000, 2 * (first + PAGE) // view.topic.slots + 2)
    heads: dict[int, list[PeekedMessage]] = {}
    for message in view.peek(place, size):
        heads.setdefault(message.slot, []).append(message)

    def of_slot(slot: int, head: list[PeekedMessage]) -> Iterator[PeekedMessage]:
        yield from head
        if len(head) == size:
            yield from view.pages(slot, place, 200, size)

    return heapq.merge(*(of_slot(slot, head) for slot, head in heads.items()), key=partial(_turn, view.topic))


def _turn(topic: Topic, message: Listed) -> tuple[int, int]:
    """Return the position in the order of delivery, state by state; of priorities the highest score comes first."""
    ranked = topic.type is TopicType.PRIORITY and message.place == "store"
    return PLACES.index(message.place), -message.score if ranked else message.score


def _sort_key(topic: Topic, sort: str, message: Listed) -> tuple[Any, ...]:
    place, position = _turn(topic, message)
    match sort:
        case "last":
            return place, -position
        case "content":
            return (message.content,)
        case "slot":
            return message.slot, place, position
        case "retries":
            left = topic.max_retries if message.retries_left is None else message.retries_left
            return left, place, position
        case _:
            return place, position
