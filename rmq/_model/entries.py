"""Values of stream topics: entries, deliveries, groups and consumers. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from rmq._model.deliveries import Delivery
from rmq._model.messages import BODY, CONTENT
from rmq._model.replies import ClaimedRows, Flat, StreamClaimed
from rmq._model.scores import stamped
from rmq._model.settings import check_name
from rmq._model.times import epoch_number_ms, instant_ms
from rmq._model.topics import Topic, TopicType
from rmq._model.typed import PayloadT
from rmq.errors import InvalidValueError

ONLY_GROUP = b"rmq:group"
"""First field of a copy that was redriven into one group; its value is the group's name."""

WAITING = "(waiting)"
"""Name of the consumer that holds a group's entries while they wait for a retry; invalid for other consumers."""

OWN_MARK = b"#"
"""Separates a consumer's name from a claim's stamp, in the name under which that claim holds its entries."""

_OWN = 10**9
"""Claim scores from here on are stamp x 1000 + 1: the claim holds its entries under a name of its own. Lower ones are
the number of the delivery."""

_ID = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")
_LAST = 2**64 - 1


def consumer_of(holder: bytes) -> str:
    """Return the consumer to which the name belongs under which a claim holds entries."""
    return holder.partition(OWN_MARK)[0].decode(errors="backslashreplace")


def own_score(stamp: int) -> int:
    """Return the claim score of entries that the claim with this stamp holds under its own name; 1 without a stamp."""
    return stamped(stamp, 1)


Position = str | int | datetime
"""A position in a stream: an entry's id, epoch ms, or an aware `datetime`."""


def checked_group(name: str) -> str:
    """Return a group's name; raises `InvalidValueError` if it is invalid."""
    check_name("group", name)
    return name


def checked_consumer(name: str) -> str:
    """Return a consumer's name; raises `InvalidValueError` if it is invalid."""
    check_name("consumer name", name, ":@")
    return name


def check_group(topic: Topic, group: str | None, start: str, resume_as: str | None = None) -> None:
    """Raise `InvalidValueError` unless `group`, `start` and `resume_as` are valid for a consumer of this topic."""
    if resume_as is not None:
        checked_consumer(resume_as)
        if topic.type is not TopicType.STREAM:
            raise InvalidValueError(
                f"topic {topic.name} is {topic.type.name}; only consumers of STREAM topics take resume_as"
            )
    if topic.type is TopicType.STREAM:
        if group is None:
            raise InvalidValueError(f"group is None; a consumer of topic {topic.name}, which is STREAM, needs a group")
        checked_group(group)
        if start not in ("new", "all") and not is_id(start):
            raise InvalidValueError(f"start is {start!r}; it must be 'new', 'all' or an entry's id")
    elif group is not None:
        raise InvalidValueError(f"topic {topic.name} is {topic.type.name}; only STREAM topics have groups")


def position(value: Position, name: str) -> str:
    """Return a position in Redis' form; a time means all ids of that millisecond. Errors call the position `name`."""
    if not isinstance(value, str):
        return str(epoch_number_ms(value, name) if isinstance(value, int) else instant_ms(value, name))
    if not is_id(value):
        raise InvalidValueError(f"{name} is {value!r}; it must be an entry's id, epoch ms or an aware datetime")
    return value


def bound(value: Position, name: str) -> str:
    """Return a position as the start or end of a range; `(` before an id excludes that id."""
    return f"({position(value[1:], name)}" if isinstance(value, str) and value[:1] == "(" else position(value, name)


def is_id(text: object) -> bool:
    """Return whether a value is an entry's id: one number or two with a hyphen between them, each below 2^64."""
    found = _ID.fullmatch(text) if isinstance(text, str) else None
    return found is not None and all(int(number or 0) <= _LAST for number in found.groups())


def id_key(entry_id: str) -> tuple[int, int]:
    """Return an id as a tuple that sorts in the order of the stream."""
    ms, _, sequence = entry_id.partition("-")
    return int(ms), int(sequence or 0)


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An entry of a stream topic.

    Attributes:
        id: Its id, by default `<epoch ms>-<number>`, by which the entries of a slot are ordered.
        flat: Its fields as Redis returned them: name, value, name, value ...

    Examples:
        >>> topic = client.producer(Topic("clicks", TopicType.STREAM)).topic
        >>> _ = client.producer(topic).send(StreamMessage("page:1"))
        >>> [entry.content for entry in client.stream(topic).range()]
        [b'page:1']
    """

    topic: str
    slot: int
    id: str
    flat: tuple[bytes, ...]

    @property
    def fields(self) -> dict[str, bytes]:
        """The entry's fields by name."""
        return fields_of(self.flat)

    @property
    def content(self) -> bytes:
        """The entry's content; for an entry sent as fields, the fields as JSON."""
        return content_of(self.flat)

    @property
    def body(self) -> bytes | None:
        """The entry's body; `None` if it has none, or was sent as fields."""
        return body_of(self.flat)

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 show as backslash escapes."""
        return self.content.decode(errors="backslashreplace")

    @property
    def time_ms(self) -> int:
        """Time at which Redis added the entry, epoch ms; the first number of its id if the sender chose the id."""
        return id_key(self.id)[0]

    @property
    def only_group(self) -> str | None:
        """The group for which this entry was redriven, as a copy; `None` for an entry for all groups."""
        return self.flat[1].decode() if self.flat and self.flat[0] == ONLY_GROUP else None


def fields_of(flat: Flat) -> dict[str, bytes]:
    """Return an entry's fields by name, without those that RMQ added."""
    start = 2 if flat and flat[0] == ONLY_GROUP else 0
    names = (name.decode(errors="backslashreplace") for name in flat[start::2])
    return dict(zip(names, flat[start + 1 :: 2], strict=True))


