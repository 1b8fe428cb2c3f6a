"""Renews the leases of running handlers, and reports leases that were lost."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from itertools import chain
from math import inf
from typing import NamedTuple

from rmq._broker.broker import Broker
from rmq._broker.claims import RENEWAL_PATIENCE_S, RENEWALS
from rmq._claiming.chunks import chunks
from rmq._io.backend import THREADS, Background, Runtime
from rmq._io.reports import passes_over, reporter, traced
from rmq._model.deliveries import ACKED, Delivery
from rmq._model.delivery_columns import ClaimColumns, spread_some
from rmq._model.handlers import refuse_unfinished
from rmq._model.replies import ExtendReply, Owner
from rmq._model.times import monotonic_s
from rmq._transport.call_queue import CallQueue
from rmq._transport.connections import Connections
from rmq.errors import CoordinationError, RmqError

log = reporter("rmq.leases")


class InFlight:
    """The deliveries of one listener thread that are claimed and whose outcome has not reached Redis.

    The thread holds `lock` during claims and settlements. The keeper never takes it: a server may delay a claim.
    Instead `marks` guards which of them sends a delivery's claim score: the thread for deliveries in `settling`, the
    keeper for those marked `under_way`. So neither sends a score that the other replaces. `marks` is never held
    during a wait.

    Acks may wait for the next claim from their slot, which carries them at little cost. Until then they are in
    `deferred`, by slot, and not in `deliveries`.

    Args:
        lease_s: The lease of the topic, in seconds.
        runtime: The runtime: threads, or an event loop.
        columns: Whether some of the deliveries may be `ClaimColumns`.
    """

    def __init__(self, lease_s: float, runtime: Runtime = THREADS, *, columns: bool = False) -> None:
        self._columns = columns
        self._lease_s = lease_s
        self.lock = runtime.lock()
        self.marks = runtime.lock()
        self.settling: Sequence[Delivery] = ()
        self.deliveries: list[Delivery] = []
        self.deferred: dict[int, list[Delivery]] = {}

    def all(self) -> list[Delivery]:
        """Return all deliveries. Other threads call it without the lock, so the result may be outdated at once."""
        return [*self.deliveries, *chain.from_iterable(list(self.deferred.values()))]

    def settled(self) -> list[Delivery]:
        """Return the deliveries with an outcome to send whose claim score is not being renewed."""
        if self._columns:
            self.deliveries = list(spread_some(self.deliveries, monotonic_s()))
        return [each for each in self.deliveries if each.outcome is not None and not each.under_way]

    def to_renew(self, before_s: float) -> list[Delivery]:
        """Mark and return the deliveries whose lease ends before `before_s` and whose claim score is not in use."""
        with self.marks:
            settling = set(map(id, self.settling))
            due = [
                each
                for each in (self._renewable(before_s, settling) if self._columns else self.all())
                if each.lease_until_s < before_s and not (each.lost or each.under_way or id(each) in settling)
            ]
            for each in due:
                each.under_way = True
        return due

    def _renewable(self, before_s: float, settling: set[int]) -> list[Delivery]:
        """Return all deliveries; split columns whose lease ends before `before_s` into rows with own leases."""
        found: list[Delivery] = []
        for each in self.all():
            if not isinstance(each, ClaimColumns):
                found.append(each)
            elif not each.under_way and id(each) not in settling and (each.is_spread or each.lease_until_s < before_s):
                found += each.each()
        return found

    def defer_acks(self, since_s: float) -> None:
        """Defer the acks of messages claimed after `since_s`, on the clock of `monotonic_s`."""
        stay: list[Delivery] = []
        slot, deferred, until_s = -1, stay, since_s + self._lease_s
        for delivery in self.deliveries:
            bound = delivery.ack_individually or delivery.under_way
            if delivery.outcome is ACKED and delivery.lease_until_s > until_s and not bound:
                if delivery.slot != slot:  # those of a claim stand side by side
                    slot, deferred = delivery.slot, self.deferred.setdefault(delivery.slot, [])
                deferred.append(delivery)
            else:
                stay.append(delivery)
        self.deliveries = stay

    def deferred_since_s(self) -> float:
        """Return the start of the first deferred ack's lease, on the clock of `monotonic_s`; infinity without one."""
        first = next(iter(self.deferred.values()), None)
        return inf if first is None else first[0].lease_until_s - self._lease_s

    def take_deferred(
        self, slots: Iterable[int] | None = None, before_s: float = 0.0, most: int | None = None
    ) -> list[Delivery]:
        """Move deferred acks to `deliveries`; return them.

        Args:
            slots: Take the acks of these slots; by default of all.
            before_s: Also take those of messages claimed before this time of `monotonic_s`, the oldest first.
            most: Take these old ones from at most this number of slots; by default from all.
        """
        chosen = list(self.deferred) if slots is None else [slot for slot in slots if slot in self.deferred]
        taken = [delivery for slot in chosen for delivery in self.deferred.pop(slot)]
        left = len(self.deferred) if most is None else most
        while self.deferred and left > 0:
            slot, batch = next(iter(self.deferred.items()))  # the first one has waited longest
            if batch[0].lease_until_s > before_s + self._lease_s:
                break
            taken += self.deferred.pop(slot)
            left -= 1
        self.deliveries += taken
        return taken


