"""The dashboard as an ASGI application, and its server."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from rmq import RmqClient
from rmq.dashboard.actions import Actions
from rmq.dashboard.background import Jobs
from rmq.dashboard.pages import Views
from rmq.dashboard.queries import Reader
from rmq.dashboard.rendering import Pages
from rmq.dashboard.security import Forms, Gate, Settings
from rmq.errors import InvalidValueError, RmqError


def make_app(client: RmqClient, settings: Settings | None = None) -> ASGIApp:
    """Return the dashboard as an ASGI application for your own server. It must be served at the root of a host.

    Args:
        client: The client to use. The caller closes it.
        settings: Access settings; host and port are ignored. Without credentials, only requests from this machine are
            answered. A proxy in front must then authenticate users, and the server must pass on the proxy's address,
            not that in its headers (uvicorn: `proxy_headers=False`).
    """
    chosen = settings or Settings()
    reader = Reader(client)
    pages = Pages(reader, chosen, Forms())
    jobs = Jobs(reader.cache.drop)

    def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, RmqError):
            return pages.failed(request, error)
        status = error.status_code if isinstance(error, HTTPException) else 500
        texts = {
            404: "There is no such page.", 405: "This address accepts only forms.", 413: "The form is too large.",
            500: "An internal error occurred; the dashboard's log has the details.",
        }  # fmt: skip
        return pages.render(request, "error.html", status, heading=str(status), text=texts.get(status, ""))

    routes = [
        *Views(pages, jobs).routes(),
        *Actions(pages, jobs).routes(),
        Mount("/static", StaticFiles(packages=[("rmq.dashboard", "static")])),
    ]
    handlers = {HTTPException: failed, RmqError: failed, Exception: failed}  # the server logs errors of the last kind
    return Gate(Starlette(routes=routes, exception_handlers=handlers), chosen)  # pyright: ignore[reportArgumentType]


def serve(client: RmqClient, settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve the dashboard until SIGINT or SIGTERM.

    Args:
        client: The client to use.
        settings: Address and access settings.
        ready: Called with the URL once the server is listening.

    Raises:
        InvalidValueError: The server cannot listen on the address.
    """
    import uvicorn  # which an application on your own server does without

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
