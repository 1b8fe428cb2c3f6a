"""The embedded server: a redis-server that RMQ finds, starts, shares between processes and stops.

A guard process keeps it running; embedded_guard.py describes it and the protocol.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from urllib.parse import quote

from rmq._processes import embedded_guard
from rmq._processes.embedded_guard import GUARD_SOCKET, KEPT, LOG_FILE, SERVER_SOCKET, TEMPORARY, ask, log_tail
from rmq._processes.server_programs import find_server_for
from rmq.errors import EmbeddedServerError

LOCK_FILE = "rmq.lock"

_SOCKET_PATH_LIMIT_BYTES = 103  # sockaddr_un.sun_path without its final zero: 107 on Linux, 103 on macOS and the BSDs
_LONGEST_FILE_NAME = max(SERVER_SOCKET, GUARD_SOCKET, key=len)
_RETRY_INTERVAL_S = 0.01
_CLOSE_LIMIT_S = 12.0  # the guard kills a server that has not stopped after 10 s


class EmbeddedServer:
    """A redis-server on a Unix socket, which runs while this object or another on the same folder is in use.

    Create it with `start`, and keep the object: when it is closed or garbage-collected, or its process ends, this use
    of the server ends. The server stops soon after its last use.

    Attributes:
        folder: Working directory of the server, with data, log, sockets and lock.
        socket_path: The server's Unix socket in `folder`, through a short symbolic link if the path is too long.
        url: The socket as a URL, ``unix:///…``.
        pid: Process id of redis-server when it was started.

    Guarantee:
        Only the current user can access the server: it has no TCP port, and sockets and data belong to the user alone.

    Examples:
        >>> with EmbeddedServer.start() as server, RmqClient(server.url) as other:
        ...     print(other.topics())
        []
    """

    def __init__(self, folder: Path, socket_path: Path, pid: int, connection: socket.socket) -> None:
        self.folder = folder
        self.socket_path = socket_path
        self.url = f"unix://{quote(str(socket_path))}"
        self.pid = pid
        self._leave = weakref.finalize(self, _leave, connection, os.getpid())

    @classmethod
    def start(cls, folder: Path | None = None, *, timeout_s: float = 15.0) -> EmbeddedServer:
        """Start a server, or use the one that runs in this folder.

        Args:
            folder: Folder of the data, with AOF (fsync every second); created with access for the user alone if
                missing. None uses a temporary folder without persistence, which is deleted with the server.
            timeout_s: Seconds to wait for a response of the server. The time to load a large AOF does not count.

        Returns:
            A server that is ready.

        Raises:
            EmbeddedServerError: There is no usable redis-server, the folder cannot be used, or the server did not
                start; the message then ends with the last lines of its log.

        Guarantee:
            Processes or threads that start in one folder share one server, even while an earlier one shuts down.
        """
        if folder is not None:
            return cls._start(private_folder(folder, "an embedded server"), KEPT, timeout_s)
        folder = _temporary_folder()
        try:
            return cls._start(folder, TEMPORARY, timeout_s)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @classmethod
    def _start(cls, folder: Path, kind: str, timeout_s: float) -> EmbeddedServer:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            lock_fd = _try_lock(folder)
            if lock_fd is None:  # a server runs: whether our programs can read its data does not matter
                connection = _attach(folder)
            else:
                with os.fdopen(lock_fd):  # the guard has its own descriptor
                    connection = _launch(find_server_for(folder), folder, kind, lock_fd, timeout_s)
            greeting = connection and _await_greeting(connection, folder, timeout_s)
            if connection and greeting:
                return cls(folder, *greeting, connection)
            if kind == TEMPORARY:
                raise EmbeddedServerError(f"the server in {folder} was stopped during its start{_log_of(folder)}")
            time.sleep(_RETRY_INTERVAL_S)
        raise EmbeddedServerError(
            f"another process holds {folder / LOCK_FILE}, but no server answered in {timeout_s:g} s: it may still be "
            "starting or stopping. Try again; if that does not help, end the process that holds the lock "
            f"(`fuser {folder / LOCK_FILE}` names it){_log_of(folder)}"
        )

    def close(self) -> None:
        """End this use of the server. After the last use the server stops, and a temporary folder is deleted.

        Returns when that is done, after 12 s at the latest, or at once if there are other users. Safe to repeat. It
        also ends the use of processes forked from this one; called in a forked process, it does nothing.
        """
        self._leave()

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _leave(connection: socket.socket, owner_pid: int) -> None:
    with connection:
        if os.getpid() != owner_pid:
            return
        connection.settimeout(_CLOSE_LIMIT_S)
        with contextlib.suppress(OSError):  # the guard has ended already
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass


# --- folders


def _temporary_folder() -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="rmq-"))
        if _fits(folder):
            return folder
        folder.rmdir()
        return Path(tempfile.mkdtemp(prefix="rmq-", dir="/tmp"))
    except OSError as error:
        raise EmbeddedServerError(
            f"cannot create a temporary folder for an embedded server ({error.strerror}): set TMPDIR to a writable "
            "folder, or name a permanent one, embedded:///FOLDER"
        ) from error


def private_folder(folder: Path, purpose: str) -> Path:
    """Return the absolute path of a folder that only the current user can write to, creating it if missing.

    Other users with write access to a server's folder could replace its socket or data.

    Args:
        folder: The folder.
        purpose: Purpose of the folder, for error messages.

    Raises:
        EmbeddedServerError: The folder cannot be created or used, belongs to another user, or is writable by other
            users.
    """
    folder = folder.expanduser().absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise EmbeddedServerError(f"cannot use {folder} for {purpose}: {error.strerror}") from error
    if status.st_uid != os.geteuid():
        raise EmbeddedServerError(f"cannot use {folder} for {purpose}: it belongs to another user (id {status.st_uid})")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EmbeddedServerError(
            f"cannot use {folder} for {purpose}: other users can write to it; run `chmod go-w {folder}`"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise EmbeddedServerError(f"cannot use {folder} for {purpose}: no permission to read and write")
    return folder


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder / _LONGEST_FILE_NAME)) <= _SOCKET_PATH_LIMIT_BYTES


def _short(folder: Path, links: contextlib.ExitStack) -> Path:
    """Return a path of the folder that is short enough for sockets. `links` deletes it if it is a link."""
    if _fits(folder):
        return folder
    alias = _temporary_folder()
    links.callback(shutil.rmtree, alias, ignore_errors=True)
    (alias / "data").symlink_to(folder)
    return alias / "data"


def _log_of(folder: Path) -> str:
    tail = log_tail(folder / LOG_FILE)
    return f"; the end of {folder / LOG_FILE}:\n{tail}" if tail else ""


# --- the guard


def _try_lock(folder: Path) -> int | None:
    """Lock the folder; return None if a running, starting or stopping server holds the lock."""
    with contextlib.ExitStack() as on_failure:
        try:
            lock_fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            on_failure.callback(os.close, lock_fd)
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EmbeddedServerError(f"cannot lock {folder / LOCK_FILE}: {error.strerror}") from error
        on_failure.pop_all()
        return lock_fd


def _launch(program: Path, folder: Path, kind: str, lock_fd: int, timeout_s: float) -> socket.socket:
    """Start a guard, which starts the server, and return the connection to it. The caller holds the folder's lock."""
    with contextlib.ExitStack() as on_failure:
        short = _short(folder, on_failure)
        if ask(str(short / SERVER_SOCKET), b"PING"):
            raise EmbeddedServerError(
                f"a Redis that RMQ did not start answers on {folder / SERVER_SOCKET}: connect to it by its URL"
            )
        alias = "" if short == folder else str(short.parent)
        ours, theirs = socket.socketpair()
        on_failure.callback(ours.close)
        with theirs:
            command = [sys.executable, "-I", "-S", embedded_guard.__file__, str(program), kind]
            command += [str(lock_fd), str(theirs.fileno()), str(short / SERVER_SOCKET), alias]
            try:
                subprocess.run(  # noqa: S603
                    command,
                    cwd=folder,
                    pass_fds=(lock_fd, theirs.fileno()),
                    start_new_session=True,  # Ctrl-C in the terminal must not reach it
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=timeout_s,
                    check=True,
                )
            except (OSError, subprocess.SubprocessError) as error:
                said: bytes = getattr(error, "stderr", None) or b""
                reason = f"{error} {said.decode(errors='replace')}"
                raise EmbeddedServerError(
                    f"the guard process of the embedded server did not start: {reason}"
                ) from error
        on_failure.pop_all()  # the guard deletes the link from now on
        return ours


