"""A small HTTP server of read-only pages: metrics, the amount of work, and the health of a process.

It answers GET only. On loopback addresses it refuses foreign host names, so that a web page cannot read from it.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from rmq._model.display import safe_lines
from rmq._model.workers import Health
from rmq.errors import InvalidValueError

SILENT_S = 30.0
"""Seconds without data after which a connection is closed: its peer may have disappeared."""

Application = Callable[[dict[str, Any], Callable[..., object]], Iterable[bytes]]
"""A WSGI application."""

ServerT = TypeVar("ServerT", bound="HttpServer")


class _Threads(ThreadingMixIn, WSGIServer):
    """Answers each request in a daemon thread, which does not delay the program's exit."""

    daemon_threads = True


class QuietHandler(WSGIRequestHandler):
    """A request handler that does not log requests, and closes silent connections."""

    timeout = SILENT_S

    def handle(self) -> None:
        """Answer one request. Broken and silent connections are ignored."""
        with suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class HttpServer:
    """A running server.

    Args:
        application: Answers the requests.
        host: The address to listen on.
        port: The port; 0 for a free one.
        name: Name of its thread.

    Attributes:
        port: The port on which the server listens.
    """

    def __init__(self, application: Application, host: str, port: int, name: str) -> None:
        def answer(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
            refusal = _refusal(environ, host)
            if refusal is not None:
                start_response(refusal, [("Content-Type", "text/plain"), ("Allow", "GET")])
                return [f"{refusal}\n".encode()]
            return application(environ, start_response)

        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = type("_Listening", (_Threads,), {"address_family": family})
        self._server = make_server(str(address[0]), port, answer, listening, QuietHandler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait(self) -> None:
        """Block forever, while the server answers requests."""
        threading.Event().wait()


def _refusal(environ: Mapping[str, Any], host: str) -> str | None:
    """Return the error status for a refused request, or `None`. Host names are checked on loopback addresses only."""
    if environ.get("REQUEST_METHOD") != "GET":
        return "405 Method Not Allowed"
    if is_loopback(host) and not allows_host(environ.get("HTTP_HOST") or "localhost"):
        return "421 Misdirected Request"
    return None


def serve_on(make: Callable[[str, int], ServerT], host: str, port: int, tries: int = 1) -> ServerT:
    """Return the server that `make` starts on this address, on the first of `tries` consecutive ports that is free.

    Raises:
        InvalidValueError: No port is free, or the address is not one of this machine.
    """
    if not host:  # an empty host would mean all addresses
        raise InvalidValueError("host is empty; it must be an address to listen on, such as 0.0.0.0 for all")
    trouble: Exception | None = None
    for number in range(port, port + tries):
        try:
            return make(host, number)
        except OverflowError:
            trouble = OSError(f"port is {number}; it must be from 0 to 65535")
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            trouble = error
    raise InvalidValueError(f"cannot listen on {host}:{port}{f' to {port + tries - 1}' * (tries > 1)}: {trouble}")


def serve_health(health: Callable[[], Health], host: str, port: int) -> HttpServer:
    """Serve the health of a process: `/livez` and `/readyz` answer 200, or 503 with the reasons as text.

    Args:
        health: Returns the health. Called for each request, in a thread of its own.
        host: The address to listen on. There is no login.
        port: The port; 0 for a free one.

    Raises:
        InvalidValueError: The port is in use, or the address is not one of this machine.
    """

    def answer(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        now, path = health(), environ.get("PATH_INFO")
        good = {"/livez": now.live, "/readyz": now.ready}.get(str(path))
        if good is None:
            status, text = "404 Not Found", "not found; the paths are /livez and /readyz"
        else:
            status = "200 OK" if good else "503 Service Unavailable"
            text = "ok" if good else "\n".join(now.reasons) or "a thread of a listener has ended"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return [f"{safe_lines(text)}\n".encode()]

    return serve_on(lambda host, port: HttpServer(answer, host, port, "rmq-health"), host, port)


def allows_host(host_header: str, names: AbstractSet[str] = frozenset()) -> bool:
    """Return whether a request with this `Host` header may be answered: it names `localhost`, an address, or `names`.

    A web page can make its own host name resolve to an address of this machine (DNS rebinding), so that a browser sends
    requests to servers that only this machine can reach. With an address this is impossible. `names` are lower case.
    """
    name = host_header.lower()
    host = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    return host in names or host == "localhost" or _address(host) is not None


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def network_of(host: str) -> str:
    """Return the network by which failed logins are counted.

    That is an IPv4 address, or the /64 network of an IPv6 address, since a client can choose the lower 64 bits. A host
    name is returned unchanged.
    """
    address = _address(host.partition("%")[0])
    if address is None:
        return host
    return str(address if address.version == 4 else ipaddress.ip_network((address, 64), strict=False))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
