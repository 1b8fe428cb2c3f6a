"""Keeps the leases of running handlers alive, and tells a handler when its lease is lost."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Protocol

from rmq.blocking import THREADS, Background, Blocking
from rmq.calls import MAX_BATCH, Renewal
from rmq.clock import monotonic_s
from rmq.delivery import ACKED, Delivery
from rmq.errors import CoordinationError, RmqError
from rmq.ownership import Owner
from rmq.results import ExtendReply
from rmq.topics import Topic

log = logging.getLogger("rmq.leases")


class Held:
    """The deliveries that one worker thread holds: claimed, and their outcome not yet in Redis.

    `lock` is held while their claim scores are on the way to Redis, by the worker to settle and by the keeper to
    extend: so that neither sends a token that the other is just replacing.

    Those that are acked may wait for a ride, by slot: to settle a slot together with its next claim costs little more
    than the claim. They are not among `deliveries` then.
    """

    def __init__(self, blocking: Blocking = THREADS) -> None:
        self.lock = blocking.lock()
        self.deliveries: list[Delivery] = []
        self.riding: dict[int, list[Delivery]] = {}

    def all(self) -> list[Delivery]:
        """Return all that is held; for others than the worker without the lock, so what they see may just change."""
        return [*self.deliveries, *chain.from_iterable(list(self.riding.values()))]

    def let_ride(self, since_s: float) -> None:
        """Let those wait for a ride that are acked and were claimed after a moment of `monotonic_s`."""
        stay: list[Delivery] = []
        for delivery in self.deliveries:
            claimed_s = delivery.lease_until_s - delivery.topic.lease_s
            if delivery.outcome is ACKED and not delivery.by_name and claimed_s > since_s:
                self.riding.setdefault(delivery.slot, []).append(delivery)
            else:
                stay.append(delivery)
        self.deliveries = stay

    def board(self, slots: Iterable[int] | None = None, before_s: float = 0.0) -> list[Delivery]:
        """Take those of some slots, of all by default, and those claimed before a moment, back among `deliveries`."""
        wanted = list(self.riding) if slots is None else [slot for slot in slots if slot in self.riding]
        boarded = [delivery for slot in wanted for delivery in self.riding.pop(slot)]
        while self.riding:
            slot, part = next(iter(self.riding.items()))  # the first one has waited longest
            if part[0].lease_until_s - part[0].topic.lease_s > before_s:
                break
            boarded += self.riding.pop(slot)
        self.deliveries += boarded
        return boarded


class Slots(Protocol):
    """What the keeper asks of a topic's slots."""

    topic: Topic

    def extend_many(self, renewals: Sequence[Renewal]) -> Sequence[ExtendReply | RmqError]:
        """Renew leases in several slots at once, each up to `MAX_BATCH`; a slot that fails holds up no other."""
        ...


class LeaseKeeper(Background):
    """Renews the leases of what the workers hold, each when a third of it has passed.

    Args:
        slots: The topic's slots.
        held: What to look after, one per worker thread.
        on_lost: Called with each delivery whose lease was lost, once.
        blocking: How to wait.
    """

    def __init__(
        self,
        slots: Slots,
        held: Sequence[Held],
        on_lost: Callable[[Delivery], None],
        blocking: Blocking = THREADS,
    ) -> None:
        super().__init__(blocking, f"rmq-leases-{slots.topic.name}")
        self._slots = slots
        self._held = held
        self._on_lost = on_lost
        self._stop_requested = blocking.event()
        self._lease_s = slots.topic.lease_s

    def run(self) -> None:
        """Look after the leases until `stop`."""
        while not self._stop_requested.wait(min(self._lease_s / 6, 5.0)):
            for held in self._held:
                try:
                    self.renew(held)
                except Exception:  # whatever it is, the next round comes
                    log.exception("leases of topic %s were not renewed", self._slots.topic.name)

    def stop(self) -> None:
        """End the thread; leases are no longer renewed."""
        self._stop_requested.set()

    def renew(self, held: Held) -> None:
        """Renew the leases of one worker that are due for it.

        A worker whose call waits for Redis keeps its lock so long: it is left for the next round, since the others'
        leases can't wait for its reply.
        """
        if not held.lock.acquire(timeout=self._lease_s / 20):
            return
        try:
            lost = self._renew_due(held.all())
        finally:
            held.lock.release()
        for delivery in lost:
            log.warning("the lease on %r was lost; another consumer may have it", delivery)
            self._on_lost(delivery)

    def _renew_due(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        by_place: dict[tuple[int, Owner], list[Delivery]] = defaultdict(list)
        soon_s = monotonic_s() + self._lease_s * 2 / 3
        for delivery in deliveries:
            if not delivery.lost and delivery.lease_until_s < soon_s:
                by_place[delivery.slot, delivery.owner].append(delivery)
        parts = [
            (slot, owner, held[first : first + MAX_BATCH])
            for (slot, owner), held in by_place.items()
            for first in range(0, len(held), MAX_BATCH)
        ]
        if not parts:
            return []
        started_s = monotonic_s()
        renewals = [(slot, [(each.name, each.claim_score) for each in part], owner) for slot, owner, part in parts]
        replies = self._slots.extend_many(renewals)
        lost = [gone for (slot, _, part), reply in zip(parts, replies, strict=True)
                for gone in self._take_reply(slot, part, reply, started_s)]  # fmt: skip
        for delivery in lost:
            delivery.lost = True
        return lost

    def _take_reply(
        self, slot: int, part: Sequence[Delivery], reply: ExtendReply | RmqError, started_s: float
    ) -> list[Delivery]:
        """Note the new claim scores; return the deliveries whose lease is lost."""
        if not isinstance(reply, ExtendReply):
            log.warning("leases in slot %d of topic %s were not renewed: %s", slot, self._slots.topic.name, reply)
            for delivery in part:
                delivery.by_name = True  # renewed or not: its score may no longer be the one we know
            gone = isinstance(reply, CoordinationError)
            return [each for each in part if gone or each.lease_until_s < monotonic_s()]
        lost: list[Delivery] = []
        for delivery, claim_score in zip(part, reply.claim_scores, strict=True):
            if claim_score is None:
                lost.append(delivery)
            else:
                delivery.claim_score = claim_score
                delivery.lease_until_s = started_s + self._lease_s
        return lost
