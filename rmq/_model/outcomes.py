"""Outcomes of deliveries, and how an error is stored as their reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MAX_ERROR_CHARACTERS = 1_000


class Verb(Enum):
    """Outcome of a delivery.

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
        verb: The action.
        delay_ms: For a nack: wait before the retry, ms; `None` for the topic's retry policy. For a release: wait before
            the redelivery of a message that has failed without using up a retry; `None` if its handler has not begun.
        error_type: Class of the error, such as `ValueError`.
        error_message: Text of the error, at most 1,000 characters.
        due_ms: For a release on a FIXED_TIME topic: its due time from now on, epoch ms; `None` keeps the present one.

    Examples:
        >>> Outcome(Verb.NACK, delay_ms=5_000).verb.name
        'NACK'
    """

    verb: Verb
    delay_ms: int | None = None
    error_type: str = ""
    error_message: str = ""
    due_ms: int | None = None


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


def _name_of(error: object) -> str:
    name: str = type.__dict__["__name__"].__get__(type(error))  # a metaclass may have another one
    return _kept(name)


def _kept(text: str) -> str:
    return text[:MAX_ERROR_CHARACTERS].encode(errors="backslashreplace").decode()[:MAX_ERROR_CHARACTERS]
