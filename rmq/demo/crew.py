"""Starts and stops the worker processes of the demo."""

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
    """Worker processes. They get the URL in `RMQ_URL`, so that a password in it is not visible in the process list.

    At the end of the `with` block the workers have a short time to finish, and are then killed.

    Args:
        url: URL of Redis.
        seconds_per_minute: Duration of a minute of order time.
        folder: Folder of the pictures; `None` draws none.
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
                start_new_session=True,  # Ctrl-C in the terminal must reach the demo only, which stops them in order
            )
        )

    def wait_ready(self) -> None:
        """Wait until all workers are listening.

        Raises:
            RmqError: A worker did not start.
        """
        for worker, log in zip(self._workers, self._logs, strict=True):
            if worker.stdout is None or worker.stdout.readline() != "ready\n":
                raise _failed("a worker of the demo did not start", log)

    def check(self) -> None:
        """Check that no worker has failed or exited early.

        Raises:
            RmqError: A worker has failed or exited early.
        """
        for worker, log in zip(self._workers, self._logs, strict=True):
            if worker.poll() is not None and (worker.returncode or worker.stdin is not None):
                raise _failed(f"a worker of the demo ended with code {worker.returncode}", log)

    def dismiss(self) -> list[Handled]:
        """Let all workers finish, and return their records.

        Raises:
            RmqError: A worker did not end, or failed.
        """
        written = self._end()
        for text, log in zip(written, self._logs, strict=True):
            if text is None:
                raise _failed(f"a worker of the demo did not end in {_STOP_LIMIT_S:g} s", log)
        self.check()
        return [Handled.from_json(line) for text in written for line in (text or "").splitlines()]

    def _end(self) -> list[str | None]:
        """Stop all workers; return their output, `None` for one that had to be killed."""
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


def _failed(text: str, log: IO[str]) -> RmqError:
    log.seek(0)
    lines = log.read().splitlines()[-_LOG_LINES:]
    return RmqError(text + "; the end of its log:\n" * bool(lines) + "\n".join(lines))
