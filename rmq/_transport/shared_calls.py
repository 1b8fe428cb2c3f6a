"""Carries out small calls that many threads or tasks make one at a time: those made at the same time share round trips.

Calls of one script that may be joined become one script call, see `Joining`; others go out in the same request. Nothing
is retried here: whoever gets no reply goes on alone, from the state that its `Exchange` has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rmq._io.backend import Runtime
from rmq._io.wire import NOTHING, ReplyError, Wire, WireBrokenError, WireTimeoutError
from rmq._model.times import monotonic_s
from rmq._servers.combiner import WaitingCall
from rmq._servers.nodes import Node, Router
from rmq._servers.server_check import AOF_TROUBLE
from rmq._servers.urls import Address
from rmq._transport.call import Call, join
from rmq._transport.exchange import Exchange
from rmq._transport.script_library import ScriptLibrary
from rmq.errors import RmqError

MOST_COST = 65_536
"""Maximum cost of a call that may share a round trip, as the bytes of a send: the others wait for it."""


@dataclass(slots=True)
class _Round:
    """Calls that one request carries, how long that took, and why it did not reach the server, if so."""

    waiting: Sequence[WaitingCall]
    took_s: float = 0.0
    problem: str = ""


class SharedCalls:
    """Carries out calls that may share round trips. Thread-safe.

    Args:
        router: The router that finds their servers.
        scripts: The scripts.
        runtime: The runtime: threads, or an event loop.
    """

    def __init__(self, router: Router, scripts: ScriptLibrary, runtime: Runtime) -> None:
        self._router, self._scripts, self._runtime = router, scripts, runtime
        self._callers = {runtime.interrupted()}
        """Callers whose call must not wait for others: those that have one under way, such as a thread whose logging
        handler sends, and the main thread, where a signal handler may send or raise at any place."""

    def execute(self, call: Call[Any], alone: Callable[[Node, Call[Any]], Any]) -> Any:
        """Execute one call; return its reply, or after a failure an `Exchange` that continues from there.

        Args:
            call: The call.
            alone: Does the same for one call that shares nothing.
        """
        try:
            node = self._router.route(call.keys[0])
        except WireBrokenError as error:
            return Exchange.unsent(call, self._scripts, str(error))
        caller, callers = self._runtime.caller(), self._callers
        if not caller:
            return self._share(node, call, alone)
        if caller in callers:
            return alone(node, call)
        callers.add(caller)
        try:
            return self._share(node, call, alone)
        finally:
            callers.discard(caller)

    def _share(self, node: Node, call: Call[Any], alone: Callable[[Node, Call[Any]], Any]) -> Any:
        combiner = node.combiner
        waiting = combiner.enter(call)
        if waiting is not None:
            try:
                waiting.wait()
            except BaseException:
                combiner.give_up(waiting)
                raise
            if not waiting.combines:
                return waiting.outcome
            round_ = _Round(combiner.take(waiting))
            if len(round_.waiting) > 1:
                self._runtime.to_its_end(partial(self._carry_out, node, round_), partial(self._end, node, round_))
                return waiting.outcome
        started_s = monotonic_s()
        try:
            outcome = alone(node, call)
        except BaseException:
            combiner.leave()
            raise
        if isinstance(outcome, Exchange) and outcome.pause_needed:
            combiner.leave(unsent=self._not_reached(outcome.last_problem))
        else:
            combiner.leave(monotonic_s() - started_s)
        return outcome

    def _not_reached(self, problem: str) -> Callable[[Call[Any]], Exchange]:
        """Return what makes the outcome of calls that wait for a server that could not be reached.

        They do not try it one after the other.
        """
        return lambda call: Exchange.unsent(call, self._scripts, problem)

    def _carry_out(self, node: Node, round_: _Round) -> None:
        """Carry out calls that wait for a server in one round trip, and set their outcomes."""
        started_s = monotonic_s()
        try:
            self._exchange(node, round_.waiting)
            round_.took_s = monotonic_s() - started_s
        except RmqError as error:
            round_.problem = str(error)

    def _end(self, node: Node, round_: _Round) -> None:
        for each in round_.waiting:
            if each.outcome is NOTHING:  # it was not sent
                each.outcome = Exchange.unsent(each.call, self._scripts, round_.problem)
        problem = round_.problem
        node.combiner.leave(round_.took_s, round_.waiting, self._not_reached(problem) if problem else None)

    def _exchange(self, node: Node, waiting: Sequence[WaitingCall]) -> None:
        sharded, cluster = self._router.sharded_hints, not self._router.multi_slot_scripts
        groups = groups_of(waiting, not cluster)
        calls = [join([each.call for each in group]) for group in groups]
        request = b"".join([self._scripts.request(call, sharded=sharded, cluster=cluster) for call in calls])
        if node.unresponsive:
            raise WireTimeoutError(f"Redis at {node.address} does not answer")
        wire = node.idle_wire() or node.checkout()
        try:
            wire.send(request)
            for group in groups:
                for each, outcome in zip(group, self._outcomes(wire, group, node.address), strict=True):
                    each.outcome = outcome
        except BaseException as error:  # an unread reply would be read by the next user of the connection
            wire.close()
            if isinstance(error, WireTimeoutError):
                node.mark_unresponsive()
            for each in waiting:
                if each.outcome is NOTHING:
                    each.outcome = Exchange.after_loss(each.call, self._scripts, node.address, str(error))
            raise
        node.give_back(wire)

    def _outcomes(self, wire: Wire, group: Sequence[WaitingCall], address: Address) -> Sequence[Any]:
        """Read the reply to a call, or to several calls that are joined; return the outcome of each."""
        try:
            reply = wire.read()
        except ReplyError as error:
            if len(group) > 1 and AOF_TROUBLE not in str(error):  # nothing was done: no right to one slot, for one
                return [Exchange([each.call], self._scripts) for each in group]
            return [Exchange.after_refusal(each.call, self._scripts, address, str(error)) for each in group]
        joining = group[0].call.joining
        if joining is None or len(group) == 1:
            return [reply]
        return [
            self._refused(each.call, address, part.decode(errors="replace")) if isinstance(part, bytes) else part
            for each, part in zip(group, joining.replies(reply), strict=True)
        ]

    def _refused(self, call: Call[Any], address: Address, text: str) -> Exchange:
        """Return the outcome of a joined call that was refused: `text` is that of an error within the script."""
        after = Exchange.after_loss if AOF_TROUBLE in text else Exchange.after_refusal
        return after(call, self._scripts, address, text)


def groups_of(calls: Sequence[WaitingCall], multi_slot_scripts: bool) -> list[list[WaitingCall]]:
    """Group calls by the script call that carries them out: those that may be joined, or one alone.

    Args:
        calls: The calls.
        multi_slot_scripts: Whether one script call may access several slots.
    """
    groups: dict[Hashable, list[WaitingCall]] = {}
    for number, each in enumerate(calls):
        call, joining = each.call, each.call.joining
        slot = "" if multi_slot_scripts else call.keys[0]
        kind = number if joining is None else (call.script, slot, *call.args[: joining.head])
        groups.setdefault(kind, []).append(each)
    return [*groups.values()]
