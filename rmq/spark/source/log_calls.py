"""Calls of the scripts of queries on STREAM topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rmq._broker.binding import BoundScript
from rmq._model.topics import Topic
from rmq._transport.call import Call, is_one
from rmq.errors import DriverReplacedError, InvalidValueError, RmqError


def _replaced(call: Call[Any], words: Sequence[str]) -> RmqError:
    text = f"{call.target}: another driver ({words[0]}) reads the topic with this group; a group can have one driver"
    return call.error(DriverReplacedError, text)


def _consumed(call: Call[Any], words: Sequence[str]) -> RmqError:
    text = (
        f"{call.target}: the group has {words[0]} consumers, but a query needs a group without "
        "consumers; use another group, or remove the consumers"
    )
    return call.error(InvalidValueError, text)


_POSITION = BoundScript("spark_position", {"RMQ_CONSUMERS": _consumed})
_WALK, _ADVANCE = BoundScript("spark_walk"), BoundScript("spark_advance", {"RMQ_DRIVER": _replaced})
_TRIM, _TURN = BoundScript("spark_trim", {"RMQ_DRIVER": _replaced}), BoundScript("spark_turn")


class Standing(NamedTuple):
    """The position of a group in a slot.

    Attributes:
        position: Id of the last entry that it has committed; empty if the group does not exist.
        newest: Id of the newest entry; empty if there is none.
        sent: Number of entries ever added for the group; `None` if unknown, since it started at an id.
        read: Number of entries that it has read or skipped.
    """

    position: str
    newest: str
    sent: int | None
    read: int


class Reach(NamedTuple):
    """The range of entries of a slot to count.

    Attributes:
        after: Id of the entry before the first one.
        upto: Id of the last entry, or `+`.
        limit: Most entries, 1 to `MAX_BATCH`.
        most_bytes: Most bytes of their fields.
        any_size: The first one may have more.
    """

    after: str
    upto: str
    limit: int
    most_bytes: int
    any_size: bool


class Walked(NamedTuple):
    """The next entries of a slot.

    Attributes:
        position: Id of the last entry that the group has committed; empty if it does not exist.
        last: Id of the last entry counted; empty for none.
        number: Entries counted.
        size_bytes: Bytes of their fields.
        more: Whether there are more.
        sent: As in `Standing`.
    """

    position: str
    last: str
    number: int
    size_bytes: int
    more: bool
    sent: int | None


class Dropped(NamedTuple):
    """The result of trimming a slot.

    Attributes:
        number: Entries dropped.
        more: Whether more entries can be dropped than one call may drop.
        held: Whether a group still needs entries in the range.
    """

    number: int
    more: bool
    held: bool


def _count(text: bytes) -> int | None:
    return int(text) if text else None


def position(topic: Topic, slot: int, group: str, driver: str) -> Call[Standing]:
    """Build a driver's start on a slot."""

    def parse(reply: list[bytes]) -> Standing:
        return Standing(reply[0].decode(), reply[1].decode(), _count(reply[2]), int(reply[3]))

    return _POSITION.call(topic, slot, parse, _POSITION.args(group=group, driver=driver), group=group)


def walk(topic: Topic, slot: int, group: str, reach: Reach) -> Call[Walked]:
    """Build the count of the next entries."""

    def parse(reply: list[bytes]) -> Walked:
        at, last, number, size, more, sent = reply
        return Walked(at.decode(), last.decode(), int(number), int(size), is_one(more), _count(sent))

    after, upto, limit, most_bytes, any_size = reach
    args = _WALK.args(group=group, after=after, upto=upto, limit=limit, most_bytes=most_bytes, any_size=int(any_size))
    return _WALK.call(topic, slot, parse, args, group=group)


def advance(topic: Topic, slot: int, group: str, driver: str, upto: str, read: int, missing: int) -> Call[bool]:
    """Build the commit of a slot up to an id; returns whether the group has moved.

    Args:
        topic: The definition.
        slot: The slot.
        group: Name of the group.
        driver: Identity of the driver.
        upto: Id of the last entry that is committed.
        read: Number of entries that the group has read or skipped by then.
        missing: Number of entries of the last batch that were trimmed or deleted before they were read.
    """
    args = _ADVANCE.args(group=group, driver=driver, upto=upto, read=read, missing=missing)
    return _ADVANCE.call(topic, slot, is_one, args, group=group)


def trim(topic: Topic, slot: int, group: str, driver: str, upto: str) -> Call[Dropped]:
    """Build the trimming of a slot up to an id: entries that this group has committed and no other group needs."""

    def parse(reply: list[bytes]) -> Dropped:
        return Dropped(int(reply[0]), is_one(reply[1]), is_one(reply[2]))

    return _TRIM.call(topic, slot, parse, _TRIM.args(group=group, driver=driver, upto=upto), group=group)


def turn(topic: Topic, group: str, holder: str, hold_ms: int, *, keep: bool) -> Call[tuple[str, int]]:
    """Build the acquire, renewal or release of an archive's run lock; returns its holder and its end, epoch ms."""

    def parse(reply: list[bytes]) -> tuple[str, int]:
        return reply[0].decode(), int(reply[1])

    return _TURN.call(topic, 0, parse, _TURN.args(holder=holder, hold_ms=hold_ms, keep=int(keep)), group=group)
