"""Parsing of numeric options and arguments. An invalid value gives an error of one line, as for other options."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Annotated, Any, TypeAlias, get_args, get_origin

from typer.models import ParameterInfo

from rmq.errors import InvalidValueError

Number: TypeAlias = int | float
Bounds: TypeAlias = tuple[Number | None, Number | None]

_WHOLE = re.compile(r"[+-]?\d{1,20}", re.ASCII)


def parse_number(text: str, name: str, kind: type[Number] = int, bounds: Bounds = (None, None)) -> Number:
    """Parse a whole number (`int`) or a finite number (`float`). `bounds` are inclusive; `None` is no bound."""
    low, high = bounds
    least, most = -inf if low is None else low, inf if high is None else high
    try:
        value = kind(text) if kind is float or _WHOLE.fullmatch(text) else None
    except ValueError:
        value = None
    if value is None or not least <= value <= most or abs(value) == inf:
        rule = "a whole number" if kind is int else "a number"
        if low is not None:
            rule += f" of at least {low}" if high is None else f" from {low} to {high}"
        elif high is not None:
            rule += f" of at most {high}"
        raise InvalidValueError(f"{name} is {text!r}; it must be {rule}")
    return value


def with_own_parser(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter of a command. If it is numeric, the result has a parser that checks its bounds."""
    annotation: Any = parameter.annotation
    if get_origin(annotation) is not Annotated:
        return parameter
    plain, info = get_args(annotation)[:2]
    kind = _number_of(plain)
    if kind is None or not isinstance(info, ParameterInfo) or info.parser is not None:
        return parameter
    own = copy.copy(info)
    own.parser, own.min, own.max = _parser(kind, (info.min, info.max)), None, None
    if own.metavar is None and None not in (info.min, info.max):
        own.metavar = f"{info.min}-{info.max}"
    return parameter.replace(annotation=Annotated[plain, own])


def _number_of(annotation: Any) -> type[Number] | None:
    """Return `int` or `float` if an annotation is that type, optional or as a list; else `None`."""
    kinds = {each for each in (annotation, *get_args(annotation)) if each is not type(None)}
    kinds |= {each for kind in kinds for each in get_args(kind)}
    return int if int in kinds else float if float in kinds else None


def _parser(kind: type[Number], bounds: Bounds) -> Callable[[Any], Any]:
    def parse(given: Any) -> Any:  # a default is no text, and is right
        return partial(parse_number, given, kind=kind, bounds=bounds) if isinstance(given, str) else given

    parse.__name__ = kind.__name__  # typer shows it in the help
    return parse
