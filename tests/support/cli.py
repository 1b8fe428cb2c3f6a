"""The command line under test: in this process, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typer.testing import CliRunner

from rmq import RmqClient, Topic
from rmq.cli.app import app

COLORFUL = {"NO_COLOR": "", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
"""Environment in which even what is no terminal gets colours."""

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    """A command that has ended.

    Attributes:
        code: Its exit code.
        out: Its stdout.
        err: Its stderr.
    """

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """Runs commands against one Redis.

    Args:
        url: Where it is; passed as RMQ_URL.
    """

    def __init__(self, url: str) -> None:
        self.env = {"RMQ_URL": url, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}

    def __call__(
        self, *args: str, stdin: str | bytes = b"", code: int = 0, env: Mapping[str, str] | None = None
    ) -> Ran:
        """Run a command in this process; check its exit code."""
        ran = self.ran(args, stdin, env)
        assert ran.code == code, ran
        return ran

    def ran(self, args: Sequence[str], stdin: str | bytes = b"", env: Mapping[str, str] | None = None) -> Ran:
        """Run a command in this process, whatever its exit code."""
        with patch.dict(os.environ):  # a worker keeps its settings from its processes
            result = CliRunner().invoke(app, args, input=stdin, env={**self.env, **(env or {})}, prog_name="rmq")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    @contextmanager
    def process(self, *args: str, cwd: Path = REPOSITORY, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """Start a command as a process; killed at the end if it still runs."""
        settings: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        env = {**os.environ, **self.env, "PYTHONPATH": str(REPOSITORY), **options.pop("env", {})}
        command = [sys.executable, "-c", "from rmq.cli import main; main()", *args]
        with subprocess.Popen(command, cwd=cwd, text=True, env=env, **{**settings, **options}) as process:
            try:
                yield process
            finally:
                process.kill()


def bury(client: RmqClient, topic: Topic, count: int = 100, error: Exception | None = None) -> None:
    """Have up to so many messages die."""
    with client.consumer(topic) as consumer:
        for delivery in consumer.poll(count):
            delivery.bury(error or ValueError(f"no {delivery.content!r:.20}"))
