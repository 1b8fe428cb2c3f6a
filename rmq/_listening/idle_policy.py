"""How often a process with listeners asks Redis while it has nothing to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmq._listening.listener import Listener
from rmq._model.topics import TopicType
from rmq.errors import InvalidValueError

IDLE = ("normal", "economy")
"""How a process may idle. `RmqClient.start` explains both."""

BEAT_S, IDENTIFY_S, TIDY_S = 40.0, 300.0, 900.0
"""A process in economy gives a sign of life, reads the identity of Redis, and trims one slot of a stream so often. The
first one is shorter than the time after which others forget a worker."""

PROBE_S, LOOK_S, LONG_LOOK_S = 40.0, 60.0, 120.0
"""A listener in economy proves that its hints arrive, and looks at one slot, so often. The second look is that of a
process with stream topics, whose look takes more commands, or on a cluster, whose map is read as well."""


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """Minimum pauses between the calls of an idle process with listeners, in seconds; 0 keeps the usual pauses.

    Attributes:
        beat_s: Between two signs of life.
        identify_s: Between two readings of the identity of Redis.
        tidy_s: Between two slots of a stream that are trimmed while nothing is handled; 0 trims all slots.
        probe_s: Between two proofs that hints arrive, of one server; 0 proves nothing, and polls all slots each second.
        look_s: Between two slots that are looked at while hints are proven to arrive.
    """

    beat_s: float = 0.0
    identify_s: float = 0.0
    tidy_s: float = 0.0
    probe_s: float = 0.0
    look_s: float = 0.0

    @property
    def economical(self) -> bool:
        """True if an idle process polls less often than usual."""
        return self.probe_s > 0


NORMAL = IdlePolicy()


def idle_policy(idle: str, listeners: Iterable[Listener], *, multi_node: bool) -> IdlePolicy:
    """Return the pace of a process.

    In economy the listeners share what the process may ask, so that it stays below ten commands a minute.

    Args:
        idle: `normal` or `economy`.
        listeners: The listeners of the process.
        multi_node: Whether their topics lie on several servers.

    Raises:
        InvalidValueError: Another word.
    """
    if idle not in IDLE:
        raise InvalidValueError(f"idle is {idle!r}; it must be normal or economy")
    if idle == "normal":
        return NORMAL
    kinds = [each.topic.type for each in listeners]
    streams = kinds.count(TopicType.STREAM)
    look_s = LONG_LOOK_S if streams or multi_node else LOOK_S
    return IdlePolicy(BEAT_S, IDENTIFY_S, TIDY_S * streams, PROBE_S * len(kinds), look_s * len(kinds))
