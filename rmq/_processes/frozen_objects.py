"""Excludes the objects of the loaded program from garbage collection in a worker process."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

FROZEN_BY_PYTHON = 1_000
"""With this many frozen objects or more, the program has frozen some itself; Python 3.12 freezes 375 at its start."""


def freeze_objects() -> bool:
    """Exclude all existing objects from later garbage collections; return whether that was done.

    A full collection visits every object while all threads are stopped: with the 50,000 objects of a small program it
    takes 20 to 40 ms every few seconds, which delays messages. Does nothing if the program has frozen objects itself or
    disabled the collector. `gc.unfreeze` undoes it.
    """
    if not (hasattr(gc, "freeze") and gc.isenabled() and gc.get_freeze_count() < FROZEN_BY_PYTHON):
        return False
    gc.collect()
    gc.freeze()
    return True


@contextmanager
def frozen_objects() -> Generator[None]:
    """Freeze objects within a block, and unfreeze them at its end."""
    done = freeze_objects()
    try:
        yield
    finally:
        if done:
            gc.unfreeze()
