"""Which faults happen when, drawn from a seed. Pure.

Two lanes run at once: one for Redis, one for workers, producers and ZooKeeper. Each has decks of all its kinds, each
shuffled, so that every kind comes about equally often, and comes at all if there are as many faults as kinds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

REDIS_LANE, OTHER_LANE = "redis", "other"

KINDS: dict[str, tuple[str, ...]] = {
    REDIS_LANE: (
        "redis master killed",
        "redis replica killed",
        "redis frozen",
        "failover",
        "slots moved",
        "memory full",
        "disk full",
        "scripts flushed",
        "connections killed",
        "redis rolling restart",
    ),
    OTHER_LANE: (
        "worker killed",
        "worker paused",
        "worker cut off",
        "worker link slow",
        "producer killed",
        "producer paused",
        "zookeeper killed",
        "zookeeper frozen",
        "zookeeper quorum lost",
        "clock jumps",
        "worker rolling restart",
        "zookeeper rolling restart",
        "release before",
    ),
}
"""Lane -> the kinds of its faults."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to be carried out.

    Attributes:
        at_s: When, in seconds from the beginning; later where the one before takes longer.
        lane: Which lane.
        kind: What.
        seed: Decides whom it strikes, and how long it lasts.
    """

    at_s: float
    lane: str
    kind: str
    seed: int


def draw_plan(seed: int, faults: int, seconds: float, left_out: Sequence[str] = ()) -> list[Planned]:
    """Draw a plan: the same for the same arguments.

    Args:
        seed: The seed.
        faults: How many faults.
        seconds: Over what time they are spread.
        left_out: Kinds that cannot be tried here.
    """
    chance = random.Random(seed)
    kinds = {lane: [kind for kind in all_ if kind not in left_out] for lane, all_ in KINDS.items()}
    total = sum(map(len, kinds.values()))
    shares = {lane: round(faults * len(of_lane) / total) for lane, of_lane in kinds.items()}
    shares[OTHER_LANE] = faults - shares[REDIS_LANE]
    plan: list[Planned] = []
    for lane, count in shares.items():
        step_s = seconds / max(1, count)
        for number, kind in enumerate(_dealt(kinds[lane], count, chance)):
            at_s = (number + chance.random() * 0.5) * step_s
            plan.append(Planned(at_s, lane, kind, chance.randrange(2**31)))
    return sorted(plan, key=lambda fault: fault.at_s)


def _dealt(kinds: Sequence[str], count: int, chance: random.Random) -> list[str]:
    dealt: list[str] = []
    while len(dealt) < count and kinds:
        dealt += chance.sample(kinds, len(kinds))
    return dealt[:count]
