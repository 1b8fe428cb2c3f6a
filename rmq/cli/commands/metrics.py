"""`rmq metrics`: serves or prints Prometheus metrics of all topics."""

from __future__ import annotations

from math import isfinite
from types import ModuleType
from typing import Annotated, Any

import typer

from rmq.cli.console import Session
from rmq.errors import InvalidValueError
from rmq.spi import safe_lines


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
