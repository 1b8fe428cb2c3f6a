"""The guard: a small process that keeps an embedded redis-server running as long as it has users.

``embedded.py`` runs this file as ``python -I -S embedded_guard.py SERVER KIND LOCK_FD USER_FD SOCKET_PATH ALIAS`` with
the server's folder as working directory. It uses only the standard library, imports little to start fast, and opens all
files by relative names, so that no folder path is too long for a Unix socket.

Users connect to the guard through ``guard.sock``, the first user through an inherited socket pair. The guard sends
lines:

    loading                  redis-server loads its data; sent every second, so that users do not time out
    ready PID SOCKET_PATH    the receiver counts as a user from now on
    failed                   redis-server did not start; the reason follows

A user sends nothing. It leaves when its connection reaches end of file, because it closed it, exited or was killed. The
server stops when the last user has left. A caller whose connection is closed before ``ready`` connected just as the
server stopped, and retries.

redis-server inherits the lock, so it is held until no process can write to the data any more, even if the guard is
killed. In that case redis-server is stopped by the kernel on Linux, elsewhere by the next start.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time

SERVER_SOCKET = "redis.sock"
GUARD_SOCKET = "guard.sock"
LOG_FILE = "redis.log"
TEMPORARY = "temporary"
KEPT = "kept"

_PROBE_INTERVAL_S = 0.003
_LOADING_INTERVAL_S = 1.0
_RESTART_PAUSE_S = 0.2
_RESTARTS = 3  # it may crash before its first answer
_STOP_LIMIT_S = 10.0
_ANSWER_LIMIT_S = 1.0
_LOG_TAIL_LINES = 12
_LOG_TAIL_BYTES = 4096
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_ALWAYS = (
    *("--port", "0", "--unixsocket", SERVER_SOCKET, "--unixsocketperm", "700"),
    *("--dir", ".", "--logfile", LOG_FILE, "--daemonize", "no"),
    *("--maxmemory-policy", "noeviction", "--save", ""),
)
_PERSISTENCE = {
    TEMPORARY: ("--appendonly", "no"),
    KEPT: ("--appendonly", "yes", "--appendfsync", "everysec", "--aof-use-rdb-preamble", "yes"),
}


def ask(path: str, command: bytes) -> bytes:
    """Send an inline command to a Redis Unix socket; return the start of the reply, empty if there is none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_LIMIT_S)
        connection.connect(path)
        connection.sendall(command + b"\r\n")
        return connection.recv(4096)
    return b""


def log_tail(path: str | os.PathLike[str]) -> str:
    """Return the last lines of a log; empty if there is none."""
    with contextlib.suppress(OSError), open(path, "rb") as log:
        log.seek(max(0, os.path.getsize(path) - _LOG_TAIL_BYTES))
        return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:])
    return ""


