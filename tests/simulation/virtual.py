"""Puts virtual time, drawn randomness and the simulated clock of the scripts in place of the real ones, for a while.

Only what the library takes from its surroundings is replaced: clocks, randomness, the names of host and process, and
the include of the scripts that reads Redis' time. Of the library itself, only one size is another: `OWN_FROM`.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType
from unittest import mock

import rmq
from tests.simulation.stream_clock import SimulatedScripts
from tests.simulation.world import EPOCH_MS, START_S, World
from tests.support.core import CHANCE, ScriptLibrary, connections, stream_broker, times
from tests.support.slots import READ_FAKE_CLOCK, scripts_under_test

OWN_FROM = 2
"""Claims of streams read in names of their own from so few entries on: simulations hold no large batches."""

_real_s = times.monotonic_s
_world: World | None = None


def _now_s() -> float:
    world = _world
    if world is None:
        return _real_s()
    if world.yields and not world.over:
        world.give_way()
    return world.now_s


def _wall_s() -> float:
    return 0.0 if _world is None else EPOCH_MS / 1000 + _world.now_s - START_S


def _bytes(size: int) -> bytes:
    return random.randbytes(size) if _world is None else _world.entropy.randbytes(size)


def new_scripts() -> ScriptLibrary:
    """Return the scripts under test, whose time is the simulation's."""
    return scripts_under_test(SimulatedScripts, READ_FAKE_CLOCK)


@cache
def simulated_scripts() -> ScriptLibrary:
    """Return the scripts of the library, whose time is the simulation's."""
    return new_scripts()


_LOGIC = (
    "_admin", "_broker", "_claiming", "_io", "_listening", "_model", "_ownership", "_registry", "_sending",
    "_servers", "_transport", "client", "delayed",
)  # fmt: skip


@cache
def _import_all() -> None:
    """Import what simulations use: whoever imports the clock later would keep the simulated one."""
    for module in pkgutil.walk_packages(rmq.__path__, "rmq."):
        if module.name.split(".")[1] in _LOGIC:
            importlib.import_module(module.name)


@contextmanager
def virtual(scripts: ScriptLibrary | None = None) -> Iterator[None]:
    """Let the library live in the world of `inhabit`, with the simulated scripts."""
    _import_all()
    with ExitStack() as stack:
        for module, name, substitute in (
            (os, "urandom", _bytes),
            (os, "getpid", lambda: 4242),
            (random, "_urandom", _bytes),
            (time, "time", _wall_s),
            (socket, "gethostname", lambda: "simulation"),
            (stream_broker, "OWN_FROM", OWN_FROM),
            (connections, "default_scripts", lambda: scripts or simulated_scripts()),
            *((user, "monotonic_s", _now_s) for user in _users_of_the_clock()),
        ):
            stack.enter_context(mock.patch.object(module, name, substitute))
        yield


@contextmanager
def inhabit(world: World, seed: int) -> Iterator[None]:
    """Let this world's time and randomness rule."""
    global _world
    state, states = random.getstate(), CHANCE.getstate()
    random.seed(f"library {seed}")
    CHANCE.seed(f"library {seed}")
    _world = world
    try:
        yield
    finally:
        _world = None
        random.setstate(state)
        CHANCE.setstate(states)


def _users_of_the_clock() -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("rmq.") and getattr(module, "monotonic_s", None) is _real_s
    ]
