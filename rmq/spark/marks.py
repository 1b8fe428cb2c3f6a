"""Marks of the chunks that Spark's tasks have sent, so that a retried task does not send them again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, cast

from rmq import PriorityRule, Topic
from rmq.errors import BatchChangedError
from rmq.spi.scripts import ITEMS, Call, Connections, EncodedMessage, RpcId, read_record, refusal, send_calls, sent_key

COUNTED = frozenset("SC")
"""Kinds of records whose value changes if the same send is repeated."""

CUT = "cut"
"""Field of a query's marks on slot 0 with the cut of a batch into calls, see `Cut`."""


_CHANGED = refusal(
    BatchChangedError,
    "{target}: a retry of a task of batch {} produced other rows than its first attempt, or grouped them differently, "
    "and this topic counts every send. Read a source that can be read again, and write "
    "rmq.spark.keyed(frame, partitions=n) with the same n and options each time; or set idempotent=false to accept "
    "double counting",
)
_AGAIN = "If Spark retries the task, they are counted once"


def counts(topic: Topic) -> bool:
    """Return whether each send to a topic counts, so that a repeated send changes the message."""
    return topic.merge is not None and (topic.merge.kind in COUNTED or topic.merge.priority is PriorityRule.SUM)


class Cut(NamedTuple):
    """Division of a batch's rows into calls by its tasks. Marks of calls are valid only for the same division.

    Attributes:
        partitions: Number of tasks.
        held: Maximum number of messages that a task buffers to fold them; 0 without folding.
        chunk: Maximum number of messages in a call.
    """

    partitions: int
    held: int
    chunk: int

    @property
    def digest(self) -> str:
        """Text of the cut, as Redis stores it for a batch."""
        return "".join(f"{number:08x}" for number in self)

    @classmethod
    def of(cls, mark: bytes) -> Cut:
        """Parse the cut that a mark records."""
        digest = mark.decode().rpartition(":")[2]
        return cls(*(int(digest[first : first + 8], 16) for first in (0, 8, 16)))

    def __str__(self) -> str:
        """Return the cut as text for an error."""
        return f"{self.partitions} partitions, mergeRows={self.held} and chunkSize={self.chunk}"


@dataclass(frozen=True, slots=True)
class Mark:
    """Identifies a task of a query's batch and, with `of`, each chunk that it sends to a slot.

    Attributes:
        query: Identity of the query, or of the write.
        batch: Number of the batch, from 0.
        partition: Number of the task in the batch.
        keep_s: Lifetime of the mark after the query's last send to the slot, seconds.
        chunk: Number of the chunk among those that the task sends to the slot.
        digest: Hash of the chunk's messages.
        first: Number of its messages that were sent before, if a call accepted only the first ones; refused ones are
            not counted.
    """

    query: str
    batch: int
    partition: int
    keep_s: int
    chunk: int = 0
    digest: str = ""
    first: int = 0

    def of(self, chunk: int, messages: Sequence[EncodedMessage], merges: bool = False) -> Mark:
        """Return the mark of one chunk.

        Args:
            chunk: Number of the chunk.
            messages: Messages of the chunk.
            merges: Whether the messages are records; the order in which their sends were folded then makes no
                difference.
        """
        digest = blake2b(digest_size=12)
        for message in messages:
            if merges:
                _take_record(digest, message)
                continue
            # lengths before the parts: no two lists of messages look alike
            sizes = (len(message.content), message.value, -1 if message.body is None else len(message.body))
            digest.update(b"%d %d %d " % sizes + message.content + (message.body or b""))
            for part in message.fields:
                digest.update(b"%d " % len(part))
        return Mark(self.query, self.batch, self.partition, self.keep_s, chunk, digest.hexdigest())

    def without(self, refused: Sequence[int]) -> Mark:
        """Return the mark of the same chunk, sent without the messages that the server refused, given by index."""
        return replace(self, digest=f"{self.digest}-{'.'.join(map(str, refused))}")

    def refused_in(self, found: bytes | None) -> tuple[list[int], int | None]:
        """Return the messages of the chunk that were refused when it was sent before, as recorded by `without`.

        Args:
            found: The mark that Redis has for this task's chunk; `None` for none.

        Returns:
            Their indices, empty if none were refused; and the number of other messages that were sent, `None` if all
            were.
        """
        completed = re.fullmatch(r"\d+\|\d+\|(\d+):(\d*):(\w*)-([\d.]+)", (found or b"").decode())
        if completed is None or (completed[1], completed[3]) != (str(self.batch), self.digest):
            return [], None
        return list(map(int, completed[4].split("."))), int(completed[2]) if completed[2] else None


