"""The audit of what operators do: lines in Redis, written with the change, and in the log. And durable confirmation.

The logger is `rmq.audit`.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache

from rmq._broker.binding import SAFE_AGAIN, BoundScript
from rmq._io.reports import reporter
from rmq._model.display import shown
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq._transport.connections import Connections, call_slots
from rmq.errors import InvalidValueError, RmqError

_AUDIT, _CONFIRM = BoundScript("audit"), BoundScript("confirm", durable=SAFE_AGAIN)

log = reporter("rmq.audit")

_MOST_CHARACTERS = 256

Progress = Callable[[int], None]
"""Takes the number of messages that a long step has processed so far."""


def nothing(reply: object) -> None:
    """Parse a reply without a result."""
    del reply


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
            raise InvalidValueError(f"actor is {actor!r:.300}; it must be text of 1 to {_MOST_CHARACTERS} characters")
        self.connections = connections
        self.topic = topic
        self.actor = actor or default_actor()

    def report(self, action: str, outcome: str, content: bytes | None = None, detail: str = "") -> None:
        """Log a change; the script has written its own audit line."""
        what = detail if content is None else f"{shown(content)} {detail}".rstrip()
        log.info("%s: %s on topic %s: %s: %s", shown(self.actor), action, self.topic.name, what, outcome)

    @contextmanager
    def step(self, action: str, detail: str, progress: Progress | None = None) -> Generator[Callable[..., None]]:
        """Write an audit line before and after a step of many calls.

        Pass the outcome so far to the yielded function, and for `progress` the number of messages that are done. A step
        that is killed leaves its first line. If the last line cannot be written, the step is done all the same, and the
        failure is logged.
        """
        outcome = "nothing done"

        def note(text: str, done: int = 0) -> None:
            nonlocal outcome
            outcome = text
            if progress is not None:
                progress(done)

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
                    "topic %s: the result of '%s' may be missing from the audit log: %s", self.topic.name, action, error
                )

    def _write(self, action: str, detail: str, outcome: str) -> None:
        self.report(action, outcome, detail=detail)
        self.connections.run(audit(self.topic, 0, self.actor, action, detail, outcome))
