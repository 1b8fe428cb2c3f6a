"""Requests to ZooKeeper as plain values.

A round (`member.py`) yields batches of them and gets one reply for each; `zookeeper.py` carries them out with kazoo,
the simulation in the tests with a few dictionaries. A reply of `UNKNOWN` means that the connection broke: a read has to
be repeated, a change was carried out or not. A reply of `Refused` is ZooKeeper's no to this one request: nothing was
carried out, and the other requests of the round go on.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from rmq._ownership.values import Stat
from rmq.errors import CoordinationError

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
    version: int = -1  # the node's; -1 for any


Request = Sync | Look | Get | Children | Create | Put | Release

_VERBS = {
    **{Sync: "sync", Look: "look at", Get: "read", Children: "list"},
    **{Create: "create", Put: "write", Release: "delete"},
}


@dataclass(frozen=True, slots=True)
class Refused:
    """The reply to a request that ZooKeeper refuses: an ACL, a quota, or another error of this request alone."""

    request: Request
    reason: str  # the name of ZooKeeper's error: NoAuth, QuotaExceeded, ...

    @property
    def place(self) -> str:
        """The node whose ACL or quota is in the way: that of a new or deleted node is its parent's."""
        path = "/" if isinstance(self.request, Sync) else self.request.path
        return path.rpartition("/")[0] or "/" if isinstance(self.request, Create | Release) else path

    def text(self, chroot: str = "", more: int = 0) -> str:
        """Return the error in words; `more` requests below the same node were refused beside this one."""
        path = "/" if isinstance(self.request, Sync) else self.request.path
        place, path = ((chroot + each).rstrip("/") or "/" for each in (self.place, path))
        action = f"{_VERBS[type(self.request)]} {path}" + (f" and {more} more" if more else "")
        if self.reason == "NoAuth":
            return (
                f"ZooKeeper denies access: the ACL of {place} does not let this worker {action}; log in as the other"
                " workers do, correct the ACL, or use another chroot"
            )
        if self.reason == "QuotaExceeded":
            return f"ZooKeeper refuses to {action}: a quota of {place}, or of a node above it, is used up; raise it"
        return f"ZooKeeper refuses to {action}: {self.reason}"


class RefusedError(CoordinationError):
    """ZooKeeper refuses a request without which a call makes no sense."""


Reply = bool | Stat | tuple[bytes, Stat] | list[str] | Unknown | Refused | None

Node = tuple[bytes, Stat] | Refused | None
"""The reply to `Get`."""

T = TypeVar("T")
Steps = Generator[Sequence[Request], Sequence[Reply], T]
"""Yields batches of requests, is sent their replies."""


class BrokenOffError(Exception):
    """A read of this round got no reply: the rest of the round makes no sense."""


def read(*requests: Request) -> Steps[Sequence[Reply]]:
    """Carry out requests; without a reply to each, the round makes no sense. A refusal is a reply.

    Raises:
        BrokenOffError: One got no reply.
    """
    if not requests:
        return ()
    replies = yield requests
    if any(reply is UNKNOWN for reply in replies):
        raise BrokenOffError
    return replies
