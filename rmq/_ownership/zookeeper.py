"""Executes requests with kazoo. The only module that imports it.

Kazoo's callbacks only set an event here. This module adds what kazoo lacks:

- Kazoo detects an unresponsive server only while it has nothing to send. We close the connection when a batch gets no
  reply for a third of the session timeout, so that kazoo tries the next server.
- Kazoo does not expose the session timeout that the server granted. We compute it from the handshake's read timeout,
  which is two thirds of it.
- Kazoo retries connecting with pauses of up to an hour. We limit them to one second.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, cast

from kazoo import exceptions as refusals  # pyright: ignore[reportMissingTypeStubs]
from kazoo.client import KazooClient  # pyright: ignore[reportMissingTypeStubs]
from kazoo.handlers import threading as handlers  # pyright: ignore[reportMissingTypeStubs]
from kazoo.hosts import (  # pyright: ignore[reportMissingTypeStubs]
    collect_hosts,  # pyright: ignore[reportUnknownVariableType]
)
from kazoo.protocol.serialization import SASL, Auth  # pyright: ignore[reportMissingTypeStubs]
from kazoo.protocol.states import KeeperState  # pyright: ignore[reportMissingTypeStubs]
from kazoo.security import CREATOR_ALL_ACL  # pyright: ignore[reportMissingTypeStubs]

from rmq._model.display import brief
from rmq._model.times import monotonic_s
from rmq._ownership.requests import (
    UNKNOWN,
    Children,
    Create,
    Get,
    Look,
    Put,
    Refused,
    RefusedError,
    Release,
    Reply,
    Request,
    Sync,
)
from rmq._ownership.values import DigestAuth, SaslAuth, Stat, Tls
from rmq.errors import CoordinationError, InvalidValueError

WINDOW = 128
"""Maximum number of requests in flight: kazoo's wake-up pipe takes a byte for each and must not fill up."""

_LOG = logging.getLogger("rmq.zookeeper")

_BROKEN = (
    *(refusals.ConnectionLoss, refusals.ConnectionClosedError),
    *(refusals.SessionExpiredError, refusals.SessionMovedError, refusals.AuthFailedError),
    *(refusals.OperationTimeoutError, refusals.RequestTimeoutError),  # may have been executed or not
)
_DEFINITE = (refusals.NoNodeError, refusals.NodeExistsError, refusals.BadVersionError)
_UNDONE = (refusals.RolledBackError, refusals.RuntimeInconsistency)
"""Results of the valid parts of a transaction of which another part failed."""
_THROUGH_LEADER = (Sync, Create, Put, Release)


def _no_login(record: logging.LogRecord) -> bool:
    """Return False for log records of login requests: at DEBUG kazoo logs each request, with its password."""
    return not any(isinstance(value, Auth | SASL) for value in record.args or ())


_LOG.addFilter(_no_login)


class _Handler(handlers.SequentialThreadingHandler):
    """Kazoo's handler with a connect timeout. It stores the connection, so that other code can close it."""

    connect_timeout_s = 5.0
    refusal: str | None = None  # error of the last attempt to connect
    _current: socket.socket | None = None

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(kwargs.get("timeout", self.connect_timeout_s), self.connect_timeout_s)
        try:
            connection = cast("Any", super()).create_connection(*args, **kwargs)
        except Exception as error:  # kazoo tries the next server without reporting the error
            host, port = kwargs["address"] if "address" in kwargs else args[0]
            self.refusal = f"{host}:{port}: {error!s:.300}"
            raise
        self._current, self.refusal = connection, None
        return connection

    def hang_up(self) -> None:
        if self._current:
            with contextlib.suppress(OSError):
                self._current.shutdown(socket.SHUT_RDWR)


