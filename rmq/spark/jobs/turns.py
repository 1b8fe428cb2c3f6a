"""The lock that allows one run of an archive at a time: two runs that write a batch could delete each other's files."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress

from rmq._broker.shared import Lock
from rmq._model.topics import Topic
from rmq._transport.connections import Connections
from rmq.errors import DriverReplacedError, RmqError
from rmq.spark.jobs import Say
from rmq.spark.progress import watching
from rmq.spark.source import log_calls

HOLD_MS = 20_000
"""Lifetime of the lock, ms: the next run waits this long after a run was killed."""

RENEW_S = 4.0
_LOOK_S = 0.5


class Turn:
    """A lock in Redis for a run. Others wait until it expires, and fail if its holder renews it.

    Args:
        connections: Connections to Redis.
        topic: The definition.
        group: Name of the archive's group.
    """

    def __init__(self, connections: Connections, topic: Topic, group: str) -> None:
        self._connections, self._topic, self._group = connections, topic, group
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

    @contextmanager
    def held(self, say: Say) -> Generator[None]:
        """Context manager that makes this the only active run.

        Raises:
            DriverReplacedError: Another run of the job is active.
        """
        self._take(say)
        try:
            with watching(self._renew, RENEW_S):
                yield
        finally:
            with suppress(RmqError):
                self._ask(0, keep=True)

    def check(self) -> None:
        """Renew the lock, and check that this run still holds it.

        Raises:
            DriverReplacedError: Another run has the lock, for example after a pause longer than its lifetime.
        """
        if self._ask(HOLD_MS, keep=True).holder != self._holder:
            raise self._at_work("another run was started while this one was paused")

    def _take(self, say: Say) -> None:
        before: Lock | None = None
        while True:
            found = self._ask(HOLD_MS, keep=False)
            if found.holder == self._holder:
                return
            if before is None:
                say(f"waiting for run {found.holder} to end")
            elif found[:2] != before[:2]:  # it was renewed, so that its holder is alive
                raise self._at_work(f"another run ({found.holder}) is active")
            before = found
            time.sleep(_LOOK_S)

    def _renew(self) -> None:
        self._ask(HOLD_MS, keep=True)

    def _ask(self, hold_ms: int, *, keep: bool) -> Lock:
        return self._connections.run(log_calls.lock_run(self._topic, self._group, self._holder, hold_ms, keep=keep))

    def _at_work(self, what: str) -> DriverReplacedError:
        return DriverReplacedError(
            f"topic {self._topic.name}, archive group {self._group}: {what}; only one run may be active",
            topic=self._topic.name,
        )
