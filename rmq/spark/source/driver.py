"""The driver of a streaming query: plans batches, renews their leases, and acks them.

Spark runs one driver for a query, in a process of its own. `StreamDriver` has what every driver does: it hears of
commits, reports its metrics, and acks a batch once. `QueryDriver` claims messages; `LogDriver` (`log_driver.py`) moves
the consumer group of a STREAM topic.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Generic, Literal, NamedTuple, TypeVar

from rmq import Inspection, Owner, SparkQuery, Topic
from rmq.errors import (
    BatchAckedError,
    BatchError,
    BatchLostError,
    FencedError,
    RedisUnavailableError,
    ReplyLostError,
    RmqError,
    TopicMismatchError,
    UnknownTopicError,
)
from rmq.spark.calls import Driver, enter
from rmq.spark.figures import Figures, QueryFigures, Reporter
from rmq.spark.options import TRIGGER_DELAY_MS, Options
from rmq.spark.slots import PIECE, Pace, QuerySlots, SettledBatch, queue_topic
from rmq.spark.source.batches import Batch, LogBatch, share
from rmq.spark.source.commits import CommitReceiver
from rmq.spark.source.owning import MARKING, OwnedSlots, unnamed
from rmq.spark.source.waiting import IDLE_S, Gathering, Waiting
from rmq.spi import monotonic_s
from rmq.spi.scripts import Connections, Registry, parse_url, query_keys, same_merging

log = logging.getLogger("rmq.spark")

RENEW_DEADLINE_S = 1.0
"""Timeout of a renewal: the next round follows soon, and leases on other servers must not wait for it."""

CHECK_S = 10.0
"""Interval at which an idle query checks that Redis still has its topic and its record, seconds."""

BRIEF_S = 0.01
"""Wait for messages of an idle topic if another one has due messages, seconds."""

NO_CHUNK = ((0, -1),)
"""The slot where a query stores the number of its last acked batch, even if the batch had no messages there."""


B = TypeVar("B", Batch, LogBatch)
F = TypeVar("F", bound=Figures)


def data_lost(options: Options, text: str, topic: str, *, slot: int | None = None) -> None:
    """Warn that Redis has lost data of a query.

    Raises:
        BatchError: Unless `failOnDataLoss` is false; a `BatchLostError` for messages of a slot that a batch has lost.
    """
    if options.fail_on_data_loss:
        kind = BatchError if slot is None else BatchLostError
        raise kind(f"{text}; set failOnDataLoss to false to continue", topic=topic, slot=slot)
    log.warning("%s; continuing, since failOnDataLoss is false", text)


class StreamDriver(ABC, Generic[B, F]):
    """What the drivers of all queries do.

    Args:
        options: The options of the query.
        topic: The registered definition.
        connections: Connections to Redis, which `close` closes.
        waiting: Waits for messages of the topic.
        figures: The metrics of the query.
    """

    def __init__(self, options: Options, topic: Topic, connections: Connections, waiting: Waiting, figures: F) -> None:
        self._options, self.topic, self.figures = options, topic, figures
        self._connections, self._waiting = connections, waiting
        self._acked: int = 0
        self._open: B | None = None
        self._lock = threading.Lock()
        self._acking = threading.RLock()
        self._commits: CommitReceiver | None = None
        self._reporter: Reporter | None = None

    def ack(self, batch: B) -> None:
        """Ack a batch that Spark has committed. Safe to repeat.

        Raises:
            BatchAckedError: A later batch is already acked: this checkpoint is an old copy.
            FencedError: The topic now has owners, which receive the batch again; the options name no owners.
            DriverReplacedError: Another driver runs the query, or reads the STREAM topic with its group.
        """
        with self._acking, self.figures.time.counted():
            self._ack(batch)

    @abstractmethod
    def _ack(self, batch: B) -> None: ...

    def committed(self, batch: B) -> None:
        """Ack a batch, unless it is acked: a notification may be late, or repeated after a restart."""
        if batch.seq > self._acked:
            self.ack(batch)

    def _committed(self, seq: int) -> None:
        """Ack the open batch after a commit notification; the next trigger repeats a failed ack."""
        with self._lock:
            batch = self._open
        if batch is None or batch.seq != seq:
            return
        try:
            self.ack(batch)
        except RmqError as error:
            log.info("batch %d of topic %s will be acked at the next trigger: %s", seq, self.topic.name, error)

    def _hear_commits(self, query: str) -> None:
        if self._commits is None:
            self._commits = CommitReceiver(query, self._committed)

    def _publish(self, report: Callable[[], SparkQuery]) -> None:
        """Keep the metrics in Redis up to date from now on."""
        if self._reporter is None:
            self._reporter = Reporter(self._options.url, self.topic.name, report)

    def close(self) -> None:
        """Stop listening for commits, and release owned slots. Messages and positions wait for the next driver."""
        if self._commits is not None:
            self._commits.close()
        self._leave()
        self._waiting.close()
        if self._reporter is not None:
            self._reporter.close()
        self._connections.close()

    def _leave(self) -> None:
        """Release what other workers wait for."""


class Opened(NamedTuple):
    """An open batch, without the slots of other owners; `owners` is empty for a query without owners."""

    driver: Driver
    batch: Batch
    owners: Mapping[int, Owner]


class QueryDriver(StreamDriver[Batch, QueryFigures]):
    """Plans and acks the batches of one query. A thread of this process renews the leases.

    Args:
        options: The options of the query.
    """

    def __init__(self, options: Options) -> None:
        self._owning: OwnedSlots | None = None
        connections, name = options.connections(), options.needed_topic()
        with ExitStack() as undo:
            undo.callback(connections.close)  # the caller cannot close this driver
            try:
                topic = queue_topic(connections, name, "internal error: LogStreamReader reads STREAM topics")
            except UnknownTopicError as error:
                raise UnknownTopicError(f"{error}, but a streaming query does not", topic=name) from None
            undo.pop_all()
        super().__init__(options, topic, connections, Waiting(connections, topic), QueryFigures(topic))
        self._slots = QuerySlots(self._connections, self.topic)
        timeout_s = min(5.0, max(1.0, self.topic.lease_s / 6))
        self._renewing = Connections(parse_url(options.url), timeout_s=timeout_s, deadline_s=RENEW_DEADLINE_S)
        self._renewals = QuerySlots(self._renewing, self.topic)
        self._inspection = Inspection(self._connections, self.topic)
        self._gathering = gathering_of(options, topic.slots)
        self._driver: Driver | None = None
        self._settled = self._warned = 0
        self._check_s = monotonic_s() + CHECK_S
        self._accepted: dict[int, int] = {}
        self._target: dict[int, int] | None = None
        self._suspects: dict[int, int] = {}
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None

    def join(self, query: str) -> None:
        """Join the cluster as a worker, if the options name owners or ZooKeeper. The first call waits for slots.

        Raises:
            CoordinationError: ZooKeeper does not answer, or workers of another Redis consume the topic there.
            TopicMismatchError: The topic is registered there with another type or number of slots.
        """
        if not self._options.owns or self._owning is not None:
            return
        owning = OwnedSlots(self._options, self._connections, self.topic, query)
        owning.start()
        self._owning, self._waiting.slots = owning, owning.open_slots
        if self._target is not None:
            self.freeze()

    def begin(self, batch: Batch, *, known: bool) -> Driver:
        """Return this driver's identity in Redis; the first call fences the query's earlier drivers.

        Args:
            batch: A batch of the query.
            known: Whether the query has run before, according to its checkpoint.
        """
        if self._driver is not None and self._driver.query == batch.query:
            return self._driver
        self.join(batch.query)
        entered = self._connections.run(
            enter(self.topic, batch.query, needed=known and self._options.fail_on_data_loss)
        )
        if known and not entered.known:
            text = (
                f"Redis has no record of query {batch.query} on topic {self.topic.name}, whose checkpoint is "
                f"at batch {batch.seq}: Redis was emptied or replaced, or the query did not run for more than "
                "30 days"
            )
            data_lost(self._options, text, self.topic.name)
        self._driver = Driver(batch.query, entered.generation)
        self._acked = entered.acked
        query = batch.query
        self._publish(lambda: self.figures.report(query))
        return self._driver

    def _ack(self, batch: Batch) -> None:
        self.join(batch.query)
        if batch.seq == 0 or batch.seq == self._settled == self._acked:
            return
        driver = self.begin(batch, known=True)
        if self._forgotten(driver):
            self._lost(f"the record of query {batch.query} was gone before batch {batch.seq} was acked")
            driver = self.begin(batch, known=False)
        # slot 0 is marked before the rest is acked, so an earlier driver may have ended in between
        if self._settled < batch.seq and self._acked <= batch.seq:
            try:
                settled = self._settle(self._slots, driver, batch, "ack")
            except FencedError as error:
                raise unnamed(self.topic, error) from error
            if settled.lost:
                log.warning(
                    "batch %d of topic %s: the leases of %d messages expired before they were acked; other workers "
                    "may have received these messages, too",
                    batch.seq,
                    self.topic.name,
                    settled.lost,
                )
            # with large messages a batch takes fewer than planned; one that was acked before has none
            if self._target is not None and any(settled.found.values()):
                for slot, quota in batch.quotas.items():
                    missing = max(0, quota - settled.found.get(slot, 0))
                    self._target[slot] = self._target.get(slot, 0) + missing
            self.figures.settled(batch.seq, settled)
            self._suspect(batch, settled.put_back)
        self._slots.settle(driver, batch.seq, NO_CHUNK, "ack", None if self._owning is None else {0: MARKING})
        self._acked = self._settled = batch.seq
        if self._owning is not None:
            self._owning.release()
        with self._lock:  # only now: until the batch is acked, its remaining leases must not expire
            if self._open is not None and self._open.seq <= batch.seq:
                self._open = None
                self.figures.kept(None)

    def _forgotten(self, driver: Driver) -> bool:
        """Return whether Redis has lost the record of a started driver: it was emptied, or restored from a backup."""
        key = query_keys(self.topic.name, 0, driver.query).query
        found: bytes | None = self._connections.command("HGET", key, "generation", key=key)
        return found is None or int(found) < driver.generation

    def _lost(self, what: str) -> None:
        """Report that Redis has lost data of the query.

        Raises:
            BatchError: Unless `failOnDataLoss` is false.
        """
        text = (
            f"Redis lost data of a running query on topic {self.topic.name}, because it was emptied or restored "
            f"from an older copy: {what}"
        )
        data_lost(self._options, text, self.topic.name)
        self._driver, self._accepted = None, {}

    def _check(self) -> None:
        """Compare the query's topic and record with those in Redis.

        Raises:
            BatchError: Redis has lost the topic or the query; not with `failOnDataLoss=false`.
            TopicMismatchError: The topic was registered again with another definition.
        """
        self._check_s = monotonic_s() + CHECK_S
        topic = self.topic
        try:
            registered = Registry(self._connections).get(topic.name)
        except UnknownTopicError:
            self._lost("the topic is no longer registered")
            return
        if (registered.type, registered.slots) != (topic.type, topic.slots) or not same_merging(
            registered.merge, topic.merge
        ):
            raise TopicMismatchError(
                f"topic {topic.name} was registered again while the query was running, as "
                f"{registered.type.name} with {registered.slots} slots and merge={registered.merge!r}; the "
                f"query started with {topic.type.name}, {topic.slots} slots and merge={topic.merge!r}: restart "
                "it",
                topic=topic.name,
            )
        if self._driver is not None and self._forgotten(self._driver):
            self._lost(f"the record of query {self._driver.query} is gone")

    def plan(self, last: Batch, limit: int | None) -> Batch | None:
        """Return the batch after `last`, of up to `limit` messages; `None` if no or too few messages are due.

        Raises:
            FencedError: The topic has owners, and the options name no owners.
        """
        quotas = plan_together({self.topic.name: self}, self._gathering, limit)
        return last.next(quotas[self.topic.name], wary=self.wary) if quotas else None

    def look(self, patience_s: float) -> dict[int, int]:
        """Return the number of due messages in each slot, for a plan with `take`.

        If nothing was due the last time, it first waits up to `patience_s` for a message.

        Raises:
            FencedError: The topic has owners, and the options name no owners.
        """
        if monotonic_s() >= self._check_s:
            self._check()
        if self._owning is not None and self._owning.has_changed(self._slots):
            self._waiting.stir()
        if self._target is None and not self._waiting.is_over(patience_s):
            return {}
        with self.figures.time.counted():
            due = self._swept()
        if self._target is not None:
            return {slot: min(number, self._target.get(slot, 0)) for slot, number in due.items()}
        if any(due.values()):
            self._check()
        else:
            self._waiting.rest()
        return due

    def probe(self) -> None:
        """Sweep the slots, returning expired leases to the backlog.

        Raises:
            FencedError: The topic has owners, and the options name no owners.
        """
        self._swept()

    def awaits_leases(self) -> bool:
        """Wait if available messages are in slots that wait for leases to expire; return whether to look again."""
        target = self._target or {}
        return self._owning is not None and self._owning.awaits(self._slots, target)

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`, by the clock of the driver's connections."""
        self._connections.runtime.sleep(seconds)

    def take(self, due: Mapping[int, int], limit: int | None) -> dict[int, int]:
        """Return the quotas of the next batch, of up to `limit` of the messages that `look` counted."""
        quotas = share({slot: min(number, self._suspects.get(slot, 0)) for slot, number in due.items()}, limit)
        if not quotas:
            self._suspects = {}  # none, or other workers have taken them
            quotas = share(due, limit)
        if self._owning is not None and quotas:
            quotas = self._owning.keep(quotas)
        if self._target is not None:
            self._target = {slot: left - quotas.get(slot, 0) for slot, left in self._target.items()}
        for name in ("behind", "backlog"):
            self.figures.behind[name] -= sum(quotas.values())
        if quotas:
            self.figures.planned()
        return quotas

    def _swept(self) -> dict[int, int]:
        """Sweep all slots, or those that this driver owns, and return the number of due messages in each."""
        if self._owning is not None:
            return self._due(self._owning.ready(self._slots, self._driver))
        try:
            self._slots.tidy()
        except FencedError as error:
            raise unnamed(self.topic, error) from error
        except ReplyLostError:
            pass  # a partial sweep is valid; the next trigger sweeps the rest
        return self._due()

    @property
    def wary(self) -> bool:
        """Whether the next batch may contain messages that the last one returned to the backlog."""
        return bool(self._suspects)

    @property
    def frozen(self) -> bool:
        """Whether `freeze` has been called."""
        return self._target is not None

    def freeze(self) -> None:
        """Limit the query to the messages that are due now, including expired leases, for Trigger.AvailableNow.

        Raises:
            FencedError: The topic has owners, and the options name no owners.
        """
        if self._owning is not None or not self._options.owns:  # otherwise again after it has joined
            self._target = self._swept()
        if self._options.owns:
            self._target = self._due()  # in all slots: it may become the owner of more of them

    def open(self, batch: Batch) -> Opened:
        """Start renewing the leases of a batch.

        Raises:
            BatchAckedError: The batch is already acked: this checkpoint is an old copy.
        """
        driver = self.begin(batch, known=batch.seq > 1)
        if batch.seq <= self._acked:
            raise BatchAckedError(
                f"batch {batch.seq} of query {batch.query} on topic {self.topic.name} is already acked, as are "
                f"all batches up to {self._acked}: this checkpoint is an old copy",
                topic=self.topic.name,
            )
        owners: Mapping[int, Owner] = {}
        if self._owning is not None:
            owners = self._owning.kept(batch, self._slots, driver)
        with self._lock:
            if self.figures.opened(batch.seq):
                self.figures.kept(monotonic_s())
            self._open = batch
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep, name="rmq-spark-leases", daemon=True)
                self._keeper.start()
            self._hear_commits(batch.query)
        if self._owning is not None:
            quotas = {slot: quota for slot, quota in batch.quotas.items() if slot in owners}
            batch = replace(batch, quotas=quotas)
        return Opened(driver, batch, owners)

    def close(self) -> None:
        """Stop renewing leases and release owned slots. Claimed messages wait for the next driver or their leases."""
        self._stopping.set()
        super().close()
        self._renewing.close()

    def _leave(self) -> None:
        if self._owning is not None:
            self._owning.close()

    def _suspect(self, batch: Batch, put_back: dict[int, int]) -> None:
        """Plan the messages that the last replay of a batch returned as batches of their own."""
        self._suspects = put_back
        if put_back:
            log.warning(
                "batch %d of topic %s succeeded after its last replay had returned %d messages to the "
                "backlog; they are delivered next",
                batch.seq,
                self.topic.name,
                sum(put_back.values()),
            )
            if self._target is not None:
                self.freeze()

    def _due(self, slots: Collection[int] | None = None) -> dict[int, int]:
        """Return the number of due messages in each slot, or in the given slots."""
        mine = [each for each in self._inspection.stats().slots if slots is None or each.slot in slots]
        accepted = {each.slot: each.totals.get("accepted", 0) for each in mine}
        # a failover may lose the last sends, which is no reason to fail the query
        gone = [slot for slot, number in accepted.items() if 2 * number < self._accepted.get(slot, 0)]
        self._accepted |= accepted
        if gone:
            self._lost(f"most of the messages that were sent to slots {', '.join(map(str, gone))} are gone")
        self.figures.behind = {
            "behind": sum(each.due_now for each in mine),
            "backlog": sum(each.backlog for each in mine),
            "in_flight": sum(each.in_flight for each in mine),
        }
        return {each.slot: 0 if each.paused else each.due_now for each in mine}

    def _settle(self, slots: QuerySlots, driver: Driver, batch: Batch, verb: Literal["ack", "renew"]) -> SettledBatch:
        if self._owning is not None:
            return self._owning.settle(slots, driver, batch, verb)
        return slots.settle(driver, batch.seq, batch.chunks(), verb)

    def _keep(self) -> None:
        every_s = self.topic.lease_s / 3
        wait_s = every_s
        while not self._stopping.wait(wait_s):
            began_s = monotonic_s()
            try:
                wait_s = (every_s if self._renew() else every_s / 4) - (monotonic_s() - began_s)
            except Exception:  # after any error, the next round tries again
                log.exception("leases of topic %s were not renewed", self.topic.name)
            wait_s = max(0.0, wait_s)

    def _renew(self) -> bool:
        """Renew the leases of the open batch; return True if all calls succeeded."""
        with self._lock:
            batch, driver = self._open, self._driver
        if batch is None or driver is None:
            return True
        number, least = sum(1 for _ in batch.chunks()), PIECE if self._renewing.multi_node else 1
        self._renewals.pace = Pace(number, self.topic.lease_s / 3, self._stopping, least)
        began_s = monotonic_s()
        try:
            lost = self._settle(self._renewals, driver, batch, "renew").lost
            with self._lock:
                if self._open is batch:
                    self.figures.kept(began_s)
        except RmqError as error:
            log.warning("batch %d of topic %s: leases were not renewed: %s", batch.seq, self.topic.name, error)
            return not isinstance(error, RedisUnavailableError)
        if lost and self._warned < batch.seq:
            self._warned = batch.seq
            log.warning(
                "batch %d of topic %s: %d leases expired before a renewal; other workers may receive the messages, too",
                batch.seq,
                self.topic.name,
                lost,
            )
        return True


