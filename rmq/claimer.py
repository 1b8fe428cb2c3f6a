"""Claims from a topic's slots, fairly and only where something is due. Shared by consumers and listeners."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rmq import calls
from rmq.calls import MAX_BATCH, Ack, Nack, Owner
from rmq.clock import monotonic_s
from rmq.connections import Connections
from rmq.delivery import RELEASED, Delivery, Outcome, Settle, Verb
from rmq.errors import RedisUnavailableError, ReplyLostError, RmqError
from rmq.results import ClaimReply
from rmq.retry import draw_jitter
from rmq.schedule import Schedule
from rmq.slot import SlotWriter
from rmq.topics import Topic
from rmq.wakeups import HintReader

log = logging.getLogger("rmq.claimer")

SLOTS_PER_ROUND = 16
"""Most slots claimed from in one round trip."""

LOOK_SLOTS = 256
"""Slots looked at in one script call."""

TROUBLE_PAUSE_S = 0.2
"""A slot where a claim failed is left alone for so long: it shall neither hold up the others nor strand more messages
by claims of which nobody hears the reply."""


@dataclass(slots=True)
class Settlements:
    """Outcomes of a slot's deliveries on their way to Redis."""

    deliveries: list[Delivery] = field(default_factory=list[Delivery])
    acks: list[Ack] = field(default_factory=list[Ack])
    nacks: list[Nack] = field(default_factory=list[Nack])

    def add(self, delivery: Delivery) -> None:
        """Add a delivery with its outcome."""
        outcome = delivery.outcome or RELEASED
        self.deliveries.append(delivery)
        if outcome.verb is Verb.ACK:
            self.acks.append((delivery.content, delivery.claim_score))
        else:
            self.nacks.append(nack_of(delivery, outcome))


@dataclass(frozen=True, slots=True)
class ClaimRound:
    """What a round of claims brought.

    Attributes:
        deliveries: What was claimed.
        unsent: Settled deliveries whose outcomes certainly did not reach Redis: to be sent again.
    """

    deliveries: list[Delivery]
    unsent: list[Delivery]


def nack_of(delivery: Delivery, outcome: Outcome) -> Nack:
    """Return what the script needs to know of a nack, a burial or a release."""
    number = 0
    if outcome.verb is Verb.RELEASE:
        number = delivery.store_score
    elif outcome.verb is Verb.NACK:
        delay_ms = outcome.delay_ms
        number = delivery.topic.retry.delay_ms(delivery.attempt, draw_jitter()) if delay_ms is None else delay_ms
    return Nack(
        delivery.content, delivery.claim_score, outcome.verb.value, number, outcome.error_type, outcome.error_message
    )


