"""Builds the calls of streaming queries: the same batch read again, and not sent again. No I/O; see `rmq.calls`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import repeat
from typing import Any, Literal, NamedTuple

from rmq import calls, stream_calls
from rmq.calls import MAX_BATCH, Argument, Call, all_keys, order_of
from rmq.envelope import unwrap
from rmq.findings import AnyPlace
from rmq.keys import query_keys, sent_key, slot_keys
from rmq.messages import Encoded
from rmq.topics import Topic, TopicType

CHUNK = MAX_BATCH
"""Most messages in a chunk, the part of a batch that one call reads, acks or renews."""

KEEP_S = 30 * 86_400
"""How long Redis remembers a query that does nothing, seconds."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that plans a streaming query's batches.

    Attributes:
        query: Identity of the query; it lives in the query's checkpoint.
        generation: Larger for every later driver of the query.
    """

    query: str
    generation: int


class Entered(NamedTuple):
    """What a driver learns when it begins.

    Attributes:
        generation: Its own; 0 where the query is not known and was needed.
        acked: Number of the last acked batch, 0 for none.
        known: Whether the query had a driver before.
    """

    generation: int
    acked: int
    known: bool


class ChunkRow(NamedTuple):
    """One message of a chunk.

    Attributes:
        content: The content.
        store_score: The score it had in store when it was first claimed: due ms, priority, or retries left.
        body: The body as it was when it was first claimed, or `None`.
    """

    content: bytes
    store_score: int
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk as it is read; its messages by columns, in the order of delivery.

    Attributes:
        claimed: How many messages it had at first.
        left_out: How many are left out now, since others have taken or settled them.
        buried: How many died now: retries used up, or the one that a batch was narrowed down to.
        contents: The contents.
        scores: Their store scores.
        bodies: Their bodies, `None` for one that has none; `None` where no message has one.
    """

    claimed: int
    left_out: int
    buried: int
    contents: list[bytes]
    scores: list[int]
    bodies: list[bytes | None] | None

    @property
    def rows(self) -> tuple[ChunkRow, ...]:
        """The messages, one by one."""
        return tuple(map(ChunkRow, self.contents, self.scores, self.bodies or repeat(None)))

    @property
    def size_bytes(self) -> int:
        """Bytes of all contents and bodies."""
        return sum(map(len, self.contents)) + sum(len(body) for body in self.bodies or () if body is not None)


class Settled(NamedTuple):
    """How an ack or a renewal of a chunk went.

    Attributes:
        done: Messages acked or renewed.
        lost: Messages that others have taken meanwhile.
        put_back: Messages that its last replay has put back to the backlog.
    """

    done: int
    lost: int
    put_back: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """Names a task of a query's batch, and with `of` each chunk that it sends to a slot.

    Attributes:
        query: Identity of the query.
        batch: Number of the batch, from 0.
        partition: Number of the task in the batch.
        keep_s: How long the mark is kept after the query's last send to the slot, seconds.
        chunk: Number of the chunk among those that the task sends to the slot.
        digest: Of its messages.
    """

    query: str
    batch: int
    partition: int
    keep_s: int
    chunk: int = 0
    digest: str = ""

    def of(self, chunk: int, messages: Sequence[Encoded]) -> Mark:
        """Return the mark of one chunk."""
        digest = blake2b(digest_size=12)
        for message in messages:
            # lengths before the parts: no two lists of messages look alike
            sizes = (len(message.content), message.score, -1 if message.body is None else len(message.body))
            digest.update(b"%d %d %d " % sizes + message.content + (message.body or b""))
            for part in message.flat:
                digest.update(b"%d " % len(part))
        return Mark(self.query, self.batch, self.partition, self.keep_s, chunk, digest.hexdigest())

    def without(self, refused: Sequence[int]) -> Mark:
        """Return the mark of the same chunk where the server has refused those of these indices."""
        return replace(self, digest=f"{self.digest}-{'.'.join(map(str, refused))}")

    def refused_in(self, found: bytes | None) -> list[int] | None:
        """Return which of the chunk's messages were refused when it was sent before, as `without` noted it.

        Args:
            found: What Redis has for this task's chunk.

        Returns:
            Their indices; `None` where it was not sent without some.
        """
        known, _, refused = (found or b"").decode().partition("-")
        return list(map(int, refused.split("."))) if refused and known == f"{self.batch}:{self.digest}" else None


class Once(NamedTuple):
    """How a marked chunk was taken.

    Attributes:
        new: Messages that became an entry of their own.
        merged: Messages that merged with one in the backlog.
        skipped: Messages that had been sent before, and were not sent now.
    """

    new: int
    merged: int
    skipped: int


