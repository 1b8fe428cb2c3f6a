"""The pauses between the calls of a process with listeners to Redis while no message is due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmq._listening.listener import Listener
from rmq._model.topics import TopicType
from rmq.errors import InvalidValueError

IDLE = ("normal", "economy")
"""Modes of a process while no message is due. `RmqClient.start` explains both."""

BEAT_S, IDENTIFY_S, TIDY_S = 40.0, 300.0, 900.0
"""Seconds between heartbeats, reads of the identity of Redis, and trims of one slot of a stream, in economy mode. The
first is shorter than the time after which a silent worker is forgotten."""

POLL_S = 8.0
"""Seconds between polls of a slot while hints are proven to arrive, and between these proofs."""

PROBE_S, LOOK_S, LONG_LOOK_S = 40.0, 60.0, 120.0
"""Seconds between proofs that hints arrive, and between polls of one slot, in economy mode. `LONG_LOOK_S` applies to a
process with stream topics, whose polls take more commands, or on a cluster, whose map is read as well."""


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """Minimum pauses between the calls of an idle process to Redis, in seconds; 0 keeps the usual pauses.

    Attributes:
        beat_s: Between two heartbeats.
        identify_s: Between two reads of the identity of Redis.
        tidy_s: Between the trims of two slots of a stream while no message is handled; 0 trims all slots each time.
        probe_s: Between two proofs that the hints of a server arrive.
        poll_s: Between two polls of a slot while hints are proven to arrive.
        look_s: The same between the polls of two slots in economy mode; else 0.
    """

    beat_s: float = 0.0
    identify_s: float = 0.0
    tidy_s: float = 0.0
    probe_s: float = POLL_S
    poll_s: float = POLL_S
    look_s: float = 0.0

    @property
    def economical(self) -> bool:
        """True if an idle process polls less often than usual."""
        return self.look_s > 0


NORMAL = IdlePolicy()


def idle_policy(idle: str, listeners: Iterable[Listener], *, multi_node: bool) -> IdlePolicy:
    """Return the pauses of an idle process in a mode.

    In economy mode the process sends fewer than ten commands per minute.

    Args:
        idle: `normal` or `economy`.
        listeners: The listeners of the process.
        multi_node: Whether their topics are on several servers.

    Raises:
        InvalidValueError: `idle` is neither `normal` nor `economy`.
    """
    if idle not in IDLE:
        raise InvalidValueError(f"idle is {idle!r}; it must be normal or economy")
    if idle == "normal":
        return NORMAL
    kinds = [each.topic.type for each in listeners]
    streams = kinds.count(TopicType.STREAM)
    look_s = LONG_LOOK_S if streams or multi_node else LOOK_S
    return IdlePolicy(BEAT_S, IDENTIFY_S, TIDY_S * streams, PROBE_S, look_s=look_s)
