"""Packs the outcomes of claims into the calls that cost Redis least, and reads the replies. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from rmq._broker.claims import CLAIM_BYTES, Nack, Outcomes
from rmq._model.claims import Selection, size_of
from rmq._model.deliveries import Claim, Delivery
from rmq._model.outcomes import ACKED, RELEASED, Outcome, Verb
from rmq._model.replies import Owner
from rmq._model.retry import draw_jitter
from rmq._model.topic_types import TopicType

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
        most_bytes: Maximum bytes of the names of all nacks; a single name may have more.
        may_be_whole: Whether claims may be acked as a whole.

    Returns:
        The outcomes to send now, and the rows that must wait for another call.
    """
    batches: dict[SlotOwner, OutcomeBatch] = {}
    later: list[Selection] = []
    bytes_left, named_left, freed_left = most_bytes, most_named, FREED_BYTES
    for claim, rows in selections:
        place, outcomes = (claim.slot, claim.owner), claim.outcomes
        if (batch := batches.get(place)) is None:
            batch = batches[place] = OutcomeBatch(*place)
        acked = [row for row in rows if outcomes[row] is ACKED]
        taken = 0
        if len(acked) < len(rows):
            nacked = [row for row in rows if outcomes[row] is not ACKED]
            sizes = [len(claim.rows.names[row]) for row in nacked[: max(0, most_nacks - size_of(batch.nacked))]]
            while taken < len(sizes) and bytes_left >= min(sizes[taken], most_bytes):
                bytes_left -= sizes[taken]
                taken += 1
            _divide(claim, nacked, taken, batch.nacked, later)
        if may_be_whole and len(acked) > 1 and claim.is_whole(len(acked), taken, now_s):
            batch.whole.append(Selection(claim, acked))
            continue
        number = min(named_left, len(acked)) if freed_left > 0 else 0
        if claim.rows.bodies and claim.rows.counted:
            number, size_bytes = _freed(claim, acked[:number], freed_left)
            freed_left -= size_bytes
        named_left -= number
        _divide(claim, acked, number, batch.acked, later)
    if later:
        batches = {place: batch for place, batch in batches.items() if batch.selections}
    return batches, later


def _freed(claim: Claim, rows: Sequence[int], most_bytes: int) -> tuple[int, int]:
    """Return how many of the rows may be acked, at least one if there is any, and the bytes that their acks free."""
    size_bytes = claim.bytes_of(rows)
    if size_bytes <= most_bytes:
        return len(rows), size_bytes
    ends = list(accumulate([claim.bytes_of((row,)) for row in rows]))
    number = max(1, bisect_right(ends, most_bytes))
    return number, ends[number - 1]


def _divide(claim: Claim, rows: Sequence[int], number: int, taken: list[Selection], later: list[Selection]) -> None:
    """Add the first rows to those that are taken, and the others to those that must wait."""
    if number:
        taken.append(Selection(claim, rows[:number]))
    if number < len(rows):
        later.append(Selection(claim, rows[number:]))


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
