"""`manage.py rmq_worker`: runs the handlers of all installed apps."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from django.utils.module_loading import module_has_submodule

from rmq import Listener, scan
from rmq.adapters._process import HANG_HELP, OPTIONS, run_worker
from rmq.adapters.django import new_client
from rmq.errors import RmqError
from rmq.spi import end_with_parent, run_reloading

MODULE = "rmq_handlers"
"""Module or package of an app that has functions decorated with `rmq.listener`."""


def discovered() -> list[Listener]:
    """Return the listeners of all installed apps.

    Raises:
        InvalidValueError: A module cannot be imported; its error is the cause.
    """
    listeners: list[Listener] = []
    for app in apps.get_app_configs():
        if app.module is not None and module_has_submodule(app.module, MODULE):
            listeners += scan(f"{app.name}.{MODULE}")
    return [replace(each, handler=with_fresh_connections(each.handler)) for each in listeners]


def with_fresh_connections(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a handler to close broken and old database connections, as Django does around each request."""

    @wraps(handler)
    def handle(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return handler(*args, **kwargs)
        finally:
            close_old_connections()

    return handle


class Command(BaseCommand):
    """Runs the handlers until SIGTERM or Ctrl-C, then waits for running handlers."""

    help = f"Runs RMQ handlers: functions decorated with rmq.listener in the module {MODULE} of each app."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of `rmq worker`."""
        for name, (kind, default, text) in OPTIONS.items():
            typed: dict[str, Any] = {"choices": kind} if isinstance(kind, tuple) else {"type": kind, "metavar": "N"}
            parser.add_argument(f"--{name}", default=default, help=text, **typed)
        parser.add_argument("--exit-when-hung", action="store_true", help=HANG_HELP)
        parser.add_argument("--reload", action="store_true", help="restart when a Python file changes")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker."""
        del args
        try:
            if options["reload"]:
                command = [sys.executable, *(each for each in sys.argv if each != "--reload")]
                run_reloading(command, Path.cwd(), options["drain"])
                return
            end_with_parent()
            self._run(options)
        except RmqError as error:
            raise CommandError(str(error)) from error

    def _run(self, options: dict[str, Any]) -> None:
        listeners = discovered()
        if not listeners:
            raise CommandError(f"no app has a module {MODULE} with functions decorated with rmq.listener")
        client = new_client()
        self.stderr.write(f"listeners: {len(listeners)}, on {client.shown_url}")
        run_worker(client, listeners, **{name: options[name] for name in (*OPTIONS, "exit_when_hung")})
