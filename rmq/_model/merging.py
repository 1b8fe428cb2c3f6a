"""Merge settings of a topic, part of its definition: reducers, windows and bounds. Also JSON merge patches."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, cast

from rmq._model.settings import (
    TopicType,
    check_flag,
    check_whole,
    json_of,
    kind_json_of,
    kind_of,
    one_of,
    set_duration,
    settings_of,
)
from rmq._model.times import Duration, duration_ms
from rmq.errors import InvalidTopicError, InvalidValueError

MAX_ITEMS = 100_000
MAX_ITEM_BYTES = 1_048_576
MAX_UNIQUE_ITEMS = 5_000
"""Maximum number of items of a set or a join: a fold compares all items, and Redis serves no other client meanwhile."""


class Overflow(Enum):
    """Behaviour of a send to a message whose `Collect` has reached its bounds. Arguments take a member or its value.

    Examples:
        >>> Collect(max_items=100, when_full=Overflow.DROP_OLDEST).when_full.value
        'drop_oldest'
    """

    RELEASE = "release"
    """A full message is due at once; until it is claimed, sends of its content are refused."""
    REFUSE = "refuse"
    """The send is refused."""
    DROP_OLDEST = "drop_oldest"
    """The oldest items are dropped to make room."""
    DROP_NEWEST = "drop_newest"
    """New items for which there is no room are dropped."""


@dataclass(frozen=True, slots=True)
class Keep:
    """The body of the first message is kept, even if that message has none.

    Examples:
        >>> edits = Topic("edits", TopicType.RANGE_MERGE, merge=Merge(Keep(), window=Fixed("1ms")))
        >>> client.producer(edits).send_many(RangeMergeMessage("page", body=body) for body in ("a", "b")).merged
        1
        >>> [delivery.value for delivery in client.consumer(edits).poll(timeout=5)]
        [b'a']
    """


@dataclass(frozen=True, slots=True)
class Replace:
    """The newest body is kept; a message without a body leaves it unchanged.

    Examples:
        >>> edits = Topic("edits", TopicType.RANGE_MERGE, merge=Merge(Replace(), window=Fixed("1ms")))
        >>> client.producer(edits).send_many(RangeMergeMessage("page", body=body) for body in ("a", "b")).merged
        1
        >>> [delivery.value for delivery in client.consumer(edits).poll(timeout=5)]
        [b'b']
    """


@dataclass(frozen=True, slots=True)
class Newest:
    """The body of the largest `version` is kept, in whatever order sends arrive; for equal versions, the last body.

    Examples:
        >>> prices = Topic("prices", TopicType.RANGE_MERGE, merge=Merge(Newest(), window=Fixed("1ms")))
        >>> rows = ((7, "4.99"), (9, "5.49"), (8, "5.19"))
        >>> changes = [RangeMergeMessage("mug", body=price, version=version) for version, price in rows]
        >>> client.producer(prices).send_many(changes).merged
        2
        >>> [delivery.value for delivery in client.consumer(prices).poll(timeout=5)]
        [b'5.49']
    """


@dataclass(frozen=True, slots=True)
class Max:
    """Bodies are numbers; the largest is kept.

    Examples:
        >>> peaks = Topic("peaks", TopicType.RANGE_MERGE, merge=Merge(Max(), window=Fixed("1ms")))
        >>> client.producer(peaks).send_many(RangeMergeMessage("cpu", body=load) for load in (20, 90, 40)).merged
        2
        >>> [delivery.value for delivery in client.consumer(peaks).poll(timeout=5)]
        [90]
    """


@dataclass(frozen=True, slots=True)
class Min:
    """Bodies are numbers; the smallest is kept.

    Examples:
        >>> bids = Topic("bids", TopicType.RANGE_MERGE, merge=Merge(Min(), window=Fixed("1ms")))
        >>> client.producer(bids).send_many(RangeMergeMessage("mug", body=price) for price in (5, 3, 4)).merged
        2
        >>> [delivery.value for delivery in client.consumer(bids).poll(timeout=5)]
        [3]
    """


@dataclass(frozen=True, slots=True)
class Sum:
    """Bodies are numbers, which are added: exactly if they are whole. A sum must stay within ±(2^53 - 1).

    Examples:
        >>> stock = Topic("stock", TopicType.RANGE_MERGE, merge=Merge(Sum(), window=Fixed("1ms")))
        >>> client.producer(stock).send_many(RangeMergeMessage("mug", body=change) for change in (10, -3, -2)).merged
        2
        >>> [delivery.value for delivery in client.consumer(stock).poll(timeout=5)]
        [5]
    """


@dataclass(frozen=True, slots=True)
class Collect:
    """Each body is an item, or a tuple or list of items; a delivery has them in the order of sending.

    Args:
        max_items: Maximum number of items in a message, 1 to 100,000; with `unique` 1 to 5,000.
        max_bytes: Maximum size of a message's items in bytes, 1 to 1,048,576; each item counts 4 bytes more than its
            size.
        unique: Keep each item once.
        when_full: Behaviour of a send at these bounds: an `Overflow` or its value. By default `release`; on
            FIXED_TIME, where no message is due early, `refuse`.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> mails = Topic("mails", TopicType.RANGE_MERGE, merge=Merge(Collect(max_items=50), window=Fixed("1ms")))
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
                f"{MAX_UNIQUE_ITEMS}, since Redis compares all items of two messages when it folds them"
            )
        if self.when_full is not None:
            object.__setattr__(self, "when_full", one_of(Overflow, self.when_full, "when_full of Collect"))


