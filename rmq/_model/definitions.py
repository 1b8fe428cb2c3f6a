"""Registered definitions as they are read: those that this version can read, and why it can't read the others."""

from __future__ import annotations

from dataclasses import dataclass

from rmq._model.display import shown
from rmq._model.schema import Document, read_document
from rmq._model.topics import Topic, is_name
from rmq.errors import UnreadableDocumentError, UnreadableTopicError

MAX_DEFINITION_BYTES = 65_536
"""A longer definition is neither written nor read; one with all settings takes less than 1 kB."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A definition as it stands in Redis: byte for byte, as a document, and what this version makes of it."""

    text: bytes
    document: Document
    topic: Topic


@dataclass(frozen=True, slots=True)
class UnreadableTopic:
    """A registered definition that this version of RMQ can't read.

    Attributes:
        name: The topic's name, made harmless for showing.
        reason: Why, and what to do.
        version: Schema version of its writer; `None` where it says none that can be read.
        min_reader: The oldest schema version that may act on it; `None` likewise.

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
    """Read a registered definition: its text, or its length where it is too long, under the topic's name.

    Raises:
        UnreadableTopicError: For newer versions only, or no definition of this topic.
    """
    told = shown(name)
    what = f"the definition of topic {told}"
    plain = name.decode(errors="replace") if isinstance(name, bytes) else name
    try:
        if not is_name(plain):
            raise UnreadableDocumentError(f"{what} cannot be read: that is not the name of a topic")
        if isinstance(found, int):
            raise UnreadableDocumentError(f"{what} cannot be read: its {found} bytes exceed {MAX_DEFINITION_BYTES}")
        document = read_document(found, what)
        topic = Topic.from_document(document)
        if topic.name != plain:
            raise UnreadableDocumentError(f"{what} cannot be read: it is that of topic {topic.name}")
    except UnreadableDocumentError as error:
        text = str(error).replace("the registered definition", what, 1)
        raise UnreadableTopicError(text, topic=told, version=error.version, min_reader=error.min_reader) from None
    return Stored(found, document, topic)
