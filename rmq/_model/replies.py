"""Results of calls, and the owner of a slot that a call acts for: frozen values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar


class Owner(NamedTuple):
    """The owner of a slot, as the Lua scripts of RMQ check it.

    Attributes:
        epoch: Larger for every later owner; 0 without owners. Source: the transaction id (czxid) at which the keeper
            created the owner's node.
        ensemble: Identity of the ensemble that counts the epochs; empty without owners.

    Examples:
        >>> Owner() == Owner(epoch=0, ensemble="")  # without owners
        True
    """

    epoch: int = 0
    ensemble: str = ""

    token_base = 0

    @property
    def fencing_token(self) -> int | None:
        """Fencing token of this owner; `None` without owners. See `Delivery.fencing_token`."""
        return self.token_base + self.epoch if self.epoch else None

    def moved(self, token_base: int) -> Owner:
        """Return this owner with fencing tokens above `token_base`, the highest one before a move; itself for 0."""
        return MovedOwner.of(self, token_base) if token_base else self


class MovedOwner(Owner):
    """The owner of a slot that was moved from another ensemble; equal to the same `Owner`.

    Attributes:
        token_base: The highest token that was issued before the move.
    """

    @classmethod
    def of(cls, owner: Owner, token_base: int) -> MovedOwner:
        """Return an owner with fencing tokens above `token_base`."""
        moved = cls(*owner)
        moved.token_base = token_base
        return moved


NO_OWNER = Owner()

Flat = Sequence[bytes]
"""The fields of an entry as Redis returns them: name, value, name, value ...; empty if it has only a content."""

M = TypeVar("M", bound=Sized)
"""The messages of a claim: `ClaimedRows`, or a sequence of `StreamClaimed`."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of a send.

    `new` and `merged` count the messages of the call, each as one, whatever its `weight`. The totals of the topic's
    stats count sends by their weight, and so can be larger than the sum of these numbers.

    Attributes:
        new: Number of messages that were added to the backlog, or to the stream.
        merged: Number of all other messages: they merged with a message of the same content in the backlog, or a
            `Leading` window without `trailing` dropped them. The total `merged` does not count dropped sends.
        outcomes: Per message in the order of sending: True if it was new. Empty unless requested.
        ids: Stream topics: ids of the entries, in the order of sending; empty unless requested.
        dropped: With `WhenFull.DROP`: messages dropped to make room, which may include those just sent; each counts as
            one, however many sends it combines. With `Leading` windows without `trailing`: dropped sends of this call,
            by their weight; their messages are counted in `merged`, too.

    Examples:
        >>> jobs = client.producer(Topic("jobs", TopicType.PRIORITY))
        >>> result = jobs.send_many([PriorityMessage(name, 1) for name in ("a", "b", "a")], outcomes=True)
        >>> result.new, result.merged, result.outcomes
        (2, 1, (True, True, False))
    """

    new: int
    merged: int
    outcomes: tuple[bool, ...] = ()
    ids: tuple[str, ...] = ()
    dropped: int = 0

    @property
    def accepted(self) -> int:
        """Number of all messages of the call: `new + merged`. Messages that `dropped` counts may be among them."""
        return self.new + self.merged


@dataclass(frozen=True, slots=True)
class PartlySent(SendResult):
    """Result of a send that was executed in part; `new` and `merged` count the stored messages.

    Attributes:
        done: Number of messages processed, from the first on; folding more would exceed the bound for one call.
        refused: Index of a message among those processed -> its error code.
        repeated: Whether the send was repeated after its reply was lost: a message refused because its time has passed
            may have been stored by the first attempt.
    """

    done: int = 0
    refused: Mapping[int, str] = field(default_factory=dict[int, str])
    repeated: bool = False


class ControlResult(Enum):
    """The result of a control action on one content.

    Examples:
        >>> topic = client.topic(client.producer(Topic("jobs", TopicType.PRIORITY)).topic.name)
        >>> client.control(topic).cancel("unknown") is ControlResult.ABSENT
        True
    """

    DONE = "done"
    IN_FLIGHT = "in_flight"
    """The message is in flight, and was not changed."""
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class CancelledMatches:
    """The result of `Control.cancel_matching`.

    Attributes:
        cancelled: Number of messages that were removed from the backlog, or while they waited for a retry.
        in_flight: Number of matching messages that were in flight, and not changed.

    Examples:
        >>> topic = client.producer(Topic("jobs", TopicType.PRIORITY)).topic
        >>> client.control(topic).cancel_matching(prefix="tenant:7:")
        CancelledMatches(cancelled=0, in_flight=0)
    """

    cancelled: int
    in_flight: int


class Redriven(Enum):
    """The result of the redrive of one dead message.

    Examples:
        >>> topic = client.producer(Topic("jobs", TopicType.PRIORITY)).topic
        >>> client.control(topic).redrive("unknown") is Redriven.ABSENT
        True
    """

    DONE = "done"
    MERGED = "merged"
    """A newer message of the content was in the backlog, and the dead one merged with it."""
    ABSENT = "absent"


class ClaimedRows:
    """The messages of a claim as columns.

    Attributes:
        contents: Content of each message.
        names: Key of each message within its slot: the content; on a stream topic the id.
        scores: Score that each message had in store: due ms, priority, or retries left.
        claim_scores: Claim score of each message: the token that ack, nack and extend compare.
        bodies: Body of each message; empty if the slot has no bodies.
        alike: Whether all messages have the same claim score.
    """

    __slots__ = ("alike", "bodies", "claim_scores", "contents", "names", "scores")

    group: str | None = None
    """The group of a stream topic for which they were claimed."""

    counted = True
    """Whether Redis compares the number of messages with this claim score when the claim is acked as a whole."""

    def __init__(
        self,
        contents: Sequence[bytes],
        scores: Sequence[int],
        claim_scores: Sequence[int],
        bodies: Sequence[bytes | None],
        alike: bool,
    ) -> None:
        self.contents, self.scores, self.claim_scores, self.bodies = contents, scores, claim_scores, bodies
        self.names, self.alike = contents, alike

    def by_score(self) -> list[ClaimedRows]:
        """Return the messages of each claim score: what was rolled back has one by its retries left."""
        if self.alike:
            return [self]
        rows_of: dict[int, list[int]] = defaultdict(list)
        for row, score in enumerate(self.claim_scores):
            rows_of[score].append(row)
        columns = (self.contents, self.scores, self.claim_scores, self.bodies)
        return [
            ClaimedRows(*[[column[row] for row in rows] if column else () for column in columns], alike=True)  # pyright: ignore[reportArgumentType]
            for rows in rows_of.values()
        ]

    def __len__(self) -> int:
        return len(self.contents)


NO_ROWS = ClaimedRows((), (), (), (), True)


class StreamClaimed(NamedTuple):
    """An entry as a claim returns it. Its claim score is the number of the delivery, or `own_score`."""

    content: bytes
    store_score: int
    claim_score: int
    body: bytes | None
    id: bytes
    flat: Flat


class ClaimReply(NamedTuple, Generic[M]):  # a frozen dataclass would take five times as long to make
    """The result of a claim: messages, or entries of a stream, in the order of delivery."""

    now_ms: int  # Redis' time, epoch ms
    next_due_ms: int  # when this slot next has something to do, epoch ms; 0 for never; at most `now_ms`: at once
    resume: int  # rank at which the next claim goes on, when a bound ended this one's search; else 0
    swept: int  # expired leases and due retries that the sweep moved
    stale: tuple[bytes, ...]  # contents among the settled ones whose claim was no longer ours: nothing changed for them
    messages: M
    unmatched: tuple[int, ...] = ()  # claim scores of whole claims that were not acked: they are acked by name
    lost: tuple[bytes, ...] = ()  # stream topics: ids of entries that were trimmed or deleted before they were acked
    own: tuple[int, int] | None = None  # stream topics: claim score and number of entries in the claim's own name
    nacked: int | None = None  # how many of the nacks were looked at, where these have used up what a call may move
    token_base: int = 0  # what an owner's tokens start from; 0 where the slot was never moved to another ensemble


class SettleReply(NamedTuple):
    """The result of a settlement in one slot."""

    stale: tuple[bytes, ...] = ()  # names of deliveries that were no longer ours: nothing changed for them
    unmatched: tuple[int, ...] = ()  # claim scores of whole claims that were not acked: see `ClaimReply`
    left: int = 0  # how many of the nacks, the last ones, are as they were: the others used up what a call may move
    lost: tuple[bytes, ...] = ()  # stream topics: ids of entries that were trimmed or deleted before they were acked


ALL_SETTLED = SettleReply()


@dataclass(frozen=True, slots=True)
class ExtendReply:
    """The result of a renewal of leases."""

    now_ms: int  # Redis' time, epoch ms
    claim_scores: tuple[int | None, ...]  # per delivery asked for, its new one, or `None` where the lease was lost
