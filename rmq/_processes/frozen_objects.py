"""What Python's garbage collector leaves out in a worker process."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

FROZEN_BY_PYTHON = 1_000
"""More objects than Python 3.12 itself begins with frozen: 375."""


def freeze_objects() -> bool:
    """Leave out of all later collections what the program has loaded so far; return whether that was done.

    A full collection looks at each object while all threads stand still: with the 50,000 of a small program 20 to
    40 ms, every few seconds, in which messages become late. Does nothing where the program has frozen objects itself,
    or has switched the collector off. `gc.unfreeze` undoes it.
    """
    if not (hasattr(gc, "freeze") and gc.isenabled() and gc.get_freeze_count() < FROZEN_BY_PYTHON):
        return False
    gc.collect()
    gc.freeze()
    return True


@contextmanager
def frozen_objects() -> Generator[None]:
    """Do so within a block, and undo it at its end."""
    done = freeze_objects()
    try:
        yield
    finally:
        if done:
            gc.unfreeze()
