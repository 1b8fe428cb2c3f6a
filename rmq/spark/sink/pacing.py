"""The rate limit of all tasks of a write together: a token bucket in Redis, filled by Redis' clock."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from rmq import Topic
from rmq.errors import ReplyLostError
from rmq.spi import monotonic_s
from rmq.spi.scripts import Connections, take_from, write_rate_key

LONGEST_WAIT_S, TROUBLE_PAUSE_S = 1.0, 0.2
"""Longest wait before the limit is asked again, and the pause after an error, seconds."""

KEEP_S = 3_600
"""Lifetime of a bucket after the end of its write, seconds."""

_KEEP_EVERY_S = KEEP_S / 4
_SENT = "sent"


@dataclass(frozen=True)
class Limit:
    """The rate limit of a write: messages per second of all tasks, maximum number in a call, and name of its bucket."""

    per_second: float
    burst: int
    name: str = field(default_factory=lambda: uuid.uuid4().hex)


def limit_of(per_second: float | None) -> Limit | None:
    """Return a limit whose burst is a tenth of its rate per second, 1 to 1,000; `None` for no limit."""
    return None if per_second is None else Limit(per_second, max(1, min(1_000, int(per_second / 10))))


class TaskPace:
    """Delays the calls of one task so that its write keeps to its rate limit.

    Args:
        connections: Connections to Redis.
        topic: The registered definition.
        limit: The rate limit of the write.
    """

    def __init__(self, connections: Connections, topic: Topic, limit: Limit) -> None:
        self._connections, self._topic, self._limit = connections, topic, limit
        self._key = write_rate_key(topic.name, limit.name)
        self._keep_next_s = 0.0

    def wait(self, number: int) -> None:
        """Wait until `number` messages may be sent, at most `limit.burst`.

        Raises:
            RedisUnavailableError: Redis did not answer before the deadline.
        """
        left = number
        while True:
            granted, wait_s = self._take(left)
            left -= granted
            if left <= 0:
                self._connections.command("HINCRBY", self._key, _SENT, number, key=self._key)
                return
            self._connections.runtime.sleep(min(wait_s, LONGEST_WAIT_S))

    def give_back(self, number: int) -> None:
        """Return the tokens of messages that were not sent."""
        if number > 0:
            self._take(-number)

    def _take(self, wanted: int) -> tuple[int, float]:
        limit = self._limit
        call = take_from(self._key, self._key, self._topic, wanted, limit.per_second, limit.burst)
        try:
            granted, wait_s, _, made = self._connections.run(call)
        except ReplyLostError:  # the tokens may be lost, so that it is slower for a moment, never faster
            return 0, TROUBLE_PAUSE_S
        now_s = monotonic_s()
        if made or now_s >= self._keep_next_s:  # a write may take longer than it is to be kept
            self._keep_next_s = now_s + _KEEP_EVERY_S
            self._connections.command("EXPIRE", self._key, KEEP_S, key=self._key)
        return granted, wait_s


def sent_so_far(connections: Connections, topic: Topic, limit: Limit) -> int:
    """Return the number of messages that a write was allowed to send so far; 0 if its bucket has expired."""
    key = write_rate_key(topic.name, limit.name)
    found: bytes | None = connections.command("HGET", key, _SENT, key=key)
    return int(found or 0)