class ZooKeeperClient:
    """A connection to ZooKeeper: a sequence of sessions, on any server that answers.

    Kazoo's threads call `wake` when a watch fires or the connection changes, and `broken` when it breaks. Neither may
    block. The other arguments are those of the coordinator.
    """

    name = "ZooKeeper"

    def __init__(
        self,
        hosts: str,
        chroot: str,
        session_timeout_s: float,
        wake: Callable[[], None],
        broken: Callable[[], None],
        *,
        auth: DigestAuth | SaslAuth | None = None,
        tls: Tls | None = None,
    ) -> None:
        try:
            hosts.encode()
            collect_hosts(hosts)
        except ValueError as error:
            raise InvalidValueError(
                f"hosts is {brief(hosts)}; it must be like host:2181,host:2181 ({brief(str(error))})"
            ) from None
        self._wake = wake
        self._broken = broken
        self._identity: tuple[int, bytes] | None = None  # id and password of the last session
        self._settings: dict[str, Any] = {
            "hosts": hosts + chroot,
            "timeout": session_timeout_s,
            "default_acl": CREATOR_ALL_ACL if auth else None,
            "connection_retry": {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 1.0},
            "logger": _LOG,
            **_login(auth),
            **_encryption(tls),
        }
        self._make()

    def _make(self) -> None:
        self.session_timeout_s: float = self._settings["timeout"]  # the granted timeout, once it is known
        self._changed_s = monotonic_s()  # when the connection last changed
        self._handler = _Handler()
        self._handler.connect_timeout_s = self.session_timeout_s / 3
        self._client: Any = KazooClient(client_id=self._identity, handler=self._handler, **self._settings)
        self._client.add_listener(self._on_state)
        connection: Any = self._client._connection
        handshake = connection._connect

        def connect(*args: Any, **kwargs: Any) -> Any:
            """Read the granted timeout: the handshake returns (2/3 of it, …) in ms."""
            timeouts = handshake(*args, **kwargs)
            self.session_timeout_s = timeouts[0] * 1.5 / 1000
            return timeouts

        connection._connect = connect

    def renew(self) -> None:
        """Replace a kazoo client that cannot connect any more: its login was refused, or all servers lag behind it.

        The session is resumed if it is still alive.

        Raises:
            CoordinationError: The login was refused.
        """
        refused = self._client.client_state == KeeperState.AUTH_FAILED
        if refused or monotonic_s() - self._changed_s >= 3 * self.session_timeout_s:
            self.stop()
            self._make()
            self.start()
        if refused:
            raise CoordinationError("ZooKeeper refused the login; check `auth`")

    def _on_state(self, state: str) -> None:
        self._changed_s = monotonic_s()
        if state == "CONNECTED":
            self._identity = self._client.client_id
        else:
            self._broken()
        self._wake()

    def _on_event(self, _event: object) -> None:
        self._wake()

    @property
    def session(self) -> int | None:
        """Id of the session; None while there is no connection."""
        identity: tuple[int, bytes] | None = self._client.client_id
        return identity[0] if identity else None

    @property
    def refusal(self) -> str | None:
        """The server and error of the last failed connection; None if it succeeded, or none was tried."""
        return self._handler.refusal

    def start(self) -> None:
        """Start connecting; returns at once."""
        self._client.start_async()

    def stop(self) -> None:
        """End the session, if a server can be reached, and the threads."""
        with contextlib.suppress(Exception):  # kazoo has to end in any state
            self._client.stop()
            self._client.close()

    def ensure_chroot(self) -> None:
        """Create the chroot.

        Raises:
            CoordinationError: Permission is denied, or no server answers.
        """
        with contextlib.suppress(refusals.NodeExistsError):
            try:
                self._result(self._client.ensure_path_async("/"))
            except refusals.ZookeeperError as error:
                if isinstance(error, _BROKEN):
                    raise
                look = Look("/")
                looked = self._reply(look, *self._begin(look))
                if isinstance(looked, Refused):  # it exists, but this login may not read it
                    raise RefusedError(looked.text(self._client.chroot)) from error
                refused = Refused(Create(self._client.chroot, b"", ephemeral=False), _name_of(error))
                raise RefusedError(refused.text()) from error

    def carry_out(
        self, session: int, requests: Sequence[Request], heard: Callable[[float], None] | None = None
    ) -> list[Reply]:
        """Execute requests of a session in their order, many in flight at once.

        Each gets a reply: UNKNOWN if the connection broke or another session began, `Refused` if ZooKeeper rejects it.
        Once a window of requests is answered completely, `heard` is called with the time at which it was sent:
        ZooKeeper's leader knew the session then. Reads do not pass through the leader, so a window of reads gets a
        Sync, which costs no further round trip.
        """
        replies: list[Reply] = []
        for start in range(0, len(requests), WINDOW):
            window = requests[start : start + WINDOW]
            if self.session != session or UNKNOWN in replies[-WINDOW:]:
                replies += [UNKNOWN] * len(window)
                continue
            sent_s = monotonic_s()
            proof: list[Request] = (
                [] if not heard or any(isinstance(each, _THROUGH_LEADER) for each in window) else [Sync()]
            )
            sent = [(request, self._begin(request)) for request in [*proof, *window]]
            replies += [self._reply(request, *begun) for request, begun in sent][len(proof) :]
            if heard and self.session == session and UNKNOWN not in replies[start:]:
                heard(sent_s)
        return replies if self.session == session else [UNKNOWN] * len(requests)

    def _begin(self, request: Request) -> tuple[Any, Callable[[Any], Reply], Reply]:
        """Send a request; return its future, the parser of its result, and the reply to a definite failure."""
        client = self._client
        watch = self._on_event if isinstance(request, Look | Get | Children) and request.watch else None
        match request:
            case Sync():
                return client.sync_async("/"), _done, None
            case Look(path):
                return client.exists_async(path, watch=watch), lambda stat: _stat(stat) if stat else None, None
            case Get(path):
                return client.get_async(path, watch=watch), lambda node: (node[0], _stat(node[1])), None
            case Children(path):
                return client.get_children_async(path, watch=watch), list, None
            case Create(path, data, ephemeral):
                created = client.create_async(path, data, ephemeral=ephemeral, include_data=True)
                return created, lambda node: _stat(node[1]), None
            case Put(path, data, version):
                return client.set_async(path, data, version=version), _done, False
            case Release(path, guard, version):
                transaction = client.transaction()
                transaction.check(guard, -1)
                transaction.delete(path, version)
                return transaction.commit_async(), _released, False

    def _reply(self, request: Request, result: Any, read: Callable[[Any], Reply], no: Reply) -> Reply:
        try:
            return read(self._result(result))
        except _BROKEN:
            return UNKNOWN
        except _DEFINITE:
            return no
        except refusals.ZookeeperError as error:
            return Refused(request, _name_of(error))

    def _result(self, result: Any) -> Any:
        """Wait for a result; close the connection to a server that does not respond.

        Raises:
            ZookeeperError: The connection broke, or ZooKeeper refused the request.
            CoordinationError: Kazoo failed.
        """
        try:
            try:
                return result.get(timeout=self.session_timeout_s / 3)
            except handlers.KazooTimeoutError:
                self._handler.hang_up()  # kazoo tries the next server; the session stays
                return result.get(timeout=2 * self.session_timeout_s)
        except handlers.KazooTimeoutError as error:
            raise refusals.ConnectionLoss from error
        except refusals.ZookeeperError:
            raise
        except refusals.KazooException as error:
            raise CoordinationError(f"the ZooKeeper client failed: {error!r:.300}") from error


