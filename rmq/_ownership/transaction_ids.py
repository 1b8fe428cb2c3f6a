"""Detects a ZooKeeper that was restored from a backup, which would issue the same czxids a second time.

Redis stores the highest epoch of each ensemble (`_ownership/redis_identity.py`). Before a worker acquires slots over a
new connection, it gets that epoch from Redis. If ZooKeeper's transaction id is lower, the ensemble gets a new identity:
Redis then refuses its epochs until an operator moves the topics over. So no czxid is the epoch of two owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from rmq._ownership.documents import ENSEMBLE
from rmq._ownership.problems import ProblemLog
from rmq._ownership.requests import BrokenOffError, Get, Put, Refused, Steps, read

ConnectionKey = tuple[int, int]
"""A session id, and the number of times its connection has broken."""


class TransactionIdCheck:
    """Compares ZooKeeper's transaction id with the highest epochs that Redis has seen."""

    def __init__(self, problems: ProblemLog) -> None:
        self.gated = False  # acquire slots only after `give` was called for the connection
        self._problems = problems
        self._marks: dict[str, int] = {}
        self._given: ConnectionKey | None = None
        self._connection: ConnectionKey | None = None
        self._reached = 0  # ZooKeeper's transaction id, read over this connection

    @property
    def awaits(self) -> ConnectionKey | None:
        """The connection that waits for `give`; None if no connection does."""
        return self._connection if self.gated and self._given != self._connection else None

    def give(self, connection: ConnectionKey, marks: Mapping[str, int]) -> None:
        """Record the highest epoch of each ensemble, read from Redis after this connection was opened."""
        self._given = connection
        for ensemble, zxid in marks.items():
            self.note(ensemble, zxid)

    def note(self, ensemble: str, zxid: int) -> None:
        """Record that an ensemble has issued this transaction id."""
        self._marks[ensemble] = max(zxid, self._marks.get(ensemble, 0))

    def reached(self, ensemble: str) -> bool:
        """Return whether ZooKeeper's transaction id has reached every epoch recorded for this ensemble."""
        return self._marks.get(ensemble, 0) <= self._reached

    def check(self, connection: ConnectionKey, ensemble: str, path: str) -> Steps[bool]:
        """Check that ZooKeeper's transaction id has not gone back, and return whether slots may be acquired.

        The worker's node at `path` is written once: the transaction id of that write is ZooKeeper's current one.

        Raises:
            BrokenOffError: The transaction id has gone back, so the ensemble got a new identity, which the next round
                reads.
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
                f"ZooKeeper was restored from an older state: its transaction id is {self._reached}, but Redis has seen"
                f" epoch {self._marks[ensemble]} of ensemble {ensemble}. It gets a new identity, since it would issue"
                " the same epochs again"
            )
        raise BrokenOffError
