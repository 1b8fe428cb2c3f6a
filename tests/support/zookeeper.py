"""ZooKeeper servers that form an ensemble, for tests."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import tempfile
from pathlib import Path

from rmq._processes.zookeeper import ZooKeeperServer


def free_ports(count: int) -> list[int]:
    """Return ports that are free now on 127.0.0.1; held together, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for candidate in sockets:
            candidate.bind(("127.0.0.1", 0))
        return [candidate.getsockname()[1] for candidate in sockets]


class Server(ZooKeeperServer):
    """A server that is killed, frozen and woken at will."""

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): its connections stay open and silent."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Wake the process again."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once (SIGKILL)."""
        self.signal(signal.SIGKILL)
        self.wait(5.0)

    def stop(self) -> None:
        self.resume()
        super().stop()

    def restart(self) -> None:
        """Stop and start again on the same data; `wait_ready` waits for its first answer."""
        self.stop()
        self.start()


class ZooKeeperEnsemble:
    """Servers that form one ensemble; a single one runs on its own.

    Args:
        folder: Where the servers keep their data; None for a temporary folder that goes with `stop`.
        servers: How many, usually 1 or 3.
        tick_ms: Basic unit of time; sessions last 2 to 20 ticks.
        settings: More lines of `zoo.cfg` for each server.
        java_options: For example `-D` properties.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        servers: int = 1,
        tick_ms: int = 2000,
        settings: dict[str, str] | None = None,
        java_options: tuple[str, ...] = (),
    ) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="rmq-zookeeper-")) if folder is None else folder
        ports = free_ports(3 * servers)
        common = dict(settings or {})
        if servers > 1:
            common |= {"initLimit": "10", "syncLimit": "5"}
            for number in range(servers):
                peer, election = ports[servers + 2 * number : servers + 2 * number + 2]
                common[f"server.{number + 1}"] = f"127.0.0.1:{peer}:{election}"
        self.servers = [
            Server(
                self.folder / f"zk{number + 1}",
                ports[number],
                dict(common),
                number + 1 if servers > 1 else None,
                tick_ms,
                java_options,
            )
            for number in range(servers)
        ]

    @property
    def hosts(self) -> str:
        """The connection string: all servers, comma-separated."""
        return ",".join(server.address for server in self.servers)

    @property
    def leader(self) -> Server | None:
        """The server that leads (or stands alone); None while there is no quorum."""
        return next((server for server in self.servers if server.pid and server.mode in ("leader", "standalone")), None)

    def start(self, timeout_s: float = 60.0) -> None:
        """Start all servers and wait until each serves.

        Raises:
            CoordinationError: One ended or does not answer in time.
        """
        try:
            for server in self.servers:
                server.start()
            for server in self.servers:
                server.wait_ready(timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all servers; remove a temporary folder."""
        for server in self.servers:
            server.stop()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> ZooKeeperEnsemble:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
