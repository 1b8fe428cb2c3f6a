"""Checks of settings: each error names the setting, its value and the rule. Pure."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from rmq._model.display import brief
from rmq.errors import InvalidValueError

E = TypeVar("E", bound=Enum)


def check_whole(what: str, value: object, highest: int, other: str = "") -> None:
    """Raise `InvalidValueError` unless it is a whole number from 1 to `highest`; `other` names further valid values."""
    if type(value) is not int or not 1 <= value <= highest:
        raise InvalidValueError(f"{what} is {brief(value)}; it must be a whole number from 1 to {highest}{other}")


def check_flag(what: str, value: object) -> None:
    """Raise `InvalidValueError` unless it is True or False."""
    if type(value) is not bool:
        raise InvalidValueError(f"{what} is {brief(value)}; it must be True or False")


def is_number(value: object) -> bool:
    """Return whether a value is an int or a float: no bool, and nothing that compares in a way of its own."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def one_of(kind: type[E], value: object, what: str) -> E:
    """Return the member of an enum that is given, or whose value is; raises `InvalidValueError`."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise InvalidValueError(f"{what} is {brief(value)}; it must be one of {known}") from None
