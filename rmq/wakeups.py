"""Wake hints: a message was sent that is due earlier than an idle consumer knows.

A hint only: it may get lost, and losing it costs time, never a message. Consumers look again by themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rmq.clock import monotonic_s
from rmq.connections import Connections
from rmq.keys import slot_keys
from rmq.wire import ReplyError, Wire, WireBrokenError

log = logging.getLogger("rmq.wakeups")

RECONNECT_S = 0.5
"""Shortest time between two attempts to subscribe."""

REFUSED_S = 60.0
"""The same after Redis has refused one."""

MOST_HINTS = 1_000
"""Hints taken in one reading, so that a flood of them does not keep the reader from its work."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What arrived.

    Attributes:
        due: (slot, due ms) of each hint; 0 ms for at once.
        missed: Whether hints may have been missed since the last reading: look at all slots.
    """

    due: tuple[tuple[int, int], ...]
    missed: bool


class HintReader:
    """Subscribes to the wake channels of a topic's slots. For one thread.

    Args:
        connections: Where the topic is.
        topic: Topic name.
        slots: The slots to hear of.
    """

    def __init__(self, connections: Connections, topic: str, slots: Iterable[int]) -> None:
        self._connections = connections
        self._topic = topic
        self._slots = {slot_keys(topic, slot).wake.encode(): slot for slot in slots}
        self._wire: Wire | None = None
        self._next_attempt_s = 0.0

    def read(self, timeout_s: float) -> Hints:
        """Wait up to `timeout_s` for a hint and return all that have arrived.

        Returns:
            No hints after the timeout, or at once where the connection is broken: then `missed` tells.
        """
        missed = self._connect()
        if self._wire is None:
            return Hints((), missed)
        found: list[tuple[int, int]] = []
        try:
            while len(found) < MOST_HINTS and self._wire.can_read(0 if found else timeout_s):
                self._take(self._wire.read(), found)
                timeout_s = 0
        except WireBrokenError:
            self.close()
            missed = True
        return Hints(tuple(found), missed)

    @property
    def connected(self) -> bool:
        """Whether hints can arrive."""
        return self._wire is not None

    def close(self) -> None:
        """Unsubscribe by closing the connection; reading again subscribes anew."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _connect(self) -> bool:
        """Subscribe where need be; return True if hints may have been missed."""
        if self._wire is not None or not self._slots:
            return False
        now_s = monotonic_s()
        if now_s < self._next_attempt_s:
            return False
        self._next_attempt_s = now_s + RECONNECT_S
        wire = None
        try:
            wire = self._connections.checkout()
            wire.send_command("SUBSCRIBE", *self._slots)
            for _ in self._slots:
                wire.read()
        except WireBrokenError:
            if wire is not None:
                wire.close()
            return False
        except ReplyError as error:  # no right to these channels, for one: then looking has to do
            if wire is not None:
                wire.close()
            self._next_attempt_s = now_s + REFUSED_S
            log.warning("topic %s goes without wake hints, messages are found by looking: %s", self._topic, error)
            return False
        except BaseException:
            if wire is not None:
                wire.close()
            raise
        self._wire = wire
        return True

    def _take(self, reply: Any, found: list[tuple[int, int]]) -> None:
        kind, channel, data = reply
        if kind == b"message" and channel in self._slots:
            found.append((self._slots[channel], int(data)))