Reducer: TypeAlias = Keep | Replace | Newest | Max | Min | Sum | Collect
"""A rule that determines the body of merged messages."""

REDUCERS: dict[str, type[Reducer]] = {
    "keep": Keep, "replace": Replace, "newest": Newest, "max": Max, "min": Min, "sum": Sum, "collect": Collect,
}  # fmt: skip
LETTERS: dict[type[Reducer], str] = {Keep: "K", Replace: "R", Newest: "N", Max: "X", Min: "I", Sum: "S", Collect: "C"}
"""Reducer -> the letter that marks its records; a set has `U`, a join `J`."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Window in which a merged message is due `time_range` after its first send.

    Args:
        time_range: A `timedelta` or a text such as "5s", > 0, at most 100 years; a message may name another one.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> pictures = Topic("pictures", TopicType.RANGE_MERGE, merge=Merge(window=Fixed("2s")))
        >>> client.producer(pictures).send(RangeMergeMessage("mug")).new
        1
    """

    time_range: Duration

    def __post_init__(self) -> None:
        _set_duration(self, "time_range")

    @property
    def range_ms(self) -> int:
        """The time range, ms."""
        return duration_ms(self.time_range, "time_range")


@dataclass(frozen=True, slots=True)
class Sliding:
    """Window in which a merged message is due after `quiet` without a send, at the latest `max_wait` after the first.

    Args:
        quiet: A `timedelta` or a text such as "2s", > 0; a message may name another one. By default `max_wait`: then
            later sends do not delay the message.
        max_wait: A `timedelta` or a text; at least `quiet`, at most 100 years.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> calm = Sliding(quiet="1s", max_wait="10s")
        >>> pushes = Topic("pushes", TopicType.RANGE_MERGE, merge=Merge(Replace(), window=calm))
        >>> client.producer(pushes).send(RangeMergeMessage("repository", body="a1f")).new
        1
    """

    quiet: Duration | None = None
    max_wait: Duration = field(kw_only=True)

    def __post_init__(self) -> None:
        _set_duration(self, "max_wait")
        if self.quiet is not None:
            _set_duration(self, "quiet")
        if self.range_ms > self.max_wait_ms:
            raise InvalidValueError(
                f"max_wait of Sliding is {self.max_wait_ms} ms; it must be at least quiet, which is {self.range_ms} ms"
            )

    @property
    def range_ms(self) -> int:
        """The time without sends after which a message is due, ms."""
        return duration_ms(self.max_wait if self.quiet is None else self.quiet, "quiet")

    @property
    def max_wait_ms(self) -> int:
        """The longest wait from the first send, ms."""
        return duration_ms(self.max_wait, "max_wait")


@dataclass(frozen=True, slots=True)
class Leading:
    """Window whose first send is due at once; sends within `time_range` after it wait for its end, or are dropped.

    Args:
        time_range: A `timedelta` or a text such as "5s", > 0, at most 100 years; a message may name another one.
        trailing: Deliver the sends within the window at its end, when the next window begins; otherwise drop them.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> alarms = Topic("alarms", TopicType.RANGE_MERGE, merge=Merge(window=Leading("1m", trailing=False)))
        >>> _ = client.producer(alarms).send(RangeMergeMessage("disk full"))
        >>> [delivery.ack() for delivery in client.consumer(alarms).poll(timeout=5)]  # at once
        [True]
        >>> client.producer(alarms).send(RangeMergeMessage("disk full")).dropped
        1
    """

    time_range: Duration
    trailing: bool = True

    def __post_init__(self) -> None:
        _set_duration(self, "time_range")
        check_flag("trailing of Leading", self.trailing)

    @property
    def range_ms(self) -> int:
        """The time range, ms."""
        return duration_ms(self.time_range, "time_range")


Window: TypeAlias = Fixed | Sliding | Leading
"""A rule that determines when a merged message is due."""


WINDOWS: dict[str, type[Window]] = {"fixed": Fixed, "sliding": Sliding, "leading": Leading}


