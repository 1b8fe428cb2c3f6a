"""`rmq worker`: runs the listeners of a client that the user's module defines."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from rmq import Health, LogContext, RmqClient
from rmq.cli.commands.serving import load_metrics
from rmq.cli.console import Session, log_to_stderr
from rmq.cli.settings_file import VARIABLE, variable_of
from rmq.client import DRAIN_S
from rmq.errors import InvalidUrlError, InvalidValueError, RmqError
from rmq.spi import URL_VARIABLE, Supervisor, counted, end_with_parent, run_reloading, serve_health

log = logging.getLogger("rmq.worker")

LOCAL_HOST = "127.0.0.1"

Level = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of a worker process.

    Attributes:
        drain_s: Seconds to wait for running handlers at shutdown.
        threads: Number of threads of each listener. Overrides each listener's setting.
        handlers: Maximum number of handlers that run in parallel in a process, over all listeners.
        idle: How to wait for messages. economy sends few commands, for servers that are billed per command.
        owners: `redis`: own slots, and keep the owners in Redis; for a client that names neither owners nor zookeeper.
        exit_when_hung: Once a handler has run for longer than its listener's timeout, let the others finish, and end
            with exit code 75.
        log_level: Log level of stderr: debug, info, warning or error.
        log_format: Log format: text, or one JSON object per line, as with --json.
        metrics_port: Serve Prometheus metrics on this port. Several processes use consecutive ports.
        metrics_host: Address for --metrics-port; 0.0.0.0 for all, such as in a container. There is no login.
            [default: 127.0.0.1]
        health_port: Serve /livez and /readyz on this port, for Kubernetes and other process managers.
        health_host: Address for --health-port; 0.0.0.0 for all, as Kubernetes needs.  [default: 127.0.0.1]
    """

    drain_s: Annotated[float, typer.Option("--drain", min=0, metavar="S")] = DRAIN_S
    threads: Annotated[int | None, typer.Option(min=1, max=1000, metavar="N")] = None
    handlers: Annotated[int | None, typer.Option(min=1, max=10000, metavar="N")] = None
    idle: Annotated[Literal["normal", "economy"], typer.Option()] = "normal"
    owners: Annotated[Literal["redis"] | None, typer.Option()] = None
    exit_when_hung: Annotated[bool, typer.Option("--exit-when-hung")] = False
    log_level: Annotated[Level, typer.Option()] = "info"
    log_format: Annotated[Literal["text", "json"], typer.Option()] = "text"
    metrics_port: Annotated[int | None, typer.Option(min=1, max=65535, metavar="PORT")] = None
    metrics_host: Annotated[str | None, typer.Option(metavar="HOST")] = None
    health_port: Annotated[int | None, typer.Option(min=1, max=65535, metavar="PORT")] = None
    health_host: Annotated[str | None, typer.Option(metavar="HOST")] = None


def worker(
    session: Session,
    target: Annotated[str, typer.Argument(metavar="MODULE:CLIENT")],
    settings: Settings,
    processes: Annotated[int | None, typer.Option(min=1, max=1000, metavar="N")] = None,
    reload: Annotated[bool, typer.Option("--reload")] = False,
) -> int | None:
    """Run the listeners of MODULE:CLIENT until SIGTERM or Ctrl-C, then let running handlers finish.

    Options:
        target: MODULE:NAME of an RmqClient, or of a function without arguments that returns one.
        processes: Number of processes. A process that crashes is restarted.
        reload: For development: restart when a Python file below the current folder changes.
    """
    if session.options.verbose:
        settings = replace(settings, log_level="debug")
    if session.json:
        settings = replace(settings, log_format="json")
    log_to_stderr(settings.log_level.upper(), settings.log_format == "json")
    for what, host, port in (
        ("metrics", settings.metrics_host, settings.metrics_port),
        ("health", settings.health_host, settings.health_port),
    ):
        if host is not None and port is None:
            raise InvalidValueError(f"--{what}-host {host!r} requires --{what}-port")
    session.pass_url_on()
    _keep_settings_from_children()
    if reload:
        if processes is not None:
            raise InvalidValueError(
                f"--reload and --processes {processes} cannot be combined: --reload runs one process"
            )
        return run_reloading(_command(target, settings), Path.cwd(), settings.drain_s)
    if processes is not None:
        single = replace(settings, health_port=None, health_host=None)
        supervisor = Supervisor(_command(target, single), processes, settings.drain_s)
        _serve_health(supervisor.health, settings)
        return supervisor.run()
    run_one(target, settings, supervised=end_with_parent())
    return None


def _keep_settings_from_children() -> None:
    """Remove this command's settings from the environment: its processes get them as arguments."""
    for name in [name for name in os.environ if name.startswith(variable_of("worker", ""))]:
        del os.environ[name]
    os.environ[VARIABLE] = os.devnull


