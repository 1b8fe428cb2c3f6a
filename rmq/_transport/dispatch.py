"""Calls on their way to several servers at once: replies are taken as they come, whichever server sends them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rmq._io.backend import Runtime
from rmq._io.wire import NOTHING, ReplyError, Wire, WireBrokenError, WireTimeoutError
from rmq._model.retry import draw_jitter
from rmq._model.times import monotonic_s
from rmq._transport.exchange import Exchange, RequestBatch
from rmq._transport.node import Node
from rmq._transport.router import Router
from rmq.errors import RmqError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 1.0

CONNECT_PATIENCE_S = 0.25
"""How long calls wait for a new connection to one server, where there are calls for other servers."""


class Awaited:
    """A reply that a server still owes."""


AWAITED: Final = Awaited()
"""Stands for the result of a call that a server still owes, in `Dispatch.results`."""


@dataclass(slots=True)
class _InFlight:
    """A request that was sent to one node."""

    batch: RequestBatch
    node: Node
    wire: Wire
    last_data_s: float
    received: int = 0


class Dispatch:
    """Some calls: sent, repeated where that is safe, and answered. For one thread at a time.

    The caller must ask for all results, or `close` it: until then connections are taken.

    Args:
        exchange: The state of the calls.
        router: Finds their servers.
        runtime: How to wait.
        timeout_s: How long to wait for a server that sends nothing.
        deadline_s: How long to repeat what may be repeated.
        started_s: Since when, on the clock of `monotonic_s`; `None` for from now on.
        server: What errors call the servers.
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
        """The connections that replies are awaited from."""
        return [part.wire for part in self._in_flight]

    def send(self) -> None:
        """Send what is open, to each node its part."""
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

    def step(self) -> bool:
        """Take what has come and send what is due, without waiting for replies; return whether all is done."""
        self._receive(alone=False)
        if self._exchange.open and self._stalled:
            self._repeat_in_time()
        return self._exchange.done

    def wait_s(self) -> float:
        """Return for how long `step` has nothing to do unless a reply comes, in seconds."""
        now_s = monotonic_s()
        ends = [
            part.last_data_s + (CONNECT_PATIENCE_S if self._may_be_slow(part) else self._timeout_s)
            for part in self._in_flight
        ]
        if self._exchange.open and self._stalled:
            ends.append(self._again_s)
        return max(0.0, min(ends, default=now_s) - now_s)

    def results(self, patience_s: float | None = None, *, leave: bool = False) -> list[Any]:
        """Wait for the results.

        Args:
            patience_s: Where there are other servers, wait no longer than this for one that sends nothing, once some
                calls have a result. By default as long as the client waits.
            leave: Do so even if no call has a result, and leave what is under way as it is: ask again for it. What
                could not be sent is still repeated until then.

        Returns:
            Per call its parsed reply, the `RmqError` it met, or `AWAITED` where `leave` is set and it is still owed.
        """
        try:
            self._wait(None if not self._multi_node else patience_s, leave)
        except BaseException:  # a reply left behind would be read by the next caller
            self.close()
            raise
        results = self._exchange.results
        if not self._in_flight:
            return results
        pending = {index for part in self._in_flight for index in part.batch.pending}
        return [AWAITED if index in pending else result for index, result in enumerate(results)]

    def close(self) -> None:
        """Let go of what is under way: nobody asks for its replies any more."""
        for part in self._in_flight:
            part.wire.close()
        self._in_flight = []

    def _wait(self, patience_s: float | None, leave: bool) -> None:
        exchange, started_s = self._exchange, monotonic_s()
        while True:
            self._receive(alone=patience_s is None and len(self._in_flight) == 1)
            if exchange.done:
                return
            over_s = None
            if patience_s is not None and (leave or exchange.partly_done):
                if self._impatient(started_s, patience_s):
                    self._break_off(patience_s, leave)
                    return
                over_s = started_s + patience_s if exchange.partly_done else None
            if exchange.open and self._stalled and not self._repeat_in_time(over_s):
                continue
            wait_s = self.wait_s()
            if patience_s is not None and self._in_flight:
                wait_s = min(wait_s, max(patience_s / 8, 0.001))
            _wait(self._runtime, self.wires, wait_s)

    @property
    def _stalled(self) -> bool:
        """True if every request in flight is to an unresponsive server; unsent calls should not wait for those."""
        return all(part.node.unresponsive for part in self._in_flight)

    def _impatient(self, started_s: float, patience_s: float) -> bool:
        """Return whether all servers that still owe something have sent nothing for so long."""
        if not self._in_flight:
            return self._only_unresponsive
        now_s = monotonic_s()
        return all(now_s - max(part.last_data_s, started_s) >= patience_s for part in self._in_flight)

    def _break_off(self, patience_s: float, leave: bool) -> None:
        for part in self._in_flight:
            if patience_s:
                part.node.mark_unresponsive()
            if not leave:
                part.wire.close()
                self._exchange.lost(part.batch, "no reply in time")
        if not leave:
            self._in_flight = []
        self._exchange.give_up(patience_s, self._server)

    def _repeat_in_time(self, over_s: float | None = None) -> bool:
        """Send again what is open, once its pause is over; at the deadline it fails. Return whether it waits."""
        exchange, now_s = self._exchange, monotonic_s()
        if exchange.pause_needed and not self._again_s:
            self._router.invalidate()
            self._again_s = now_s + self._pause_s * (0.5 + draw_jitter() / 2)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        end_s = self._started_s + self._deadline_s
        if max(now_s, self._again_s) > (end_s if over_s is None else min(end_s, over_s)):
            exchange.give_up(self._deadline_s, self._server)
            return False
        if now_s < self._again_s:
            return True
        self._again_s = 0.0
        self.send()
        return False

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
        except RmqError as error:  # it refuses us: that is no reason to drop what others have been sent
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
        """Take the replies that have come; all of them where there is only one server to wait for."""
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
        """Take what has come over one connection; return whether that was all."""
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
            raise WireTimeoutError("no reply in time")
        elif self._may_be_slow(part) and now_s - part.last_data_s >= CONNECT_PATIENCE_S:
            part.node.mark_unresponsive()
        return False

    def _may_be_slow(self, part: _InFlight) -> bool:
        """Return whether a server that has not answered so far may be only slow."""
        return self._multi_node and not part.node.unresponsive and not part.batch.confirming


def wait_for_any(dispatches: Iterable[Dispatch], runtime: Runtime) -> None:
    """Wait until one of some has something to do."""
    waiting = list(dispatches)
    wait_s = min((dispatch.wait_s() for dispatch in waiting), default=0.0)
    if wait_s > 0:
        _wait(runtime, [wire for dispatch in waiting for wire in dispatch.wires], wait_s)


def _wait(runtime: Runtime, wires: Sequence[Wire], wait_s: float) -> None:
    if wires:
        runtime.wait_progress(wires, wait_s)
    elif wait_s > 0:
        runtime.sleep(wait_s)
