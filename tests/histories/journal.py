"""Appends what happens to a file that several processes share; `story.py` says what its lines mean."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rmq.errors import RmqError, SendError

FOREVER_S = float("inf")


class Journal:
    """Appends events to a file. Each event is one write, so that a killed process leaves no half of one."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._batches = 0

    def write(self, kind: str, *values: object) -> None:
        """Append an event."""
        os.write(self._file, ("\t".join((kind, *map(str, values))) + "\n").encode())

    def clock(self) -> None:
        """Note what the wall clock shows now."""
        self.write("clock", now_s(), int(time.time() * 1000))

    def send(
        self,
        topic: str,
        pairs: Sequence[tuple[str, str]],
        send: Callable[[], object],
        name: Callable[[Any], str],
        due_ms: Sequence[int] = (),
    ) -> None:
        """Send a batch; note before what it is, so that a killed process's sends are known, and then its states.

        Args:
            topic: Name of the topic.
            pairs: Content and id of each send.
            send: Sends the batch.
            name: Returns the id of a message that was not stored, or whose state is not known.
            due_ms: When the sends make their contents due, see `story.Send`; empty for 0.
        """
        self._batches += 1
        batch = f"{os.getpid()}.{self._batches}"
        self.write("try", now_s(), os.getpid(), batch, topic, *(word for pair in pairs for word in pair))
        if due_ms:
            self.write("due", batch, *due_ms)
        refused: list[str] = []
        unknown: list[str] = []
        try:
            send()
        except SendError as error:
            refused, unknown = list(map(name, error.not_stored)), list(map(name, error.unknown))
        except RmqError:
            unknown = [sent_id for _, sent_id in pairs]
        self.write("sent", now_s(), batch, ",".join(refused), ",".join(unknown))

    def begin(self, run: str, topic: str, slot: int, content: str, ids: Iterable[str], *ms: int) -> None:
        """Note that a handler begins; `ms`: when its message was claimed, and when it was due, 0 for unknown."""
        self.write("begin", now_s(), os.getpid(), run, topic, slot, content, ",".join(ids), *ms)

    def end(self, outcome: str, *runs: str) -> None:
        """Note that handlers end, before their outcome is on its way."""
        self.write("end", now_s(), outcome, *runs)

    def trouble(self, cause: str, who: str, from_s: float, to_s: float | None = None) -> None:
        """Note a trouble; it ends now by default."""
        self.write("trouble", cause, who, from_s, now_s() if to_s is None else to_s)


_PIDS: set[int] = set()


def start_process(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process of a story, with a pid that none had before: events name processes by it, and Linux reuses them.

    Args:
        command: The program and its arguments.
        options: Those of `subprocess.Popen`.
    """
    while (process := subprocess.Popen[bytes](command, **options)).pid in _PIDS:
        with process:
            process.kill()
    _PIDS.add(process.pid)
    return process


def now_s() -> float:
    """Return the time on the clock that all processes of this machine share."""
    return time.monotonic()
