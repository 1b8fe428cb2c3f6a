"""Script calls of the batch reader and of streaming queries.

A query reads the same batch again after a crash, and may refuse single rows of it. A query on a STREAM topic moves its
consumer group instead, from `position` on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal, NamedTuple

from rmq import Owner, Topic, TopicType
from rmq.errors import BatchAckedError, BatchLostError, DriverReplacedError, InvalidValueError
from rmq.spi import AnyPlace
from rmq.spi.scripts import (
    CLAIM_BYTES,
    MAX_BATCH,
    NO_OWNER,
    BoundScript,
    Call,
    Lock,
    claim_order_of,
    group_keys,
    query_keys,
    refusal,
    score_of,
    slot_keys,
    take_lock,
    unwrap,
)

REFUSALS = {
    "RMQ_ACKED": refusal(
        BatchAckedError,
        "{target}: this query's batches are acked up to {}. The task belongs to an earlier batch, or the "
        "checkpoint is an old copy",
    ),
    "RMQ_COPIES": refusal(
        BatchLostError,
        "{target}: Redis has evicted the bodies of {} messages of this batch, as it does at maxmemory under a "
        "volatile-* policy. Set maxmemory-policy to noeviction and restart the query; the messages "
        "are redelivered when their leases expire",
    ),
    "RMQ_DRIVER": refusal(
        DriverReplacedError,
        "{target}: a newer driver ({}) runs this query; only one driver may run from a checkpoint or a copy of it",
    ),
    "RMQ_LOST": refusal(
        BatchLostError,
        "{target}: the leases of {} messages expired while their batch was running, and other workers "
        "claimed them. Restart the query, or set failOnLeaseLost to false to continue without them",
    ),
}
"""Error codes of the queries' scripts, and the errors they become."""

_ENTER, _READ, _SETTLE = (
    BoundScript("spark_enter"),
    BoundScript("spark_read", REFUSALS),
    BoundScript("spark_settle", REFUSALS),
)
_SCAN, _FORGET = BoundScript("spark_scan"), BoundScript("spark_forget", REFUSALS)

CHUNK = MAX_BATCH
"""Maximum number of messages in a chunk, the part of a batch that one call reads, acks or renews."""

KEEP_S = 30 * 86_400
"""Lifetime of an idle query's record in Redis, seconds."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that plans a query's batches: the identity in its checkpoint, and a generation that increases."""

    query: str
    generation: int


class Claim(NamedTuple):
    """The claim of a driver on a chunk of a batch, as text in the column `claim`."""

    driver: Driver
    seq: int
    chunk: int

    @property
    def text(self) -> str:
        """The value of the column `claim`."""
        return f"{self.driver.query}:{self.driver.generation}:{self.seq}:{self.chunk}"


@dataclass(frozen=True, slots=True)
class Reading:
    """The settings with which a driver reads a batch, the same for all its chunks.

    Attributes:
        driver: The driver that planned the batch.
        seq: Number of the batch.
        size: Maximum number of messages in the batch.
        max_replays: After this number of replays each further replay halves the batch.
        strict: Raise an error if messages of a chunk were lost.
        chunk_bytes: Maximum size of the contents and bodies that a chunk claims, bytes; a single message may be larger.
        bodies: Whether to read the bodies.
        owners: Slot -> its owner; empty without owners.
    """

    driver: Driver
    seq: int
    size: int
    max_replays: int
    strict: bool
    chunk_bytes: int = CLAIM_BYTES
    bodies: bool = True
    owners: Mapping[int, Owner] = field(default_factory=dict[int, Owner])


class Entered(NamedTuple):
    """The reply to a driver's start: its generation, the last acked batch (0 if none), and whether the query was known.

    The generation is 0 if the record was required and is missing.
    """

    generation: int
    acked: int
    known: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk that was read; its messages as columns, in the order of delivery.

    Attributes:
        claimed: Number of messages at its first read.
        left_out: Number of messages omitted now, because other workers took or settled them.
        buried: Number of messages that died in this read: no retries left, or isolated as the cause of failures.
        contents: The contents.
        scores: Their store scores.
        bodies: Their bodies, `None` for a message without one; `None` if none has a body or bodies were not read.
        traces: Their trace contexts, in the same form; empty for a message without one.
        claim: Identifies this read of the chunk in its rows, see `Claim`.
        resume: Where the search must go on, since only messages in flight were found so far; 0 if the chunk was read.
    """

    claimed: int
    left_out: int
    buried: int
    contents: list[bytes]
    scores: list[int]
    bodies: list[bytes | None] | None
    traces: list[str] | None = None
    claim: str = field(default="", compare=False)
    resume: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all contents and bodies."""
        return sum(map(len, self.contents)) + sum(len(body) for body in self.bodies or () if body is not None)


