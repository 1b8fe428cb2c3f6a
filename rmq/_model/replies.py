"""What calls answer: frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


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
        content: The content.
        store_score: The score it had in store: due ms, priority, or retries left.
        claim_score: The token that ack, nack and extend compare.
        body: The body, or `None`.
    """

    content: bytes
    store_score: int
    claim_score: int
    body: bytes | None


@dataclass(frozen=True, slots=True)
class ClaimReply:
    """What a claim answers.

    Attributes:
        now_ms: Redis' time, epoch ms.
        next_due_ms: When this slot next has something to do, epoch ms; 0 for never. At most `now_ms`: at once.
        resume: Rank at which the next claim goes on, when a bound ended this one's search; else 0.
        swept: How many expired leases and due retries the sweep moved.
        stale: Contents among the settled ones whose claim was no longer ours; nothing changed for them.
        messages: The messages claimed, in the order of delivery.
        unmatched: Claim scores of whole claims that were not acked: their deliveries have to be named.
    """

    now_ms: int
    next_due_ms: int
    resume: int
    swept: int
    stale: tuple[bytes, ...]
    messages: tuple[Claimed, ...]
    unmatched: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtendReply:
    """What an extend answers.

    Attributes:
        claim_scores: Per delivery asked for, its new claim score, or `None` where the lease was lost.
        now_ms: Redis' time, epoch ms.
    """

    now_ms: int
    claim_scores: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A dead message and why it died.

    Attributes:
        topic: Topic name.
        slot: Slot number.
        content: The content.
        body: The body, or `None`.
        died_ms: Time of death, epoch ms.
        error_type: Type of the last error, e.g. `ValueError`, or `LeaseExpired`.
        error_message: The last error's text, cut to 1,000 characters.
        attempts: Deliveries it had.
        first_failed_ms: Time of its first failure, epoch ms.
        last_failed_ms: Time of its last failure, epoch ms.
    """

    topic: str
    slot: int
    content: bytes
    body: bytes | None
    died_ms: int
    error_type: str
    error_message: str
    attempts: int
    first_failed_ms: int
    last_failed_ms: int

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 show as backslash escapes."""
        return self.content.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class SlotStats:
    """One slot at one instant, read by one script.

    Attributes:
        topic: Topic name.
        slot: Slot number.
        now_ms: Redis' time of the reading, epoch ms.
        backlog: Messages in store.
        due_now: Those of them that may be delivered now.
        in_flight: Messages in prepare.
        waiting: Messages in retry.
        dead: Messages in dead.
        oldest_due_ms: Due time of the earliest message in store, epoch ms; for PRIORITY and rollbacks
            `now_ms`; `None` with an empty store.
        next_due_ms: When the slot next has something to do, epoch ms; 0 for never.
        epoch: Epoch of the last owner, 0 without ZooKeeper.
        paused: Whether claims are paused.
        totals: Counters since the topic began: accepted, merged, delivered, acked, retried, expired, released,
            exhausted, buried, redriven, cancelled, purged, trimmed, dropped (too much for the backlog), ttl_expired
            (too old, went to the dead). Those that never moved are absent.
    """

    topic: str
    slot: int
    now_ms: int
    backlog: int
    due_now: int
    in_flight: int
    waiting: int
    dead: int
    oldest_due_ms: int | None
    next_due_ms: int
    epoch: int
    paused: bool
    totals: dict[str, int]

    @property
    def unaccounted(self) -> int:
        """0, always: what was accepted and not merged is in one place or was taken out on purpose.

        store + prepare + retry + dead + acked + cancelled + purged + trimmed + dropped = accepted - merged.
        """
        total = self.totals.get
        present = self.backlog + self.in_flight + self.waiting + self.dead
        gone = sum(total(name, 0) for name in ("acked", "cancelled", "purged", "trimmed", "dropped"))
        return total("accepted", 0) - total("merged", 0) - present - gone
