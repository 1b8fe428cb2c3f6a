"""Converters from the text of an option to its value; an error names the option, its text and the rule."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from rmq import TopicType
from rmq.errors import InvalidValueError
from rmq.spi import typed_duration_ms
from rmq.spi.scripts import checked_group, is_chroot, is_id, is_name
from rmq.spi.scripts import position as id_of

MAX_RATE = 1_000_000
"""Largest `maxRate`, messages a second."""

MOST_MESSAGES = 10**9
"""Largest number of messages of a micro-batch that an option may set."""

MOST_BYTES = 2**40
"""Largest size of a micro-batch that an option may set, bytes."""

LAST_SEQUENCE = 2**64 - 1
"""The largest sequence number of a stream id: `ms-LAST_SEQUENCE` is the last id of a millisecond."""

MOST_QUOTED = 60
"""Maximum length of a text quoted in an error, characters."""

NAME_RULE = "it must be 1 to 128 characters of A-Z a-z 0-9 . _ -"
_INSTANT = "an entry's id, epoch ms, or a time with its zone such as 2026-11-20T08:00:00Z"

Convert = Callable[[str, str], Any]
"""Converts the text of an option into its value; the second argument is the option's name, for errors."""


def quoted(text: str) -> str:
    """Return a text quoted and shortened for an error."""
    return repr(text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}...")


def _wrong(name: str, value: str, rule: str) -> InvalidValueError:
    return InvalidValueError(f"{name} is {quoted(value)}; {rule}")


def text(text: str, name: str) -> str:
    """Return a text unchanged; raise an error if it is empty."""
    if not text:
        raise InvalidValueError(f"{name} is empty; give it a value, or remove the option")
    return text


