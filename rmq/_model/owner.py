"""Who acts on a slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple


class Owner(NamedTuple):
    """The owner of a slot, as scripts check it.

    Attributes:
        epoch: Larger for every later owner; 0 without ZooKeeper. Source: the czxid of the owner's node.
        ensemble: Identity of the ZooKeeper ensemble that counts the epochs; empty without ZooKeeper.
    """

    epoch: int = 0
    ensemble: str = ""


NO_OWNER = Owner()


def spread_slots(slots: Collection[int], threads: int, before: Mapping[int, int]) -> dict[int, int]:
    """Give each slot to one thread: evenly, and without moving a slot that has one.

    Args:
        slots: The slots that this process owns.
        threads: How many threads share them, from 1.
        before: Thread of each slot until now.

    Returns:
        Slot -> thread, 0 to `threads` - 1. A slot never moves while it is owned, so that its messages stay in one
        thread; the next ones even the load out.
    """
    spread = {slot: before[slot] for slot in slots if slot in before}
    load = Counter(spread.values())
    for slot in sorted(slots):
        if slot not in spread:
            thread = min(range(threads), key=lambda number: (load[number], number))
            spread[slot] = thread
            load[thread] += 1
    return spread
