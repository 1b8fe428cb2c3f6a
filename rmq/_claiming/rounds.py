"""Rounds of claims: their size, plan and division into calls, the outcomes that these carry, and the result. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from rmq._broker.claims import CLAIM_BYTES, WHOLE_BATCH, ClaimPart, Nack, Outcomes
from rmq._model.claims import Selection, size_of
from rmq._model.deliveries import Claim, Delivery
from rmq._model.outcomes import ACKED, RELEASED, Outcome, Verb
from rmq._model.replies import ClaimedRows, ClaimReply, Owner
from rmq._model.retry import draw_jitter
from rmq._model.settings import TopicType
from rmq.errors import RmqError

CLAIM_WEIGHT, MOST_WEIGHT = 25, 1_000
"""Weight of a slot in a script call that claims from several, in addition to its limit and its settled values; and the
maximum weight of a call, about a millisecond of the server."""

PATIENCE_S = 0.25
"""Seconds that a round over several nodes waits for a node that sends nothing; its replies may arrive later."""

FEWEST_SLOTS, FIRST_SLOTS, MOST_SLOTS = 4, 16, 128
"""Bounds and initial number of the slots of a round trip. If claims return as many messages as they may, fewer slots
with more messages each cost Redis less per message; if they do not, more slots are served sooner."""

HEADROOM = 4
"""A slot may return this many times the average number of messages; beyond that, its lowest priorities have to wait."""

WEIGHT = 0.3
"""Weight of the last round in the moving average of the size of messages."""


@dataclass(slots=True)
class ClaimRequest:
    """One slot's part in a round of claims.

    Attributes:
        slot: The slot.
        owner: The owner in whose name the call is made.
        limit: Maximum number of messages to claim there.
        start: Rank at which to continue an earlier search.
        picked: Whether the slot was picked to be claimed from; if not, outcomes are only settled.
        settlements: The outcomes that the call carries; `None` for none.
        reply: The reply; `None` until it has arrived.
    """

    slot: int
    owner: Owner
    limit: int = 0
    start: int = 0
    picked: bool = True
    settlements: OutcomeBatch | None = None
    reply: ClaimReply[Any] | RmqError | None = None

    @property
    def settled(self) -> list[Selection]:
        """The rows whose outcomes the call carries."""
        return [] if self.settlements is None else self.settlements.selections


@dataclass(slots=True)
class ClaimPlan:
    """The plan of a round of claims.

    Attributes:
        requests: The slots that were picked. No other thread picks them until their replies are known.
        busy: Whether this round, or one soon after it, claims messages: acks may wait for a claim that carries them.
        tokens: Number of tokens of the topic's rate limit that were taken for the round.
    """

    requests: list[ClaimRequest]
    busy: bool
    tokens: int = 0


@dataclass(slots=True, kw_only=True)  # its lists are of one type
class FetchResult:
    """The result of a round of claims, and of earlier rounds whose replies have arrived with it.

    Attributes:
        claims: The new claims.
        settled: Rows whose outcomes were carried out, or ignored because their leases had been lost.
        unsent: Rows whose outcomes certainly did not reach Redis: they have to be sent again.
        unconfirmed: Rows whose outcomes may or may not be carried out, since the reply was lost. If not, the messages
            are redelivered when their leases expire.
        unused: Tokens of the rate limit for which certainly no message was claimed.
        lost: Deliveries whose lease was found to be lost.
    """

    claims: list[Claim] = field(default_factory=list[Claim])
    settled: list[Selection] = field(default_factory=list[Selection])
    unsent: list[Selection] = field(default_factory=list[Selection])
    unconfirmed: list[Selection] = field(default_factory=list[Selection])
    unused: int = 0
    lost: list[Delivery] = field(default_factory=list[Delivery])

    @property
    def deliveries(self) -> list[Delivery]:
        """The deliveries of the new claims."""
        return [delivery for claim in self.claims for delivery in claim.deliveries()]

    def lose(self, selections: Iterable[Selection]) -> None:
        """Note that the leases of rows were lost; add those that were not known to be lost to `lost`."""
        for claim, rows in selections:
            self.lost += claim.deliveries(claim.lose(rows))


def group_parts(parts: Sequence[ClaimPart], joins: bool) -> list[list[ClaimPart]]:
    """Divide the parts of slots into groups of one script call each. A script blocks all other clients.

    Args:
        parts: The parts.
        joins: Whether slots may share a call.
    """
    if len(parts) == 1:
        return [[parts[0]]]
    groups: list[list[ClaimPart]] = []
    room = 0
    for part in parts:
        weight = CLAIM_WEIGHT + max(0, part.limit) + part.outcomes.weight
        if weight > room or not joins:
            groups.append([])
            room = MOST_WEIGHT
        groups[-1].append(part)
        room -= weight
    return groups


class FetchSize:
    """Number of slots and messages of a round, so that it returns no more bytes than allowed.

    Args:
        fewest: Fewest slots: more than one where slots share a call, so that they cost little.
        most_bytes: Maximum bytes of contents and bodies in one round.

    Attributes:
        slots: Maximum number of slots to claim from.
    """

    def __init__(self, fewest: int = FEWEST_SLOTS, most_bytes: int = CLAIM_BYTES) -> None:
        self._fewest = fewest
        self.slots = FIRST_SLOTS
        self._most_bytes = most_bytes
        self._bytes_per_message = 0.0

    def size_for(self, limit: int, most_each: int, nodes: int) -> tuple[int, int]:
        """Return the number of messages to claim, 1 to `limit`, and of slots: enough for them, and for all nodes.

        Args:
            limit: Most messages of the round.
            most_each: Most messages from one slot.
            nodes: Number of servers that have the slots.
        """
        if limit == 1:
            return 1, 1
        messages = self.messages(limit)
        return messages, min(messages, max(self.slots, nodes, -(-messages // most_each)))

    def messages(self, limit: int) -> int:
        """Return the number of messages to claim, 1 to `limit`."""
        if limit * self._bytes_per_message <= self._most_bytes:
            return limit
        return max(1, int(self._most_bytes / self._bytes_per_message))

    def note(self, asked: int, replies: Sequence[ClaimReply[Any]], slots: int) -> bool:
        """Learn from a round, or a part of it; return whether due slots got no messages because others filled the call.

        Args:
            asked: Number of messages that these calls requested.
            replies: Their replies. A larger average size counts at once, a smaller one gradually.
            slots: Number of slots from which the whole round claims.
        """
        received, size_bytes, filled = 0, 0, False
        for reply in replies:
            if number := len(messages := reply.messages):
                received += number
                if isinstance(messages, ClaimedRows):
                    content, bodies = messages.contents[0], messages.bodies
                else:
                    content, bodies = messages[0].content, [message.body for message in messages]
                size_bytes += len(content) * number + sum(map(len, filter(None, bodies)))
            elif 0 < reply.next_due_ms <= reply.now_ms:
                filled = True
        slots_needed = asked * slots // (HEADROOM * received) if received else MOST_SLOTS
        self.slots = max(self._fewest, min(MOST_SLOTS, 2 * self.slots, max(slots_needed, self.slots // 2)))
        if received:
            mean = size_bytes / received
            self._bytes_per_message = max(mean, self._bytes_per_message + WEIGHT * (mean - self._bytes_per_message))
        return filled and received > 0


NAMED_ACKS = 2_000
"""Maximum number of acks by name that a round of claims carries: 1,000 cost the server about 1 ms."""

FREED_BYTES = 64 * 1_048_576
"""Maximum size of the bodies that the acks of one call delete, bytes: the server frees about 12 MiB per ms."""

SPARE = "spare"
"""The scripts' word for a release with a delay."""