class Settled(NamedTuple):
    """Numbers of messages of a chunk: acked or renewed, taken by others, returned by its last replay, refused.

    `more` is 1 if the call has ended early, as its budget was used up, and must be repeated.
    """

    done: int
    lost: int
    put_back: int = 0
    refused: int = 0
    more: int = 0


class Page(NamedTuple):
    """A page of the messages of one state in a slot.

    Attributes:
        cursor: Start of the next page; empty at the end.
        size: Number of messages in this state.
        rows: (content, score, body, reason) per message; the body as stored, the reason of dead messages only.
        rest: Contents of this page that must be read by name (`named`), because they are large.
    """

    cursor: str
    size: int
    rows: list[tuple[bytes, int, bytes | None, bytes | None]]
    rest: Sequence[bytes] = ()


class Parts(NamedTuple):
    """The optional parts of messages to read, in addition to contents and scores."""

    bodies: bool
    reasons: bool


BOTH = Parts(bodies=True, reasons=True)


class PlaceKeys(NamedTuple):
    """The keys of a state in a slot: its messages, their bodies, and their reasons of death."""

    zset: str
    body: str
    reason: str


def place_keys(topic: Topic, slot: int, place: AnyPlace) -> PlaceKeys:
    """Return the keys for a read of one state."""
    keys = slot_keys(topic.name, slot)
    body = keys.dead_body if place == "dead" else keys.body
    if topic.merge is not None and place in ("prepare", "retry"):
        body = keys.held
    return PlaceKeys(getattr(keys, place), body, keys.reason)


def read_place(
    topic: Topic,
    slot: int,
    place: AnyPlace,
    how: Literal["scan", "named"],
    cursor: str = "0",
    most: int = 0,
    contents: Sequence[bytes] = (),
    parts: Parts = BOTH,
) -> Call[Page]:
    """Return a call that reads a page of the messages of one state in a slot.

    Args:
        topic: The definition.
        slot: The slot.
        place: The state.
        how: `scan` reads about `most` messages from the cursor on; `named` reads up to `MAX_BATCH` messages by content,
            omitting those that have left the state.
        cursor: Position at which a scan continues; empty at the start.
        most: Maximum number of messages.
        contents: The contents to read with `named`.
        parts: The parts to read in addition to contents and scores.
    """
    keys, reasoned = place_keys(topic, slot, place), place == "dead" and parts.reasons

    def parse(reply: list[Any]) -> Page:
        _, following, size, items, bodies, reasons, rest = reply
        contents, scores = items[::2], [score_of(score) for score in items[1::2]]
        none: Iterable[bytes | None] = repeat(None)
        rows = list(zip(contents, scores, bodies or none, reasons or none, strict=False))
        return Page("" if following == b"0" else following.decode(), int(size), rows, rest)

    args: dict[str, Any] = {"how": how, "cursor": cursor, "most": most, "contents": contents[:MAX_BATCH]}
    wanted: dict[str, Any] = {"reasons": int(reasoned), "bodies": int(parts.bodies)}
    return _SCAN.call(topic, slot, parse, keys={"zset": keys.zset, "body": keys.body}, **args, **wanted)


def enter(topic: Topic, query: str, *, needed: bool = False) -> Call[Entered]:
    """Return a call on slot 0 that starts a driver; with `needed` it fails if Redis has no record of the query."""

    def parse(reply: list[bytes]) -> Entered:
        return Entered(int(reply[0]), int(reply[1]), reply[2] == b"1")

    keys = {"query": query_keys(topic.name, 0, query).query}
    return _ENTER.call(topic, 0, parse, keys=keys, keep_s=KEEP_S, needed=int(needed))


