"""Processes without coverage: it takes a third of the time of those that start often, or compute a lot.

What they run of `rmq` is measured elsewhere, or not at all: Spark kills its Python workers, and these write nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unmeasured() -> Iterator[None]:
    """Let the processes that start meanwhile, and all that those start, go without coverage."""
    found = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("COVERAGE_")}
    try:
        yield
    finally:
        os.environ.update(found)
