"""Claims from a topic's slots, fairly and only where something is due. Shared by consumers and listeners."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rmq import calls
from rmq.calls import MAX_BATCH, Call
from rmq.clock import monotonic_s
from rmq.connections import Connections
from rmq.delivery import Delivery, Holder
from rmq.errors import CoordinationError, ReplyLostError, RmqError, ScriptFailedError
from rmq.looking import Looker
from rmq.ownership import NO_OWNER, Owner
from rmq.results import ClaimReply, SlotStats
from rmq.rounds import FIRST_SLOTS, PATIENCE_S, Board, ClaimRound, Source, joined, next_width
from rmq.schedule import Schedule
from rmq.settlements import Place, Settlements, pack
from rmq.slot import SlotWriter
from rmq.throttle import Throttle
from rmq.topics import Topic
from rmq.wakeups import Hints

log = logging.getLogger("rmq.claimer")

TROUBLE_PAUSE_S = 0.2
"""A slot where a claim failed is left alone for so long: it shall neither hold up the others nor strand more messages
by claims of which nobody hears the reply."""

IDLE_S = 0.02
"""Who has nothing to claim for so long is idle: outcomes do not wait for a claim to ride on."""


class Claimer:
    """Knows when each slot is due, and claims there. Thread-safe.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        slots: The slots to claim from.
        may_claim: Asked right before each claim whether the slot still is this owner's; yes by default.
        source: The slots themselves; those of the topic's own type by default.
        throttle: The topic's rate limit; one of its own by default.
    """

    def __init__(
        self,
        connections: Connections,
        topic: Topic,
        slots: Sequence[int],
        may_claim: Callable[[int, Owner], bool] | None = None,
        source: Source | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self.topic = topic
        self.blocking = connections.blocking
        self._connections = connections
        self._source = source or SlotWriter(connections, topic)
        self._joins = connections.multi_slot_scripts and self._source.joins_claims
        self._throttle = throttle or Throttle(connections, topic)
        self._schedule = Schedule(slots)
        self._resume: dict[int, int] = {}
        self._width = FIRST_SLOTS
        self._owners: Mapping[int, Owner] = dict.fromkeys(slots, NO_OWNER)
        self._may_claim = may_claim
        self._opened: dict[int, int] = {}  # slot -> epoch in which it was taken over
        self._awaited: dict[int, int] = {}  # slot -> epoch in which we said that we wait
        self._changed = connections.blocking.condition()
        self._looker = Looker(connections, self._source, self._schedule, self._changed)
        self.stale = 0
        """Settlements whose claim was no longer ours."""
        self.lost_replies = 0
        """Claims of which the reply was lost; their messages come back when the lease ends."""

    def set_owned(self, owners: Mapping[int, Owner]) -> None:
        """Claim from exactly these slots from now on, as these owners."""
        with self._changed:
            if owners != self._owners:
                self._schedule.set_slots(owners)
                self._owners = dict(owners)
                self._changed.notify_all()

    def wake_all(self) -> None:
        """Let threads in `wait` look again."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, longest_s: float) -> None:
        """Wait until a slot is due, something changes, or `longest_s` have passed."""
        with self._changed:
            timeout_s = self._due_in_s(longest_s)
            if timeout_s > 0:
                self._changed.wait(timeout_s)

    def wait_s(self, longest_s: float) -> float:
        """Return for how long nothing may be claimed, in seconds."""
        with self._changed:
            return self._due_in_s(longest_s)

    def _due_in_s(self, longest_s: float) -> float:
        return min(longest_s, max(self._schedule.wait_s(monotonic_s(), longest_s), self._throttle.dry_s()))

    def take_hints(self, hints: Hints) -> None:
        """Take what a hint reader has heard; hints for slots of others do no harm."""
        self._looker.missed = self._looker.missed or hints.missed
        if not hints.due:
            return
        with self._changed:
            for slot, due_ms in hints.due:
                self._schedule.hint(slot, due_ms)
            self._changed.notify_all()

    def look(self, *, at_all: bool = False) -> None:
        """Ask Redis when each slot is due: catches lost hints, others' nacks and leases that ran out.

        In a cluster each slot costs a call of its own. There only some are looked at in turn, as long as hints arrive.

        Args:
            at_all: Look at all slots even so.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            ScriptFailedError: A slot is broken; the others were looked at.
        """
        self._throttle.follow()
        self._looker.look(at_all)

    def expect(self, slot: int) -> None:
        """Take a slot for due: something has changed there that no claim has seen yet."""
        with self._changed:
            self._schedule.hint(slot, 0)
            self._changed.notify_all()

    def claim(
        self,
        limit: int,
        holder: Holder,
        settled: Sequence[Delivery] = (),
        held: Sequence[Delivery] | None = None,
        board: Board | None = None,
    ) -> ClaimRound:
        """Claim up to `limit` messages from the slots that are due, in one round trip; settle on the way.

        Args:
            limit: Most messages; 0 settles only. A rate limit of the topic may allow fewer.
            holder: What the deliveries turn to when they are acked or nacked.
            settled: Deliveries with outcomes to carry out first; their slots are claimed from, too.
            held: All deliveries that the holder has, the settled ones too; just these by default.
            board: Asked for more outcomes, once the slots to claim from are known.

        Returns:
            The deliveries, and the settled ones that certainly did not reach Redis.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            CoordinationError: A newer owner has touched a slot.

        An error is only raised where nothing was settled and nothing claimed: else the outcomes and the claims of the
        other slots would be lost with it. It is logged then.
        """
        if not limit or not self._throttle.limited:
            return self._claim(limit, holder, settled, held, board)
        allowed = self._throttle.take(limit) if self.wait_s(1.0) == 0 else 0
        round_ = self._claim(allowed, holder, settled, held, board)
        self._throttle.give_back(allowed - len(round_.deliveries) - round_.doubtful)
        return round_

    def _claim(
        self,
        limit: int,
        holder: Holder,
        settled: Sequence[Delivery],
        held: Sequence[Delivery] | None,
        board: Board | None = None,
    ) -> ClaimRound:
        turn = self._turn(settled, limit)
        if board is not None:
            busy = turn or (limit and self.wait_s(IDLE_S) < IDLE_S)
            settled = [*settled, *board([slot for slot, _ in turn] if busy else None)]
        pending = pack(settled, settled if held is None else held, monotonic_s())
        places = [*turn, *(place for place in pending if place not in turn)]
        if not places:
            return ClaimRound([], [])
        open_ = [place for place in turn if self._is_open(place)]
        share, extra = divmod(limit, len(open_) or 1)
        shares = {place: min(share + (index < extra), MAX_BATCH) for index, place in enumerate(open_)}
        limits = [shares.get(place, 0) for place in places]
        started_s = monotonic_s()
        parts = [
            self._claim_call(place, limit, pending.get(place)) for place, limit in zip(places, limits, strict=True)
        ]
        try:
            replies = self._carry_out(parts, limits, [index >= len(turn) for index in range(len(places))])
        except BaseException:
            _to_be_named(list(settled))  # some may have been carried out
            raise
        round_ = self._take_replies(places, limits, replies, pending, holder, started_s)
        if shares:
            self._width = next_width(self._width, sum(shares.values()), len(round_.deliveries))
        answered = {place for place, reply in zip(places, replies, strict=True) if isinstance(reply, ClaimReply)}
        self._take_over([place for place in turn if place not in shares and place in answered])
        lost = {place: reply for place, reply in zip(places, replies, strict=True) if isinstance(reply, ReplyLostError)}
        for error in {id(reply): reply for reply in lost.values()}.values():  # one for all the slots of a call
            log.warning("%s", error)
        if not lost:
            return round_
        unheard = [delivery for place in lost if place in pending for delivery in pending[place].deliveries]
        if unheard:
            log.warning(
                "topic %s: whether %d outcomes were carried out is not known; the messages of the others come again",
                self.topic.name,
                len(unheard),
            )
        return replace(round_, unheard=unheard, doubtful=sum(shares.get(place, 0) for place in lost))

    def _carry_out(
        self, parts: Sequence[Call[ClaimReply]], limits: Sequence[int], brief: Sequence[bool]
    ) -> Sequence[ClaimReply | RmqError]:
        """Send claims, where one script may touch several slots in few calls; return per claim what came of it."""
        if not self._joins:
            return self._connections.run_many(parts, PATIENCE_S)
        groups = joined(parts, limits)
        many = [calls.claim_many(parts[first:last], brief[first:last]) for first, last in groups]
        replies: list[ClaimReply | RmqError] = []
        for (first, last), reply in zip(groups, self._connections.run_many(many, PATIENCE_S), strict=True):
            if isinstance(reply, ScriptFailedError):
                # refused as a whole, before anything was done: no right to one of the slots, for one
                replies += self._connections.run_many(parts[first:last], PATIENCE_S)
            elif isinstance(reply, RmqError):
                replies += [reply] * (last - first)
            else:
                replies += reply
        return replies

    def _is_open(self, place: Place) -> bool:
        """Return whether this owner may claim there; one that lost a slot and has it back with its epoch may."""
        slot, owner = place
        return owner == NO_OWNER or self._source.awaits_owners or self._opened.get(slot) == owner.epoch

    def _take_over(self, fenced: Sequence[Place]) -> None:
        """Open the slots where nothing is in flight any more.

        The owner before may still be at work: paused, cut off, or slower than a handover waits. Our epoch, which the
        slot has by now, fences what it does to Redis, but not its handler. So we claim only once all that it had in
        flight is settled or its lease has ended: the messages of a slot run one after the other as long as leases hold.
        """
        if not fenced:
            return
        sizes = self._connections.run_many([calls.stats(self.topic, slot) for slot, _ in fenced], PATIENCE_S)
        with self._changed:
            for (slot, owner), size in zip(fenced, sizes, strict=True):
                if isinstance(size, SlotStats) and not size.in_flight:
                    self._opened[slot] = owner.epoch
                    self._schedule.hint(slot, 0)
                    continue
                self._schedule.postpone(slot, monotonic_s(), TROUBLE_PAUSE_S)
                if isinstance(size, SlotStats) and self._awaited.get(slot) != owner.epoch:
                    self._awaited[slot] = owner.epoch
                    log.info(
                        "slot %d of topic %s waits for %d messages of an earlier owner, or for the end of their leases",
                        slot,
                        self.topic.name,
                        size.in_flight,
                    )

    def _turn(self, settled: Iterable[Delivery], limit: int) -> list[Place]:
        """Pick the slots to claim from; no other thread picks them until the claim has answered.

        Those due for longest go first, whatever is to be settled: else a slow handler, which claims one at a time,
        would never leave its slot. Where room is left, the calls that settle claim, too, if the slot is still ours; not
        where they share a call with others, since to settle alone costs a fifth there.
        """
        room = min(self._width, limit)
        if not room:
            return []
        with self._changed:
            turn = [(slot, self._owners[slot]) for slot in self._schedule.due(monotonic_s(), room)]
            if not self._joins:
                pending = dict.fromkeys((delivery.slot, delivery.owner) for delivery in settled)
                ours = [place for place in pending if self._owners.get(place[0]) == place[1] and place not in turn]
                turn += ours[: room - len(turn)]
            if self._may_claim is not None:
                picked, turn = turn, [place for place in turn if self._may_claim(*place)]
                for slot in {slot for slot, _ in picked} - {slot for slot, _ in turn}:
                    self._schedule.postpone(slot, monotonic_s(), TROUBLE_PAUSE_S)  # until we are told whose it is
            slots = [slot for slot, _ in turn]
            for slot in slots:
                self._schedule.note(slot, 0)
            self._schedule.served(slots)
        return turn

    def _claim_call(self, place: Place, limit: int, settlements: Settlements | None) -> Call[ClaimReply]:
        slot, owner = place
        start = self._resume.get(slot, 0) if limit else 0
        if settlements is None:
            return self._source.claim_call(slot, limit, owner=owner, start=start)
        acks, whole = settlements.acks()
        return self._source.claim_call(
            slot, limit, owner=owner, start=start, acks=acks, nacks=settlements.nacks, whole=whole
        )

    def _take_replies(
        self,
        places: Sequence[Place],
        limits: Sequence[int],
        replies: Sequence[ClaimReply | RmqError],
        pending: Mapping[Place, Settlements],
        holder: Holder,
        started_s: float,
    ) -> ClaimRound:
        round_ = ClaimRound([], [])
        trouble: RmqError | None = None
        lease_until_s, now_ms = started_s + self.topic.lease_s, 0
        with self._changed:
            for place, limit, reply in zip(places, limits, replies, strict=True):
                settlements = pending.get(place)
                if isinstance(reply, ClaimReply):
                    now_ms = reply.now_ms
                    if limit and (reply.resume or place[0] in self._resume):  # else nothing was searched
                        self._resume[place[0]] = reply.resume
                    round_.deliveries.extend(self._take_claims(place, reply, settlements, holder, lease_until_s))
                    if reply.unmatched and settlements is not None:
                        round_.unsent.extend(_to_be_named(settlements.of_claims(reply.unmatched)))
                    continue
                self._schedule.postpone(place[0], monotonic_s(), TROUBLE_PAUSE_S)
                if isinstance(reply, ReplyLostError):
                    self.lost_replies += 1
                elif isinstance(reply, CoordinationError) and place[1] != NO_OWNER:
                    self._fenced(reply, settlements)
                else:
                    trouble = reply
                    if settlements is not None:  # refused, or not sent: nothing was carried out
                        round_.unsent.extend(_to_be_named(settlements.deliveries))
            self._after_replies(now_ms, started_s)
        if trouble is None:
            return round_
        if not round_.deliveries and not pending:
            raise trouble
        log.warning("%s", trouble)  # no reason to forget what was claimed, or to send again what was settled
        return round_

    def _after_replies(self, now_ms: int, started_s: float) -> None:
        """Learn Redis' time, if a reply has told it; wake the others if there is something for them."""
        received_s = monotonic_s()
        if now_ms:
            self._schedule.sync_clock(now_ms, received_s, started_s)
        if self._schedule.wait_s(received_s, 1.0) == 0:
            self._changed.notify_all()

    def _take_claims(
        self, place: Place, reply: ClaimReply, settlements: Settlements | None, holder: Holder, lease_until_s: float
    ) -> Sequence[Delivery]:
        slot, owner = place
        if reply.next_due_ms:  # a hint may have come in the meantime, which this reply can't know of
            self._schedule.hint(slot, reply.next_due_ms)
        if reply.stale:
            self._book_stale(reply, settlements)
        return self._source.deliveries(slot, reply, lease_until_s, holder, owner)

    def _fenced(self, error: CoordinationError, settlements: Settlements | None) -> None:
        """A newer owner has touched the slot: nothing that this one does counts; ZooKeeper tells us, too."""
        lost = settlements.deliveries if settlements is not None else []
        self.stale += len(lost)
        for delivery in lost:
            delivery.lost = True
        log.warning("%s (%d outcomes refused)", error, len(lost))

    def _book_stale(self, reply: ClaimReply, settlements: Settlements | None) -> None:
        if settlements is None:
            return
        self.stale += len(reply.stale)
        gone = set(reply.stale)
        for delivery in settlements.deliveries:
            delivery.lost = delivery.lost or delivery.name in gone
        log.warning(
            "topic %s, slot %d: %d outcomes came after their lease had been lost; nothing changed for them",
            self.topic.name,
            settlements.deliveries[0].slot,
            len(gone),
        )


def _to_be_named(deliveries: list[Delivery]) -> list[Delivery]:
    """Redis could not tell these claims from others of the same second, or there is more to delete than they know."""
    for delivery in deliveries:
        delivery.by_name = True
    return deliveries
