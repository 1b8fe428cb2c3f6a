"""Sends calls to Redis: each to the server that holds its slot, to all of them at the same time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet

from rmq.blocking import THREADS, Blocking
from rmq.calls import Argument, Call
from rmq.durability import Durability
from rmq.errors import ClientClosedError, ForkedClientError, RedisUnavailableError
from rmq.exchange import Confirmation, Exchange, Flight, not_executed, request
from rmq.retry import draw_jitter
from rmq.scripts import ScriptLibrary, default_scripts
from rmq.slot_map import parse_redirect
from rmq.topologies import Node, make_router
from rmq.urls import Address, RedisUrl
from rmq.wire import ReplyError, Wire, WireBrokenError

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 1.0
MEMORY = Durability()


class Closable(Protocol):
    """What still has something to send when the connections close."""

    def close(self) -> None:
        """Send it; may be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A request that was sent to one node."""

    flight: Flight
    node: Node
    wire: Wire


class Connections:
    """Connections to the servers behind a URL, made as threads need them. Thread-safe; does not survive a fork.

    Args:
        url: Where Redis is.
        scripts: The scripts; the shared library by default.
        timeout_s: How long to wait for a connection, and for a reply.
        deadline_s: How long to repeat what may be repeated before giving up.
        durability: What has to have happened before a send counts as accepted.
        blocking: How to wait, also for what is built on these connections; in threads by default.
    """

    def __init__(
        self,
        url: RedisUrl,
        *,
        scripts: ScriptLibrary | None = None,
        timeout_s: float = 5.0,
        deadline_s: float = 15.0,
        durability: Durability = MEMORY,
        blocking: Blocking = THREADS,
    ) -> None:
        self.url = url
        self.blocking = blocking
        self._scripts = scripts or default_scripts()
        self._deadline_s = deadline_s
        self._pid = os.getpid()
        self._closed = False
        self._closed_with_us: WeakSet[Closable] = WeakSet()
        self._router = make_router(url, timeout_s, durability, blocking)
        # half of what we wait for a reply: the server has to give up first, or its answer would be lost
        command = durability.confirmation(max(1, int(timeout_s * 500)))
        self._confirmation = None if command is None else Confirmation(command, durability.shortfall)

    @property
    def publish(self) -> str:
        """Command for wake hints: SPUBLISH where every server has sharded pub/sub."""
        return "SPUBLISH" if self._sharded() else "PUBLISH"

    @property
    def subscribe(self) -> str:
        """Command to hear wake hints."""
        return "SSUBSCRIBE" if self._sharded() else "SUBSCRIBE"

    @property
    def multi_slot_scripts(self) -> bool:
        """Whether one script call may read several slots of a topic: not in a cluster, where they lie apart."""
        return self._router.multi_slot_scripts

    @property
    def layout(self) -> int:
        """Changes whenever slots have moved to another server."""
        return self._router.layout

    def run(self, call: Call[T]) -> T:
        """Carry out one call and return its parsed reply.

        Raises:
            RedisUnavailableError: No answer until the deadline; `ReplyLostError` where the call must not be repeated.
            RmqError: What the script refused.
        """
        if self._confirmation is not None and call.durable:
            return cast("T", _only(self.submit([call])()))
        self._refuse_misuse()
        started = time.monotonic()
        reply = self._try_alone(call)
        if not isinstance(reply, Exchange):
            return call.parse(reply)
        self._finish(reply, [], None, self._deadline_s, started)
        return cast("T", _only(reply.results))

    def run_many(
        self, calls: Sequence[Call[Any]], patience_s: float | None = None, deadline_s: float | None = None
    ) -> list[Any]:
        """Carry out calls in one round trip per server, all at the same time.

        Args:
            calls: Any number, on any slots.
            patience_s: Once some calls have a result, wait no longer than this for the others: a server that is down
                shall not hold up the work on the rest. By default until the deadline.
            deadline_s: How long to repeat what may be repeated; the client's deadline by default.

        Returns:
            Per call its parsed reply or the `RmqError` it met.
        """
        return self.submit(calls, patience_s, deadline_s)()

    def submit(
        self, calls: Sequence[Call[Any]], patience_s: float | None = None, deadline_s: float | None = None
    ) -> Callable[[], list[Any]]:
        """Send calls without waiting; the function returned waits for the results, as `run_many` returns them.

        The caller must call it once: until then connections are taken.
        """
        self._refuse_misuse()
        exchange = Exchange(calls, self._scripts, self._confirmation)
        under_way = self._send(exchange)

        def results() -> list[Any]:
            self._finish(exchange, under_way, patience_s, deadline_s or self._deadline_s, time.monotonic())
            return exchange.results

        return results

    def command(self, *args: Argument, key: str | bytes | None = None) -> Any:
        """Carry out one plain command that may be repeated, and return its reply.

        Args:
            args: The command.
            key: The key that decides where it goes; by default the first argument after the command's name.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            ReplyError: The server's refusal.
        """
        self._refuse_misuse()
        place = key if key is not None else _text_or_bytes(args[1]) if len(args) > 1 else ""
        asked: Address | None = None

        def attempt() -> Any:
            nonlocal asked
            node = self._router.node_for(place) if asked is None else self._router.node_at(asked)
            once, asked = asked is not None, None
            wire = node.checkout()
            try:
                if once:
                    wire.call("ASKING")
                reply = wire.call(*args)
            except ReplyError as error:
                node.give_back(wire)
                if (redirect := parse_redirect(str(error), node.address)) is not None:
                    asked = redirect.address if redirect.once else None
                    self._router.learn([] if redirect.once else [redirect])
                raise
            except BaseException:
                wire.close()
                raise
            node.give_back(wire)
            return reply

        return self._until_deadline(attempt)

    def hint_node(self, channel: str | bytes) -> Node:
        """Return the server to hear a wake channel from; raises as `checkout`."""
        self._refuse_misuse()
        self._router.refresh()
        return self._router.hint_node(channel)

    def doubt(self) -> None:
        """Note that a server did not behave as the layout says: look at the layout before the next call."""
        self._router.doubt()

    def check(self) -> None:
        """Look at all servers that hold slots now, and not only when they are first used.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            UnsafeRedisError: A server would lose messages, or can't do what the durability level promises.
        """
        self._refuse_misuse()

        def look() -> None:
            for node in self._router.masters():
                node.give_back(node.checkout())

        self._until_deadline(look)

    def ask_masters(self, *args: Argument) -> dict[str, Any]:
        """Ask every server that holds slots the same; return what each says, by its address.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            ReplyError: A server's refusal.
        """
        self._refuse_misuse()
        found: dict[str, Any] = {}

        def ask() -> None:
            for node in self._router.masters():
                wire = node.checkout()
                try:
                    found[":".join(map(str, node.address))] = wire.call(*args)
                except ReplyError:
                    node.give_back(wire)
                    raise
                except BaseException:
                    wire.close()
                    raise
                node.give_back(wire)

        self._until_deadline(ask)
        return found

    def close_with_us(self, user: Closable) -> None:
        """Close something before these connections close; it is not kept alive for that."""
        self._closed_with_us.add(user)

    def close(self) -> None:
        """Close what was built on these and asked for it, then all idle connections.

        Calls after it fail with `ClientClosedError`.
        """
        for user in list(self._closed_with_us):
            user.close()
        self._closed_with_us.clear()
        self._closed = True
        self._router.close()

    def _refuse_misuse(self) -> None:
        if self._closed:
            raise ClientClosedError("this client is closed; make a new one")
        if os.getpid() != self._pid:
            raise ForkedClientError("this client was made before a fork; make one in the process that uses it")

    def _sharded(self) -> bool:
        if not self._router.multi_slot_scripts and not self._router.layout:
            self._until_deadline(lambda: None)  # a cluster whose servers are not known yet
        return self._router.sharded_hints

    def _until_deadline(self, attempt: Callable[[], T]) -> T:
        """Repeat what executes nothing when it fails, or may be executed twice."""
        deadline = time.monotonic() + self._deadline_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                self._router.refresh()
                return attempt()
            except WireBrokenError as error:
                trouble = error
            except ReplyError as error:
                if not not_executed(str(error)):
                    raise
                trouble = error
            self._router.doubt()
            if time.monotonic() + pause_s > deadline:
                raise RedisUnavailableError(
                    f"no answer from Redis at {self.url.shown} within {self._deadline_s:g} s ({trouble})"
                ) from trouble
            pause_s = self._pause(pause_s)

    def _try_alone(self, call: Call[Any]) -> Any:
        """Carry out one call without the bookkeeping that many need, which costs more than the call.

        Returns:
            The reply; after any trouble the exchange that goes on from there.
        """
        try:
            self._router.refresh()
            node = self._router.node_for(call.keys[0])
            wire = node.checkout()
        except WireBrokenError as error:
            exchange = Exchange([call], self._scripts)
            exchange.not_sent([index for index, _, _ in exchange.take_open()], str(error))
            return exchange
        try:
            wire.send(request(call, self._scripts))
            reply = wire.read()
        except ReplyError as error:
            node.give_back(wire)
            exchange = Exchange([call], self._scripts)
            exchange.first_flight(node.address).take_error(str(error))
            return exchange
        except WireBrokenError as error:
            wire.close()
            exchange = Exchange([call], self._scripts)
            exchange.first_flight(node.address).lost(str(error))
            return exchange
        except BaseException:  # a reply left behind would be read by the next caller
            wire.close()
            raise
        node.give_back(wire)
        return reply

    def _send(self, exchange: Exchange) -> list[_UnderWay]:
        """Send what is open, to each node its part."""
        try:
            self._router.refresh()
        except WireBrokenError as error:
            exchange.not_sent([index for index, _, _ in exchange.take_open()], str(error))
            return []
        parts: dict[Node, list[int]] = {}
        for index, call, asked in exchange.take_open():
            try:
                node = self._router.node_for(call.keys[0]) if asked is None else self._router.node_at(asked)
            except WireBrokenError as error:
                exchange.not_sent([index], str(error))
            else:
                parts.setdefault(node, []).append(index)
        under_way: list[_UnderWay] = []
        try:
            for node, indices in parts.items():
                if (sent := _send_part(exchange, node, indices)) is not None:
                    under_way.append(sent)
        except BaseException:
            _close_all(under_way)
            raise
        return under_way

    def _finish(
        self,
        exchange: Exchange,
        under_way: list[_UnderWay],
        patience_s: float | None,
        deadline_s: float,
        started: float,
    ) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            _receive(under_way)
            self._router.learn(exchange.take_moved())
            if exchange.done:
                return
            longest_s = deadline_s
            if patience_s is not None and exchange.partly_done:
                longest_s = min(longest_s, patience_s)
            if exchange.pause_needed:
                self._router.doubt()
            if time.monotonic() + pause_s > started + longest_s:
                exchange.give_up(longest_s)
                return
            if exchange.pause_needed:
                pause_s = self._pause(pause_s)
            under_way = self._send(exchange)

    def _pause(self, pause_s: float) -> float:
        self.blocking.sleep(pause_s * (0.5 + draw_jitter() / 2))
        return min(2 * pause_s, LONGEST_PAUSE_S)


def _only(results: list[Any]) -> Any:
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def _send_part(exchange: Exchange, node: Node, indices: list[int]) -> _UnderWay | None:
    try:
        wire = node.checkout()
    except WireBrokenError as error:
        exchange.not_sent(indices, str(error))
        return None
    flight = exchange.flight(indices, node.address)
    try:
        wire.send(flight.request)
    except WireBrokenError as error:
        wire.close()
        flight.lost(str(error))
        return None
    except BaseException:
        wire.close()
        raise
    return _UnderWay(flight, node, wire)


def _receive(under_way: list[_UnderWay]) -> None:
    """Read all replies, node after node: all of them work meanwhile."""
    left = list(under_way)
    try:
        while left:
            part = left[0]
            try:
                while part.flight.awaited:
                    try:
                        reply = part.wire.read()
                    except ReplyError as error:
                        part.flight.take_error(str(error))
                    else:
                        part.flight.take_reply(reply)
            except WireBrokenError as error:
                part.wire.close()
                part.flight.lost(str(error))
            else:
                part.node.give_back(part.wire)
            del left[0]
    except BaseException:  # a reply left behind would be read by the next caller
        _close_all(left)
        raise


def _close_all(under_way: list[_UnderWay]) -> None:
    for part in under_way:
        part.wire.close()


def _text_or_bytes(value: Argument) -> str | bytes:
    return str(value) if isinstance(value, int) else value
