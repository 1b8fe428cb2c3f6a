"""Serves the dashboard over HTTP, until a signal."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from rmq.client import RmqClient
from rmq.dashboard.app import make_app
from rmq.dashboard.settings import Settings
from rmq.errors import InvalidValueError


def serve(client: RmqClient, settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve the dashboard until SIGINT or SIGTERM.

    Args:
        client: What it shows.
        settings: Where, and for whom.
        ready: Called with the address once it listens.

    Raises:
        InvalidValueError: It can't listen there.
    """
    config = uvicorn.Config(
        make_app(client, settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    with _listening(settings) as listening:
        host, port = listening.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
        client.record_history()
        uvicorn.Server(config).run(sockets=[listening])


def _listening(settings: Settings) -> socket.socket:
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((settings.host, settings.port), family=family, backlog=128)
    except OSError as error:
        where = f"{settings.host}, port {settings.port}"
        raise InvalidValueError(f"cannot listen on {where}: {error.strerror}") from None
