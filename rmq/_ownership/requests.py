"""Requests to ZooKeeper as plain values.

A round (`member.py`) yields batches of them and gets one reply for each; `zookeeper.py` carries them out with kazoo,
the simulation in the tests with a few dictionaries. A reply of `UNKNOWN` means that the connection broke: a read has to
be repeated, a change was carried out or not.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from rmq._ownership.values import Stat

Unknown = Enum("Unknown", "UNKNOWN")
UNKNOWN = Unknown.UNKNOWN
"""The reply that did not come."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Go through the leader, so that later reads are fresh and the reply proves contact. Reply: True."""


@dataclass(frozen=True, slots=True)
class Look:
    """Look at a node without its data. Reply: its `Stat`, None if there is no such node."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Get:
    """Read a node. Reply: `(data, Stat)`, None if there is no such node."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Children:
    """List a node's children. Reply: their names, None if there is no such node."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. Reply: its `Stat`, None if it is there already (or its parent is not)."""

    path: str
    data: bytes
    ephemeral: bool


@dataclass(frozen=True, slots=True)
class Put:
    """Set a node's data if it still has this version. Reply: whether it was set."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Release:
    """Delete a node if `guard` exists. Reply: whether the node is gone.

    The guard is our own worker node: should kazoo send this late, in a new session, it finds no guard and deletes no
    other worker's node.
    """

    path: str
    guard: str


Request = Sync | Look | Get | Children | Create | Put | Release
Reply = bool | Stat | tuple[bytes, Stat] | list[str] | Unknown | None

Node = tuple[bytes, Stat] | None
"""The reply to `Get`."""

T = TypeVar("T")
Steps = Generator[Sequence[Request], Sequence[Reply], T]
"""Yields batches of requests, is sent their replies."""


class BrokenOffError(Exception):
    """A read of this round got no reply: the rest of the round makes no sense."""


def read(*requests: Request) -> Steps[Sequence[Reply]]:
    """Carry out requests without which the round makes no sense.

    Raises:
        BrokenOffError: One got no reply.
    """
    if not requests:
        return ()
    replies = yield requests
    if any(reply is UNKNOWN for reply in replies):
        raise BrokenOffError
    return replies
