"""Durability levels: the confirmation required before a send is accepted. Pure.

| level | a send is accepted when | lost at worst |
|---|---|---|
| memory | the master has it | writes not yet replicated when the master dies: normally a few milliseconds |
| replicated | `replicas` replicas have it, too (WAIT) | nothing if up to `replicas` nodes of a shard die; see below |
| fsync | the AOFs of the master and `replicas` replicas are on disk (WAITAOF) | nothing while one disk survives |

With `replicated` a failover must promote a replica that has confirmed. Sentinel promotes the replica with the lowest
`replica-priority`; only among equal priorities it chooses the one with most data. So give all replicas that may be
promoted (those with a priority above 0) the same priority, or set `replicas` to their number. A client of Sentinels
logs a warning if neither holds. Redis Cluster has no priorities: the replica with most data asks for votes first.

The level applies to sends, to management calls (cancel, pause, purge and the like) and to definitions of topics. If a
failover undoes a claim, an ack or a nack, the message is redelivered when its lease expires.
Source: Redis commands WAIT and WAITAOF; Redis Sentinel, "Replica selection and priority"; Redis Cluster specification,
"Replica rank".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from rmq.errors import InvalidValueError


class DurabilityLevel(Enum):
    """The confirmation that is required before a send is accepted."""

    MEMORY = "memory"
    REPLICATED = "replicated"
    FSYNC = "fsync"


_DEFAULT_REPLICAS = {DurabilityLevel.MEMORY: 0, DurabilityLevel.REPLICATED: 1, DurabilityLevel.FSYNC: 0}


@dataclass(frozen=True, slots=True)
class Durability:
    """A durability level and its number of replicas.

    Attributes:
        level: The level.
        replicas: Number of replicas that must confirm.
    """

    level: DurabilityLevel = DurabilityLevel.MEMORY
    replicas: int = 0

    def confirmation(self, timeout_ms: int) -> tuple[str | int, ...] | None:
        """Return the command that waits until all earlier writes of its connection are confirmed; `None` for memory."""
        match self.level:
            case DurabilityLevel.MEMORY:
                return None
            case DurabilityLevel.REPLICATED:
                return ("WAIT", self.replicas, timeout_ms)
            case DurabilityLevel.FSYNC:
                return ("WAITAOF", 1, self.replicas, timeout_ms)

    @property
    def command(self) -> str:
        """Name of the command that waits for confirmations; empty if the level needs none."""
        asked = self.confirmation(0)
        return "" if asked is None else str(asked[0])

    def probe(self) -> tuple[str | int, ...] | None:
        """Return a command that waits a millisecond at most, but is refused by a server that would refuse the others.

        Each confirmation is refused by a server without its command, WAITAOF also by one without an AOF.
        """
        return replace(self, replicas=0).confirmation(1)

    def missing(self, reply: int | Sequence[int]) -> str:
        """Describe what is missing from a WAIT or WAITAOF reply, or return "" if the write is confirmed."""
        local, replicas = (1, reply) if isinstance(reply, int) else (int(reply[0]), int(reply[1]))
        if local < 1:
            return "the master did not sync its AOF to disk: the disk is slow or failing, or appendfsync is no"
        if replicas < self.replicas:
            return f"{replicas} of {self.replicas} replicas confirmed"
        return ""


def parse_durability(level: str, replicas: int | None = None) -> Durability:
    """Parse the name of a level.

    Args:
        level: `memory`, `replicated` or `fsync`.
        replicas: Number of replicas that must confirm; 1 by default for `replicated`, 0 for `fsync`.

    Raises:
        InvalidValueError: The level is unknown, or the number does not fit it.
    """
    try:
        known = DurabilityLevel(level)
    except ValueError:
        raise InvalidValueError(f"durability is {level!r}; it must be memory, replicated or fsync") from None
    number = _DEFAULT_REPLICAS[known] if replicas is None else replicas
    if type(number) is not int or not 0 <= number <= 100:
        raise InvalidValueError(f"replicas is {replicas!r}; it must be a whole number from 0 to 100")
    if known is DurabilityLevel.REPLICATED and number == 0:
        raise InvalidValueError("replicas is 0; durability replicated needs at least 1, memory and fsync need none")
    if known is DurabilityLevel.MEMORY and number:
        raise InvalidValueError(f"replicas is {number}, but durability memory waits for no replica; use replicated")
    return Durability(known, number)
