"""Reducers: what is kept of the bodies of merged messages. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from rmq._model.checks import check_flag, check_whole, one_of
from rmq.errors import InvalidValueError

MAX_ITEMS = 100_000
MAX_ITEM_BYTES = 1_048_576
MAX_UNIQUE_ITEMS = 5_000
"""Most items of a set or a join: a fold of two looks at each item, while the server answers nobody else."""


class Overflow(Enum):
    """What a send meets where a `Collect` has its most items or bytes; an `Overflow` or its value is given.

    Examples:
        >>> Collect(max_items=100, when_full=Overflow.DROP_OLDEST).when_full.value
        'drop_oldest'
    """

    RELEASE = "release"
    """A full message is due at once; until it is claimed, sends of its content are refused."""
    REFUSE = "refuse"
    """It is refused."""
    DROP_OLDEST = "drop_oldest"
    """The oldest items make room for it."""
    DROP_NEWEST = "drop_newest"
    """Its items that find no room are dropped."""


@dataclass(frozen=True, slots=True)
class Keep:
    """The first body stays.

    Examples:
        >>> edits = Topic("edits", TopicType.RANGE_MERGE, merge=Merge(Keep(), window=Fixed(1)))
        >>> client.producer(edits).send_many(RangeMergeMessage("page", body=body) for body in ("a", "b")).merged
        1
        >>> [delivery.value for delivery in client.consumer(edits).poll(timeout=5)]
        [b'a']
    """


@dataclass(frozen=True, slots=True)
class Replace:
    """The last body stands.

    Examples:
        >>> edits = Topic("edits", TopicType.RANGE_MERGE, merge=Merge(Replace(), window=Fixed(1)))
        >>> client.producer(edits).send_many(RangeMergeMessage("page", body=body) for body in ("a", "b")).merged
        1
        >>> [delivery.value for delivery in client.consumer(edits).poll(timeout=5)]
        [b'b']
    """


@dataclass(frozen=True, slots=True)
class Newest:
    """The body of the largest `version` stands, in whatever order sends arrive; of equal versions the last one's.

    Examples:
        >>> prices = Topic("prices", TopicType.RANGE_MERGE, merge=Merge(Newest(), window=Fixed(1)))
        >>> rows = ((7, "4.99"), (9, "5.49"), (8, "5.19"))
        >>> changes = [RangeMergeMessage("mug", body=price, version=version) for version, price in rows]
        >>> client.producer(prices).send_many(changes).merged
        2
        >>> [delivery.value for delivery in client.consumer(prices).poll(timeout=5)]
        [b'5.49']
    """


@dataclass(frozen=True, slots=True)
class Max:
    """Bodies are numbers; the largest stands.

    Examples:
        >>> peaks = Topic("peaks", TopicType.RANGE_MERGE, merge=Merge(Max(), window=Fixed(1)))
        >>> client.producer(peaks).send_many(RangeMergeMessage("cpu", body=load) for load in (20, 90, 40)).merged
        2
        >>> [delivery.value for delivery in client.consumer(peaks).poll(timeout=5)]
        [90]
    """


@dataclass(frozen=True, slots=True)
class Min:
    """Bodies are numbers; the smallest stands.

    Examples:
        >>> bids = Topic("bids", TopicType.RANGE_MERGE, merge=Merge(Min(), window=Fixed(1)))
        >>> client.producer(bids).send_many(RangeMergeMessage("mug", body=price) for price in (5, 3, 4)).merged
        2
        >>> [delivery.value for delivery in client.consumer(bids).poll(timeout=5)]
        [3]
    """


@dataclass(frozen=True, slots=True)
class Sum:
    """Bodies are numbers, which add up: exactly for whole ones. A sum stays within 2^53 - 1, plus and minus.

    Examples:
        >>> stock = Topic("stock", TopicType.RANGE_MERGE, merge=Merge(Sum(), window=Fixed(1)))
        >>> client.producer(stock).send_many(RangeMergeMessage("mug", body=change) for change in (10, -3, -2)).merged
        2
        >>> [delivery.value for delivery in client.consumer(stock).poll(timeout=5)]
        [5]
    """


@dataclass(frozen=True, slots=True)
class Collect:
    """Each body is an item; a delivery has all of them in the order of sending.

    Args:
        max_items: Most items of a message, 1 to 100,000; with `unique` 1 to 5,000.
        max_bytes: Most bytes of a message's items, 1 to 1,048,576; each item counts 4 bytes more than it has.
        unique: Keep each item once.
        when_full: What a send meets at these bounds: an `Overflow` or its value. By default `release`, and on
            FIXED_TIME, where nothing is due early, `refuse`.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> mails = Topic("mails", TopicType.RANGE_MERGE, merge=Merge(Collect(max_items=50), window=Fixed(1)))
        >>> client.producer(mails).send_many(RangeMergeMessage("ann", body=news) for news in ("x", "y")).merged
        1
        >>> [delivery.items for delivery in client.consumer(mails).poll(timeout=5)]
        [(b'x', b'y')]
    """

    max_items: int = 1_000
    max_bytes: int = 65_536
    unique: bool = False
    when_full: Overflow | str | None = None

    def __post_init__(self) -> None:
        check_whole("max_items of Collect", self.max_items, MAX_ITEMS)
        check_whole("max_bytes of Collect", self.max_bytes, MAX_ITEM_BYTES)
        check_flag("unique of Collect", self.unique)
        if self.unique and self.max_items > MAX_UNIQUE_ITEMS:
            raise InvalidValueError(
                f"max_items of Collect is {self.max_items}; with unique=True it must be a whole number from 1 to "
                f"{MAX_UNIQUE_ITEMS}: Redis compares all items with each other wherever two messages fold"
            )
        if self.when_full is not None:
            object.__setattr__(self, "when_full", one_of(Overflow, self.when_full, "when_full of Collect"))


Reducer: TypeAlias = Keep | Replace | Newest | Max | Min | Sum | Collect
"""What is kept of the bodies of merged messages."""

REDUCERS: dict[str, type[Reducer]] = {
    "keep": Keep, "replace": Replace, "newest": Newest, "max": Max, "min": Min, "sum": Sum, "collect": Collect,
}  # fmt: skip
LETTERS: dict[type[Reducer], str] = {Keep: "K", Replace: "R", Newest: "N", Max: "X", Min: "I", Sum: "S", Collect: "C"}
"""The kind of the records of each; a set has `U`, a join `J`."""


def reducer_json(reducer: Reducer) -> dict[str, Any]:
    """Return a reducer as JSON values, for the topic's definition."""
    name = next(name for name, kind in REDUCERS.items() if type(reducer) is kind)
    if not isinstance(reducer, Collect):
        return {"kind": name}
    value = {"kind": name, "max_items": reducer.max_items, "max_bytes": reducer.max_bytes, "unique": reducer.unique}
    return value if reducer.when_full is None else value | {"when_full": Overflow(reducer.when_full).value}


def reducer_of(value: dict[str, Any]) -> Reducer:
    """Rebuild a reducer from a topic's definition.

    Earlier versions registered sets beyond `MAX_UNIQUE_ITEMS`: these are bounded by it from now on.
    """
    settings = dict(value)
    name = settings.pop("kind", None)
    if name not in REDUCERS:
        raise InvalidValueError(f"reducer {name!r} is unknown; known: {', '.join(REDUCERS)}")
    if name != "collect":
        return REDUCERS[name]()
    known = {each: settings[each] for each in ("max_items", "max_bytes", "unique")}
    if known["unique"] is True:
        known["max_items"] = min(known["max_items"], MAX_UNIQUE_ITEMS)
    return Collect(**known, when_full=settings.get("when_full"))
