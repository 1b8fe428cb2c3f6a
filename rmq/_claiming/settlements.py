"""Outcomes of deliveries on their way to Redis, packed so that they cost little there. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rmq.calls import Ack, Nack, WholeClaim
from rmq.delivery import RELEASED, Delivery, Outcome, Verb
from rmq.ownership import NO_OWNER, Owner
from rmq.retry import draw_jitter

Place = tuple[int, Owner]
"""A slot, and the owner in whose name it is called."""


class Settlements:
    """What is to be settled in one slot.

    Args:
        now_s: Now, on the monotonic clock: what may have lost its lease by then is named, since Redis acks a claim as a
            whole only while its lease runs.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s
        self.deliveries: list[Delivery] = []
        self.nacks: list[Nack] = []
        self._acked: dict[int, list[Delivery]] = {}
        self._named: set[int] = set()

    def add(self, delivery: Delivery) -> None:
        """Add a delivery with its outcome."""
        outcome = delivery.outcome or RELEASED
        self.deliveries.append(delivery)
        if outcome.verb is not Verb.ACK:
            self.nacks.append(nack_of(delivery, outcome))
            return
        claim_score = delivery.claim_score
        self._acked.setdefault(claim_score, []).append(delivery)
        if delivery.by_name or delivery.lease_until_s < self._now_s:
            self._named.add(claim_score)

    def keep(self, claim_score: int) -> None:
        """Note that a delivery of this claim is still open: the claim is not done as a whole."""
        self._named.add(claim_score)

    def acks(self) -> tuple[list[Ack], list[WholeClaim]]:
        """Return the acks to be named, those of a claim side by side, and the claims to be acked as a whole.

        Whole are those of which every delivery is acked; what is nacked leaves them before. To name a single one costs
        least.
        """
        named: list[Ack] = []
        whole: list[WholeClaim] = []
        for score, part in self._acked.items():
            if len(part) == 1 or score in self._named:
                named += [(delivery.name, score) for delivery in part]
            else:
                whole.append((score, len(part), part[0].name))
        return named, whole

    def of_claims(self, claim_scores: Iterable[int]) -> list[Delivery]:
        """Return the acked deliveries of these claims."""
        return [delivery for score in claim_scores for delivery in self._acked.get(score, ())]


def pack(settled: Iterable[Delivery], held: Iterable[Delivery], now_s: float = 0.0) -> dict[Place, Settlements]:
    """Sort outcomes by slot and owner.

    Args:
        settled: Deliveries with outcomes to carry out.
        held: All deliveries that this consumer holds, the settled ones too: a claim is acked as a whole, without
            naming its contents, if none of it is open.
        now_s: Now, on the monotonic clock.
    """
    packed: dict[Place, Settlements] = {}
    settlements, slot, owner = Settlements(), -1, NO_OWNER
    for delivery in settled:
        if delivery.slot != slot or delivery.owner is not owner:  # those of a claim stand side by side
            slot, owner = delivery.slot, delivery.owner
            settlements = packed.setdefault((slot, owner), Settlements(now_s))
        settlements.add(delivery)
    for delivery in held:
        if delivery.outcome is None:
            settlements = packed.get((delivery.slot, delivery.owner))
            if settlements is not None:
                settlements.keep(delivery.claim_score)
    return packed


def nack_of(delivery: Delivery, outcome: Outcome) -> Nack:
    """Return what the script needs to know of a nack, a burial or a release."""
    number = 0
    if outcome.verb is Verb.RELEASE:
        number = delivery.store_score
    elif outcome.verb is Verb.NACK:
        delay_ms = outcome.delay_ms
        number = delivery.topic.retry.delay_ms(delivery.attempt, draw_jitter()) if delay_ms is None else delay_ms
    return Nack(
        delivery.name, delivery.claim_score, outcome.verb.value, number, outcome.error_type, outcome.error_message
    )
