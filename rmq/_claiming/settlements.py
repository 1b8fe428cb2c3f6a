"""Outcomes of deliveries on their way to Redis, packed so that they cost little there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmq._claiming.portions import bytes_of
from rmq._model.deliveries import RELEASED, Delivery, Outcome, Verb
from rmq._model.owner import NO_OWNER, Owner
from rmq._model.retry import draw_jitter
from rmq._scripts.claiming import CLAIM_BYTES, Ack, Nack, WholeClaim

NAMED_ACKS = 2_000
"""Most acks by name that go along with a round of claims: 1,000 cost the server about 1 ms."""

SlotOwner = tuple[int, Owner]
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
        acked = self._acked.get(claim_score)
        if acked is None:
            acked = self._acked[claim_score] = []
        acked.append(delivery)
        if delivery.ack_individually or delivery.lease_until_s < self._now_s:
            self._named.add(claim_score)

    def keep(self, claim_score: int) -> None:
        """Note that a delivery of this claim is still open: the claim is not done as a whole."""
        self._named.add(claim_score)

    def acks(self) -> tuple[list[Ack], list[WholeClaim]]:
        """Return the acks to be named, those of a claim side by side, and the claims to be acked as a whole.

        Whole are those of which every delivery is acked; what is nacked leaves them before.
        """
        named: list[Ack] = []
        whole: list[WholeClaim] = []
        for score, part in self._acked.items():
            if self._is_named(score, part):
                named += [(delivery.name, score) for delivery in part]
            else:
                whole.append((score, len(part)))
        return named, whole

    def cut_named(self, most: int) -> tuple[int, list[Delivery]]:
        """Take out the acks to be named beyond the first `most`; return how many stay, and the deliveries cut."""
        stay, cut = 0, list[Delivery]()
        for score, part in self._acked.items():
            if self._is_named(score, part):
                self._named.add(score)
                cut += part[most - stay :]
                del part[most - stay :]
                stay += len(part)
        if cut:
            gone = set(map(id, cut))
            self.deliveries = [delivery for delivery in self.deliveries if id(delivery) not in gone]
            self._acked = {score: part for score, part in self._acked.items() if part}
        return stay, cut

    def _is_named(self, claim_score: int, acked: Sequence[Delivery]) -> bool:
        return len(acked) == 1 or claim_score in self._named  # to name a single one costs least

    def of_claims(self, claim_scores: Iterable[int]) -> list[Delivery]:
        """Return the acked deliveries of these claims."""
        return [delivery for score in claim_scores for delivery in self._acked.get(score, ())]


def pack(
    settled: Iterable[Delivery], held: Iterable[Delivery], now_s: float, most_nacks: int, most_bytes: int = CLAIM_BYTES
) -> tuple[dict[SlotOwner, Settlements], list[Delivery]]:
    """Sort outcomes by slot and owner.

    Args:
        settled: Deliveries with outcomes to carry out.
        held: All deliveries that this consumer holds, the settled ones too: a claim is acked as a whole, without
            naming its contents, if none of it is open.
        now_s: Now, on the monotonic clock.
        most_nacks: Most nacks in a slot: each costs the server several commands.
        most_bytes: Most bytes of all nacks, with the bodies of those that may die; a single one may have more.

    Returns:
        What goes along now, and the deliveries that have to wait for a later call: nacks, and acks to be named
        beyond `NAMED_ACKS`.
    """
    packed: dict[SlotOwner, Settlements] = {}
    later: list[Delivery] = []
    settlements: Settlements | None = None
    slot, owner, left_bytes = -1, NO_OWNER, most_bytes
    for delivery in settled:
        # those of a claim stand side by side
        if settlements is None or delivery.slot != slot or delivery.owner is not owner:
            slot, owner = delivery.slot, delivery.owner
            settlements = packed.get((slot, owner))
            if settlements is None:
                settlements = packed[slot, owner] = Settlements(now_s)
        verb = (delivery.outcome or RELEASED).verb
        if verb is not Verb.ACK:
            size_bytes = bytes_of(delivery, verb is not Verb.RELEASE)
            if len(settlements.nacks) >= most_nacks or left_bytes < min(size_bytes, most_bytes):
                later.append(delivery)
                continue
            left_bytes -= size_bytes
        settlements.add(delivery)
    for delivery in (*later, *[each for each in held if each.outcome is None]):
        settlements = packed.get((delivery.slot, delivery.owner))
        if settlements is not None:
            settlements.keep(delivery.claim_score)
    left = NAMED_ACKS
    for settlements in packed.values():
        named, cut = settlements.cut_named(left)
        left -= named
        later += cut
    return {place: each for place, each in packed.items() if each.deliveries}, later


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