SlotOwner = tuple[int, Owner]
"""A slot, and the owner in whose name calls on it are made."""


class Settled(NamedTuple):
    """The results of the outcomes that a call carried.

    Attributes:
        done: The rows whose outcomes were carried out, or ignored because their leases had been lost.
        unsent: The rows whose outcomes need another call.
        stale: The rows whose leases had been lost.
    """

    done: list[Selection]
    unsent: list[Selection]
    stale: list[Selection]


class OutcomeBatch:
    """The outcomes of one slot that a call carries.

    Attributes:
        slot: The slot.
        owner: The owner in whose name they are sent.
        nacked: Rows to nack, bury or release.
        acked: Rows to ack by name.
        whole: Rows to ack as whole claims, without names.
    """

    __slots__ = ("acked", "nacked", "owner", "slot", "whole")

    def __init__(self, slot: int, owner: Owner) -> None:
        self.slot, self.owner = slot, owner
        self.nacked: list[Selection] = []
        self.acked: list[Selection] = []
        self.whole: list[Selection] = []

    @property
    def selections(self) -> list[Selection]:
        """All rows of the batch."""
        return [*self.nacked, *self.acked, *self.whole]

    def outcomes(self) -> Outcomes:
        """Return the outcomes as arguments of a script, which carries out nacks first."""
        return Outcomes(
            [token for claim, rows in self.acked for token in claim.tokens(rows)],
            [nack_of(each, each.outcome or RELEASED) for part in self.nacked for each in part.deliveries()],
            [(claim.score, len(rows)) for claim, rows in self.whole],
        )

    def take(self, stale: Sequence[bytes], unmatched: Sequence[int], nacked: int | None) -> Settled:
        """Record the reply to the call: rows whose outcome was carried out have ended.

        Args:
            stale: Names of the rows whose leases had been lost.
            unmatched: Claim scores of whole claims that must be acked by name.
            nacked: Number of nacks that were carried out, from the first on; `None` for all.
        """
        settled, unsent = [*self.nacked, *self.acked, *self.whole], list[Selection]()
        if unmatched or nacked is not None:
            unsent = [part for part in self.whole if part.claim.score in unmatched]
            settled = [*self.acked, *[part for part in self.whole if part.claim.score not in unmatched]]
            for claim, _ in unsent:
                claim.named = True
            left = sum([len(rows) for _, rows in self.nacked]) if nacked is None else nacked
            for claim, rows in self.nacked:
                settled.append(Selection(claim, rows[:left]))
                unsent.append(Selection(claim, rows[left:]))
                left = max(0, left - len(rows))
        for claim, rows in settled:
            claim.end(rows)
        return Settled(settled, unsent, stale_among([*self.nacked, *self.acked], stale) if stale else [])


