"""Entries of stream topics as senders make them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rmq._model.payloads import Payload, payload_bytes
from rmq.errors import InvalidMessageError

CONTENT, BODY = b"content", b"body"
"""The fields of an entry that was sent with a content."""

ID = b"rmq:id"
"""Stands before the id of an entry that is to have one, among the values that go to Redis."""

_ID = re.compile(r"(0|[1-9][0-9]{0,15})-(?:(0|[1-9][0-9]{0,15})|\*)")

MAX_FIELDS = 500
"""Most fields of an entry."""


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """An entry of a log: delivered in the order of sending within its slot, to every group, and never merged.

    Args:
        content: A content like that of other messages, or the entry's fields, name -> value: 1 to 500 of them.
        slot_basis: What the slot is computed from instead of the content or the fields: messages of one basis keep
            their order.
        body: Optional payload beside a content; not beside fields.
        id: Id that the entry is to have, above all others of its slot: `<number>-<number>`; or `<number>-*`, and Redis
            gives the second number, the next one. By default it gives both. A send with `5-*` whose reply was lost is
            not repeated by itself: `ReplyLostError`.

    Raises:
        InvalidMessageError: A value breaks its rule.

    Examples:
        >>> clicks = client.producer(Topic("clicks", TopicType.STREAM))
        >>> clicks.send_many(StreamMessage(f"page:{number}") for number in range(3)).new
        3
    """

    content: Payload | Mapping[str, Payload]
    slot_basis: Payload | None = None
    body: Payload | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.content, Mapping):
            if not 0 < len(self.content) <= MAX_FIELDS:
                raise InvalidMessageError(f"an entry has {len(self.content)} fields; it must have 1 to {MAX_FIELDS}")
            if self.body is not None:
                raise InvalidMessageError("an entry made of fields has no body; put it into a field")
        if self.id is not None and not is_full_id(self.id):
            raise InvalidMessageError(
                f"id is {self.id!r:.80}; it must be two whole numbers below 2^53 with a hyphen between them above 0-0, "
                "or one such a number and -*, as in 5-*"
            )

    def flat(self) -> tuple[bytes, ...]:
        """Return the fields as Redis takes them: name, value, name, value ...; none for a message with a content."""
        if not isinstance(self.content, Mapping):
            return ()
        flat: list[bytes] = []
        for name, value in self.content.items():
            flat.append(payload_bytes(name, "name of a field"))
            if not flat[-1] or flat[-1].startswith(b"rmq:"):
                raise InvalidMessageError(f"field {name!r:.80} must have a name that does not begin with 'rmq:'")
            flat.append(payload_bytes(value, f"field {name!r:.80}"))
        return tuple(flat)


def is_full_id(text: object) -> bool:
    """Return whether an entry may be sent with this id."""
    found = _ID.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return False
    numbers = [int(each) for each in found.groups("1")]  # 0-* is 0-1 at least
    return any(numbers) and max(numbers) < 2**53


def is_open_id(flat: tuple[bytes, ...]) -> bool:
    """Return whether an entry, as it goes to Redis, leaves the second number of its id to Redis."""
    return flat[0] == ID and flat[1].endswith(b"*")
