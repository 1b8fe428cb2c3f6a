"""What a worker tells the service manager that runs it, in the protocol of `sd_notify(3)`: systemd, or a `Supervisor`.

The service manager listens on a datagram socket whose address is in the environment variable NOTIFY_SOCKET. Each
datagram has lines such as `READY=1`; a manager ignores the lines that it does not know. A datagram that cannot be sent
is dropped: the next one comes a second later.

`Reports` is the other side, of a `Supervisor`. A datagram does not name its sender, so each has the line `X_PID`.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from tempfile import TemporaryDirectory

from rmq._model.display import shown
from rmq._model.times import monotonic_s
from rmq._model.workers import Health

VARIABLE = "NOTIFY_SOCKET"
READY = "ready"
"""Status of a process that is ready; otherwise the status says why it is not."""

SILENT_S = 15.0
"""Seconds without a report after which a process counts as not ready. It reports each second."""

_MOST_BYTES = 4_096


class ServiceManager:
    """Reports the health of this process to its service manager, if it has one."""

    def __init__(self) -> None:
        self._address = os.environ.get(VARIABLE, "")
        self._told = ""
        self._was_ready = False

    def report(self, health: Health) -> None:
        """Feed the watchdog if the process is live; report changes of its status, and READY the first time."""
        status = READY if health.ready else "; ".join(health.reasons) or "a thread of a listener has ended"
        lines = ["WATCHDOG=1"] if health.live else []
        if status != self._told:
            lines.append(f"STATUS={shown(status)}")
        if health.ready and not self._was_ready:
            lines.append("READY=1")
        if lines and self._send(*lines):
            self._told, self._was_ready = status, self._was_ready or health.ready

    def stopping(self) -> None:
        """Report that the process stops: from now on the manager waits for its end, not for the watchdog."""
        self._send("STOPPING=1", "STATUS=waiting for running handlers")

    def _send(self, *lines: str) -> bool:
        if not self._address:
            return False
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join((*lines, f"X_PID={os.getpid()}")).encode()[:_MOST_BYTES], address)
            return True
        return False


class Reports:
    """Receives the reports of the processes of a `Supervisor`, on a socket in a temporary folder.

    A thread takes them as they arrive: the socket keeps about ten, and many processes report at the same moment.

    Raises:
        OSError: No temporary folder can be created.
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="rmq-")
        self.path = os.path.join(self._folder.name, "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._heard: dict[str, tuple[str, float]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="rmq-reports", daemon=True)
        self._thread.start()

    def of(self, pid: int) -> str:
        """Return the present status of a process."""
        status, heard_s = self._heard.get(str(pid), ("", 0.0))
        silent_s = monotonic_s() - heard_s
        if not status:
            return "is starting"
        return status if silent_s < SILENT_S else f"has not reported for {silent_s:.0f} s"

    def forget(self, pid: int) -> None:
        """Forget a process that has ended."""
        self._heard.pop(str(pid), None)

    def close(self) -> None:
        """Remove the socket and end the thread."""
        self._closed = True
        with suppress(BlockingIOError):  # the thread has reports to take
            self._socket.sendto(b"", socket.MSG_DONTWAIT, self.path)
        self._thread.join()
        self._socket.close()
        self._folder.cleanup()

    def _listen(self) -> None:
        while True:
            report = self._socket.recv(_MOST_BYTES).decode(errors="replace").splitlines()
            if self._closed:
                return
            fields = dict(line.split("=", 1) for line in report if "=" in line)
            pid = fields.get("X_PID", "")
            self._heard[pid] = fields.get("STATUS", self._heard.get(pid, ("", 0.0))[0]), monotonic_s()
