"""Processes and tests without coverage: it doubles the time of those that start often, or compute a lot.

What they run of `rmq` is measured elsewhere, or not at all: Spark kills its Python workers, and these write nothing.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import rmq

if TYPE_CHECKING:
    from coverage import Coverage


@contextmanager
def unmeasured() -> Iterator[None]:
    """Let the processes that start meanwhile, and all that those start, go without coverage."""
    found = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("COVERAGE_")}
    try:
        yield
    finally:
        os.environ.update(found)


class Measuring:
    """Coverage of this process, which is off while tests are collected, and in those that hold the scripts to a model.

    What such a test runs of `rmq` are the calls of scripts, which the integration tests make, too. These also run what
    the processes of `PROCESSES` do: programs of pages, and workers that are killed or cut off.
    """

    FOLDERS = (("tests", "lua"), ("tests", "models"), ("tests", "stateful"))
    PROCESSES = "fan_out kill nights ownership recipes recurring_page redis_owners tutorial"

    def __init__(self) -> None:
        module = sys.modules.get("coverage")
        self._coverage: Coverage | None = module.Coverage.current() if module else None
        self._on = True

    def collecting(self) -> None:
        """Turn it off, once all modules are imported: what runs while a module is imported counts, too."""
        if self._coverage is not None:
            for module in pkgutil.walk_packages(rmq.__path__, "rmq.", onerror=lambda name: None):
                with suppress(Exception):
                    importlib.import_module(module.name)
            self._switch(False)

    def testing(self, path: Path) -> AbstractContextManager[None]:
        """Turn it on or off for a test of this file."""
        self._switch(not any(pair in self.FOLDERS for pair in pairwise(path.parts)))
        return unmeasured() if path.stem.removeprefix("test_") in self.PROCESSES.split() else nullcontext()

    def _switch(self, on: bool) -> None:
        if self._coverage is not None and on is not self._on:
            self._on = on
            (self._coverage.start if on else self._coverage.stop)()
