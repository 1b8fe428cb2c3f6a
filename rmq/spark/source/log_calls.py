"""The scripts of queries that follow STREAM topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rmq._broker.binding import BoundScript
from rmq._model.topics import Topic
from rmq._transport.call import Call, is_one
from rmq.errors import DriverReplacedError, InvalidValueError, RmqError


def _replaced(call: Call[Any], words: Sequence[str]) -> RmqError:
    text = f"{call.target}: another driver ({words[0]}) follows the topic as this group; only one may"
    return call.error(DriverReplacedError, text)


def _consumed(call: Call[Any], words: Sequence[str]) -> RmqError:
    text = (
        f"{call.target}: the group has {words[0]} consumers, and a query needs a group of its own; "
        "choose another group, or remove the consumers"
    )
    return call.error(InvalidValueError, text)


_POSITION = BoundScript("spark_position", {"RMQ_CONSUMERS": _consumed})
_WALK, _ADVANCE = BoundScript("spark_walk"), BoundScript("spark_advance", {"RMQ_DRIVER": _replaced})
_TRIM, _TURN = BoundScript("spark_trim", {"RMQ_DRIVER": _replaced}), BoundScript("spark_turn")


class Standing(NamedTuple):
    """Where a group stands in a slot.

    Attributes:
        position: Id of the last entry that it has committed; empty where the group is not.
        newest: Id of the newest entry; empty where there is none.
        sent: Entries that were ever there for the group; `None` where that is not known: it began at an id.
        read: How many entries it has read or passed over.
    """

    position: str
    newest: str
    sent: int | None
    read: int


class Reach(NamedTuple):
    """Which entries of a slot are counted.

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
        position: Id of the last entry that the group has committed; empty where the group is not.
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
    """What the trimming of a slot did.

    Attributes:
        number: Entries dropped.
        more: Whether there is more to drop than one call may.
        held: Whether a group still needs entries that were to go.
    """

    number: int
    more: bool
    held: bool


def _count(text: bytes) -> int | None:
    return int(text) if text else None


def position(topic: Topic, slot: int, group: str, driver: str) -> Call[Standing]:
    """Build the beginning of a driver's work on a slot."""

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
    """Build the commit of a slot up to an id; answers whether the group has moved.

    Args:
        topic: The definition.
        slot: The slot.
        group: Name of the group.
        driver: Names the driver.
        upto: Id of the last entry that is committed.
        read: How many entries the group has read or passed over by then, from its beginning.
        missing: How many of the last batch were trimmed or deleted before they were read.
    """
    args = _ADVANCE.args(group=group, driver=driver, upto=upto, read=read, missing=missing)
    return _ADVANCE.call(topic, slot, is_one, args, group=group)


def trim(topic: Topic, slot: int, group: str, driver: str, upto: str) -> Call[Dropped]:
    """Build the trimming of a slot up to an id, of what this group has committed and no other needs."""

    def parse(reply: list[bytes]) -> Dropped:
        return Dropped(int(reply[0]), is_one(reply[1]), is_one(reply[2]))

    return _TRIM.call(topic, slot, parse, _TRIM.args(group=group, driver=driver, upto=upto), group=group)


def turn(topic: Topic, group: str, holder: str, hold_ms: int, *, keep: bool) -> Call[tuple[str, int]]:
    """Build the taking, keeping or ending of an archive's turn; answers who has it, and until when, epoch ms."""

    def parse(reply: list[bytes]) -> tuple[str, int]:
        return reply[0].decode(), int(reply[1])

    return _TURN.call(topic, 0, parse, _TURN.args(holder=holder, hold_ms=hold_ms, keep=int(keep)), group=group)
