"""One Redis server: its idle connections, the check that it is fit for RMQ, and whether it answers at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from rmq._io.backend import Runtime
from rmq._io.wire import NOTHING, Argument, ReplyError, Wire, WireBrokenError, WireTimeoutError
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._transport.durability import Durability
from rmq._transport.exchange import not_executed
from rmq._transport.server_check import Commands, check_server
from rmq._transport.urls import Address, RedisUrl
from rmq.errors import RedisUnavailableError, RmqError

log = reporter("rmq.connections")

CONNECT_S = 2.0
"""Connect timeout when other nodes can be used instead."""

FIRST_TRY_S, LONGEST_TRY_S = 0.05, 1.0
"""Pauses between two tries to reach a silent server: they double."""

T = TypeVar("T")
Check = Callable[[Wire], None]


class Node:
    """A server, with connections made as threads need them. Thread-safe.

    Args:
        address: Where it is; for a unix socket anything.
        shown: Its name in messages.
        new_wire: Makes an unconnected wire to it.
        check: Looks at the server over every new connection: it may be another one by now, or have other settings.
        greet: Looks at every new connection before that.
        runtime: How to wait.
        others: Those of the servers beside it that do not answer; `None` where there are no others, so that all have to
            wait for it.

    Attributes:
        failed_s: When it last could not be reached, on the monotonic clock; 0 for never.
        unresponsive: Whether it has left a call without an answer, and none has come since.
        commands: Those that it has, of the ones it was asked for, once checked.
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
        self._idle: deque[Wire] = deque()
        self._closed = False

    def checkout(self, patience_s: float | None = None) -> Wire:
        """Return a connection of one's own, connected; `give_back` or `close` it when done.

        Args:
            patience_s: How long to wait for a new connection, where there are other servers: one that takes longer is
                there for the next one. By default until the timeouts.

        Raises:
            WireBrokenError: The server can't be reached.
            RedisUnavailableError: It refuses us: wrong password, no such database.
            UnsafeRedisError: It would lose messages.
        """
        wire = self.idle_wire()
        if wire is not None:
            return wire
        return self._fit_wire() if patience_s is None or self._others is None else self._wire_soon(patience_s)

    def idle_wire(self) -> Wire | None:
        """Return an idle connection that was not cut, to be treated as `checkout` says; `None` where there is none."""
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                return None
            try:
                if not wire.can_read():  # an idle connection has nothing to say, unless it was cut
                    return wire
            except WireBrokenError:
                pass
            wire.close()

    def ask(self, *args: Argument) -> Any:
        """Carry out one command and return its reply.

        Raises:
            ReplyError: The server's refusal; else as `checkout`.
        """
        wire = self.checkout()
        try:
            reply = wire.call(*args)
        except ReplyError:
            self.give_back(wire)
            raise
        except BaseException:
            wire.close()
            raise
        self.give_back(wire)
        return reply

    def ask_soon(self, patience_s: float, *args: Argument) -> Any:
        """Carry out one command over an idle connection: a question that must not hold up the call before which it is.

        Args:
            patience_s: How long to wait for the answer.
            args: The command.

        Returns:
            Its reply; `NOTHING` where there is no idle connection, or no answer in time.

        Raises:
            ReplyError: The server's refusal.
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
            else:  # its reply would be read by the next caller
                wire.close()
        return reply

    def mark_unresponsive(self) -> None:
        """Note that a call waits in vain: others go elsewhere until a try of its own finds that the server answers."""
        others = self._others
        if self.unresponsive or others is None or self._closed:
            return
        self.unresponsive, self.failed_s = True, monotonic_s()
        others.add(self)
        try:
            self._runtime.job(lambda: self._try_until_it_answers(others), f"rmq-try-{self._shown}").start()
        except RuntimeError as error:  # no more threads: nobody would end the silence, so each call waits for itself
            others.discard(self)
            self.unresponsive = False
            log.warning("Redis at %s does not answer, and no thread can wait until it does: %s", self._shown, error)

    def give_back(self, wire: Wire) -> None:
        """Keep a connection for the next one; all its replies must have been read."""
        self._idle.append(wire)
        if self._closed:  # while this one was out
            self.close()

    def close(self) -> None:
        """Close all idle connections, and those under way when they are given back."""
        self._closed = True
        with suppress(IndexError):  # no more, or another thread was faster
            while True:
                self._idle.pop().close()

    def _fit_wire(self) -> Wire:
        """Return a new connection, to a server that was checked."""
        try:
            wire = self._connected()
            try:
                self.commands = self._guarded(self._check, wire)
            except BaseException:
                wire.close()
                raise
        except WireBrokenError as error:
            self.failed_s = monotonic_s()
            if isinstance(error, WireTimeoutError):
                self.mark_unresponsive()
            raise
        return wire

    def _wire_soon(self, patience_s: float) -> Wire:
        """Have a connection made by a job that can wait for it, and return it if that is done soon."""
        ended, made, late = self._runtime.event(), deque[Wire](), False
        trouble: RmqError = WireTimeoutError(f"no connection within {patience_s:g} s")

        def keep() -> None:
            with suppress(IndexError):  # the caller has taken it after all
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
        except RuntimeError:  # no more threads
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
        """End the silence once the server answers on a new connection, or is no longer wanted."""
        pause_s, warned = FIRST_TRY_S, False
        try:
            while not self._closed:
                try:
                    wire = self._fit_wire()
                    try:
                        wire.call("PING")
                    except BaseException:
                        wire.close()
                        raise
                except WireBrokenError as error:
                    if not warned:
                        log.warning("Redis at %s does not answer; the other servers go on: %s", self._shown, error)
                    warned = True
                except (
                    RmqError,
                    ReplyError,
                ):  # the server answered, even if with an error; the next caller will see that error
                    break
                else:
                    self.give_back(wire)
                    if warned:
                        log.warning("Redis at %s answers again", self._shown)
                    break
                self._runtime.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_TRY_S)
        finally:
            others.discard(self)
            self.unresponsive = False

    def _connected(self) -> Wire:
        wire = self._new_wire()
        try:
            self._guarded(lambda made: made.connect(), wire)
            self._guarded(self._greet, wire)
        except BaseException:
            wire.close()
            raise
        return wire

    def _guarded(self, action: Callable[[Wire], T], wire: Wire) -> T:
        try:
            return action(wire)
        except ReplyError as error:
            if not_executed(str(error)):  # a busy server is waited for, a wrong password never gets right
                raise WireBrokenError(str(error)) from error
            raise RedisUnavailableError(f"Redis at {self._shown} refuses this client: {error}") from error


class NodeFactory:
    """Makes the nodes behind one URL; takes what `Connections` takes.

    Attributes:
        unresponsive: Those of the servers of a cluster that do not answer at the moment.
        durability: What has to have happened before a send counts as accepted.
        shown: The URL in messages, without its passwords.
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
        new_wire = self.runtime.wire_factory(self._url.url, self._timeout_s)
        return Node(Address("", 0), self.shown, new_wire, self._check(self.shown), _welcome, self.runtime)

    def server(self, address: Address, greet: Check) -> Node:
        """Return a data server of a Sentinel URL."""
        return Node(address, str(address), self._wires(address), self._check(str(address)), greet, self.runtime)

    def member(self, address: Address) -> Node:
        """Return a data server of a cluster URL."""
        shown, new_wire = str(address), self._wires(address)
        return Node(address, shown, new_wire, self._check(shown), _welcome, self.runtime, self.unresponsive)

    def sentinel(self, address: Address, patience_s: float) -> Node:
        """Return a Sentinel, to be waited for so long; it is no data server and not checked."""
        return self._unchecked_node(
            address, self._url.sentinel_url(address), f"Sentinel {address}", patience_s, _welcome
        )

    def probe_node(self, address: Address, patience_s: float, greet: Check) -> Node:
        """Return a data server that is only asked about itself or others, and waited for so long; it is not checked."""
        return self._unchecked_node(address, self._url.server_url(address), str(address), patience_s, greet)

    def _unchecked_node(self, address: Address, url: str, shown: str, patience_s: float, greet: Check) -> Node:
        patience_s = min(self._timeout_s, patience_s)
        new_wire = self.runtime.wire_factory(url, patience_s, patience_s)
        return Node(address, shown, new_wire, lambda wire: Commands(), greet, self.runtime)

    def _wires(self, address: Address) -> Callable[[], Wire]:
        connect_s = min(self._timeout_s, CONNECT_S)
        return self.runtime.wire_factory(self._url.server_url(address), self._timeout_s, connect_s)

    def _check(self, shown: str) -> Callable[[Wire], Commands]:
        warned = self._warned.setdefault(shown, set())
        return lambda wire: check_server(wire, shown, self.durability, warned)


def _welcome(wire: Wire) -> None:
    """Any connection will do."""
    del wire
