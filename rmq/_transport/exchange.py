"""The state of calls to several servers, without I/O: which calls to send, results of replies, calls to send again.

redis-py's own retries are switched off: they would repeat a claim whose reply was lost, and the messages of the first
claim would be stuck until their leases expire. Here sends and reads are repeated after a lost reply. A claim, an ack or
a nack is repeated only if the server certainly did not execute it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from rmq._io.wire import pack
from rmq._model.replies import PartlySent
from rmq._model.times import monotonic_s
from rmq._servers.cluster_map import Redirect, hash_slot, parse_redirect
from rmq._servers.server_check import AOF_TROUBLE, not_executed
from rmq._servers.urls import Address
from rmq._transport.call import Call, T
from rmq._transport.refusals import UNREADABLE, error_of, reply_lost, unreadable
from rmq._transport.script_library import ScriptLibrary
from rmq.errors import DurabilityError, RedisUnavailableError, RmqError

FREE_REDIRECTS = 4
"""Number of redirections that are followed without a pause."""


UNCONFIRMED_S, SHORT_WAIT_MS = 10.0, 100
"""After replicas of a server did not confirm in time, wait only SHORT_WAIT_MS for it during the next UNCONFIRMED_S."""


class DurabilityBarrier:
    """WAIT or WAITAOF, which waits until earlier writes of its connection are confirmed. Thread-safe.

    Args:
        command: The command; its last argument is the timeout in ms.
        missing: Describes what is missing from a reply; empty if the writes are confirmed.
        short_wait: Whether there are other servers, which a server without confirmations must not delay.
    """

    def __init__(
        self, command: tuple[str | int, ...], missing: Callable[[Any], str], *, short_wait: bool = False
    ) -> None:
        self._command = command
        self._short_command = (*command[:-1], min(int(command[-1]), SHORT_WAIT_MS)) if short_wait else command
        self._missing = missing
        self._unconfirmed_s: dict[Address, float] = {}  # when a server fell short, by its address

    def command(self, address: Address) -> tuple[str | int, ...]:
        """Return the command for a server, with its timeout."""
        short_s = self._unconfirmed_s.get(address)
        return self._command if short_s is None or monotonic_s() - short_s > UNCONFIRMED_S else self._short_command

    def missing(self, address: Address, reply: Any) -> str:
        """Describe what is missing from a server's reply, or return "" if the writes are confirmed."""
        missing = self._missing(reply)
        if not missing:
            self._unconfirmed_s.pop(address, None)
        elif self.command(address) is self._command:  # the short wait proves nothing new
            self._unconfirmed_s[address] = monotonic_s()
        return missing


_LOAD, _ASKING, _CONFIRM = -1, -2, -3
"""Kinds of replies that do not belong to a call; the reply of a call is represented by its index."""


@dataclass(slots=True)
class RequestBatch:
    """Calls that are sent together to one node over one connection.

    Attributes:
        request: The packed commands.
        address: Address of the node.
        expected: The pending replies in order: the index of a call, or one of the constants above.
        unconfirmed: Indices and results of calls that wait for the durability confirmation.
        unloadable: The error with which the server refused to load a script; empty if it loaded all.
    """

    request: bytes
    address: Address
    expected: deque[int]
    unconfirmed: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])
    unloadable: str = ""

    @property
    def confirming(self) -> bool:
        """Whether only the reply to WAIT or WAITAOF is pending, which may take long."""
        return len(self.expected) == 1 and self.expected[0] == _CONFIRM

    @property
    def pending(self) -> list[int]:
        """The indices of calls without a result."""
        return [index for index in self.expected if index >= 0] + [index for index, _ in self.unconfirmed]