def content_of(flat: Flat) -> bytes:
    """Return an entry's content; for an entry sent as fields, the fields as JSON."""
    if flat and flat[0] == CONTENT:
        return flat[1]
    fields = fields_of(flat)
    if "content" in fields:
        return fields["content"]
    shown = {name: value.decode(errors="backslashreplace") for name, value in fields.items()}
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()


def body_of(flat: Flat) -> bytes | None:
    """Return an entry's body; `None` if it has none, or was sent as fields."""
    if flat and flat[0] == CONTENT:
        return flat[3] if len(flat) == 4 and flat[2] == BODY else None
    fields = fields_of(flat)
    return fields.get("body") if "content" in fields else None


class EntryRows(ClaimedRows):
    """The entries of a claim for a group, as columns.

    Attributes:
        entries: The entries as they were claimed.
        group: The group.
        by_count: Whether their claim score is the number of their delivery, which other claims have, too.
    """

    __slots__ = ("by_count", "entries", "group")

    counted = False

    def __init__(self, entries: Sequence[StreamClaimed], group: str) -> None:
        contents, scores, claim_scores, bodies, names, _ = zip(*entries, strict=True)
        super().__init__(contents, scores, claim_scores, () if bodies.count(None) == len(bodies) else bodies, True)
        self.entries, self.group, self.names = entries, group, names
        self.by_count = claim_scores[0] < _OWN


class StreamDelivery(Delivery[PayloadT]):
    """A delivery of a stream topic: acked, nacked and renewed for its `group`.

    Examples:
        >>> clicks = Topic("clicks", TopicType.STREAM)
        >>> consumer = client.consumer(clicks, group="billing", start="all")
        >>> _ = client.producer(clicks).send(StreamMessage("page:1"))
        >>> [(delivery.text, delivery.ack()) for delivery in consumer.poll(timeout=5)]
        [('page:1', True)]
    """

    __slots__ = ()

    @property
    def _claimed(self) -> StreamClaimed:
        return cast("EntryRows", self.claim.rows).entries[self.row]

    @property
    def group(self) -> str:
        """The group of consumers for which the entry was claimed."""
        return self.claim.rows.group or ""

    @property
    def name(self) -> bytes:
        """The entry's id, in bytes."""
        return self._claimed.id

    @property
    def id(self) -> str:
        """The entry's id."""
        return self._claimed.id.decode()

    @property
    def fields(self) -> Mapping[str, bytes]:
        """The entry's fields by name; `content` and, if it has one, `body` for an entry sent with a content."""
        return fields_of(self._claimed.flat or (CONTENT, self.content))

    @property
    def attempt(self) -> int:
        """Number of this delivery of the entry to this group, from 1."""
        score = self._claimed.claim_score  # the token, `claim_score` of this delivery, may be taken away
        return score if score < _OWN else 1

    @property
    def retries_left(self) -> int:
        """Number of retries left if this delivery fails; 0 if the entry would be dead."""
        return max(0, self.topic.max_retries + 1 - self.attempt)

    @property
    def priority(self) -> int | None:
        """`None`: entries have no priority."""
        return None

    @property
    def time_ms(self) -> int:
        """Time at which Redis added the entry, epoch ms; the first number of its id if the sender chose the id."""
        return id_key(self.id)[0]

    def __repr__(self) -> str:
        where = f"{self.topic.name}, slot {self.slot}, group {self.group}"
        return f"<StreamDelivery {self.id} of {where}, attempt {self.attempt}>"


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """An entry that was delivered to a group and is not acked.

    Attributes:
        consumer: Name of the consumer that holds the entry; `None` while it waits for a retry.
        idle_ms: Time since its last delivery or the last renewal of its lease, ms.
        deliveries: Number of its deliveries.

    Examples:
        >>> clicks = Topic("clicks", TopicType.STREAM)
        >>> consumer = client.consumer(clicks, group="billing", start="all")
        >>> _ = client.producer(clicks).send(StreamMessage("page:1"))
        >>> claimed = consumer.poll(timeout=5)
        >>> len(list(client.stream(clicks).pending("billing")))
        1
    """

    slot: int
    id: str
    consumer: str | None
    idle_ms: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result of trimming one slot.

    Attributes:
        due: Whether trimming was due; if not, nothing was done.
        dropped: Number of dropped entries.
        more: Whether entries remain to be dropped, beyond the limit of one call.
        length: Number of remaining entries.

    Examples:
        >>> clicks = client.producer(Topic("clicks", TopicType.STREAM)).topic
        >>> [trimmed.slot for trimmed in client.stream(clicks).trim()]
        [0]
    """

    slot: int
    due: bool
    dropped: int
    more: bool
    length: int
