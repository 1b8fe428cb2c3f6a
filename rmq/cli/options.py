"""Arguments and options shared by several commands, and parsers for their values. Pure.

An invalid value raises `InvalidValueError`, which names the option, the value and the rule.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from enum import Enum
from functools import partial
from math import inf
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_origin

import typer
from typer.models import ParameterInfo

from rmq import ExponentialRetry, ImmediateRetry, LadderRetry, RetryPolicy, Ties, TopicType, WhenFull
from rmq.errors import InvalidValueError
from rmq.spi import duration_ms, moment_at, typed_duration_ms, typed_instant_ms
from rmq.views.words import dashed

E = TypeVar("E", bound=Enum)
Number: TypeAlias = int | float
Bounds: TypeAlias = tuple[Number | None, Number | None]
_WHOLE = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(?:/(s|m|h))?", re.ASCII)
_PER_S = {"s": 1, "m": 60, "h": 3_600}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def parse_past_ms(text: str, name: str, now_ms: int) -> int:
    """Parse a time, or an age such as `2h`, which is counted back from `now_ms`. Returns epoch ms, at least 1."""
    try:
        return max(1, now_ms - duration_ms(text, name))
    except InvalidValueError:  # a time, then
        pass
    try:
        return typed_instant_ms(text, name)
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}, or an age such as 2h") from None


def parse_past(text: str, name: str, now_ms: int) -> datetime:
    """Parse a time, or an age such as `2h`, which is counted back from `now_ms` (epoch ms). Returns a `datetime`."""
    return moment_at(parse_past_ms(text, name, now_ms))


def parse_duration(text: str, name: str) -> timedelta:
    """Parse a duration such as `5s` or `1h30m`."""
    return timedelta(milliseconds=typed_duration_ms(text, name))


def parse_rate(text: str, name: str) -> float:
    """Parse a rate such as `500/s`, `30/m`, `1000/h`, or `500`. Returns messages per second."""
    match = _RATE.fullmatch(text)
    rate = float(match[1]) / _PER_S[match[2] or "s"] if match else 0.0
    if not rate > 0:
        raise InvalidValueError(f"{name} is {text!r}; it must be a rate above 0 and below 10^9 such as 500/s or 30/m")
    return rate


def parse_day(text: str, name: str) -> date:
    """Parse a day such as `2026-11-20`."""
    try:
        if not _DAY.fullmatch(text):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidValueError(f"{name} is {text!r}; it must be a day such as 2026-11-20") from None


def choice(kinds: type[E]) -> Callable[[str, str], E]:
    """Return a parser for the names of an enum's members. The case is ignored, and `-` stands for `_`."""

    def parse(text: str, name: str) -> E:
        try:
            return kinds[text.upper().replace("-", "_")]
        except KeyError:
            known = ", ".join(map(dashed, kinds))
            raise InvalidValueError(f"{name} is {text!r}; it must be one of {known}") from None

    return parse


parse_type, parse_when_full, parse_ties = choice(TopicType), choice(WhenFull), choice(Ties)


def parse_retry(text: str, name: str) -> RetryPolicy:
    """Parse a retry policy: `immediate`, `exponential[:BASE,CAP]` or `ladder[:STEP,STEP,...]`."""
    policy, colon, rest = text.partition(":")
    waits = [parse_duration(part, name) for part in rest.split(",")] if colon else []
    match policy, waits:
        case "immediate", []:
            return ImmediateRetry()
        case "exponential", []:
            return ExponentialRetry()
        case "exponential", [base, cap]:
            return ExponentialRetry(base, cap)
        case "ladder", []:
            return LadderRetry()
        case "ladder", steps:
            if any(step % timedelta(seconds=1) for step in steps):
                raise InvalidValueError(f"{name} is {text!r}; the steps of a ladder must be whole seconds")
            return LadderRetry(steps)
        case _:
            rule = "immediate, exponential, exponential:BASE,CAP (as in 1s,10m), ladder or ladder:STEP,STEP,..."
            raise InvalidValueError(f"{name} is {text!r}; it must be {rule}")


def parse_count_or_none(text: str, name: str) -> int | None:
    """Parse a whole number; `none` gives `None`."""
    if text.lower() == "none":
        return None
    if not re.fullmatch(r"\d{1,16}", text, re.ASCII):
        raise InvalidValueError(f"{name} is {text!r}; it must be a whole number of up to 16 digits, or none")
    return int(text)


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


def typed(parse: Callable[[str, str], Any]) -> Callable[[str], partial[Any]]:
    """Return a parser for typer that delays `parse` until the command runs, when the option's name is known."""
    return lambda text: partial(parse, text)


duration, instant = typed(typed_duration_ms), typed(typed_instant_ms)


def span_of(milliseconds: int | None) -> timedelta | None:
    """Return parsed milliseconds as a `timedelta`; `None` stays `None`."""
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


payload = os.fsencode
"""Converts an argument to the bytes that were typed. Python decodes bytes that are not UTF-8 to surrogates."""

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
StreamName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the stream topic.")]
Content = Annotated[bytes, typer.Argument(metavar="CONTENT", help="Content of the message.", parser=payload)]
SlotBasis = Annotated[
    bytes | None,
    typer.Option(
        metavar="TEXT", help="Slot basis (routing key) that the message was sent with, if any.", parser=payload
    ),
]
Slots = Annotated[
    list[int] | None, typer.Option("--slot", metavar="N", help="Only this slot. Can be given more than once.")
]
Group = Annotated[str | None, typer.Option("--group", metavar="NAME", help="stream: name of the group.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
Start = Annotated[
    str | None,
    typer.Option(
        "--start", metavar="new|all|ID", help="stream: position at which a new group starts.  \\[default: new]"
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Maximum number of messages.")]
NewPriority = Annotated[int | None, typer.Option("--priority", help="priority: new priority. Default: the lowest.")]
DueIn = Annotated[
    int | None,
    typer.Option(
        metavar="DURATION", help="range-merge, fixed-time: due after this duration. Default: now.", parser=duration
    ),
]
PER_SECOND = typer.Option(
    "--rate",
    metavar="N/s",
    help="Maximum number of messages per second (or N/m, N/h) in the whole cluster.",
    parser=typed(parse_rate),
)
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
