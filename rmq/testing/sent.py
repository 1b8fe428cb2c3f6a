"""Messages that were sent and not claimed, for assertions of tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic

from rmq import Topic, TopicType
from rmq.client import RmqClient
from rmq.errors import PayloadError
from rmq.spi import Payload, PayloadT, counted, moment_at
from rmq.spi.scripts import payload_bytes

MOST_SHOWN = 10


@dataclass(frozen=True, slots=True)
class SentMessage(Generic[PayloadT]):
    """A message in the backlog, or an entry of a stream.

    Attributes:
        topic: The topic.
        content: The content, as bytes.
        body: The body; `None` for a message without one.
        value: Result of merging its sends: the body; for `Max`, `Min` and `Sum` a number; for `Collect` the items.
        due_ms: Due time, epoch ms; `None` for a message that is due at once: one with a priority, one that failed and
            is in the backlog again, or an entry of a stream.
        priority: The priority, on a PRIORITY topic; otherwise `None`.
        merged: Number of sends merged into the message, if the topic has `merge=`; otherwise 1.

    Examples:
        >>> from rmq.testing import sent
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5, body="data"))
        >>> [(message.text, message.priority, message.body) for message in sent(client, jobs)]
        [('job:1', 5, b'data')]
    """

    topic: Topic[PayloadT]
    content: bytes
    body: bytes | None
    value: Any
    due_ms: int | None
    priority: int | None
    merged: int

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 show as backslash escapes."""
        return self.content.decode(errors="backslashreplace")

    @property
    def due(self) -> datetime | None:
        """The due time in UTC; `None` as for `due_ms`."""
        return None if self.due_ms is None else moment_at(self.due_ms)

    @property
    def payload(self) -> PayloadT:
        """The decoded body, an object of the topic's payload class.

        Raises:
            PayloadError: The body cannot be decoded.
            InvalidValueError: The topic has no payload class.
        """
        return self.topic.decode(self.body)

    @property
    def payloads(self) -> list[PayloadT]:
        """The payloads of a `Collect` or of joined parts, else the one payload. Raises the same errors as `payload`."""
        return [self.topic.decode(item) for item in self.value] if self.topic.collects else [self.payload]


@dataclass(frozen=True, slots=True)
class Expected:
    """Properties that a message must have; `None` matches any value."""

    topic: Topic[Any] | str
    content: Payload | None = None
    payload: Any = None
    body: Payload | None = None
    priority: int | None = None

    def matches(self, message: SentMessage[Any]) -> bool:
        """Return whether a message has these properties."""
        if self.content is not None and message.content != payload_bytes(self.content, "content"):
            return False
        if self.body is not None and message.body != payload_bytes(self.body, "body"):
            return False
        if self.priority is not None and message.priority != self.priority:
            return False
        try:
            return self.payload is None or self.payload in message.payloads
        except PayloadError:  # the payload is missing or invalid
            return False

    def __str__(self) -> str:
        names = ("content", "payload", "body", "priority")
        asked = [f"{name} {value!r}" for name in names if (value := getattr(self, name)) is not None]
        return f"message with {' and '.join(asked)}" if asked else "message"


def sent_to(client: RmqClient, expected: Expected) -> list[SentMessage[Any]]:
    """Return the matching messages in the backlog of a topic, or in a stream, slot by slot."""
    return [message for message in _all(client, expected.topic) if expected.matches(message)]


def check_sent(client: RmqClient, expected: Expected) -> SentMessage[Any]:
    """Return the first matching message.

    Raises:
        AssertionError: No message matches. The error lists the backlog.
    """
    for message in _all(client, expected.topic):
        if expected.matches(message):
            return message
    there = list(_all(client, expected.topic))
    contents = f"which has {counted(len(there), 'message')}:{_listed(there)}" if there else "which is empty"
    raise AssertionError(f"no {expected} is in the backlog of topic {_name_of(expected.topic)}, {contents}")


def refuse_sent(client: RmqClient, unexpected: Expected) -> None:
    """Raise `AssertionError` if there are matching messages."""
    if matches := sent_to(client, unexpected):
        raise AssertionError(
            f"a {unexpected} is in the backlog of topic {_name_of(unexpected.topic)}:{_listed(matches)}"
        )


def _all(client: RmqClient, topic: Topic[Any] | str) -> Iterator[SentMessage[Any]]:
    known = client._known.viewed(topic)  # pyright: ignore[reportPrivateUsage]
    if known.type is TopicType.STREAM:
        for entry in client.stream(known).range():
            yield SentMessage(known, entry.content, entry.body, entry.body, None, None, 1)
        return
    view = client.inspect(known)
    for slot in view.stats().slots:
        if slot.backlog:
            for message in view.pages(slot.slot, "store"):
                kept = (message.body, message.value, message.due_ms, message.priority, message.merged)
                yield SentMessage(known, message.content, *kept)


def _name_of(topic: Topic[Any] | str) -> str:
    return topic if isinstance(topic, str) else topic.name


def _listed(messages: list[SentMessage[Any]]) -> str:
    lines = [f"\n  {_shown(message)}" for message in messages[:MOST_SHOWN]]
    more = len(messages) - MOST_SHOWN
    return "".join(lines) + (f"\n  and {more} more" if more > 0 else "")


def _shown(message: SentMessage[Any]) -> str:
    parts = {"body": message.value, "due": message.due, "priority": message.priority}
    return ", ".join([repr(message.text), *(f"{name} {value}" for name, value in parts.items() if value is not None)])