def _attach(folder: Path) -> socket.socket | None:
    """Connect to the guard of the server that holds the lock; return None if there is no guard."""
    with contextlib.ExitStack() as links:
        short = _short(folder, links)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(short / GUARD_SOCKET))
        except OSError:
            connection.close()
            # A guard listens before its server answers: this server is stopping, or has lost its guard and must stop.
            ask(str(short / SERVER_SOCKET), b"SHUTDOWN")
            return None
        return connection


def _await_greeting(connection: socket.socket, folder: Path, timeout_s: float) -> tuple[Path, int] | None:
    """Return socket and process id of a server that is ready; None if its last user has left meanwhile.

    Raises:
        EmbeddedServerError: The server did not start. The connection is then closed, as it is with None.
    """
    connection.settimeout(timeout_s)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(connection.close)
        lines = connection.makefile("r", encoding="utf-8", errors="surrogateescape")
        on_failure.callback(lines.close)
        try:
            for line in lines:
                word, _, rest = line.rstrip("\n").partition(" ")
                if word == "ready":
                    on_failure.pop_all()  # the connection stays open: it is our use of the server
                    lines.close()
                    pid, _, socket_path = rest.partition(" ")
                    return Path(socket_path), int(pid)
                if word == "failed":
                    raise EmbeddedServerError(f"the embedded server in {folder} did not start: {lines.read().strip()}")
        except TimeoutError:
            message = f"the embedded server in {folder} did not respond for {timeout_s:g} s{_log_of(folder)}"
            raise EmbeddedServerError(message) from None
        except ConnectionError:
            pass
    return None
