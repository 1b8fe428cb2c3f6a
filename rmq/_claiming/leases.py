"""Renews the leases of running handlers, and reports leases that were lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from itertools import chain, groupby
from math import inf
from operator import itemgetter
from typing import NamedTuple

from rmq._broker.broker import Broker
from rmq._broker.claims import RENEWAL_PATIENCE_S, Ack
from rmq._io.backend import THREADS, Background, Runtime
from rmq._io.reports import passes_over, reporter, traced
from rmq._model.claims import Selection
from rmq._model.deliveries import Claim, Delivery
from rmq._model.handlers import refuse_unfinished
from rmq._model.replies import ExtendReply, Owner
from rmq._model.times import monotonic_s
from rmq._transport.call_queue import CallQueue
from rmq._transport.connections import Connections
from rmq.errors import CoordinationError, RmqError

log = reporter("rmq.leases")

OUTLASTING_S = 0.2
"""How often a stopped keeper looks whether the handler has ended that has stopped its client, in seconds."""


class InFlight:
    """The claims of one listener thread that have rows whose outcome has not reached Redis.

    The thread holds `lock` during claims and settlements. The keeper never takes it: a server may delay a claim.
    Instead `marks` guards which of them sends a claim's score: whoever finds a claim that is not `busy` marks it, and
    the other one leaves it alone until the reply is known. So neither sends a score that the other replaces. `marks` is
    never held during a wait.

    Acks of whole claims may wait for the next claim from their slot, which carries them at little cost. Until then
    these claims are in `deferred`, by slot, and not in `claims`.

    Args:
        lease_s: The lease of the topic, in seconds.
        runtime: The runtime: threads, or an event loop.
    """

    def __init__(self, lease_s: float, runtime: Runtime = THREADS) -> None:
        self._lease_s = lease_s
        self.lock = runtime.lock()
        self.marks = runtime.lock()
        self.claims: list[Claim] = []
        self.deferred: dict[int, list[Claim]] = {}

    def all(self) -> list[Claim]:
        """Return all claims. Other threads call it without the lock, so the result may be outdated at once."""
        return [*self.claims, *chain.from_iterable(list(self.deferred.values()))]

    def settled(self) -> list[Selection]:
        """Return the rows with an outcome to send, of claims that are not busy."""
        return [Selection(claim, rows) for claim in self.claims if not claim.busy and (rows := claim.settled_rows())]

    def begin_settling(self) -> list[Selection]:
        """Mark the claims of `settled` rows as busy, and return these rows."""
        with self.marks:
            settled = self.settled()
            for claim, _ in settled:
                claim.busy = True
        return settled

    def begin_renewing(self, before_s: float) -> list[Selection]:
        """Return the rows to renew of claims whose lease ends before `before_s`, and mark the claims as busy."""
        due: list[Selection] = []
        with self.marks:
            for claim in self.all():
                if claim.lease_until_s < before_s and not claim.busy and (rows := claim.live_rows()):
                    claim.busy = True
                    due.append(Selection(claim, rows))
        return due

    def defer_acks(self, since_s: float) -> None:
        """Defer the acks of whole claims that were claimed after `since_s`, on the clock of `monotonic_s`."""
        stay: list[Claim] = []
        until_s = since_s + self._lease_s
        for claim in self.claims:
            if claim.named or claim.busy or claim.lease_until_s <= until_s or not claim.is_acked:
                stay.append(claim)
            else:
                self.deferred.setdefault(claim.slot, []).append(claim)
        self.claims = stay

    def deferred_since_s(self) -> float:
        """Return the start of the first deferred ack's lease, on the clock of `monotonic_s`; infinity without one."""
        first = next(iter(self.deferred.values()), None)
        return inf if first is None else first[0].lease_until_s - self._lease_s

    def take_deferred(self, slots: Iterable[int] | None = None, before_s: float = 0.0, most: int | None = None) -> None:
        """Move deferred acks to `claims`.

        Args:
            slots: Take the acks of these slots; by default of all.
            before_s: Also take those of messages claimed before this time of `monotonic_s`, the oldest first.
            most: Take these old ones from at most this number of slots; by default from all.
        """
        chosen = list(self.deferred) if slots is None else [slot for slot in slots if slot in self.deferred]
        taken = [claim for slot in chosen for claim in self.deferred.pop(slot)]
        left = len(self.deferred) if most is None else most
        while self.deferred and left > 0:
            slot, claims = next(iter(self.deferred.items()))  # the first one has waited longest
            if claims[0].lease_until_s > before_s + self._lease_s:
                break
            taken += self.deferred.pop(slot)
            left -= 1
        self.claims += taken

    def drop_ended(self) -> None:
        """Remove the claims of which nothing is held any more."""
        self.claims = [claim for claim in self.claims if not claim.is_over]