def _set_duration(window: Window, name: str) -> None:
    value: Duration = getattr(window, name)
    what = f"{name} of {type(window).__name__}"
    if set_duration(window, name, what) == 0:
        raise InvalidValueError(f"{what} is {value!r}; it must be more than 0")


MAX_COUNT = 2**31


class PriorityRule(Enum):
    """Rule for the priority of a message when a send merges into it. Arguments take a `PriorityRule` or its value.

    Examples:
        >>> hot = Topic("hot", TopicType.PRIORITY, merge=Merge(priority=PriorityRule.HIGHEST))
        >>> client.producer(hot).send_many(PriorityMessage("mug", views) for views in (70, 20)).merged
        1
        >>> [delivery.priority for delivery in client.consumer(hot).poll(timeout=5)]
        [70]
    """

    LAST = "last"
    """The last priority sent."""
    HIGHEST = "highest"
    LOWEST = "lowest"
    SUM = "sum"
    """The sum of all, up to the topic's largest priority: contents that are sent most often go first."""


class PerMessage(Enum):
    """Value for `max_count` of `Merge`: each message names the number of its parts.

    Examples:
        >>> whole = Merge(Collect(unique=True), max_count=PER_MESSAGE, window=Fixed("9s"))
        >>> orders = Topic("orders", TopicType.RANGE_MERGE, merge=whole)
        >>> client.producer(orders).send_many(JoinMessage("order:7", part, of=2) for part in ("paid", "packed")).merged
        1
        >>> [delivery.complete for delivery in client.consumer(orders).poll(timeout=5)]  # long before the 9 seconds
        [True]
    """

    PER_MESSAGE = "per_message"
    """The number of parts is `JoinMessage.of`."""


PER_MESSAGE = PerMessage.PER_MESSAGE


@dataclass(frozen=True, slots=True)
class Merge:
    """Settings for merging messages of one content: how their bodies are combined, and when the message is due.

    Args:
        reduce: Rule for the body: `Replace()`, the default, `Keep()`, `Newest()`, `Max()`, `Min()`, `Sum()` or
            `Collect()`.
        window: RANGE_MERGE: rule for the due time: `Fixed`, `Sliding` or `Leading`. By default each message names its
            `time_range`, and that of the first one counts.
        max_count: RANGE_MERGE: number of sends, 1 to 2^31, with which a message is due at once; `None` for no bound.
            `PER_MESSAGE`, with `Collect(unique=True)` and without `Leading`: due when all parts of a join have arrived.
        priority: PRIORITY: how the priority changes, a `PriorityRule` or its value; `last` by default.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> stock = Topic("stock", TopicType.RANGE_MERGE, merge=Merge(Sum(), window=Fixed("5s")))
        >>> client.producer(stock).send(RangeMergeMessage("mug", body=-1)).new
        1
    """

    reduce: Reducer = field(default_factory=Replace)
    window: Window | None = None
    max_count: int | PerMessage | None = None
    priority: PriorityRule | str = PriorityRule.LAST
    joins: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether messages wait for the number of parts that they name."""
    kind: str = field(default="", init=False, repr=False, compare=False)
    """The letter of its records; see docs/internals/merging.md."""

    def __post_init__(self) -> None:
        if not isinstance(self.reduce, Reducer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"reduce of Merge is {self.reduce!r}; it must be Keep(), Replace(), Newest(), Max(), Min(), Sum() or "
                "Collect()"
            )
        if self.window is not None and not isinstance(self.window, Window):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"window of Merge is {self.window!r}; it must be a Fixed, Sliding, Leading or None")
        object.__setattr__(self, "priority", one_of(PriorityRule, self.priority, "priority of Merge"))
        object.__setattr__(self, "joins", self.max_count is PER_MESSAGE)
        if self.joins:
            if not (isinstance(self.reduce, Collect) and self.reduce.unique):
                raise InvalidValueError(f"max_count=PER_MESSAGE needs reduce=Collect(unique=True), not {self.reduce!r}")
            if isinstance(self.window, Leading):
                raise InvalidValueError(
                    f"window of Merge is {self.window!r}; with max_count=PER_MESSAGE it must be Fixed, Sliding or None"
                )
        elif self.max_count is not None:
            check_whole("max_count of Merge", self.max_count, MAX_COUNT, ", or PER_MESSAGE")
        unique = isinstance(self.reduce, Collect) and self.reduce.unique
        object.__setattr__(self, "kind", "J" if self.joins else "U" if unique else LETTERS[type(self.reduce)])

    @property
    def window_kind(self) -> str:
        """Name of the window in the Lua scripts: `fixed` (also for no window), `sliding`, `leading` or `trailing`."""
        if isinstance(self.window, Leading):
            return "trailing" if self.window.trailing else "leading"
        return "sliding" if isinstance(self.window, Sliding) else "fixed"

    def overflow(self, topic_type: TopicType) -> Overflow:
        """Return the behaviour of a send at the bounds of `Collect`: its `when_full`, or the default of this type."""
        chosen = self.reduce.when_full if isinstance(self.reduce, Collect) else None
        default = Overflow.REFUSE if topic_type is TopicType.FIXED_TIME else Overflow.RELEASE
        return default if chosen is None else Overflow(chosen)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, for the topic's definition."""
        window = {} if self.window is None else {"window": kind_json_of(WINDOWS, self.window)}
        return json_of(self) | {"reduce": kind_json_of(REDUCERS, self.reduce)} | window

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Merge:
        """Rebuild the settings from a topic's definition.

        Raises:
            KeyError: A setting is missing.
            ValueError: A setting has an unknown or invalid value. Likewise AttributeError, OverflowError and TypeError.
        """
        window, count = value.get("window"), value.get("max_count")
        settings = {
            "reduce": kind_of(REDUCERS, value["reduce"], "reducer"),
            "window": None if window is None else kind_of(WINDOWS, window, "window"),
            "max_count": PER_MESSAGE if count == PER_MESSAGE.value else count,
        }
        return settings_of(cls, {**value, **settings})


