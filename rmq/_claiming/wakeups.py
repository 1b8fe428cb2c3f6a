"""Wake-up hints: published when a message is due earlier than idle consumers know.

A lost hint costs time, but never a message: consumers also poll.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

from rmq._broker.keys import slot_keys
from rmq._io.reports import reporter
from rmq._io.wire import ReplyError, Wire, WireBrokenError, pack
from rmq._model.times import monotonic_s
from rmq._transport.call import SHARDED_PUBLISH
from rmq._transport.connections import Connections
from rmq._transport.exchange import not_executed
from rmq._transport.node import Node
from rmq.errors import RmqError

log = reporter("rmq.wakeups")

RECONNECT_S = 0.5
"""Shortest time between two attempts to subscribe, in seconds."""

REFUSED_S = 60.0
"""Shortest time to the next attempt after Redis has refused a subscription, in seconds."""

CONFIRM_S = 0.5
"""How long `read` waits for Redis to confirm its subscriptions, in seconds."""

PING_S, PONG_S = 10.0, 5.0
"""Silence after which a connection gets a PING, and time within which the answer must arrive, in seconds. Otherwise a
server that has vanished would look like a server without hints."""

PROOF_S = 2.0
"""Time within which a probe must arrive as proof that hints do, in seconds."""

PROBE_AGAIN_S = 10.0
"""Interval of the probes of a server whose hints are not proven to arrive, in seconds."""

TOPOLOGY_CHECK_S = 0.25
"""Interval at which a reader of several servers checks whether channels have moved between them, in seconds."""

MOST_DIGITS = 16
"""Digits of the latest due time, 2^53 - 1."""

MOST_HINTS = 1_000
"""Most hints that one `read` returns: a flood of hints must not keep the reader from its work."""


@dataclass(frozen=True, slots=True)
class Wakeups:
    """The hints that one `read` returns.

    Attributes:
        due: (slot, due ms) of each hint; 0 ms for at once. A reader of several topics has indexes instead of slots.
        missed: Whether hints may have been missed since the last read, so that all slots have to be checked.
    """

    due: tuple[tuple[int, int], ...]
    missed: bool


@dataclass(slots=True)
class _Subscription:
    """A connection to one server, and the channels to which it is subscribed."""

    wire: Wire
    last_reply_s: float
    pinged_s: float = 0.0
    subscribed_s: float = 0.0
    probe: bytes = b""
    probed_s: float = float("-inf")
    proven_s: float | None = None
    unconfirmed: set[bytes] = field(default_factory=set[bytes])
    confirmed: set[bytes] = field(default_factory=set[bytes])


class WakeupSubscriber:
    """Subscribes to the wake-up channels of slots; in a cluster, on the node of each slot.

    One thread reads; any thread may close it.

    Args:
        connections: The connections to the topic's servers.
        topic: Name of the topic.
        slots: The slots.
    """

    def __init__(self, connections: Connections, topic: str, slots: Iterable[int]) -> None:
        self._connections = connections
        self._topic = topic  # for the log
        self._slots = {slot_keys(topic, slot).wake.encode(): slot for slot in slots}
        self._subscriptions: dict[Node, _Subscription] = {}
        self._topology_version = -1
        self._next_attempt_s = 0.0
        self._missed = self._closing = self._ended = False
        self._name = uuid4().hex
        self._probes = 0
        self._reading = connections.runtime.lock()

    @classmethod
    def of_places(cls, connections: Connections, places: Sequence[tuple[str, int]]) -> WakeupSubscriber:
        """Return a subscriber to slots of several topics: its hints have the index of a place instead of a slot."""
        reader = cls(connections, ", ".join(dict.fromkeys(topic for topic, _ in places)), ())
        reader._slots = {slot_keys(*place).wake.encode(): number for number, place in enumerate(places)}
        return reader

    def read(self, timeout_s: float) -> Wakeups:
        """Wait up to `timeout_s` for a hint and return all that have arrived.

        Returns:
            The hints; none after the timeout. If the connection is broken or closed, none at once, with `missed` set.
        """
        self._closing = False
        try:
            with self._reading:
                return self._read(timeout_s)
        finally:
            if self._closing:
                self.close()

    def _read(self, timeout_s: float) -> Wakeups:
        self._missed = False
        hints: list[tuple[int, int]] = []
        try:
            if not self._ended:
                self._subscribe()
            until_s = monotonic_s() + timeout_s
            while self._subscriptions and not (self._closing or self._ended):
                if self._take_all(hints) and not hints:
                    continue
                now_s = monotonic_s()
                asked_s = [
                    subscription.subscribed_s + CONFIRM_S
                    for subscription in self._subscriptions.values()
                    if subscription.unconfirmed
                ]
                confirmed_s = max(asked_s, default=0.0)
                if len(hints) >= MOST_HINTS or ((hints or self._missed) and confirmed_s <= now_s):
                    break
                wait_s = max(until_s, confirmed_s) - now_s
                if wait_s <= 0:
                    break
                self._connections.runtime.wait_readable(
                    [subscription.wire for subscription in self._subscriptions.values()], wait_s
                )
            self._ping()
        except BaseException:
            self._close_all()
            raise
        return Wakeups(tuple(hints), self._missed)

    @staticmethod
    def wait_for_any(readers: Sequence[WakeupSubscriber], timeout_s: float) -> None:
        """Wait up to `timeout_s` until one of several subscribers has data; then call `read` of each with 0 s."""
        with ExitStack() as reading:
            for reader in readers:
                # a concurrent close() interrupts the wait; we release the connection ourselves
                reading.enter_context(cast("AbstractContextManager[object]", reader._reading))
            if not all(reader.connected for reader in readers):
                timeout_s = min(timeout_s, RECONNECT_S)
            runtime = readers[0]._connections.runtime
            if wires := [subscription.wire for reader in readers for subscription in reader._subscriptions.values()]:
                runtime.wait_readable(wires, timeout_s)
            else:
                runtime.sleep(timeout_s)

    @property
    def connected(self) -> bool:
        """True while hints can arrive."""
        return bool(self._subscriptions)

    def max_wait_s(self) -> float:
        """Return the longest time that a read may take, in seconds, so that connections are checked in time."""
        if self._connections.multi_node or not self.connected:
            return TOPOLOGY_CHECK_S
        return (
            float("inf")
            if all(subscription.proven_s is not None for subscription in self._subscriptions.values())
            else PING_S / 2
        )

    def probe(self, every_s: float) -> float | None:
        """Check at intervals that hints arrive: publish a message on a channel of each server, and wait to receive it.

        Must be called by the reading thread.

        Args:
            every_s: Interval in seconds. Several servers are checked in turn.

        Returns:
            Time since which hints are known to arrive from all servers, on the monotonic clock; `None` if unknown.
        """
        now_s = monotonic_s()
        subscriptions = list(self._subscriptions.values())
        for subscription in subscriptions:
            if subscription.probe and now_s >= subscription.probed_s + PROOF_S:
                subscription.proven_s = None
            if (
                subscription.confirmed
                and not subscription.unconfirmed
                and now_s >= self._probe_at_s(subscription, every_s)
            ):
                self._publish_probe(subscription, now_s)
        proven_s = [subscription.proven_s for subscription in subscriptions if subscription.proven_s is not None]
        complete = len(proven_s) == len(subscriptions) and sum(
            len(subscription.confirmed) for subscription in subscriptions
        ) == len(self._slots)
        return max(proven_s, default=None) if complete else None

    def probe_wait_s(self, every_s: float) -> float:
        """Return the seconds until the next call of `probe` is due."""
        at_s = [
            subscription.probed_s + PROOF_S
            if subscription.probe and subscription.proven_s is not None
            else self._probe_at_s(subscription, every_s)
            for subscription in self._subscriptions.values()
            if subscription.confirmed and not subscription.unconfirmed
        ]
        return max(0.0, min(at_s, default=float("inf")) - monotonic_s())

    def _probe_at_s(self, subscription: _Subscription, every_s: float) -> float:
        """Return the time of a server's next probe, on the monotonic clock."""
        return subscription.probed_s + (
            PROBE_AGAIN_S if subscription.proven_s is None else every_s * len(self._subscriptions)
        )

    def _publish_probe(self, subscription: _Subscription, now_s: float) -> None:
        channels = sorted(subscription.confirmed)
        channel = channels[self._probes % len(channels)]
        self._probes += 1
        subscription.probe, subscription.probed_s = f"probe {self._name} {self._probes}".encode(), now_s
        publish = SHARDED_PUBLISH if self._connections.subscribe == "SSUBSCRIBE" else "PUBLISH"
        try:
            self._connections.command(publish, channel, subscription.probe, key=channel, patience_s=CONFIRM_S)
        except RmqError as error:
            log.debug("topic %s: the probe of its wake-up hints was not published: %s", self._topic, error)

    def end(self) -> None:
        """Close for good: a current read ends, and later ones return at once."""
        self._ended = True
        self.close()

    def close(self) -> None:
        """Unsubscribe by closing the connections; the next read subscribes again. A current read ends."""
        self._closing = True
        if self._reading.acquire(blocking=False):
            try:
                self._close_all()
            finally:
                self._reading.release()
            return
        for subscription in list(self._subscriptions.values()):  # the reader closes them
            subscription.wire.interrupt()

    def _close_all(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.wire.close()
        self._subscriptions.clear()

    def _subscribe(self) -> None:
        """Subscribe to channels without a subscription, and to those that have moved."""
        version = self._connections.topology_version
        heard = sum(
            len(subscription.confirmed) + len(subscription.unconfirmed) for subscription in self._subscriptions.values()
        )
        if heard >= len(self._slots) and version == self._topology_version:
            return
        now_s = monotonic_s()
        if now_s < self._next_attempt_s:
            return
        self._next_attempt_s = now_s + RECONNECT_S
        self._topology_version = version
        by_node: dict[Node, set[bytes]] = {}
        for channel in self._slots:
            try:
                by_node.setdefault(self._connections.wakeup_node(channel), set()).add(channel)
            except WireBrokenError as error:
                log.debug("the server for a subscription to %r is not known: %s", channel, error)
        for node in self._subscriptions.keys() - by_node.keys():
            self._drop(node)
        for node, channels in by_node.items():
            self._subscribe_at(node, channels)

    def _subscribe_at(self, node: Node, channels: set[bytes]) -> None:
        if node.unresponsive and node not in self._subscriptions:
            return
        try:
            subscription = self._subscriptions.get(node)
            if subscription is None:
                subscription = self._subscriptions[node] = _Subscription(node.checkout(CONFIRM_S), monotonic_s())
            subscription.confirmed &= channels
            subscription.unconfirmed &= channels
            new = channels - subscription.confirmed - subscription.unconfirmed
            if not new:
                return
            subscription.unconfirmed |= new
            subscription.subscribed_s = monotonic_s()
            command = self._connections.subscribe
            if command == "SSUBSCRIBE":  # takes channels of one hash slot only
                subscription.wire.send(b"".join(pack(command, channel) for channel in new))
            else:
                subscription.wire.send_command(command, *new)
        except WireBrokenError:
            self._lose(node)

    def _take_all(self, hints: list[tuple[int, int]]) -> bool:
        """Process the replies that have arrived; return whether there were any.

        Reads from the socket once: at each system call another thread may take the GIL for 5 ms. Data that arrives
        meanwhile is left for the next read.
        """
        any_taken = False
        for node, subscription in list(self._subscriptions.items()):
            try:
                readable = len(hints) < MOST_HINTS and subscription.wire.can_read()
                while readable:
                    any_taken = True
                    self._take_one(node, subscription, hints)
                    readable = len(hints) < MOST_HINTS and subscription.wire.has_data
            except WireBrokenError:
                any_taken = True
                self._lose(node)
        return any_taken

    def _take_one(self, node: Node, subscription: _Subscription, hints: list[tuple[int, int]]) -> None:
        try:
            reply = subscription.wire.read()
        except ReplyError as error:
            self._refused(node, subscription, error)
            return
        subscription.last_reply_s, subscription.pinged_s = monotonic_s(), 0.0
        if not isinstance(reply, list):
            return
        kind, channel, *rest = cast("list[Any]", reply)
        if kind in (b"message", b"smessage") and channel in self._slots:
            if (due_ms := _due_ms(rest)) is not None:
                hints.append((self._slots[channel], due_ms))
            elif subscription.probe and rest == [subscription.probe]:
                subscription.probe = b""
                subscription.proven_s = monotonic_s() if subscription.proven_s is None else subscription.proven_s
        elif kind in (b"subscribe", b"ssubscribe"):
            subscription.unconfirmed.discard(channel)
            subscription.confirmed.add(channel)
            self._missed = (
                self._missed or not subscription.unconfirmed
            )  # hints sent before the subscription went unheard
        elif kind == b"sunsubscribe":  # the hash slot has moved to another server
            subscription.confirmed.discard(channel)
            self._missed = True
            self._connections.invalidate()

    def _refused(self, node: Node, subscription: _Subscription, error: ReplyError) -> None:
        self._connections.invalidate()
        if not_executed(str(error)):  # asked the wrong server, or one that is not ready
            subscription.unconfirmed.clear()
            return
        # for example no right to these channels: then consumers look by themselves
        self._next_attempt_s = monotonic_s() + REFUSED_S
        log.warning("topic %s receives no wake-up hints, so its consumers poll: %s", self._topic, error)
        self._drop(node)

    def _drop(self, node: Node) -> None:
        subscription = self._subscriptions.pop(node, None)
        if subscription is not None:
            subscription.wire.close()
            self._missed = True

    def _lose(self, node: Node) -> None:
        """Drop a broken connection: its channels may have moved to another server."""
        self._drop(node)
        self._connections.invalidate()

    def _ping(self) -> None:
        """Ping silent connections, and drop those whose server no longer answers although they are not closed."""
        now_s = monotonic_s()
        for node, subscription in list(self._subscriptions.items()):
            try:
                if subscription.unconfirmed and now_s - subscription.subscribed_s > PONG_S:
                    raise WireBrokenError("no answer to SUBSCRIBE")
                if (
                    now_s - subscription.last_reply_s < PING_S or subscription.proven_s is not None
                ):  # else a probe would be missing
                    continue
                if not subscription.pinged_s:
                    subscription.wire.send_command("PING")
                    subscription.pinged_s = now_s
                elif now_s - subscription.pinged_s > PONG_S:
                    raise WireBrokenError("no answer to PING")
            except WireBrokenError:
                self._lose(node)


def _due_ms(rest: list[Any]) -> int | None:
    """Return the due time in a hint; `None` for other messages, which any client may publish."""
    payload = rest[0] if len(rest) == 1 else None
    return int(payload) if isinstance(payload, bytes) and payload.isdigit() and len(payload) <= MOST_DIGITS else None
