"""Calls of the scripts that control topics, and their audit: a line in Redis, written with the change, and in the log.

The logger is `rmq.audit`.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from rmq._broker.binding import SAFE_AGAIN, BoundScript
from rmq._broker.claims import NewScore
from rmq._broker.keys import group_keys, slot_keys
from rmq._io.reports import reporter
from rmq._model.display import shown
from rmq._model.replies import ControlResult
from rmq._model.topics import Topic
from rmq._transport.call import Call, is_one, nothing
from rmq._transport.connections import Connections, call_slots
from rmq.errors import InvalidValueError, RmqError

_CANCEL, _RESCHEDULE, _PROMOTE, _PAUSE, _ADOPT, _CONFIRM = (
    BoundScript(name, durable=SAFE_AGAIN) for name in "cancel reschedule promote pause adopt confirm".split()
)
_PURGE_BACKLOG = BoundScript(
    "purge_backlog", repeatable=False, durable="Repeating it also deletes messages that were sent in the meantime"
)
_AUDIT = BoundScript("audit")


def promote(topic: Topic, slot: int, contents: Sequence[bytes], actor: str = "") -> Call[list[ControlResult]]:
    """Return a call that makes up to `CONTROL_BATCH` contents due now. An empty `actor` writes no audit line."""
    return _PROMOTE.call(topic, slot, control_results, actor=actor, contents=contents)


def pause(
    topic: Topic, slot: int, paused: bool, actor: str = "", detail: str = "", group: str | None = None
) -> Call[bool]:
    """Return a call that pauses or resumes a slot, or a group on it; its result is whether that changed anything."""
    keys = _meta_key(topic, slot, group)
    return _PAUSE.call(topic, slot, is_one, keys=keys, pause=int(paused), actor=actor, detail=detail)


def purge_backlog(topic: Topic, slot: int, place: str, limit: int) -> Call[int]:
    """Return a call that removes up to `limit` messages from `store` or `retry`; its result is their number."""
    keys = slot_keys(topic.name, slot)
    source = {"store": keys.store, "retry": keys.retry}[place]
    return _PURGE_BACKLOG.call(topic, slot, int, keys={"source": source}, limit=limit)


def confirm(topic: Topic, slot: int) -> Call[None]:
    """Return a durable call that changes nothing in a slot."""
    return _CONFIRM.call(topic, slot, nothing)


def confirm_all(connections: Connections, topic: Topic) -> None:
    """Wait until the present state of all slots is as durable as the client requires, before a step that reads first.

    Messages that the step does not find may just have been removed by another client; the removal must be durable, too.

    Raises:
        DurabilityError: Too few replicas, or no disk, confirmed the state in time.
    """
    if connections.confirms:
        call_slots(connections, range(topic.slots), lambda slot: confirm(topic, slot))


def audit(topic: Topic, slot: int, actor: str, action: str, detail: str, outcome: str) -> Call[None]:
    """Return a call that writes an audit line about a step of many calls."""
    return _AUDIT.call(topic, slot, nothing, actor=actor, action=action, detail=detail, outcome=outcome)


def cancel(topic: Topic, slot: int, contents: Sequence[bytes], actor: str = "") -> Call[list[ControlResult]]:
    """Return a call that cancels up to `CONTROL_BATCH` contents."""
    return _CANCEL.call(topic, slot, control_results, actor=actor, contents=contents)


def reschedule(
    topic: Topic, slot: int, contents: Sequence[bytes], score: NewScore, actor: str = "", action: str = "reschedule"
) -> Call[list[ControlResult]]:
    """Return a call that gives up to `CONTROL_BATCH` contents a new due time or priority."""
    args: dict[str, Any] = {"kind": score[0], "value": score[1], "actor": actor, "action": action, "contents": contents}
    return _RESCHEDULE.call(topic, slot, control_results, **args)


@dataclass(frozen=True, slots=True)
class Adopted:
    """The last owner of a slot, and whether the slot was moved.

    Attributes:
        ensemble: Identity of the ensemble that counted its epochs; empty for a slot without an owner so far.
        epoch: The highest epoch that has claimed from the slot.
        moved: Whether this call moved the slot.
    """

    ensemble: str
    epoch: int
    moved: bool


def adopt(topic: Topic, slot: int, from_ensemble: str, to_ensemble: str, group: str | None = None) -> Call[Adopted]:
    """Return a call that moves a slot, or a group's part of it, to another ensemble; it only reads if none is given."""

    def parse(reply: list[bytes]) -> Adopted:
        return Adopted(reply[0].decode(), int(reply[1]), is_one(reply[2]))

    keys, durable = _meta_key(topic, slot, group), bool(from_ensemble)
    args = {"from_ensemble": from_ensemble, "to_ensemble": to_ensemble}
    return _ADOPT.call(topic, slot, parse, keys=keys, durable=durable, **args)


def control_results(reply: list[bytes]) -> list[ControlResult]:
    """Parse the results of a control action, one per content."""
    return [ControlResult(answer.decode()) for answer in reply]


def _meta_key(topic: Topic, slot: int, group: str | None) -> dict[str, str]:
    return {} if group is None else {"meta": group_keys(topic.name, slot, group).group}


log = reporter("rmq.audit")

_MOST_CHARACTERS = 256


@cache
def default_actor() -> str:
    """Return `user@host` of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:_MOST_CHARACTERS]


def _is_actor(actor: object) -> bool:
    if not isinstance(actor, str) or not 1 <= len(actor) <= _MOST_CHARACTERS:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in actor)  # half a pair can't be sent


class Audit:
    """Writes the audit lines of one actor on one topic.

    Args:
        connections: Connections to the servers of the topic.
        topic: The registered definition.
        actor: Name of the actor, 1 to 256 characters; `None` for `user@host`.

    Raises:
        InvalidValueError: `actor` is empty or too long.
    """

    def __init__(self, connections: Connections, topic: Topic, actor: str | None) -> None:
        if actor is not None and not _is_actor(actor):
            raise InvalidValueError(f"actor is {actor!r:.300}; it must have 1 to {_MOST_CHARACTERS} characters")
        self._connections = connections
        self._topic = topic
        self.actor = actor or default_actor()

    def report(self, action: str, outcome: str, content: bytes | None = None, detail: str = "") -> None:
        """Log a change; the script has written its own audit line."""
        what = detail if content is None else f"{shown(content)} {detail}".rstrip()
        log.info("%s: %s on topic %s: %s: %s", shown(self.actor), action, self._topic.name, what, outcome)

    @contextmanager
    def step(self, action: str, detail: str) -> Generator[Callable[[str], None]]:
        """Write an audit line before and after a step of many calls; pass the outcome so far to the yielded function.

        A step that is killed leaves its first line. If the last line cannot be written, the step is done all the same,
        and the failure is logged.
        """
        outcome = "nothing done"

        def note(text: str) -> None:
            nonlocal outcome
            outcome = text

        self._write(action, detail, "begun")
        try:
            yield note
        except BaseException as error:
            outcome += f"; interrupted: {type(error).__name__}"
            raise
        finally:
            try:
                self._write(action, detail, outcome)
            except RmqError as error:
                log.warning(
                    "topic %s: the audit line for the end of this step was not written: %s", self._topic.name, error
                )

    def _write(self, action: str, detail: str, outcome: str) -> None:
        self.report(action, outcome, detail=detail)
        self._connections.run(audit(self._topic, 0, self.actor, action, detail, outcome))