def _done(_value: Any) -> bool:
    return True


def _stat(stat: Any) -> Stat:
    return Stat(stat.czxid, stat.version, stat.ephemeralOwner, stat.mzxid)


def _released(results: Iterable[Any]) -> bool:
    """Parse the results of check and delete: True if both succeeded, or if the guard exists and the node does not.

    Raises:
        ZookeeperError: One of them was refused.
    """
    guard, deleted = results
    if not isinstance(deleted, Exception):
        return True
    for result in (guard, deleted):
        if isinstance(result, refusals.ZookeeperError) and not isinstance(result, (*_DEFINITE, *_UNDONE)):
            raise result
    return isinstance(guard, _UNDONE) and isinstance(deleted, refusals.NoNodeError)


def _name_of(error: Exception) -> str:
    return type(error).__name__.removesuffix("Error")


def _login(auth: DigestAuth | SaslAuth | None) -> dict[str, Any]:
    if isinstance(auth, DigestAuth):
        return {"auth_data": [("digest", f"{auth.username}:{auth.password}")]}
    if isinstance(auth, SaslAuth):
        return {"sasl_options": {name: value for name, value in asdict(auth).items() if value is not None}}
    return {}


def _encryption(tls: Tls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    files = {"ca": tls.ca, "certfile": tls.cert, "keyfile": tls.key, "keyfile_password": tls.key_password}
    return {**files, "use_ssl": True, "check_hostname": tls.check_hostname}
