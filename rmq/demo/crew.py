"""The worker processes of the demo, as the demo sees them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import IO, Self

from rmq.demo.handled import Handled
from rmq.errors import RmqError

WORKERS = 2

_STOP_LIMIT_S = 10.0
_LOG_LINES = 5


class Crew:
    """Worker processes. They get the URL by `RMQ_URL`, like any other, so that a password in it shows nowhere.

    Args:
        url: Where the topics are.
        seconds_per_minute: How long a minute of order time takes.
    """

    def __init__(self, url: str, seconds_per_minute: float) -> None:
        self._logs: list[IO[str]] = []
        self._workers: list[subprocess.Popen[str]] = []
        try:
            for _ in range(WORKERS):
                self._start(url, seconds_per_minute)
        except BaseException:
            self.end()
            raise

    def _start(self, url: str, seconds_per_minute: float) -> None:
        log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._logs.append(log)
        self._workers.append(
            subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "rmq.demo.worker", repr(seconds_per_minute)],
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
                raise RmqError(f"a worker of the demo did not start{_end_of(log)}")

    def check(self) -> None:
        """Raise an error if one ended.

        Raises:
            RmqError: One ended.
        """
        for worker, log in zip(self._workers, self._logs, strict=True):
            if worker.poll() is not None:
                raise RmqError(f"a worker of the demo ended with code {worker.returncode}{_end_of(log)}")

    def dismiss(self) -> list[Handled]:
        """Let all finish, and return what they wrote down.

        Raises:
            RmqError: One did not end, or not well.
        """
        records: list[Handled] = []
        for worker in self._workers:
            _hang_up(worker)
        for worker, log in zip(self._workers, self._logs, strict=True):
            try:
                written, _ = worker.communicate(timeout=_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                raise RmqError(f"a worker of the demo did not end in {_STOP_LIMIT_S:g} s{_end_of(log)}") from None
            if worker.returncode:
                raise RmqError(f"a worker of the demo ended with code {worker.returncode}{_end_of(log)}")
            records += map(Handled.from_json, written.splitlines())
        return records

    def end(self) -> None:
        """End those that still run: they get a moment to finish, then they are killed."""
        for worker in self._workers:
            _hang_up(worker)
        for worker in self._workers:
            _end(worker)
        for log in self._logs:
            log.close()
        self._workers, self._logs = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _hang_up(worker: subprocess.Popen[str]) -> None:
    if worker.stdin is not None:
        worker.stdin.close()
        worker.stdin = None


def _end(worker: subprocess.Popen[str]) -> None:
    if worker.poll() is None:
        try:
            worker.communicate(timeout=_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.communicate()
    if worker.stdout is not None:
        worker.stdout.close()


def _end_of(log: IO[str]) -> str:
    log.seek(0)
    lines = log.read().splitlines()[-_LOG_LINES:]
    return "; its last words:\n" + "\n".join(lines) if lines else ""