class _Renewal(NamedTuple):
    """Leases of one slot that are being renewed, and when the call was made, on the clock of `monotonic_s`."""

    deliveries: Sequence[Delivery]
    started_s: float

    def unmark(self) -> None:
        """Clear `under_way`, so that the threads may settle the deliveries again."""
        for delivery in self.deliveries:
            delivery.under_way = False


class LeaseKeeper(Background):
    """Renews leases once a third of the lease has passed: all leases that are due in one round.

    A server that does not answer does not delay the others: its replies are processed in later rounds.

    Args:
        connections: The connections to the topic's servers.
        broker: The broker of the topic's slots.
        held: The deliveries, one object per listener thread.
        on_lost: Called once with each delivery whose lease was lost. It must not block; see `LeaseLostNotifier`.
    """

    def __init__(
        self,
        connections: Connections,
        broker: Broker,
        held: Sequence[InFlight],
        on_lost: Callable[[Delivery], None],
    ) -> None:
        super().__init__(connections.runtime, f"rmq-leases-{broker.topic.name}")
        self._calls = CallQueue[_Renewal](connections, _Renewal.unmark)
        self._broker = broker
        self._held = held
        self._on_lost = on_lost
        self._stop_requested = connections.runtime.event()
        self._lease_s = broker.topic.lease_s
        self._failed: dict[int, RmqError] = {}

    def run(self) -> None:
        """Renew leases until `stop`."""
        while not self._stop_requested.wait(self._pause_s()):
            try:
                self.renew()
            except Exception:  # whatever it is, the next round comes
                log.exception("leases of topic %s were not renewed", self._broker.topic.name)

    def stop(self) -> None:
        """End the thread; leases are no longer renewed."""
        self._stop_requested.set()

    def renew(self) -> None:
        """Renew the leases that are due, and process late replies of earlier rounds."""
        before, self._failed = self._failed, {}
        self._take(0.0)
        self._begin()
        self._take(RENEWAL_PATIENCE_S)
        if new := self._failed.keys() - before.keys():
            slots, error = ", ".join(map(str, sorted(new))), self._failed[min(new)]
            log.warning("leases in slots %s of topic %s were not renewed: %s", slots, self._broker.topic.name, error)

    def _pause_s(self) -> float:
        """Return the pause in seconds; shorter after a failure, as the server may answer before leases expire."""
        troubled = self._failed or self._calls.owed()
        return min(self._lease_s / 30, 1.0) if troubled else min(self._lease_s / 6, 5.0)

    def _begin(self) -> None:
        """Send the renewals of the leases that are due."""
        started_s = monotonic_s()
        due: dict[tuple[int, Owner], list[Delivery]] = defaultdict(list)
        for held in self._held:
            for delivery in held.to_renew(started_s + self._lease_s * 2 / 3):
                due[delivery.slot, delivery.owner].append(delivery)
        for (slot, owner), deliveries in due.items():
            for batch in chunks(deliveries, RENEWALS):
                leases = [(delivery.name, delivery.claim_score) for delivery in batch]
                self._calls.submit(self._broker.extend_call(slot, leases, owner), _Renewal(batch, started_s))
        self._calls.flush(self._lease_s / 6)

    def _take(self, patience_s: float) -> None:
        """Process the replies that have arrived; the others are processed in later rounds."""
        completed = self._calls.completions(patience_s)
        now_s = monotonic_s()
        lost: list[Delivery] = []
        for renewal, reply in completed:
            lost += take_renewal(renewal.deliveries, reply, renewal.started_s)
            renewal.unmark()
            if isinstance(reply, RmqError):
                self._failed[renewal.deliveries[0].slot] = reply
                fenced = isinstance(reply, CoordinationError)
                lost += [each for each in renewal.deliveries if fenced or each.lease_until_s < now_s]
        for renewal in self._calls.owed():
            lost += [delivery for delivery in renewal.deliveries if delivery.lease_until_s < now_s]
        for delivery in lost:
            if not delivery.lost:
                delivery.lost = True
                log.warning("the lease on %r was lost; another consumer may have it", delivery)
                self._on_lost(delivery)


