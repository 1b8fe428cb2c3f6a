"""Calls of scripts and plain commands, with the functions that parse their replies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, cast

from rmq._io.wire import Argument
from rmq.errors import RmqError

S = TypeVar("S")
T = TypeVar("T")
E = TypeVar("E", bound=RmqError)

Refusals = Mapping[str, Callable[["Call[Any]", Sequence[str]], RmqError]]
"""Maps an error code to a function that makes the caller's error from the call and the words after the code."""

NO_REFUSALS: Refusals = MappingProxyType({})


class Joining(NamedTuple):
    """How calls of one script may be joined to one call, each with its own keys, arguments and reply.

    Attributes:
        head: Number of arguments before those of a call's own; calls are joined if these are equal.
        replies: Splits the reply of the joined call; the text of an error stands for the reply of a refused part.
    """

    head: int
    replies: Callable[[Any], Sequence[Any]]


class Call(NamedTuple, Generic[T]):
    """One script call on one slot.

    Attributes:
        script: Name of the script; empty for a plain command.
        keys: The keys of the slot; for a plain command the key that selects the server.
        args: The arguments.
        parse: Function that converts the reply to the result.
        repeatable: Whether the call may be sent again after its reply was lost.
        topic: Topic name, for errors.
        slot: Slot number, for errors.
        durable: Empty if the call does not wait for the client's durability level. Otherwise a sentence for
            `DurabilityError` on the effect of repeating it.
        refusals: Functions that make the caller's error, by the error codes of this script.
        joining: How it may be joined with calls of the same script; `None` if it needs a call of its own.
    """

    script: str
    keys: tuple[str, ...]
    args: Sequence[Argument]
    parse: Callable[[Any], T]
    repeatable: bool
    topic: str
    slot: int
    durable: str = ""
    refusals: Refusals = NO_REFUSALS
    joining: Joining | None = None

    @property
    def target(self) -> str:
        """Description of the slot, or of the key of a plain command if it has one, for errors."""
        if self.script:
            return f"slot {self.slot} of topic {self.topic}"
        return f"key {self.keys[0]}" if self.keys[0] else "the server"

    @property
    def operation(self) -> str:
        """Description of the script or command, for errors."""
        return f"script {self.script}" if self.script else f"command {self.args[0]}"

    def error(self, kind: type[E], text: str) -> E:
        """Return an error with this call's topic and slot."""
        return kind(text, topic=self.topic, slot=self.slot)

    def then(self, step: Callable[[T], S]) -> Call[S]:
        """Return the same call with `step` applied to its parsed reply."""

        def parse(reply: Any) -> S:
            return step(self.parse(reply))

        return cast("Call[S]", self._replace(parse=parse))


def join(calls: Sequence[Call[Any]]) -> Call[Any]:
    """Return one call in place of calls that may be joined, whose `joining` splits its reply. It joins no others."""
    first, joining = calls[0], calls[0].joining
    if joining is None or len(calls) == 1:
        return first
    keys = tuple(chain.from_iterable(call.keys for call in calls))
    own = chain.from_iterable(call.args[joining.head :] for call in calls)
    return first._replace(keys=keys, args=[*first.args[: joining.head], *own], joining=None)


def plain(*args: Argument, key: str | bytes | None = None) -> Call[Any]:
    """Return a call of a plain command that may be repeated. Its result is the unparsed reply.

    Args:
        args: The command.
        key: The key that selects the server; by default the first argument after the command's name.
    """
    target = key if key is not None else args[1] if len(args) > 1 else ""
    name = target.decode(errors="surrogateescape") if isinstance(target, bytes) else str(target)
    return Call("", (name,), args, _as_it_is, True, "", 0)


def _as_it_is(reply: Any) -> Any:
    return reply


def is_one(reply: object) -> bool:
    """Parse a reply of 1 or 0."""
    return reply == b"1"
