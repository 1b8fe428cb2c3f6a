"""Runs worker processes: several, restarted when they end, or in development one, restarted when a file changes.

Each process is a new interpreter, not a fork: connections, ZooKeeper sessions and threads do not survive a fork
(pitfall 5). It has its own process group, so that Ctrl-C in a terminal reaches it only through the supervisor. Its
standard input is a pipe from the supervisor: if the supervisor is killed, the pipe breaks, and the process stops as on
SIGTERM (`end_with_parent`). It reports its health to the supervisor as it would to systemd (`service_manager.py`).
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rmq._io.reports import reporter
from rmq._model.times import monotonic_s
from rmq._model.workers import Health
from rmq._processes.service_manager import READY, VARIABLE, Reports, ServiceManager
from rmq._processes.signals import HUNG, ignore, require_main_thread, until_signal
from rmq.errors import InvalidValueError, RmqError

log = reporter("rmq.supervisor")
reload_log = reporter("rmq.reload")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
STEADY_S = 30.0
"""Run time after which earlier failures no longer lengthen the pause before a restart."""

GRACE_S = 5.0
"""Seconds that a process has after its drain time to close its connections."""

WRONG_INPUT = 2
"""Exit code of a process that a restart cannot fix, for example because its module or client does not exist."""

SUPERVISED = "RMQ_SUPERVISED"
"""Environment variable of a process that ends with its parent; see `end_with_parent`."""

KILLED = 1
POLL_S, REPORT_S = 0.1, 1.0
LOOK_EVERY_MS = 200


@dataclass
class Child:
    """A process that is restarted when it ends."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    failures: int = 0  # successive early exits
    start_at_s: float = 0.0  # when the next process starts

    def ended(self, now_s: float) -> float:
        """Record that the process has ended; return the pause before the restart, doubled by every early exit."""
        self.close()
        self.failures = 1 if now_s - self.started_s >= STEADY_S else self.failures + 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.failures - 1, 10))
        self.start_at_s = now_s + pause_s
        return pause_s

    def close(self) -> None:
        """Reap the process, which has ended or was killed, and close its pipe."""
        if self.process is not None:
            self.process.wait()
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process = None


