"""Rounds of calls with servers, without the I/O: what to send where, what each reply means, what may be repeated.

redis-py's own retries are switched off: they would repeat a claim whose reply was lost and strand what it claimed.
Here sends and reads are repeated, and a claim, an ack or a nack only when it certainly was not carried out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from rmq._io.wire import pack
from rmq._model.replies import PartlySent
from rmq._model.times import monotonic_s
from rmq._transport.call import Call
from rmq._transport.cluster_map import Redirect, hash_slot, parse_redirect
from rmq._transport.refusals import AOF_TROUBLE, error_of, parsed, reply_lost
from rmq._transport.script_library import ScriptLibrary
from rmq._transport.urls import Address
from rmq.errors import DurabilityError, RedisUnavailableError, RmqError

_NOT_EXECUTED = (
    "NOSCRIPT", "LOADING", "BUSY ", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "NOREPLICAS", "MISCONF",
    "MOVED ", "ASK ",
)  # fmt: skip
_IN_SCRIPT = (": -READONLY ", ": -NOREPLICAS ", ": -MISCONF Redis is configured to save RDB ")
"""How Redis 6.2 puts them within a script: none of them begins in the midst of one, so the first write was refused."""

FREE_REDIRECTS = 4
"""So many redirections are followed without a pause."""


def not_executed(message: str) -> bool:
    """Return whether an error reply says that the server did not begin: repeating is safe for every call."""
    if AOF_TROUBLE in message:  # returned by a script that tried one write first, and not raised in the midst of one
        return message.startswith("@user_script")
    return message.startswith(_NOT_EXECUTED) or any(code in message for code in _IN_SCRIPT)


UNCONFIRMED_S, SHORT_WAIT_MS = 10.0, 100
"""A server whose replicas did not confirm in time is waited for no longer than so many ms, for so many seconds."""


class DurabilityBarrier:
    """A command that waits until earlier sends of its connection are safe. Thread-safe.

    Args:
        command: The command; its last part is how long the server waits, in ms.
        missing: Says what its reply lacks; empty when all is well.
        short_wait: Whether there are other servers, which one whose replicas do not confirm shall not hold up.
    """

    def __init__(
        self, command: tuple[str | int, ...], missing: Callable[[Any], str], *, short_wait: bool = False
    ) -> None:
        self._command = command
        self._short_command = (*command[:-1], min(int(command[-1]), SHORT_WAIT_MS)) if short_wait else command
        self._missing = missing
        self._unconfirmed_s: dict[Address, float] = {}  # when a server fell short, by its address

    def command(self, address: Address) -> tuple[str | int, ...]:
        """Return the command for a server."""
        short_s = self._unconfirmed_s.get(address)
        return self._command if short_s is None or monotonic_s() - short_s > UNCONFIRMED_S else self._short_command

    def missing(self, address: Address, reply: Any) -> str:
        """Return what a server's reply lacks, in words; empty when all is well."""
        missing = self._missing(reply)
        if not missing:
            self._unconfirmed_s.pop(address, None)
        elif self.command(address) is self._command:  # a hurried one says nothing new
            self._unconfirmed_s[address] = monotonic_s()
        return missing


_LOAD, _ASKING, _CONFIRM = -1, -2, -3
"""What a reply may be about beside a call, which its index stands for."""


@dataclass(slots=True)
class RequestBatch:
    """Calls on their way to one node over one connection.

    Attributes:
        request: What to send.
        address: Where it goes.
        expected: What each reply that is still to come is about, in order.
        unconfirmed: Calls whose results count only with the confirmation, and these results.
        unloadable: Why the server did not load a script; empty where it loaded all.
    """

    request: bytes
    address: Address
    expected: deque[int]
    unconfirmed: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])
    unloadable: str = ""

    @property
    def confirming(self) -> bool:
        """Whether nothing is still to come but the confirmation, which takes its time."""
        return len(self.expected) == 1 and self.expected[0] == _CONFIRM

    @property
    def pending(self) -> list[int]:
        """The calls that have no result yet."""
        return [index for index in self.expected if index >= 0] + [index for index, _ in self.unconfirmed]


