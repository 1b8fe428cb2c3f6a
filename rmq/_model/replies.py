"""What calls answer: frozen values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

Flat = Sequence[bytes]
"""The fields of an entry: name, value, name, value ... as Redis hands them over."""

M = TypeVar("M")
"""What a claim hands over: `Claimed` or `StreamClaimed`."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """How a send was taken.

    Attributes:
        new: Messages that became an entry of their own.
        merged: Messages that merged with one of the same content in the backlog.
        outcomes: Per message in the order of sending, True where it was new; empty unless asked for.
        ids: Stream topics: ids of the entries, in the order of sending; empty unless asked for.
        dropped: Messages that were dropped to make room, where the topic does that; those just sent may be among them.
    """

    new: int
    merged: int
    outcomes: tuple[bool, ...] = ()
    ids: tuple[str, ...] = ()
    dropped: int = 0

    @property
    def accepted(self) -> int:
        """All messages that were stored: `new + merged`."""
        return self.new + self.merged


class ControlResult(Enum):
    """What became of a request by content."""

    DONE = "done"
    IN_FLIGHT = "in_flight"
    """Only in a handler's hands at the moment: not touched."""
    ABSENT = "absent"


class Redriven(Enum):
    """What became of a dead message that was to be redriven."""

    DONE = "done"
    MERGED = "merged"
    """A fresh copy stood in the backlog already."""
    ABSENT = "absent"


class Claimed(NamedTuple):
    """One message as a claim hands it over.

    Attributes:
        store_score: The score it had in store: due ms, priority, or retries left.
        claim_score: The token that ack, nack and extend compare.
    """

    content: bytes
    store_score: int
    claim_score: int
    body: bytes | None


class StreamClaimed(NamedTuple):
    """An entry as a claim hands it over: a `Claimed`, both of whose scores are the number of this delivery."""

    content: bytes
    store_score: int
    claim_score: int
    body: bytes | None
    id: bytes
    flat: Flat


@dataclass(frozen=True, slots=True)
class ClaimReply(Generic[M]):
    """What a claim answers: messages, or entries of a stream.

    Attributes:
        now_ms: Redis' time, epoch ms.
        next_due_ms: When this slot next has something to do, epoch ms; 0 for never. At most `now_ms`: at once.
        resume: Rank at which the next claim goes on, when a bound ended this one's search; else 0.
        swept: How many expired leases and due retries the sweep moved.
        stale: Contents among the settled ones whose claim was no longer ours; nothing changed for them.
        messages: The messages claimed, in the order of delivery.
        unmatched: Claim scores of whole claims that were not acked: their deliveries have to be named.
        lost: Stream topics: ids of entries that were trimmed or deleted before the group had acked them.
    """

    now_ms: int
    next_due_ms: int
    resume: int
    swept: int
    stale: tuple[bytes, ...]
    messages: tuple[M, ...]
    unmatched: tuple[int, ...] = ()
    lost: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtendReply:
    """What an extend answers.

    Attributes:
        claim_scores: Per delivery asked for, its new claim score, or `None` where the lease was lost.
        now_ms: Redis' time, epoch ms.
    """

    now_ms: int
    claim_scores: tuple[int | None, ...]
