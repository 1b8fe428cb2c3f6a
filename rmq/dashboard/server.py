"""Serves the dashboard over HTTP."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import uvicorn

from rmq import RmqClient
from rmq.dashboard.app import make_app
from rmq.dashboard.settings import Settings
from rmq.errors import InvalidValueError


def serve(client: RmqClient, settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve the dashboard until SIGINT or SIGTERM.

    Args:
        client: The client to use.
        settings: Address and access settings.
        ready: Called with the URL once the server is listening.

    Raises:
        InvalidValueError: The server cannot listen on the address.
    """
    config = uvicorn.Config(
        make_app(client, settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # use the peer's address, not that in its headers
        timeout_graceful_shutdown=3,
    )
    with listening(settings) as listener:
        host, port = listener.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
        client.record_history()
        uvicorn.Server(config).run(sockets=[listener])


def listening(settings: Settings) -> socket.socket:
    """Return a socket that listens on the address of the settings."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # `::` accepts IPv4, too
        address = settings.host, settings.port
        return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        where = f"{settings.host}, port {settings.port}"
        # `create_server` repeats the address in its errors
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise InvalidValueError(f"cannot listen on {where}: {why}") from None
