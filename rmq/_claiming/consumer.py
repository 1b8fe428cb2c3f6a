"""The pull side: for scripts, tests and other runtimes."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from rmq.calls import MAX_BATCH
from rmq.claimer import Claimer
from rmq.clock import monotonic_s
from rmq.connections import Connections
from rmq.delivery import ACKED, RELEASED, Delivery, Outcome, Verb
from rmq.errors import InvalidValueError, ReplyLostError, RmqError, ScriptFailedError
from rmq.settlements import Settlements, nack_of
from rmq.slot import NACK_BATCH, SlotWriter
from rmq.stream_slot import GroupSlots
from rmq.topics import Topic
from rmq.wakeups import HintReader

log = logging.getLogger("rmq.consumer")

LOOK_EVERY_S = 1.0
"""How often an idle consumer looks by itself, since hints may get lost."""

WHOLE_FROM, NAME_FOR_S = 8, 1.0
"""So many deliveries of a slot are acked without naming each, where that is possible; where it was not, it is tried
again after so many seconds."""

MAX_POLL = 10_000
"""Most messages in one poll."""

_Done = tuple[Sequence[Delivery], set[bytes]]
"""What one call to Redis has settled, and the names of those among them that were no longer ours."""


class Consumer:
    """Claims messages of a topic on request. For one thread; use it as a context manager, or close it.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        slots: Only these slots; all by default.
        source: On a stream topic, the slots in the eyes of a consumer of a group.

    Raises:
        InvalidValueError: A slot that the topic does not have.
    """

    def __init__(
        self,
        connections: Connections,
        topic: Topic,
        slots: Iterable[int] | None = None,
        source: GroupSlots | None = None,
    ) -> None:
        self.topic = topic
        self.slots = tuple(range(topic.slots)) if slots is None else tuple(dict.fromkeys(slots))
        for slot in self.slots:
            if type(slot) is not int or not 0 <= slot < topic.slots:
                raise InvalidValueError(f"slot {slot!r} is not one of topic {topic.name}: 0 to {topic.slots - 1}")
        self._writer = source or SlotWriter(connections, topic)
        self._claimer = Claimer(connections, topic, self.slots, source=self._writer)
        self._hints = HintReader(connections, topic.name, self.slots)
        self._next_look_s = 0.0
        self._name_until_s = 0.0

    def poll(self, max_messages: int = 100, timeout: float | timedelta = 0.0) -> list[Delivery]:
        """Claim due messages; wait for the first one if there is none.

        Args:
            max_messages: Most messages, 1 to 10,000, taken fairly from the slots.
            timeout: How long to wait for the first one, in seconds or as a `timedelta`; 0 does not wait.

        Returns:
            The deliveries; none when nothing became due in time.

        Raises:
            InvalidValueError: `max_messages` or `timeout` out of range.
            RedisUnavailableError: No answer from Redis until the client's deadline.

        Guarantee: returns as soon as there is a message, without busy polling. If a claim's reply gets lost, its
        messages come back when their lease ends.
        """
        timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if type(max_messages) is not int or not 1 <= max_messages <= MAX_POLL:
            raise InvalidValueError(f"max_messages is {max_messages!r}; it must be a whole number from 1 to {MAX_POLL}")
        if not timeout_s >= 0:
            raise InvalidValueError(f"timeout is {timeout!r}; it must be 0 or more seconds")
        deadline_s = monotonic_s() + timeout_s
        if not timeout_s:
            self._next_look_s = 0.0  # who never waits for hints has to ask
        while True:
            if timeout_s:
                self._listen(0)
            # also while some slots keep us busy: the hint of another one may be lost
            self._look_now_and_then(at_all=not timeout_s)
            if found := self._claim_due(max_messages):
                return found
            left_s = deadline_s - monotonic_s()
            if left_s <= 0:
                return []
            self._listen(self._claimer.wait_s(min(left_s, LOOK_EVERY_S)))

    def ack(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Ack several deliveries, one call per slot.

        Returns:
            Those whose lease was lost before: nothing changed for them.

        Raises:
            AlreadySettledError: One of them was settled before.
            RmqError: A slot did not answer, or refused; the others are acked all the same. Those of that slot may be
                acked again, unless the reply was lost (`ReplyLostError`): then their leases settle it.
        """
        return self._settle_by_slot(deliveries, ACKED)

    def release(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Give back several deliveries that were not begun, one call per slot. Returns and raises like `ack`."""
        return self._settle_by_slot(deliveries, RELEASED)

    def _settle_by_slot(self, deliveries: Iterable[Delivery], outcome: Outcome) -> list[Delivery]:
        stale: list[Delivery] = []
        trouble: RmqError | None = None
        for slot, part in self._open_by_slot(deliveries, outcome).items():
            carried_out: set[int] = set()
            try:
                for done, gone in self._carry_out(slot, part, outcome):
                    carried_out.update(map(id, done))
                    stale += [delivery for delivery in done if delivery.name in gone]
            except RmqError as error:
                trouble = trouble or error
                if not isinstance(error, ReplyLostError):
                    for delivery in part:
                        if id(delivery) not in carried_out:
                            delivery.outcome = None
            if carried_out:
                self._claimer.expect(slot)
        if trouble is not None:
            _mark_lost(stale)
            raise trouble
        return _mark_lost(stale)

    def extend(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Renew the leases of several deliveries: they count from now.

        Returns:
            Those whose lease was lost before.
        """
        by_slot: dict[int, list[Delivery]] = defaultdict(list)
        for delivery in deliveries:
            by_slot[delivery.slot].append(delivery)
        return _mark_lost([lost for slot, part in by_slot.items() for lost in self._extend(slot, part)])

    def close(self) -> None:
        """Stop listening to hints. Open deliveries stay claimed until settled or their lease ends."""
        self._hints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _look_now_and_then(self, at_all: bool) -> None:
        if monotonic_s() >= self._next_look_s:
            self._next_look_s = monotonic_s() + LOOK_EVERY_S
            try:
                self._claimer.look(at_all=at_all)
            except ScriptFailedError as error:
                log.warning("%s", error)  # a claim there raises it, once the other slots have nothing to give

    def _claim_due(self, most: int) -> list[Delivery]:
        found: list[Delivery] = []
        while len(found) < most and self._claimer.wait_s(1) == 0:
            try:
                found += self._claimer.claim(most - len(found), self).deliveries
            except RmqError as error:
                if not found:
                    raise
                log.warning("%s", error)  # it comes again with the next poll; what is claimed must not get lost over it
                break
        return found

    def _listen(self, timeout_s: float) -> None:
        hints = self._hints.read(timeout_s)
        self._claimer.take_hints(hints)
        if hints.missed:
            self._next_look_s = 0.0
        elif timeout_s and not self._hints.connected:
            self._claimer.wait(timeout_s)

    def settle(self, delivery: Delivery, outcome: Outcome) -> bool:
        """Carry out one delivery's outcome; for `Delivery`."""
        stale = any([gone for _, gone in self._carry_out(delivery.slot, [delivery], outcome)])
        self._claimer.expect(delivery.slot)
        _mark_lost([delivery] if stale else [])
        return not stale

    def _carry_out(self, slot: int, deliveries: Sequence[Delivery], outcome: Outcome) -> Iterator[_Done]:
        """Settle deliveries of a slot, call by call."""
        if outcome.verb is Verb.ACK:
            yield from self._ack(slot, deliveries)
            return
        for first in range(0, len(deliveries), NACK_BATCH):
            part = deliveries[first : first + NACK_BATCH]
            yield part, set(self._writer.nack(slot, [nack_of(delivery, outcome) for delivery in part]))

    def _ack(self, slot: int, deliveries: Sequence[Delivery]) -> Iterator[_Done]:
        """Ack deliveries of a slot, claims of which nothing else is open without naming what they hold.

        Whether something is open shows in Redis; if so, or if there are bodies to delete, naming them is tried next.
        """
        writer = self._writer
        if len(deliveries) >= WHOLE_FROM and monotonic_s() >= self._name_until_s and isinstance(writer, SlotWriter):
            settlements = Settlements()
            for delivery in deliveries:
                settlements.add(delivery)
            whole = settlements.acks()[1]
            unmatched = writer.ack_whole(slot, whole)
            if unmatched:
                self._name_until_s = monotonic_s() + NAME_FOR_S
            done = {claim_score for claim_score, _, _ in whole}.difference(unmatched)
            yield settlements.of_claims(done), set[bytes]()
            deliveries = [delivery for delivery in deliveries if delivery.claim_score not in done]
        for first in range(0, len(deliveries), MAX_BATCH):
            part = deliveries[first : first + MAX_BATCH]
            yield part, set(writer.ack(slot, [(delivery.name, delivery.claim_score) for delivery in part]))

    def still_owner(self, delivery: Delivery) -> bool:
        """Return True: without ZooKeeper the lease alone decides; for `Delivery`."""
        del delivery
        return True

    def _extend(self, slot: int, deliveries: Sequence[Delivery]) -> list[Delivery]:
        lost: list[Delivery] = []
        for first in range(0, len(deliveries), MAX_BATCH):
            part = deliveries[first : first + MAX_BATCH]
            started_s = monotonic_s()
            try:
                reply = self._writer.extend(slot, [(delivery.name, delivery.claim_score) for delivery in part])
            except RmqError:
                for delivery in part:
                    delivery.by_name = True  # renewed or not: its score may no longer be the one we know
                raise
            for delivery, claim_score in zip(part, reply.claim_scores, strict=True):
                if claim_score is None:
                    lost.append(delivery)
                else:
                    delivery.claim_score = claim_score
                    delivery.lease_until_s = started_s + self.topic.lease_s
        return lost

    @staticmethod
    def _open_by_slot(deliveries: Iterable[Delivery], outcome: Outcome) -> dict[int, list[Delivery]]:
        by_slot: dict[int, list[Delivery]] = defaultdict(list)
        wanted = list(deliveries)
        for delivery in wanted:
            delivery.refuse_if_settled()
        for delivery in wanted:
            delivery.mark(outcome)
            by_slot[delivery.slot].append(delivery)
        return by_slot


def _mark_lost(deliveries: list[Delivery]) -> list[Delivery]:
    for delivery in deliveries:
        delivery.lost = True
    return deliveries