class Exchange:
    """The state of some calls: which are open, and what the others answered.

    Args:
        calls: What to carry out, in any number, on any nodes.
        scripts: Where their texts and SHA-1 come from.
        confirmation: What has to follow durable calls.

    Attributes:
        results: Per call its parsed reply, or the error that it met.
        last_problem: The last reason for which something has to be repeated.
        pause_needed: Whether repeating at once would meet the same trouble.
    """

    def __init__(
        self, calls: Sequence[Call[Any]], scripts: ScriptLibrary, confirmation: DurabilityBarrier | None = None
    ) -> None:
        self.results: list[Any] = [None] * len(calls)
        self.last_problem = ""
        self.pause_needed = False
        self._calls = calls
        self._scripts = scripts
        self._confirmation = confirmation
        self._open = list(range(len(calls)))
        self._left = len(calls)
        self._unloaded: set[int] = set()
        self._maybe_executed: set[int] = set()  # sent, the reply lost, to be sent again: carried out or not
        self._asked: dict[int, Address] = {}
        self._asking: set[int] = set()  # sent with ASKING
        self._moving: dict[int, Address] = {}  # refused by this server, since their hash slot moves
        self._redirects_left = FREE_REDIRECTS
        self._redirected = False
        self._moved: list[Redirect] = []

    @property
    def done(self) -> bool:
        """Whether every call has a result."""
        return not self._left

    @property
    def open(self) -> bool:
        """Whether some calls are to be sent."""
        return bool(self._open)

    @property
    def partly_done(self) -> bool:
        """Whether some calls have a result and others have not."""
        return 0 < self._left < len(self._calls)

    def take_open(self) -> Iterator[tuple[int, Call[Any], Address | None]]:
        """Yield the open calls, each with the address that it was sent to by an ASK, if any; none is open then."""
        taken, self._open = sorted(self._open), []  # the order of a slot is kept
        self.pause_needed = False
        self._redirects_left -= self._redirected
        self._redirected = False
        for index in taken:
            yield index, self._calls[index], self._asked.get(index)

    def take_moved(self) -> list[Redirect]:
        """Return what nodes have said about where hash slots are, and forget it."""
        moved, self._moved = self._moved, []
        return moved

    def not_sent(self, indices: Sequence[int], problem: str) -> None:
        """Note that taken calls did not reach a server: they may be repeated."""
        for index in indices:
            self._asked.pop(index, None)
        self._open += indices
        self.last_problem = problem
        self.pause_needed = True

    def settle(self, index: int, result: Any) -> None:
        """Book the result of a taken call."""
        self.results[index] = result
        self._left -= 1

    def give_up(self, deadline_s: float, server: str = "Redis") -> None:
        """Note that the deadline has passed: what is open fails."""
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
        """Put taken calls together for one node; `sharded`, `cluster`: see `ScriptLibrary.request`."""
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
        """Take the next reply in order."""
        index = batch.expected.popleft()
        if index == _CONFIRM and self._confirmation is not None:
            self._confirm(batch, self._confirmation.missing(batch.address, reply))
        if index < 0:
            return
        call = self._calls[index]
        try:
            result = parsed(call, reply)
        except RmqError as error:
            result = error
        if index in self._maybe_executed:
            several = isinstance(result, list)  # of several slots
            parts = [_heard_again(call, part) for part in (cast("list[Any]", result) if several else [result])]
            result = parts if several else parts[0]
        if call.durable and self._confirmation is not None:
            batch.unconfirmed.append((index, result))
        else:
            self.settle(index, result)

    def take_error(self, batch: RequestBatch, message: str) -> None:
        """Take the next reply in order, an error: repeat what was not carried out, else it is the result."""
        index = batch.expected.popleft()
        if index == _CONFIRM:
            self._confirm(batch, message)
        elif index == _LOAD and not not_executed(message):
            batch.unloadable = message
        if index < 0:
            return
        if message.startswith("NOSCRIPT") and batch.unloadable:
            message = f"it cannot be loaded: {batch.unloadable}"
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
        """Note that the connection broke: what may be repeated is open again, the rest may have been carried out."""
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
        """Note that a call was refused without having begun."""
        self._open.append(index)
        self.last_problem = message
        if message.startswith("TRYAGAIN"):
            self._moving[index] = address
        elif not message.startswith(("ASK ", "NOSCRIPT")):
            self._moving.pop(index, None)
        if message.startswith("NOSCRIPT"):
            self._unloaded.add(index)
            if index in self._asking:  # the script is missing there, not where the hash slot comes from
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
        """Note that the reply to a call was lost: it is open again if it may be repeated."""
        call = self._calls[index]
        self.last_problem = problem
        self.pause_needed = True
        if call.repeatable:
            self._open.append(index)
            self._maybe_executed.add(index)
        else:
            what_then = call.durable or "If it was carried out, the lease settles it"
            self.settle(index, reply_lost(call, f"{problem}. {what_then}"))

    def _unconfirmed(self, index: int, missing: str) -> DurabilityError:
        call = self._calls[index]
        error = call.error(
            DurabilityError,
            f"{call.target}: stored on the master, but not confirmed: {missing}; it may get lost if the master fails "
            f"now. {call.durable}",
        )
        error.missing = missing
        return error


def _still_moving(call: Call[Any], address: Address, waited_s: float) -> str:
    number = hash_slot(call.keys[0])
    return (
        f"{call.target} is in hash slot {number}, which is moving to another server of the cluster, and that did not "
        f"end within {waited_s:g} s (TRYAGAIN); {call.operation} was not carried out. If the move was broken off, end it: "
        f"redis-cli --cluster fix {address}"
    )


def _heard_again(call: Call[Any], result: Any) -> Any:
    """Return what a reply means that came to the second sending."""
    if isinstance(result, PartlySent):
        return replace(result, repeated=True)
    return _refused_again(call, result) if isinstance(result, RmqError) else result


def _refused_again(call: Call[Any], error: RmqError) -> RmqError:
    """Return what a refusal means of which the first sending may have been carried out: a fixed time was ahead then."""
    return reply_lost(call, f"sent again, it was refused: {error}")


def raise_first(results: Sequence[Any]) -> None:
    """Raise the first error among results, if there is one."""
    for result in results:
        if isinstance(result, RmqError):
            raise result
