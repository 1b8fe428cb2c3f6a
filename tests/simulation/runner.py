"""One real Redis, and simulations on it, one after the other."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import Self

from tests.simulation.plan import Plan
from tests.simulation.server import CONFIG, Server
from tests.simulation.simulation import Outcome, Simulation
from tests.simulation.virtual import simulated_scripts, virtual
from tests.support.core import ScriptLibrary
from tests.support.servers import RedisServer

COLLECT_EVERY = 20
"""After so many simulations what they left in cycles is collected."""


class Runner:
    """Runs plans. Use it as a context manager.

    Args:
        scripts: The scripts; those of the library by default.
    """

    def __init__(self, scripts: ScriptLibrary | None = None) -> None:
        self._scripts = scripts or simulated_scripts()
        self._stack = ExitStack()
        self._runs = 0

    def __enter__(self) -> Self:
        redis = self._stack.enter_context(RedisServer(CONFIG, tcp=False, unix_socket=True))
        self._server = Server(redis, self._scripts)
        self._stack.callback(self._server.close)
        self._stack.enter_context(virtual(self._scripts))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, plan: Plan, *, lines: bool = False) -> Outcome:
        """Run a plan."""
        simulation = Simulation(plan, self._server, lines=lines)
        outcome = simulation.run()
        for line in simulation.world.lines or ():
            print(line)
        self._runs += 1
        if self._runs % COLLECT_EVERY == 0:
            gc.collect()
        return outcome
