"""Builds the dashboard as an ASGI application."""

from __future__ import annotations

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
from rmq.dashboard.security import Forms, Gate
from rmq.dashboard.settings import Settings
from rmq.errors import RmqError


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
