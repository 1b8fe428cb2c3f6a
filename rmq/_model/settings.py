"""Settings: the types of topics, checks of values, and the form in which a topic's definition stores them. Pure.

A class of settings is a dataclass. Its stored form is a JSON object with each setting under its name, and durations as
whole milliseconds under the name with `_ms`; settings that are `None` by default are left out while they are. Settings
of several kinds, such as reducers and windows, name their kind as well. `json_of` and `settings_of` are inverse to each
other for every such class, so that a new setting needs no code of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from enum import Enum
from inspect import signature
from typing import Any, TypeGuard, TypeVar, cast

from rmq._model.display import brief
from rmq._model.times import duration_ms
from rmq.errors import InvalidValueError

E = TypeVar("E", bound=Enum)
T = TypeVar("T")

_UNITS = {"ms": timedelta(milliseconds=1), "s": timedelta(seconds=1)}
"""Units of stored durations, by the end of the setting's name."""


def check_whole(what: str, value: object, highest: int, other: str = "") -> None:
    """Raise `InvalidValueError` unless the value is a whole number from 1 to `highest`; `other` adds to the error."""
    if type(value) is not int or not 1 <= value <= highest:
        raise InvalidValueError(f"{what} is {brief(value)}; it must be a whole number from 1 to {highest}{other}")


def check_flag(what: str, value: object) -> None:
    """Raise `InvalidValueError` unless the value is True or False."""
    if type(value) is not bool:
        raise InvalidValueError(f"{what} is {brief(value)}; it must be True or False")


def check_name(what: str, value: object, extra: str = "", most: int = 128) -> None:
    """Raise `InvalidValueError` unless the value is a name of ASCII letters, digits, `.`, `_`, `-` and `extra`."""
    if not isinstance(value, str) or not re.fullmatch(rf"[A-Za-z0-9._{extra}-]{{1,{most}}}", value):
        characters = " ".join(("A-Z a-z 0-9 . _", *extra, "-"))
        raise InvalidValueError(f"{what} is {brief(value)}; it must be 1 to {most} characters of {characters}")


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is an int or a float, but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def one_of(kind: type[E], value: object, what: str) -> E:
    """Return an enum member that is given as itself or by its value; raises `InvalidValueError` for other values."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise InvalidValueError(f"{what} is {brief(value)}; it must be one of {known}") from None


def set_duration(settings: object, name: str, what: str) -> int:
    """Turn a duration of a frozen dataclass into a `timedelta` of whole milliseconds, and return their number.

    Raises:
        InvalidValueError: It is not a duration. The error calls it `what`.
    """
    milliseconds = duration_ms(getattr(settings, name), what)
    object.__setattr__(settings, name, timedelta(milliseconds=milliseconds))
    return milliseconds


def json_of(settings: Any) -> dict[str, Any]:
    """Return settings as JSON values; settings that do not count in comparisons are not stored."""
    values: dict[str, Any] = {}
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if setting.init and setting.compare and not (value is None is setting.default):
            values[setting.name + "_ms" * isinstance(value, timedelta)] = _json_of(value)
    return values


def _json_of(value: Any) -> Any:
    match value:
        case timedelta():
            return value // _UNITS["ms"]
        case datetime():
            return value.isoformat()
        case Enum():
            return value.value
        case tuple():
            return [*value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value.to_json() if hasattr(value, "to_json") else value


def settings_of(kind: type[T], stored: Mapping[str, Any]) -> T:
    """Return settings from their JSON values; fields that this version does not know are ignored.

    Raises:
        KeyError: A setting is missing that is not `None` by default.
        ValueError: A setting has a value that this version does not know. Likewise AttributeError, OverflowError and
            TypeError.
    """
    given = dict(map(_setting_of, stored.items()))
    known = signature(kind).parameters
    for name, setting in known.items():
        if name not in given and setting.default is not None:
            raise KeyError(name)
    return kind(**{name: value for name, value in given.items() if name in known})


def _setting_of(field: tuple[str, Any]) -> tuple[str, Any]:
    """Return a setting's name and value; a duration, or each of several, as a `timedelta`."""
    name, value = field
    plain, _, end = name.rpartition("_")
    if (unit := _UNITS.get(end)) is None or value is None:
        return plain if unit else name, value
    return plain, [each * unit for each in cast("list[Any]", value)] if isinstance(value, list) else value * unit


def kind_json_of(kinds: Mapping[str, type], settings: object, key: str = "kind") -> dict[str, Any]:
    """Return settings of one of several kinds as JSON values; `key` is the field with the name of the kind."""
    return {key: next(name for name, kind in kinds.items() if type(settings) is kind), **json_of(settings)}


def kind_of(kinds: Mapping[str, type[T]], stored: Mapping[str, Any], what: str, key: str = "kind") -> T:
    """Return settings of one of several kinds, called `what` in errors, from their JSON values; see `settings_of`."""
    name: Any = stored.get(key)
    if name not in kinds:
        raise InvalidValueError(f"{what} {name!r} is unknown; it must be one of {', '.join(kinds)}")
    return settings_of(kinds[name], stored)


class TopicType(Enum):
    """Type of a topic: the order of its messages, and how equal contents merge.

    Examples:
        >>> [each.name for each in TopicType]
        ['RANGE_MERGE', 'PRIORITY', 'FIXED_TIME', 'STREAM']
    """

    RANGE_MERGE = "RANGE_MERGE"
    """A message is due `time_range` after its first send; sends of the same content until then merge into it."""
    PRIORITY = "PRIORITY"
    """Larger priorities are delivered first; a send of the same content sets the priority of the message."""
    FIXED_TIME = "FIXED_TIME"
    """A message is due at the time that its send gives; a send of the same content sets a new time."""
    STREAM = "STREAM"
    """A log on Redis Streams: each group gets all entries in the order of sending; equal contents do not merge."""

    @property
    def timed(self) -> bool:
        """Whether store scores are due times."""
        return self in (TopicType.RANGE_MERGE, TopicType.FIXED_TIME)


class WhenFull(Enum):
    """Behaviour of a send to a slot that has used up its share of `max_backlog`.

    Examples:
        >>> jobs = client.producer(Topic("jobs", TopicType.PRIORITY, max_backlog=2, when_full=WhenFull.DROP))
        >>> jobs.send_many(PriorityMessage(f"job:{size}", size) for size in (3, 1, 2)).dropped  # job:1 makes room
        1
    """

    REFUSE = "REFUSE"
    """The send raises `BacklogFullError` at once."""
    BLOCK = "BLOCK"
    """The send waits for room, up to `full_timeout`; then it raises `BacklogFullError`."""
    DROP = "DROP"
    """The send succeeds, and messages that would be delivered last (lowest priority, latest due time) are dropped."""
