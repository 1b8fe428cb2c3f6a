"""Script calls of the batch reader and of streaming queries, which can read the same batch again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal, NamedTuple

from rmq._broker.binding import BoundScript, claim_order_of, refusal
from rmq._broker.claims import CLAIM_BYTES, MAX_BATCH
from rmq._broker.keys import query_keys, slot_keys
from rmq._model.records import unwrap
from rmq._model.replies import NO_OWNER, Owner
from rmq._model.scores import score_of
from rmq._model.topics import Topic, TopicType
from rmq._model.whereabouts import AnyPlace
from rmq._transport.call import Call
from rmq.errors import BatchAckedError, BatchLostError, DriverReplacedError

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
        "{target}: the leases of {} messages expired while their batch was running, and other workers took "
        "them. Restart the query, or set failOnLeaseLost to false to continue without them",
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
        owners: Slot -> its owner; empty without ZooKeeper.
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
    """

    claimed: int
    left_out: int
    buried: int
    contents: list[bytes]
    scores: list[int]
    bodies: list[bytes | None] | None
    traces: list[str] | None = None
    claim: str = field(default="", compare=False)

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


def read(topic: Topic, reading: Reading, slot: int, chunk: int, limit: int, before: int = 0) -> Call[Chunk]:
    """Return a call that reads a chunk of up to `limit` (1 to `CHUNK`) messages, claiming them the first time.

    Args:
        topic: The definition.
        reading: The settings of its batch.
        slot: The slot.
        chunk: Number of the chunk in the slot's part of the batch.
        limit: Maximum number of messages in the chunk.
        before: Maximum number of messages in the batch's earlier chunks.
    """
    owner = reading.owners.get(slot, NO_OWNER)
    claim = Claim(reading.driver, reading.seq, chunk)

    def parse(reply: list[Any]) -> Chunk:
        claimed, left_out, buried, items, bodies = reply
        scores, sent = list(map(score_of, items[1::2])), list(map(unwrap, bodies))
        said = ([body for body, _ in sent], [trace for _, trace in sent]) if sent else (None, None)
        return Chunk(int(claimed), int(left_out), int(buried), items[::2], scores, *said, claim.text)

    return _READ.call(
        topic,
        slot,
        parse,
        keys=_keys(topic, slot, reading.driver),
        generation=reading.driver.generation,
        seq=reading.seq,
        chunk=chunk,
        limit=limit,
        before=before,
        size=reading.size,
        order=claim_order_of(topic),
        max_replays=reading.max_replays,
        strict=int(reading.strict),
        keep_s=KEEP_S,
        most_bytes=reading.chunk_bytes,
        bodies=int(reading.bodies),
        epoch=owner.epoch,
        ensemble=owner.ensemble,
    )


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

    def parse(reply: list[bytes]) -> Settled:
        return Settled(*map(int, reply))

    return _SETTLE.call(
        topic,
        slot,
        parse,
        keys=_keys(topic, slot, driver),
        generation=driver.generation,
        seq=seq,
        chunk=chunk,
        verb=verb,
        keep_s=KEEP_S,
        keep_first=int(topic.type is TopicType.RANGE_MERGE),
        epoch=owner.epoch,
        ensemble=owner.ensemble,
    )


def forget(topic: Topic, slot: int, driver: Driver, seq: int, chunk: int) -> Call[int]:
    """Return a call that removes a chunk's record, whoever owns the slot; its result is the number of its messages."""
    args: dict[str, Any] = {"generation": driver.generation, "seq": seq, "chunk": chunk, "keep_s": KEEP_S}
    return _FORGET.call(topic, slot, int, keys=_keys(topic, slot, driver), **args)
