"""Deliveries: claimed messages, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import reduce
from typing import Any, Generic, Protocol, TypeAlias

from rmq._model.records import BODIES, ITEMS, NOTHING, Record, read_record, unwrap
from rmq._model.replies import NO_OWNER, Claimed, Owner, StreamClaimed
from rmq._model.scores import ages_for, retries_left_of
from rmq._model.times import Duration, duration_ms, moment_of, monotonic_s
from rmq._model.topics import Topic
from rmq._model.typed import PayloadT, decode_payload
from rmq._model.whereabouts import body_of, version_of
from rmq.errors import AlreadySettledError, InvalidValueError, LeaseLostError, ReplyLostError, RmqError

MAX_ERROR_CHARACTERS = 1_000

Fold: TypeAlias = Callable[[Any, bytes], Any]
"""Function that combines the result so far with an item."""


class Verb(Enum):
    """Outcome of a delivery.

    Examples:
        >>> Verb.ACK in set(Verb)
        True
    """

    ACK = "ack"
    NACK = "retry"
    BURY = "bury"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a delivery, and its reason.

    Attributes:
        verb: The action.
        delay_ms: For a nack: wait before the retry, ms; `None` for the topic's retry policy. For a release: wait before
            the redelivery of a message that has failed without using up a retry; `None` if its handler has not begun.
        error_type: Class of the error, such as `ValueError`.
        error_message: Text of the error, at most 1,000 characters.

    Examples:
        >>> Outcome(Verb.NACK, delay_ms=5_000).verb.name
        'NACK'
    """

    verb: Verb
    delay_ms: int | None = None
    error_type: str = ""
    error_message: str = ""


_NOT_DECODED = object()

ACKED = Outcome(Verb.ACK)
RELEASED = Outcome(Verb.RELEASE)


class Holder(Protocol):
    """The claim planner of a delivery: it settles the delivery, and knows whether the slot is still owned."""

    @property
    def settle(self) -> Callable[[Delivery, Outcome], bool] | None:
        """Settle a delivery at once; return False if its lease was lost before.

        Return `None` if the outcome only has to be recorded: a listener's thread sends outcomes with its next claim.
        """
        ...

    def still_owner(self, delivery: Delivery) -> bool:
        """Return whether no other worker can own the delivery's slot yet; True without ZooKeeper."""
        ...