class Claimer:
    """Knows when each slot is due, and claims there. Thread-safe.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        slots: The slots to claim from.
    """

    def __init__(self, connections: Connections, topic: Topic, slots: Sequence[int]) -> None:
        self.topic = topic
        self._connections = connections
        self._writer = SlotWriter(connections, topic)
        self._schedule = Schedule(slots)
        self._resume: dict[int, int] = {}
        self._owners: Mapping[int, Owner] = {}
        self._changed = threading.Condition()
        self.stale = 0
        """Settlements whose claim was no longer ours."""
        self.lost_replies = 0
        """Claims of which the reply was lost; their messages come back when the lease ends."""

    def wake_all(self) -> None:
        """Let threads in `wait` look again."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, longest_s: float) -> None:
        """Wait until a slot is due, something changes, or `longest_s` have passed."""
        with self._changed:
            timeout_s = self._schedule.wait_s(monotonic_s(), longest_s)
            if timeout_s > 0:
                self._changed.wait(timeout_s)

    def wait_s(self, longest_s: float) -> float:
        """Return for how long nothing is due, in seconds."""
        with self._changed:
            return self._schedule.wait_s(monotonic_s(), longest_s)

    def listen(self, hints: HintReader, timeout_s: float) -> bool:
        """Read hints for up to `timeout_s`; return whether hints may have been missed."""
        found = hints.read(timeout_s)
        if found.due or found.missed:
            with self._changed:
                for slot, due_ms in found.due:
                    self._schedule.hint(slot, due_ms)
                self._changed.notify_all()
        return found.missed

    def look(self) -> None:
        """Ask Redis when each slot is due: catches lost hints, others' nacks and leases that ran out.

        Raises:
            RedisUnavailableError: No answer until the deadline.
        """
        slots = self._schedule.slots
        for first in range(0, len(slots), LOOK_SLOTS):
            part = slots[first : first + LOOK_SLOTS]
            now_ms, times = self._connections.run(calls.look(self.topic, part))
            with self._changed:
                self._schedule.sync_clock(now_ms, monotonic_s())
                for slot, due_ms in zip(part, times, strict=True):
                    if due_ms:
                        self._schedule.hint(slot, due_ms)
                self._changed.notify_all()

    def expect(self, slot: int) -> None:
        """Take a slot for due: something has changed there that no claim has seen yet."""
        with self._changed:
            self._schedule.hint(slot, 0)
            self._changed.notify_all()

    def claim(self, limit: int, settle: Settle, settled: Sequence[Delivery] = ()) -> ClaimRound:
        """Claim up to `limit` messages from the slots that are due, in one round trip; settle on the way.

        Args:
            limit: Most messages; 0 settles only.
            settle: What the deliveries call when they are acked or nacked.
            settled: Deliveries with outcomes to carry out first; their slots are claimed from, too.

        Returns:
            The deliveries, and the settled ones that certainly did not reach Redis.

        Raises:
            RedisUnavailableError: No answer until the deadline, and nothing to give back.
            CoordinationError: A newer owner has touched a slot.
        """
        pending: dict[int, Settlements] = {}
        for delivery in settled:
            pending.setdefault(delivery.slot, Settlements()).add(delivery)
        turn = self._turn(pending, limit)
        slots = [*turn, *(slot for slot in pending if slot not in turn)]
        if not slots:
            return ClaimRound([], [])
        started_s = monotonic_s()
        share, extra = divmod(limit, len(turn) or 1)
        shares = [min(share + (index < extra), MAX_BATCH) for index in range(len(turn))] + [0] * len(slots)
        parts = [self._claim_call(slot, shares[index], pending.get(slot)) for index, slot in enumerate(slots)]
        replies = self._connections.run_many(parts)
        return self._take_replies(slots, replies, pending, settle, started_s)

    def _turn(self, pending: Mapping[int, Settlements], limit: int) -> list[int]:
        """Pick the slots to claim from; no other thread picks them until the claim has answered.

        Those due for longest go first, whatever is to be settled: else a slow handler, which claims one at a time,
        would never leave its slot. Where room is left, the calls that settle claim, too.
        """
        room = min(SLOTS_PER_ROUND, limit)
        if not room:
            return []
        with self._changed:
            turn = self._schedule.due(monotonic_s(), room)
            turn += [slot for slot in pending if slot not in turn][: room - len(turn)]
            for slot in turn:
                self._schedule.note(slot, 0)
            self._schedule.served(turn)
        return turn

    def _claim_call(self, slot: int, limit: int, settlements: Settlements | None) -> calls.Call[ClaimReply]:
        owner = self._owners.get(slot, calls.NO_OWNER)
        start = self._resume.get(slot, 0)
        if settlements is None:
            return self._writer.claim_call(slot, limit, owner=owner, start=start)
        return self._writer.claim_call(
            slot, limit, owner=owner, start=start, acks=settlements.acks, nacks=settlements.nacks
        )

    def _take_replies(
        self,
        slots: Sequence[int],
        replies: Sequence[ClaimReply | RmqError],
        pending: Mapping[int, Settlements],
        settle: Settle,
        started_s: float,
    ) -> ClaimRound:
        round_ = ClaimRound([], [])
        trouble: RmqError | None = None
        lease_until_s = started_s + self.topic.lease_s
        with self._changed:
            for slot, reply in zip(slots, replies, strict=True):
                if isinstance(reply, ClaimReply):
                    self._schedule.sync_clock(reply.now_ms, monotonic_s())
                    if reply.next_due_ms:  # a hint may have come in the meantime, which this reply can't know of
                        self._schedule.hint(slot, reply.next_due_ms)
                    self._resume[slot] = reply.resume
                    self._book_stale(reply, pending.get(slot))
                    for claimed in reply.messages:
                        delivery = Delivery(self.topic, slot, claimed, reply.now_ms, lease_until_s, settle)
                        round_.deliveries.append(delivery)
                    continue
                self._schedule.postpone(slot, monotonic_s(), TROUBLE_PAUSE_S)
                if isinstance(reply, ReplyLostError):
                    self.lost_replies += 1
                    log.warning("%s", reply)
                    continue
                trouble = reply
                if isinstance(reply, RedisUnavailableError) and slot in pending:
                    round_.unsent.extend(pending[slot].deliveries)
            if self._schedule.wait_s(monotonic_s(), 1.0) == 0:
                self._changed.notify_all()
        if trouble is None:
            return round_
        if not round_.deliveries and not round_.unsent:
            raise trouble
        log.warning("%s", trouble)
        return round_

    def _book_stale(self, reply: ClaimReply, settlements: Settlements | None) -> None:
        if not reply.stale or settlements is None:
            return
        self.stale += len(reply.stale)
        gone = set(reply.stale)
        for delivery in settlements.deliveries:
            delivery.lost = delivery.lost or delivery.content in gone
        log.warning(
            "topic %s, slot %d: %d outcomes came after their lease had been lost; nothing changed for them",
            self.topic.name,
            settlements.deliveries[0].slot,
            len(gone),
        )
