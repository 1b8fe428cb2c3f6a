"""Consumers: claim messages on request, for scripts, tests and other frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any, Generic, Self, cast

from rmq._broker.broker import Broker, QueueBroker
from rmq._broker.claims import MAX_BATCH, NACK_BATCH, SETTLE_ONLY, ClaimPart
from rmq._claiming.buffers import CLOSE_S, ReturnBuffer, held
from rmq._claiming.claim_planner import ClaimPlanner
from rmq._claiming.fetcher import PENDING_CHECK_S, Fetcher
from rmq._claiming.leases import renewal_groups, take_renewal, tokens_of
from rmq._claiming.rounds import PATIENCE_S, FetchResult, OutcomeBatch, batch_outcomes, group_parts
from rmq._claiming.wakeups import WakeupSubscriber
from rmq._io.reports import reporter
from rmq._model.claims import DeliveryColumns, Selection, bytes_of, cut, deliveries_of, mark, select, size_of, whole
from rmq._model.deliveries import Delivery
from rmq._model.outcomes import ACKED, RELEASED, Outcome
from rmq._model.replies import SettleReply
from rmq._model.retry import CHANCE, draw_jitter
from rmq._model.times import monotonic_s, seconds
from rmq._model.topics import Topic, TopicType, checked_slots
from rmq._model.typed import PayloadT
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq.errors import (
    ClientClosedError,
    InvalidValueError,
    RedisUnavailableError,
    ReplyLostError,
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

NAMED_ACK_S = 1.0
"""After Redis has refused to ack a claim as a whole, all acks name their messages for this many seconds."""

MOST_SHARED_ROWS = 8
"""Maximum number of rows whose settlement may share a round trip with others."""

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
        self._broker: Broker = source or QueueBroker(connections, topic)
        self._patience_s = max(PATIENCE_S, self._broker.topic.lease_s / 6)
        self._by_name_until_s = 0.0
        self._settled_slots: set[int] = set()
        """Slots that were changed by outcomes since the last poll."""
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
        return DeliveryColumns(self.topic, self._claimed((self,), max_messages, timeout), self._settle_rows)

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
            RedisUnavailableError: Redis did not answer before the client's deadline, `deadline_s`.
            ClientClosedError: The consumer is closed, or another thread has closed it in the meantime.

        Guarantee: returns as soon as there is a message, without busy polling. If the reply to a claim is lost, its
        messages are redelivered when their lease expires.
        """
        claimed = self._claimed((self,), max_messages, timeout)
        return [delivery for claim, rows in claimed for delivery in claim.deliveries(rows)]

    @staticmethod
    def _claimed(consumers: Sequence[Consumer], max_messages: int, timeout: float | timedelta) -> list[Selection]:
        """Claim due messages of some consumers, which one thread at a time may poll."""
        timeout_s = seconds(timeout, "timeout")
        checked_poll(max_messages, "max_messages")
        for each in consumers:
            if each._connections.forked:
                each._connections.refuse_misuse()
        if len(consumers) == 1:
            with consumers[0]._poll_lock:
                return Consumer._read(consumers, max_messages, timeout_s)
        with ExitStack() as turns:
            for each in sorted(consumers, key=id):  # in one order, whichever thread reads them
                turns.enter_context(cast("AbstractContextManager[object]", each._poll_lock))
            mixed = CHANCE.sample(consumers, len(consumers))  # none is always the first one
            return Consumer._read(mixed, max_messages, timeout_s)

    def ack(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Ack several deliveries, in few calls. Duplicates are acked once.

        Returns:
            The deliveries whose lease was lost before, for which nothing changed; empty if there are none.

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
        """Send outcomes: all slots in one round trip. Return the rows whose lease was lost before.

        Rows that certainly were not settled are open again. A server that does not answer does not delay outcomes on
        other servers. It delays the caller by at most a sixth of a lease, since the caller's other deliveries wait.
        """
        stale: list[Selection] = []
        trouble: RmqError | None = None
        while selections:
            try:
                batches, groups = self._settlements(selections)
            except BaseException:
                _reopen(selections)
                raise
            replies = self._replies(groups, selections)  # interrupted from here on, nobody knows
            selections = list[Selection]()
            for batch, reply in zip(batches, replies, strict=True):
                if isinstance(reply, RmqError):
                    trouble = trouble or reply
                    if not isinstance(reply, ReplyLostError):
                        _reopen(batch.selections)
                    continue
                settled = batch.take(
                    reply.stale, reply.unmatched, size_of(batch.nacked) - reply.left if reply.left else None
                )
                stale += settled.stale
                selections += settled.unsent
                self._settled_slots.add(batch.slot)
                if reply.unmatched:
                    self._by_name_until_s = monotonic_s() + NAMED_ACK_S
        for claim, rows in stale:
            claim.lose(rows)
        if trouble is not None:
            raise trouble
        if self._broker.upkeep_s is not None:
            self._do_upkeep(self._broker.upkeep_s)
        return stale

    def _settlements(self, selections: Sequence[Selection]) -> tuple[list[OutcomeBatch], list[list[Call[SettleReply]]]]:
        """Pack outcomes into batches; also return the call of each, grouped by what one script may carry out."""
        batches: list[OutcomeBatch] = []
        groups: list[list[Call[SettleReply]]] = []
        now_s, settle = monotonic_s(), self._broker.settle_call
        while selections:
            packed, selections = batch_outcomes(
                selections, now_s, NACK_BATCH, most_named=MAX_BATCH, may_be_whole=now_s >= self._by_name_until_s
            )
            parts = [ClaimPart(batch.slot, SETTLE_ONLY, batch.outcomes()) for batch in packed.values()]
            joined = group_parts(parts, self._planner.joins) if len(parts) > 1 else [parts]
            groups += [[settle(part.slot, part.outcomes) for part in group] for group in joined]
            batches += packed.values()
        return batches, groups

    def _replies(self, groups: Sequence[Sequence[Call[Any]]], selections: Sequence[Selection]) -> Sequence[Any]:
        """Run settlements or renewals of rows, those of a group as one call; return the reply or the error of each."""
        calls = [group[0] if len(group) == 1 else self._broker.settle_many_call(group) for group in groups]
        replies: list[Any] = []
        results: list[Any] = []
        try:
            if len(calls) == 1:
                cost = inf
                if sum([len(rows) for _, rows in selections]) <= MOST_SHARED_ROWS:
                    cost = sum([len(claim.rows.names[row]) for claim, rows in selections for row in rows])
                    # acks delete bodies, 12 MiB in a millisecond; a burial copies them, and a nack may merge them
                    if not all([claim.outcomes[row] in (ACKED, None) for claim, rows in selections for row in rows]):
                        cost = bytes_of(selections)
                results = [self._connections.run_shared(calls[0], cost)]
            elif calls:
                connections, kind = self._connections, (self.topic.name, calls[0].script)
                results = connections.runtime.limited(kind, lambda: connections.run_many(calls, self._patience_s))
        except RmqError as error:
            results = [error] * len(calls)
        for group, reply in zip(groups, results, strict=True):
            if len(group) == 1:
                replies.append(reply)
            elif isinstance(reply, ScriptFailedError):
                # refused as a whole, before anything was done: no right to one of the slots, for one
                replies += self._connections.run_many(group, self._patience_s)
            else:
                replies += [reply] * len(group) if isinstance(reply, RmqError) else reply
        return replies

    def extend(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Renew the leases of several deliveries, so that they start again now.

        Returns:
            The deliveries whose lease was lost before; empty if there are none.

        Raises:
            InvalidValueError: A delivery is of another topic or group; nothing was renewed.
            RmqError: A slot did not answer, or refused the call; leases in other slots are renewed.
        """
        deliveries = list(deliveries)
        selections = self._selected(deliveries)
        groups = renewal_groups(selections, self._broker.most_renewals)
        calls = [[self._broker.extend_call(group[0].claim.slot, tokens_of(group))] for group in groups]
        started_s = monotonic_s()
        lost: list[Selection] = []
        replies = self._replies(calls, selections)
        for group, reply in zip(groups, replies, strict=True):
            lost += take_renewal(group, reply, started_s)
        for claim, rows in lost:
            claim.lose(rows)
        for reply in replies:
            if isinstance(reply, RmqError):
                raise reply
        return _among(deliveries, lost) if lost else []

    def close(self) -> None:
        """Stop listening to wake hints, and release claimed messages that no poll has returned.

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
                    self._return_buffer.keep([*map(whole, self._claims.claim(0).claims)])
        except Exception as error:
            log.warning(
                "topic %s: a late reply could not be read; its messages are redelivered when their leases expire: %s",
                self.topic.name,
                error,
            )
        self._return_buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @staticmethod
    def _read(consumers: Sequence[Consumer], most: int, timeout_s: float) -> list[Selection]:
        """Claim due messages of some consumers, whose `_poll_lock` is held; wait for the first one if there is none."""
        started_s, enough = monotonic_s(), 0 if timeout_s else most
        while True:
            looked = [each._prepare(timeout_s > 0, enough) for each in consumers]
            if claimed := Consumer._claim(consumers, most):
                return claimed
            if enough:
                enough = 0
                if not all(looked):
                    for each in consumers:
                        each._next_look_s = 0.0
                    continue
            pending = [each for each in consumers if each._claims.pending_slots()]
            left_s = started_s + timeout_s - monotonic_s()
            if left_s <= 0:
                answered = [each for each in consumers if timeout_s or each not in pending]
                if not all([each._planner.all_unresponsive() for each in answered]):
                    return []
                left_s = started_s + max(each._connections.deadline_s for each in consumers) - monotonic_s()
                if left_s <= 0:
                    names = ", ".join(each.topic.name for each in consumers)
                    raise RedisUnavailableError(f"no answer from Redis for topic{'s' * (len(consumers) > 1)} {names}")
            longest_s = min(left_s, PENDING_CHECK_S if pending else LOOK_EVERY_S)
            wait_s = min([each._planner.wait_s(longest_s) for each in consumers])
            if wait_s > 0:
                WakeupSubscriber.wait_for_any([each._hints for each in consumers], wait_s)

    def _prepare(self, waits: bool, enough: int) -> bool:
        """Update the due times of the slots from hints, and by a look if one is due; return whether it looked.

        A look is due while some slots keep us busy, too: the hint of another one may be lost. A poll that does not wait
        reads no hints: it looks once, unless `enough` slots are known to be due, as many as it takes messages.
        """
        if self._closed:
            self._hints.close()
            raise ClientClosedError(
                f"this consumer of topic {self.topic.name} is closed; create a new one", topic=self.topic.name
            )
        while self._settled_slots:
            self._planner.expect(self._settled_slots.pop())
        if waits:
            hints = self._hints.read(0)
            self._planner.take_wakeups(hints)
            if hints.missed:
                self._next_look_s = 0.0
        if monotonic_s() < self._next_look_s and (not enough or self._planner.knows_due(enough)):
            return False
        self._next_look_s = monotonic_s() + LOOK_EVERY_S
        try:
            self._planner.look(at_all=not waits)
        except ScriptFailedError as error:
            log.warning("%s", error)  # a claim there raises it, once the other slots have nothing to give
        if self._looked and self._broker.upkeep_s is not None:  # the first poll begins with what is there
            self._do_upkeep(self._broker.upkeep_s)
        self._looked = True
        return True

    def _do_upkeep(self, upkeep_s: float) -> None:
        """Clean up the next slot in turn, each slot once in `upkeep_s`, as listeners do: there may be no listeners."""
        if not self.slots or monotonic_s() < self._next_upkeep_s:
            return
        slot = self.slots[self._upkeep_turn % len(self.slots)]
        try:
            if self._planner.is_unresponsive(slot) or not self._broker.look_after(slot):
                self._upkeep_turn += 1
                self._next_upkeep_s = monotonic_s() + upkeep_s / len(self.slots)
        except RmqError as error:
            self._next_upkeep_s = monotonic_s() + upkeep_s
            log.warning("slot %d of topic %s could not be cleaned up: %s", slot, self.topic.name, error)

    @staticmethod
    def _claim(consumers: Sequence[Consumer], most: int) -> list[Selection]:
        """Claim from the consumers with due slots; keep for the next poll what exceeds `most`.

        An error is raised if there are no messages. Otherwise it is logged, since it comes again with the next poll,
        and the messages must not get lost over it.
        """
        claimed: dict[Consumer, list[Selection]] = {each: [] for each in consumers}
        try:
            for each in consumers:
                if each._return_buffer.kept:
                    claimed[each] = each._return_buffer.take()
            number, trouble = Consumer._fill(claimed, most)
        except BaseException:
            for each, parts in claimed.items():
                each._return_buffer.keep(parts)
            raise
        for each, parts in claimed.items() if number > most else ():
            claimed[each], rest = cut(parts, most)
            most -= size_of(claimed[each])
            each._return_buffer.keep(rest)
        taken = [part for parts in claimed.values() for part in parts]
        if trouble is not None:
            if not taken:
                raise trouble
            log.warning("%s", trouble)
        return taken

    @staticmethod
    def _fill(claimed: dict[Consumer, list[Selection]], most: int) -> tuple[int, Exception | None]:
        """Add messages of late replies, then of new claims, up to `most` in all; stop at an error, and return it.

        Returns:
            The number of messages, which may exceed `most`, and the error.
        """
        due, empty_rounds = [*claimed], 0
        new = [part for parts in claimed.values() for part in parts]
        number, size_bytes = size_of(new) if new else 0, 0
        fetches = [(each, partial(each._claims.claim, 0)) for each in due if each._claims.has_earlier]
        most_empty_rounds = EMPTY_ROUNDS + max([len(each.slots) for each in due])
        while True:
            trouble = None
            for each, fetch in fetches:
                try:
                    claims = fetch().claims
                except Exception as error:
                    trouble = trouble or error
                    continue
                for claim in claims:
                    new.append(part := Selection(claim, range(len(claim.outcomes))))
                    claimed[each].append(part)
                    number += len(part.rows)
            if trouble is not None or number >= most:
                return number, trouble
            if new:  # mostly the first claim brings all
                size_bytes, empty_rounds, new = size_bytes + bytes_of(new), 0, []
            due = [each for each in due if each._planner.wait_s(1) == 0]
            if not due or size_bytes >= POLL_BYTES or empty_rounds >= most_empty_rounds:
                return number, None
            fetches = Consumer._begin(due, most - number)
            empty_rounds += 1

    @staticmethod
    def _begin(consumers: Sequence[Consumer], most: int) -> list[tuple[Consumer, Callable[[], FetchResult]]]:
        """Send the claims of all consumers, in equal shares; return the functions that collect their results."""
        if len(consumers) == 1:
            return [(consumers[0], partial(consumers[0]._claims.claim, most))]
        share, extra = divmod(most, len(consumers))
        for index, each in enumerate(consumers):
            if limit := share + (index < extra):
                each._claims.begin(each._planner.plan(limit))
        return [(each, each._claims.collect) for each in consumers]

    def settle(self, delivery: Delivery, outcome: Outcome) -> bool:
        """Settle one delivery; return False if its lease was lost before. Called by `Delivery`."""
        del outcome  # that of the row
        return not self._send_outcomes([Selection(delivery.claim, (delivery.row,))])

    def still_owner(self, delivery: Delivery) -> bool:
        """Return True, since without owners only the lease counts. Called by `Delivery`."""
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


def poll_all(
    consumers: Iterable[Consumer], max_messages: int = 100, timeout: float | timedelta = 0.0
) -> list[Delivery]:
    """Claim due messages of several topics, or of several groups of a stream topic, in one call.

    All consumers claim at the same time, which takes one round trip however many there are. Those with messages get
    equal shares, or take turns if there are fewer messages than consumers. `delivery.topic` is the topic of a delivery;
    `delivery.ack()` and `Consumer.ack` settle it.

    Args:
        consumers: Consumers of any topics, of one client or several; at least one.
        max_messages: Maximum number of messages in total, 1 to 10,000; fewer if they exceed 16 MiB.
        timeout: How long to wait for the first message, in seconds or as a `timedelta`; 0 does not wait.

    Returns:
        The deliveries, consumer by consumer; empty if no message became due in time.

    Raises:
        InvalidValueError: There are no consumers, or `max_messages` or `timeout` is out of range.
        RmqError: As `Consumer.poll`. It is logged instead if other consumers have returned messages.
        ClientClosedError: A consumer is closed, or another thread has closed it in the meantime.

    Guarantee: as `Consumer.poll`.

    Examples:
        >>> pictures, films = Topic("pictures", TopicType.PRIORITY), Topic("films", TopicType.PRIORITY)
        >>> _ = client.producer(films).send(PriorityMessage("film:1", 5))
        >>> with client.consumer(pictures) as first, client.consumer(films) as second:
        ...     for delivery in poll_all([first, second], timeout=5):
        ...         print(delivery.topic.name, delivery.text, delivery.ack())
        films film:1 True
    """
    distinct = list(dict.fromkeys(consumers))
    if not distinct:
        raise InvalidValueError("consumers is empty; it must have at least one consumer")
    return deliveries_of(Consumer._claimed(distinct, max_messages, timeout))  # pyright: ignore[reportPrivateUsage]


def _reopen(selections: Iterable[Selection]) -> None:
    """Take back the outcomes of rows that were certainly not carried out."""
    for claim, rows in selections:
        claim.reopen(rows)


def _among(deliveries: Iterable[Delivery], selections: Sequence[Selection]) -> list[Delivery]:
    """Return the deliveries of the selected rows, in their order."""
    selected = set(deliveries_of(selections))
    return [delivery for delivery in dict.fromkeys(deliveries) if delivery in selected]


def checked_poll(most: int, name: str) -> int:
    """Return the maximum number of messages of a poll; raise `InvalidValueError` if it is out of range."""
    if type(most) is not int or not 1 <= most <= MAX_POLL:
        raise InvalidValueError(f"{name} is {most!r}; it must be a whole number from 1 to {MAX_POLL}")
    return most
