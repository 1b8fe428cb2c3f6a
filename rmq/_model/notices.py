"""Notices of dead messages, and the position up to which they were sent. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rmq._model.whereabouts import DeadMessage
from rmq.errors import InvalidValueError

D = TypeVar("D", bound=DeadMessage)

Tell = Callable[[list[Any]], object]
"""Is called with dead messages: a list of `DeadMessage`, of a stream topic of `DeadEntry`."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def checked_name(name: str) -> str:
    """Return the name of a receiver of notices; raise `InvalidValueError` if it breaks the rule."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"name {name!r} must be 1 to 64 of A-Z a-z 0-9 . _ -")
    return name


@dataclass(frozen=True, slots=True)
class Turn:
    """The position up to which notices of a slot's dead messages were sent.

    Attributes:
        name: Name of the receiver; each name receives all notices.
        holder: Identity of the sending process.
        hold_ms: How long no other process sends notices under this name, ms.
        since: All messages that died before this time, epoch ms, have a notice; 0 for the position in Redis.
        after: Of those that died in that ms, the last one with a notice, by content or id; empty for none.
    """

    name: str
    holder: str
    hold_ms: int
    since: int = 0
    after: bytes = b""

    def args(self) -> dict[str, str | int | bytes]:
        """Return the arguments of the scripts."""
        return {
            "name": self.name,
            "holder": self.holder,
            "hold_ms": self.hold_ms,
            "since": self.since,
            "after": self.after,
        }

    def done(self, found: Untold[Any]) -> Turn:
        """Return the position after the notices of all messages found."""
        if found.more:
            last = found.dead[-1]
            return replace(self, since=last.died_ms, after=name_of(last))
        return replace(self, since=found.ripe_ms, after=b"") if found.ripe_ms else self


@dataclass(frozen=True, slots=True)
class Untold(Generic[D]):
    """The dead messages whose notices come next.

    Attributes:
        ripe_ms: Messages that died at this time or later get their notices later, epoch ms; 0 if another process sends.
        dead: The dead, the longest dead first.
        more: Whether there may be more before `ripe_ms`.
    """

    ripe_ms: int
    dead: Sequence[D]
    more: bool


def untold_of(ripe_ms: int, page: Sequence[D]) -> Untold[D]:
    """Return the messages of a page whose notices may be sent."""
    ripe = [each for each in page if each.died_ms < ripe_ms]
    return Untold(ripe_ms, ripe, bool(page) and len(ripe) == len(page))


def name_of(dead: DeadMessage) -> bytes:
    """Return the key of a dead message in its slot: its content, or the id of an entry."""
    entry_id = getattr(dead, "id", None)
    return dead.content if entry_id is None else str(entry_id).encode()
