"""Serves metrics to Prometheus and autoscalers over HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, exposition

from rmq import RmqClient
from rmq.errors import InvalidValueError
from rmq.metrics.collector import TopicsCollector
from rmq.metrics.handlers import Handlers
from rmq.metrics.scale import PATH, ScalePages
from rmq.spi import allows_host, is_loopback

PORT = 9_460
TRIED_PORTS = 64
SILENT_S = 30.0
"""Seconds without data after which a connection is closed: its peer may have disappeared."""

Application = Callable[[dict[str, Any], Callable[..., object]], Iterable[bytes]]
"""A WSGI application."""


class _Threads(ThreadingMixIn, WSGIServer):
    """Answers each request in a daemon thread, which does not delay the program's exit."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """A request handler that does not log requests, and closes silent connections."""

    timeout = SILENT_S

    def handle(self) -> None:
        """Answer one request. Broken and silent connections are ignored."""
        with suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class Server:
    """A running exporter.

    Args:
        registry: The metrics to serve, at any path but `/scale/`.
        host: The address to listen on.
        port: The port; 0 for a free one.
        client: The client for `/scale/`; `None` disables it.

    Attributes:
        port: The port on which the server listens.

    Examples:
        >>> from rmq.metrics import serve
        >>> server = serve(client, port=0)
        >>> server.port > 0
        True
        >>> server.close()
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int, client: RmqClient | None = None) -> None:
        metrics: Application = cast("Any", exposition).make_wsgi_app(registry)
        scales = None if client is None else ScalePages(client)

        def answer(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
            refusal = _refusal(environ, host)
            if refusal is not None:
                start_response(refusal, [("Content-Type", "text/plain"), ("Allow", "GET")])
                return [f"{refusal}\n".encode()]
            if scales is not None and str(environ.get("PATH_INFO", "")).startswith(PATH):
                return scales(environ, start_response)
            return metrics(environ, start_response)

        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = type("_Listening", (_Threads,), {"address_family": family})
        self._server = make_server(str(address[0]), port, answer, listening, _Quiet)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="rmq-metrics", daemon=True)
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


def serve(client: RmqClient, host: str = "127.0.0.1", port: int = PORT) -> Server:
    """Export the metrics of all topics at `/metrics`, and a topic's amount of work at `/scale/<topic>`.

    Args:
        client: The client to use.
        host: The address to listen on. There is no login, so do not expose it to untrusted networks.
        port: The port; 0 for a free one.

    Raises:
        InvalidValueError: The port is in use, or the address is not one of this machine.

    Examples:
        >>> from rmq.metrics import serve
        >>> server = serve(client, port=0)
        >>> server.close()
    """
    registry = CollectorRegistry()
    registry.register(TopicsCollector(client))
    return _listen(registry, host, port, 1, client)


def serve_handlers(client: RmqClient, host: str = "127.0.0.1", port: int = PORT) -> Server:
    """Export the metrics of a worker's handlers. Call it before its listeners start.

    Args:
        client: The worker's client.
        host: The address to listen on.
        port: The port. Further processes of the worker use the next free ports.

    Raises:
        InvalidValueError: There is no free port from `port` on.

    Examples:
        >>> from rmq.metrics import serve_handlers
        >>> server = serve_handlers(client, port=0)
        >>> server.close()
    """
    registry = CollectorRegistry()
    client.observers.all.append(Handlers(registry))
    return _listen(registry, host, port, TRIED_PORTS)


def _listen(registry: CollectorRegistry, host: str, port: int, tries: int, client: RmqClient | None = None) -> Server:
    if not host:  # an empty host would mean all addresses
        raise InvalidValueError("host is empty; it must be an address to listen on, such as 0.0.0.0 for all")
    trouble: Exception | None = None
    for number in range(port, port + tries):
        try:
            return Server(registry, host, number, client)
        except OverflowError:
            trouble = OSError(f"port is {number}; it must be from 0 to 65535")
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            trouble = error
    raise InvalidValueError(f"cannot listen on {host}:{port}: {trouble}")


def render(client: RmqClient) -> str:
    """Return the metrics of all topics in Prometheus' text format.

    Examples:
        >>> from rmq.metrics import render
        >>> _ = client.producer(Topic("jobs", TopicType.PRIORITY))
        >>> [line for line in render(client).splitlines() if line.startswith("rmq_backlog")]
        ['rmq_backlog{topic="jobs"} 0.0']
    """
    registry = CollectorRegistry()
    registry.register(TopicsCollector(client))
    return exposition.generate_latest(registry).decode()
