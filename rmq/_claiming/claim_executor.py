"""Carries out planned claims: sends outcomes along, and takes what the slots answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from rmq._broker.claims import CLAIM_BYTES, PIGGYBACKED_NACKS
from rmq._claiming.claim_calls import ClaimCalls, LateRound
from rmq._claiming.claim_round import PATIENCE_S, ClaimPlan, ClaimRound, Visit, both
from rmq._claiming.claimer import Claimer
from rmq._claiming.settlements import pack, stale_among
from rmq._model.claim_columns import number_of, spread
from rmq._model.deliveries import RELEASED, Delivery, Holder
from rmq._model.replies import NO_OWNER, ClaimReply, Owner
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._transport.dispatch import AWAITED, Awaited
from rmq.errors import CoordinationError, EnsembleMismatchError, FencedError, ReplyLostError, RmqError

log = reporter("rmq.claimer")

LATE_S = 0.05
"""How often a holder with nothing else to do looks for a reply that a server owes."""


class ClaimExecutor:
    """Carries out a claimer's plans for one holder of deliveries, and keeps what servers owe it. For one thread.

    Args:
        claimer: Plans the claims, and learns from the replies.
        holder: What the deliveries turn to.
        columns: Whether messages of a claim may come as one delivery: see `ClaimColumns`.
    """

    def __init__(self, claimer: Claimer, holder: Holder, *, columns: bool = False) -> None:
        self.columns = columns
        self._claimer = claimer
        self._connections = claimer.connections
        self._source = claimer.source
        self._calls = ClaimCalls(claimer)
        self._throttle = claimer.throttle
        self._topic = claimer.topic
        self._lease_s = claimer.topic.lease_s
        self._holder = holder
        self._late: deque[LateRound] = deque()
        self._kept: ClaimRound | None = None  # what came late, when the claim after it failed
        self._next: Callable[[int, int], object] | None = None
        self._fenced_logged: dict[int, Owner] = {}

    @property
    def has_earlier(self) -> bool:
        """Whether earlier claims may have brought something that the holder has not been given."""
        return bool(self._late) or self._kept is not None

    @property
    def is_ahead(self) -> bool:
        """Whether a claim is on its way that `collect` waits for."""
        return any(late.patience_s for late in self._late)

    def owed(self) -> set[int]:
        """Return the slots of which a server still owes the reply to a claim."""
        if not self._late:
            return set()
        return {visit.slot for late in self._late for visit in late.visits if visit.reply is None}

    def claim(self, limit: int, settled: Sequence[Delivery] = (), held: Sequence[Delivery] | None = None) -> ClaimRound:
        """Plan a claim of up to `limit` messages, and carry it out; 0 settles only. Raises as `carry_out`."""
        return self.carry_out(self._claimer.plan(limit, settled), settled, held)

    def carry_out(
        self,
        plan: ClaimPlan,
        settled: Sequence[Delivery] = (),
        held: Sequence[Delivery] | None = None,
        deadline_s: float | None = None,
    ) -> ClaimRound:
        """Claim as planned, and settle on the way, in one round trip.

        Args:
            plan: What to claim.
            settled: Deliveries with outcomes to carry out.
            held: All deliveries that the holder has, the settled ones too; just these by default.
            deadline_s: How long to repeat what may be repeated; the client's deadline by default.

        Returns:
            The deliveries, and the settled ones that certainly did not reach Redis. In a cluster, what a server owes
            after `PATIENCE_S` comes with a later claim; the settled ones are `under_way` until then.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            CoordinationError: A newer owner has touched a slot.

        An error is only raised where nothing was settled and nothing claimed: else the outcomes and the claims of the
        other slots would be lost with it. It is logged then.
        """
        earlier = self._take_earlier()[0] if self._late or self._kept is not None else None
        round_: ClaimRound | None = None
        try:
            round_ = self._carry_out(plan, settled, held, deadline_s)
            if plan.tokens:
                self._throttle.give_back(plan.tokens - number_of(round_.deliveries) - round_.doubtful)
        except BaseException:
            if round_ is not None:  # the holder sends the outcomes again, and gets the deliveries from the next claim
                _ack_individually(settled)
                round_ = ClaimRound(round_.deliveries, [])
            self._kept = both(earlier, round_)
            raise
        if earlier is None:
            return round_
        earlier.add(round_)
        return earlier

    def begin(
        self, plan: ClaimPlan, settled: Sequence[Delivery] = (), held: Sequence[Delivery] | None = None
    ) -> ClaimRound:
        """Claim as planned, and settle on the way, without waiting: `collect` gives what it brings.

        The settled deliveries are `under_way` until then.

        Args:
            plan: What to claim.
            settled: Deliveries with outcomes to carry out.
            held: All deliveries that the holder has, the settled ones too; just these by default.

        Returns:
            No deliveries; the settled ones that were not sent, and wait for a later call.
        """
        sent_s = monotonic_s()
        visits, unsent = self._visits(plan, settled, held, sent_s)
        if not visits:
            self._throttle.give_back(plan.tokens)
            return ClaimRound([], unsent)
        try:
            late = self._calls.post(visits, sent_s, CLAIM_BYTES // 2)
        except BaseException:
            _ack_individually(settled)  # some may have been sent
            raise
        late.patience_s = PATIENCE_S
        doubtful = self._leave(late)
        if plan.tokens:
            self._throttle.give_back(plan.tokens - doubtful)
        return ClaimRound([], unsent, doubtful=doubtful)

    def collect(self, begin_next: Callable[[int, int], object] | None = None) -> ClaimRound:
        """Wait for the claims that `begin` has sent, and return what they and earlier ones bring.

        In a cluster, what a server owes after `PATIENCE_S` comes with a later claim.

        Args:
            begin_next: Called with how many messages have come, and how many slots answered; may `begin` a claim.

        Raises:
            RedisUnavailableError: Nothing was carried out, since a server did not answer until the deadline.
        """
        self._next = begin_next
        try:
            found, trouble = self._take_earlier()
        finally:
            self._next = None
        found = found or ClaimRound([], [])
        if trouble is not None and not (found.deliveries or found.arrived):
            raise trouble
        return found

    def _carry_out(
        self,
        plan: ClaimPlan,
        settled: Sequence[Delivery],
        held: Sequence[Delivery] | None,
        deadline_s: float | None,
    ) -> ClaimRound:
        sent_s = monotonic_s()
        visits, unsent = self._visits(plan, settled, held, sent_s)
        if not visits:
            return ClaimRound([], unsent)
        try:
            round_, trouble = self._send(visits, sent_s, deadline_s)
        except BaseException:
            _ack_individually(settled)  # some may have been carried out
            raise
        if trouble is not None:
            if not round_.deliveries and not any(visit.settlements for visit in visits):
                raise trouble
            # no reason to forget what was claimed, or to send again what was settled
            self._claimer.troubles.warning(log, type(trouble), "%s", trouble)
        round_.unsent += unsent
        self._take_over(visits)
        return round_

    def _take_over(self, visits: Iterable[Visit]) -> None:
        """Look whether slots may be claimed from by now that came from an earlier owner."""
        closed = [each for each in visits if each.picked and not each.limit and isinstance(each.reply, ClaimReply)]
        if closed:
            self._claimer.take_over(closed)

    def _early(self, visits: Sequence[Visit], held: Sequence[Delivery], staying: Sequence[Delivery]) -> list[int]:
        """Return the slots from which a claim would bring what comes behind a message that the holder still has.

        That message was not begun, and goes back with a later call: else it would be handled after the others. Or it
        comes with a reply that a server still owes.

        Args:
            visits: What is planned in the names of owners.
            held: All deliveries that the holder has.
            staying: Those of them whose outcome goes with a later call, besides those that are `under_way`.
        """

        @cache
        def returning() -> set[int]:
            later = set(map(id, staying))
            released = (each for each in held if each.outcome is RELEASED and (each.under_way or id(each) in later))
            return {each.slot for each in released} | self.owed()

        may_claim = self._source.may_claim
        return [
            visit.slot for visit in visits if not may_claim(visit.slot, visit.owner, None, lambda s: s in returning())
        ]

    def _visits(
        self, plan: ClaimPlan, settled: Sequence[Delivery], held: Sequence[Delivery] | None, sent_s: float
    ) -> tuple[list[Visit], list[Delivery]]:
        """Return a plan's visits with the outcomes that go along, further ones that only settle, and what waits."""
        waiting: list[Delivery] = []
        if self._connections.unresponsive_nodes:  # outcomes for servers that do not answer are sent once they do
            silent = {slot for slot in {delivery.slot for delivery in settled} if self._claimer.is_silent(slot)}
            waiting = [delivery for delivery in settled if delivery.slot in silent]
            settled = [delivery for delivery in settled if delivery.slot not in silent]
        held = settled if held is None else held
        packed, later = pack(settled, held, sent_s, PIGGYBACKED_NACKS)
        planned = plan.visits
        owned = [visit for visit in planned if visit.owner != NO_OWNER]
        if owned and (early := self._early(owned, held, [*waiting, *later])):
            self._claimer.put_off(early)
            planned = [visit for visit in planned if visit.slot not in early]
        for visit in planned:
            visit.settlements = packed.pop((visit.slot, visit.owner), None)
        settled_only = [Visit(slot, owner, picked=False, settlements=each) for (slot, owner), each in packed.items()]
        return [*planned, *settled_only], waiting + later

    def _send(
        self, visits: Sequence[Visit], sent_s: float, deadline_s: float | None
    ) -> tuple[ClaimRound, RmqError | None]:
        """Send one round; return what it brings, and an error.

        In a cluster the replies that a server owes are left for a later round.
        """
        replies, late = self._calls.send(visits, sent_s, deadline_s)
        found, trouble = self._take(visits, replies, sent_s)
        if late is not None:
            found.doubtful += self._leave(late)
        return found, trouble

    def _take(
        self, visits: Sequence[Visit], replies: Sequence[ClaimReply[Any] | RmqError | Awaited], sent_s: float
    ) -> tuple[ClaimRound, RmqError | None]:
        """Take the replies that have come; return what they bring, and an error."""
        answered: list[Visit] = []
        for visit, reply in zip(visits, replies, strict=True):
            if visit.reply is None and not isinstance(reply, Awaited):
                visit.reply = reply
                answered.append(visit)
        self._claimer.learn(answered, sent_s, len([visit for visit in visits if visit.limit]))
        if self._next is not None and answered:
            self._begin_next(answered)
        round_, lease_until_s = ClaimRound([], []), sent_s + self._lease_s
        made_of = self._source.columns if self.columns else self._source.deliveries
        failed: list[Visit] = []
        for visit in answered:
            reply, slot = visit.reply, visit.slot
            if not isinstance(reply, ClaimReply):
                failed.append(visit)
                continue
            self._claimer.foreign.pop(slot, None)
            if reply.stale:
                self._take_stale(visit, reply.stale, round_)
            if visit.settlements is not None:
                if reply.unmatched:
                    round_.unsent.extend(_ack_individually(visit.settlements.of_claims(reply.unmatched)))
                if reply.nacked is not None:  # the others would have taken the call too long
                    round_.unsent.extend(visit.settlements.nacked[reply.nacked :])
            owner = visit.owner.moved(reply.token_base)
            round_.deliveries += made_of(slot, reply, lease_until_s, self._holder, owner)
        return round_, self._take_failed(failed, round_) if failed else None

    def _begin_next(self, visits: Iterable[Visit]) -> None:
        """Let the next claim begin. Where that fails, what these visits have brought must not get lost over it."""
        begin_next, self._next = self._next, None
        if begin_next is None or self._claimer.regained or self._throttle.limited:
            return  # it has to be known what is held of slots that came back; and tokens may take a while
        try:
            come = [len(visit.reply.messages) for visit in visits if isinstance(visit.reply, ClaimReply)]
            begin_next(sum(come), len(come))
        except Exception as error:
            log.warning("topic %s: the next claim did not begin: %s", self._topic.name, error)

    def _take_failed(self, visits: Iterable[Visit], round_: ClaimRound) -> RmqError | None:
        """Note what became of visits that failed; return an error after which nothing was carried out."""
        trouble: RmqError | None = None
        lost: dict[int, ReplyLostError] = {}
        for visit in visits:
            reply = visit.reply
            if isinstance(reply, ReplyLostError):
                lost[id(reply)] = reply  # one for all the slots of a call
                round_.doubtful += visit.limit
                round_.unconfirmed.extend(visit.settled)
            elif isinstance(reply, CoordinationError) and visit.owner != NO_OWNER:
                self._take_fenced(visit, reply, round_)
            elif isinstance(reply, RmqError):
                trouble = reply
                round_.unsent.extend(_ack_individually(visit.settled))  # refused, or not sent
        for error in lost.values():
            log.warning("%s", error)
        if round_.unconfirmed:
            log.warning(
                "topic %s: %d outcomes may not have been carried out; their messages are then delivered again",
                self._topic.name,
                len(round_.unconfirmed),
            )
        return trouble

    def _take_fenced(self, visit: Visit, error: CoordinationError, round_: ClaimRound) -> None:
        """A newer owner has touched the slot: nothing that this one does counts. ZooKeeper reports it, too."""
        slot, owner, settled = visit.slot, visit.owner, visit.settled
        note_lost(settled, round_)
        logged = self._fenced_logged.get(slot) == owner and not settled
        self._fenced_logged[slot] = owner
        if not logged:  # in every round else: a slot stays fenced until ZooKeeper gives it away
            log.warning("%s (%d outcomes refused)", error, len(settled))
        if isinstance(error, EnsembleMismatchError):
            self._claimer.foreign[slot] = str(error)
        if isinstance(error, FencedError) and self._claimer.on_fenced is not None:
            self._claimer.on_fenced(error.epoch, owner.ensemble)

    def _take_stale(self, visit: Visit, stale: Sequence[bytes], round_: ClaimRound) -> None:
        note_lost(stale_among(visit.settled, stale), round_)
        log.warning(
            "topic %s, slot %d: %d outcomes came after their lease had been lost; nothing changed for them",
            self._topic.name,
            visit.slot,
            len(stale),
        )

    def _leave(self, late: LateRound) -> int:
        """Leave the replies that are owed for a later round; what goes along with them is under way until then.

        Returns:
            How many messages they may bring.
        """
        owed = [visit for visit in late.visits if visit.reply is None]
        for visit in owed:
            for delivery in visit.settled:
                delivery.under_way = True
        if owed:
            self._late.append(late)
        return sum(visit.limit for visit in owed)

    def _take_earlier(self) -> tuple[ClaimRound | None, RmqError | None]:
        """Take what has come of earlier rounds whose replies were owed, and an error; the rest stays for later."""
        found, self._kept = self._kept, None
        trouble: RmqError | None = None
        try:
            for _ in range(len(self._late)):
                late = self._late.popleft()
                round_, unused, failed = self._take_late(late)
                found, trouble = both(found, round_), failed or trouble
                self._leave(late)
                self._throttle.give_back(unused)
        except BaseException:
            self._kept = found
            raise
        return found, trouble

    def _take_late(self, late: LateRound) -> tuple[ClaimRound, int, RmqError | None]:
        """Take what has come of a round; return that, the tokens of a rate limit that it left unused, and an error."""
        patience_s, late.patience_s = late.patience_s, 0.0
        try:
            replies = self._calls.replies(late, patience_s)
        except BaseException:  # nobody asks again: what is not known to be settled is settled once more
            for delivery in _ack_individually([each for visit in late.visits for each in visit.settled]):
                delivery.under_way = False
            raise
        come = [
            visit
            for visit, reply in zip(late.visits, replies, strict=True)
            if visit.reply is None and reply is not AWAITED
        ]
        arrived = [delivery for visit in come for delivery in visit.settled]
        try:
            round_, trouble = self._take(late.visits, replies, late.sent_s)
        finally:  # not before: the next claim, which begins in between, would settle them once more
            for delivery in arrived:
                delivery.under_way = False
        if trouble is not None:
            self._claimer.troubles.warning(log, type(trouble), "%s", trouble)
        self._take_over(come)
        round_.arrived.extend(arrived)
        round_.doubtful = 0  # their tokens were counted when they were owed
        limit = sum(visit.limit for visit in come if not isinstance(visit.reply, ReplyLostError))
        return round_, limit - number_of(round_.deliveries), trouble


def note_lost(deliveries: Iterable[Delivery], round_: ClaimRound) -> None:
    """Note lost leases; those go into `lost` that were not known to be lost."""
    for delivery in spread(deliveries):
        if not delivery.lost:
            delivery.lost = True
            round_.lost.append(delivery)


def _ack_individually(deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
    """Note that these cannot be acked as whole claims: some are gone, or bodies and failures have to go with them."""
    for delivery in deliveries:
        delivery.ack_individually = True
    return deliveries
