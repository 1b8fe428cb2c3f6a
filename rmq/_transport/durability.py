"""How much has to happen before a send counts as accepted. Pure.

| level | a send is accepted when | lost at worst |
|---|---|---|
| memory | the master has it | what a master had not replicated when it died: normally milliseconds |
| replicated | so many replicas have it, too (WAIT) | nothing while at most `replicas` nodes of a shard die; see below |
| fsync | the AOF of the master is on disk, and that of so many replicas (WAITAOF) | nothing while one disk survives |

With `replicated` a failover must promote a replica that has confirmed. Sentinel promotes the one with the lowest
`replica-priority`, and only of equal ones the one that has most. So give all replicas that may be promoted (those with
a priority above 0) the same priority, or let `replicas` be their number. A client of Sentinels warns where neither
holds. Redis Cluster has no priorities: the replica that has most asks for votes first.

The promise is about what stores messages, what steers (cancel, pause, purge and the like), and definitions of topics. A
claim, an ack or a nack that a failover undoes is settled by the lease: the message is delivered again.
Source: Redis commands WAIT and WAITAOF; Redis Sentinel, "Replica selection and priority"; Redis Cluster specification,
"Replica rank".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rmq.errors import InvalidValueError


class DurabilityLevel(Enum):
    """What accepted means."""

    MEMORY = "memory"
    REPLICATED = "replicated"
    FSYNC = "fsync"


_DEFAULT_REPLICAS = {DurabilityLevel.MEMORY: 0, DurabilityLevel.REPLICATED: 1, DurabilityLevel.FSYNC: 0}


@dataclass(frozen=True, slots=True)
class Durability:
    """A level and its numbers.

    Attributes:
        level: The level.
        replicas: How many replicas have to confirm.
    """

    level: DurabilityLevel = DurabilityLevel.MEMORY
    replicas: int = 0

    def confirmation(self, timeout_ms: int) -> tuple[str | int, ...] | None:
        """Return the command that waits for the confirmations of all earlier writes of its connection, if any."""
        match self.level:
            case DurabilityLevel.MEMORY:
                return None
            case DurabilityLevel.REPLICATED:
                return ("WAIT", self.replicas, timeout_ms)
            case DurabilityLevel.FSYNC:
                return ("WAITAOF", 1, self.replicas, timeout_ms)

    @property
    def command(self) -> str:
        """Name of the command that waits for confirmations; empty where there is none."""
        asked = self.confirmation(0)
        return "" if asked is None else str(asked[0])

    def probe(self) -> tuple[str | int, ...] | None:
        """Return a command that waits for nobody, and is refused where `confirmation` would be, if any."""
        match self.level:
            case DurabilityLevel.MEMORY:
                return None
            case DurabilityLevel.REPLICATED:
                return ("WAIT", 0, 1)
            case DurabilityLevel.FSYNC:  # waits for a millisecond at most; without an AOF it is refused
                return ("WAITAOF", 1, 0, 1)

    def missing(self, reply: int | Sequence[int]) -> str:
        """Describe what is missing from a WAIT/WAITAOF reply, or return "" if the write is confirmed."""
        local, replicas = (1, reply) if isinstance(reply, int) else (int(reply[0]), int(reply[1]))
        if local < 1:
            return "the master's AOF is not on disk: the disk is slow or fails, or appendfsync is no"
        if replicas < self.replicas:
            return f"{replicas} of {self.replicas} replicas confirmed"
        return ""


def parse_durability(level: str, replicas: int | None = None) -> Durability:
    """Understand a level by name.

    Args:
        level: `memory`, `replicated` or `fsync`.
        replicas: How many replicas have to confirm; by default 1 for `replicated`, 0 for `fsync`.

    Raises:
        InvalidValueError: An unknown level, or a number that does not go with it.
    """
    try:
        known = DurabilityLevel(level)
    except ValueError:
        raise InvalidValueError(f"durability is {level!r}; it must be memory, replicated or fsync") from None
    number = _DEFAULT_REPLICAS[known] if replicas is None else replicas
    if type(number) is not int or not 0 <= number <= 100:
        raise InvalidValueError(f"replicas is {replicas!r}; it must be a whole number from 0 to 100")
    if known is DurabilityLevel.REPLICATED and number == 0:
        raise InvalidValueError("durability replicated needs at least 1 replica; without one, use memory or fsync")
    if known is DurabilityLevel.MEMORY and number:
        raise InvalidValueError(f"replicas is {number}, and durability memory waits for no replica; use replicated")
    return Durability(known, number)