def _command(target: str, settings: Settings) -> list[str]:
    """Return the command line of one of several worker processes."""
    options = [f"--drain={settings.drain_s}"]
    for name, value in asdict(settings).items():
        if name != "drain_s" and value not in (None, False):
            option = f"--{name.replace('_', '-')}"
            options.append(option if value is True else f"{option}={value}")
    return [sys.executable, "-c", "from rmq.cli import main; main()", "worker", *options, "--", target]


def _serve_health(health: Callable[[], Health], settings: Settings) -> None:
    if settings.health_port is not None:
        host = settings.health_host or LOCAL_HOST
        server = serve_health(health, host, settings.health_port)
        log.info("health on http://%s:%d/readyz", host, server.port)


def run_one(target: str, settings: Settings, supervised: bool = False) -> None:
    """Run a target's listeners in this process until SIGTERM or SIGINT, alone or under a supervisor.

    Raises:
        InvalidValueError: The target is not a client, or other processes cannot reach the client's Redis.
        RmqError: The client has no listener, a topic differs from its registered definition, or handlers were still
            running after the drain time.
    """
    client = load_client(target)
    _check_url(client, target, supervised)
    if settings.owners is not None:
        client._choose_owners(settings.owners)  # pyright: ignore[reportPrivateUsage]
    log.info("%s runs on %s, process %d", target, client.shown_url, os.getpid())
    if settings.log_format == "json":
        client.observers.all.append(LogContext())
    if settings.metrics_port is not None:
        host = settings.metrics_host or LOCAL_HOST
        server = load_metrics().serve_handlers(client, host, settings.metrics_port)
        log.info("metrics on http://%s:%d/metrics", host, server.port)
    _serve_health(client.health, settings)
    unfinished = client.run(
        settings.drain_s, settings.threads, settings.handlers, settings.idle, exit_when_hung=settings.exit_when_hung
    )
    log.info("%s has stopped", target)
    if unfinished:
        late = counted(len(unfinished), "message was", "messages were")
        raise RmqError(
            f"{late} still being handled after {settings.drain_s:g} s and will be redelivered when the lease expires"
        )


def _check_url(client: RmqClient, target: str, supervised: bool) -> None:
    """Raise if no URL is set, or if several processes would each start a Redis of their own."""
    named = client._named  # pyright: ignore[reportPrivateUsage]
    if not named.chosen:
        client.close()
        raise InvalidUrlError(
            f"client {target} has no Redis URL; set {URL_VARIABLE} or --url, such as redis://host:6379"
        )
    if supervised and named.temporary:
        client.close()
        raise InvalidUrlError(
            f"{target} uses {named.shown}, a temporary Redis of one process; with --processes or --reload use one that "
            "processes share, such as embedded:///folder"
        )


def load_client(target: str) -> RmqClient:
    """Import a module, also from the working directory, and return its client, or the result of its function.

    Raises:
        InvalidValueError: The module or attribute does not exist, it is not a client, or the user's code failed.
    """
    module_name, colon, attribute = target.partition(":")
    parts = [*module_name.split("."), *attribute.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise InvalidValueError(f"{target!r} must have the form module:client, such as shop.jobs:client")
    found: object = _imported(module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            clients = [f"{module_name}:{name}" for name, each in vars(found).items() if isinstance(each, RmqClient)]
            hint = f"; did you mean {' or '.join(clients)}?" if clients else ""
            raise InvalidValueError(f"module {module_name} has no attribute {attribute!r}{hint}") from None
    if callable(found) and not isinstance(found, type):
        with _user_code(f"{target}() failed", RmqError):
            found = cast("Callable[[], object]", found)()
    aio = sys.modules.get("rmq.aio")
    if aio is not None and isinstance(found, aio.RmqClient):
        raise InvalidValueError(
            f"{target} is a client of rmq.aio, but rmq worker runs only clients of rmq, in threads; run it with "
            "asyncio.run(client.run())"
        )
    if not isinstance(found, RmqClient):
        raise InvalidValueError(
            f"{target} is of type {type(found).__name__}; it must be an RmqClient, or a function without "
            "arguments that returns one"
        )
    return found


def _imported(name: str) -> object:
    if "" not in sys.path:
        sys.path.insert(0, "")
    missing = ""
    with _user_code(f"module {name} cannot be imported"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if not missing or not f"{name}.".startswith(f"{missing}."):
                raise  # the module is there, and imports one that is not
    raise InvalidValueError(f"no module named {missing!r} in {os.getcwd()} or the installed packages")


@contextmanager
def _user_code(what: str, *passed_on: type[Exception]) -> Generator[None]:
    """Context manager that adds file and line to an error of the user's code; --verbose shows the whole traceback."""
    try:
        yield
    except passed_on:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"({last.filename}, line {last.lineno})"
        raise InvalidValueError(f"{what}: {type(error).__name__}: {error} {where}") from error
