"""Deletion of a topic: what its definition says of it, and the calls that drop a slot and leave a tombstone there.

A topic is deleted in three steps, each safe to repeat:

1. Its definition gets the field `deleted`, with an identity of this deletion. From then on nobody registers the topic.
2. In each slot one script drops all keys and puts a STRING, the tombstone, in the place of the store. From then on
   every script of the slot is refused (WRONGTYPE, `TopicDeletedError`), of processes that have read the definition
   before, too. The tombstone has the number of messages that were dropped, so that a repeat knows it.
3. The field is marked as done. From then on the same topic may be registered again: one write moves the identity from
   `deleted` to the field `tombstones`, then the tombstones go, then that field. An undone deletion ends
   so, too.

Identities grow with time, and each slot keeps the latest one that was cleared: a client that was stopped in the middle
of a deletion drops nothing that came after it, also if the topic was deleted once more since.

Invariant: as long as a slot has a tombstone of a deletion, the definition has this deletion in one of these fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any, NamedTuple

from rmq._broker.binding import SAFE_AGAIN, BoundScript
from rmq._broker.keys import group_keys, slot_keys
from rmq._io.wire import Argument
from rmq._model.topics import Topic, TopicType
from rmq._transport.call import Call
from rmq.errors import UnreadableDocumentError

DELETED, TOMBSTONES = "deleted", "tombstones"
"""Fields of a definition: the `Deletion` of a topic; the identity of one whose tombstones are still to be removed."""

_ID = re.compile("([0-9]{15}-[0-9a-f]{8})?")
_DELETE = BoundScript("delete_topic", durable=SAFE_AGAIN)


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion, as the definition of a deleted topic has it.

    Attributes:
        id: Its identity: as text above those of earlier deletions of the topic.
        by: Who deletes the topic.
        at_ms: Time at which it began, epoch ms.
        force: Whether it drops messages, too; a repeat goes on with it.
        done: Whether all slots have their tombstones.
    """

    id: str
    by: str
    at_ms: int
    force: bool = False
    done: bool = False

    @classmethod
    def begun(cls, by: str, now_ms: int, cleared: str, *, force: bool) -> Deletion:
        """Return a new deletion.

        Args:
            by: Who deletes the topic.
            now_ms: Redis' time.
            cleared: Identity of the latest deletion that was cleared, or empty: a clock may be behind it.
            force: Whether it drops messages, too.
        """
        number = max(now_ms, int(cleared.partition("-")[0] or 0) + 1)
        return cls(f"{number:015}-{token_hex(4)}", by, now_ms, force)

    @classmethod
    def of(cls, fields: Mapping[str, Any], what: str) -> Deletion | None:
        """Return the deletion of a topic by the fields of its definition; `None` if it is not deleted.

        Raises:
            UnreadableDocumentError: A field on deletion is damaged; the error calls the definition `what`.
        """
        found: Any = fields.get(DELETED)
        own = None
        try:
            if found is not None:
                own = cls(found["id"], found["by"], found["at_ms"], found["force"], found["done"])
            valid = all(_ID.fullmatch(each) for each in (fields.get(TOMBSTONES, ""), own.id if own else ""))
            str(own)  # not every number is a time
        except (KeyError, OSError, OverflowError, TypeError, ValueError):
            valid = False
        if not valid:
            raise UnreadableDocumentError(f"{what} cannot be read: its record of the topic's deletion is invalid")
        return own

    def completed(self) -> Deletion:
        """Return the deletion as done."""
        return replace(self, done=True)

    def to_fields(self) -> dict[str, Any]:
        """Return the field for the definition."""
        return {DELETED: asdict(self)}

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.at_ms / 1000, UTC)
        return f"{when:%Y-%m-%d %H:%M:%S} UTC by {self.by}"


class SlotDeletion(NamedTuple):
    """What came of a step of a deletion in a slot.

    Attributes:
        outcome: `buried`: the slot has its tombstone; `kept`: it holds messages; `groups`: its stream has more groups
            than the call named; `cleared`: the deletion is over here: cleared, or a later one has begun.
        messages: Number of messages that were dropped, or that the slot holds.
    """

    outcome: str
    messages: int


def delete_slot(topic: Topic, slot: int, deletion: str, groups: Sequence[str], *, force: bool) -> Call[SlotDeletion]:
    """Return a call that drops a slot and leaves a tombstone; without `force` only if it holds nothing.

    Args:
        topic: The definition.
        slot: The slot.
        deletion: Identity of the deletion.
        groups: Names of the groups of a stream.
        force: Whether to drop what the slot holds.
    """
    kept = ("store", "meta", "wake") if slot else ("store", "meta", "wake", "audit")  # it says who deletes the topic
    own = asdict(slot_keys(topic.name, slot))
    others = [key for name, key in own.items() if name not in kept]
    for group in groups:
        others += [key for key in astuple(group_keys(topic.name, slot, group)) if key not in own.values()]
    return _call(topic, slot, others, deletion, "drop" if force else "ask", groups)


def clear_slot(topic: Topic, slot: int, deletion: str) -> Call[SlotDeletion]:
    """Return a call that removes the tombstone of a deletion, or of an earlier one, from a slot."""
    return _call(topic, slot, (), deletion, "clear", ())


def _call(
    topic: Topic, slot: int, others: Sequence[str], deletion: str, step: str, groups: Sequence[str]
) -> Call[SlotDeletion]:
    def parse(reply: list[bytes]) -> SlotDeletion:
        return SlotDeletion(reply[0].decode(), int(reply[1]))

    keys = slot_keys(topic.name, slot)
    named: Argument = len(groups) if topic.type is TopicType.STREAM else ""
    names = (keys.store, keys.meta, *others)
    return _DELETE.call_on(topic.name, parse, names, slot=slot, deletion=deletion, step=step, groups=named)
