"""Entries of stream topics as senders make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rmq._model.payloads import Payload, payload_bytes
from rmq.errors import InvalidMessageError

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

    Raises:
        InvalidMessageError: A value breaks its rule.
    """

    content: Payload | Mapping[str, Payload]
    slot_basis: Payload | None = None
    body: Payload | None = None

    def __post_init__(self) -> None:
        if isinstance(self.content, Mapping):
            if not 0 < len(self.content) <= MAX_FIELDS:
                raise InvalidMessageError(f"an entry has {len(self.content)} fields; it must have 1 to {MAX_FIELDS}")
            if self.body is not None:
                raise InvalidMessageError("an entry made of fields has no body; put it into a field")

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