def send_once(topic: Topic, slot: int, messages: Sequence[Encoded], publish: str, mark: Mark) -> Call[Once]:
    """Build the send of a chunk of up to `MAX_BATCH` messages, which does nothing where its mark stands already."""
    keys, stream = slot_keys(topic.name, slot), topic.type is TopicType.STREAM
    build = stream_calls.send if stream else calls.send
    plain = build(topic, slot, messages, publish, False)
    lowest = plain.args[4] if topic.type.timed else 0
    args: list[Argument] = [publish, lowest, topic.max_backlog_per_slot, len(messages), topic.type.value]
    args += [f"{mark.partition}:{mark.chunk}", mark.batch, mark.digest, mark.keep_s]
    args += plain.args[5 if topic.type.timed else 4 :]
    number = len(messages)

    def parse(reply: list[bytes]) -> Once:
        if reply[0] == b"0":
            return Once(0, 0, number)
        return Once(int(reply[1]), number - int(reply[1]), 0)

    names = (keys.store, keys.prepare, keys.body, keys.meta, keys.wake, sent_key(topic.name, slot, mark.query))
    return Call("spark_send", names, args, parse, True, topic.name, slot, durable=True)


class Page(NamedTuple):
    """A part of one place of a slot, or all of it.

    Attributes:
        now_ms: Redis' time, epoch ms.
        cursor: Where the next part begins; empty at the end.
        size: Messages in the place.
        rows: (content, score, body, reason) each; the reason only of the dead.
    """

    now_ms: int
    cursor: str
    size: int
    rows: list[tuple[bytes, int, bytes | None, bytes | None]]


def read_place(
    topic: Topic, slot: int, place: AnyPlace, how: Literal["scan", "all"], cursor: str, most: int
) -> Call[Page]:
    """Build the reading of a place: about `most` from a cursor on (`scan`), or `all` of up to `most` at one instant."""
    keys = slot_keys(topic.name, slot)
    zset = {"store": keys.store, "prepare": keys.prepare, "retry": keys.retry, "dead": keys.dead}[place]
    dead = place == "dead"

    def parse(reply: list[Any]) -> Page:
        now_ms, following, size, items, bodies, reasons = reply
        contents, scores = items[::2], [int(float(score)) for score in items[1::2]]
        sent = [unwrap(body)[0] for body in bodies] or repeat(None)
        why: Iterable[bytes | None] = reasons or repeat(None)
        rows = list(zip(contents, scores, sent, why, strict=False))
        return Page(int(now_ms), "" if following == b"0" else following.decode(), int(size), rows)

    names = (zset, keys.dead_body if dead else keys.body, keys.reason)
    return Call("spark_scan", names, [how, cursor, most, int(dead)], parse, True, topic.name, slot)


def enter(topic: Topic, query: str, *, needed: bool = False) -> Call[Entered]:
    """Build the beginning of a driver's work, on slot 0; `needed`: not of a query that Redis does not know."""

    def parse(reply: list[bytes]) -> Entered:
        return Entered(int(reply[0]), int(reply[1]), reply[2] == b"1")

    key = query_keys(topic.name, 0, query).query
    return Call("spark_enter", (key,), [KEEP_S, int(needed)], parse, True, topic.name, 0)


def read(
    topic: Topic,
    slot: int,
    driver: Driver,
    seq: int,
    chunk: int,
    *,
    limit: int,
    before: int = 0,
    size: int | None = None,
    max_replays: int,
    strict: bool,
) -> Call[Chunk]:
    """Build the reading of a chunk of up to `limit` (1 to `CHUNK`) messages.

    Args:
        topic: The definition.
        slot: The slot.
        driver: Who planned the batch.
        seq: Number of the batch.
        chunk: Number of the chunk in the slot's part of the batch.
        limit: Most messages in it.
        before: Most messages in the batch's chunks before it.
        size: Most messages in the batch; by default it is this chunk.
        max_replays: After so many replays the batch is halved with each further one.
        strict: Refuse where this driver lost messages of the chunk.
    """
    keys, own = slot_keys(topic.name, slot), query_keys(topic.name, slot, driver.query)
    args: list[Argument] = [driver.generation, seq, chunk, limit, before, limit if size is None else size]
    args += [order_of(topic), topic.max_retries, max_replays, int(strict), KEEP_S]

    def parse(reply: list[Any]) -> Chunk:
        claimed, left_out, buried, items, bodies = reply
        scores, sent = list(map(int, items[1::2])), [unwrap(body)[0] for body in bodies] or None
        return Chunk(int(claimed), int(left_out), int(buried), items[::2], scores, sent)

    names = (*all_keys(keys), own.query, own.body)
    return Call("spark_read", names, args, parse, True, topic.name, slot)


def settle(
    topic: Topic, slot: int, driver: Driver, seq: int, chunk: int, verb: Literal["ack", "renew"]
) -> Call[Settled]:
    """Build the ack of a chunk, or the renewal of its leases; chunk -1: only note that the batch is acked."""
    keys, own = slot_keys(topic.name, slot), query_keys(topic.name, slot, driver.query)

    def parse(reply: list[bytes]) -> Settled:
        return Settled(*map(int, reply))

    names = (keys.store, keys.prepare, keys.body, keys.meta, keys.error, own.query, own.body)
    args: list[Argument] = [driver.generation, seq, chunk, verb, KEEP_S]
    return Call("spark_settle", names, args, parse, True, topic.name, slot)
