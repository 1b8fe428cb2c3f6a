"""The worker processes of the demo, as the demo sees them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Self

from rmq.demo.handled import Handled
from rmq.errors import RmqError

WORKERS = 2

_STOP_LIMIT_S = 10.0
_LOG_LINES = 5


class Crew:
    """Worker processes. They get the URL by `RMQ_URL`, like any other, so that a password in it shows nowhere.

    At the end of its block they get a moment to finish; then they are killed.

    Args:
        url: Where the topics are.
        seconds_per_minute: How long a minute of order time takes.
        folder: Where to draw pictures; `None` for none.
    """

    def __init__(self, url: str, seconds_per_minute: float, folder: Path | None = None) -> None:
        self._logs: list[IO[str]] = []
        self._workers: list[subprocess.Popen[str]] = []
        try:
            for _ in range(WORKERS):
                self._start(url, [repr(seconds_per_minute), *([] if folder is None else [str(folder)])])
        except BaseException:
            self.__exit__()
            raise

    def _start(self, url: str, arguments: list[str]) -> None:
        log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._logs.append(log)
        self._workers.append(
            subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "rmq.demo.worker", *arguments],
                env={**os.environ, "RMQ_URL": url, "PYTHONIOENCODING": "utf-8"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
                start_new_session=True,  # a Ctrl-C in the terminal is for the demo, which ends them in order
            )
        )

    def wait_ready(self) -> None:
        """Return when all are listening.

        Raises:
            RmqError: One did not start.
        """
        for worker, log in zip(self._workers, self._logs, strict=True):
            if worker.stdout is None or worker.stdout.readline() != "ready\n":
                raise _failed("did not start", log)

    def check(self) -> None:
        """Raise an error if one ended badly, or before it was told to.

        Raises:
            RmqError: One did.
        """
        for worker, log in zip(self._workers, self._logs, strict=True):
            if worker.poll() is not None and (worker.returncode or worker.stdin is not None):
                raise _failed(f"ended with code {worker.returncode}", log)

    def dismiss(self) -> list[Handled]:
        """Let all finish, and return what they wrote down.

        Raises:
            RmqError: One did not end, or not well.
        """
        written = self._end()
        for text, log in zip(written, self._logs, strict=True):
            if text is None:
                raise _failed(f"did not end in {_STOP_LIMIT_S:g} s", log)
        self.check()
        return [Handled.from_json(line) for text in written for line in (text or "").splitlines()]

    def _end(self) -> list[str | None]:
        """End all; return what each wrote, `None` where it had to be killed."""
        for worker in self._workers:
            if worker.stdin is not None:
                worker.stdin.close()
                worker.stdin = None
        return [_last_output(worker) for worker in self._workers]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for log in self._logs:
            log.close()


def _last_output(worker: subprocess.Popen[str]) -> str | None:
    try:
        return worker.communicate(timeout=_STOP_LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.communicate()
        return None


def _failed(how: str, log: IO[str]) -> RmqError:
    log.seek(0)
    lines = log.read().splitlines()[-_LOG_LINES:]
    return RmqError(f"a worker of the demo {how}" + "; its last words:\n" * bool(lines) + "\n".join(lines))
