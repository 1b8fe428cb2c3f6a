"""A topic's rate limit over the whole cluster: tokens from a bucket in Redis, taken in batches before a claim.

The bucket has a key of its own, which in a cluster may be on another server than the slots. The clock is Redis'.
"""

from __future__ import annotations

from rmq._broker.keys import rate_key
from rmq._io.reports import reporter
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic
from rmq._registry.registry import Registry
from rmq._registry.shared import Tokens, take_tokens
from rmq._transport.connections import Connections
from rmq._transport.dispatch import CONNECT_PATIENCE_S
from rmq.errors import RmqError

log = reporter("rmq.throttle")

LIMIT_LOOK_S = 5.0
"""Interval at which a process checks whether a topic has got a rate limit, in seconds; changes apply at once."""

LONGEST_WAIT_S = 1.0
TROUBLE_PAUSE_S = 0.2

REFUND_S = 1.0
"""Seconds for which to try to return unused tokens; the bucket is refilled in any case."""


class RateLimiter:
    """Takes tokens for the planners of one process. Thread-safe; it never waits for tokens.

    Args:
        connections: The connections to Redis.
        topic: The registered definition; a limit in Redis takes precedence.
        group: The group, on a stream topic: each group has the whole rate of the topic.

    Guarantee: without a reply from Redis no token is granted, so that the limit holds.
    """

    def __init__(self, connections: Connections, topic: Topic, group: str | None = None) -> None:
        self._connections = connections
        self._topic = topic
        self._group = group
        self.limited = topic.max_rate is not None
        """Whether claims need tokens."""
        self.held_back_s = float("-inf")
        """Last time at which there were fewer tokens than requested, on the clock of `monotonic_s`."""
        self._empty_until_s = 0.0
        self._next_look_s = monotonic_s() if topic.max_rate is None else float("inf")

    def dry_s(self) -> float:
        """Return the seconds until there may be tokens again; 0 without a limit."""
        return max(0.0, self._empty_until_s - monotonic_s()) if self.limited else 0.0

    def take(self, messages: int) -> int:
        """Take up to one token per message; return the number taken, which without a limit is `messages`."""
        if not self.limited:
            return messages
        if self.dry_s() > 0:
            return 0
        tokens = self._take_tokens(messages)
        if tokens is None:
            self._empty_until_s = monotonic_s() + TROUBLE_PAUSE_S
            return 0
        granted, wait_s, rate, _ = tokens
        self._learn(rate)
        if granted < messages:
            self.held_back_s = monotonic_s()
        if wait_s:
            self._empty_until_s = monotonic_s() + min(wait_s, LONGEST_WAIT_S)
        return granted

    def refund(self, unused: int) -> None:
        """Return the tokens for which no message was claimed."""
        if unused > 0 and self.limited:
            self._empty_until_s = 0.0
            self._take_tokens(-unused, REFUND_S)

    def refresh(self) -> None:
        """Check, at intervals, whether a topic without a limit has been given one."""
        if self.limited or monotonic_s() < self._next_look_s:
            return
        self._next_look_s = monotonic_s() + LIMIT_LOOK_S
        try:
            rate: bytes | None = self._connections.command(
                "HGET", rate_key(self._topic.name), "rate", patience_s=CONNECT_PATIENCE_S
            )
        except RmqError as error:  # a user without rights to the key can have no limit
            log.debug("topic %s: its rate limit could not be read: %s", self._topic.name, error)
            return
        try:
            self._learn(float(rate or 0))
        except ValueError:  # not of RMQ: the next taking makes the bucket anew
            self._learn(1.0)

    def _take_tokens(self, messages: int, deadline_s: float | None = None) -> Tokens | None:
        try:
            tokens = self._connections.run(take_tokens(self._topic, messages, self._group), deadline_s)
            # A bucket can get lost, by hand or in a failover, and this process may know an old definition only.
            if tokens[3] and Registry(self._connections).restore_rate(self._topic):
                tokens = self._connections.run(take_tokens(self._topic, messages, self._group))
            return tokens
        except RmqError as error:
            text = "topic %s: nothing is claimed, because tokens of its rate limit could not be taken: %s"
            log.warning(text, self._topic.name, error)
            return None

    def _learn(self, rate: float) -> None:
        self.limited = rate > 0
        if not self.limited and self._next_look_s == float("inf"):
            self._next_look_s = monotonic_s() + LIMIT_LOOK_S
