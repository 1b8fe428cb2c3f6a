"""Sends calls to Redis: each to the server that holds its slot, to all of them at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import inf
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet

from rmq._io.backend import THREADS, Runtime
from rmq._io.wire import NOTHING, Argument, ReplyError, WireBrokenError, WireTimeoutError, pack
from rmq._model.retry import draw_jitter
from rmq._model.times import monotonic_s
from rmq._transport.call import Call, plain
from rmq._transport.dispatch import AWAITED, FIRST_PAUSE_S, LONGEST_PAUSE_S, Dispatch
from rmq._transport.durability import Durability
from rmq._transport.exchange import DurabilityBarrier, Exchange, not_executed
from rmq._transport.node import Node
from rmq._transport.refusals import UNREADABLE, error_of, unreadable
from rmq._transport.router import make_router
from rmq._transport.rpc_ids import RpcIdAllocator
from rmq._transport.script_library import ScriptLibrary, default_scripts
from rmq._transport.urls import Address, RedisUrl
from rmq.errors import ClientClosedError, ForkedClientError, RedisUnavailableError, RmqError

T = TypeVar("T")

MEMORY = Durability()

LOOK_AGAIN_S = 10.0
"""After a look that was broken off."""

AT_ONCE_S = 0.001
"""Deadline of a call that is not repeated."""


class Closable(Protocol):
    """What still has something to send when the connections close."""

    def close(self) -> None:
        """Send it; may be called twice."""
        ...


class Connections:
    """Connections to the servers behind a URL, made as threads need them. Thread-safe; does not survive a fork.

    Args:
        url: Where Redis is.
        scripts: The scripts; the shared library by default.
        timeout_s: How long to wait for a connection, and for a reply.
        deadline_s: How long to repeat what may be repeated before giving up.
        durability: What has to have happened before a send counts as accepted.
        runtime: How to wait, also for what is built on these connections; in threads by default.

    Attributes:
        multi_node: True for a Redis Cluster. One server may fail while the others work, and the slots of a topic may be
            on different servers, so that one script call cannot read several of them.
        unresponsive_nodes: Servers that do not answer at the moment; see `unresponsive`.
        rpc_ids: Numbers the calls that are not safe to repeat without.
        confirms: Whether a durable call counts only once replicas, or a disk, have confirmed it.
    """

    def __init__(
        self,
        url: RedisUrl,
        *,
        scripts: ScriptLibrary | None = None,
        timeout_s: float = 5.0,
        deadline_s: float = 15.0,
        durability: Durability = MEMORY,
        runtime: Runtime = THREADS,
    ) -> None:
        self.url = url
        self.runtime = runtime
        self._scripts = scripts or default_scripts()
        self._timeout_s = timeout_s
        self.deadline_s = deadline_s
        self.rpc_ids = RpcIdAllocator()
        self._pid = os.getpid()
        self._closed = False
        self._closed_with_us: WeakSet[Closable] = WeakSet()
        self._periodic_check: Callable[[], float] = lambda: inf
        self._next_check_s = inf  # when it is called next, on the clock of `monotonic_s`
        self._router = make_router(url, timeout_s, durability, runtime)
        self.multi_node = not self._router.multi_slot_scripts
        self.unresponsive_nodes = self._router.unresponsive
        # half of what we wait for a reply: the server has to give up first, or its answer would be lost
        command = durability.confirmation(max(1, int(timeout_s * 500)))
        self._confirmation = (
            None if command is None else DurabilityBarrier(command, durability.missing, short_wait=self.multi_node)
        )
        self.confirms = command is not None

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that made these: a lock may be held for ever."""
        return os.getpid() != self._pid

    @property
    def subscribe(self) -> str:
        """Command to hear wake hints: SSUBSCRIBE where every server has sharded pub/sub."""
        if self.multi_node and not self._router.topology_version:
            self._until_deadline(lambda: None)  # a cluster whose servers are not known yet
        return "SSUBSCRIBE" if self._router.sharded_hints else "SUBSCRIBE"

    @property
    def topology_version(self) -> int:
        """Changes whenever slots have moved to another server."""
        return self._router.topology_version

    def unresponsive(self, key: str) -> bool:
        """Return whether the server that holds a key does not answer at the moment. Asks nobody."""
        try:
            return self._router.node_for(key).unresponsive
        except WireBrokenError:
            return False

    def server_of(self, key: str) -> Address | None:
        """Return the server that holds a key, as far as is known. Asks nobody."""
        try:
            return self._router.node_for(key).address
        except WireBrokenError:
            return None

    def run(self, call: Call[T], deadline_s: float | None = None) -> T:
        """Carry out one call and return its parsed reply.

        Args:
            call: The call.
            deadline_s: How long to repeat it, if it may be repeated; the client's deadline by default.

        Raises:
            RedisUnavailableError: No answer until the deadline; `ReplyLostError` where the call must not be repeated.
            RmqError: What the script refused.
        """
        if self._confirmation is not None and call.durable:
            return cast("T", _only(self.dispatch([call], deadline_s).results()))
        if self._closed or os.getpid() != self._pid:
            self.refuse_misuse()
        started_s = monotonic_s()
        if started_s >= self._next_check_s:
            self._run_periodic_check()
        reply = self._try_alone(call)
        if not isinstance(reply, Exchange):
            try:
                return call.parse(reply)
            except UNREADABLE as error:
                raise unreadable(call, error) from error
        if deadline_s is None:
            deadline_s = self._deadline_for([call]) if self.unresponsive_nodes else self.deadline_s
        return cast("T", _only(self._dispatch(reply, deadline_s, started_s).results()))

    def run_many(
        self, calls: Sequence[Call[Any]], patience_s: float | None = None, deadline_s: float | None = None
    ) -> list[Any]:
        """Carry out calls in one round trip per server, all at the same time.

        Args:
            calls: Any number, on any slots.
            patience_s: Once some calls have a result, wait no longer than this for servers that send nothing: one that
                is down shall not hold up the work on the rest. By default until the deadline.
            deadline_s: How long to repeat what may be repeated; the client's deadline by default.

        Returns:
            Per call its parsed reply or the `RmqError` it met.
        """
        if len(calls) == 1 and patience_s is not None and not self.multi_node:
            try:
                return [self.run(calls[0], deadline_s)]  # one server: whoever is patient waits for it all the same
            except (ClientClosedError, ForkedClientError):
                raise
            except RmqError as error:
                return [error]
        if deadline_s is None and patience_s is not None and self.unresponsive_nodes:
            deadline_s = self._deadline_for(calls)
        return self.dispatch(calls, deadline_s).results(patience_s)

    def dispatch(self, calls: Sequence[Call[Any]], deadline_s: float | None = None) -> Dispatch:
        """Send calls without waiting for replies; the caller must ask for all results, or close it."""
        self.refuse_misuse()
        if monotonic_s() >= self._next_check_s:
            self._run_periodic_check()
        dispatch = self._dispatch(Exchange(calls, self._scripts, self._confirmation), deadline_s or self.deadline_s)
        dispatch.send()
        return dispatch

    def command(self, *args: Argument, key: str | bytes | None = None, patience_s: float | None = None) -> Any:
        """Carry out one plain command that may be repeated, and return its reply.

        Args:
            args: The command.
            key: The key that decides where it goes; by default the first argument after the command's name.
            patience_s: Where there are several servers, try once, and wait no longer than this. By default repeat it
                until the deadline.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            ScriptFailedError: The server refused it.
            MemoryFullError: Redis is at its maxmemory.
        """
        call = plain(*args, key=key)
        return self.run(call) if patience_s is None else self.run_once(call, patience_s)

    def run_once(self, call: Call[T], patience_s: float) -> T:
        """Carry out one call as `run`; where there are several servers try once, and wait no longer than this."""
        if not self.multi_node:
            return self.run(call)
        once = self.dispatch([call], AT_ONCE_S)
        [result] = once.results(patience_s, leave=True)
        if result is AWAITED:
            once.close()
            result = RedisUnavailableError(f"no answer from Redis at {self.url.shown} within {patience_s:g} s")
        return cast("T", _only([result]))

    def read_at_once(self, key: str, *commands: Sequence[Argument]) -> list[Any]:
        """Carry out commands that only read one after the other, with nothing in between, and return their replies.

        Args:
            key: The key that decides where they go; all others lie in the same hash slot.
            commands: The commands.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            ScriptFailedError: The server refused one.
        """
        self.refuse_misuse()
        request = pack("MULTI") + b"".join(pack(*command) for command in commands) + pack("EXEC")

        def attempt() -> list[Any]:
            node = self._router.node_for(key)
            wire = node.checkout()
            refused: list[ReplyError] = []
            replies: list[Any] = []
            try:
                wire.send(request)
                for _ in range(len(commands) + 2):  # each is refused, or queued, or the answer to all
                    try:
                        replies = wire.read()
                    except ReplyError as error:
                        refused.append(error)
            except BaseException:  # a reply left behind would be read by the next caller
                wire.close()
                raise
            node.give_back(wire)
            refused += [reply for reply in replies if isinstance(reply, ReplyError)]
            if refused:
                raise refused[0]
            return replies

        try:
            return self._until_deadline(attempt)
        except ReplyError as error:
            raise error_of(plain(*commands[0], key=key), str(error)) from error

    def wakeup_node(self, channel: str | bytes) -> Node:
        """Return the server to hear a wake channel from; raises as `checkout`."""
        self.refuse_misuse()
        self._router.refresh()
        return self._router.wakeup_node(channel)

    def invalidate(self) -> None:
        """Note that a server did not behave as the layout says: look at the layout before the next call."""
        self._router.invalidate()

    def look_seldom(self, pause_s: float) -> None:
        """Ask for the role of a server seldom; see `Router.look_seldom`."""
        self._router.look_seldom(pause_s)

    def check(self) -> None:
        """Look at all servers that hold slots now, and not only when they are first used.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            UnsafeRedisError: A server would lose messages, or can't do what the durability level promises.
        """
        self.refuse_misuse()

        def look() -> None:
            for node in self._router.masters():
                node.give_back(node.checkout())

        self._until_deadline(look)

    def ask_masters(self, *args: Argument) -> dict[str, Any]:
        """Ask every server that holds slots the same; return what each says, by its address.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            ScriptFailedError: A server's refusal.
        """
        self.refuse_misuse()
        result: dict[str, Any] = {}

        def ask() -> None:
            for node in self._router.masters():
                result[":".join(map(str, node.address))] = node.ask(*args)

        try:
            self._until_deadline(ask)
        except ReplyError as error:
            raise error_of(plain(*args), str(error)) from error
        return result

    def check_periodically(self, look: Callable[[], float], first_s: float) -> None:
        """Have something looked at now and then before a call: who only sends has no thread that could.

        Args:
            look: Raises nothing and does not wait long; returns after how many seconds it is called again.
            first_s: After how many seconds it is called first.
        """
        self._periodic_check, self._next_check_s = look, monotonic_s() + first_s

    def _run_periodic_check(self) -> None:
        pause_s, self._next_check_s = LOOK_AGAIN_S, inf  # also for the calls that it makes
        try:
            pause_s = self._periodic_check()
        finally:  # it may be cancelled
            self._next_check_s = monotonic_s() + pause_s

    def ask_soon(self, key: str, patience_s: float, *args: Argument) -> Any:
        """Ask the server that holds a key as `Node.ask_soon`; `NOTHING` where it refuses, too."""
        try:
            return self._router.node_for(key).ask_soon(patience_s, *args)
        except (WireBrokenError, ReplyError):
            return NOTHING

    def close_with_us(self, user: Closable) -> None:
        """Close something before these connections close; it is not kept alive for that."""
        self._closed_with_us.add(user)

    def close(self) -> None:
        """Close what was built on these and asked for it, then all idle connections.

        Calls after it fail with `ClientClosedError`.
        """
        try:
            with ExitStack() as users:  # each of them, whatever one raises
                while self._closed_with_us:
                    users.callback(self._closed_with_us.pop().close)
        finally:
            self._closed = True
            self._router.close()

    def forget_users(self) -> None:
        """Let `close` close nothing that was built on these: nobody can wait for it any more."""
        self._closed_with_us.clear()

    def refuse_misuse(self) -> None:
        """Raise `ClientClosedError` after the close, and `ForkedClientError` in a fork."""
        if self._closed:
            raise ClientClosedError("this client is closed; make a new one")
        if os.getpid() != self._pid:
            raise ForkedClientError("this client was made before a fork; make one in the process that uses it")

    def _until_deadline(self, attempt: Callable[[], T]) -> T:
        """Repeat what executes nothing when it fails, or may be executed twice."""
        end_s, pause_s = monotonic_s() + self.deadline_s, FIRST_PAUSE_S
        while True:
            try:
                self._router.refresh()
                return attempt()
            except WireBrokenError as error:
                problem = error
            except ReplyError as error:
                if not not_executed(str(error)):
                    raise
                problem = error
            self._router.invalidate()
            if monotonic_s() + pause_s > end_s:
                raise RedisUnavailableError(
                    f"no answer from Redis at {self.url.shown} within {self.deadline_s:g} s ({problem})"
                ) from problem
            self.runtime.sleep(pause_s * (0.5 + draw_jitter() / 2))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _try_alone(self, call: Call[Any]) -> Any:
        """Carry out one call without the bookkeeping that many need, which costs more than the call.

        Returns:
            The reply; after any trouble the exchange that goes on from there.
        """
        try:
            self._router.refresh()
            node = self._router.node_for(call.keys[0])
            if node.unresponsive:
                raise WireTimeoutError(f"Redis at {node.address} does not answer")
            wire = node.checkout()
        except WireBrokenError as error:
            exchange = Exchange([call], self._scripts)
            exchange.not_sent((), str(error))
            return exchange
        try:
            wire.send(self._scripts.request(call, sharded=self._router.sharded_hints, cluster=self.multi_node))
            reply = wire.read()
        except ReplyError as error:
            node.give_back(wire)
            exchange = Exchange([call], self._scripts)
            exchange.take_error(exchange.as_sent(node.address), str(error))
            return exchange
        except BaseException as error:  # a reply left behind would be read by the next caller
            wire.close()
            if not isinstance(error, WireBrokenError):
                raise
            if isinstance(error, WireTimeoutError):
                node.mark_unresponsive()
            exchange = Exchange([call], self._scripts)
            exchange.lost(exchange.as_sent(node.address), str(error))
            return exchange
        node.give_back(wire)
        return reply

    def _dispatch(self, exchange: Exchange, deadline_s: float, started_s: float | None = None) -> Dispatch:
        server = f"Redis at {self.url.shown}"
        return Dispatch(exchange, self._router, self.runtime, self._timeout_s, deadline_s, started_s, server)

    def _deadline_for(self, calls: Sequence[Call[Any]]) -> float:
        """Return how long calls may take: no longer than for a reply where none is repeated, and no server answers."""
        if any(call.repeatable or not self.unresponsive(call.keys[0]) for call in calls):
            return self.deadline_s
        return min(self.deadline_s, self._timeout_s)


def _only(results: list[Any]) -> Any:
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]