def stale_among(selections: Iterable[Selection], names: Sequence[bytes]) -> list[Selection]:
    """Return the rows that a script reported as stale by their names.

    Two deliveries of one message may be settled in one call: one whose lease has expired, and the next one. The reply
    has the name once for each stale delivery; if it is only one of the two, it is the one that was claimed first.
    """
    left, stale = Counter(names), list[Selection]()
    for claim, rows in sorted(selections, key=lambda part: part.claim.score):
        found: list[int] = []
        for row in rows:
            if left[name := claim.rows.names[row]]:
                left[name] -= 1
                found.append(row)
        if found:
            stale.append(Selection(claim, found))
    return stale


def batch_outcomes(
    selections: Sequence[Selection],
    now_s: float,
    most_nacks: int,
    *,
    most_named: int = NAMED_ACKS,
    most_bytes: int = CLAIM_BYTES,
    may_be_whole: bool = True,
) -> tuple[dict[SlotOwner, OutcomeBatch], list[Selection]]:
    """Group outcomes by slot and owner.

    A claim is acked as a whole if nothing else is held of it; nacked rows are removed from it before.

    Args:
        selections: The rows with outcomes to send.
        now_s: Now, on the monotonic clock. Rows whose lease may have expired are named: Redis acks a claim as a whole
            only while its lease runs.
        most_nacks: Maximum number of nacks in a slot: each costs the server several commands.
        most_named: Maximum number of acks by name, over all slots.
        most_bytes: Maximum bytes of the names of all nacks and of all acks by name; a single name may have more.
        may_be_whole: Whether claims may be acked as a whole.

    Returns:
        The outcomes to send now, and the rows that must wait for another call.
    """
    batches: dict[SlotOwner, OutcomeBatch] = {}
    later: list[Selection] = []
    bytes_left, named_left, freed_left = most_bytes, most_named, FREED_BYTES
    for claim, rows in selections:
        place, outcomes, names = (claim.slot, claim.owner), claim.outcomes, claim.rows.names
        if (batch := batches.get(place)) is None:
            batch = batches[place] = OutcomeBatch(*place)
        acked, nacks, nacked = rows, list[int](), list[int]()
        if outcomes != [ACKED] * len(rows):
            acked, nacked = claim.acked_rows(rows), [row for row in rows if outcomes[row] is not ACKED]
            nacks = nacked[: max(0, most_nacks - size_of(batch.nacked))]
            nacks, bytes_left = _fitting(nacks, [len(names[row]) for row in nacks], bytes_left, most_bytes)
            if nacks:
                batch.nacked.append(Selection(claim, nacks))
        if may_be_whole and len(acked) > 1 and claim.is_whole(len(acked), len(nacks), now_s):  # so no nack is left over
            (batch.whole if len(batch.whole) < WHOLE_BATCH else later).append(Selection(claim, acked))
            continue
        acks = acked[:named_left]
        if (bodies := claim.rows.bodies) and claim.rows.counted:
            acks, freed_left = _fitting(acks, [len(bodies[row] or b"") for row in acks], freed_left, FREED_BYTES)
        acks, bytes_left = _fitting(acks, [len(names[row]) for row in acks], bytes_left, most_bytes)
        named_left -= len(acks)
        if acks:
            batch.acked.append(Selection(claim, acks))
        if rest := [*nacked[len(nacks) :], *acked[len(acks) :]]:
            later.append(Selection(claim, rest))
    if later:
        batches = {place: batch for place, batch in batches.items() if batch.selections}
    return batches, later


