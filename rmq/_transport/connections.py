"""Sends calls to Redis: each call to the server of its slot, to all servers in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from math import inf
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet

from rmq._io.backend import THREADS, Runtime
from rmq._io.wire import NOTHING, Argument, ReplyError, WireBrokenError, WireTimeoutError, pack
from rmq._model.retry import draw_jitter
from rmq._model.times import monotonic_s
from rmq._servers.cluster import ClusterRouter
from rmq._servers.durability import Durability
from rmq._servers.nodes import Node, NodeFactory, Router, StandaloneRouter
from rmq._servers.sentinel import SentinelRouter
from rmq._servers.server_check import not_executed
from rmq._servers.urls import Address, RedisUrl, Topology
from rmq._transport.call import Call, plain
from rmq._transport.dispatch import FIRST_PAUSE_S, LONGEST_PAUSE_S, Dispatch
from rmq._transport.exchange import DurabilityBarrier, Exchange, results_of
from rmq._transport.refusals import UNREADABLE, error_of, unreadable
from rmq._transport.rpc_ids import RpcIdAllocator
from rmq._transport.script_library import ScriptLibrary, default_scripts
from rmq._transport.shared_calls import MOST_COST, SharedCalls
from rmq.errors import ClientClosedError, ForkedClientError, RedisUnavailableError, RmqError, ScriptFailedError

P = TypeVar("P")
T = TypeVar("T")

MEMORY = Durability()

LOOK_AGAIN_S = 10.0
"""Delay of the next periodic check after one that was interrupted, in seconds."""

ROUND_TRIP_SLOTS = 64
"""Maximum number of slots called in one round trip."""

AT_ONCE_S = 0.001
"""Deadline of a call that is not retried, in seconds."""


class Closable(Protocol):
    """An object that still has something to send when the connections close."""

    def close(self) -> None:
        """Send unsent data. May be called twice."""
        ...


class Connections:
    """Connections to the servers behind a URL, made as threads need them. Thread-safe; does not survive a fork.

    Args:
        url: URL of Redis.
        scripts: The scripts; the shared library by default.
        timeout_s: Seconds to wait for a connection, and for a reply.
        deadline_s: Seconds to retry calls that are safe to repeat.
        durability: Confirmation required before a send is accepted.
        runtime: The runtime of these connections and their users: threads, the default, or an event loop.

    Attributes:
        multi_node: True for a Redis Cluster. One server may fail while the others work, and the slots of a topic may be
            on different servers, so that one script call cannot read several of them.
        router: Finds the servers of keys, by a topology that calls keep up to date.
        unresponsive_nodes: Servers that do not answer at the moment; see `unresponsive`.
        rpc_ids: Numbers calls that are safe to repeat only if they are numbered.
        confirms: Whether durable calls wait for a confirmation of replicas or the disk.
        server: Embedded Redis kept alive by these connections: it ends with the last reference to it.
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
        self.server: object = None
        self._periodic_check: Callable[[], float] = lambda: inf
        self._next_check_s = inf  # when it is called next, on the clock of `monotonic_s`
        self.router = make_router(url, timeout_s, durability, runtime)
        self.multi_node = not self.router.multi_slot_scripts
        self._shared_calls = SharedCalls(self.router, self._scripts, runtime)
        self.unresponsive_nodes = self.router.unresponsive
        # half of the client's timeout: the server must give up first, or its reply would be lost
        command = durability.confirmation(max(1, int(timeout_s * 500)))
        self._confirmation = (
            None if command is None else DurabilityBarrier(command, durability.missing, short_wait=self.multi_node)
        )
        self.confirms = command is not None

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that created the connections. Then a lock may be held for ever."""
        return os.getpid() != self._pid

    @property
    def subscribe(self) -> str:
        """Command that subscribes to wakeups: SSUBSCRIBE if every server supports sharded pub/sub."""
        if self.multi_node and not self.router.topology_version:
            self._until_deadline(lambda: None, plain("SUBSCRIBE"))  # the servers of the cluster are not known yet
        return "SSUBSCRIBE" if self.router.sharded_hints else "SUBSCRIBE"

    def unresponsive(self, key: str) -> bool:
        """Return whether the server of a key does not answer at the moment. Sends nothing."""
        try:
            return self.router.node_for(key).unresponsive
        except WireBrokenError:
            return False

    def server_of(self, key: str) -> Address | None:
        """Return the server of a key, or `None` if it is not known. Sends nothing."""
        try:
            return self.router.node_for(key).address
        except WireBrokenError:
            return None

    def run(self, call: Call[T], deadline_s: float | None = None) -> T:
        """Execute one call and return its parsed reply.

        Args:
            call: The call.
            deadline_s: Seconds to retry it, if it is safe to repeat; the client's deadline by default.

        Raises:
            RedisUnavailableError: Redis did not answer before the deadline; `ReplyLostError` if a repeat is not safe.
            RmqError: The script refused the call.
        """
        if self._confirmation is not None and call.durable:
            return cast("T", _only(self.dispatch([call], deadline_s).results()))
        started_s = self._begin()
        reply = self._try_alone(call)
        if isinstance(reply, Exchange):
            return self._finish(call, reply, started_s, deadline_s)
        return _parsed(call, reply)

    def run_shared(self, call: Call[T], cost: float = 0.0) -> T:
        """Execute a call of which threads or tasks make many, one at a time; see `run`.

        If it is small, it may share a round trip with those that others make meanwhile, see `SharedCalls`. Others need
        a connection each; an event loop limits their number.

        Args:
            call: The call.
            cost: What it costs the server, as the number of bytes of a send that costs as much.
        """
        kind = call.topic, call.script
        if cost > MOST_COST or (self._confirmation is not None and call.durable):
            return self.runtime.limited(kind, lambda: self.run(call))
        started_s = self._begin()
        reply = self._shared_calls.execute(call, self._exchange)
        if not isinstance(reply, Exchange):
            return _parsed(call, reply)
        if reply.done:
            return cast("T", _only(reply.results))
        if not reply.maybe_executed:  # its deadline is that of its own attempts
            return self.runtime.limited(kind, lambda: self._finish(call, reply, monotonic_s()))
        return self.runtime.limited(kind, lambda: self._finish(call, reply, started_s))

    def run_many(
        self, calls: Sequence[Call[Any]], patience_s: float | None = None, deadline_s: float | None = None
    ) -> list[Any]:
        """Execute calls in one round trip per server, on all servers in parallel.

        Args:
            calls: Any number of calls, on any slots.
            patience_s: Once some calls have a result, wait no longer than this for servers that send nothing, so that a
                server that is down does not delay the others' results. By default until the deadline.
            deadline_s: Seconds to retry calls that are safe to repeat; the client's deadline by default.

        Returns:
            For each call its parsed reply or an `RmqError`.
        """
        if len(calls) == 1 and patience_s is not None and not self.multi_node:
            try:
                return [self.run(calls[0], deadline_s)]  # there is no other server whose results could be returned
            except (ClientClosedError, ForkedClientError):
                raise
            except RmqError as error:
                return [error]
        if deadline_s is None and patience_s is not None and self.unresponsive_nodes:
            deadline_s = self._deadline_for(calls)
        return self.dispatch(calls, deadline_s).results(patience_s)

    def dispatch(
        self, calls: Sequence[Call[Any]], deadline_s: float | None = None, timeout_s: float | None = None
    ) -> Dispatch:
        """Send calls without waiting for replies. The caller must get all results or close the `Dispatch`."""
        self._begin()
        exchange = Exchange(calls, self._scripts, self._confirmation)
        dispatch = self._dispatch(exchange, deadline_s or self.deadline_s, timeout_s=timeout_s)
        dispatch.send()
        return dispatch

    def command(self, *args: Argument, key: str | bytes | None = None, patience_s: float | None = None) -> Any:
        """Execute one plain command that is safe to repeat, and return its reply.

        Args:
            args: The command.
            key: The key that selects the server; by default the first argument after the command's name.
            patience_s: On a cluster, try only once and wait no longer than this. By default retry until the deadline.

        Raises:
            RedisUnavailableError: Redis did not answer before the deadline.
            ScriptFailedError: The server refused the command.
            MemoryFullError: Redis is at its maxmemory.
        """
        call = plain(*args, key=key)
        return self.run(call) if patience_s is None else self.run_once(call, patience_s)

    def run_once(self, call: Call[T], patience_s: float) -> T:
        """Execute one call as `run` does; on a cluster try only once, and wait no longer than `patience_s`."""
        if not self.multi_node:
            return self.run(call)
        return cast("T", _only(self.dispatch([call], AT_ONCE_S, patience_s).results()))

    def read_at_once(self, key: str, *commands: Sequence[Argument]) -> list[Any]:
        """Execute read-only commands atomically (MULTI) and return their replies.

        Args:
            key: The key that selects the server; all other keys must be in the same hash slot.
            commands: The commands.

        Raises:
            RedisUnavailableError: Redis did not answer before the deadline.
            ScriptFailedError: The server refused a command.
        """
        self.refuse_misuse()
        request = pack("MULTI") + b"".join(pack(*command) for command in commands) + pack("EXEC")

        def attempt() -> list[Any]:
            node = self.router.node_for(key)
            refused: list[ReplyError] = []
            replies: list[Any] = []
            with node.using(node.checkout()) as wire:
                wire.send(request)
                for _ in range(len(commands) + 2):  # the replies to MULTI, to each command, and to EXEC
                    try:
                        replies = wire.read()
                    except ReplyError as error:
                        refused.append(error)
            refused += [reply for reply in replies if isinstance(reply, ReplyError)]
            if refused:
                raise refused[0]
            return replies

        return self._until_deadline(attempt, plain(*commands[0], key=key))

    def wakeup_node(self, channel: str | bytes) -> Node:
        """Return the server of a wakeup channel; raises as `Node.checkout`."""
        self.refuse_misuse()
        self.router.refresh()
        return self.router.wakeup_node(channel)

    def check(self) -> None:
        """Check all servers that hold slots now instead of at their first use.

        Raises:
            RedisUnavailableError: Redis did not answer before the deadline.
            UnsafeRedisError: A server may lose messages, or cannot provide the durability level.
        """
        self.refuse_misuse()

        def look() -> None:
            for node in self.router.masters():
                node.give_back(node.checkout())

        self._until_deadline(look, plain("INFO"))

    def ask_masters(self, *args: Argument) -> dict[str, Any]:
        """Send a command to every server that holds slots; return the replies by address.

        Raises:
            RedisUnavailableError: Redis did not answer before the deadline.
            ScriptFailedError: A server refused the command.
        """
        self.refuse_misuse()
        result: dict[str, Any] = {}

        def ask() -> None:
            for node in self.router.masters():
                result[":".join(map(str, node.address))] = node.ask(*args)

        self._until_deadline(ask, plain(*args))
        return result

    def check_periodically(self, look: Callable[[], float], first_s: float) -> None:
        """Run a periodic check before calls, for clients that only send and have no thread of their own.

        Args:
            look: The check. It must not raise or wait long; returns the seconds until it is to be called again.
            first_s: Seconds until the first call.
        """
        self._periodic_check, self._next_check_s = look, monotonic_s() + first_s

    def _run_periodic_check(self) -> None:
        pause_s, self._next_check_s = LOOK_AGAIN_S, inf  # the check's own calls must not start it again
        try:
            pause_s = self._periodic_check()
        finally:  # it may be cancelled
            self._next_check_s = monotonic_s() + pause_s

    def ask_soon(self, key: str, patience_s: float, *args: Argument) -> Any:
        """Ask the server of a key as `Node.ask_soon` does; return `NOTHING` also if it refuses."""
        try:
            return self.router.node_for(key).ask_soon(patience_s, *args)
        except (WireBrokenError, ReplyError):
            return NOTHING

    def close_with_us(self, user: Closable) -> None:
        """Close `user` before these connections close. Holds only a weak reference to it."""
        self._closed_with_us.add(user)

    def close(self) -> None:
        """Close the objects registered with `close_with_us`, then all idle connections.

        Later calls raise `ClientClosedError`.
        """
        try:
            with ExitStack() as users:  # closes all of them even if one raises
                while self._closed_with_us:
                    users.callback(self._closed_with_us.pop().close)
        finally:
            self._closed = True
            self.router.close()

    def forget_users(self) -> None:
        """Do not close registered objects in `close`: their event loop is closed, so they cannot be waited for."""
        self._closed_with_us.clear()

    def refuse_misuse(self) -> None:
        """Raise `ClientClosedError` if closed, and `ForkedClientError` in a forked process."""
        if self._closed:
            raise ClientClosedError("this client is closed; create a new one")
        if os.getpid() != self._pid:
            raise ForkedClientError(
                "this client was created before a fork; create a client in the process that uses it"
            )

    def _until_deadline(self, attempt: Callable[[], T], call: Call[Any]) -> T:
        """Call a function until it succeeds or the deadline passes. A failed call must be safe to repeat.

        Args:
            attempt: The function.
            call: What it sends, for the error of a server that refuses it.
        """
        end_s, pause_s = monotonic_s() + self.deadline_s, FIRST_PAUSE_S
        while True:
            try:
                self.router.refresh()
                return attempt()
            except WireBrokenError as error:
                problem = error
            except ReplyError as error:
                if not not_executed(str(error)):
                    raise error_of(call, str(error)) from error
                problem = error
            self.router.invalidate()
            if monotonic_s() + pause_s > end_s:
                raise RedisUnavailableError(
                    f"no answer from Redis at {self.url.shown} within {self.deadline_s:g} s ({problem})"
                ) from problem
            self.runtime.sleep(pause_s * (0.5 + draw_jitter() / 2))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _begin(self) -> float:
        """Refuse misuse, run the periodic check if it is due, and return the time at which a call starts."""
        if self._closed or os.getpid() != self._pid:
            self.refuse_misuse()
        started_s = monotonic_s()
        if started_s >= self._next_check_s:
            self._run_periodic_check()
        return started_s

    def _finish(self, call: Call[T], exchange: Exchange, started_s: float, deadline_s: float | None = None) -> T:
        """Retry a call after its first attempt."""
        if deadline_s is None:
            deadline_s = self._deadline_for([call]) if self.unresponsive_nodes else self.deadline_s
        return cast("T", _only(self._dispatch(exchange, deadline_s, started_s).results()))

    def _try_alone(self, call: Call[Any]) -> Any:
        """Execute one call without the bookkeeping for many calls, which costs more than the call.

        Returns:
            The reply; after a failure an `Exchange` that continues from there.
        """
        try:
            node = self.router.route(call.keys[0])
        except WireBrokenError as error:
            return Exchange.unsent(call, self._scripts, str(error))
        return self._exchange(node, call)

    def _exchange(self, node: Node, call: Call[Any]) -> Any:
        """Execute one call on a server; returns what `_try_alone` returns."""
        try:
            if node.unresponsive:
                raise WireTimeoutError(f"Redis at {node.address} does not answer")
            wire = node.idle_wire() or node.checkout()
        except WireBrokenError as error:
            return Exchange.unsent(call, self._scripts, str(error))
        try:
            wire.send(self._scripts.request(call, sharded=self.router.sharded_hints, cluster=self.multi_node))
            reply = wire.read()
        except ReplyError as error:
            node.give_back(wire)
            return Exchange.after_refusal(call, self._scripts, node.address, str(error))
        except BaseException as error:  # an unread reply would be read by the next user of the connection
            wire.close()
            if not isinstance(error, WireBrokenError):
                raise
            if isinstance(error, WireTimeoutError):
                node.mark_unresponsive()
            return Exchange.after_loss(call, self._scripts, node.address, str(error))
        node.give_back(wire)
        return reply

    def _dispatch(
        self, exchange: Exchange, deadline_s: float, started_s: float | None = None, timeout_s: float | None = None
    ) -> Dispatch:
        server, timeout_s = f"Redis at {self.url.shown}", timeout_s or self._timeout_s
        return Dispatch(exchange, self.router, self.runtime, timeout_s, deadline_s, started_s, server)

    def _deadline_for(self, calls: Sequence[Call[Any]]) -> float:
        """Return the deadline of calls: only the reply timeout if none may be repeated and no server answers."""
        if any(call.repeatable or not self.unresponsive(call.keys[0]) for call in calls):
            return self.deadline_s
        return min(self.deadline_s, self._timeout_s)


def make_router(url: RedisUrl, timeout_s: float, durability: Durability, runtime: Runtime) -> Router:
    """Return the router for a URL. It connects at its first use. The arguments are those of `Connections`.

    Raises:
        InvalidUrlError: redis-py can't use the URL.
    """
    nodes = NodeFactory(url, timeout_s, durability, runtime)
    if url.topology is Topology.CLUSTER:
        return ClusterRouter(url, nodes)
    return SentinelRouter(url, nodes) if url.topology is Topology.SENTINEL else StandaloneRouter(nodes)


def _parsed(call: Call[T], reply: Any) -> T:
    """Return the parsed reply.

    Raises:
        ScriptFailedError: A key of the slot has a value that RMQ did not write.
    """
    try:
        return call.parse(reply)
    except UNREADABLE as error:
        raise unreadable(call, error) from error


def _only(results: list[Any]) -> Any:
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def run_slots(
    connections: Connections, calls: Iterable[Call[T]], join: Callable[[Sequence[Call[T]]], Call[list[T]]] | None = None
) -> Iterator[T | RmqError]:
    """Run calls on slots, up to `ROUND_TRIP_SLOTS` in one round trip; yield the result or the error of each, in order.

    Args:
        connections: The connections to Redis.
        calls: The calls; read as they are run.
        join: Returns one call in place of several, which it may repeat, where one script may access several slots. A
            joined call that the server refuses is repeated slot by slot: errors name slots, and the others are called.

    Raises:
        RedisUnavailableError: No server answered a joined call before the deadline.
    """
    remaining = iter(calls)
    while part := list(islice(remaining, ROUND_TRIP_SLOTS)):
        replies: Sequence[T | RmqError] | None = None
        if join is not None and len(part) > 1 and not connections.multi_node:
            with suppress(ScriptFailedError):
                replies = connections.run(join(part))
        yield from connections.run_many(part) if replies is None else replies


def call_slots(
    connections: Connections, places: Sequence[P], build: Callable[[P], Call[T]], *, finish_all: bool = False
) -> list[T]:
    """Run a call on each slot, see `run_slots`; return the replies in the slots' order.

    Args:
        connections: The connections to Redis.
        places: The slots, or other arguments of `build`.
        build: Returns the call for a slot.
        finish_all: Continue with later round trips even if an earlier one has failed.

    Raises:
        RmqError: The first error. The other slots of the same round trip were called.
    """
    replies = run_slots(connections, map(build, places))
    return results_of([*replies] if finish_all else replies)


def call_in_parts(
    connections: Connections, build: Callable[[Sequence[P]], Call[list[T]]], items: Sequence[P]
) -> list[T]:
    """Repeat a call whose reply may cover only its first items, for the rest of them; `build` returns the call."""
    answers: list[T] = []
    while True:
        done = len(answers)
        answers += connections.run(build(items[done:]))
        if not done < len(answers) < len(items):
            return answers