def _take_record(digest: blake2b, message: EncodedMessage) -> None:
    record = read_record(message.body)
    whole = isinstance(record.number, int)  # what floats add up to depends on their order
    number = b"%d" % record.number if whole else b"" if record.kind == "S" else repr(record.number).encode()
    items = sorted(record.frames()) if record.kind in ITEMS else ()
    digest.update(b"%d %d %d " % (len(message.content), record.count, len(items)) + message.content)
    digest.update(b"%d " % len(number) + number + b"".join(items))


class Once(NamedTuple):
    """Numbers of messages of a marked chunk that were new, merged with the backlog, or skipped as sent before.

    `refused` has the indices of the messages without which the chunk was sent before, if the script returns them.
    `done` is the number of the other messages sent so far, counted from the first; `None` if all are sent.
    """

    new: int
    merged: int
    skipped: int
    refused: tuple[int, ...] = ()
    done: int | None = None


def send_once(
    topic: Topic, slot: int, messages: Sequence[EncodedMessage], mark: Mark, name: str | None = None
) -> Call[Once]:
    """Build a call that sends a chunk of up to `MAX_BATCH` messages, unless its mark is already set.

    On a topic with `merge=` a call may accept only the first messages, see `Once.done`; the mark stores their number.
    """
    kept = f"{mark.keep_s} {int(counts(topic))} {mark.first}" if topic.merge is not None else str(mark.keep_s)
    key, lane = sent_key(topic.name, slot, mark.query), name or f"{mark.partition}:{mark.chunk}"
    rpc_id = RpcId(lane, mark.batch, mark.batch, None, key, mark.digest, kept)
    send = send_calls(topic)(slot, messages, rpc_id=rpc_id, partly="first")
    parse = partial(_merged if topic.merge is not None else _sent, len(messages), mark.first)
    return cast("Call[Once]", send._replace(parse=parse, durable=_AGAIN, refusals={"RMQ_CHANGED": _CHANGED}))


def _sent(number: int, first: int, reply: Any) -> Once:
    del first  # all or none are sent
    if reply == b"0" or len(reply) == 1:  # sent before: of an entry, or of a message
        return Once(0, 0, number)
    new = int(reply[1][0]) if reply else number
    return Once(new, number - new, 0)


def _merged(number: int, first: int, reply: list[Any]) -> Once:
    new, outcomes, _, *before = reply
    if before:
        refused = tuple(map(int, before[0].split(b"."))) if before[0] else ()
        done = int(before[1]) if before[1] else None
        return Once(0, 0, number - len(refused) if done is None else max(0, done - first), refused, done)
    accepted = len(outcomes) or number  # outcomes are returned if the call accepted only the first messages
    return Once(int(new), accepted - int(new), 0, (), first + accepted if outcomes else None)


def note_cut(connections: Connections, topic: Topic, mark: Mark, cut: Cut) -> None:
    """Store how a batch is cut into calls, before a task sends its first call.

    Raises:
        BatchChangedError: The batch was started with another cut; nothing was sent with this one.
    """
    try:
        connections.run(send_once(topic, 0, (), replace(mark, digest=cut.digest), CUT))
    except BatchChangedError as error:
        key = sent_key(topic.name, 0, mark.query)
        known = Cut.of(connections.command("HGET", key, CUT, key=key) or b"")
        raise BatchChangedError(
            f"batch {mark.batch} was started with {known}, and is now run with {cut}. Each send to topic "
            f"{topic.name} counts, and rows already sent can be recognised only with the same settings: "
            f"write rmq.spark.keyed(frame, partitions={known.partitions}) with the options of the first attempt",
            topic=topic.name,
        ) from error
