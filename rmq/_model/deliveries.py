"""Deliveries: claimed messages; and claims: what a consumer holds.

A claim is what one call of the claim script has taken from one slot under one claim score: some rows, each a message
with its content and body. The claim score is the token that acks, nacks and renewals compare. All rows of a claim have
the same one, and keep the same one while the claim is renewed as a whole. Redis can therefore ack a claim without its
names, once nothing of it is open: it compares the number of messages with this score. A renewal of some rows only, as a
consumer may ask for it, gives these rows a score of their own: they are `apart`, and the claim is named from then on.

Handlers, the lease keeper and threads of the user write to a claim at the same time, so each row has cells of its own:
its outcome, whether its lease is known to be lost, and whether it has ended, that is, whether nothing of it is held any
more. A cell is stored atomically, and there is no counter beside the cells that could miss a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import reduce
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeAlias

from rmq._model.outcomes import ACKED, RELEASED, Outcome, Verb, failed
from rmq._model.records import BODIES, ITEMS, NOTHING, NUMBERS, TRACE_MARK, Record, numbers_in, unwrap
from rmq._model.replies import NO_OWNER, ClaimedRows, Owner
from rmq._model.scores import ages_for, retries_left_of
from rmq._model.times import Duration, duration_ms, moment_of, monotonic_s
from rmq._model.topics import Topic
from rmq._model.typed import PayloadT, decode_payload
from rmq.errors import AlreadySettledError, InvalidValueError, LeaseLostError

Fold: TypeAlias = Callable[[Any, bytes], Any]
"""Function that combines the result so far with an item."""


_NOT_DECODED = object()

NO_SCORE = 0
"""Claim score that no message has: settling or renewing with it changes nothing, and reports a lost lease."""


_NONE_APART: Mapping[int, tuple[int, float]] = MappingProxyType({})
"""The `apart` of a claim whose rows all have the claim's score and lease."""


class Holder(Protocol):
    """The claim planner of a delivery: it settles the delivery, and knows whether the slot is still owned."""

    @property
    def settle(self) -> Callable[[Delivery, Outcome], bool] | None:
        """Settle a delivery at once; return False if its lease was lost before.

        Return `None` if the outcome only has to be recorded: a listener's thread sends outcomes with its next claim.
        """
        ...

    def still_owner(self, delivery: Delivery) -> bool:
        """Return whether no other worker can own the delivery's slot yet; True without owners."""
        ...


