"""RMQ for Flask: an extension with a client per process, handlers in the application context, and a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from types import ModuleType
from typing import Any, Unpack, cast

try:
    import click
    import flask
    from flask.cli import with_appcontext
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("rmq.adapters.flask needs the package flask: pip install 'rmq[flask]'") from error

from rmq import HandlerDecorator, Listener, ListenerOptions, Producer, RmqClient, ScheduleOptions, Topic, scan
from rmq.adapters._process import HANG_HELP, OPTIONS, ProcessClient, run_worker
from rmq.errors import InvalidValueError, RmqError
from rmq.spi import HandlerT, PayloadT, chosen_url, listener_decorator, scheduled_decorator

__all__ = ["Rmq"]


class Rmq:
    """The Flask extension. One object can serve several applications.

    The application's setting `RMQ_URL`, or else the environment variable `RMQ_URL`, is the URL of Redis. `RMQ_OPTIONS`
    is a dict of further options of `rmq.RmqClient`.

    Args:
        app: The application. If it is omitted, call `init_app`.

    Examples:
        >>> from flask import Flask
        >>> from rmq.adapters.flask import Rmq
        >>> app, pictures = Flask("shop"), Topic("pictures", TopicType.PRIORITY)
        >>> app.config["RMQ_URL"] = client.url
        >>> rmq = Rmq(app)
        >>> @rmq.listener(pictures, threads=4)
        ... def draw(delivery): ...
        >>> with app.app_context():
        ...     rmq.producer(pictures).send(PriorityMessage("item:1", 5)).new
        1
        >>> rmq.close(app)
    """

    def __init__(self, app: flask.Flask | None = None) -> None:
        self._listeners: list[Listener] = []
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Initialize an application, and add the command `flask rmq-worker`, which runs the handlers, to it."""
        config = cast("dict[str, Any]", app.config)
        config.setdefault("RMQ_URL", None)
        config.setdefault("RMQ_OPTIONS", {})
        app.extensions["rmq"] = ProcessClient(partial(_new_client, app))
        app.cli.add_command(_worker_command(self))

    def listener(self, topic: Topic[PayloadT], **options: Unpack[ListenerOptions]) -> HandlerDecorator[PayloadT]:
        """Register a handler, which `flask rmq-worker` runs. Options as for `rmq.RmqClient.listener`."""
        return listener_decorator(self._listeners.append, topic, **options)

    def scheduled(self, name: str, **options: Unpack[ScheduleOptions]) -> Callable[[HandlerT], HandlerT]:
        """Register a handler with a schedule, which each worker stores when it starts; see `rmq.scheduled`."""
        return scheduled_decorator(self._listeners.append, name, options)

    def scan(self, package: str | ModuleType) -> None:
        """Register the handlers of a package, decorated with `rmq.listener` or `rmq.scheduled`; see `rmq.scan`."""
        self._listeners += scan(package)

    def client(self) -> RmqClient:
        """Return the client of this process for the current application.

        Raises:
            RuntimeError: There is no current application: the call is outside an application context.
            RmqError: `init_app` was not called for the application; otherwise as for `rmq.RmqClient`.
            InvalidUrlError: Neither the setting nor the environment variable `RMQ_URL` is set.
            InvalidValueError: The setting `RMQ_OPTIONS` has an option that `rmq.RmqClient` does not take.
        """
        return _of(_current()).get()

    def producer(self, topic: Topic) -> Producer:
        """Return the topic's producer for the current application. Raises as `client` and `rmq.RmqClient.producer`."""
        return _of(_current()).producer(topic)

    def listeners(self, app: flask.Flask) -> list[Listener]:
        """Return the listeners, whose handlers run in a new application context of `app` at each call."""
        return [replace(each, handler=in_context(app, each.handler)) for each in self._listeners]

    def close(self, app: flask.Flask) -> None:
        """Close an application's client in this process. It is closed automatically at exit."""
        _of(app).close()


def in_context(app: flask.Flask, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a handler to run in a new application context at each call."""

    @wraps(handler)
    def handle(*args: Any, **kwargs: Any) -> Any:
        with app.app_context():
            return handler(*args, **kwargs)

    return handle


def _current() -> flask.Flask:
    return cast("Any", flask.current_app)._get_current_object()


def _of(app: flask.Flask) -> ProcessClient:
    extension = app.extensions.get("rmq")
    if not isinstance(extension, ProcessClient):
        raise RmqError(f"RMQ is not initialized for application {app.name}; call Rmq(app) or rmq.init_app(app)")
    return extension


def _new_client(app: flask.Flask) -> RmqClient:
    config = cast("dict[str, Any]", app.config)
    options = config["RMQ_OPTIONS"]
    try:
        return RmqClient(chosen_url(config["RMQ_URL"]).url, **options)
    except TypeError as error:
        raise InvalidValueError(
            f"RMQ_OPTIONS is {options!r}; it must be a dict of options of RmqClient ({error})"
        ) from None


def _worker_command(rmq: Rmq) -> click.Command:
    def run(**options: Any) -> None:
        app = _current()
        try:
            run_worker(_new_client(app), rmq.listeners(app), **options)
        except RmqError as error:
            raise click.ClickException(str(error)) from None

    options = [
        click.Option(
            [f"--{name}"],
            type=click.Choice(kind) if isinstance(kind, tuple) else kind,
            default=default,
            help=f"{text[0].upper()}{text[1:]}.",
        )
        for name, (kind, default, text) in OPTIONS.items()
    ]
    options.append(click.Option(["--exit-when-hung"], is_flag=True, help=f"{HANG_HELP.capitalize()}."))
    text = "Run the RMQ handlers until SIGTERM or Ctrl-C."
    return click.Command("rmq-worker", params=[*options], callback=with_appcontext(run), help=text)
