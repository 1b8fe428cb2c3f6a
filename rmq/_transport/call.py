"""One call of a script, or one plain command, and how its reply is read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, cast

from rmq._io.wire import Argument
from rmq.errors import RmqError

S = TypeVar("S")
T = TypeVar("T")
E = TypeVar("E", bound=RmqError)

PUBLISH, SHARDED_PUBLISH = "PUBLISH", "SPUBLISH"
"""Command for wake hints. A call has the first; whoever sends it puts the second where hints go by sharded pub/sub."""


Refusals = Mapping[str, Callable[["Call[Any]", Sequence[str]], RmqError]]
"""Takes the call, and the words behind the code."""

NO_REFUSALS: Refusals = MappingProxyType({})


class Call(NamedTuple, Generic[T]):
    """One script call on one slot.

    Attributes:
        script: Name of the script; empty for a plain command.
        keys: The slot's keys that it takes; of a plain command the one that decides where it goes.
        args: Its arguments.
        parse: Turns the reply into a value.
        repeatable: Whether it may be sent again when its reply was lost.
        topic: Topic name, for errors.
        slot: Slot number, for errors.
        durable: Whether it counts only once it is as safe as the client's durability level asks: then what a caller who
            repeats it has to know, a sentence for `DurabilityError`; else empty.
        refusals: Code of an error reply -> what makes the caller's error of it, for codes of this script's own.
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

    @property
    def target(self) -> str:
        """The slot, or the key of a plain command, in words."""
        return f"slot {self.slot} of topic {self.topic}" if self.script else f"key {self.keys[0]}"

    @property
    def operation(self) -> str:
        """What is called, in words."""
        return f"script {self.script}" if self.script else f"command {self.args[0]}"

    def error(self, kind: type[E], text: str) -> E:
        """Return an error that says what it is about."""
        return kind(text, topic=self.topic, slot=self.slot)

    def then(self, step: Callable[[T], S]) -> Call[S]:
        """Return the same call with one step more behind `parse`."""

        def parse(reply: Any) -> S:
            return step(self.parse(reply))

        return cast("Call[S]", self._replace(parse=parse))


def plain(*args: Argument, key: str | bytes | None = None) -> Call[Any]:
    """Build a plain command that may be repeated; its value is the reply as it is.

    Args:
        args: The command.
        key: The key that decides where it goes; by default the first argument after the command's name.
    """
    target = key if key is not None else args[1] if len(args) > 1 else ""
    name = target.decode(errors="surrogateescape") if isinstance(target, bytes) else str(target)
    return Call("", (name,), args, _as_it_is, True, "", 0)


def _as_it_is(reply: Any) -> Any:
    return reply


def is_one(reply: object) -> bool:
    """Parse a reply that says yes or no."""
    return reply == b"1"


def read_totals(names: Sequence[str], values: Sequence[bytes | None]) -> dict[str, int]:
    """Parse counters; those that nothing has counted yet are absent."""
    return {name: int(value) for name, value in zip(names, values, strict=True) if value is not None}


def nothing(reply: object) -> None:
    """Parse a reply that says nothing."""
    del reply
