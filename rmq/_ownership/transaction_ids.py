"""Whether ZooKeeper still counts on from where it was: one restored from a backup gives out the same czxids again.

Redis remembers the highest epoch of each ensemble (`_listening/redis_identity.py`). Before a worker takes slots over a
new connection, it hears from Redis how far that was. If ZooKeeper is behind, the ensemble gets a new identity: Redis
then refuses its epochs until an operator moves the topics over on purpose. So no czxid counts for two owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from rmq._ownership.documents import ENSEMBLE
from rmq._ownership.problems import ProblemLog
from rmq._ownership.requests import BrokenOffError, Get, Put, Refused, Steps, read

ConnectionKey = tuple[int, int]
"""A session, and how often its connection has broken."""


class TransactionIdCheck:
    """What is known of how far ensembles have counted."""

    def __init__(self, problems: ProblemLog) -> None:
        self.gated = False  # whether slots are taken only once marks were given for the connection
        self._problems = problems
        self._marks: dict[str, int] = {}
        self._given: ConnectionKey | None = None
        self._connection: ConnectionKey | None = None
        self._reached = 0  # how far ZooKeeper has counted for sure, seen over this connection

    @property
    def awaits(self) -> ConnectionKey | None:
        """The connection for which marks are awaited, None if for none."""
        return self._connection if self.gated and self._given != self._connection else None

    def give(self, connection: ConnectionKey, marks: Mapping[str, int]) -> None:
        """Say how far ensembles have counted, as read from Redis after this connection was made."""
        self._given = connection
        for ensemble, zxid in marks.items():
            self.note(ensemble, zxid)

    def note(self, ensemble: str, zxid: int) -> None:
        """Say that an ensemble has counted at least to this number."""
        self._marks[ensemble] = max(zxid, self._marks.get(ensemble, 0))

    def reached(self, ensemble: str) -> bool:
        """Tell whether ZooKeeper is known to have counted to all numbers that were said of this ensemble."""
        return self._marks.get(ensemble, 0) <= self._reached

    def check(self, connection: ConnectionKey, ensemble: str, path: str) -> Steps[bool]:
        """Look whether ZooKeeper has gone back; tell whether slots may be taken.

        The node of ours at `path` is written once: the number of that write is what ZooKeeper has reached.

        Raises:
            BrokenOffError: It has gone back, and has got a new identity; the next round reads it.
        """
        if self._connection != connection:
            self._connection, self._reached = connection, 0
        if not self.reached(ensemble):
            (node,) = yield from read(Get(path))
            if isinstance(node, Refused):
                return False
            if not isinstance(node, tuple):
                raise BrokenOffError
            written, node = yield from read(Put(path, node[0], node[1].version), Get(path))
            if isinstance(written, Refused) or isinstance(node, Refused):
                return False
            if not written or not isinstance(node, tuple):
                raise BrokenOffError
            self._reached = node[1].mzxid
        if not self.reached(ensemble):
            return (yield from self._begin_anew(ensemble))
        return self.awaits is None

    def _begin_anew(self, ensemble: str) -> Steps[bool]:
        (node,) = yield from read(Get(ENSEMBLE))
        if isinstance(node, Refused):
            return False
        if isinstance(node, tuple) and node[0].decode(errors="replace") == ensemble:
            (written,) = yield from read(Put(ENSEMBLE, str(uuid4()).encode(), node[1].version))
            if isinstance(written, Refused):
                return False
            self._problems.tell(
                f"ZooKeeper has gone back: it counts {self._reached}, and Redis has seen epoch"
                f" {self._marks[ensemble]} of ensemble {ensemble}. It was restored from an older state, whose numbers"
                " come twice; it gets a new identity"
            )
        raise BrokenOffError
