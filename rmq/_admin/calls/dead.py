"""Calls of the scripts for dead letters and their notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from typing import Any, Generic, TypeVar

from rmq._admin.messages import DeadEntry, DeadMessage, told, why_dead
from rmq._broker.binding import SAFE_AGAIN, BoundScript
from rmq._broker.keys import group_keys
from rmq._io.wire import Argument
from rmq._model.entries import body_of, content_of
from rmq._model.replies import Redriven
from rmq._model.scores import score_of
from rmq._model.topics import Topic
from rmq._transport.call import Call

D = TypeVar("D", bound=DeadMessage)

NewScore = tuple[str, int]
"""New due time or priority of a message: `after` and ms, `at` and epoch ms, or `priority` and the number."""

_REDRIVE, _REDRIVE_ENTRIES, _PURGE = (
    BoundScript(name, durable=SAFE_AGAIN) for name in ("redrive", "stream_redrive", "purge_dead")
)
_LIST, _LIST_ENTRIES, _REASONS = (BoundScript(name) for name in ("list_dead", "stream_list_dead", "dead_reasons"))
_UNTOLD, _UNTOLD_ENTRIES = BoundScript("untold_dead"), BoundScript("stream_untold_dead")


@dataclass(frozen=True, slots=True)
class Turn:
    """The position up to which notices of a slot's dead messages were sent; its fields are arguments of scripts.

    Attributes:
        name: Name of the receiver; each name receives all notices.
        holder: Identity of the sending process.
        hold_ms: Time for which no other process sends notices under this name, ms.
        since: Notices were sent for all messages that died before this time, epoch ms; 0 for the position in Redis.
        after: Content or id of the last message with a notice among those that died in that ms; empty for none.
    """

    name: str
    holder: str
    hold_ms: int
    since: int = 0
    after: bytes = b""

    def done(self, found: Untold[Any]) -> Turn:
        """Return the position after the notices of all messages found."""
        if found.more:
            last = found.dead[-1]
            return replace(self, since=last.died_ms, after=name_of(last))
        return replace(self, since=found.ripe_ms, after=b"") if found.ripe_ms else self


@dataclass(frozen=True, slots=True)
class Untold(Generic[D]):
    """The next dead messages for which notices are due.

    Attributes:
        ripe_ms: Messages that died at this time or later get their notices later, epoch ms; 0 if another process sends.
        dead: The dead messages, the longest dead first.
        more: Whether there may be more before `ripe_ms`.
    """

    ripe_ms: int
    dead: Sequence[D]
    more: bool


def name_of(dead: DeadMessage) -> bytes:
    """Return the key of a dead message in its slot: its content, or the id of an entry."""
    entry_id = getattr(dead, "id", None)
    return dead.content if entry_id is None else str(entry_id).encode()


def redrive(
    topic: Topic,
    slot: int,
    score: NewScore,
    *,
    overwrite: bool,
    contents: Sequence[bytes],
    died_ms: Sequence[int] | None = None,
    actor: str = "",
) -> Call[list[Redriven]]:
    """Return a call that redrives contents.

    With `died_ms`, one for each content, it redrives only those that died at that time: one that died again is absent.
    """
    named: Sequence[Argument] = contents
    if died_ms is not None:
        named = [part for pair in zip(contents, died_ms, strict=True) for part in pair]
    args: dict[str, Any] = {"kind": score[0], "value": score[1], "overwrite": int(overwrite), "actor": actor}
    return _REDRIVE.call(topic, slot, _redriven, **args, dated=int(died_ms is not None), contents=named)


def redrive_entries(topic: Topic, slot: int, group: str, ids: Sequence[bytes | str]) -> Call[list[Redriven | None]]:
    """Return a call that redrives dead entries into the group in which they died; `None` stands for one that stays."""
    return _REDRIVE_ENTRIES.call(topic, slot, _redriven, group=group, ids=ids)


def _redriven(reply: list[bytes]) -> list[Any]:
    return [Redriven(answer.decode()) if answer else None for answer in reply]


def purge_dead(
    topic: Topic, slot: int, names: Sequence[bytes | str], actor: str = "", group: str | None = None
) -> Call[int]:
    """Return a call that purges dead contents, or ids of a group; its result is the number of those that were dead."""
    keys: dict[str, str] = {}
    if group is not None:
        own = group_keys(topic.name, slot, group)
        keys = {"dead": own.dead, "meta": own.group, "reason": own.reason, "dead_body": own.dead_body}
    return _PURGE.call(topic, slot, int, keys=keys, actor=actor, contents=names)


def list_dead(topic: Topic, slot: int, start: int, limit: int, group: str | None = None) -> Call[list[Any]]:
    """Return a call that reads a page of dead messages, or of a group's dead entries, the longest dead first."""

    def parse(reply: list[Any]) -> list[Any]:
        return _page(topic, slot, group, reply)

    return (_LIST if group is None else _LIST_ENTRIES).call(topic, slot, parse, group=group, start=start, limit=limit)


def untold(topic: Topic, slot: int, turn: Turn, limit: int, group: str | None = None) -> Call[Untold[Any]]:
    """Return a call that reads the next dead messages, or entries, without a notice, and records the position."""

    def parse(reply: list[Any]) -> Untold[Any]:
        ripe_ms, page = int(reply[0]), _page(topic, slot, group, reply[1:] if group is None else reply[1])
        ripe = [each for each in page if each.died_ms < ripe_ms]
        return Untold(ripe_ms, ripe, bool(page) and len(ripe) == len(page))

    script = _UNTOLD if group is None else _UNTOLD_ENTRIES
    return script.call(topic, slot, parse, group=group, **asdict(turn), limit=limit)


def _page(topic: Topic, slot: int, group: str | None, reply: list[Any]) -> list[Any]:
    """Parse a page of dead messages, or of a group's dead entries."""
    if group is None:
        page, reasons, bodies = reply
        rows = zip(page[::2], page[1::2], reasons, bodies or repeat(None), strict=False)
        return [dead_message(topic, slot, *row) for row in rows]
    return [
        DeadEntry(
            topic.name,
            slot,
            content_of(flat),
            body_of(flat),
            **why_dead(reason, int(died)),
            id=entry_id.decode(),
            group=group,
            flat=tuple(flat),
        )
        for entry_id, died, reason, flat in reply
    ]


def dead_message(
    topic: Topic, slot: int, content: bytes, died: bytes, reason: bytes | None, stored: bytes | None
) -> DeadMessage:
    """Create a dead message from the values in the slot's keys."""
    died_ms = score_of(died)
    body, sends = told(topic, stored)
    return DeadMessage(topic.name, slot, content, body, **why_dead(reason, died_ms), **sends)


def dead_reasons(topic: Topic, slot: int, sample: int) -> Call[tuple[int, Counter[str]]]:
    """Return a call that counts a slot's dead messages: their number, and the types of error of a sample."""

    def parse(reply: list[bytes]) -> tuple[int, Counter[str]]:
        pairs = zip(reply[1::2], reply[2::2], strict=True)
        return int(reply[0]), Counter({kind.decode(errors="backslashreplace"): int(number) for kind, number in pairs})

    return _REASONS.call(topic, slot, parse, sample=sample)
