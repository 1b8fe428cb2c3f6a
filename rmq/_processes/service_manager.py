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
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from rmq._model.display import shown
from rmq._model.times import monotonic_s
from rmq._model.workers import Health

VARIABLE = "NOTIFY_SOCKET"
READY = "ready"
"""Status of a process that is ready; otherwise the status says why it is not."""

SILENT_S = 15.0
"""Seconds without a report after which a process counts as not ready. It reports each second."""

MOST_MISSED = 30
"""Seconds after which a process that no longer feeds the watchdog hangs: as WatchdogSec of the unit in deploy/systemd.

They are counted by the looks of the supervisor, one a second, so that its group may be suspended for any time.
"""

_MOST_BYTES = 4_096


class ServiceManager:
    """Reports the health of this process to its service manager, if it has one."""

    def __init__(self) -> None:
        self._address = os.environ.get(VARIABLE, "")
        self._told = ""
        self._was_ready = False

    def report(self, health: Health) -> None:
        """Feed the watchdog if the process is live; report its status when it changes, and READY once.

        One that is not live reports its status each time: otherwise its silence would hide the reason.
        """
        status = READY if health.ready else "; ".join(health.reasons) or "a thread of a listener has ended"
        lines = ["WATCHDOG=1"] if health.live else []
        if status != self._told or not health.live:
            lines.append(f"STATUS={shown(status)}")
        if health.ready and not self._was_ready:
            lines.append("READY=1")
        if lines and self._send(*lines):
            self._told, self._was_ready = status, self._was_ready or health.ready

    def stopping(self) -> None:
        """Report that the process stops: from now on the manager waits for its end, not for the watchdog."""
        self._send("STOPPING=1", "STATUS=waiting for running handlers", wait_s=1.0)

    def _send(self, *lines: str, wait_s: float = 0.0) -> bool:
        if not self._address:
            return False
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(wait_s)
            sender.sendto("\n".join((*lines, f"X_PID={os.getpid()}")).encode()[:_MOST_BYTES], address)
            return True
        return False


@dataclass(slots=True)
class Reported:
    """What a process has reported, written by the thread of `Reports`; the supervisor's clears `fed`, counts `missed`.

    Attributes:
        status: Its last status; empty before the first.
        heard_s: When it last reported.
        watched: Whether it is to feed the watchdog: from READY until STOPPING.
        fed: Whether it has fed the watchdog since the supervisor last looked.
        missed: Number of looks since it last fed the watchdog.
    """

    status: str = ""
    heard_s: float = 0.0
    watched: bool = False
    fed: bool = False
    missed: int = 0


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
        self._heard: dict[str, Reported] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="rmq-reports", daemon=True)
        self._thread.start()

    def of(self, pid: int) -> str:
        """Return the present status of a process."""
        reported = self._heard.get(str(pid), Reported())
        silent_s = monotonic_s() - reported.heard_s
        if not reported.status:
            return "is starting"
        return reported.status if silent_s < SILENT_S else f"has not reported for {silent_s:.0f} s"

    def hangs(self, pid: int) -> bool:
        """Return whether a process has missed the watchdog too often since it was ready; to be asked each second."""
        reported = self._heard.get(str(pid), Reported())
        reported.missed = 0 if reported.fed or not reported.watched else reported.missed + 1
        reported.fed = False
        return reported.missed > MOST_MISSED

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
            reported = self._heard.setdefault(fields.get("X_PID", ""), Reported())
            reported.heard_s = monotonic_s()
            reported.fed |= "WATCHDOG" in fields
            reported.watched = (reported.watched or "READY" in fields) and "STOPPING" not in fields
            reported.status = fields.get("STATUS", reported.status)
