"""Processes of their own for senders and consumers, so that each has its interpreter and its CPU figure."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import psutil

from rmq._processes.signals import freeze_objects

_START_LIMIT_S = 60.0


class Child:
    """A function in another process. It gets a `Line` first, says when it is ready, and returns its result.

    Args:
        function: A module's function: `function(line, *args)`.
        args: Its arguments.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, function, args), daemon=True)
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Wait until it has called `line.ready()`."""
        self._receive(_START_LIMIT_S)

    def go(self, word: Any = None) -> None:
        """Let it go on: its `line.ready()` returns this word."""
        self._pipe.send(word)

    def ask(self, word: Any = None) -> Any:
        """Let it go on, and return what it says next."""
        self.go(word)
        return self._receive(_START_LIMIT_S)

    def news(self) -> list[Any]:
        """Return what it has reported since; does not wait."""
        found: list[Any] = []
        while self._pipe.poll():
            found.append(self._receive(0))
        return found

    def result(self, timeout_s: float) -> Any:
        """Wait for what the function returned, past late reports; end the process."""
        try:
            return self._receive(timeout_s, "result")
        finally:
            self.end()

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.join(2)
        self.kill()

    def kill(self) -> None:
        """End the process at once (SIGKILL)."""
        self._process.kill()
        self._process.join()

    def cpu_s(self) -> float:
        """Return the CPU time that the process has used, seconds."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def _receive(self, timeout_s: float, wanted: str | None = None) -> Any:
        while True:
            if not self._pipe.poll(timeout_s):
                self.end()
                raise TimeoutError(f"a benchmark process said nothing for {timeout_s:g} s")
            kind, value = self._pipe.recv()
            if kind == "error":
                self.end()
                raise RuntimeError(f"a benchmark process failed:\n{value}")
            if wanted in (None, kind):
                return value


class Line:
    """The child's end."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def ready(self) -> Any:
        """Say that all is prepared; wait for `go` and return its word."""
        self._pipe.send(("ready", None))
        return self._pipe.recv()

    def told(self) -> bool:
        """Return whether another word has come."""
        return self._pipe.poll()

    def hear(self) -> Any:
        """Wait for the next word."""
        return self._pipe.recv()

    def report(self, value: Any) -> None:
        """Report something on the way."""
        self._pipe.send(("report", value))


def _run(pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        freeze_objects()  # as `client.run` does, whatever is measured
        pipe.send(("result", function(Line(pipe), *args)))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
