"""How the messages of a topic merge: reducers, windows and bounds. Plain values, part of the topic's definition."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rmq._model.checks import check_whole, one_of
from rmq._model.reducers import LETTERS, Collect, Keep, Overflow, Reducer, reducer_json, reducer_of
from rmq._model.topic_types import TopicType
from rmq._model.windows import Leading, Sliding, Window, window_json, window_of
from rmq.errors import InvalidTopicError, InvalidValueError

MAX_COUNT = 2**31


class PriorityRule(Enum):
    """What becomes of the priority where a send merges; a `PriorityRule` or its value is given.

    Examples:
        >>> hot = Topic("hot", TopicType.PRIORITY, merge=Merge(priority=PriorityRule.HIGHEST))
        >>> client.producer(hot).send_many(PriorityMessage("mug", views) for views in (70, 20)).merged
        1
        >>> [delivery.priority for delivery in client.consumer(hot).poll(timeout=5)]
        [70]
    """

    LAST = "last"
    """The last one sent stands."""
    HIGHEST = "highest"
    LOWEST = "lowest"
    SUM = "sum"
    """They add up, to the topic's largest priority at most: what is asked for most often goes first."""


class PerMessage(Enum):
    """A bound that each message names itself.

    Examples:
        >>> whole = Merge(Collect(unique=True), max_count=PER_MESSAGE, window=Fixed(9_000))
        >>> orders = Topic("orders", TopicType.RANGE_MERGE, merge=whole)
        >>> client.producer(orders).send_many(JoinMessage("order:7", part, of=2) for part in ("paid", "packed")).merged
        1
        >>> [delivery.complete for delivery in client.consumer(orders).poll(timeout=5)]  # long before the 9 seconds
        [True]
    """

    PER_MESSAGE = "per_message"
    """As many parts as `JoinMessage.of` says."""


PER_MESSAGE = PerMessage.PER_MESSAGE


@dataclass(frozen=True, slots=True)
class Merge:
    """How messages of one content merge: what is kept of their bodies, and when the one that they become is due.

    Args:
        reduce: What is kept: `Keep()`, `Replace()`, `Newest()`, `Max()`, `Min()`, `Sum()` or `Collect()`.
        window: RANGE_MERGE: when it is due: `Fixed`, `Sliding` or `Leading`. By default each message names its
            `time_range`, and that of the first one counts.
        max_count: RANGE_MERGE: due at once when so many sends have merged, 1 to 2^31; `None` for no such bound.
            `PER_MESSAGE`, with `Collect(unique=True)` and without `Leading`: when all parts of a join are there.
        priority: PRIORITY: what becomes of the priority, a `PriorityRule` or its value; `last` by default.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> stock = Topic("stock", TopicType.RANGE_MERGE, merge=Merge(Sum(), window=Fixed(timedelta(seconds=5))))
        >>> client.producer(stock).send(RangeMergeMessage("mug", body=-1)).new
        1
    """

    reduce: Reducer = field(default_factory=Keep)
    window: Window | None = None
    max_count: int | PerMessage | None = None
    priority: PriorityRule | str = PriorityRule.LAST
    joins: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether messages wait for as many parts as they name."""
    kind: str = field(default="", init=False, repr=False, compare=False)
    """The letter of its records; see docs/internals/merging.md."""

    def __post_init__(self) -> None:
        if not isinstance(self.reduce, Reducer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"reduce of Merge is {self.reduce!r}; it must be Keep(), Replace(), Newest(), Max(), Min(), Sum() or "
                "Collect()"
            )
        if self.window is not None and not isinstance(self.window, Window):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"window of Merge is {self.window!r}; it must be a Fixed, Sliding or Leading")
        object.__setattr__(self, "priority", one_of(PriorityRule, self.priority, "priority of Merge"))
        object.__setattr__(self, "joins", self.max_count is PER_MESSAGE)
        if self.joins:
            if not (isinstance(self.reduce, Collect) and self.reduce.unique):
                raise InvalidValueError(f"max_count=PER_MESSAGE needs reduce=Collect(unique=True), not {self.reduce!r}")
            if isinstance(self.window, Leading):
                raise InvalidValueError(f"max_count=PER_MESSAGE waits for parts, and {self.window!r} does not")
        elif self.max_count is not None:
            check_whole("max_count of Merge", self.max_count, MAX_COUNT, ", or PER_MESSAGE")
        unique = isinstance(self.reduce, Collect) and self.reduce.unique
        object.__setattr__(self, "kind", "J" if self.joins else "U" if unique else LETTERS[type(self.reduce)])

    @property
    def window_kind(self) -> str:
        """The name of its window for the scripts: `fixed`, `sliding`, `leading` or `trailing`."""
        if isinstance(self.window, Leading):
            return "trailing" if self.window.trailing else "leading"
        return "sliding" if isinstance(self.window, Sliding) else "fixed"

    def overflow(self, topic_type: TopicType) -> Overflow:
        """Return what a send meets at the bounds of a `Collect`."""
        chosen = self.reduce.when_full if isinstance(self.reduce, Collect) else None
        default = Overflow.REFUSE if topic_type is TopicType.FIXED_TIME else Overflow.RELEASE
        return default if chosen is None else Overflow(chosen)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, for the topic's definition."""
        value: dict[str, Any] = {"reduce": reducer_json(self.reduce), "priority": PriorityRule(self.priority).value}
        if self.window is not None:
            value["window"] = window_json(self.window)
        if self.max_count is not None:
            value["max_count"] = self.max_count.value if isinstance(self.max_count, PerMessage) else self.max_count
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Merge:
        """Rebuild it from a topic's definition."""
        window, count = value.get("window"), value.get("max_count")
        return cls(
            reducer_of(value["reduce"]),
            None if window is None else window_of(window),
            PER_MESSAGE if count == PER_MESSAGE.value else count,
            value["priority"],
        )


