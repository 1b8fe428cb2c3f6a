"""Registered definitions, errors about unreadable ones, and the differences of two definitions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

from rmq._model.display import shown, span
from rmq._model.merging import same_merging
from rmq._model.schema import Document, read_document
from rmq._model.topics import Topic, is_name
from rmq.errors import UnreadableDocumentError, UnreadableTopicError

MAX_DEFINITION_BYTES = 65_536
"""A longer definition is neither written nor read; one with all settings takes less than 1 kB."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A definition in Redis: its bytes, its document, and the topic."""

    text: bytes
    document: Document
    topic: Topic


@dataclass(frozen=True, slots=True)
class UnreadableTopic:
    """A registered definition that this version of RMQ can't read.

    Attributes:
        name: The topic's name, escaped for display.
        reason: The reason, and what to do.
        version: Schema version of its writer; `None` if unknown.
        min_reader: The oldest schema version that may act on it; `None` if unknown.

    Examples:
        >>> [each.name for each in client.definitions().unreadable]
        []
    """

    name: str
    reason: str
    version: int | None = None
    min_reader: int | None = None


@dataclass(frozen=True, slots=True)
class Definitions:
    """All registered definitions, by name: those that this version can read, and the others.

    Examples:
        >>> _ = client.producer(Topic("jobs", TopicType.PRIORITY))
        >>> [topic.name for topic in client.definitions().topics]
        ['jobs']
    """

    topics: tuple[Topic, ...] = ()
    unreadable: tuple[UnreadableTopic, ...] = ()


def read_definition(name: str | bytes, found: bytes | int) -> Stored:
    """Parse the definition registered under a name; `found` is its text, or its length if it is too long.

    Raises:
        UnreadableTopicError: The definition is for newer versions only, or is not a definition of this topic.
    """
    told = shown(name)
    what = f"the definition of topic {told}"
    plain = name.decode(errors="replace") if isinstance(name, bytes) else name
    try:
        if not is_name(plain):
            raise UnreadableDocumentError(f"{what} cannot be read: its name is not a valid topic name")
        if isinstance(found, int):
            raise UnreadableDocumentError(
                f"{what} cannot be read: it has {found} bytes; the maximum is {MAX_DEFINITION_BYTES}"
            )
        document = read_document(found, what)
        topic = Topic.from_document(document)
        if topic.name != plain:
            raise UnreadableDocumentError(f"{what} cannot be read: it is the definition of topic {topic.name}")
    except UnreadableDocumentError as error:
        text = str(error).replace("the registered definition", what, 1)
        raise UnreadableTopicError(text, topic=told, version=error.version, min_reader=error.min_reader) from None
    return Stored(found, document, topic)


class Difference(NamedTuple):
    """A setting that differs between two definitions of a topic."""

    setting: str
    registered: Any
    other: Any
    fixed: bool  # part of the topic's identity, or of its scores: no change of the definition changes it

    def worded(self, between: str = "not") -> str:
        """Return both values in words: `max_retries 16, not 3`."""
        return f"{self.setting} {_value(self.registered)}, {between} {_value(self.other)}"


def differences(registered: Topic, other: Topic) -> list[Difference]:
    """Return the settings in which two definitions of a topic differ; payload and codec are not compared."""
    found: list[Difference] = []
    for each in fields(Topic):
        one, two = getattr(registered, each.name), getattr(other, each.name)
        if each.compare and one != two:
            fixed = each.name in ("name", "type", "slots", "ties", "max_priority")
            fixed = fixed or (each.name == "merge" and not same_merging(one, two))
            found.append(Difference(each.name, one, two, fixed))
    return found


def _value(value: object) -> str:
    if isinstance(value, timedelta):
        return span(value / timedelta(milliseconds=1))
    return str(value.value) if isinstance(value, Enum) else "none" if value is None else repr(value)
