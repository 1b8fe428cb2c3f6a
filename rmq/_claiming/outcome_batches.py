"""Packs the outcomes of deliveries into the calls that cost Redis least. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from rmq._broker.claims import CLAIM_BYTES, Ack, Nack, Outcomes, WholeClaim
from rmq._claiming.chunks import FREED_BYTES, bytes_of, chunks
from rmq._model.deliveries import RELEASED, Delivery, Outcome, Verb
from rmq._model.delivery_columns import ClaimColumns
from rmq._model.merging import Collect
from rmq._model.replies import NO_OWNER, Owner
from rmq._model.retry import draw_jitter
from rmq._model.topic_types import TopicType

NAMED_ACKS = 2_000
"""Maximum number of acks by name that a round of claims carries: 1,000 cost the server about 1 ms."""

SPARE = "spare"
"""The scripts' word for a release with a delay."""

SlotOwner = tuple[int, Owner]
"""A slot, and the owner in whose name calls on it are made."""


class OutcomeBatch:
    """The outcomes of one slot.

    Attributes:
        deliveries: All deliveries to settle.
        nacked: Deliveries to nack, bury or release.
        nacks: The nacked deliveries, as arguments of the script.
        acked: Deliveries to ack, by claim score.
        named: Claim scores whose acks must name the deliveries, because others of the claim are not settled yet, or its
        lease may have expired.
    """

    __slots__ = ("acked", "deliveries", "nacked", "nacks", "named")

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.nacked: list[Delivery] = []
        self.nacks: list[Nack] = []
        self.acked: dict[int, list[Delivery]] = {}
        self.named: set[int] = set()

    def outcomes(self, is_whole: Callable[[int, int], bool]) -> Outcomes:
        """Return the outcomes for a claim's script; acks by name of one claim are adjacent.

        A claim is acked as a whole if all of its deliveries are acked; nacked ones are removed from it before. Of a
        single delivery, naming costs least. `is_whole` may refuse a claim by its score and its number of deliveries.
        """
        named: list[Ack] = []
        whole: list[WholeClaim] = []
        for score, part in self.acked.items():
            if isinstance(part[0], ClaimColumns):  # no others have its score
                whole.append((score, len(part[0].rows)))
            elif len(part) == 1 or score in self.named or not is_whole(score, len(part)):
                named += [(delivery.name, score) for delivery in part]
            else:
                whole.append((score, len(part)))
        return Outcomes(named, self.nacks, whole)

    def of_claims(self, claim_scores: Iterable[int]) -> list[Delivery]:
        """Return the acked deliveries of these claims."""
        return [delivery for score in claim_scores for delivery in self.acked.get(score, ())]


def stale_among(deliveries: Sequence[Delivery], names: Sequence[bytes]) -> list[Delivery]:
    """Return the deliveries that a script reported as stale by their names.

    Two deliveries of one message may be settled in one call: one whose lease has expired, and the next one. The reply
    has the name once for each stale delivery; if it is only one of the two, it is the one that was claimed first.
    """
    left = Counter(names)
    stale: list[Delivery] = []
    for delivery in sorted(deliveries, key=attrgetter("claim_score")):
        if left[delivery.name]:
            left[delivery.name] -= 1
            stale.append(delivery)
    return stale


