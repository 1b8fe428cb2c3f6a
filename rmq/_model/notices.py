"""What is said of the dead to those who asked for it, and up to where it was said. Pure."""

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
    """Return the name under which is told; refuse one that breaks the rule, with `InvalidValueError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"name {name!r} must be 1 to 64 of A-Z a-z 0-9 . _ -")
    return name


@dataclass(frozen=True, slots=True)
class Turn:
    """Up to where a holder has told of a slot's dead.

    Attributes:
        name: Under which is told; each name is told of all.
        holder: Identity of who tells.
        hold_ms: For how long nobody else does.
        since: All who died before this time, epoch ms, were told; 0 for what is noted in Redis.
        after: Of those who died in that ms all up to this one, by its content or id, were told; empty for none.
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
        """Return the turn after all that was found has been told."""
        if found.more:
            last = found.dead[-1]
            return replace(self, since=last.died_ms, after=name_of(last))
        return replace(self, since=found.ripe_ms, after=b"") if found.ripe_ms else self


@dataclass(frozen=True, slots=True)
class Untold(Generic[D]):
    """The dead that are to be told next.

    Attributes:
        ripe_ms: Who died at this time or later is told another time, epoch ms; 0 where somebody else tells.
        dead: The dead, the longest dead first.
        more: Whether there may be more before `ripe_ms`.
    """

    ripe_ms: int
    dead: Sequence[D]
    more: bool


def untold_of(ripe_ms: int, page: Sequence[D]) -> Untold[D]:
    """Return what of a page may be told already."""
    ripe = [each for each in page if each.died_ms < ripe_ms]
    return Untold(ripe_ms, ripe, bool(page) and len(ripe) == len(page))


def name_of(dead: DeadMessage) -> bytes:
    """Return what names it among the dead of its slot: its content, or the id of an entry."""
    entry_id = getattr(dead, "id", None)
    return dead.content if entry_id is None else str(entry_id).encode()