class Delivery(Generic[PayloadT]):
    """A claimed message: ack it when done, nack it to have it retried, or let the lease expire.

    Attributes:
        topic: Its topic's definition.
        slot: Its slot.
        content: Its content in bytes.
        body: Its body in bytes, or `None`. With the topic's `merge`: a number as text; `None` for items.
        store_score: Score it had in store: due ms, a priority with its age, or, after a rollback, retries left.
        claim_score: The token that ack, nack and extend compare.
        claimed_ms: Redis' time of the claim, epoch ms.
        lease_until_s: Earliest time at which the lease ends, on the clock of `rmq._model.times.monotonic_s`.
        owner: Epoch and ensemble under which it was claimed.
        lost: True once the lease is known to be lost: another consumer may have the message.
        outcome: How it was settled; `None` until then.
        ack_individually: Whether its ack must name it, because Redis could not ack its claim as a whole.
        under_way: Whether a renewal or an ack with its claim score was sent and is not answered yet.
        trace: The W3C traceparent sent with it, empty for none; see `rmq._model.records`.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5, body="data"))
        >>> [delivery] = client.consumer(jobs).poll(timeout=5)
        >>> delivery.text, delivery.body, delivery.attempt, delivery.retries_left
        ('job:1', b'data', 1, 16)
        >>> delivery.nack(delay="30s", error="no photo")
        True
    """

    __slots__ = (
        "_holder", "ack_individually", "body", "claim_score", "claimed_ms", "content", "decoded", "lease_until_s",
        "lost", "outcome", "owner", "slot", "store_score", "topic", "trace", "under_way",
    )  # fmt: skip

    _record: Record = NOTHING
    """The result of its sends; without the topic's `merge` that of one send of unknown time."""

    def __init__(
        self,
        topic: Topic,
        slot: int,
        claimed: Claimed | StreamClaimed,
        claimed_ms: int,
        lease_until_s: float,
        holder: Holder,
        owner: Owner = NO_OWNER,
    ) -> None:
        self.topic = topic
        self.slot = slot
        self.content = claimed.content
        self.body, self.trace = (None, "") if claimed.body is None else unwrap(claimed.body)
        self.store_score = claimed.store_score
        self.claim_score = claimed.claim_score
        self.claimed_ms = claimed_ms
        self.lease_until_s = lease_until_s
        self.lost = False
        self.ack_individually = self.under_way = False
        self.outcome: Outcome | None = None
        self.owner = owner
        self._holder = holder

    @property
    def text(self) -> str:
        """The content as text.

        Raises:
            UnicodeDecodeError: The content is not UTF-8.
        """
        return self.content.decode()

    @property
    def name(self) -> bytes:
        """Its key within its slot: the content; on a stream topic the id."""
        return self.content

    @property
    def retries_left(self) -> int:
        """Number of retries left if this delivery fails; 0 if the message would be dead."""
        return retries_left_of(self.claim_score)

    @property
    def attempt(self) -> int:
        """Number of this delivery, 1 for the first."""
        return self.topic.max_retries - self.retries_left + 1

    @property
    def due_ms(self) -> int | None:
        """Due time of the message, epoch ms; `None` on a PRIORITY topic and for a retry."""
        timed = self.topic.type.timed and self.store_score > self.topic.max_retries
        return self.store_score if timed else None

    @property
    def priority(self) -> int | None:
        """Priority of the message; `None` on time topics and for a retry."""
        plain = not self.topic.type.timed and self.store_score > self.topic.max_retries
        return ages_for(self.topic.max_priority).priority_of(self.store_score) if plain else None

    @property
    def merged(self) -> int:
        """Number of sends merged into this delivery; always 1 without the topic's `merge`, as they are not counted."""
        return self._record.count

    @property
    def value(self) -> Any:
        """The result of its sends: the body, for `Max`, `Min` and `Sum` a number, for `Collect` the items."""
        if self._record.kind in BODIES:
            return self.body
        return self.items if self._record.kind in ITEMS else self._record.number

    @property
    def payload(self) -> PayloadT:
        """The decoded body: an object of the topic's payload class. It is decoded once.

        Raises:
            PayloadError: The body cannot be decoded. A listener buries such a message without calling its handler.
            InvalidValueError: The topic has no payload class, or collects items: use `payloads`.
        """
        if self.topic.collects:
            raise InvalidValueError(f"topic {self.topic.name} collects items: use payloads", topic=self.topic.name)
        return self._payload()

    @property
    def payloads(self) -> list[PayloadT]:
        """The payloads of a `Collect`, or of the parts of a join, in the order of sending; else the one payload.

        Raises as `payload`.
        """
        if not self.topic.collects:
            return [self.payload]
        return list(self._payload())

    def _payload(self) -> Any:
        found = getattr(self, "decoded", _NOT_DECODED)  # one look: a thread of RMQ may drop it meanwhile
        return self.decode() if found is _NOT_DECODED else found

    def decode(self) -> Any:
        """Decode the payload, or all payloads, again and return the result. Raises as `payload`. Internal."""
        topic = self.topic
        many = [decode_payload(topic.typed, topic.name, item) for item in self.items] if topic.collects else None
        found: Any = decode_payload(topic.typed, topic.name, self.body) if many is None else many
        self.decoded: Any = found
        return found

    def forget_payload(self) -> None:
        """Drop the decoded payload; a later access decodes it again. Internal."""
        with suppress(AttributeError):
            del self.decoded

    @property
    def items(self) -> tuple[bytes, ...]:
        """The items of a `Collect`, or the parts of a join, in the order of sending; otherwise empty."""
        return self._record.items

    @property
    def first_sent_ms(self) -> int | None:
        """Time at which its first send arrived, epoch ms by Redis' clock; `None` without the topic's `merge`."""
        return self._record.first_ms or None

    @property
    def last_sent_ms(self) -> int | None:
        """Time at which its last send arrived, epoch ms by Redis' clock; `None` without the topic's `merge`."""
        return self._record.last_ms or None

    @property
    def first_sent(self) -> datetime | None:
        """Time at which its first send arrived, by Redis' clock; `None` without the topic's `merge`."""
        return moment_of(self._record.first_ms)

    @property
    def last_sent(self) -> datetime | None:
        """Time at which its last send arrived, by Redis' clock; `None` without the topic's `merge`."""
        return moment_of(self._record.last_ms)

    @property
    def version(self) -> int | None:
        """The version of its body, the largest `version=` of its sends; `None` unless the topic merges by `Newest`."""
        return version_of(self._record)

    @property
    def wanted(self) -> int:
        """Number of parts that a join waits for; 0 if it is not a join."""
        return self._record.wanted

    @property
    def complete(self) -> bool:
        """True if all parts of a join have arrived, or if it is not a join."""
        return not self.wanted or self._record.number >= self.wanted

    def fold(self, function: Fold, initial: Any = None) -> Any:
        """Reduce the items to one value, as `functools.reduce` does: for example `fold(json_merge_patch)`.

        Args:
            function: Called with the result so far and an item.
            initial: The initial result; by default the first item.

        Returns:
            The result; `initial` if there are no items.
        """
        first = () if initial is None and self.items else (initial,)
        return reduce(function, self.items, *first)

    @property
    def fencing_token(self) -> int | None:
        """A number by which other stores can refuse late writes of a former owner; `None` without owners.

        Guarantee: larger for every later owner of the slot, also after `RmqClient.adopt`, and the same for all claims
            of one owner; below 2^63. A Redis that was emptied, or that lost its last writes in a failover, may have
            forgotten a move by `adopt`.
        """
        return self.owner.fencing_token

    def still_owner(self) -> bool:
        """Return whether no other worker can have this message, or own its slot, yet.

        Guarantee: valid by this machine's clock at the time of the call. If the process is paused right afterwards, the
        epoch fences its late ack; for other stores, use `fencing_token`.
        """
        return not self.lost and monotonic_s() < self.lease_until_s and self._holder.still_owner(self)

    def ack(self) -> bool:
        """Acknowledge: the message is done and leaves the queue.

        Returns:
            False if the lease was lost before: nothing changed, and the message is or will be delivered again.
            In a listener always True: it collects outcomes and sends them with its next call.

        Raises:
            AlreadySettledError: The delivery was settled before.
            ReplyLostError: It may be acked or not; if not, the message is redelivered when its lease expires.
        """
        return self._end(ACKED)

    def nack(self, delay: Duration | None = None, error: BaseException | str = "") -> bool:
        """Report a failure: the message is retried, or dead if no retry is left.

        Args:
            delay: Wait before the retry: a `timedelta` or a text such as "30s"; "0s" for at once, `None` for the
                topic's policy.
            error: The reason, for the dead letters.

        Returns:
            False if the lease was lost before, as for `ack`.

        Raises:
            InvalidValueError: The delay is negative or over 100 years.
            AlreadySettledError: The delivery was settled before.
            ReplyLostError: It may be nacked or not; if not, the message is redelivered when its lease expires.
        """
        delay_ms = None if delay is None else duration_ms(delay, "delay")
        return self._end(Outcome(Verb.NACK, delay_ms, *describe(error)))

    def bury(self, error: BaseException | str = "") -> bool:
        """Move the message to the dead letters at once, even if retries are left. Returns and raises like `nack`."""
        return self._end(Outcome(Verb.BURY, 0, *describe(error)))

    def release(self) -> bool:
        """Return the message to the queue as it was, without using up a retry. Returns and raises like `ack`."""
        return self._end(RELEASED)

    def raise_if_lost(self) -> None:
        """Raise `LeaseLostError` if the lease is known to be lost: call it before an effect that must occur once."""
        if self.lost:
            raise LeaseLostError(
                f"the lease on {self.content!r:.80} was lost; another consumer may have it",
                topic=self.topic.name,
                slot=self.slot,
            )

    def mark(self, outcome: Outcome) -> None:
        """Record an outcome without sending it: for consumers and listeners, which settle in batches.

        Raises:
            AlreadySettledError: The delivery was settled before.
        """
        self.refuse_if_settled()
        self.outcome = outcome

    def refuse_if_settled(self) -> None:
        """Raise `AlreadySettledError` if the delivery was acked, nacked, buried or released before."""
        if self.outcome is not None:
            raise AlreadySettledError(
                f"delivery of {self.content!r:.80} was settled before ({self.outcome.verb.value})",
                topic=self.topic.name,
                slot=self.slot,
            )

    def _end(self, outcome: Outcome) -> bool:
        self.mark(outcome)
        settle = self._holder.settle
        if settle is None:
            return True
        try:
            return settle(self, outcome)
        except RmqError as error:
            if not isinstance(error, ReplyLostError):
                self.outcome = None  # it was certainly not carried out, and may be tried again
            raise

    def __repr__(self) -> str:
        return f"<Delivery {self.content!r:.80} of {self.topic.name}, slot {self.slot}, attempt {self.attempt}>"


