"""`manage.py rmq_worker`: runs the handlers of all installed apps."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from rmq.adapters._process import run_worker
from rmq.adapters.django.handlers import MODULE, discovered
from rmq.adapters.django.settings import new_client
from rmq.client import DRAIN_S
from rmq.errors import RmqError
from rmq.spi import end_with_parent, run_reloading


class Command(BaseCommand):
    """Runs the handlers until SIGTERM or Ctrl-C, then waits for running handlers."""

    help = f"Runs RMQ handlers: functions decorated with rmq.listener in the module {MODULE} of each app."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of `rmq worker`."""
        parser.add_argument("--threads", type=int, metavar="N", help="number of threads per listener")
        parser.add_argument(
            "--handlers", type=int, metavar="N", help="maximum number of handlers in parallel over all listeners"
        )
        parser.add_argument(
            "--drain", type=float, default=DRAIN_S, metavar="S", help="seconds to wait for running handlers"
        )
        parser.add_argument(
            "--idle", choices=("normal", "economy"), default="normal", help="economy: fewer Redis commands while idle"
        )
        parser.add_argument("--exit-when-hung", action="store_true", help="exit with code 75 if a handler hangs")
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
        self.stderr.write(f"{len(listeners)} listeners on {client.shown_url}")
        names = ("drain", "threads", "handlers", "idle", "exit_when_hung")
        run_worker(client, listeners, **{name: options[name] for name in names})
