"""What a fleet would give, from the cost of a message on one machine: Redis nodes and cores are bounds of their own.

A Redis node runs commands in one thread, and so does a Python process: neither gets more than one core. All of them
together get no more than the cores that there are. The rate is that of the narrowest bound.

What it assumes: slots spread evenly over nodes and workers; slots share nothing, so the cost of a message stays as it
was measured with one node and one worker; the network is no bound. What it leaves out: the operating system's own work,
and what processes lose by taking turns on a core. For these two, no bound is used beyond `BUSY`.
"""

from __future__ import annotations

from dataclasses import dataclass

BUSY = 0.8
"""The share of a bound that is used."""


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU time of one message from send to ack, µs.

    Attributes:
        server_us: The Redis that has its slot.
        sender_us: The process that sends it.
        worker_us: The process that handles it.
        beside_us: Whatever else works for it: its replica, ZooKeeper.
    """

    server_us: float
    sender_us: float
    worker_us: float
    beside_us: float = 0.0

    @property
    def total_us(self) -> float:
        """All of it."""
        return self.server_us + self.sender_us + self.worker_us + self.beside_us


@dataclass(frozen=True, slots=True)
class Fleet:
    """What works together.

    Attributes:
        cores: Of all machines together.
        nodes: Redis nodes that have slots.
        senders: Sending processes; None for as many as needed.
        workers: Handling processes; None for as many as needed.
    """

    cores: int
    nodes: int
    senders: int | None = None
    workers: int | None = None


def bounds(costs: Costs, fleet: Fleet) -> dict[str, float]:
    """Return what each bound alone would allow, messages a second, sent and consumed at the same time."""
    found = {
        "cores": fleet.cores * 1e6 / costs.total_us,
        "Redis nodes": fleet.nodes * 1e6 / costs.server_us,
    }
    if fleet.senders is not None:
        found["senders"] = fleet.senders * 1e6 / costs.sender_us
    if fleet.workers is not None:
        found["workers"] = fleet.workers * 1e6 / costs.worker_us
    return found


def modelled(costs: Costs, fleet: Fleet) -> tuple[float, str]:
    """Return the rate, and the name of the bound that sets it."""
    found = bounds(costs, fleet)
    narrowest = min(found, key=lambda name: found[name])
    return BUSY * found[narrowest], narrowest