class LeaseHolder(NamedTuple):
    """A listener whose leases are renewed.

    Attributes:
        broker: The broker of the topic's slots.
        held: The claims, one object per listener thread.
        on_lost: Called once with each delivery whose lease was lost. It must not block; see `LeaseLostNotifier`.
        in_use: Returns whether a thread of the listener still runs.
    """

    broker: Broker
    held: Sequence[InFlight]
    on_lost: Callable[[Delivery], None]
    in_use: Callable[[], bool]

    @property
    def lease_s(self) -> float:
        """The lease of the topic, in seconds."""
        return self.broker.topic.lease_s


class _Renewal(NamedTuple):
    """Leases of one slot that are being renewed, and when the call was made, on the clock of `monotonic_s`."""

    holder: LeaseHolder
    selections: Sequence[Selection]
    started_s: float

    def unmark(self) -> None:
        """Clear `busy`, so that the threads may settle the claims again."""
        for claim, _ in self.selections:
            claim.busy = False


class LeaseKeeper(Background):
    """Renews leases of all listeners of a client once a third of a lease has passed: all that are due in one round.

    A server that does not answer does not delay the others: its replies are processed in later rounds.

    Args:
        connections: The connections to the servers of the topics.
        holders: The listeners, at least one.
    """

    def __init__(self, connections: Connections, holders: Sequence[LeaseHolder]) -> None:
        super().__init__(connections.runtime, "rmq-leases")
        self._calls = CallQueue[_Renewal](connections, _Renewal.unmark)
        self._runtime = connections.runtime
        self._holders = holders
        self._shortest_s = min(holder.lease_s for holder in holders)
        self._failed: dict[tuple[str, int], RmqError] = {}

    def run(self) -> None:
        """Renew leases until `stop`."""
        while self._wait():
            try:
                self.renew()
            except Exception:  # whatever it is, the next round comes
                log.exception("renewing leases failed; trying again")

    def stop(self, outlasting: Sequence[LeaseHolder] = ()) -> None:
        """Stop renewing leases, but for the given listeners only once their threads have ended. Does not wait."""
        self._holders = outlasting
        self._stopping.set()

    def _wait(self) -> bool:
        """Wait for the next round; return False after `stop`."""
        pause_s = self._pause_s()
        if not self._stopping.wait(pause_s):
            return True
        self._holders = [holder for holder in self._holders if holder.in_use()]
        if self._holders:
            self._runtime.sleep(min(pause_s, OUTLASTING_S))
        return bool(self._holders)

    def renew(self) -> None:
        """Renew the leases that are due, and process late replies of earlier rounds."""
        before, self._failed = self._failed, {}
        self._take(0.0)
        self._begin()
        self._take(RENEWAL_PATIENCE_S)
        new = sorted(self._failed.keys() - before.keys())
        for topic, group in groupby(new, key=itemgetter(0)):
            places = list(group)
            slots = ", ".join(str(slot) for _, slot in places)
            log.warning("renewing leases in slots %s of topic %s failed: %s", slots, topic, self._failed[places[0]])

    def _pause_s(self) -> float:
        """Return the pause in seconds; shorter after a failure, as the server may answer before leases expire."""
        troubled = self._failed or self._calls.owed()
        return min(self._shortest_s / 30, 1.0) if troubled else min(self._shortest_s / 6, 5.0)

    def _begin(self) -> None:
        """Send the renewals of the leases that are due."""
        for holder in self._holders:
            started_s = monotonic_s()
            due = [part for held in holder.held for part in held.begin_renewing(started_s + holder.lease_s * 2 / 3)]
            for group in renewal_groups(due, holder.broker.most_renewals):
                call = holder.broker.extend_call(group[0].claim.slot, tokens_of(group), group[0].claim.owner)
                self._calls.submit(call, _Renewal(holder, group, started_s))
        self._calls.flush(self._shortest_s / 6)

    def _take(self, patience_s: float) -> None:
        """Process the replies that have arrived; the others are processed in later rounds."""
        completed = self._calls.completions(patience_s)
        now_s = monotonic_s()
        for renewal, reply in completed:
            lost = take_renewal(renewal.selections, reply, renewal.started_s)
            renewal.unmark()
            if isinstance(reply, RmqError):
                self._failed[renewal.holder.broker.topic.name, renewal.selections[0].claim.slot] = reply
                fenced = isinstance(reply, CoordinationError)
                lost += [part for part in renewal.selections if fenced or part.claim.lease_until_s < now_s]
            _report_lost(renewal.holder, lost)
        for renewal in self._calls.owed():
            late = [part for part in renewal.selections if part.claim.lease_until_s < now_s]
            _report_lost(renewal.holder, late)


