"""Who steered what: a line in Redis beside the change itself, and one for the logger `rmq.audit`."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache

from rmq._broker import steering
from rmq._model.display import shown
from rmq._model.reports import reporter
from rmq._model.topics import Topic
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError, RmqError

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
    """Writes down what one actor does on one topic.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        actor: Who, 1 to 256 characters; `None` for `user@host`.

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
        """Tell the logger; the script has written its own line."""
        what = detail if content is None else f"{shown(content)} {detail}".rstrip()
        log.info("%s: %s on topic %s: %s: %s", shown(self.actor), action, self._topic.name, what, outcome)

    @contextmanager
    def step(self, action: str, detail: str) -> Generator[Callable[[str], None]]:
        """Put a line before a step of many calls and one behind it; the function given takes its outcome so far.

        Even a step that is killed has left its first line. A last line that cannot be written changes nothing of what
        was done: that is logged.
        """
        outcome = "nothing done"

        def note(text: str) -> None:
            nonlocal outcome
            outcome = text

        self._write(action, detail, "begun")
        try:
            yield note
        except BaseException as error:
            outcome += f"; broke off: {type(error).__name__}"
            raise
        finally:
            try:
                self._write(action, detail, outcome)
            except RmqError as error:
                log.warning("topic %s: the audit has no line for the end of this step: %s", self._topic.name, error)

    def _write(self, action: str, detail: str, outcome: str) -> None:
        self.report(action, outcome, detail=detail)
        self._connections.run(steering.audit(self._topic, 0, self.actor, action, detail, outcome))