def gathering_of(options: Options, slots: int) -> Gathering:
    """Return what delays the batches of a query on topics with this number of slots in all."""
    delay_ms = TRIGGER_DELAY_MS if options.max_delay_ms is None else options.max_delay_ms
    return Gathering(options.min_messages, delay_ms / 1_000, slots)


def plan_together(
    drivers: Mapping[str, QueryDriver], gathering: Gathering, limit: int | None
) -> dict[str, dict[int, int]]:
    """Plan the next batch of a query, of up to `limit` messages of all its topics.

    Returns:
        Topic -> quotas of its slots; empty if no or too few messages are due.

    Raises:
        FencedError: A topic has owners, and the options name no owners.
    """
    free = not all(driver.frozen for driver in drivers.values())
    if free and not gathering.is_over(IDLE_S, next(iter(drivers.values())).sleep):
        return {}
    due = _look(drivers)
    while not any(any(slots.values()) for slots in due.values()) and any(
        driver.awaits_leases() for driver in drivers.values()
    ):
        due = _look(drivers)
    totals = [sum(slots.values()) for slots in due.values()]
    wary = any(driver.wary for driver in drivers.values())
    if free and not wary and gathering.holds(sum(totals)):
        return {}
    limits = share(dict(enumerate(totals)), limit)
    quotas = {
        name: drivers[name].take(due[name], limits.get(number, 0))
        for number, name in enumerate(due)
        if number in limits or not totals[number]
    }
    return {name: taken for name, taken in quotas.items() if taken}


def _look(drivers: Mapping[str, QueryDriver]) -> dict[str, dict[int, int]]:
    """Return topic -> number of due messages in each slot."""
    due: dict[str, dict[int, int]] = {}
    patience_s = IDLE_S / len(drivers)
    for name, driver in drivers.items():
        due[name] = driver.look(patience_s)
        if any(due[name].values()):
            patience_s = min(patience_s, BRIEF_S)
    return due