class DeliveryFacts(Generic[PayloadT]):
    """What is known of a claimed message: all of a `Delivery` but its settlement."""

    __slots__ = ("body", "claim", "content", "decoded", "row")

    _record: Record = NOTHING
    """The result of its sends; without the topic's `merge` that of one send of unknown time."""

    def __init__(self, claim: Claim, row: int, content: bytes, body: bytes | None = None) -> None:
        self.claim, self.row, self.content = claim, row, content
        self.body = body if body is None or not body.startswith(TRACE_MARK) else unwrap(body)[0]

    @property
    def trace(self) -> str:
        """Trace context sent with the message, or set by an observer since: a traceparent or JSON headers, or ""."""
        trace = self.claim.traces.get(self.row)
        return self._sent_trace() if trace is None else trace

    @trace.setter
    def trace(self, trace: str) -> None:
        self.claim.traces[self.row] = trace

    @property
    def _stored(self) -> bytes | None:
        """What is stored as its body."""
        bodies = self.claim.rows.bodies
        return bodies[self.row] if bodies else None

    def _sent_trace(self) -> str:
        return unwrap(self._stored)[1]

    @property
    def topic(self) -> Topic:
        """The definition of the message's topic."""
        return self.claim.topic

    @property
    def slot(self) -> int:
        """The message's slot."""
        return self.claim.slot

    @property
    def owner(self) -> Owner:
        """Epoch and ensemble under which the message was claimed; 0 and "" without owners."""
        return self.claim.owner

    @property
    def store_score(self) -> int:
        """Score before the claim: due time in epoch ms, a number of priority and time of sending, or retries left."""
        return self.claim.rows.scores[self.row]

    @property
    def claim_score(self) -> int:
        """Token of the claim: ack, nack and extend have an effect only while Redis has the same one for the message."""
        return self.claim.score_of(self.row)

    @property
    def claimed_ms(self) -> int:
        """Redis' time of the claim, epoch ms."""
        return self.claim.claimed_ms

    @property
    def lease_until_s(self) -> float:
        """Earliest time at which the lease ends, in seconds on the clock of `rmq.spi.monotonic_s`."""
        return self.claim.lease_of(self.row)

    @property
    def lost(self) -> bool:
        """True once the lease is known to be lost: another consumer may have the message."""
        return bool(self.claim.lost[self.row])

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the delivery; `None` until it is settled."""
        return self.claim.outcomes[self.row]

    @property
    def text(self) -> str:
        """The content as text.

        Raises:
            UnicodeDecodeError: The content is not UTF-8.
        """
        return self.content.decode()

    @property
    def name(self) -> bytes:
        """Key of the message within its slot: the content; on a stream topic the id."""
        return self.content

    @property
    def retries_left(self) -> int:
        """Number of retries left if this delivery fails; 0 if the message would be dead."""
        return retries_left_of(self.claim_score)

    @property
    def attempt(self) -> int:
        """Number of this delivery, 1 for the first of the message."""
        return self.topic.max_retries - self.retries_left + 1

    @property
    def due_ms(self) -> int | None:
        """Due time of the message, epoch ms; `None` on a PRIORITY topic and for a retry."""
        topic, score = self.topic, self.store_score
        return score if topic.type.timed and score > topic.max_retries else None

    @property
    def priority(self) -> int | None:
        """Priority of the message; `None` for a retry, and on topics of other types than PRIORITY."""
        topic, score = self.topic, self.store_score
        plain = not topic.type.timed and score > topic.max_retries
        return ages_for(topic.max_priority).priority_of(score) if plain else None

    @property
    def merged(self) -> int:
        """Number of sends that this delivery combines, by their `weight`; always 1 without the topic's `merge`."""
        return self._record.count

    @property
    def value(self) -> Any:
        """The merged value: a number for `Max`, `Min` and `Sum`, the items for `Collect`, otherwise the body."""
        return value_of(self._record, self.body)

    @property
    def payload(self) -> PayloadT:
        """The decoded body: an object of the topic's payload class. It is decoded once.

        Raises:
            PayloadError: The body cannot be decoded. A listener buries such a message without calling its handler.
            InvalidValueError: The topic has no payload class, or collects items: use `payloads`.
        """
        if self.topic.collects:
            raise InvalidValueError(f"topic {self.topic.name} collects items; use `payloads`", topic=self.topic.name)
        return self._payload()

    @property
    def payloads(self) -> list[PayloadT]:
        """The payloads of a `Collect`, or of the parts of a join, in the order of sending; else the one payload.

        Raises `PayloadError` if an item cannot be decoded, and `InvalidValueError` without a payload class.
        """
        if not self.topic.collects:
            return [self.payload]
        return list(self._payload())

    def _payload(self) -> Any:
        found = getattr(self, "decoded", _NOT_DECODED)  # one look: a thread of RMQ may drop it meanwhile
        return self.decode() if found is _NOT_DECODED else found

    def decode(self) -> Any:
        """Decode the payload, or all payloads, again and return the result. Raises like `payload`. Internal."""
        topic = self.topic
        many = [decode_payload(topic.typed, topic.name, item) for item in self.items] if topic.collects else None
        found: Any = decode_payload(topic.typed, topic.name, self.body) if many is None else many
        self.decoded: Any = found
        return found

    def forget_payload(self) -> None:
        """Drop the decoded payload; a later access decodes it again. Internal."""
        try:
            del self.decoded
        except AttributeError:  # not decoded, or dropped before; `suppress` would take five times as long
            pass

    @property
    def items(self) -> tuple[bytes, ...]:
        """The items of a `Collect`, or the parts of a join, in the order of sending; otherwise empty."""
        return self._record.items

    @property
    def first_sent_ms(self) -> int | None:
        """Time at which the message was first sent, epoch ms by Redis' clock; `None` if the topic has no `merge`."""
        return self._record.first_ms or None

    @property
    def last_sent_ms(self) -> int | None:
        """Time at which the message was last sent, epoch ms by Redis' clock; `None` if the topic has no `merge`."""
        return self._record.last_ms or None

    @property
    def first_sent(self) -> datetime | None:
        """Time at which the message was first sent, in UTC by Redis' clock; `None` if the topic has no `merge`."""
        return moment_of(self._record.first_ms)

    @property
    def last_sent(self) -> datetime | None:
        """Time at which the message was last sent, in UTC by Redis' clock; `None` if the topic has no `merge`."""
        return moment_of(self._record.last_ms)

    @property
    def version(self) -> int | None:
        """The version of its body, the largest `version=` of its sends; `None` unless the topic merges by `Newest`."""
        return self._record.version

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
            initial: The initial result; `None`, the default, for the first item.

        Returns:
            The result; `initial` if there are no items.
        """
        first = () if initial is None and self.items else (initial,)
        return reduce(function, self.items, *first)

    @property
    def fencing_token(self) -> int | None:
        """A number by which other data stores can refuse late writes of a former owner; `None` without owners.

        Guarantee: larger for every later owner of the slot, also after `RmqClient.adopt`, and the same for all claims
            of one owner; below 2^63. A Redis that was emptied, or that lost its last writes in a failover, may have
            forgotten a move by `adopt`.
        """
        return self.owner.fencing_token

    def still_owner(self) -> bool:
        """Return whether the lease is held and, with owners, this worker owns the slot; then no other has the message.

        Guarantee: valid by this machine's clock at the time of the call. If the process is paused right afterwards, the
        epoch fences its late ack; for other data stores, use `fencing_token`.
        """
        return not self.lost and monotonic_s() < self.lease_until_s and self.claim.holder.still_owner(self)  # pyright: ignore[reportArgumentType]

    def raise_if_lost(self) -> None:
        """Raise `LeaseLostError` if the lease is known to be lost: call it before an effect that must occur once."""
        if self.lost:
            raise LeaseLostError(
                f"the lease on {self.content!r:.80} was lost; another consumer may have the message",
                topic=self.topic.name,
                slot=self.slot,
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeliveryFacts) and other.claim is self.claim and other.row == self.row

    def __hash__(self) -> int:
        return hash((id(self.claim), self.row))

    def __repr__(self) -> str:
        return f"<Delivery {self.content!r:.80} of {self.topic.name}, slot {self.slot}, attempt {self.attempt}>"


class Delivery(DeliveryFacts[PayloadT]):
    """A claimed message: ack it when done, nack it to have it retried, or let the lease expire.

    Attributes:
        claim: The claim to which the delivery belongs.
        row: Number of the delivery in the claim, from 0.
        content: Content of the message in bytes.
        body: Body of the message in bytes; `None` without one. With `Max`, `Min` or `Sum`, the number as text; with
            `Collect`, `None`.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5, body="data"))
        >>> [delivery] = client.consumer(jobs).poll(timeout=5)
        >>> delivery.text, delivery.body, delivery.attempt, delivery.retries_left
        ('job:1', b'data', 1, 16)
        >>> delivery.nack(delay="30s", error="no photo")
        True
    """

    __slots__ = ()

    def ack(self) -> bool:
        """Acknowledge: the message is done and leaves the queue.

        Returns:
            False if the lease was lost before: nothing changed; the message is delivered again, or dead.
            In a listener always True: it collects outcomes and sends them with its next call.

        Raises:
            AlreadySettledError: The delivery was settled before.
            ReplyLostError: The message may be acked or not; if not, it is redelivered when its lease expires.
            RmqError: Redis did not answer, or refused the call; the delivery may be settled again.
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
            InvalidValueError: The delay is not a duration, is negative, or is over 100 years.
            AlreadySettledError: The delivery was settled before.
            ReplyLostError: The message may be nacked or not; if not, it is redelivered when its lease expires.
            RmqError: Redis did not answer, or refused the call; the delivery may be settled again.
        """
        delay_ms = None if delay is None else duration_ms(delay, "delay")
        return self._end(failed(Verb.NACK, delay_ms, error, self.topic.keep_attempts))

    def bury(self, error: BaseException | str = "") -> bool:
        """Move the message to the dead letters at once, even if retries are left. Returns and raises like `ack`."""
        return self._end(failed(Verb.BURY, 0, error, self.topic.keep_attempts))

    def release(self) -> bool:
        """Return the message to the queue as it was, without using up a retry. Returns and raises the same as `ack`."""
        return self._end(RELEASED)

    def refuse_if_settled(self) -> None:
        """Raise `AlreadySettledError` if the delivery was acked, nacked, buried or released before."""
        if (outcome := self.outcome) is not None:
            raise AlreadySettledError(
                f"the delivery of {self.content!r:.80} was already settled ({outcome.verb.value})",
                topic=self.topic.name,
                slot=self.slot,
            )

    def _end(self, outcome: Outcome) -> bool:
        outcomes = self.claim.outcomes
        if outcomes[self.row] is not None:
            self.refuse_if_settled()
        outcomes[self.row] = outcome
        settle = self.claim.holder.settle
        return True if settle is None else settle(self, outcome)


def value_of(record: Record, body: bytes | None) -> Any:
    """Return the merged value: a number for `Max`, `Min` and `Sum`, the items for `Collect`, otherwise the body."""
    if record.kind in BODIES:
        return body
    return record.items if record.kind in ITEMS else record.number


class Claim:
    """A claim of one slot, until its rows are settled or lost.

    Args:
        topic: The topic's definition.
        slot: The slot.
        rows: The claimed messages, all with one claim score.
        claimed_ms: Redis' time of the claim, epoch ms.
        lease_until_s: Earliest time at which the lease ends, on the clock of `rmq._model.times.monotonic_s`.
        holder: Settles the deliveries.
        owner: Epoch and ensemble under which it was claimed.
        kind: The class of its deliveries.

    Attributes:
        score: The claim score of all rows but those that are `apart`.
        outcomes: The outcome of each row; `None` while it is open.
        lost: Per row: 1 once its lease is known to be lost.
        ended: Per row: 1 once its outcome has reached Redis, or no longer can.
        apart: Rows with a claim score and a lease of their own.
        named: Whether an ack must name the rows, because Redis could not ack the claim as a whole.
        busy: Whether a call with its score is under way: one that settles some of its rows, or renews them.
        traces: The trace contexts that observers have set, by row.
        numbers: The results of `Max`, `Min` or `Sum` per row; empty where they are to be read one by one.
    """

    __slots__ = (
        "__weakref__", "apart", "busy", "claimed_ms", "ended", "holder", "kind", "lease_until_s", "lost", "named",
        "numbers", "outcomes", "owner", "rows", "score", "slot", "topic", "traces",
    )  # fmt: skip

    def __init__(
        self,
        topic: Topic,
        slot: int,
        rows: ClaimedRows,
        claimed_ms: int,
        lease_until_s: float,
        holder: Holder,
        owner: Owner = NO_OWNER,
        kind: type[Delivery] = Delivery,
    ) -> None:
        number = len(rows.contents)
        self.topic, self.slot, self.owner, self.kind = topic, slot, owner, kind
        self.rows = rows
        self.score: int = rows.claim_scores[0]
        self.claimed_ms, self.lease_until_s, self.holder = claimed_ms, lease_until_s, holder
        self.outcomes: list[Outcome | None] = [None] * number
        self.lost, self.ended = bytearray(number), bytearray(number)
        self.apart = _NONE_APART
        self.named = topic.merge is not None  # the value in flight goes with the ack
        self.numbers = numbers_in(rows.bodies) if topic.merge is not None and topic.merge.kind in NUMBERS else ()
        self.busy = False
        self.traces: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.outcomes)

    def deliveries(self, rows: Iterable[int] | None = None) -> list[Delivery]:
        """Return deliveries of some rows, by default of all."""
        kind, contents, bodies = self.kind, self.rows.contents, self.rows.bodies
        chosen = range(len(contents)) if rows is None else rows
        if not bodies:
            return [kind(self, row, contents[row]) for row in chosen]
        return [kind(self, row, contents[row], bodies[row]) for row in chosen]

    def delivery(self, row: int) -> Delivery:
        """Return the delivery of a row."""
        return self.deliveries((row,))[0]

    def open_rows(self, rows: Sequence[int] | None = None) -> Sequence[int]:
        """Return the rows that have no outcome yet, of the given rows or by default of all."""
        outcomes = self.outcomes
        chosen = range(len(outcomes)) if rows is None else rows
        return [row for row in chosen if outcomes[row] is None] if any(outcomes) else chosen

    def held_rows(self) -> list[int]:
        """Return the rows that have not ended, settled or not."""
        return [row for row, ended in enumerate(self.ended) if not ended]

    def live_rows(self) -> list[int]:
        """Return the rows that have not ended, and whose lease is not known to be lost."""
        return [row for row, (ended, lost) in enumerate(zip(self.ended, self.lost, strict=True)) if not (ended or lost)]

    def settled_rows(self) -> Sequence[int]:
        """Return the rows with an outcome that has not reached Redis."""
        outcomes, ended = self.outcomes, self.ended
        if not any(outcomes):
            return ()
        if all(outcomes) and 1 not in ended:
            return range(len(outcomes))
        return [row for row, outcome in enumerate(outcomes) if outcome is not None and not ended[row]]

    def acked_rows(self, rows: Sequence[int]) -> list[int]:
        """Return those of the rows that are acked; see also `is_acked`, which is quicker."""
        return [row for row in rows if self.outcomes[row] is ACKED]

    @property
    def is_acked(self) -> bool:
        """True if all rows are acked."""
        return self.outcomes == [ACKED] * len(self.outcomes)

    @property
    def is_over(self) -> bool:
        """True once all rows have ended."""
        return 0 not in self.ended

    def settle_open(self, outcome: Outcome, rows: Sequence[int] | None = None) -> None:
        """Give an outcome to those rows, by default all, that have none yet."""
        outcomes = self.outcomes
        chosen = range(len(outcomes)) if rows is None else rows
        if isinstance(chosen, range) and len(chosen) > 1:
            part, none, new = slice(chosen.start, chosen.stop), [None] * len(chosen), [outcome] * len(chosen)
            if outcomes[part] == none:  # without a call before the next line: no other thread can run
                outcomes[part] = new
                return
        for row in chosen:
            if outcomes[row] is None:
                outcomes[row] = outcome

    def reopen(self, rows: Iterable[int]) -> None:
        """Take back the outcomes of rows that were certainly not carried out."""
        for row in rows:
            self.outcomes[row] = None

    def end(self, rows: Iterable[int]) -> None:
        """Record that rows have ended: their outcome has reached Redis, or no longer can."""
        if isinstance(rows, range):
            self.ended[rows.start : rows.stop] = b"\1" * len(rows)
            return
        for row in rows:
            self.ended[row] = 1

    def lose(self, rows: Iterable[int]) -> list[int]:
        """Note that the leases of some rows were lost; return the rows of which that was not known."""
        new = [row for row in rows if not self.lost[row]]
        for row in new:
            self.lost[row] = 1
        return new

    def score_of(self, row: int) -> int:
        """Return the claim score of a row."""
        return self.apart[row][0] if row in self.apart else self.score

    def lease_of(self, row: int) -> float:
        """Return when the lease of a row ends at the earliest, on the clock of `monotonic_s`."""
        return self.apart[row][1] if row in self.apart else self.lease_until_s

    def tokens(self, rows: Iterable[int]) -> list[tuple[bytes, int]]:
        """Return the name and the claim score of some rows."""
        names, score = self.rows.names, self.score
        if not self.apart:
            return [(names[row], score) for row in rows]
        return [(names[row], self.score_of(row)) for row in rows]

    def renewed(self, rows: Sequence[int], scores: Sequence[int | None], until_s: float, *, alone: bool) -> list[int]:
        """Record the new claim scores of rows; return the rows whose lease had been lost before.

        Args:
            rows: The rows whose leases were to be renewed.
            scores: The new score of each row, the same for all; `None` if its lease had been lost.
            until_s: When the new lease ends at the earliest, on the clock of `monotonic_s`.
            alone: Whether the call renewed no other claim, which would have the same score now.
        """
        gone = [row for row, score in zip(rows, scores, strict=True) if score is None]
        kept = [row for row in set(rows).difference(gone) if self.score_of(row) != NO_SCORE]
        if not kept:
            return gone
        score = max(each or 0 for each in scores)
        self.apart = {**self.apart, **dict.fromkeys(kept, (score, until_s))}
        places = {self.apart.get(row) for row in set(self.live_rows()).union(rows).difference(gone)}
        if {place and place[0] for place in places} == {score}:  # all were renewed
            self.score, self.lease_until_s, self.apart = score, min(place[1] for place in places if place), _NONE_APART
        self.named = self.named or bool(gone) or (self.rows.counted and not alone)
        return gone

    def take_away(self, row: int) -> None:
        """Give a row a claim score that no message has: settling or renewing it changes nothing, and it is lost."""
        self.apart = {**self.apart, row: (NO_SCORE, self.lease_until_s)}

    def is_whole(self, acked: int, nacked: int, now_s: float) -> bool:
        """Return whether an ack of this many rows needs no names, since nothing else is held of the claim.

        Rows that are nacked by the same call are removed before. Naming a single row costs least, and the bodies of
        a queue are deleted by name.
        """
        if acked < 2 or self.named or self.apart or self.lease_until_s < now_s:
            return False
        if not self.rows.counted:
            return acked == len(self)
        return not self.rows.bodies and acked + nacked == self.ended.count(0)

    def bytes_of(self, rows: Iterable[int]) -> int:
        """Return the size of rows in bytes: contents, and bodies or items."""
        contents, bodies = self.rows.contents, self.rows.bodies
        return sum([len(contents[row]) + (len(bodies[row] or b"") if bodies else 0) for row in rows])