class Guard:
    """Runs one redis-server, and serves its users."""

    def __init__(self, server: str, kind: str, lock_fd: int, socket_path: str, alias: str) -> None:
        self._server = server
        self._kind = kind
        self._lock_fd = lock_fd
        self._socket_path = socket_path
        self._alias = alias
        self._folder = os.getcwd()
        self._selector = selectors.DefaultSelector()
        self._users: set[socket.socket] = set()
        self._waiting: set[socket.socket] = set()  # users that have not been sent "ready"
        self._last_user: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._pid = 0  # of redis-server; 0 if it is not running
        self._answered = False  # has answered since it was started
        self._restarts = 0  # restarts left before it answers
        self._terminated = False
        self._loading_sent_s = 0.0

    def run(self, first_user: socket.socket) -> None:
        """Serve until the last user has left, redis-server has ended, or SIGTERM arrives; then clean up."""
        self._welcome(first_user)
        try:
            self._watch_signals()
            self._listen()
            self._start_redis()
            self._serve()
        except OSError as error:
            self._tell_failure(f"the guard process of the server failed: {error}")
        finally:
            self._stop_redis()
            self._clean_up()

    def _serve(self) -> None:
        while self._users and not self._terminated:
            settled = self._answered and not self._waiting
            for key, _ in self._selector.select(None if settled else _PROBE_INTERVAL_S):
                key.data(key.fileobj)
            status = self._exit_status()
            if status is not None:
                if not self._survives(status):
                    return
                self._start_redis()
            if self._waiting or not self._answered:
                self._probe()

    def _watch_signals(self) -> None:
        """Wake the loop on signals. Ctrl-C must not stop the server before its users have drained."""
        signals, wakeup = socket.socketpair()
        for end in (signals, wakeup):
            end.setblocking(False)
        signal.set_wakeup_fd(wakeup.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._selector.register(signals, selectors.EVENT_READ, _drain)

    def _terminate(self, _number: int, _frame: object) -> None:
        self._terminated = True

    # --- users

    def _listen(self) -> None:
        """Listen before redis-server starts: a server that answers while no guard listens has lost its guard."""
        _unlink(GUARD_SOCKET)
        self._listener.bind(GUARD_SOCKET)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the user has left again
            user, _ = listener.accept()
            self._welcome(user)

    def _welcome(self, user: socket.socket) -> None:
        user.setblocking(False)
        self._users.add(user)
        self._waiting.add(user)
        self._selector.register(user, selectors.EVENT_READ, self._hear)

    def _hear(self, user: socket.socket) -> None:
        try:
            if user.recv(512):
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # connection reset: the user has left
        self._selector.unregister(user)
        self._users.remove(user)
        self._waiting.discard(user)
        if self._users:
            user.close()
        else:
            self._last_user = user  # kept open: closing it tells this user that the server has stopped

    def _tell_waiting(self, text: str) -> None:
        for user in self._waiting:
            with contextlib.suppress(OSError):  # a user that has left or does not read must not stop the guard
                user.send(text.encode("utf-8", "surrogateescape"))

    def _tell_failure(self, reason: str) -> None:
        self._tell_waiting(f"failed\n{reason}\n{log_tail(LOG_FILE)}")

    # --- redis-server

    def _start_redis(self) -> None:
        _unlink(SERVER_SOCKET)
        self._answered = False
        guard_pid = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _become_redis([self._server, *_ALWAYS, *_PERSISTENCE[self._kind]], guard_pid)

    def _probe(self) -> None:
        """Notify waiting users once redis-server answers. Late users wait for an answer, too: it may be stopping."""
        reply = ask(SERVER_SOCKET, b"PING")
        if not reply:
            return
        if not reply.startswith(b"-LOADING"):
            self._answered, self._restarts = True, _RESTARTS
            self._tell_waiting(f"ready {self._pid} {self._socket_path}\n")
            self._waiting.clear()
        elif time.monotonic() >= self._loading_sent_s + _LOADING_INTERVAL_S:
            self._loading_sent_s = time.monotonic()
            self._tell_waiting("loading\n")

    def _exit_status(self) -> int | None:
        """Return the exit code of a redis-server that has ended, negative for a signal; None while it runs."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return None
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def _survives(self, status: int) -> bool:
        """Return whether to restart a redis-server that has ended: only after a crash, and only if its data is kept."""
        if not self._answered and not self._restarts:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
            self._tell_failure(f"{self._server} {how} before it was ready")
            return False
        if self._kind == TEMPORARY or status == 0:  # 0: a regular shutdown
            return False
        self._restarts -= 1
        time.sleep(_RESTART_PAUSE_S)
        return True

    def _stop_redis(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._listener.close()
        if not self._pid:
            return
        os.kill(self._pid, signal.SIGTERM)  # it writes the AOF to disk, then exits
        deadline = time.monotonic() + _STOP_LIMIT_S
        while self._exit_status() is None:
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(_PROBE_INTERVAL_S)

    def _clean_up(self) -> None:
        for name in (GUARD_SOCKET, SERVER_SOCKET):
            _unlink(name)
        import shutil

        for folder in filter(None, (self._alias, self._folder if self._kind == TEMPORARY else "")):
            shutil.rmtree(folder, ignore_errors=True)  # does not follow symbolic links
        os.close(self._lock_fd)  # before our sockets close: users may start the next server at once


def _become_redis(command: list[str], guard_pid: int) -> None:
    """Execute redis-server in this forked child. On Linux the kernel stops it if the guard is killed."""
    try:
        if sys.platform == "linux":
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() == guard_pid:  # else the guard was killed before the line above
            os.execv(command[0], command)  # noqa: S606
    except BaseException as error:
        os.write(2, f"cannot run {command[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _drain(wakeups: socket.socket) -> None:
    wakeups.recv(512)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def main(arguments: list[str]) -> None:
    """Become a daemon: as a grandchild it leaves no zombie, and no child that the user's own waits could reap."""
    server, kind, lock_fd, user_fd, socket_path, alias = arguments
    os.umask(0o077)
    with contextlib.suppress(FileNotFoundError):
        os.replace(LOG_FILE, LOG_FILE + ".1")  # keeps the logs of this server and the last one only
    log_fd = os.open(LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    if os.fork():
        os._exit(0)
    os.set_inheritable(int(user_fd), False)  # the lock stays inheritable
    Guard(server, kind, int(lock_fd), socket_path, alias).run(socket.socket(fileno=int(user_fd)))


if __name__ == "__main__":
    main(sys.argv[1:])
