"""Notifies a query's driver of committed batches at once, rather than at the next trigger.

Spark reports a commit in the program that runs the query. The driver of the source is a separate process that Spark
starts on the same machine; it listens on a socket in a directory that only this user can access. A lost notification
only costs time: the next trigger, or the next driver, acks the batch.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger("rmq.spark")

_QUERY = re.compile("[0-9a-f]{32}")
_MOST_BYTES = 1_000
_PATIENCE_S = 1.0


def _folder() -> Path | None:
    """Return the directory of the sockets, `None` if it cannot be private to this user."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    folder = Path(tempfile.gettempdir()) / f"rmq-spark-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    alone = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if alone else None


def _place(query: str) -> str | None:
    folder = _folder()
    return None if folder is None or not _QUERY.fullmatch(query) else str(folder / query)


class CommitReceiver:
    """Receives the numbers of a query's committed batches from `tell`, and passes them to a callback.

    Args:
        query: Identity of the query.
        committed: Called in a separate thread.
    """

    def __init__(self, query: str, committed: Callable[[int], None]) -> None:
        self._query, self._committed = query, committed
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        try:
            place = _place(query)
            if place is None:
                raise OSError(
                    f"it needs Unix sockets and this user's private directory {tempfile.gettempdir()}/rmq-spark-UID"
                )
            _forget_ended(Path(place))
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.bind(place)
        except OSError as error:
            self.close()
            log.info(
                "query %s acks each batch at its next trigger, since it cannot listen for commits: %s", query, error
            )
            return
        self._thread = threading.Thread(
            target=self._receive, args=(self._socket,), name="rmq-spark-commits", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. When this returns, no new call starts; one may still be running."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_S)

    def _receive(self, listening: socket.socket) -> None:
        while True:
            try:
                said = listening.recv(_MOST_BYTES)
            except OSError:
                return
            if not said:
                return
            if said.isdigit():
                self._committed(int(said))


def _forget_ended(place: Path) -> None:
    """Delete the socket of this query's previous driver, and all sockets without a listener."""
    for path in place.parent.iterdir():
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as knocking, suppress(OSError):
            try:
                knocking.connect(str(path))
                listened_on = True
            except ConnectionRefusedError:
                listened_on = False
            if path == place or not listened_on:
                path.unlink()


def tell(offset: object) -> bool:
    """Notify the driver of a query on this machine that the batch with this end offset is committed.

    Args:
        offset: The end offset in Spark's progress report; offsets of other sources are ignored.

    Returns:
        True if a driver was notified.
    """
    try:
        batch = json.loads(cast("str", offset))
        if "topics" in batch:  # one query per topic
            return any([_tell(each) for each in batch["topics"].values()])
        return _tell(batch)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _tell(batch: dict[str, Any]) -> bool:
    query, seq = batch["qid"], batch["seq"]
    place = _place(query) if isinstance(query, str) and isinstance(seq, int) else None
    if place is None:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
            telling.setblocking(False)
            telling.sendto(b"%d" % seq, place)
    except OSError:
        return False
    return True


class CommitListener(StreamingQueryListener):
    """A listener that receives the commits of queries in the program that runs them."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Notify the driver of each source of the query, as Spark reports a batch after its commit."""
        for source in cast("Any", event).progress.sources:
            tell(source.endOffset)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing."""
