"""Serves metrics to Prometheus and autoscalers over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from prometheus_client import CollectorRegistry, exposition

from rmq import RmqClient
from rmq.metrics.collector import TopicsCollector
from rmq.metrics.handlers import Handlers
from rmq.metrics.scale import PATH, ScalePages
from rmq.spi import HttpServer, serve_on

PORT = 9_460
TRIED_PORTS = 64


class Server(HttpServer):
    """An HTTP server that exports metrics to Prometheus, and the amount of work to autoscalers. It runs until closed.

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
        metrics: Any = cast("Any", exposition).make_wsgi_app(registry)
        scales = None if client is None else ScalePages(client)

        def answer(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
            if scales is not None and str(environ.get("PATH_INFO", "")).startswith(PATH):
                return scales(environ, start_response)
            return metrics(environ, start_response)

        super().__init__(answer, host, port, "rmq-metrics")


def serve(client: RmqClient, host: str = "127.0.0.1", port: int = PORT) -> Server:
    """Export the metrics of all topics at `/metrics`, and a topic's amount of work at `/scale/<topic>`.

    Args:
        client: The client to use.
        host: The address to listen on. There is no login, so do not expose it to untrusted networks.
        port: The port; 0 for a free one.

    Returns:
        The server, which runs until it is closed.

    Raises:
        InvalidValueError: The port is in use or out of range, or the address is empty or not one of this machine.

    Examples:
        >>> from rmq.metrics import serve
        >>> server = serve(client, port=0)
        >>> server.close()
    """
    registry = CollectorRegistry()
    registry.register(TopicsCollector(client))
    return serve_on(lambda host, port: Server(registry, host, port, client), host, port)


def serve_handlers(client: RmqClient, host: str = "127.0.0.1", port: int = PORT) -> Server:
    """Export the metrics of a worker's handlers. Call it before its listeners start.

    Args:
        client: The worker's client.
        host: The address to listen on.
        port: The first of 64 ports to try; 0 for a free one. Further processes of the worker use the next free ports.

    Returns:
        The server, which runs until it is closed.

    Raises:
        InvalidValueError: None of the 64 ports from `port` on is free, or the address is empty or not one of this
            machine.

    Examples:
        >>> from rmq.metrics import serve_handlers
        >>> server = serve_handlers(client, port=0)
        >>> server.close()
    """
    registry = CollectorRegistry()
    client.observers.all.append(Handlers(registry))
    return serve_on(lambda host, port: Server(registry, host, port), host, port, TRIED_PORTS)


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