def folder(value: str, name: str) -> str:
    """Return a path or URI; raise an error if it contains a password, as Spark shows options in its plans."""
    login = urlsplit(text(value, name)).netloc.rpartition("@")[0]
    if ":" in login:
        raise InvalidValueError(
            f"{name} contains a password, and Spark shows options in its plans. Remove it, and give the "
            "password to the executors as the file system expects it, such as in AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )
    return value


def flag(text: str, name: str) -> bool:
    """Return a flag: `true` or `false`, in any case."""
    if text.lower() not in ("true", "false"):
        raise _wrong(name, text, "it must be true or false")
    return text.lower() == "true"


def whole(low: int, high: int, otherwise: str = "") -> Convert:
    """Return a converter for whole numbers from `low` to `high`; an error also names what else the option takes."""

    def convert(text: str, name: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise _wrong(name, text, f"it must be a whole number from {low} to {high}{otherwise}")
        return int(text)

    return convert


def duration_ms(text: str, name: str) -> int:
    """Return a duration in ms: `5s`, `500 ms`, `2h`."""
    with suppress(InvalidValueError):
        return typed_duration_ms(text.replace(" ", "", 1), name)
    return typed_duration_ms(text, name)  # the error names it as it was given


def seconds(low: int, high: int) -> Convert:
    """Return a converter for seconds from `low` to `high`: a plain number, or a duration with a unit."""

    def convert(text: str, name: str) -> int:
        in_s = -1
        if text[-1:].isalpha():
            in_s = duration_ms(text, name) // 1000
        elif re.fullmatch("[0-9]{1,18}", text):
            in_s = int(text)
        if not low <= in_s <= high:
            raise _wrong(
                name, text, f"it must be from {low} to {high} seconds: a whole number, or a duration such as 90s or 5m"
            )
        return in_s

    return convert


def rate(text: str, name: str) -> float:
    """Return a rate in messages per second."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.001 <= found <= MAX_RATE:
        raise _wrong(name, text, f"it must be a number of messages per second from 0.001 to {MAX_RATE:,}")
    return found


def time_range(text: str, name: str) -> int:
    """Return a duration in ms, which must be more than 0."""
    time_range_ms = duration_ms(text, name)
    if time_range_ms == 0:
        raise _wrong(name, text, "it must be more than 0")
    return time_range_ms


def choice(*choices: str) -> Convert:
    """Return a converter for a choice of words."""

    def convert(text: str, name: str) -> str:
        if text.lower() not in choices:
            raise _wrong(name, text, f"it must be one of {', '.join(choices)}")
        return text.lower()

    return convert


def merge(text: str, name: str) -> str:
    """Return the folding of a sink: `partition` or `none`."""
    if text.lower() == "all":
        raise InvalidValueError(
            "merge is 'all': a sink cannot move rows between partitions; write rmq.spark.merged(frame, type, order_by) "
            "with merge=none"
        )
    return choice("partition", "none")(text, name)


def hosts(text: str, name: str) -> str:
    """Return the addresses of ZooKeeper's servers, `host:port` separated by commas."""
    server = r"[A-Za-z0-9._-]+:[0-9]{1,5}"
    if not re.fullmatch(rf"{server}(,{server})*", text):
        raise _wrong(name, text, "it must be servers as host:port, separated by commas: zk1:2181,zk2:2181")
    return text


def chroot(text: str, name: str) -> str:
    """Return a path in ZooKeeper."""
    if not is_chroot(text):
        raise _wrong(name, text, "it must be a path such as /rmq: names of A-Z a-z 0-9 . _ -, each after a slash")
    return text


def no_lease(_text: str, name: str) -> None:
    """Raise `InvalidValueError`: the lease cannot be set as an option."""
    raise InvalidValueError(
        f"format rmq has no option {name}: the lease is a setting of the topic, and the query's driver renews "
        "leases; remove the option"
    )


def topic(value: str, name: str) -> str:
    """Return the name of a topic."""
    if not is_name(text(value, name)):
        raise _wrong(name, value, NAME_RULE + ("; to read several topics, use option topics" if "," in value else ""))
    return value


def group(text: str, name: str) -> str:
    """Return the name of a consumer group."""
    try:
        return checked_group(text)
    except InvalidValueError:
        raise _wrong(name, text, NAME_RULE) from None


def position(text: str, name: str) -> str:
    """Return a stream id unchanged, or a time with a zone as the id of its millisecond."""
    return _position(text, name, f"it must be {_INSTANT}")


def _position(text: str, name: str, rule: str) -> str:
    if is_id(text):
        return text
    try:
        return id_of(datetime.fromisoformat(text), name)
    except ValueError:
        raise _wrong(name, text, rule) from None


def start(text: str, name: str) -> str:
    """Return `new`, `all`, or the id after which a group starts; for a time with a zone, the last id before it."""
    if text.lower() in ("new", "all"):
        return text.lower()
    found = _position(text, name, f"it must be new, all, {_INSTANT}")
    if "-" in found:
        return found
    return f"{int(found) - 1}-{LAST_SEQUENCE}" if int(found) else "0-0"


def ranges(text: str, name: str) -> tuple[tuple[int, str, str], ...]:
    """Return the slots to read, with the ids of the first and last entry of each, parsed from JSON."""
    with suppress(AttributeError, TypeError, ValueError, RecursionError):
        found = [(int(slot), *ends) for slot, ends in json.loads(text).items()]
        if all(len(each) == 3 and is_id(each[1]) and is_id(each[2]) for each in found):
            return tuple(sorted(found))
    rule = 'it must be JSON with the ids of the first and last entry of each slot, as {"0": ["5-0", "9-0"]}'
    raise _wrong(name, text, rule)


def topic_type(text: str, name: str) -> TopicType:
    """Return the type of a topic."""
    try:
        return TopicType[text.upper().replace("-", "_")]
    except KeyError:
        raise _wrong(name, text, f"it must be one of {', '.join(kind.name for kind in TopicType)}") from None


def columns(text: str, name: str) -> tuple[str, ...]:
    """Return names of columns, separated by commas."""
    names = tuple(each.strip().lower() for each in text.split(","))
    if "" in names or len(set(names)) < len(names):
        rule = "it must be a list of column names separated by commas, without duplicates; * means the default columns"
        raise _wrong(name, text, rule)
    return names


def topics(text: str, name: str) -> tuple[str, ...]:
    """Return names of topics, separated by commas."""
    names = tuple(each.strip() for each in text.split(","))
    if len(set(names)) < len(names) or not all(map(is_name, names)):
        raise _wrong(name, text, "it must be a list of topic names (A-Z a-z 0-9 . _ -) and commas, without duplicates")
    return names


def pattern(value: str, name: str) -> str:
    """Return a regular expression, unchanged but checked."""
    try:
        re.compile(text(value, name))
    except (re.error, OverflowError, RecursionError) as error:
        raise _wrong(name, value, f"it must be a regular expression: {error!s:.80}") from None
    return value


def messages(text: str, name: str) -> int:
    """Return a number of messages; the largest one for `all`."""
    return MOST_MESSAGES if text.lower() == "all" else whole(1, MOST_MESSAGES, ", or all")(text, name)


def size_bytes(text: str, name: str) -> int:
    """Return a number of bytes, plain or with a unit as in Spark's own options (`64m`)."""
    found = re.fullmatch("([0-9]{1,15})([kmg]?)b?", text.lower())
    number = int(found[1]) * 1_024 ** " kmg".index(found[2] or " ") if found else 0
    if not 1 <= number <= MOST_BYTES:
        raise _wrong(name, text, "it must be a number of bytes such as 64m, from 1 to 1024g")
    return number
