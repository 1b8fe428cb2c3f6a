"""Wake hints: a message was sent that is due earlier than an idle consumer knows.

A hint only: it may get lost, and losing it costs time, never a message. Consumers look again by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rmq._io.wire import ReplyError, Wire, WireBrokenError, pack
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._scripts.keys import slot_keys
from rmq._transport.connections import Connections
from rmq._transport.exchange import not_executed
from rmq._transport.make_router import Node

log = reporter("rmq.wakeups")

RECONNECT_S = 0.5
"""Shortest time between two attempts to subscribe."""

REFUSED_S = 60.0
"""The same after Redis has refused one."""

CONFIRM_S = 0.5
"""How long a reading waits for Redis to confirm its subscriptions."""

PING_S, PONG_S = 10.0, 5.0
"""After so long a silence a connection is tried, and after so long without an answer it is dead: else a server that
vanished without a word would look like one that has nothing to tell."""

MOST_DIGITS = 16
"""Digits of the latest due time, 2^53 - 1."""

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


@dataclass(slots=True)
class _Line:
    """A connection to one server, and the channels heard over it."""

    wire: Wire
    heard_s: float
    pinged_s: float = 0.0
    asked_s: float = 0.0
    asked: set[bytes] = field(default_factory=set[bytes])
    heard: set[bytes] = field(default_factory=set[bytes])


class HintReader:
    """Subscribes to the wake channels of a topic's slots, in a cluster on each node to its own.

    One thread reads; any may close it.

    Args:
        connections: Where the topic is.
        topic: Topic name.
        slots: The slots to hear of.
    """

    def __init__(self, connections: Connections, topic: str, slots: Iterable[int]) -> None:
        self._connections = connections
        self._topic = topic
        self._slots = {slot_keys(topic, slot).wake.encode(): slot for slot in slots}
        self._lines: dict[Node, _Line] = {}
        self._layout = -1
        self._next_attempt_s = 0.0
        self._missed = self._closing = False
        self._reading = connections.blocking.lock()

    def read(self, timeout_s: float) -> Hints:
        """Wait up to `timeout_s` for a hint and return all that have arrived.

        Returns:
            No hints after the timeout, or at once where the connection is broken or closed: then `missed` tells.
        """
        self._closing = False
        try:
            with self._reading:
                return self._read(timeout_s)
        finally:
            if self._closing:
                self.close()

    def _read(self, timeout_s: float) -> Hints:
        self._missed = False
        found: list[tuple[int, int]] = []
        try:
            self._subscribe()
            until_s = monotonic_s() + timeout_s
            while self._lines and not self._closing:
                if self._take_all(found) and len(found) < MOST_HINTS:
                    continue
                now_s = monotonic_s()
                confirmed_s = 0.0
                for line in self._lines.values():
                    if line.asked:
                        confirmed_s = max(confirmed_s, line.asked_s + CONFIRM_S)
                if len(found) >= MOST_HINTS or ((found or self._missed) and confirmed_s <= now_s):
                    break
                wait_s = max(until_s, confirmed_s) - now_s
                if wait_s <= 0:
                    break
                self._wait(wait_s)
            self._ping()
        except BaseException:
            self._hang_up()
            raise
        return Hints(tuple(found), self._missed)

    @property
    def connected(self) -> bool:
        """Whether hints can arrive."""
        return bool(self._lines)

    def close(self) -> None:
        """Unsubscribe by closing the connections; reading again subscribes anew. A reading under way ends."""
        self._closing = True
        if self._reading.acquire(blocking=False):
            try:
                self._hang_up()
            finally:
                self._reading.release()
            return
        for line in list(self._lines.values()):  # whoever reads closes them
            line.wire.interrupt()

    def _hang_up(self) -> None:
        for line in self._lines.values():
            line.wire.close()
        self._lines.clear()

    def _subscribe(self) -> None:
        """Subscribe where need be: to what is not heard yet, and to what has moved."""
        layout = self._connections.layout
        heard = sum(len(line.heard) + len(line.asked) for line in self._lines.values())
        if heard >= len(self._slots) and layout == self._layout:
            return
        now_s = monotonic_s()
        if now_s < self._next_attempt_s:
            return
        self._next_attempt_s = now_s + RECONNECT_S
        wanted = self._wanted()
        self._layout = layout
        for node in self._lines.keys() - wanted.keys():
            self._drop(node)
        for node, channels in wanted.items():
            self._subscribe_at(node, channels)

    def _wanted(self) -> dict[Node, set[bytes]]:
        """Return which channels are to be heard from which server."""
        wanted: dict[Node, set[bytes]] = {}
        for channel in self._slots:
            try:
                wanted.setdefault(self._connections.hint_node(channel), set()).add(channel)
            except WireBrokenError as error:
                log.debug("no server to subscribe to %r at: %s", channel, error)
        return wanted

    def _subscribe_at(self, node: Node, channels: set[bytes]) -> None:
        if node.silent and node not in self._lines:
            return
        try:
            line = self._lines.get(node)
            if line is None:
                line = self._lines[node] = _Line(node.checkout(CONFIRM_S), monotonic_s())
            line.heard &= channels
            line.asked &= channels
            new = channels - line.heard - line.asked
            if not new:
                return
            line.asked |= new
            line.asked_s = monotonic_s()
            command = self._connections.subscribe
            if command == "SSUBSCRIBE":  # takes channels of one hash slot only
                line.wire.send(b"".join(pack(command, channel) for channel in new))
            else:
                line.wire.send_command(command, *new)
        except WireBrokenError:
            self._drop(node)
            self._connections.doubt()

    def _take_all(self, found: list[tuple[int, int]]) -> bool:
        """Take what has arrived; return whether there was anything."""
        any_ = False
        for node, line in list(self._lines.items()):
            try:
                while len(found) < MOST_HINTS and line.wire.can_read():
                    any_ = True
                    self._take_one(node, line, found)
            except WireBrokenError:
                any_ = True
                self._drop(node)
                self._connections.doubt()
        return any_

    def _take_one(self, node: Node, line: _Line, found: list[tuple[int, int]]) -> None:
        try:
            reply = line.wire.read()
        except ReplyError as error:
            self._refused(node, line, error)
            return
        line.heard_s, line.pinged_s = monotonic_s(), 0.0
        if not isinstance(reply, list):
            return
        kind, channel, *rest = reply  # pyright: ignore[reportUnknownVariableType]
        self._note(line, kind, channel, rest, found)  # pyright: ignore[reportUnknownArgumentType]

    def _note(self, line: _Line, kind: bytes, channel: bytes, rest: list[Any], found: list[tuple[int, int]]) -> None:
        if kind in (b"message", b"smessage") and channel in self._slots:
            if (due_ms := _due_ms(rest)) is not None:
                found.append((self._slots[channel], due_ms))
        elif kind in (b"subscribe", b"ssubscribe"):
            line.asked.discard(channel)
            line.heard.add(channel)
            self._missed = self._missed or not line.asked  # what was sent before went unheard
        elif kind == b"sunsubscribe":  # the hash slot has moved to another server
            line.heard.discard(channel)
            self._missed = True
            self._connections.doubt()

    def _refused(self, node: Node, line: _Line, error: ReplyError) -> None:
        self._connections.doubt()
        if not_executed(str(error)):  # asked the wrong server, or one that is not ready
            line.asked.clear()
            return
        # no right to these channels, for one: then looking has to do
        self._next_attempt_s = monotonic_s() + REFUSED_S
        log.warning("topic %s gets no wake hints, so its consumers poll: %s", self._topic, error)
        self._drop(node)

    def _drop(self, node: Node) -> None:
        line = self._lines.pop(node, None)
        if line is not None:
            line.wire.close()
            self._missed = True

    def _ping(self) -> None:
        """Find connections that are dead without having broken."""
        now_s = monotonic_s()
        for node, line in list(self._lines.items()):
            try:
                if line.asked and now_s - line.asked_s > PONG_S:
                    raise WireBrokenError("no answer to SUBSCRIBE")
                if now_s - line.heard_s < PING_S:
                    continue
                if not line.pinged_s:
                    line.wire.send_command("PING")
                    line.pinged_s = now_s
                elif now_s - line.pinged_s > PONG_S:
                    raise WireBrokenError("no answer to PING")
            except WireBrokenError:
                self._drop(node)
                self._connections.doubt()

    def _wait(self, wait_s: float) -> None:
        """Wait until something arrives."""
        self._connections.blocking.wait_readable([line.wire for line in self._lines.values()], wait_s)


def _due_ms(rest: list[Any]) -> int | None:
    """Return what a hint says; `None` for what is none: anybody with the right to may publish there."""
    said = rest[0] if len(rest) == 1 else None
    if not isinstance(said, bytes) or not said.isdigit() or len(said) > MOST_DIGITS:
        return None
    return int(said)
