"""Runs several worker processes: starts them, restarts one that ends, and ends them together.

Each is a fresh interpreter and no fork: connections, ZooKeeper sessions and threads do not survive one (pitfall 5).
They have a process group of their own, so that Ctrl-C in a terminal reaches them once, by way of us. Their standard
input is a pipe that we hold: should we be killed, it breaks, and they stop as on SIGTERM (`end_with_parent`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._processes.signals import HUNG, until_signal
from rmq.errors import InvalidValueError, RmqError

log = reporter("rmq.supervisor")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
STEADY_S = 30.0
"""After this time a process is restarted without the pause of earlier failures."""

GRACE_S = 5.0
"""What a process gets on top of its drain limit to close its connections."""

WRONG_INPUT = 2
"""Exit code of a process that no restart can mend: no such module, no such client."""

KILLED = 1
POLL_S = 0.1


@dataclass
class Child:
    """A process that is started again when it has ended."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    failures: int = 0  # quick ends in a row
    start_at_s: float = 0.0  # when the next process starts

    def ended(self, now_s: float) -> float:
        """Note that the process has ended; return the pause until the next one, doubled by every quick end."""
        self.close()
        self.failures = 1 if now_s - self.started_s >= STEADY_S else self.failures + 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.failures - 1, 10))
        self.start_at_s = now_s + pause_s
        return pause_s

    def close(self) -> None:
        """Wait for the process, which has ended or was killed, and close its pipe."""
        if self.process is not None:
            self.process.wait()
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process = None


class Supervisor:
    """Keeps 1 to 1,000 worker processes running until SIGTERM or SIGINT.

    Args:
        command: Program and arguments of each process. It ends on SIGTERM, calls `end_with_parent`, and exits with 2
            where another start would end the same way.
        processes: How many.
        drain_s: How long their running handlers may finish; they are killed 5 s later.

    Raises:
        InvalidValueError: `processes` out of range.
    """

    def __init__(self, command: Sequence[str], processes: int, drain_s: float) -> None:
        if not 1 <= processes <= 1_000:
            raise InvalidValueError(f"processes is {processes!r}; it must be a whole number from 1 to 1,000")
        self._command = list(command)
        self._children = [Child(number) for number in range(processes)]
        self._limit_s = drain_s + GRACE_S
        self._further_signals = 0

    def run(self) -> int:
        """Run until a signal; a second one ends the processes at once.

        Returns:
            The exit code: 0 after a clean end, 1 when a process had to be killed, 2 when a start is hopeless.

        Raises:
            RmqError: Not called in the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RmqError("the supervisor handles signals and so needs the main thread")
        try:
            with until_signal(self._hurry) as ended:
                while not ended.is_set():
                    if self._look_after_all() == WRONG_INPUT:
                        self._end(ended)
                        return WRONG_INPUT
                    ended.wait(POLL_S)
                return self._end(ended)
        finally:
            for child in self._children:
                if child.process is not None:
                    child.process.kill()
                    child.close()

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that run."""
        return [child.process.pid for child in self._children if child.process is not None]

    def _hurry(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._further_signals += 1

    def _look_after_all(self) -> int | None:
        """Start processes that are due and note those that have ended; return the exit code of a hopeless one."""
        now_s = monotonic_s()
        for child in self._children:
            if child.process is not None and (code := child.process.poll()) is not None:
                if code == WRONG_INPUT:
                    log.error("process %d cannot run at all (exit code %d): all stop", child.process.pid, code)
                    child.close()
                    return code
                how = f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
                how += ", since a handler hung" if code == HUNG else ""
                pid = child.process.pid
                log.warning("process %d %s; the next starts in %g s", pid, how, child.ended(now_s))
            if child.process is None and now_s >= child.start_at_s:
                child.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603
                child.started_s = now_s
                log.info("process %d of %d is %d", child.number + 1, len(self._children), child.process.pid)
        return None

    def _end(self, ended: threading.Event) -> int:
        """Pass the signal on, wait for all, kill those that take too long; return the exit code."""
        running = [child.process for child in self._children if child.process is not None]
        log.info("stopping %d processes", len(running))
        for process in running:
            process.send_signal(signal.SIGTERM)
        until_s = monotonic_s() + self._limit_s
        code, signals = 0, (ended.is_set(), self._further_signals)
        for process in running:
            while process.poll() is None:
                if monotonic_s() >= until_s or (ended.is_set(), self._further_signals) != signals:
                    text = "process %d has not ended in time and is killed; its leases settle what it held"
                    log.warning(text, process.pid)
                    process.kill()
                    code = KILLED
                    break
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        return code


def end_with_parent() -> None:
    """Stop this process as on SIGTERM when its standard input ends; for the processes of a `Supervisor`."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        log.warning("the supervisor is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="rmq-parent", daemon=True).start()
