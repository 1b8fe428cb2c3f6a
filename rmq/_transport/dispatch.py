"""Calls in flight to several servers at once, whose replies are read in the order of arrival.

A `Dispatch` sends one request batch to each server, reads replies from whichever server answers first, and sends calls
again that are safe to repeat. An unresponsive server does not delay the calls to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rmq._io.backend import Runtime
from rmq._io.wire import NOTHING, ReplyError, Wire, WireBrokenError, WireTimeoutError
from rmq._model.retry import draw_jitter
from rmq._model.times import monotonic_s
from rmq._servers.nodes import Node, Router
from rmq._transport.exchange import Exchange, RequestBatch
from rmq.errors import RmqError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 1.0

CONNECT_PATIENCE_S = 0.25
"""Seconds to wait for a new connection to one server while calls for other servers wait."""


@dataclass(slots=True)
class _InFlight:
    """A request that was sent to one node."""

    batch: RequestBatch
    node: Node
    wire: Wire
    last_data_s: float
    received: int = 0


class Dispatch:
    """Sends calls, retries those that are safe to repeat, and collects the results. For one thread at a time.

    The caller must get all results or `close` it. Until then it occupies connections.

    Args:
        exchange: The state of the calls.
        router: The router that finds their servers.
        runtime: The runtime: threads, or an event loop.
        timeout_s: Seconds to wait for a server that sends nothing.
        deadline_s: Seconds to retry calls that are safe to repeat.
        started_s: Start of the deadline, on the clock of `monotonic_s`; `None` for now.
        server: Name of the servers in errors.
    """

    def __init__(
        self,
        exchange: Exchange,
        router: Router,
        runtime: Runtime,
        timeout_s: float,
        deadline_s: float,
        started_s: float | None,
        server: str,
    ) -> None:
        self._exchange = exchange
        self._router = router
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._server = server
        self._started_s = monotonic_s() if started_s is None else started_s
        self._multi_node = not router.multi_slot_scripts
        self._in_flight: list[_InFlight] = []
        self._pause_s = FIRST_PAUSE_S
        self._again_s = 0.0
        self._only_unresponsive = False

    @property
    def done(self) -> bool:
        """Whether every call has a result."""
        return self._exchange.done

    @property
    def wires(self) -> list[Wire]:
        """The connections on which replies are expected."""
        return [part.wire for part in self._in_flight]

    def send(self) -> None:
        """Send all open calls, in one request batch for each node."""
        exchange = self._exchange
        self._only_unresponsive = False
        try:
            self._router.refresh()
        except WireBrokenError as error:
            exchange.not_sent((), str(error))
            return
        parts: dict[Node, list[int]] = {}
        for index, call, asked in exchange.take_open():
            try:
                node = self._router.node_for(call.keys[0]) if asked is None else self._router.node_at(asked)
            except WireBrokenError as error:
                exchange.not_sent([index], str(error))
            else:
                parts.setdefault(node, []).append(index)
        self._only_unresponsive = bool(parts and self._router.unresponsive) and all(node.unresponsive for node in parts)
        try:
            for node, indices in parts.items():
                self._send_part(node, indices)
        except BaseException:
            self.close()
            raise

    def step(
        self, since_s: float = 0.0, patience_s: float | None = None, *, leave: bool = False, alone: bool = False
    ) -> bool:
        """Read replies that have arrived and send calls that are due. Return whether there is nothing to wait for.

        Args:
            since_s: Time at which the caller began to wait, on the clock of `monotonic_s`.
            patience_s: Once some calls have a result, stop after this time without data: calls that are to be sent
                again fail, and so do those in flight. By default at the timeouts of the client.
            leave: Stop even if no call has a result, and keep the calls in flight and those that wait to be sent again,
                such as calls on a hash slot that moves: their replies may come later.
            alone: Wait for all replies of a request if no other one is in flight: nothing else has to be waited for.
        """
        exchange = self._exchange
        self._receive(alone=alone and len(self._in_flight) == 1)
        if exchange.done:
            return True
        over_s = None if patience_s is None else since_s + patience_s
        if patience_s is not None and (leave or exchange.partly_done) and self._is_silent(since_s, patience_s):
            self._break_off(patience_s, leave)
            return True
        if exchange.open and self._stalled:
            if leave and over_s is not None and monotonic_s() >= over_s:
                return True
            self._repeat_in_time(over_s if exchange.partly_done and not leave else None)
        return exchange.done

    def wait_s(self) -> float:
        """Return the seconds until `step` has something to do even if no reply arrives."""
        now_s = monotonic_s()
        ends = [
            part.last_data_s + (CONNECT_PATIENCE_S if self._may_be_slow(part) else self._timeout_s)
            for part in self._in_flight
        ]
        if self._exchange.open and self._stalled:
            ends.append(self._again_s)
        return max(0.0, min(ends, default=now_s) - now_s)

    def take_settled(self) -> list[tuple[int, Any]]:
        """Remove and return the new results, with the indices of their calls."""
        return self._exchange.take_settled()

    def results(self, patience_s: float | None = None) -> list[Any]:
        """Wait for the results.

        Args:
            patience_s: On a cluster, once some calls have a result, wait no longer than this for a server that sends
                nothing. By default until the timeouts of the client.

        Returns:
            For each call its parsed reply or an `RmqError`.
        """
        since_s = monotonic_s()
        patience_s = patience_s if self._multi_node else None
        try:
            while not self.step(since_s, patience_s, alone=patience_s is None):
                wait_for_any([self], self._runtime, patience_s)
        except BaseException:  # an unread reply would be read by the next user of the connection
            self.close()
            raise
        return self._exchange.results

    def close(self) -> None:
        """Close the connections of calls in flight, whose replies are no longer needed."""
        for part in self._in_flight:
            part.wire.close()
        self._in_flight = []

    @property
    def _stalled(self) -> bool:
        """True if every request in flight is to an unresponsive server; unsent calls should not wait for those."""
        return all(part.node.unresponsive for part in self._in_flight)

    def _is_silent(self, since_s: float, patience_s: float) -> bool:
        """Return whether no server with pending replies has sent anything for `patience_s`, or since `since_s`."""
        if not self._in_flight:
            return self._only_unresponsive
        now_s = monotonic_s()
        return all(now_s - max(part.last_data_s, since_s) >= patience_s for part in self._in_flight)

    def _break_off(self, patience_s: float, leave: bool) -> None:
        for part in self._in_flight:
            part.node.mark_unresponsive()
            if not leave:
                part.wire.close()
                self._exchange.lost(part.batch, "no reply in time")
        if not leave:
            self._in_flight = []
        self._exchange.give_up(patience_s, self._server)

    def _repeat_in_time(self, over_s: float | None) -> None:
        """Send open calls again after their pause, or fail them at the deadline."""
        exchange, now_s = self._exchange, monotonic_s()
        if exchange.pause_needed and not self._again_s:
            self._router.invalidate()
            self._again_s = now_s + self._pause_s * (0.5 + draw_jitter() / 2)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        end_s = self._started_s + self._deadline_s
        if max(now_s, self._again_s) > (end_s if over_s is None else min(end_s, over_s)):
            exchange.give_up(self._deadline_s, self._server)
        elif now_s >= self._again_s:
            self._again_s = 0.0
            self.send()

    def _send_part(self, node: Node, indices: Sequence[int]) -> None:
        exchange = self._exchange
        if node.unresponsive:
            exchange.not_sent(indices, f"Redis at {node.address} does not answer")
            return
        try:
            wire = node.checkout(CONNECT_PATIENCE_S if self._multi_node else None)
        except WireBrokenError as error:
            exchange.not_sent(indices, str(error))
            return
        except RmqError as error:  # this server refuses the client; the calls to other servers continue
            for index in indices:
                exchange.settle(index, error)
            return
        batch = exchange.request_batch(
            indices, node.address, sharded=self._router.sharded_hints, cluster=self._multi_node
        )
        try:
            if self._multi_node:
                wire.post(batch.request)
            else:
                wire.send(batch.request)
        except WireBrokenError as error:
            wire.close()
            exchange.lost(batch, str(error))
        except BaseException:
            wire.close()
            raise
        else:
            self._in_flight.append(_InFlight(batch, node, wire, monotonic_s(), wire.received))

    def _receive(self, *, alone: bool) -> None:
        """Read the replies that have arrived; `alone` waits for all of them, if they come from one server."""
        for part in list(self._in_flight):
            try:
                if not self._take(part, alone):
                    continue
            except WireBrokenError as error:
                self._in_flight.remove(part)
                part.wire.close()
                if isinstance(error, WireTimeoutError):
                    part.node.mark_unresponsive()
                self._exchange.lost(part.batch, str(error))
            else:
                self._in_flight.remove(part)
                part.node.give_back(part.wire)
        self._router.learn(self._exchange.take_moved())

    def _take(self, part: _InFlight, alone: bool) -> bool:
        """Read the replies that have arrived on one connection; return whether they were all."""
        exchange, batch, wire = self._exchange, part.batch, part.wire
        if wire.unsent:
            wire.push()
        wait = alone and not wire.unsent
        while batch.expected:
            try:
                reply = wire.read(wait=wait)
            except ReplyError as error:
                exchange.take_error(batch, str(error))
                continue
            if reply is NOTHING:
                break
            exchange.take_reply(batch, reply)
        else:
            return True
        now_s = monotonic_s()
        if wire.received != part.received:
            part.received, part.last_data_s = wire.received, now_s
        elif now_s - part.last_data_s > self._timeout_s:
            raise WireTimeoutError(f"no reply within {self._timeout_s:g} s")
        elif self._may_be_slow(part) and now_s - part.last_data_s >= CONNECT_PATIENCE_S:
            part.node.mark_unresponsive()
        return False

    def _may_be_slow(self, part: _InFlight) -> bool:
        """Return whether a server without an answer so far may still be marked unresponsive."""
        return self._multi_node and not part.node.unresponsive and not part.batch.confirming


def wait_for_any(dispatches: Iterable[Dispatch], runtime: Runtime, patience_s: float | None = None) -> None:
    """Wait until one of several dispatches has something to do, or a server may have been silent for `patience_s`."""
    waiting = list(dispatches)
    wires = [wire for dispatch in waiting for wire in dispatch.wires]
    wait_s = min(dispatch.wait_s() for dispatch in waiting)
    if wires:
        runtime.wait_progress(wires, wait_s if patience_s is None else min(wait_s, max(patience_s / 8, 0.001)))
    elif wait_s > 0:
        runtime.sleep(wait_s)