class Exchange:
    """The state of calls: those that are open (to be sent), and the results of the others.

    Args:
        calls: Any number of calls, on any nodes.
        scripts: The library with their texts and SHA-1.
        confirmation: The command that follows durable calls.

    Attributes:
        results: For each call its parsed reply or its error, until `take_settled` has returned it.
        last_problem: The last reason for sending a call again.
        pause_needed: Whether to pause before sending again, because the same problem is likely to recur.
    """

    def __init__(
        self, calls: Sequence[Call[Any]], scripts: ScriptLibrary, confirmation: DurabilityBarrier | None = None
    ) -> None:
        self.results: list[Any] = [None] * len(calls)
        self.last_problem = ""
        self.pause_needed = False
        self._calls = dict(enumerate(calls))  # those without a result: a numbered call is closed once it is dropped
        self._scripts = scripts
        self._confirmation = confirmation
        self._open = list(range(len(calls)))
        self._settled: list[int] = []
        self._unloaded: set[int] = set()
        self._maybe_executed: set[int] = set()  # sent, the reply lost, to be sent again: carried out or not
        self._asked: dict[int, Address] = {}
        self._asking: set[int] = set()  # sent with ASKING
        self._moving: dict[int, Address] = {}  # refused by this server, since their hash slot moves
        self._redirects_left = FREE_REDIRECTS
        self._redirected = False
        self._moved: list[Redirect] = []

    @classmethod
    def unsent(cls, call: Call[Any], scripts: ScriptLibrary, problem: str) -> Exchange:
        """Return the state of one call that did not reach a server."""
        exchange = cls([call], scripts)
        exchange.not_sent((), problem)
        return exchange

    @classmethod
    def after_refusal(cls, call: Call[Any], scripts: ScriptLibrary, address: Address, message: str) -> Exchange:
        """Return the state of one call after an error reply, see `take_error`."""
        exchange = cls([call], scripts)
        exchange.take_error(exchange.as_sent(address), message)
        return exchange

    @classmethod
    def after_loss(cls, call: Call[Any], scripts: ScriptLibrary, address: Address, problem: str) -> Exchange:
        """Return the state of one call whose connection broke, see `lost`."""
        exchange = cls([call], scripts)
        exchange.lost(exchange.as_sent(address), problem)
        return exchange

    @property
    def maybe_executed(self) -> bool:
        """True if the reply to a call that is to be sent again was lost."""
        return bool(self._maybe_executed)

    @property
    def done(self) -> bool:
        """True if every call has a result."""
        return not self._calls

    @property
    def open(self) -> bool:
        """True if calls are waiting to be sent."""
        return bool(self._open)

    @property
    def partly_done(self) -> bool:
        """True if some calls have a result and others do not."""
        return 0 < len(self._calls) < len(self.results)

    def take_open(self) -> Iterator[tuple[int, Call[Any], Address | None]]:
        """Yield the open calls with the address of an ASK redirection, if any. They are no longer open then."""
        taken, self._open = sorted(self._open), []  # keeps the order of the calls of a slot
        self.pause_needed = False
        self._redirects_left -= self._redirected
        self._redirected = False
        for index in taken:
            yield index, self._calls[index], self._asked.get(index)

    def take_moved(self) -> list[Redirect]:
        """Return the MOVED redirections received since the last call."""
        moved, self._moved = self._moved, []
        return moved

    def not_sent(self, indices: Sequence[int], problem: str) -> None:
        """Record that calls did not reach a server: they are open again."""
        for index in indices:
            self._asked.pop(index, None)
        self._open += indices
        self.last_problem = problem
        self.pause_needed = True

    def settle(self, index: int, result: Any) -> None:
        """Record the result of a call."""
        self.results[index] = result
        self._settled.append(index)
        del self._calls[index]

    def take_settled(self) -> list[tuple[int, Any]]:
        """Remove and return the new results, with the indices of their calls."""
        settled = [(index, self.results[index]) for index in self._settled]
        for index in self._settled:
            self.results[index] = None
        self._settled.clear()
        return settled

    def give_up(self, deadline_s: float, server: str = "Redis") -> None:
        """Fail the open calls because the deadline has passed."""
        problem = f"no answer from {server} within {deadline_s:g} s ({self.last_problem})"
        for index in self._open:
            call = self._calls[index]
            moving = self._moving.get(index)
            text = problem if moving is None else _still_moving(call, moving, deadline_s)
            lost = index in self._maybe_executed
            self.settle(index, reply_lost(call, text) if lost else call.error(RedisUnavailableError, text))
        self._open = []

    def request_batch(
        self, indices: Sequence[int], address: Address, *, sharded: bool = False, cluster: bool = False
    ) -> RequestBatch:
        """Build the request batch of calls for one node; for `sharded` and `cluster` see `ScriptLibrary.request`."""
        parts: list[bytes] = []
        expected: deque[int] = deque()
        loaded: set[str] = set()
        for index in indices:
            name = self._calls[index].script
            if index in self._unloaded and name not in loaded:
                loaded.add(name)
                parts.append(pack("SCRIPT", "LOAD", self._scripts[name].text))
                expected.append(_LOAD)
            self._unloaded.discard(index)
        for index in indices:
            self._asking.discard(index)
            if self._asked.pop(index, None) is not None:
                self._asking.add(index)
                parts.append(pack("ASKING"))
                expected.append(_ASKING)
            parts.append(self._scripts.request(self._calls[index], sharded=sharded, cluster=cluster))
            expected.append(index)
        if self._confirmation is not None and any(self._calls[index].durable for index in indices):
            parts.append(pack(*self._confirmation.command(address)))
            expected.append(_CONFIRM)
        return RequestBatch(b"".join(parts), address, expected)

    def as_sent(self, address: Address) -> RequestBatch:
        """Build the request batch for calls that were already sent; their replies are still to be recorded."""
        return self.request_batch([index for index, _, _ in self.take_open()], address)

    def take_reply(self, batch: RequestBatch, reply: Any) -> None:
        """Record the next reply."""
        index = batch.expected.popleft()
        if index == _CONFIRM and self._confirmation is not None:
            self._confirm(batch, self._confirmation.missing(batch.address, reply))
        if index < 0:
            return
        call = self._calls[index]
        try:
            result = call.parse(reply)
        except (RmqError, *UNREADABLE) as error:
            result = unreadable(call, error)
        if index in self._maybe_executed:
            several = isinstance(result, list)  # of several slots
            parts = [_heard_again(call, part) for part in (cast("list[Any]", result) if several else [result])]
            result = parts if several else parts[0]
        if call.durable and self._confirmation is not None:
            batch.unconfirmed.append((index, result))
        else:
            self.settle(index, result)

    def take_error(self, batch: RequestBatch, message: str) -> None:
        """Record the next reply, an error: the call is open again if it was not executed, otherwise it fails."""
        index = batch.expected.popleft()
        if index == _CONFIRM:
            self._confirm(batch, message)
        elif index == _LOAD and not not_executed(message):
            batch.unloadable = message
        if index < 0:
            return
        if message.startswith("NOSCRIPT") and batch.unloadable:
            message = f"the script cannot be loaded: {batch.unloadable}"
        if not_executed(message):
            self._reopen(index, message, batch.address)
        elif AOF_TROUBLE in message:
            self._lose_reply(index, message)
        else:
            call = self._calls[index]
            error = error_of(call, message)
            if index in self._maybe_executed:
                error = _refused_again(call, error)
            self.settle(index, error)

    def lost(self, batch: RequestBatch, problem: str) -> None:
        """Record that the connection broke: calls that are safe to repeat are open again, the others fail."""
        for index in batch.pending:
            self._lose_reply(index, problem)
        batch.unconfirmed.clear()
        batch.expected.clear()

    def _confirm(self, batch: RequestBatch, missing: str) -> None:
        for index, result in batch.unconfirmed:
            parts = cast("list[Any]", result) if isinstance(result, list) else []
            if missing and any(isinstance(part, RmqError) for part in parts):  # of several slots: these stored nothing
                error = self._unconfirmed(index, missing)
                self.settle(index, [part if isinstance(part, RmqError) else error for part in parts])
            else:
                self.settle(index, self._unconfirmed(index, missing) if missing else result)
        batch.unconfirmed.clear()

    def _reopen(self, index: int, message: str, address: Address) -> None:
        """Reopen a call that the server refused before executing it."""
        self._open.append(index)
        self.last_problem = message
        if message.startswith("TRYAGAIN"):
            self._moving[index] = address
        elif not message.startswith(("ASK ", "NOSCRIPT")):
            self._moving.pop(index, None)
        if message.startswith("NOSCRIPT"):
            self._unloaded.add(index)
            if index in self._asking:  # the importing node lacks the script, not the exporting one
                self._asked[index] = address
            return
        redirect = parse_redirect(message, address)
        if redirect is None or self._redirects_left < 1:
            self.pause_needed = True
        if redirect is None:
            return
        self._redirected = True
        if redirect.once:
            self._asked[index] = redirect.address
        else:
            self._moved.append(redirect)

    def _lose_reply(self, index: int, problem: str) -> None:
        """Record that the reply to a call was lost: it is open again if it is safe to repeat, otherwise it fails."""
        call = self._calls[index]
        self.last_problem = problem
        self.pause_needed = True
        if call.repeatable:
            self._open.append(index)
            self._maybe_executed.add(index)
        else:
            what_then = call.durable or "If it was executed, its messages are redelivered when their leases expire"
            self.settle(index, reply_lost(call, f"{problem}. {what_then}"))

    def _unconfirmed(self, index: int, missing: str) -> DurabilityError:
        call = self._calls[index]
        error = call.error(
            DurabilityError,
            f"{call.target}: stored on the master, but not confirmed: {missing}; the write is lost if the master "
            f"fails now. {call.durable}",
        )
        error.missing = missing
        return error


def _still_moving(call: Call[Any], address: Address, waited_s: float) -> str:
    number = hash_slot(call.keys[0])
    return (
        f"{call.target} is in hash slot {number}, which is moving to another server of the cluster; the move did not "
        f"finish within {waited_s:g} s (TRYAGAIN), and {call.operation} was not executed. If the move was interrupted, "
        f"complete it: redis-cli --cluster fix {address}"
    )


def _heard_again(call: Call[Any], result: Any) -> Any:
    """Return the result of a reply to a call that was sent a second time."""
    if isinstance(result, PartlySent):
        return replace(result, repeated=True)
    return _refused_again(call, result) if isinstance(result, RmqError) else result


def _refused_again(call: Call[Any], error: RmqError) -> RmqError:
    """Return the error for a call that was refused when sent again; the first attempt may have been executed."""
    return reply_lost(call, f"its repeat was refused: {error}")


def results_of(replies: Iterable[T | RmqError]) -> list[T]:
    """Return the results of calls; raise the first error, if there is one."""
    results: list[T] = []
    for reply in replies:
        if isinstance(reply, RmqError):
            raise reply
        results.append(reply)
    return results
