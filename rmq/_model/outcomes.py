"""Outcomes of deliveries, and how an error is stored as their reason."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from os import getpid
from socket import gethostname
from traceback import format_exception

MAX_ERROR_CHARACTERS = 1_000

MAX_ATTEMPT_CHARACTERS, MAX_TRACEBACK_CHARACTERS, MAX_FRAMES = 200, 4_000, 20
"""Maximum length of an error's text in an attempt that is kept, and length and frames of the last traceback."""


class Verb(Enum):
    """The kinds of outcomes: `ACK`, `NACK` (retry), `BURY` (dead at once) and `RELEASE` (as if never claimed).

    Examples:
        >>> Verb.ACK in set(Verb)
        True
    """

    ACK = "ack"
    NACK = "retry"
    BURY = "bury"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a delivery, and its reason.

    Attributes:
        verb: The kind of outcome.
        delay_ms: For a nack: wait before the retry, ms; `None` for the topic's retry policy. For a release: wait before
            the redelivery after a failure that used up no retry, ms; `None` for a release without a failure.
        error_type: Type of the error, such as `ValueError`; empty for an error given as text.
        error_message: Text of the error, at most 1,000 characters.
        due_ms: For a release on a FIXED_TIME topic: the message's new due time, epoch ms; `None` keeps the present one.
        attempt: On a topic with `keep_attempts`: the failed attempt as it is sent to Redis; otherwise empty.

    Examples:
        >>> Outcome(Verb.NACK, delay_ms=5_000).verb.name
        'NACK'
    """

    verb: Verb
    delay_ms: int | None = None
    error_type: str = ""
    error_message: str = ""
    due_ms: int | None = None
    attempt: str = ""

    @property
    def stored_type(self) -> str:
        """The type of the error, followed by the attempt if it is kept."""
        return self.error_type.replace("\n", " ") + self.attempt if self.attempt else self.error_type


ACKED = Outcome(Verb.ACK)
RELEASED = Outcome(Verb.RELEASE)


def describe(error: BaseException | str) -> tuple[str, str]:
    """Return the class and the text of an error as they are stored: valid UTF-8, at most 1,000 characters.

    Never raises, even if methods of the error do: otherwise the delivery would get no outcome.
    """
    kind = "" if issubclass(type(error), str) else _name_of(error)
    try:
        return kind, _kept(str.__str__(str(error)))
    except BaseException as trouble:  # SystemExit, too
        return kind, f"(the error's text cannot be read: {_name_of(trouble)})"


def failed(verb: Verb, delay_ms: int | None, error: BaseException | str, keep_attempts: int | None) -> Outcome:
    """Return the outcome of a delivery that failed; `delay_ms` as in `Outcome`, `keep_attempts` as in `Topic`."""
    kind, message = describe(error)
    attempt = _attempt(error, kind, message, keep_attempts) if keep_attempts else ""
    return Outcome(verb, delay_ms, kind, message, attempt=attempt)


def _attempt(error: BaseException | str, kind: str, message: str, most: int) -> str:
    text = {"type": kind[:100], "message": message[:MAX_ATTEMPT_CHARACTERS], "worker": f"{gethostname()}:{getpid()}"}
    try:
        lines = format_exception(error, limit=-MAX_FRAMES) if isinstance(error, BaseException) else []
    except BaseException:  # a method of the error may raise anything
        lines = []
    trace = "".join(lines)[-MAX_TRACEBACK_CHARACTERS:].encode(errors="backslashreplace").decode()
    return f"\n{most}\n{json.dumps(text)}\n{trace[-MAX_TRACEBACK_CHARACTERS:]}"


def _name_of(error: object) -> str:
    name: str = type.__dict__["__name__"].__get__(type(error))  # a metaclass may have another one
    return _kept(name)


def _kept(text: str) -> str:
    return text[:MAX_ERROR_CHARACTERS].encode(errors="backslashreplace").decode()[:MAX_ERROR_CHARACTERS]
