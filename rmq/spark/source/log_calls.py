"""Script calls of queries on STREAM topics."""

from __future__ import annotations

from typing import Any, NamedTuple

from rmq._broker import shared
from rmq._broker.binding import BoundScript, refusal
from rmq._broker.keys import group_keys
from rmq._model.topics import Topic
from rmq._transport.call import Call, is_one
from rmq.errors import DriverReplacedError, InvalidValueError

_DRIVER = "{target}: another driver ({}) reads the topic with this group; a group has only one driver"
_CONSUMERS = (
    "{target}: the group has {} consumers, but a query needs a group without consumers; use another group, or remove "
    "the consumers"
)
_REPLACED = {"RMQ_DRIVER": refusal(DriverReplacedError, _DRIVER)}
_POSITION = BoundScript("spark_position", {"RMQ_CONSUMERS": refusal(InvalidValueError, _CONSUMERS)})
_WALK, _ADVANCE = BoundScript("spark_walk"), BoundScript("spark_advance", _REPLACED)
_TRIM = BoundScript("spark_trim", _REPLACED)


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
        limit: Maximum number of entries, 1 to `MAX_BATCH`.
        most_bytes: Maximum size of their fields, bytes.
        any_size: Whether the first entry may be larger.
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
        number: Number of entries counted.
        size_bytes: Size of their fields, bytes.
        more: Whether there are more entries in the range.
        sent: Number of entries ever added for the group; `None` if unknown.
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
        number: Number of dropped entries.
        more: Whether more entries can be dropped than one call may drop.
        held: Whether a group still needs entries in the range.
    """

    number: int
    more: bool
    held: bool


def _count(text: bytes) -> int | None:
    return int(text) if text else None


def position(topic: Topic, slot: int, group: str, driver: str) -> Call[Standing]:
    """Return a call that starts a driver on a slot."""

    def parse(reply: list[bytes]) -> Standing:
        return Standing(reply[0].decode(), reply[1].decode(), _count(reply[2]), int(reply[3]))

    return _POSITION.call(topic, slot, parse, group=group, driver=driver)


def walk(topic: Topic, slot: int, group: str, reach: Reach) -> Call[Walked]:
    """Return a call that counts the next entries of a slot."""

    def parse(reply: list[bytes]) -> Walked:
        at, last, number, size, more, sent = reply
        return Walked(at.decode(), last.decode(), int(number), int(size), is_one(more), _count(sent))

    args: dict[str, Any] = {**reach._asdict(), "any_size": int(reach.any_size)}
    return _WALK.call(topic, slot, parse, group=group, **args)


def advance(topic: Topic, slot: int, group: str, driver: str, upto: str, read: int, missing: int) -> Call[bool]:
    """Return a call that commits a slot up to an id; its result is whether the group has moved.

    Args:
        topic: The definition.
        slot: The slot.
        group: Name of the group.
        driver: Identity of the driver.
        upto: Id of the last entry that is committed.
        read: Number of entries that the group has read or skipped by then.
        missing: Number of entries of the last batch that were trimmed or deleted before they were read.
    """
    return _ADVANCE.call(topic, slot, is_one, group=group, driver=driver, upto=upto, read=read, missing=missing)


def trim(topic: Topic, slot: int, group: str, driver: str, upto: str) -> Call[Dropped]:
    """Return a call that trims entries of a slot up to an id; the group has committed them, and no other needs them."""

    def parse(reply: list[bytes]) -> Dropped:
        return Dropped(int(reply[0]), is_one(reply[1]), is_one(reply[2]))

    return _TRIM.call(topic, slot, parse, group=group, driver=driver, upto=upto)


def lock_run(topic: Topic, group: str, holder: str, hold_ms: int, *, keep: bool) -> Call[shared.Lock]:
    """Return a call that takes, keeps or, with `hold_ms=0`, ends the lock of an archive's run."""
    key = group_keys(topic.name, 0, group).group
    return shared.take_lock(key, "run", holder, hold_ms, "keep" if keep else "take")._replace(topic=topic.name)
