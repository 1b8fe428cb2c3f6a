"""Answers Prometheus over HTTP."""

from __future__ import annotations

import threading
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.exposition import generate_latest

from rmq.client import RmqClient
from rmq.errors import InvalidValueError
from rmq.metrics.collector import TopicsCollector
from rmq.metrics.handlers import Handlers

PORT = 9_460
TRIED_PORTS = 64


class Server:
    """A running exporter.

    Attributes:
        port: Where it listens.

    Examples:
        >>> from rmq.metrics import serve
        >>> server = serve(client, port=0)
        >>> server.port > 0
        True
        >>> server.close()
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._server: Any
        self._server, self._thread = start_http_server(port, host, registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait(self) -> None:
        """Answer until the process is told to end."""
        threading.Event().wait()


def serve(client: RmqClient, host: str = "127.0.0.1", port: int = PORT) -> Server:
    """Export the figures of all topics.

    Args:
        client: Where they are.
        host: The address to listen on; there is no login, so think before you open it to others.
        port: The port; 0 for a free one.

    Raises:
        InvalidValueError: The port is taken, or the address is not ours.

    Examples:
        >>> from rmq.metrics import serve
        >>> server = serve(client, port=0)
        >>> server.close()
    """
    registry = CollectorRegistry()
    registry.register(TopicsCollector(client))
    return _listen(registry, host, port, 1)


def serve_handlers(client: RmqClient, host: str = "127.0.0.1", port: int = PORT) -> Server:
    """Export how a worker's own handlers do; before its listeners start.

    Args:
        client: The worker's client.
        host: The address to listen on.
        port: The port; of several processes of one worker the others take the next free ones.

    Raises:
        InvalidValueError: No port from it on is free.

    Examples:
        >>> from rmq.metrics import serve_handlers
        >>> server = serve_handlers(client, port=0)
        >>> server.close()
    """
    registry = CollectorRegistry()
    client.observers.all.append(Handlers(registry))
    return _listen(registry, host, port, TRIED_PORTS)


def _listen(registry: CollectorRegistry, host: str, port: int, tries: int) -> Server:
    if not host:  # it would stand for all addresses
        raise InvalidValueError("the host to listen on is empty; name an address, 0.0.0.0 for all")
    trouble: Exception | None = None
    for number in range(port, port + tries):
        try:
            return Server(registry, host, number)
        except OverflowError:
            trouble = OSError(f"there is no port {number}")
        except (OSError, ValueError) as error:  # the latter: what can't be a host's name
            trouble = error
    raise InvalidValueError(f"cannot listen on {host}:{port}: {trouble}")


def render(client: RmqClient) -> str:
    """Return the figures of all topics once, as Prometheus reads them.

    Examples:
        >>> from rmq.metrics import render
        >>> _ = client.producer(Topic("jobs", TopicType.PRIORITY))
        >>> [line for line in render(client).splitlines() if line.startswith("rmq_backlog")]
        ['rmq_backlog{topic="jobs"} 0.0']
    """
    registry = CollectorRegistry()
    registry.register(TopicsCollector(client))
    return generate_latest(registry).decode()