def read(
    topic: Topic, reading: Reading, slot: int, chunk: int, limit: int, before: int = 0, start: int = 0
) -> Call[Chunk]:
    """Return a call that reads a chunk of up to `limit` (1 to `CHUNK`) messages, claiming them the first time.

    Args:
        topic: The definition.
        reading: The settings of its batch.
        slot: The slot.
        chunk: Number of the chunk in the slot's part of the batch.
        limit: Maximum number of messages in the chunk.
        before: Maximum number of messages in the batch's earlier chunks.
        start: Rank at which the search for due messages begins, `resume` of the reply before.
    """
    owner = reading.owners.get(slot, NO_OWNER)
    claim = Claim(reading.driver, reading.seq, chunk)

    def parse(reply: list[Any]) -> Chunk:
        claimed, left_out, buried, items, bodies, *resume = reply
        scores, sent = list(map(score_of, items[1::2])), list(map(unwrap, bodies))
        said = ([body for body, _ in sent], [trace for _, trace in sent]) if sent else (None, None)
        return Chunk(int(claimed), int(left_out), int(buried), items[::2], scores, *said, claim.text, int(*resume))

    return _READ.call(
        topic,
        slot,
        parse,
        keys=_keys(topic, slot, reading.driver),
        **_arguments(claim),
        limit=limit,
        before=before,
        size=reading.size,
        order=claim_order_of(topic),
        max_replays=reading.max_replays,
        strict=int(reading.strict),
        most_bytes=reading.chunk_bytes,
        bodies=int(reading.bodies),
        **owner._asdict(),
        start=start,
    )


def _arguments(claim: Claim) -> dict[str, Any]:
    """Return the arguments that identify a chunk, and the time for which Redis keeps what it knows of the query."""
    return {"generation": claim.driver.generation, "seq": claim.seq, "chunk": claim.chunk, "keep_s": KEEP_S}


def _keys(topic: Topic, slot: int, driver: Driver) -> dict[str, str]:
    own = query_keys(topic.name, slot, driver.query)
    return {"query": own.query, "query_body": own.body}


def settle(
    topic: Topic,
    slot: int,
    driver: Driver,
    seq: int,
    chunk: int,
    verb: Literal["ack", "renew"],
    owner: Owner = NO_OWNER,
) -> Call[Settled]:
    """Return a call that acks a chunk or renews its leases; for chunk -1 it only records that the batch is acked.

    An ack must be repeated while `more` in its reply is 1.
    """
    return _SETTLE.call(
        topic,
        slot,
        lambda reply: Settled(*map(int, reply)),
        keys=_keys(topic, slot, driver),
        **_arguments(Claim(driver, seq, chunk)),
        verb=verb,
        keep_first=int(topic.type is TopicType.RANGE_MERGE),
        **owner._asdict(),
    )


def forget(topic: Topic, slot: int, driver: Driver, seq: int, chunk: int) -> Call[int]:
    """Return a call that removes a chunk's record, whoever owns the slot; its result is the number of its messages."""
    args = _arguments(Claim(driver, seq, chunk))
    return _FORGET.call(topic, slot, int, keys=_keys(topic, slot, driver), **args)


_REFUSE = BoundScript("spark_refuse", REFUSALS)
_CLAIM = re.compile("([0-9a-f]{32}):([0-9]{1,15}):([0-9]{1,15}):([0-9]{1,9})")


class How(NamedTuple):
    """The treatment of refused messages, with the reason.

    Attributes:
        delay_ms: Delay until their retry; `None` makes them dead messages.
        error_type: Type of the error, e.g. `ValueError`; may be empty.
        error_message: Message of the error, at most 1,000 characters.
    """

    delay_ms: int | None
    error_type: str
    error_message: str


class Refused(NamedTuple):
    """The result of a refusal.

    Attributes:
        noted: Number of rows that the ack of their batch will exclude.
        missing: Number of rows that are not in their batch.
    """

    noted: int
    missing: int


def read_claim(text: str) -> Claim:
    """Parse a value of the column `claim`.

    Raises:
        InvalidValueError: The text is not a value of the column `claim`.
    """
    found = _CLAIM.fullmatch(text)
    if found is None:
        raise InvalidValueError(
            f"claim is {text!r:.100}; it must be a value of the column claim of readStream, unchanged"
        )
    return Claim(Driver(found[1], int(found[2])), int(found[3]), int(found[4]))


def refuse_contents(topic: Topic, slot: int, claim: Claim, how: How, contents: Sequence[bytes]) -> Call[Refused]:
    """Return a call that stores the refusal of up to `CHUNK` messages of a chunk."""
    return _REFUSE.call(
        topic,
        slot,
        lambda reply: Refused(*map(int, reply)),
        keys={"query": query_keys(topic.name, slot, claim.driver.query).query},
        **_arguments(claim),
        verb="bury" if how.delay_ms is None else "back",
        delay_ms=how.delay_ms or 0,
        error_type=how.error_type,
        error_message=how.error_message,
        contents=contents[:CHUNK],
    )


