"""Wake hints: published when a message is due earlier than idle consumers know.

A lost hint costs time, but never a message: consumers also poll.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

from rmq._broker.keys import slot_keys
from rmq._io.reports import reporter
from rmq._io.wire import ReplyError, Wire, WireBrokenError, pack
from rmq._model.retry import draw_jitter
from rmq._model.times import monotonic_s
from rmq._servers.nodes import Node
from rmq._servers.server_check import SHARDED_PUBLISH, not_executed
from rmq._transport.connections import Connections
from rmq.errors import RmqError

log = reporter("rmq.wakeups")

RECONNECT_S = 0.5
"""Shortest time between two attempts to subscribe, in seconds."""

REFUSED_S = 60.0
"""Shortest time to the next attempt after Redis has refused a subscription, in seconds."""

CONFIRM_S = 0.5
"""Seconds that `read` waits for Redis to confirm its subscriptions."""

PING_S, PONG_S = 10.0, 5.0
"""Silence after which a connection gets a PING, and time within which the answer must arrive, in seconds. Otherwise a
server that has vanished would look like a server without hints."""

PROOF_S = 2.0
"""Time within which a probe must arrive as proof that hints do, in seconds."""

PROBE_AGAIN_S = 10.0
"""Interval of the probes of a server whose hints are not proven to arrive, in seconds."""

PROBE_SPREAD = 0.1
"""Fraction of the interval by which a process that receives probes of others waits longer, to receive the next one
first."""

TOPOLOGY_CHECK_S = 0.25
"""Interval at which a reader of several servers checks whether channels have moved between them, in seconds."""

MOST_DIGITS = 16
"""Digits of the latest due time, 2^53 - 1."""

MOST_HINTS = 1_000
"""Maximum number of hints that one `read` returns: a flood of hints must not keep the reader from its work."""


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
    """A connection to one server, and the channels to which it is subscribed.

    Attributes:
        asked: The channels of each command whose replies are missing. The server answers in this order.
        proven_s: Time since which hints are known to arrive, on the monotonic clock; `None` if unknown.
        heard_s: Time at which the last message that another process published arrived.
    """

    wire: Wire
    last_reply_s: float
    pinged_s: float = 0.0
    subscribed_s: float = 0.0
    probe: bytes = b""
    probed_s: float = float("-inf")
    heard_s: float = float("-inf")
    proven_s: float | None = None
    asked: deque[set[bytes]] = field(default_factory=deque[set[bytes]])
    confirmed: set[bytes] = field(default_factory=set[bytes])


class WakeupSubscriber:
    """Subscribes to the wake-up channels of slots; in a cluster, on the node of each slot.

    All topics share a connection to a server. One thread reads; any thread may close it.

    Args:
        connections: The connections to the servers of the topics.
        topic: Name of the topic.
        slots: The slots.
    """

    def __init__(self, connections: Connections, topic: str, slots: Iterable[int]) -> None:
        self._connections = connections
        self._topics: dict[str, dict[bytes, int]] = {}
        self._slots: dict[bytes, int] = {}
        self._add(topic, {slot: slot for slot in slots})
        self._subscriptions: dict[Node, _Subscription] = {}
        self._topology_version = -1
        self._next_attempt_s = 0.0
        self._refused_until_s: dict[str, float] = {}
        """Time at which to subscribe again to the channels of a topic for which the user has no permission."""
        self._missed = self._closing = self._ended = False
        self._name = uuid4().hex
        self._probes = 0
        self._spread = 1.0 + PROBE_SPREAD * draw_jitter()
        self._proven: frozenset[str] | None = None
        self._reading = connections.runtime.lock()

    @classmethod
    def of_places(cls, connections: Connections, places: Sequence[tuple[str, int]]) -> WakeupSubscriber:
        """Return a subscriber to slots of several topics: its hints have the index of a place instead of a slot."""
        reader, numbers = cls(connections, "", ()), defaultdict[str, dict[int, int]](dict)
        for number, (topic, slot) in enumerate(places):
            numbers[topic][slot] = number
        reader._topics.clear()
        for topic, known in numbers.items():
            reader._add(topic, known)
        return reader

    @classmethod
    def of_channel(cls, connections: Connections, channel: str) -> WakeupSubscriber:
        """Return a subscriber to a channel that belongs to no slot."""
        reader = cls(connections, channel, ())
        reader._topics[channel] = reader._slots = {channel.encode(): 0}
        return reader

    def _add(self, topic: str, numbers: Mapping[int, int]) -> None:
        """Add slots of a topic, with the number that their hints get."""
        self._topics[topic] = {slot_keys(topic, slot).wake.encode(): number for slot, number in numbers.items()}
        self._slots |= self._topics[topic]

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
                now_s, known = monotonic_s(), self._subscriptions.values()
                confirmed_s = max([each.subscribed_s + CONFIRM_S for each in known if each.asked], default=0.0)
                if len(hints) >= MOST_HINTS or ((hints or self._missed) and confirmed_s <= now_s):
                    break
                wait_s = max(until_s, confirmed_s) - now_s
                if wait_s <= 0:
                    break
                self._connections.runtime.wait_readable([each.wire for each in known], wait_s)
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
        proven = all(each.proven_s is not None for each in self._subscriptions.values())
        return float("inf") if proven else PING_S / 2

    def probe(self, every_s: float) -> frozenset[str]:
        """Check at intervals that hints arrive: publish a message on a channel of each server, and wait to receive it.

        While others publish, their messages prove the same. Must be called by the reading thread.

        Args:
            every_s: Interval in seconds. Several servers are checked in turn.

        Returns:
            The topics all of whose hints are known to arrive.
        """
        now_s = monotonic_s()
        for subscription in list(self._subscriptions.values()):
            if subscription.probe and now_s >= subscription.probed_s + PROOF_S and subscription.proven_s is not None:
                subscription.proven_s = self._proven = None
            if subscription.confirmed and not subscription.asked and now_s >= self._probe_at_s(subscription, every_s):
                self._publish_probe(subscription, now_s)
        if self._proven is None:
            proven = [each for each in self._subscriptions.values() if each.proven_s is not None]
            heard = set[bytes]().union(*(each.confirmed for each in proven))
            self._proven = frozenset(topic for topic, channels in self._topics.items() if heard.issuperset(channels))
        return self._proven

    def probe_wait_s(self, every_s: float) -> float:
        """Return the seconds until the next call of `probe` is due."""
        at_s = [
            subscription.probed_s + PROOF_S
            if subscription.probe and subscription.proven_s is not None
            else self._probe_at_s(subscription, every_s)
            for subscription in self._subscriptions.values()
            if subscription.confirmed and not subscription.asked
        ]
        return max(0.0, min(at_s, default=float("inf")) - monotonic_s())

    def _probe_at_s(self, subscription: _Subscription, every_s: float) -> float:
        """Return the time of a server's next probe, on the monotonic clock."""
        if subscription.proven_s is None:
            return subscription.probed_s + PROBE_AGAIN_S
        every_s *= len(self._subscriptions)
        return max(subscription.probed_s + every_s, subscription.heard_s + every_s * self._spread)

    def _publish_probe(self, subscription: _Subscription, now_s: float) -> None:
        channels = sorted(subscription.confirmed)
        channel = channels[self._probes % len(channels)]
        self._probes += 1
        subscription.probe, subscription.probed_s = f"probe {self._name} {self._probes}".encode(), now_s
        publish = SHARDED_PUBLISH if self._connections.subscribe == "SSUBSCRIBE" else "PUBLISH"
        try:
            self._connections.command(publish, channel, subscription.probe, key=channel, patience_s=CONFIRM_S)
        except RmqError as error:
            log.debug("the probe of wake hints on channel %r was not published: %s", channel, error)

    def end(self) -> None:
        """Close permanently: a current read ends, and later ones return at once."""
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
        self._proven = None

    def _subscribe(self) -> None:
        """Subscribe to channels without a subscription, and to those that have moved."""
        version, now_s = self._connections.router.topology_version, monotonic_s()
        if self._refused_until_s:
            self._refused_until_s = {topic: at_s for topic, at_s in self._refused_until_s.items() if now_s < at_s}
        refused = set[bytes]().union(*[self._topics[topic] for topic in self._refused_until_s])
        heard = sum([len(each.confirmed) + sum(map(len, each.asked)) for each in self._subscriptions.values()])
        if heard >= len(self._slots) - len(refused) and version == self._topology_version:
            return
        if now_s < self._next_attempt_s:
            return
        self._next_attempt_s = now_s + RECONNECT_S
        self._topology_version = version
        by_node: dict[Node, dict[str, set[bytes]]] = {}
        for topic, channels in self._topics.items():
            for channel in channels if topic not in self._refused_until_s else ():
                try:
                    node = self._connections.wakeup_node(channel)
                    by_node.setdefault(node, {}).setdefault(topic, set()).add(channel)
                except WireBrokenError as error:
                    log.debug("the server for a subscription to %r is not known: %s", channel, error)
        for node in self._subscriptions.keys() - by_node.keys():
            self._drop(node)
        for node, topics in by_node.items():
            self._subscribe_at(node, topics)

    def _subscribe_at(self, node: Node, topics: Mapping[str, set[bytes]]) -> None:
        if node.unresponsive and node not in self._subscriptions:
            return
        try:
            subscription = self._subscriptions.get(node)
            if subscription is None:
                subscription = self._subscriptions[node] = _Subscription(node.checkout(CONFIRM_S), monotonic_s())
            subscription.confirmed.intersection_update(set[bytes]().union(*topics.values()))
            known = subscription.confirmed.union(*subscription.asked)
            command, requests = self._connections.subscribe, list[bytes]()
            for channels in topics.values():
                new = channels - known
                # SSUBSCRIBE takes channels of one hash slot only; and a topic without rights must not take the others'
                for part in [{each} for each in new] if command == "SSUBSCRIBE" else [new] if new else []:
                    subscription.asked.append(part)
                    requests.append(pack(command, *part))
            if requests:
                self._proven = None
                subscription.subscribed_s = monotonic_s()
                subscription.wire.send(b"".join(requests))
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
            if subscription.probe and rest == [subscription.probe]:
                subscription.probe = b""
                if subscription.proven_s is None:
                    subscription.proven_s, self._proven = monotonic_s(), None
                return
            subscription.heard_s = subscription.last_reply_s
            if (due_ms := _due_ms(rest)) is not None:
                hints.append((self._slots[channel], due_ms))
        elif kind in (b"subscribe", b"ssubscribe"):
            self._take_answer(subscription, channel)
            subscription.confirmed.add(channel)
            self._proven = None
            self._missed = self._missed or not subscription.asked  # hints sent before the subscription went unheard
        elif kind == b"sunsubscribe":  # the hash slot has moved to another server
            subscription.confirmed.discard(channel)
            self._missed, self._proven = True, None
            self._connections.router.invalidate()

    @staticmethod
    def _take_answer(subscription: _Subscription, channel: bytes) -> None:
        for channels in list(subscription.asked)[:1]:
            channels.discard(channel)
            if not channels:
                subscription.asked.popleft()

    def _refused(self, node: Node, subscription: _Subscription, error: ReplyError) -> None:
        self._connections.router.invalidate()
        channels = subscription.asked.popleft() if subscription.asked else set[bytes]()
        if not_executed(str(error)):  # asked the wrong server, or one that is not ready
            return
        # for example no right to these channels: then consumers look by themselves
        for topic in [topic for topic, known in self._topics.items() if not channels.isdisjoint(known)]:
            if topic not in self._refused_until_s:
                log.warning("topic %s receives no wake hints, so its consumers poll: %s", topic, error)
            self._refused_until_s[topic] = monotonic_s() + REFUSED_S
        if not subscription.asked and not subscription.confirmed:
            self._drop(node)

    def _drop(self, node: Node) -> None:
        subscription = self._subscriptions.pop(node, None)
        if subscription is not None:
            subscription.wire.close()
            self._missed, self._proven = True, None

    def _lose(self, node: Node) -> None:
        """Drop a broken connection: its channels may have moved to another server."""
        self._drop(node)
        self._connections.router.invalidate()

    def _ping(self) -> None:
        """Ping silent connections, and drop those whose server no longer answers although they are not closed."""
        now_s = monotonic_s()
        for node, subscription in list(self._subscriptions.items()):
            try:
                if subscription.asked and now_s - subscription.subscribed_s > PONG_S:
                    raise WireBrokenError("no answer to SUBSCRIBE")
                if subscription.proven_s is not None or now_s - subscription.last_reply_s < PING_S:
                    continue  # in the first case a probe would be missing
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
