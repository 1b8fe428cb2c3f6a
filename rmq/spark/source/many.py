"""The streaming source of several topics: a separate driver for each topic, and one offset for all."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from rmq import Topic
from rmq.errors import InvalidValueError, RedisUnavailableError, ReplyLostError, RmqError, UnknownTopicError
from rmq.spark.option_checks import check_replays, check_topic
from rmq.spark.options import Options
from rmq.spark.schema import check_payload
from rmq.spark.selection import check_room, check_several, fitting, for_one
from rmq.spark.source.batches import VERSION, Batch, parsed
from rmq.spark.source.driver import QueryDriver, gathering_of, plan_together
from rmq.spark.source.reader import RmqStreamReader, rows_of
from rmq.spark.source.waiting import Gathering
from rmq.spi import monotonic_s
from rmq.spi.scripts import Registry

log = logging.getLogger("rmq.spark")

FIND_S = 30.0
"""Interval at which a query looks for new topics that match its pattern, seconds."""


def to_offset(batches: Mapping[str, Batch]) -> dict[str, Any]:
    """Return the offset of a batch of several topics: topic -> its part of the batch."""
    return {"v": VERSION, "topics": {name: batch.to_offset() for name, batch in sorted(batches.items())}}


def from_offset(offset: Mapping[str, Any]) -> dict[str, Batch]:
    """Parse an offset of several topics.

    Raises:
        InvalidValueError: The offset was not written by a read of several topics.
    """

    def parse(offset: Mapping[str, Any]) -> dict[str, Batch]:
        return {str(name): Batch.from_offset(each) for name, each in offset["topics"].items()}

    return parsed(offset, parse, "a read of several topics", "; use a new checkpoint")


class ManyStreamReader(RmqStreamReader):
    """Reads several topics for Structured Streaming, with the guarantees of `RmqStreamReader` for each.

    With a pattern it reads all matching topics that can be read. A topic that cannot is omitted with a warning, and
    checked again from time to time, so that a newly registered topic does not end a running query. For topics of the
    checkpoint, such an error ends the query.
    """

    def __init__(self, schema: StructType, options: Options, names: Sequence[str]) -> None:
        super().__init__(schema, for_one(options, names[0]))
        self._given, self._names = options, list(names) if options.topic_pattern is None else []
        self._drivers: dict[str, QueryDriver] = {}
        self._new: dict[str, Batch] = {}
        self._left_out: dict[str, str] = {}
        self._find_s = 0.0
        self._frozen = self._found_frozen = False
        self._gathering: Gathering | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset of a new query, which has no topics."""
        return to_offset({})

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack the batch that ends at `start` on all topics, and plan the next one, without claiming."""
        last = from_offset(start)
        for name, batch in last.items():
            driver = self._driver_of_logged(name)
            if driver is not None:
                driver.ack(batch)
        if not self._found_frozen:
            self._find(last)
            self._freeze_found()
        for name in self._names:
            if name not in last:
                self._driver_of(name).join(self._begun(name).query)
        drivers = {name: self._driver_of(name) for name in self._names}
        if self._gathering is None:
            self._gathering = gathering_of(self._given, sum(driver.topic.slots for driver in drivers.values()))
        quotas = plan_together(drivers, self._gathering, rows_of(limit))
        if not quotas:
            return dict(start)
        following = {name: batch for name, batch in last.items() if name in self._names}
        for name, taken in quotas.items():
            batch = last.get(name) or self._begun(name)
            following[name] = batch.next(taken, wary=self._drivers[name].wary)
        return to_offset(following)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the messages that are due now in all topics."""
        self._frozen = True
        for name in self._names:
            self._driver_of(name).freeze()
        for topic in self._matching():  # `latestOffset` says why one is left out, or ends the query
            self._refusal(topic, self._freeze)

    def _freeze(self, topic: Topic) -> None:
        self._check(topic)
        self._driver_of(topic.name).freeze()

    def _matching(self) -> list[Topic]:
        """Return the topics that match the pattern now; none without a pattern."""
        if self._given.topic_pattern is None:
            return []
        with closing(self._given.connections()) as connections:
            return fitting(Registry(connections).definitions().topics, self._given)

    def _freeze_found(self) -> None:
        """Freeze topics that are not frozen yet: those of the checkpoint are known only at the first offset."""
        if self._frozen:
            self._found_frozen = True
            for driver in map(self._driver_of, self._names):
                if not driver.frozen:
                    driver.freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the totals of remaining messages and the metrics of each topic, for Spark's progress report."""
        told = [self._drivers[name].figures.progress() for name in sorted(self._drivers)]
        sums = {name: sum(each[name] for each in told) for name in ("behind", "backlog", "in_flight")}
        left_out = {"left_out": self._left_out} if self._left_out else {}
        return {**sums, "topics": told, **left_out} if told else None

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch that ends at `end`, and start renewing its leases."""
        before = from_offset(start)
        begun = {
            name: batch
            for name, batch in from_offset(end).items()
            if batch.seq > (before[name].seq if name in before else 0)
        }
        size = sum(batch.size for batch in begun.values())
        found: list[InputPartition] = []
        for name, batch in begun.items():
            found += self._parts(self._driver_of(name), batch, batch.size / size)
        return found

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack a committed batch, unless `latestOffset` has already done so."""
        for name, batch in from_offset(end).items():
            driver = self._driver_of_logged(name)
            if driver is not None:
                driver.committed(batch)

    def stop(self) -> None:
        """Stop renewing leases, and release owned slots. Messages stay claimed, since the batch may be run again."""
        for driver in self._drivers.values():
            driver.close()

    def _driver_of(self, name: str) -> QueryDriver:
        if name not in self._drivers:
            self._drivers[name] = QueryDriver(for_one(self._given, name))
        return self._drivers[name]

    def _driver_of_logged(self, name: str) -> QueryDriver | None:
        """Return the driver of a topic of the checkpoint; `None` if it is gone and `failOnDataLoss` is false."""
        try:
            return self._driver_of(name)
        except UnknownTopicError as error:
            if self._given.fail_on_data_loss:
                raise UnknownTopicError(
                    f"topic {name}, which is part of this checkpoint, is no longer registered; set failOnDataLoss "
                    "to false to continue without it",
                    topic=name,
                ) from error
            log.warning("topic %s is no longer registered; continuing without it, since failOnDataLoss is false", name)
            return None

    def _find(self, last: Collection[str]) -> None:
        """Add new topics that match the pattern, once per `FIND_S`; `last` has the topics of the checkpoint."""
        if self._given.topic_pattern is None or monotonic_s() < self._find_s:
            return
        found = {topic.name: topic for topic in self._matching()}
        for name in self._drivers.keys() - found.keys():  # the next look at it says that it is gone
            self._drivers.pop(name).close()
        known = [name for name in found if name in last or name in self._names]
        left_out = dict[str, str]()
        self._names = [*known]
        for name, topic in found.items():
            if name not in known and (why := self._refusal(topic, self._admit)):
                left_out[name] = why
            elif name not in known:
                log.info("the query now also reads topic %s", name)
                self._names.append(name)
        self._left_out, before = left_out, self._left_out
        for name, why in left_out.items() - before.items():
            log.warning("topic %s matches topicPattern, but cannot be read: %s", name, why)
        if left_out and not self._names:
            raise InvalidValueError(f"none of the topics that match topicPattern can be read: {left_out}")
        self._find_s = monotonic_s() + FIND_S

    def _refusal(self, topic: Topic, take: Callable[[Topic], None]) -> str:
        """Take a topic into the query; return the reason if it cannot be read, otherwise an empty text."""
        try:
            take(topic)
        except (RedisUnavailableError, ReplyLostError):
            raise
        except RmqError as error:
            driver = self._drivers.pop(topic.name, None)
            if driver is not None:
                driver.close()
            return str(error)
        return ""

    def _check(self, topic: Topic) -> None:
        """Raise an error for a topic that this query cannot read, by its definition."""
        options = for_one(self._given, topic.name)
        check_several(topic)
        check_topic(topic, options)
        check_replays(topic, options)
        check_payload(topic, self._schema.names)

    def _admit(self, topic: Topic) -> None:
        """Add a topic to the query.

        Raises:
            RmqError: The query cannot read the topic, for the reason in the message.
        """
        check_room(topic, len(self._names))
        self._check(topic)
        driver = self._driver_of(topic.name)
        driver.join(self._begun(topic.name).query)
        driver.probe()

    def _begun(self, name: str) -> Batch:
        """Return the initial batch of a topic that is not in the checkpoint."""
        return self._new.setdefault(name, Batch(uuid.uuid4().hex))
