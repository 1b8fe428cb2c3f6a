"""Consumers: claim messages on request, for scripts, tests and other frameworks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Generic, Self

from rmq._broker.broker import Broker, QueueBroker
from rmq._broker.keys import slot_keys
from rmq._claiming.acknowledger import Acknowledger, SettleResult
from rmq._claiming.background_flush import CLOSE_S, held
from rmq._claiming.claim_planner import ClaimPlanner
from rmq._claiming.fetcher import PENDING_CHECK_S, Fetcher
from rmq._claiming.return_buffer import ReturnBuffer
from rmq._claiming.wakeups import WakeupSubscriber
from rmq._io.reports import reporter
from rmq._model.claims import Selection, bytes_of, cut, deliveries_of, mark, select, size_of, whole
from rmq._model.deliveries import Delivery
from rmq._model.delivery_columns import DeliveryColumns
from rmq._model.outcomes import ACKED, RELEASED, Outcome
from rmq._model.retry import draw_jitter
from rmq._model.times import monotonic_s, seconds
from rmq._model.topics import Topic, TopicType, checked_slots
from rmq._model.typed import PayloadT
from rmq._transport.connections import Connections
from rmq.errors import (
    ClientClosedError,
    InvalidValueError,
    RedisUnavailableError,
    RmqError,
    ScriptFailedError,
)

log = reporter("rmq.consumer")

LOOK_EVERY_S = 1.0
"""Interval at which an idle consumer reads due times itself, in seconds, since hints may get lost."""

POLL_BYTES = 16 * 1_048_576
"""A poll returns once it has this many bytes of contents and bodies: they must fit into memory and into a lease."""

MAX_POLL = 10_000
"""Maximum number of messages in one poll."""

EMPTY_ROUNDS = 16
"""A poll without messages makes this many claims more than it has slots: a slot may first have to bury messages that
have outlived their time to live, or to sweep expired leases, and each claim does a part of this work."""


class Consumer(Generic[PayloadT]):
    """Claims messages of a topic on request. For one thread; use it as a context manager, or close it.

    Args:
        connections: The connections to the topic's servers.
        topic: The registered definition.
        slots: Only these slots; all by default.
        source: On a stream topic, the slots as seen by a consumer of a group.

    Raises:
        InvalidValueError: The topic does not have one of the slots.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> for delivery in client.consumer(jobs).poll(max_messages=100, timeout=5):
        ...     print(delivery.text, delivery.ack())
        job:1 True
    """

    def __init__(
        self,
        connections: Connections,
        topic: Topic[PayloadT],
        slots: Iterable[int] | None = None,
        source: Broker | None = None,
    ) -> None:
        self.topic = topic
        self.slots = checked_slots(topic, slots)
        self._max_empty_rounds = EMPTY_ROUNDS + len(self.slots)
        self._broker: Broker = source or QueueBroker(connections, topic)
        self._acknowledger = Acknowledger(connections, self._broker)
        self._planner = ClaimPlanner(connections, topic, self.slots, source=self._broker)
        self._claims = Fetcher(self._planner, self)
        self._hints = WakeupSubscriber(connections, topic.name, self.slots)
        self._next_look_s = self._next_upkeep_s = 0.0
        self._looked = False
        self._upkeep_turn = int(draw_jitter() * len(self.slots))
        self._connections = connections
        self._return_buffer = ReturnBuffer(connections.runtime, topic, self._settle_rows)
        """Messages of late replies that exceed the limit of a poll, kept for the next one."""
        self._poll_lock = connections.runtime.lock(long=True)  # held by the poll that claims
        self._closed = False

    def poll_columns(self, max_messages: int = 100, timeout: float | timedelta = 0.0) -> DeliveryColumns:
        """Claim due messages as columns, like `poll`, but without an object for each message. Not on stream topics.

        Args:
            max_messages: As for `poll`.
            timeout: As for `poll`.

        Returns:
            The deliveries; without rows if no message became due in time.

        Raises:
            InvalidValueError: The topic is a stream topic; otherwise as `poll`.

        Guarantee: as `poll`.
        """
        if self.topic.type is TopicType.STREAM:
            raise InvalidValueError(f"topic {self.topic.name} is STREAM, which cannot be polled as columns; use poll")
        return DeliveryColumns(self.topic, self._claimed(max_messages, timeout), self._settle_rows)

    def poll(self, max_messages: int = 100, timeout: float | timedelta = 0.0) -> list[Delivery[PayloadT]]:
        """Claim due messages; wait for the first one if there is none.

        Args:
            max_messages: Maximum number of messages, 1 to 10,000, taken fairly from the slots; fewer if they
                exceed 16 MiB.
            timeout: How long to wait for the first message, in seconds or as a `timedelta`; 0 does not wait.

        Returns:
            The deliveries; empty if no message became due in time.

        Raises:
            InvalidValueError: `max_messages` or `timeout` is out of range.
            RedisUnavailableError: Redis did not answer until the client's deadline.
            ClientClosedError: The consumer is closed, or another thread has closed it in the meantime.

        Guarantee: returns as soon as there is a message, without busy polling. If the reply to a claim is lost, its
        messages are redelivered when their lease expires.
        """
        return deliveries_of(self._claimed(max_messages, timeout))

    def _claimed(self, max_messages: int, timeout: float | timedelta) -> list[Selection]:
        timeout_s = seconds(timeout, "timeout")
        checked_poll(max_messages, "max_messages")
        if self._connections.forked:
            self._connections.refuse_misuse()
        with self._poll_lock:
            return self._poll(max_messages, timeout_s)

    def ack(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Ack several deliveries, in few calls. Duplicates are acked once.

        Returns:
            The deliveries whose lease was lost before: nothing changed for them.

        Raises:
            AlreadySettledError: A delivery was settled before; nothing was acked.
            InvalidValueError: A delivery is of another topic or group; nothing was acked.
            RmqError: A slot did not answer, or refused the call; deliveries of other slots are acked. Those of that
                slot may be acked again, unless the reply was lost (`ReplyLostError`): then an ack that was not executed
                leads to a redelivery.

        Guarantee: all slots are called at once. In a cluster, a node that sends nothing delays the call by at most a
        sixth of the lease once others have answered, and never longer than the client's `timeout_s`.
        """
        return self._settle_all(deliveries, ACKED)

    def release(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Release several deliveries whose handling has not begun, in few calls. Returns and raises like `ack`."""
        return self._settle_all(deliveries, RELEASED)

    def _settle_all(self, deliveries: Iterable[Delivery], outcome: Outcome) -> list[Delivery]:
        deliveries = list(deliveries)
        lost = self._settle_rows(self._selected(deliveries), outcome)
        return _among(deliveries, lost) if lost else []

    def _settle_rows(self, selections: Sequence[Selection], outcome: Outcome) -> list[Selection]:
        """Settle rows; return those whose lease was lost before."""
        mark(selections, outcome)
        return self._send_outcomes(selections)

    def _send_outcomes(self, selections: Sequence[Selection]) -> list[Selection]:
        """Send outcomes; return the rows whose lease was lost. Rows that certainly were not settled are open again."""
        settled = SettleResult()
        try:
            self._acknowledger.settle(selections, settled)
            for slot in settled.slots:
                self._planner.expect(slot)
            for claim, rows in settled.stale:
                claim.lose(rows)
            if settled.trouble is not None:
                raise settled.trouble
        finally:
            for claim, rows in settled.untried:
                claim.reopen(rows)
        self._do_upkeep()
        return settled.stale

    def extend(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Renew the leases of several deliveries, so that they start again now.

        Returns:
            The deliveries whose lease was lost before.

        Raises:
            InvalidValueError: A delivery is of another topic or group; nothing was renewed.
            RmqError: A slot did not answer, or refused the call; leases in other slots are renewed.
        """
        deliveries = list(deliveries)
        lost, trouble = self._acknowledger.extend(self._selected(deliveries))
        for claim, rows in lost:
            claim.lose(rows)
        if trouble is not None:
            raise trouble
        return _among(deliveries, lost) if lost else []

    def close(self) -> None:
        """Stop listening to hints, and release claimed messages that no poll has returned.

        Deliveries that were returned stay claimed until they are settled or their lease expires. Callable from any
        thread: a waiting `poll` raises `ClientClosedError`.
        """
        self._closed = True
        if self._connections.forked:  # the other process still has the connections, and maybe holds the locks
            return
        self._hints.close()
        self._planner.wake_all()
        try:
            with held(self._poll_lock, CLOSE_S) as alone:  # a poll may just read such a reply itself
                if alone:
                    self._return_buffer.keep(self._claim_late())
        except Exception as error:
            log.warning(
                "topic %s: messages of a late reply are redelivered when their leases expire: %s",
                self.topic.name,
                error,
            )
        self._return_buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _poll(self, max_messages: int, timeout_s: float) -> list[Selection]:
        started_s = monotonic_s()
        deadline_s = started_s + timeout_s
        if not timeout_s:
            self._next_look_s = 0.0  # without a wait there are no hints
        while True:
            if self._closed:
                raise ClientClosedError(f"this consumer of topic {self.topic.name} is closed", topic=self.topic.name)
            if timeout_s:
                self._listen(0)
            # also while some slots keep us busy: the hint of another one may be lost
            self._look_now_and_then(at_all=not timeout_s)
            if claimed := self._claim_due(max_messages):
                return claimed
            pending = bool(self._claims.pending_slots())
            left_s = deadline_s - monotonic_s()
            if left_s <= 0:
                if not (self._planner.all_unresponsive() or (pending and not timeout_s)):
                    return []
                left_s = started_s + self._connections.deadline_s - monotonic_s()
                if left_s <= 0:
                    raise RedisUnavailableError(f"no answer from Redis for topic {self.topic.name}")
            self._listen(self._planner.wait_s(min(left_s, PENDING_CHECK_S if pending else LOOK_EVERY_S)))

    def _look_now_and_then(self, at_all: bool) -> None:
        if monotonic_s() >= self._next_look_s:
            self._next_look_s = monotonic_s() + LOOK_EVERY_S
            try:
                self._planner.look(at_all=at_all)
            except ScriptFailedError as error:
                log.warning("%s", error)  # a claim there raises it, once the other slots have nothing to give
            if self._looked:  # the first poll begins with what is there
                self._do_upkeep()
            self._looked = True

    def _do_upkeep(self) -> None:
        """Clean up the next slot in turn, as listeners do: a topic may have no listeners."""
        upkeep_s = self._broker.upkeep_s
        if upkeep_s is None or not self.slots or monotonic_s() < self._next_upkeep_s:
            return
        slot = self.slots[self._upkeep_turn % len(self.slots)]
        try:
            if self._connections.unresponsive(slot_keys(self.topic.name, slot).store) or not self._broker.look_after(
                slot
            ):
                self._upkeep_turn += 1
                self._next_upkeep_s = monotonic_s() + upkeep_s / len(self.slots)
        except RmqError as error:
            self._next_upkeep_s = monotonic_s() + upkeep_s
            log.warning("upkeep of slot %d of topic %s failed: %s", slot, self.topic.name, error)

    def _claim_due(self, most: int) -> list[Selection]:
        claimed: list[Selection] = []
        try:
            claimed += self._return_buffer.take()
            self._claim_up_to(most, claimed)
        except BaseException:
            self._return_buffer.keep(claimed)  # for the next poll
            raise
        if size_of(claimed) <= most:
            return claimed
        claimed, rest = cut(claimed, most)
        self._return_buffer.keep(rest)
        return claimed

    def _claim_up_to(self, most: int, claimed: list[Selection]) -> None:
        """Add messages of late replies, then of new claims, to those found so far; raise only if there are none."""
        try:
            if self._claims.has_earlier:
                claimed += self._claim_late()
            number = size_of(claimed)
            measured = size_bytes = empty_rounds = 0
            while number < most and empty_rounds < self._max_empty_rounds and self._planner.wait_s(1) == 0:
                if claimed:  # mostly the first claim brings all
                    size_bytes += bytes_of(claimed[measured:])
                    measured = len(claimed)
                    if size_bytes >= POLL_BYTES:
                        break
                claims = [*map(whole, self._claims.claim(most - number).claims)]
                empty_rounds = 0 if claims else empty_rounds + 1
                number += size_of(claims)
                claimed += claims
        except Exception as error:
            if not claimed:
                raise
            log.warning("%s", error)  # it comes again with the next poll; what is claimed must not get lost over it

    def _claim_late(self) -> list[Selection]:
        """Return the messages of late replies to earlier claims, without a new claim."""
        return [*map(whole, self._claims.claim(0).claims)]

    def _listen(self, timeout_s: float) -> None:
        hints = self._hints.read(timeout_s)
        self._planner.take_wakeups(hints)
        if hints.missed:
            self._next_look_s = 0.0
        elif timeout_s and not self._hints.connected and not self._closed:
            self._planner.wait(timeout_s)

    def settle(self, delivery: Delivery, outcome: Outcome) -> bool:
        """Settle one delivery; called by `Delivery`."""
        del outcome  # that of the row
        return not self._send_outcomes([Selection(delivery.claim, (delivery.row,))])

    def still_owner(self, delivery: Delivery) -> bool:
        """Return True: without ZooKeeper only the lease counts; called by `Delivery`."""
        del delivery
        return True

    def _selected(self, deliveries: Sequence[Delivery]) -> list[Selection]:
        """Return the rows of deliveries; raise `InvalidValueError` if one is of another topic or group."""
        for delivery in deliveries:
            if not isinstance(delivery, Delivery):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidValueError(f"{delivery!r} is not a delivery; pass deliveries that poll returned")
        selections, topic, group = select(deliveries), self.topic.name, self._broker.group
        for claim, rows in selections:
            if claim.topic.name != topic or claim.rows.group != group:
                source = f"topic {topic}" + (f", group {group}" if group else "")
                raise InvalidValueError(f"{claim.delivery(rows[0])!r} was not claimed from {source}")
        return selections


def _among(deliveries: Iterable[Delivery], selections: Sequence[Selection]) -> list[Delivery]:
    """Return the deliveries of the selected rows, in their order."""
    selected = set(deliveries_of(selections))
    return [delivery for delivery in dict.fromkeys(deliveries) if delivery in selected]


def checked_poll(most: int, name: str) -> int:
    """Return the maximum number of messages of a poll; raise `InvalidValueError` if it is out of range."""
    if type(most) is not int or not 1 <= most <= MAX_POLL:
        raise InvalidValueError(f"{name} is {most!r}; it must be a whole number from 1 to {MAX_POLL}")
    return most