class Supervisor:
    """Keeps 1 to 1,000 worker processes running until SIGTERM or SIGINT.

    Args:
        command: Program and arguments of each process, which must end on SIGTERM, call `end_with_parent`, and exit with
            2 if a restart would fail the same way.
        processes: Number of processes.
        drain_s: Seconds to wait for running handlers; the processes are killed 5 s later.

    Raises:
        InvalidValueError: `processes` is out of range.
    """

    def __init__(self, command: Sequence[str], processes: int, drain_s: float) -> None:
        if not 1 <= processes <= 1_000:
            raise InvalidValueError(f"processes is {processes!r}; it must be a whole number from 1 to 1,000")
        self._command = list(command)
        self._children = [Child(number) for number in range(processes)]
        self._limit_s = drain_s + GRACE_S
        self._further_signals = 0
        self._health = Health(True, ("the processes are starting",))

    def run(self) -> int:
        """Run until a signal. A second signal kills the processes at once.

        Returns:
            The exit code: 0 after a clean stop, 1 if a process had to be killed, 2 if no restart can succeed.

        Raises:
            RmqError: Not called in the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RmqError("the supervisor handles signals, which is possible in the main thread only")
        service, reported_s = ServiceManager(), 0.0
        self._reports = _reports()
        self._environment = {**os.environ, SUPERVISED: "1", VARIABLE: self._reports.path if self._reports else ""}
        try:
            with until_signal(self._hurry) as ended:
                while not ended.is_set():
                    if self._look_after_all() == WRONG_INPUT:
                        self._end(ended)
                        return WRONG_INPUT
                    if monotonic_s() >= reported_s + REPORT_S:
                        reported_s, self._health = monotonic_s(), self._reported()
                        service.report(self._health)
                    ended.wait(POLL_S)
                service.stopping()
                return self._end(ended)
        finally:
            for child in self._children:
                if child.process is not None:
                    child.process.kill()
                    child.close()
            if self._reports is not None:
                self._reports.close()

    def health(self) -> Health:
        """Return the state of the processes, as they have reported it: ready if all of them are. For any thread."""
        return self._health

    def _reported(self) -> Health:
        total, reasons = len(self._children), list[str]()
        for child in self._children:
            status = "is starting"
            if child.process is not None and self._reports is not None:
                pid = child.process.pid
                status = self._reports.of(pid)
                if self._reports.hangs(pid):
                    log.error("process %d no longer feeds its watchdog (status: %s); killing it", pid, status)
                    child.process.kill()
            if status != READY:
                reasons.append(f"process {child.number + 1} of {total}: {status}")
        return Health(True, tuple(reasons))

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [child.process.pid for child in self._children if child.process is not None]

    def _hurry(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._further_signals += 1

    def _look_after_all(self) -> int | None:
        """Start due processes and record ended ones. Return the exit code of a process that cannot be restarted."""
        now_s = monotonic_s()
        for child in self._children:
            if child.process is not None and (code := child.process.poll()) is not None:
                if code == WRONG_INPUT:
                    log.error("process %d cannot run (exit code %d); stopping all processes", child.process.pid, code)
                    child.close()
                    return code
                how = f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
                how += " because a handler hangs" if code == HUNG else ""
                pid = child.process.pid
                if self._reports is not None:
                    self._reports.forget(pid)
                log.warning("process %d %s; restarting it in %g s", pid, how, child.ended(now_s))
            if child.process is None and now_s >= child.start_at_s:
                child.process = subprocess.Popen(  # noqa: S603
                    self._command, stdin=subprocess.PIPE, start_new_session=True, env=self._environment
                )
                child.started_s = now_s
                log.info(
                    "started process %d of %d with pid %d", child.number + 1, len(self._children), child.process.pid
                )
        return None

    def _end(self, ended: threading.Event) -> int:
        """Stop all processes, and kill those that take too long; return the exit code."""
        running = [child.process for child in self._children if child.process is not None]
        log.info("stopping %d processes", len(running))
        self._health = Health(True, ("the processes are stopping",))
        for process in running:
            process.send_signal(signal.SIGTERM)
        until_s = monotonic_s() + self._limit_s
        code, signals = 0, (ended.is_set(), self._further_signals)
        for process in running:
            while process.poll() is None:
                if monotonic_s() >= until_s or (ended.is_set(), self._further_signals) != signals:
                    text = (
                        "process %d did not stop in time; killing it. Its messages are redelivered after lease expiry"
                    )
                    log.warning(text, process.pid)
                    process.kill()
                    code = KILLED
                    break
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        return code


def _reports() -> Reports | None:
    try:
        return Reports()
    except OSError as error:
        log.warning("the health of the processes is unknown, since their reports cannot be received: %s", error)
        return None


def end_with_parent() -> bool:
    """Stop this process, as on SIGTERM, when the standard input from a `Supervisor`, or from `run_reloading`, ends.

    Returns whether one of them has started it. Its own processes do not count as theirs.
    """
    if os.environ.pop(SUPERVISED, None) is None:
        return False

    def watch() -> None:
        while os.read(0, 4096):
            pass
        log.warning("the supervisor has ended; stopping")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="rmq-parent", daemon=True).start()
    return True


def run_reloading(command: Sequence[str], folder: Path, drain_s: float) -> int:
    """Run a worker process, and restart it when a file changes, until SIGTERM or SIGINT.

    Args:
        command: Program and arguments of the worker, which must end on SIGTERM and call `end_with_parent`.
        folder: Folder whose `*.py` files are watched, including subfolders.
        drain_s: Seconds to wait for running handlers before a restart; the worker is killed 5 s later.

    Returns:
        0. A worker that exits by itself is restarted at the next change.

    Raises:
        InvalidValueError: The package watchfiles is not installed.
        RmqError: Not called in the main thread.
    """
    changes = _changes_of()
    require_main_thread("--reload")
    with until_signal(ignore) as ended:
        worker = _Worker(command, drain_s + GRACE_S)
        try:
            for number, changed in enumerate(changes(folder, ended)):
                worker.note_end()
                if number == 0:  # from now on no change is missed
                    reload_log.info("watching *.py in %s", folder)
                elif changed:
                    reload_log.info("%s changed: restarting the worker", ", ".join(sorted(changed)[:3]))
                if number == 0 or changed:
                    worker.stop()
                    worker.start()
        finally:
            worker.stop()
    return 0


def _changes_of() -> Callable[[Path, threading.Event], Iterator[list[str]]]:
    try:
        import watchfiles
    except ModuleNotFoundError:
        raise InvalidValueError("--reload needs the package watchfiles: pip install 'rmq[reload]'") from None

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it logs every change

    def changes(folder: Path, ended: threading.Event) -> Iterator[list[str]]:
        for changed in watchfiles.watch(
            folder,
            watch_filter=watchfiles.PythonFilter(),
            stop_event=ended,
            rust_timeout=LOOK_EVERY_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
        ):
            if ended.is_set():
                return
            yield [os.path.relpath(path, folder) for _, path in changed]

    return changes


class _Worker:
    """The worker process."""

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self._command, self._limit_s = list(command), limit_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = os.environ | {SUPERVISED: "1"}
        self._process = subprocess.Popen(  # noqa: S603 - our own command line
            self._command, stdin=subprocess.PIPE, start_new_session=True, env=environment
        )

    def note_end(self) -> None:
        """Log, once, that the process has exited by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            reload_log.warning("the worker exited with code %d; it is restarted when a file changes", code)
            self.stop()

    def stop(self) -> None:
        """Stop the process, if it runs, and wait for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(self._limit_s)
        except subprocess.TimeoutExpired:
            reload_log.warning("process %d did not stop within %g s; killing it", process.pid, self._limit_s)
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