def check_merge(name: str, topic_type: TopicType, merge: Merge | None) -> None:
    """Refuse what a topic of this name and type can't have.

    Raises:
        InvalidTopicError: No `Merge`, or one for another type.
    """
    if merge is None:
        return
    if not isinstance(merge, Merge):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidTopicError(f"merge of topic {name} is {merge!r}; it must be a Merge or None")
    type_name = topic_type.name
    if topic_type is TopicType.STREAM:
        raise InvalidTopicError(f"topic {name} is STREAM, which merges nothing: it has no merge")
    for setting in ("window", "max_count"):
        if topic_type is not TopicType.RANGE_MERGE and (found := getattr(merge, setting)) is not None:
            raise InvalidTopicError(f"{setting} of topic {name} is {found!r}; only RANGE_MERGE has it, not {type_name}")
    if topic_type is not TopicType.PRIORITY and merge.priority is not PriorityRule.LAST:
        rule = PriorityRule(merge.priority).value
        raise InvalidTopicError(f"priority of merge of topic {name} is {rule}; {type_name} has no priorities")
    if topic_type is TopicType.FIXED_TIME and isinstance(merge.reduce, Collect):
        if merge.reduce.when_full is Overflow.RELEASE:
            raise InvalidTopicError(
                f"when_full of topic {name} is release; on FIXED_TIME nothing is due early: refuse, drop_oldest or "
                "drop_newest"
            )


def same_merging(one: Merge | None, other: Merge | None) -> bool:
    """Return whether a topic may change from one to the other: only windows and bounds differ."""
    if one is None or other is None:
        return one is other
    return (one.kind, one.priority) == (other.kind, other.priority)


def check_change(name: str, before: Merge | None, after: Merge | None) -> None:
    """Refuse a change that stored messages could not follow.

    Raises:
        InvalidTopicError: More than windows and bounds would change.
    """
    if not same_merging(before, after):
        raise InvalidTopicError(
            f"merge of topic {name} is {before!r} and can't become {after!r}: only its window, its max_count "
            "(PER_MESSAGE excepted), and max_items, max_bytes and when_full of Collect can change"
        )