def take_renewal(deliveries: Sequence[Delivery], reply: ExtendReply | RmqError, started_s: float) -> list[Delivery]:
    """Record the new claim scores of renewed deliveries; return those whose lease had been lost before."""
    if not isinstance(reply, ExtendReply):
        for delivery in deliveries:
            delivery.ack_individually = True  # renewed or not: its score may no longer be the one we know
        return []
    for delivery, claim_score in zip(deliveries, reply.claim_scores, strict=True):
        if claim_score is not None and delivery.claim_score:  # none: it was taken away meanwhile
            delivery.claim_score = claim_score
            delivery.lease_until_s = started_s + delivery.topic.lease_s
    return [each for each, score in zip(deliveries, reply.claim_scores, strict=True) if score is None]


class LeaseLostNotifier(Background):
    """Calls `on_lost` in a thread of its own, so that a slow call does not delay renewals.

    Args:
        topic: Name of the topic.
        on_lost: Called with each delivery whose lease was lost, one after the other.
        runtime: The runtime: threads, or an event loop.
    """

    def __init__(self, topic: str, on_lost: Callable[[Delivery], object], runtime: Runtime = THREADS) -> None:
        super().__init__(runtime, f"rmq-lost-{topic}")
        self._topic = topic
        self._call = on_lost
        self._waiting: deque[Delivery] = deque()
        self._notified = runtime.event()
        self._stop_requested = False

    def notify(self, delivery: Delivery) -> None:
        """Queue a call of `on_lost` with a delivery; does not wait."""
        self._waiting.append(delivery)
        self._notified.set()

    def stop(self) -> None:
        """Stop once the queued calls are done."""
        self._stop_requested = True
        self._notified.set()

    def run(self) -> None:
        """Call `on_lost` until `stop`."""
        while True:
            self._notified.wait()
            self._notified.clear()
            while self._waiting:
                try:
                    refuse_unfinished(copy_context().run(self._call, self._waiting.popleft()))
                except BaseException as error:  # else the other deliveries would get no call
                    if not passes_over(error):
                        raise
                    log.error("on_lost of a listener on topic %s raised an error", self._topic, exc_info=traced(error))
            if self._stop_requested:
                return
