"""`rmq dashboard` and `rmq metrics`: serve web pages to monitor and manage topics, and metrics for Prometheus."""

from __future__ import annotations

import os
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq.cli.console import Session
from rmq.errors import InvalidValueError, RmqError
from rmq.spi import read_secret, safe_lines

if TYPE_CHECKING:
    from rmq.dashboard.security import Credentials

USER_VARIABLE, PASSWORD_VARIABLE = "RMQ_DASHBOARD_USER", "RMQ_DASHBOARD_PASSWORD"
_EXTRA = {"starlette", "uvicorn", "jinja2", "multipart", "python_multipart", "itsdangerous"}


def dashboard(
    session: Session,
    host: Annotated[str, typer.Option(metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT")] = 8642,
    user: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    password_file: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    read_only: Annotated[bool, typer.Option("--read-only")] = False,
    allow_host: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None,
) -> None:
    """Serve web pages to monitor and manage topics, workers and dead letters, until interrupted with Ctrl-C.

    Options:
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        user: Name of the user who may log in.  [default: RMQ_DASHBOARD_USER]
        password_file: File with the password. Without it, RMQ_DASHBOARD_PASSWORD is the password.
        read_only: Do not allow any changes.
        allow_host: Host name by which browsers reach the dashboard. Can be given more than once.
    """
    try:
        import uvicorn as _needed

        from rmq.dashboard.app import serve
        from rmq.dashboard.security import Settings
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        raise RmqError(f"the dashboard requires the package {missing}: pip install 'rmq[dashboard]'") from None
    del _needed
    settings = Settings(host, port, _credentials(user, password_file), read_only, frozenset(allow_host or ()))
    with session.client() as client:
        redis = client.shown_url
        text = "dashboard of {} at {}; Ctrl-C stops it"
        serve(client, settings, lambda at: session.result({"address": at, "redis": redis}, text.format(redis, at)))


def _credentials(user: str | None, password_file: Path | None) -> Credentials | None:
    from rmq.dashboard.security import Credentials

    user = user or os.environ.get(USER_VARIABLE)
    password = os.environ.get(PASSWORD_VARIABLE)
    if password_file is not None:
        password = read_secret(password_file, "--password-file")
    if (user is None) != (password is None):
        raise InvalidValueError(
            f"a login needs a user (--user or {USER_VARIABLE}) and a password (--password-file or {PASSWORD_VARIABLE})"
        )
    return None if user is None or password is None else Credentials(user, password)


def metrics(
    session: Session,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 9_460,
    once: Annotated[bool, typer.Option("--once")] = False,
) -> None:
    """Serve Prometheus metrics of all topics until interrupted with Ctrl-C. Requires the extra `metrics`.

    Options:
        host: Address to listen on. The metrics are served without a login.
        port: Port to listen on; 0 for a free one.
        once: Print the metrics once and exit.
    """
    exporter = load_metrics()
    with session.client() as client:
        if once and session.json:
            session.document({"metrics": _samples(exporter.render(client))})
            return
        if once:
            typer.echo(safe_lines(exporter.render(client)), nl=False)
            return
        server = exporter.serve(client, host, port)
        address = f"http://{host}:{server.port}/metrics"
        if session.json:
            session.document({"address": address})
        session.note(f"metrics on {address}")
        try:
            server.wait()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        finally:
            server.close()


def _samples(text: str) -> list[dict[str, Any]]:
    """Return the samples of a text for Prometheus; the value of one that is not a number is `None`."""
    from prometheus_client.parser import text_string_to_metric_families

    return [
        {"name": each.name, "labels": each.labels, "value": each.value if isfinite(each.value) else None}
        for family in text_string_to_metric_families(text)
        for each in family.samples
    ]


def load_metrics() -> ModuleType:
    """Import and return `rmq.metrics`.

    Raises:
        InvalidValueError: The extra `metrics` is not installed.
    """
    try:
        import rmq.metrics
    except ModuleNotFoundError as error:
        raise InvalidValueError(str(error)) from None
    return rmq.metrics
