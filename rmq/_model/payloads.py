"""Contents, slot bases and bodies as callers write them, turned into bytes."""

from __future__ import annotations

from typing import TypeAlias

from rmq._model.envelope import MARK, wrap
from rmq._model.topics import Topic
from rmq.errors import InvalidMessageError

Payload: TypeAlias = str | bytes
"""Content, slot basis or body: text is sent as UTF-8."""

Body: TypeAlias = Payload | float | tuple[Payload, ...] | list[Payload] | None
"""What a message carries: without `merge=` a payload or nothing; with it what the topic's reducer takes."""


def payload_bytes(value: Body, name: str) -> bytes:
    """Return a content, slot basis or body as the bytes that are stored.

    Raises:
        InvalidMessageError: Neither `str` nor `bytes`, or text that UTF-8 cannot hold (a lone surrogate).
    """
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessageError(f"{name} {value!r:.80} cannot be written as UTF-8: {error.reason}") from None
    if isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        return value
    raise InvalidMessageError(f"{name} is {value!r:.80}; it must be str or bytes")


def checked_body(topic: Topic, content: bytes, body: Body) -> bytes | None:
    """Return the body of a message as it is stored.

    Raises:
        InvalidMessageError: No payload, or longer than its topic takes.
    """
    if body is None:
        return None
    stored = checked_payload(topic, content, body, "body")
    return wrap(stored, "") if stored.startswith(MARK) else stored


def checked_payload(topic: Topic, content: bytes, payload: Body, name: str) -> bytes:
    """Return a body, or an item of one, in bytes; raises as `checked_body`."""
    stored = payload_bytes(payload, name)
    if len(stored) > topic.max_body_bytes:
        raise InvalidMessageError(
            f"{name} of {content!r:.80} has {len(stored)} bytes; topic {topic.name} takes up to {topic.max_body_bytes}",
            topic=topic.name,
        )
    return stored
