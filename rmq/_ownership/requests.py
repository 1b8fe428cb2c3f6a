"""Requests to ZooKeeper as plain values.

A round (`member.py`) yields batches of requests and gets one reply for each. A `Keeper` executes them: `zookeeper.py`
with kazoo, the tests' simulation with dictionaries. The reply `UNKNOWN` means that the connection broke: a read has to
be repeated, and a change may have been executed or not. The reply `Refused` means that ZooKeeper rejected this request,
without any effect; the other requests of the round go on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from rmq._ownership.values import Stat
from rmq.errors import CoordinationError

Unknown = Enum("Unknown", "UNKNOWN")
UNKNOWN = Unknown.UNKNOWN
"""The value of a reply that was not received."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Sync with ZooKeeper's leader, so that later reads are fresh and the reply proves contact. Reply: True."""


@dataclass(frozen=True, slots=True)
class Look:
    """Check a node without its data. Reply: its `Stat`, None if there is no such node."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Get:
    """Read a node. Reply: `(data, Stat)`, None if there is no such node."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Children:
    """List a node's children. Reply: their names, with `own` (Redis only) `OwnNodes`; None if there is no such node."""

    path: str
    watch: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True)
class OwnNodes:
    """The number of a node's children, and the names of those that belong to this session."""

    number: int
    names: list[str]


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. Reply: its `Stat`, None if it exists already or its parent does not."""

    path: str
    data: bytes
    ephemeral: bool


@dataclass(frozen=True, slots=True)
class Put:
    """Set a node's data if it still has this version. Reply: True if it was set."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Release:
    """Delete a node if `guard` exists. Reply: True if the node is gone.

    The guard is our own worker node: if kazoo sends the request late, in a new session, the guard is missing and no
    other worker's node is deleted. Within a session kazoo sends requests in order. Redis may get them in another order,
    over several connections: it compares the epoch, and deletes no node of another session.
    """

    path: str
    guard: str
    version: int = -1  # the node's; -1 for any
    epoch: int = 0  # the node's czxid; 0 for any


Request = Sync | Look | Get | Children | Create | Put | Release

_VERBS = {
    **{Sync: "sync", Look: "look at", Get: "read", Children: "list"},
    **{Create: "create", Put: "write", Release: "delete"},
}


@dataclass(frozen=True, slots=True)
class Refused:
    """The reply to a request that ZooKeeper refuses because of an ACL, a quota or another error of this request."""

    request: Request
    reason: str  # the name of ZooKeeper's error: NoAuth, QuotaExceeded, ...

    @property
    def place(self) -> str:
        """The node whose ACL or quota applies: for a creation or deletion, the parent."""
        path = "/" if isinstance(self.request, Sync) else self.request.path
        return path.rpartition("/")[0] or "/" if isinstance(self.request, Create | Release) else path

    def text(self, chroot: str = "", more: int = 0) -> str:
        """Return the error message. `more` is the number of other requests below the same node that were refused."""
        path = "/" if isinstance(self.request, Sync) else self.request.path
        place, path = ((chroot + each).rstrip("/") or "/" for each in (self.place, path))
        action = f"{_VERBS[type(self.request)]} {path}" + (f" and {more} more" if more else "")
        if self.reason == "NoAuth":
            return (
                f"ZooKeeper denies access: the ACL of {place} does not allow this worker to {action}. Use the same"
                " login as the other workers, correct the ACL, or use another chroot"
            )
        if self.reason == "QuotaExceeded":
            return f"ZooKeeper refuses to {action}: the quota of {place}, or of a node above it, is exceeded; raise it"
        return f"ZooKeeper refuses to {action}: {self.reason}"


class RefusedError(CoordinationError):
    """ZooKeeper refused a request that a call depends on."""


Reply = bool | Stat | tuple[bytes, Stat] | list[str] | OwnNodes | Unknown | Refused | None

Node = tuple[bytes, Stat] | Refused | None
"""The reply to `Get`."""

T = TypeVar("T")
Steps = Generator[Sequence[Request], Sequence[Reply], T]
"""A generator that yields batches of requests and is sent their replies."""


class Keeper(Protocol):
    """A sequence of sessions with the service that keeps the nodes: what rounds and the coordinator need of it.

    Attributes:
        name: Name of the service, for messages.
        session_timeout_s: Seconds without contact after which the service ends a session, as it granted them.
    """

    name: str
    session_timeout_s: float

    @property
    def session(self) -> int | None:
        """Id of the session; None while there is no connection."""
        ...

    @property
    def refusal(self) -> str | None:
        """The server and error of the last failed connection; None if it succeeded, or none was tried."""
        ...

    def start(self) -> None:
        """Start connecting; returns at once."""
        ...

    def stop(self) -> None:
        """End the session, if the service can be reached."""
        ...

    def renew(self) -> None:
        """Connect in another way, if that is needed. Called in each round without a session.

        Raises:
            CoordinationError: The login was refused.
        """
        ...

    def ensure_chroot(self) -> None:
        """Create the parent of all nodes. Called in the first round of a session.

        Raises:
            CoordinationError: Permission is denied, or no server answers.
        """
        ...

    def carry_out(
        self, session: int, requests: Sequence[Request], heard: Callable[[float], None] | None = None
    ) -> list[Reply]:
        """Execute requests of a session in their order; return a reply for each, UNKNOWN if the connection broke.

        Args:
            session: The session to which the requests belong.
            requests: The requests.
            heard: Called after a reply that proves that the session was alive, with the time at which its request was
                sent.
        """
        ...


class BrokenOffError(Exception):
    """A request of this round got no reply, so the round ends."""


def read(*requests: Request) -> Steps[Sequence[Reply]]:
    """Send requests, and end the round unless each gets a reply. A refusal is a reply.

    Raises:
        BrokenOffError: A request got no reply.
    """
    if not requests:
        return ()
    replies = yield requests
    if any(reply is UNKNOWN for reply in replies):
        raise BrokenOffError
    return replies
