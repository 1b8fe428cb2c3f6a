"""Redis servers, and the router that selects the server of a key.

A router has a standalone server, a master that Sentinels watch (`sentinel.py`), or the nodes of a cluster
(`cluster.py`).

A node is one server: its pool of idle connections, the check of its settings, and whether it is responsive. If a call
gets no answer while other servers work, the node is marked unresponsive. Calls to it then fail at once, until a
background job gets an answer on a new connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

from rmq._io.backend import Runtime
from rmq._io.reports import reporter
from rmq._io.wire import NOTHING, Argument, ReplyError, Wire, WireBrokenError, WireTimeoutError
from rmq._model.times import monotonic_s
from rmq._servers.cluster_map import Redirect
from rmq._servers.combiner import Combiner
from rmq._servers.durability import Durability
from rmq._servers.server_check import Commands, check_server, not_executed
from rmq._servers.urls import Address, RedisUrl
from rmq.errors import RedisUnavailableError, RmqError

log = reporter("rmq.connections")

CONNECT_S = 2.0
"""Connect timeout when other nodes can be used instead, in seconds."""

FIRST_TRY_S, LONGEST_TRY_S = 0.05, 1.0
"""First and longest pause between attempts to reach an unresponsive server, in seconds: pauses double."""

UNUSED_S = 20.0
"""After so many seconds a connection is closed that nobody has needed: many threads may have called at once."""

LOOK_S = 2.0
"""Interval at which a server is asked for its role, in seconds, since a replica does not refuse reads."""

ANSWER_S = 0.5
"""Seconds to wait for the answer."""

DOUBT_S = 0.1
"""Minimum time between two readings of the topology after a redirection or a failure, in seconds."""

Check = Callable[[Wire], None]


class Node:
    """A server, with connections made as threads need them. Thread-safe.

    Args:
        address: Address of the server; arbitrary for a unix socket.
        shown: Name of the server in messages.
        new_wire: Makes an unconnected wire to it.
        check: Checks the server over every new connection, since it may have been replaced or reconfigured.
        greet: Checks every new connection before `check`.
        runtime: The runtime: threads, or an event loop.
        others: The unresponsive nodes of the cluster, shared by its nodes; `None` if there is no other server.

    Attributes:
        failed_s: Time of the last failure to reach it, on the monotonic clock; 0 for none.
        unresponsive: Whether a call got no answer, and none has come since.
        commands: The optional commands that it supports, once checked.
        combiner: Queues small calls that may share a round trip.
    """

    def __init__(
        self,
        address: Address,
        shown: str,
        new_wire: Callable[[], Wire],
        check: Callable[[Wire], Commands],
        greet: Check,
        runtime: Runtime,
        others: set[Node] | None = None,
    ) -> None:
        self.address = address
        self.failed_s = 0.0
        self.unresponsive = False
        self.commands: Commands | None = None
        self._runtime = runtime
        self._others = others
        self._shown = shown
        self._new_wire = new_wire
        self._check = check
        self._greet = greet
        self._idle: deque[tuple[float, Wire]] = deque()
        """Idle connections, and when each was last used; the one used last is taken first."""
        self._closed = False
        self.combiner = Combiner(runtime)

    def checkout(self, patience_s: float | None = None) -> Wire:
        """Return a connection for the caller alone. Pass it to `give_back` or close it when done.

        Args:
            patience_s: Seconds to wait for a new connection if there are other servers. A connection that takes longer
                is put into the pool. By default until the timeouts.

        Raises:
            WireBrokenError: The server can't be reached.
            RedisUnavailableError: The server refuses the client: wrong password, no such database.
            UnsafeRedisError: Its settings may lose messages.
        """
        wire = self.idle_wire()
        if wire is not None:
            return wire
        return self._fit_wire() if patience_s is None or self._others is None else self._wire_soon(patience_s)

    def idle_wire(self) -> Wire | None:
        """Return an idle connection that is still open, as `checkout` does; `None` if there is none."""
        while True:
            try:
                _, wire = self._idle.pop()
            except IndexError:
                return None
            try:
                if not wire.can_read():  # data on an idle connection means that the server has closed it
                    return wire
            except WireBrokenError:
                pass
            wire.close()

    def ask(self, *args: Argument) -> Any:
        """Execute one command and return its reply.

        Raises:
            ReplyError: The server refused it; otherwise as `checkout`.
        """
        with self.using(self.checkout()) as wire:
            return wire.call(*args)

    @contextmanager
    def using(self, wire: Wire) -> Generator[Wire]:
        """Context manager around the use of a connection: it is given back afterwards, also after an error reply.

        Any other error closes it, since an unread reply would be read by the next user.
        """
        try:
            yield wire
        except ReplyError:
            self.give_back(wire)
            raise
        except BaseException:
            wire.close()
            raise
        self.give_back(wire)

    def ask_soon(self, patience_s: float, *args: Argument) -> Any:
        """Execute one command over an idle connection, for a check that must not delay the call that follows it.

        Args:
            patience_s: Seconds to wait for the reply.
            args: The command.

        Returns:
            Its reply; `NOTHING` if there is no idle connection, or no reply in time.

        Raises:
            ReplyError: The server refused it.
        """
        wire = self.idle_wire()
        if wire is None:
            return NOTHING
        answered, until_s = False, monotonic_s() + patience_s
        try:
            wire.send_command(*args)
            while (reply := wire.read(wait=False)) is NOTHING and (left_s := until_s - monotonic_s()) > 0:
                self._runtime.wait_readable([wire], left_s)
            answered = reply is not NOTHING
        except ReplyError:
            answered = True
            raise
        except WireBrokenError:
            return NOTHING
        finally:
            if answered:
                self.give_back(wire)
            else:  # its late reply would be read by the next user
                wire.close()
        return reply

    def mark_unresponsive(self) -> None:
        """Mark the server unresponsive: calls to it fail at once until a background job gets an answer from it."""
        others = self._others
        if self.unresponsive or others is None or self._closed:
            return
        self.unresponsive, self.failed_s = True, monotonic_s()
        others.add(self)
        try:
            self._runtime.job(lambda: self._try_until_it_answers(others), f"rmq-try-{self._shown}").start()
        except RuntimeError as error:  # no thread can be started, and nothing else would clear the mark
            others.discard(self)
            self.unresponsive = False
            log.warning(
                "Redis at %s does not answer, and no thread can be started to wait for it: %s", self._shown, error
            )

    def give_back(self, wire: Wire) -> None:
        """Return a connection to the pool, and close one that was not used for long. All its replies were read."""
        now_s = monotonic_s()
        self._idle.append((now_s, wire))
        if len(self._idle) > 1:
            with suppress(IndexError):  # another thread has taken it
                if self._idle[0][0] < now_s - UNUSED_S:
                    self._idle.popleft()[1].close()
        if self._closed:  # while this connection was in use
            self.close()

    def close(self) -> None:
        """Close all idle connections; those in use are closed when they are given back."""
        self._closed = True
        with suppress(IndexError):  # the pool is empty
            while True:
                self._idle.pop()[1].close()

    def _fit_wire(self) -> Wire:
        """Return a new connection after checking the server."""
        wire = self._new_wire()
        try:
            self._connect(wire)
        except BaseException as error:
            wire.close()
            if isinstance(error, WireBrokenError):
                self.failed_s = monotonic_s()
            if isinstance(error, WireTimeoutError):
                self.mark_unresponsive()
            raise
        return wire

    def _connect(self, wire: Wire) -> None:
        try:
            wire.connect()
            self._greet(wire)
            self.commands = self._check(wire)
        except ReplyError as error:
            if not_executed(str(error)):  # worth retrying, such as a server that is loading its data
                raise WireBrokenError(str(error)) from error
            raise RedisUnavailableError(f"Redis at {self._shown} refuses this client: {error}") from error

    def _wire_soon(self, patience_s: float) -> Wire:
        """Make a connection in a background job, and return it if it is ready within `patience_s`."""
        ended, made, late = self._runtime.event(), deque[Wire](), False
        trouble: RmqError = WireTimeoutError(f"no connection within {patience_s:g} s")

        def keep() -> None:
            with suppress(IndexError):  # the caller has taken it
                self.give_back(made.pop())

        def make() -> None:
            nonlocal trouble
            try:
                made.append(self._fit_wire())
            except RmqError as error:
                trouble = error
            finally:
                ended.set()
            if late:
                keep()

        try:
            self._runtime.job(make, f"rmq-connect-{self._shown}").start()
        except RuntimeError:  # no thread can be started
            return self._fit_wire()
        try:
            if not ended.wait(patience_s):
                self.mark_unresponsive()
        except BaseException:
            late = True
            keep()
            raise
        late = True
        try:
            return made.pop()
        except IndexError:
            raise trouble from None

    def _try_until_it_answers(self, others: set[Node]) -> None:
        """Clear the mark once the server answers on a new connection, or the node is closed."""
        pause_s, warned = FIRST_TRY_S, False
        try:
            while not self._closed:
                try:
                    with self.using(self._fit_wire()) as wire:
                        wire.call("PING")
                except WireBrokenError as error:
                    if not warned:
                        log.warning("Redis at %s does not answer; the other servers are used: %s", self._shown, error)
                    warned = True
                except RmqError:  # the server answered with an error, which the next caller will see
                    break
                else:
                    if warned:
                        log.warning("Redis at %s answers again", self._shown)
                    break
                self._runtime.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_TRY_S)
        finally:
            others.discard(self)
            self.unresponsive = False


class NodeFactory:
    """Factory of the nodes behind one URL. The arguments are those of `Connections`.

    Attributes:
        unresponsive: The servers of a cluster that do not answer at the moment.
        durability: Confirmation required before a send is accepted.
        shown: The URL without its passwords, for messages.
    """

    def __init__(self, url: RedisUrl, timeout_s: float, durability: Durability, runtime: Runtime) -> None:
        self.runtime = runtime
        self.unresponsive: set[Node] = set()
        self.shown = url.shown
        self._url = url
        self._timeout_s = timeout_s
        self.durability = durability
        self._warned: dict[str, set[str]] = {}

    def only(self) -> Node:
        """Return the only server of a standalone URL."""
        new_wire = self.runtime.wire_factory(self._url.url, self._timeout_s, None, self._url.credentials)
        return Node(Address("", 0), self.shown, new_wire, self._check(self.shown), _welcome, self.runtime)

    def server(self, address: Address, greet: Check, others: set[Node] | None = None) -> Node:
        """Return a data server of a Sentinel URL."""
        shown, url, connect_s = str(address), self._url.server_url(address), min(self._timeout_s, CONNECT_S)
        new_wire = self.runtime.wire_factory(url, self._timeout_s, connect_s, self._url.credentials)
        return Node(address, shown, new_wire, self._check(shown), greet, self.runtime, others)

    def member(self, address: Address) -> Node:
        """Return a data server of a cluster URL."""
        return self.server(address, _welcome, self.unresponsive)

    def sentinel(self, address: Address, patience_s: float) -> Node:
        """Return a Sentinel with this timeout. It is not a data server, so its settings are not checked."""
        new_wire = self.runtime.wire_factory(self._url.sentinel_url(address), min(self._timeout_s, patience_s))
        return Node(address, f"Sentinel {address}", new_wire, _unchecked, _welcome, self.runtime)

    def probe_node(self, address: Address, patience_s: float, greet: Check) -> Node:
        """Return a data server with this timeout that only answers questions; its settings are not checked."""
        url, timeout_s = self._url.server_url(address), min(self._timeout_s, patience_s)
        new_wire = self.runtime.wire_factory(url, timeout_s, None, self._url.credentials)
        return Node(address, str(address), new_wire, _unchecked, greet, self.runtime)

    def _check(self, shown: str) -> Callable[[Wire], Commands]:
        warned = self._warned.setdefault(shown, set())
        return lambda wire: check_server(wire, shown, self.durability, warned)


def _welcome(wire: Wire) -> None:
    """Accept any connection without a check."""
    del wire


def _unchecked(wire: Wire) -> Commands:
    """Accept any server, whatever commands it has."""
    del wire
    return Commands()


class Router(ABC):
    """Selects the server of a key; here one server at a time, which holds all keys. Thread-safe.

    Only `refresh` and `route` may wait for the network; the other methods use the topology that these have read.

    Args:
        factory: Factory of nodes.
        every_s: Interval at which the topology is read if nothing is wrong, in seconds.
    """

    multi_slot_scripts = True
    """Whether one script may use several slots of a topic; False if their keys may be on different nodes."""
    sharded_hints = False
    """Whether wakeups use sharded pub/sub, which sends them only to the node of the slot."""

    def __init__(self, factory: NodeFactory, every_s: float) -> None:
        self._factory, self._every_s = factory, every_s
        self._lock = factory.runtime.lock()
        self._invalidated = self._closed = False
        self._node: Node | None = None
        self._read_s = self._next_s = -inf
        """Times of the last and the next reading, on the clock of `monotonic_s`."""
        self.topology_version = 0
        """Number that changes whenever keys have moved to another node."""

    @property
    def unresponsive(self) -> Collection[Node]:
        """The servers that do not answer at the moment; always empty if there is only one server."""
        return self._factory.unresponsive

    @abstractmethod
    def _read(self, invalidated: bool) -> None:
        """Read the topology; `invalidated` tells that it seemed to be wrong. Raises the same errors as `refresh`."""

    def masters(self) -> Sequence[Node]:
        """Return all servers that hold keys."""
        return () if self._node is None else (self._node,)

    def route(self, key: str | bytes) -> Node:
        """Return the server of a key by a topology that is not old; raises as `refresh` and `node_for`."""
        if monotonic_s() >= self._next_s:
            self.refresh()
        return self._node or self.node_for(key)

    def node_for(self, key: str | bytes) -> Node:
        """Return the server of a key.

        Raises:
            WireBrokenError: No server is known.
        """
        if self._node is None:
            raise WireBrokenError(f"no master is known for key {key!r:.80}")
        return self._node

    def node_at(self, address: Address) -> Node:
        """Return the server at an address that another server named."""
        return self.node_for(str(address))

    def wakeup_node(self, channel: str | bytes) -> Node:
        """Return the server of a pub/sub channel; raises as `node_for`."""
        return self.node_for(channel)

    def refresh(self) -> None:
        """Read the topology if it is unknown, invalidated or old.

        Raises:
            WireBrokenError: It is unknown, and no server answers.
        """
        if monotonic_s() < self._next_s or not self._lock.acquire(blocking=not self.masters()):
            return
        try:
            self._read_if_due()
        finally:
            self._lock.release()

    def _read_if_due(self) -> None:
        """Read the topology, unless another thread has just done so; `_lock` is held."""
        if monotonic_s() < self._next_s:
            return
        invalidated, self._invalidated = self._invalidated, False
        try:
            self._read(invalidated)
        finally:
            self._read_s = monotonic_s()
            self._schedule()

    def _schedule(self) -> None:
        """Set the time of the next reading."""
        self._next_s = self._read_s + self._every_s if self.masters() else -inf
        if self._invalidated:  # possibly by another thread just now
            self._next_s = min(self._next_s, self._read_s + DOUBT_S)

    def invalidate(self) -> None:
        """Read the topology again before the next call, because it or a server seems to be wrong."""
        self._invalidated = True
        self._next_s = min(self._next_s, self._read_s + DOUBT_S)

    def _replace(self, node: Node) -> None:
        """Use this server as the master from now on."""
        old, self._node = self._node, node
        self.topology_version += 1
        if old is not None:
            old.close()
        if self._closed:
            self.close()

    def look_seldom(self, pause_s: float) -> None:
        """Set the minimum seconds between checks of a standalone server's role; 0 for the default.

        For clients that write regularly: a server that has become a replica refuses their writes sooner. Sentinels and
        the map of a cluster are read as often as before.
        """
        del pause_s

    def learn(self, redirects: Iterable[Redirect]) -> None:
        """Update the topology from redirections of servers."""
        del redirects

    def close(self) -> None:
        """Close all idle connections."""
        self._closed = True
        for node in self.masters():
            node.close()


class StandaloneRouter(Router):
    """A `Router` to the server behind a host name.

    The name may be moved to another server while the old one continues as a replica, with open connections to it. So
    the server is asked for its role regularly, and the connections to a replica are replaced by new ones. If the name
    still resolves to a replica, that is used: it answers reads and refuses writes.

    Args:
        nodes: Factory of nodes.
    """

    def __init__(self, nodes: NodeFactory) -> None:
        super().__init__(nodes, LOOK_S)
        self._node = nodes.only()
        self._replica = False
        self._read_s = monotonic_s()
        self._next_s = self._read_s + LOOK_S

    def look_seldom(self, pause_s: float) -> None:
        self._every_s = max(LOOK_S, pause_s)
        self._schedule()

    def _read(self, invalidated: bool) -> None:
        replica = self._is_replica()
        if replica and not self._replica:
            log.warning("Redis at %s has become a replica; reconnecting", self._factory.shown)
        if replica or (replica is None and invalidated):
            self._replace(self._factory.only())
        if replica is not None:
            self._replica = replica

    def _is_replica(self) -> bool | None:
        """Ask for the role over an idle connection; return `None` without a connection or a quick answer.

        If the server does not answer, the next call reports that.
        """
        try:
            info = self.node_for("").ask_soon(ANSWER_S, "INFO", "replication")
        except ReplyError:  # no permission for INFO
            return None
        return None if info is NOTHING else b"\nrole:slave" in info
