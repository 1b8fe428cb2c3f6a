"""Runs a worker in development, and restarts it whenever a Python file changes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rmq._io.reports import reporter
from rmq._processes.signals import ignore, require_main_thread, until_signal
from rmq._processes.supervisor import GRACE_S, SUPERVISED
from rmq.errors import InvalidValueError

log = reporter("rmq.reload")

LOOK_EVERY_MS = 200


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
                    log.info("watching *.py in %s", folder)
                elif changed:
                    log.info("%s changed: restarting the worker", ", ".join(sorted(changed)[:3]))
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
            log.warning("the worker exited with code %d; it is restarted when a file changes", code)
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
            log.warning("process %d did not stop within %g s; killing it", process.pid, self._limit_s)
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
