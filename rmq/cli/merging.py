"""Options for the merge of a topic, and their conversion to a `Merge`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import typer

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
    Overflow,
    PerMessage,
    PriorityRule,
    Replace,
    Sliding,
    Sum,
    Topic,
    TopicType,
)
from rmq.cli.options import choice, parse_duration, parse_number, typed
from rmq.errors import InvalidValueError
from rmq.spi.scripts import MAX_COUNT
from rmq.views.words import dashed, merge_name

JOIN = "join"
REDUCERS = {kind.__name__.lower(): kind for kind in (Keep, Replace, Newest, Max, Min, Sum, Collect)}
KINDS = (*REDUCERS, JOIN)
WINDOW_RULE = '"fixed 5s", "sliding 2s max 30s", "sliding max 1h", "leading 1m", "leading 1m drop" or none'
_WINDOW = re.compile(
    r"fixed (?P<fixed>\S+)|sliding (?:(?P<quiet>\S+) )?max (?P<max>\S+)|leading (?P<leading>\S+)(?P<drop> drop)?"
)

Window: TypeAlias = Fixed | Sliding | Leading
Given: TypeAlias = Any
"""The value of an option in a tuple of one, so that `none` differs from an option that is not given; else `None`."""


def parse_merge(text: str, name: str) -> str:
    """Parse the name of a reducer, or `join`. The case is ignored."""
    if text.lower() not in KINDS:
        raise InvalidValueError(f"{name} is {text!r}; it must be one of {', '.join(KINDS)}")
    return text.lower()


def parse_window(text: str, name: str) -> tuple[Window | None]:
    """Parse a window such as `sliding 2s max 30s`. Returns it in a tuple of one; `none` gives `(None,)`."""
    words = " ".join(text.lower().split())
    if words == "none":
        return (None,)
    match = _WINDOW.fullmatch(words)
    if match is None:
        raise InvalidValueError(f"{name} is {text!r}; it must have a form such as {WINDOW_RULE}")
    try:
        return (_window(match),)
    except InvalidValueError as error:
        raise InvalidValueError(f"{name} is {text!r}: {error}") from None


def _window(match: re.Match[str]) -> Window:
    part = {key: parse_duration(value, key) for key, value in match.groupdict().items() if value and key != "drop"}
    if "fixed" in part:
        return Fixed(part["fixed"])
    if "leading" in part:
        return Leading(part["leading"], trailing=match["drop"] is None)
    return Sliding(part.get("quiet"), max_wait=part["max"])


def parse_max_count(text: str, name: str) -> tuple[int | PerMessage | None]:
    """Parse a number of sends, `per-message` or `none`. Returns it in a tuple of one."""
    if text.lower().replace("_", "-") == "per-message":
        return (PER_MESSAGE,)
    if text.lower() == "none":
        return (None,)
    try:
        return (int(parse_number(text, name, bounds=(1, MAX_COUNT))),)
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}, or per-message, or none") from None


parse_overflow, parse_priority_rule = choice(Overflow), choice(PriorityRule)


@dataclass(frozen=True, slots=True)
class MergeKind:
    """Merge options that can be given only for a new topic.

    Attributes:
        merge: How merged bodies are combined: keep, replace, newest, max, min, sum, collect or join.
        collect_unique: collect: keep each item once.
        merge_priority: priority: priority of merged messages: last (default), highest, lowest or sum.
    """

    merge: Annotated[str | None, typer.Option(metavar="KIND", parser=typed(parse_merge))] = None
    collect_unique: Annotated[bool, typer.Option("--collect-unique")] = False
    merge_priority: Annotated[PriorityRule | None, typer.Option(metavar="RULE", parser=typed(parse_priority_rule))] = (
        None
    )


@dataclass(frozen=True, slots=True)
class MergeBounds:
    """Merge options that can also be changed on a registered topic.

    Attributes:
        max_count: range-merge: number of sends after which a message is due at once, or none. join: per-message.
        collect_max_items: collect, join: maximum number of items.
        collect_max_bytes: collect, join: maximum size of all items in bytes; each item counts 4 bytes more than its
            size.
        collect_when_full: collect, join: what a send to a full message does: release, refuse, drop-oldest or
            drop-newest.
    """

    window: Annotated[
        Given,
        typer.Option(
            metavar="WINDOW",
            help=f"range-merge: when a message is due: {WINDOW_RULE}.",
            parser=typed(parse_window),
        ),
    ] = None
    max_count: Annotated[Given, typer.Option(metavar="N", parser=typed(parse_max_count))] = None
    collect_max_items: Annotated[int | None, typer.Option(metavar="N", min=1)] = None
    collect_max_bytes: Annotated[int | None, typer.Option(metavar="N", min=1)] = None
    collect_when_full: Annotated[Overflow | None, typer.Option(metavar="POLICY", parser=typed(parse_overflow))] = None

    def given(self) -> list[str]:
        """Return the names of the options that are given."""
        names = ("window", "max_count", "collect_max_items", "collect_max_bytes", "collect_when_full")
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]

    def of_collect(self) -> dict[str, Any]:
        """Return the given options of a `Collect`, as its keyword arguments."""
        bounds = (self.collect_max_items, self.collect_max_bytes, self.collect_when_full)
        found = zip(("max_items", "max_bytes", "when_full"), bounds, strict=True)
        return {name: value for name, value in found if value is not None}


def new_merge(topic_type: TopicType, kind: MergeKind, bounds: MergeBounds) -> Merge | None:
    """Return the merge of a new topic; `None` without `--merge`.

    Raises:
        InvalidValueError: An option does not fit the topic's type or its merge.
    """
    given = bounds.given()
    _check_timed(topic_type, [*given, "--merge join"] if kind.merge == JOIN else given)
    if kind.merge_priority not in (None, PriorityRule.LAST) and topic_type is not TopicType.PRIORITY:
        raise InvalidValueError(f"--merge-priority requires a priority topic; the type is {dashed(topic_type)}")
    if kind.merge is None:
        given += ["--collect-unique"] if kind.collect_unique else []
        given += ["--merge-priority"] if kind.merge_priority is not None else []
        if given:
            raise InvalidValueError(f"{given[0]} requires --merge {'|'.join(KINDS)}")
        return None
    count = None if bounds.max_count is None else bounds.max_count[0]
    if kind.merge == JOIN:
        if bounds.max_count is not None and count is not PER_MESSAGE:
            raise InvalidValueError(
                f"{_typed(count)}; with --merge join it must be per-message, since each message names its parts"
            )
        count = PER_MESSAGE
    reducer = _reducer(kind, bounds)
    if count is PER_MESSAGE and not (isinstance(reducer, Collect) and reducer.unique):
        raise InvalidValueError(f"{_typed(count)}, which requires --merge join, or collect with --collect-unique")
    window = None if bounds.window is None else bounds.window[0]
    _check_waits(count, window, "--merge is join")
    return Merge(
        reducer,
        window,
        count,
        PriorityRule.LAST if kind.merge_priority is None else kind.merge_priority,
    )


def _check_timed(topic_type: TopicType, given: list[str]) -> None:
    """Raise for options that only range-merge topics take."""
    timed = [each for each in given if each in ("--window", "--max-count", "--merge join")]
    if timed and topic_type is not TopicType.RANGE_MERGE:
        raise InvalidValueError(f"{timed[0]} requires a range-merge topic; the type is {dashed(topic_type)}")


def _typed(count: int | PerMessage | None) -> str:
    """Format a `--max-count` for an error, as it is typed."""
    return f"--max-count is {'none' if count is None else 'per-message' if count is PER_MESSAGE else count}"


def _check_waits(count: int | PerMessage | None, window: Window | None, is_join: str) -> None:
    """Raise for a leading window of a join, since it does not wait for the parts."""
    if count is PER_MESSAGE and isinstance(window, Leading):
        raise InvalidValueError(f"--window is leading, but {is_join}, which waits for all parts; use fixed or sliding")


def _reducer(kind: MergeKind, bounds: MergeBounds) -> Any:
    name = str(kind.merge)
    if name in (JOIN, "collect"):
        return Collect(**bounds.of_collect(), unique=kind.collect_unique or name == JOIN)
    wrong = [each for each in bounds.given() if each.startswith("--collect")]
    if wrong or kind.collect_unique:
        raise InvalidValueError(f"{[*wrong, '--collect-unique'][0]} requires --merge collect or join, not {name}")
    return REDUCERS[name]()


def changed_merge(topic: Topic, bounds: MergeBounds) -> Merge:
    """Return the merge of a registered topic, changed by the given options.

    Raises:
        InvalidValueError: An option does not fit the topic's type or its merge.
    """
    given, merge = bounds.given(), topic.merge
    if merge is None:
        raise InvalidValueError(f"{given[0]} requires a topic with a merge; topic {topic.name} has no merge")
    _check_timed(topic.type, given)
    changes: dict[str, Any] = {}
    if of_collect := bounds.of_collect():
        if not isinstance(merge.reduce, Collect):
            name = next(each for each in given if each.startswith("--collect"))
            is_another = f"the merge of topic {topic.name} is {merge_name(merge)}"
            raise InvalidValueError(f"{name} requires a topic with the merge collect or join; {is_another}")
        changes["reduce"] = replace(merge.reduce, **of_collect)
    if bounds.window is not None:
        changes["window"] = bounds.window[0]
    if bounds.max_count is not None:
        count = bounds.max_count[0]
        if (count is PER_MESSAGE) is not merge.joins:
            rule = "requires per-message" if merge.joins else "does not support per-message"
            text = f"{_typed(count)}; the merge of topic {topic.name} is {merge_name(merge)}, which {rule}"
            raise InvalidValueError(text)
        changes["max_count"] = count
    _check_waits(merge.max_count, changes.get("window"), f"the merge of topic {topic.name} is join")
    return replace(merge, **changes)