def _report_lost(holder: LeaseHolder, lost: Iterable[Selection]) -> None:
    for claim, rows in lost:
        for delivery in claim.deliveries(claim.lose(rows)):
            log.warning("the lease on %r was lost; another consumer may have the message", delivery)
            holder.on_lost(delivery)


def renewal_groups(selections: Iterable[Selection], most: int) -> list[list[Selection]]:
    """Divide rows into groups of one call each: of one slot and owner, with up to `most` rows."""
    groups: list[list[Selection]] = []
    open_groups: dict[tuple[int, Owner], tuple[list[Selection], int]] = {}
    for claim, all_rows in selections:
        for first in range(0, len(all_rows), most):
            rows, place = all_rows[first : first + most], (claim.slot, claim.owner)
            group, number = open_groups.get(place, (list[Selection](), most))
            if number + len(rows) > most:
                group, number = list[Selection](), 0
                groups.append(group)
            group.append(Selection(claim, rows))
            open_groups[place] = group, number + len(rows)
    return groups


def tokens_of(selections: Iterable[Selection]) -> list[Ack]:
    """Return the names and claim scores of rows."""
    return [token for claim, rows in selections for token in claim.tokens(rows)]


def take_renewal(selections: Sequence[Selection], reply: ExtendReply | RmqError, started_s: float) -> list[Selection]:
    """Record the new claim scores of renewed rows; return the rows whose lease had been lost before."""
    lost: list[Selection] = []
    first, alone = 0, len(selections) == 1
    for claim, rows in selections:
        if isinstance(reply, ExtendReply):
            scores = reply.claim_scores[first : first + len(rows)]
            if gone := claim.renewed(rows, scores, started_s + claim.topic.lease_s, alone=alone):
                lost.append(Selection(claim, gone))
        else:
            claim.named = True  # renewed or not: its score may no longer be the one we know
        first += len(rows)
    return lost


class LeaseLostNotifier:
    """Calls `on_lost` of all listeners in a job of its own, so that a slow call does not delay renewals.

    The job runs while there are calls to make, one after the other.

    Args:
        runtime: The runtime: threads, or an event loop.
    """

    def __init__(self, runtime: Runtime = THREADS) -> None:
        self._runtime = runtime
        self._waiting: deque[tuple[Callable[[Delivery], object], Delivery]] = deque()
        self._changing = runtime.lock()
        self._runs = False

    def notify(self, on_lost: Callable[[Delivery], object], delivery: Delivery) -> None:
        """Queue a call of `on_lost` with a delivery whose lease was lost; does not wait."""
        self._waiting.append((on_lost, delivery))
        with self._changing:
            starts, self._runs = not self._runs, True
        if starts:
            try:
                self._runtime.job(self._run, "rmq-lost").start()
            except RuntimeError as error:  # no thread can be started; the next loss tries again
                self._runs = False
                log.warning("on_lost of a listener on topic %s could not be called yet: %s", delivery.topic.name, error)

    def _run(self) -> None:
        while True:
            with self._changing:
                if not self._waiting:
                    self._runs = False
                    return
                on_lost, delivery = self._waiting.popleft()
            try:
                refuse_unfinished(copy_context().run(on_lost, delivery))
            except BaseException as error:  # else the other deliveries would get no call
                if not passes_over(error):
                    self._runs = False
                    raise
                name = delivery.topic.name
                log.error("on_lost of a listener on topic %s raised an error", name, exc_info=traced(error))
