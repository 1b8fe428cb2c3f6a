"""What a worker process spares Python's garbage collector."""

from __future__ import annotations

import gc


def spare_collector() -> None:
    """Leave out of all later collections what the program has loaded so far.

    A full collection looks at each object while all threads stand still: with the 50,000 of a small program 20 to
    40 ms, every few seconds, in which messages become late. What is loaded by now lives as long as the process, so
    there is nothing to find. Does nothing where the program has frozen objects itself, or has switched the collector
    off. `gc.unfreeze` undoes it.
    """
    if gc.isenabled() and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