def describe(error: BaseException | str) -> tuple[str, str]:
    """Return the class and the text of an error as they are stored: valid UTF-8, at most 1,000 characters.

    Never raises, even if methods of the error do: otherwise the delivery would get no outcome.
    """
    kind = "" if issubclass(type(error), str) else _name_of(error)
    try:
        return kind, _kept(str.__str__(str(error)))
    except BaseException as trouble:  # SystemExit, too
        return kind, f"(the error's text cannot be read: {_name_of(trouble)})"


def _name_of(error: object) -> str:
    name: str = type.__dict__["__name__"].__get__(type(error))  # a metaclass may have another one
    return _kept(name)


def _kept(text: str) -> str:
    return text[:MAX_ERROR_CHARACTERS].encode(errors="backslashreplace").decode()[:MAX_ERROR_CHARACTERS]


class MergedDelivery(Delivery[PayloadT]):
    """A delivery of a topic with `merge=`; its `record` is the result of its sends."""

    __slots__ = ("_items", "_record")

    def __init__(
        self,
        topic: Topic,
        slot: int,
        claimed: Claimed,
        claimed_ms: int,
        lease_until_s: float,
        holder: Holder,
        owner: Owner = NO_OWNER,
    ) -> None:
        super().__init__(topic, slot, claimed, claimed_ms, lease_until_s, holder, owner)
        self.ack_individually = True  # its value in flight goes with its ack
        self._record = read_record(claimed.body) or NOTHING
        self._items: tuple[bytes, ...] | None = None
        self.body, self.trace = body_of(self._record)

    @property
    def record(self) -> Record:
        """The result of its sends, as it is stored."""
        return self._record

    @property
    def items(self) -> tuple[bytes, ...]:
        """The items of a `Collect`, or the parts of a join, in the order of sending; otherwise empty."""
        if self._items is None:
            self._items = self._record.items
        return self._items