def _fitting(rows: Sequence[int], sizes: Sequence[int], bytes_left: int, most_bytes: int) -> tuple[Sequence[int], int]:
    """Return the first rows that fit into the bytes that are left, and what these leave; a first one may have more."""
    if (size_bytes := sum(sizes)) <= bytes_left:
        return rows, bytes_left - size_bytes
    ends = list(accumulate(sizes))
    number = bisect_right(ends, bytes_left) or int(bytes_left == most_bytes)
    return rows[:number], bytes_left - (ends[number - 1] if number else 0)


def nack_of(delivery: Delivery, outcome: Outcome) -> Nack:
    """Return the script's arguments for a nack, a burial or a release."""
    number, verb, topic = 0, outcome.verb.value, delivery.topic
    if outcome.due_ms is not None:
        number = outcome.due_ms
    elif outcome.verb is Verb.RELEASE:
        spared_ms = outcome.delay_ms
        if spared_ms is None:
            number = delivery.store_score
        elif topic.max_retries or topic.type is TopicType.STREAM:
            number, verb = spared_ms, SPARE
        else:  # no score in store tells a retry from a fresh message there: it keeps its own, or is due that much later
            number = delivery.store_score + (spared_ms if topic.type.timed else 0)
    elif outcome.verb is Verb.NACK:
        delay_ms = outcome.delay_ms
        number = topic.retry.delay_ms(delivery.attempt, draw_jitter()) if delay_ms is None else delay_ms
    return Nack(delivery.name, delivery.claim_score, verb, number, outcome.stored_type, outcome.error_message)


PREFETCH_S = 0.1
"""Time of handling to prefetch for, in seconds: it hides the round trip, and barely delays urgent messages."""

MOST_PREFETCHED = 500
"""Most messages of one node that are claimed for calls of the handler with one message each."""

MOST_BATCHED = 2_000
"""Most messages of one node that are claimed for calls with a batch each, unless a single batch has more."""

FIRST_GUESS = 1
_WEIGHT = 0.3


class PrefetchSize:
    """Number of messages to prefetch, from a moving average of a handler's speed."""

    def __init__(self) -> None:
        self._per_message_s: float | None = None

    def note(self, messages: int, elapsed_s: float) -> None:
        """Record that a number of messages took `elapsed_s` seconds."""
        if messages:
            now_s = elapsed_s / messages
            known = self._per_message_s
            self._per_message_s = now_s if known is None else known + _WEIGHT * (now_s - known)

    def messages(self, within_s: float = PREFETCH_S) -> int:
        """Return the number of messages that are handled within `within_s`, at least 1."""
        if self._per_message_s is None:
            return FIRST_GUESS
        return max(1, int(within_s / max(self._per_message_s, 1e-9)))

    @property
    def is_known(self) -> bool:
        """True once a duration of the handler is known."""
        return self._per_message_s is not None

    def takes_s(self, messages: int) -> float:
        """Return the seconds that it takes to handle a number of messages; 0 while that is unknown."""
        return (self._per_message_s or 0.0) * messages