def batch_outcomes(
    settled: Sequence[Delivery], held: Iterable[Delivery], now_s: float, most_nacks: int, most_bytes: int = CLAIM_BYTES
) -> tuple[dict[SlotOwner, OutcomeBatch], list[Delivery]]:
    """Group outcomes by slot and owner.

    Args:
        settled: Deliveries with outcomes to send.
        held: All deliveries that this consumer holds, including the settled ones: a claim is acked as a whole, without
            naming its contents, if all of its deliveries are settled.
        now_s: Now, on the monotonic clock. Deliveries whose lease may have expired are named: Redis acks a claim as a
            whole only while its lease runs.
        most_nacks: Maximum number of nacks in a slot: each costs the server several commands.
        most_bytes: Maximum bytes of the names of all nacks; a single name may have more.

    Returns:
        The outcomes to send now, and the deliveries that must wait for a later call: nacks, and acks by name beyond
        `NAMED_ACKS`, or beyond `FREED_BYTES` of bodies.
    """
    batches: dict[SlotOwner, OutcomeBatch] = {}
    later: list[Delivery] = []
    slot, owner, left_bytes, part = -1, NO_OWNER, most_bytes, OutcomeBatch()
    for delivery in settled:
        if delivery.slot != slot or delivery.owner is not owner:  # those of a claim stand side by side
            slot, owner = delivery.slot, delivery.owner
            part = batches.get((slot, owner)) or OutcomeBatch()
            batches[slot, owner] = part
        outcome = delivery.outcome or RELEASED
        if outcome.verb is Verb.ACK:
            claim_score = delivery.claim_score
            if claim_score in part.acked:
                part.acked[claim_score].append(delivery)
            else:
                part.acked[claim_score] = [delivery]
            if (delivery.ack_individually or delivery.lease_until_s < now_s) and not isinstance(delivery, ClaimColumns):
                part.named.add(claim_score)
        else:
            size_bytes = len(delivery.name)
            if len(part.nacks) >= most_nacks or left_bytes < min(size_bytes, most_bytes):
                later.append(delivery)
                continue
            left_bytes -= size_bytes
            part.nacked.append(delivery)
            part.nacks.append(nack_of(delivery, outcome))
        part.deliveries.append(delivery)
    _name_incomplete(batches, (*later, *[each for each in held if each.outcome is None]))
    if len(settled) > NAMED_ACKS or _may_exceed_freed_bytes(settled):
        later += _defer_named(batches.values())
    return {place: each for place, each in batches.items() if each.deliveries}, later


def _name_incomplete(batches: Mapping[SlotOwner, OutcomeBatch], open_: Iterable[Delivery]) -> None:
    """Add claims with deliveries that are not settled to those whose acks name the deliveries."""
    slot, owner, score = -1, NO_OWNER, -1
    for delivery in open_:
        if delivery.claim_score != score or delivery.slot != slot or delivery.owner is not owner:
            slot, owner, score = delivery.slot, delivery.owner, delivery.claim_score
            if part := batches.get((slot, owner)):
                part.named.add(score)


def _may_exceed_freed_bytes(settled: Sequence[Delivery]) -> bool:
    """Return whether the bodies may be larger than one round may delete; usually their number rules it out."""
    topic = settled[0].topic if settled else None
    if topic is None or topic.type is TopicType.STREAM:
        return False
    collect = topic.merge.reduce if topic.merge is not None else None
    largest = collect.max_bytes if isinstance(collect, Collect) else topic.max_body_bytes
    return len(settled) * largest > FREED_BYTES


def _defer_named(parts: Iterable[OutcomeBatch]) -> list[Delivery]:
    """Remove and return the acks by name beyond the first `NAMED_ACKS`, or beyond `FREED_BYTES` of bodies."""
    left, left_bytes, deferred = NAMED_ACKS, FREED_BYTES, list[Delivery]()
    for part in parts:
        for score, acked in part.acked.items():
            if (len(acked) == 1 and not isinstance(acked[0], ClaimColumns)) or score in part.named:
                part.named.add(score)
                fits = min(left, len(acked))
                if fits:
                    fits = len(next(chunks(acked, left, most_freed=left_bytes))) if left_bytes > 0 else 0
                left_bytes -= bytes_of(acked[:fits])
                deferred += acked[fits:]
                del acked[fits:]
                left -= fits
        gone = set(map(id, deferred))
        part.deliveries = [delivery for delivery in part.deliveries if id(delivery) not in gone]
        part.acked = {score: acked for score, acked in part.acked.items() if acked}
    return deferred


def nack_of(delivery: Delivery, outcome: Outcome) -> Nack:
    """Return the script's arguments for a nack, a burial or a release."""
    number, verb, topic = 0, outcome.verb.value, delivery.topic
    if outcome.verb is Verb.RELEASE:
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
    return Nack(delivery.name, delivery.claim_score, verb, number, outcome.error_type, outcome.error_message)