def check_merge(name: str, topic_type: TopicType, merge: Merge | None) -> None:
    """Raise if a topic of this type cannot have this merge.

    Raises:
        InvalidTopicError: `merge` is not a `Merge`, or has settings of another topic type.
    """
    if merge is None:
        return
    if not isinstance(merge, Merge):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidTopicError(f"merge of topic {name} is {merge!r}; it must be a Merge or None")
    type_name = topic_type.name
    if topic_type is TopicType.STREAM:
        raise InvalidTopicError(f"topic {name} is STREAM; entries of a stream do not merge, so it takes no merge=")
    for setting in ("window", "max_count"):
        if topic_type is not TopicType.RANGE_MERGE and (found := getattr(merge, setting)) is not None:
            raise InvalidTopicError(f"{setting} of topic {name} is {found!r}; only RANGE_MERGE topics have a {setting}")
    if topic_type is not TopicType.PRIORITY and merge.priority is not PriorityRule.LAST:
        rule = PriorityRule(merge.priority).value
        raise InvalidTopicError(f"priority of merge of topic {name} is {rule}; {type_name} topics have no priorities")
    if topic_type is TopicType.FIXED_TIME and isinstance(merge.reduce, Collect):
        if merge.reduce.when_full is Overflow.RELEASE:
            raise InvalidTopicError(
                f"when_full of Collect of topic {name} is release; on FIXED_TIME, where no message becomes due early, "
                "it must be refuse, drop_oldest or drop_newest"
            )


def same_merging(one: Merge | None, other: Merge | None) -> bool:
    """Return whether two merges differ in windows and bounds only, so that a topic may change from one to the other."""
    if one is None or other is None:
        return one is other
    return (one.kind, one.priority) == (other.kind, other.priority)


def check_change(name: str, before: Merge | None, after: Merge | None) -> None:
    """Raise for a change that is not possible for stored messages.

    Raises:
        InvalidTopicError: More than windows and bounds would change.
    """
    if not same_merging(before, after):
        raise InvalidTopicError(
            f"merge of topic {name} is {before!r} and can't become {after!r}: only its window, its max_count "
            "(PER_MESSAGE excepted), and max_items, max_bytes and when_full of Collect can change"
        )


def json_merge_patch(target: Any, patch: Any) -> Any:
    """Return a JSON value with a merge patch applied: members of objects are set, `null` removes them.

    Args:
        target: JSON text as `bytes`, or a decoded value, which is not changed.
        patch: JSON text as `bytes`, or a decoded value.

    Returns:
        JSON text as `bytes` if the target is `bytes`, otherwise the value.

    Raises:
        ValueError: `target` or `patch` is `bytes`, but not JSON.

    Source: RFC 7396, section 2. Several patches do not combine into one patch: apply each to the document.

    Examples:
        >>> json_merge_patch({"price": 5, "old": True}, {"price": 6, "old": None})
        {'price': 6}
    """
    if isinstance(target, bytes):
        patched = _patched(json.loads(target), _value_of(patch))
        return json.dumps(patched, separators=(",", ":"), ensure_ascii=False).encode()
    return _patched(target, _value_of(patch))


def _value_of(patch: Any) -> Any:
    return json.loads(patch) if isinstance(patch, bytes) else patch


def _patched(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    members = dict(cast("dict[str, Any]", target)) if isinstance(target, dict) else {}
    for name, value in cast("dict[str, Any]", patch).items():
        if value is None:
            members.pop(name, None)
        else:
            members[name] = _patched(members.get(name), value)
    return members