_DRIVER = "{target}: another driver ({}) reads the topic with this group; a group has only one driver"
_CONSUMERS = (
    "{target}: the group has {} consumers, but a query needs a group without consumers; use another group, or remove "
    "the consumers"
)
_REPLACED = {"RMQ_DRIVER": refusal(DriverReplacedError, _DRIVER)}
_POSITION = BoundScript("spark_position", {"RMQ_CONSUMERS": refusal(InvalidValueError, _CONSUMERS)})
_WALK, _ADVANCE = BoundScript("spark_walk"), BoundScript("spark_advance", _REPLACED)
_TRIM = BoundScript("spark_trim", _REPLACED)


class Standing(NamedTuple):
    """The position of a group in a slot.

    Attributes:
        position: Id of the last entry that it has committed; empty if the group does not exist.
        newest: Id of the newest entry; empty if there is none.
        sent: Number of entries ever added for the group; `None` if unknown, since it started at an id.
        read: Number of entries that it has read or skipped.
    """

    position: str
    newest: str
    sent: int | None
    read: int


class Reach(NamedTuple):
    """The range of entries of a slot to count.

    Attributes:
        after: Id of the entry before the first one.
        upto: Id of the last entry, or `+`.
        limit: Maximum number of entries, 1 to `MAX_BATCH`.
        most_bytes: Maximum size of their fields, bytes.
        any_size: Whether the first entry may be larger.
    """

    after: str
    upto: str
    limit: int
    most_bytes: int
    any_size: bool


class Walked(NamedTuple):
    """The next entries of a slot.

    Attributes:
        position: Id of the last entry that the group has committed; empty if it does not exist.
        last: Id of the last entry counted; empty for none.
        number: Number of entries counted.
        size_bytes: Size of their fields, bytes.
        more: Whether there are more entries in the range.
        sent: Number of entries ever added for the group; `None` if unknown.
    """

    position: str
    last: str
    number: int
    size_bytes: int
    more: bool
    sent: int | None


class Dropped(NamedTuple):
    """The result of trimming a slot.

    Attributes:
        number: Number of dropped entries.
        more: Whether more entries can be dropped than one call may drop.
        held: Whether a group still needs entries in the range.
    """

    number: int
    more: bool
    held: bool


def _count(text: bytes) -> int | None:
    return int(text) if text else None


def position(topic: Topic, slot: int, group: str, driver: str) -> Call[Standing]:
    """Return a call that starts a driver on a slot."""

    def parse(reply: list[bytes]) -> Standing:
        return Standing(reply[0].decode(), reply[1].decode(), _count(reply[2]), int(reply[3]))

    return _POSITION.call(topic, slot, parse, group=group, driver=driver)


def walk(topic: Topic, slot: int, group: str, reach: Reach) -> Call[Walked]:
    """Return a call that counts the next entries of a slot."""

    def parse(reply: list[bytes]) -> Walked:
        at, last, number, size, more, sent = reply
        return Walked(at.decode(), last.decode(), int(number), int(size), more == b"1", _count(sent))

    args: dict[str, Any] = {**reach._asdict(), "any_size": int(reach.any_size)}
    return _WALK.call(topic, slot, parse, group=group, **args)


def advance(topic: Topic, slot: int, group: str, driver: str, upto: str, read: int, missing: int) -> Call[bool]:
    """Return a call that commits a slot up to an id; its result is whether the group has moved.

    Args:
        topic: The definition.
        slot: The slot.
        group: Name of the group.
        driver: Identity of the driver.
        upto: Id of the last entry that is committed.
        read: Number of entries that the group has read or skipped by then.
        missing: Number of entries of the last batch that were trimmed or deleted before they were read.
    """
    return _ADVANCE.call(
        topic, slot, lambda reply: reply == b"1", group=group, driver=driver, upto=upto, read=read, missing=missing
    )


def trim(topic: Topic, slot: int, group: str, driver: str, upto: str) -> Call[Dropped]:
    """Return a call that trims entries of a slot up to an id; the group has committed them, and no other needs them."""

    def parse(reply: list[bytes]) -> Dropped:
        return Dropped(int(reply[0]), reply[1] == b"1", reply[2] == b"1")

    return _TRIM.call(topic, slot, parse, group=group, driver=driver, upto=upto)


def lock_run(topic: Topic, group: str, holder: str, hold_ms: int, *, keep: bool) -> Call[Lock]:
    """Return a call that takes, keeps or, with `hold_ms=0`, ends the lock of an archive's run."""
    key = group_keys(topic.name, 0, group).group
    return take_lock(key, "run", holder, hold_ms, "keep" if keep else "take")._replace(topic=topic.name)
