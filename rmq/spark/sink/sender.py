"""Sends the messages of one task: folds them, divides them into chunks, and keeps several calls in flight.

A `Target` has the settings for a topic, checked on the driver. A `TaskWrite` is the write of one task to it. A
`TaskPace` keeps all tasks of a write together to a rate: by a token bucket in Redis, filled by Redis' clock.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Literal, cast

from pyspark.sql.types import StructType

from rmq import Collect, Overflow, SendResult, Topic, TopicType
from rmq.errors import (
    BacklogFullError,
    CollectionFullError,
    FixedTimePassedError,
    InvalidMessageError,
    InvalidValueError,
    ReplyLostError,
    RmqError,
)
from rmq.spark.figures import RedisTime
from rmq.spark.marks import Cut, Mark, Once, send_once
from rmq.spark.options import Options
from rmq.spark.sink.columns import Layout, layout_of
from rmq.spark.sink.encoding import BadRows, encode_rows
from rmq.spark.sink.holding import held_rows, in_order
from rmq.spi import monotonic_s
from rmq.spi.scripts import (
    BATCH_BYTES,
    Batch,
    Call,
    Connections,
    EncodedMessage,
    Pipeline,
    QueueBroker,
    RoundLimits,
    Rows,
    blocks,
    send_patiently,
    sent_key,
    slot_keys,
    take_from,
    wait_for_room,
    write_rate_key,
)

log = logging.getLogger("rmq.spark")

_PASSED = "fixed_time was in the past by Redis' clock when the message was first sent"

HELD_BYTES = 32 * BATCH_BYTES
"""Maximum size of the messages that a task buffers, bytes."""

LONGEST_WAIT_S, TROUBLE_PAUSE_S = 1.0, 0.2
"""Longest wait before the limit is asked again, and the pause after an error, seconds."""

KEEP_S = 3_600
"""Lifetime of a bucket after the end of its write, seconds."""

_KEEP_EVERY_S = KEEP_S / 4
_SENT = "sent"


@dataclass(frozen=True)
class Limit:
    """The rate limit of a write: messages per second of all tasks, maximum number in a call, and name of its bucket."""

    per_second: float
    burst: int
    name: str = field(default_factory=lambda: uuid.uuid4().hex)


def limit_of(per_second: float | None) -> Limit | None:
    """Return a limit whose burst is a tenth of its rate per second, 1 to 1,000; `None` for no limit."""
    return None if per_second is None else Limit(per_second, max(1, min(1_000, int(per_second / 10))))


class TaskPace:
    """Delays the calls of one task so that its write keeps to its rate limit.

    Args:
        connections: Connections to Redis.
        topic: The registered definition.
        limit: The rate limit of the write.
    """

    def __init__(self, connections: Connections, topic: Topic, limit: Limit) -> None:
        self._connections, self._topic, self._limit = connections, topic, limit
        self._key = write_rate_key(topic.name, limit.name)
        self._keep_next_s = 0.0

    def wait(self, number: int) -> None:
        """Wait until `number` messages may be sent, at most `limit.burst`.

        Raises:
            RedisUnavailableError: Redis did not answer before the deadline.
        """
        left = number
        while True:
            granted, wait_s = self._take(left)
            left -= granted
            if left <= 0:
                self._connections.command("HINCRBY", self._key, _SENT, number, key=self._key)
                return
            self._connections.runtime.sleep(min(wait_s, LONGEST_WAIT_S))

    def give_back(self, number: int) -> None:
        """Return the tokens of messages that were not sent."""
        if number > 0:
            self._take(-number)

    def _take(self, wanted: int) -> tuple[int, float]:
        limit = self._limit
        call = take_from(self._key, self._key, self._topic, wanted, limit.per_second, limit.burst)
        try:
            granted, wait_s, _, made = self._connections.run(call)
        except ReplyLostError:  # the tokens may be lost, so that it is slower for a moment, never faster
            return 0, TROUBLE_PAUSE_S
        now_s = monotonic_s()
        if made or now_s >= self._keep_next_s:  # a write may take longer than it is to be kept
            self._keep_next_s = now_s + _KEEP_EVERY_S
            self._connections.command("EXPIRE", self._key, KEEP_S, key=self._key)
        return granted, wait_s


def sent_so_far(connections: Connections, topic: Topic, limit: Limit) -> int:
    """Return the number of messages that a write was allowed to send so far; 0 if its bucket has expired."""
    key = write_rate_key(topic.name, limit.name)
    found: bytes | None = connections.command("HGET", key, _SENT, key=key)
    return int(found or 0)


@dataclass
class Counts:
    """Counts of the rows of one task.

    Attributes:
        rows: Rows that the task read.
        folded: Of these, merged with another of the task before they were sent.
        new: Messages that were added as new entries.
        merged: Messages that merged with one in the backlog.
        skipped: Messages already sent by an earlier run of the batch; of a redrive, messages that were no longer dead.
        bad: Invalid or refused rows, written to the folder of `badRowsPath`.
        redis_us: Time that the task waited for calls to Redis, microseconds.
    """

    rows: int = 0
    folded: int = 0
    new: int = 0
    merged: int = 0
    skipped: int = 0
    bad: int = 0
    redis_us: int = field(default=0, compare=False)

    @classmethod
    def total(cls, tasks: Iterable[Counts]) -> Counts:
        """Return the sum of several tasks' counts."""
        return cls(*map(sum, zip(*map(astuple, tasks), strict=True)))


WhenPassed = Literal["fail", "now", "collect"]
"""Handling of a fixed time that is past when it arrives at Redis: fail the job, send as due now, or write to a
folder."""

AHEAD_MS, MOST_AHEAD_MS = 50, 60_000
"""Milliseconds after Redis' time to which a past fixed time is moved, as it must be in the future when it arrives: in
the first attempt, and at most, after attempts that were too slow."""


@dataclass(frozen=True)
class Sending:
    """Settings of a task's sends: `hold` is the number of messages that it buffers, to fold them and to fill chunks."""

    fold: bool
    hold: int
    chunk: int
    depth: int
    """Maximum number of calls in a round trip, each to another slot."""
    passed: WhenPassed = "fail"


class TaskSender:
    """Sends to the slots of one topic. Not thread-safe.

    Args:
        connections: Connections to Redis.
        topic: The registered definition.
        sending: Settings of the sends.
        bad_rows: Handles messages that the server refuses.
        mark: Identifies the task in its query, so that a repeated chunk is not sent again; `None` for no marks.
        pace: The rate limit; `None` for no limit.

    Attributes:
        held: The buffered rows.
        counts: Counts of the task so far.
    """

    def __init__(
        self,
        connections: Connections,
        topic: Topic,
        sending: Sending,
        bad_rows: BadRows,
        mark: Mark | None = None,
        pace: TaskPace | None = None,
    ) -> None:
        self._connections, self._topic, self._sending = connections, topic, sending
        self._bad_rows, self._mark, self._pace = bad_rows, mark, pace
        self._writer = QueueBroker(connections, topic)
        self.held = held_rows(topic, sending.fold, sending.hold, HELD_BYTES)
        self._chunks: Counter[int] = Counter()
        depth = 1 if pace is not None else sending.depth
        size = RoundLimits(depth * sending.chunk, depth * BATCH_BYTES, depth)
        self._time = RedisTime()
        wait = None if pace is None else self._wait
        self._pipeline = Pipeline(connections, topic, size, self._call, self._settle, wait)
        self.counts = Counts()

    def add(self, rows: Rows) -> None:
        """Buffer messages, sending the buffer whenever it is full."""
        while len(rows):
            taken = self.held.add(rows)
            if taken:
                rows = rows[taken:]
            else:
                self.flush()

    def flush(self) -> None:
        """Send all buffered rows."""
        for slot, rows in self.held.take().items():
            for ordered in in_order(self._topic, rows):
                for batch in cut(ordered, self._sending.chunk):
                    if self._mark is not None:
                        merges = self._topic.merge is not None
                        batch.completion = self._mark.of(self._chunks[slot], batch, merges)
                    with self._time.counted():
                        self._pipeline.enqueue(batch)
                    self._chunks[slot] += 1
        with self._time.counted():
            self._pipeline.flush()

    def finish(self) -> Counts:
        """Send the buffered rows, wait for all replies, and return the counts."""
        self.flush()
        with self._time.counted():
            self._pipeline.collect()
        self.counts.folded = self.held.folded
        self.counts.redis_us = round(self._time.seconds * 1_000_000)
        return self.counts

    @property
    def slots(self) -> frozenset[int]:
        """The slots to which chunks were sent."""
        return frozenset(self._chunks)

    def close(self) -> None:
        """Read or discard all outstanding replies, even after an error."""
        self._pipeline.close()

    def _wait(self, number: int) -> None:
        with self._time.counted(waited=False):
            cast("TaskPace", self._pace).wait(number)

    def _call(self, batch: Batch) -> Call[Any]:
        return self._send_call(batch.slot, _rest_of(batch), batch.completion)

    def _send_call(self, slot: int, rows: Sequence[EncodedMessage], mark: Mark | None) -> Call[Any]:
        if mark is not None:
            return send_once(self._topic, slot, rows, mark)
        return self._writer.send_call(slot, rows, partly="first")

    def _settle(self, batch: Batch, answer: SendResult | Once | RmqError) -> bool:
        """Record the reply to a chunk, and send the messages that the call did not accept until all are sent."""
        left = self._settled(batch, answer)
        while left is not None:
            try:
                answer = self._connections.run(self._call(left))
            except RmqError as error:
                answer = error
            left = self._settled(left, answer)
        return True

    def _settled(self, batch: Batch, answer: SendResult | Once | RmqError) -> Batch | None:
        """Record a reply or handle an error; return the chunk with the messages still to send, or `None`."""
        if isinstance(answer, FixedTimePassedError) and self._sending.passed == "now":
            return self._done(batch, self._send_at_once(batch))
        if isinstance(answer, FixedTimePassedError) and self._sending.passed == "collect":
            return self._without_passed(batch)
        if isinstance(answer, BacklogFullError) and waits(self._topic, answer):
            return self._done(batch, self._send_patiently(batch.slot, _rest_of(batch), batch.completion))
        if isinstance(answer, RmqError):
            raise answer
        return self._done(batch, answer)

    def _done(self, batch: Batch, answer: SendResult | Once) -> Batch | None:
        """Count a chunk; rows that an earlier run of the batch had omitted are again handled as bad rows.

        Returns:
            The chunk with the messages still to send, or `None`.
        """
        refused = answer.refused if isinstance(answer, Once) else ()
        if refused and not self._bad_rows.collecting:
            raise InvalidMessageError(
                f"{len(refused)} of {len(batch)} messages: {_PASSED}; badRows=collect writes such rows to a folder"
            )
        if refused and isinstance(answer, Once) and answer.done is not None:
            return self._without_passed(batch)
        self._put_aside(batch, refused, _PASSED)
        return self._booked(batch, answer)

    def _send_patiently(self, slot: int, rows: Sequence[EncodedMessage], mark: Mark | None) -> SendResult | Once:
        """Send messages as room becomes free; a marked chunk only as a whole, since a retry sends it in one call."""
        sleep = self._connections.runtime.sleep
        if mark is None:
            result, error = send_patiently(self._writer, slot, rows, sleep)
            if error is not None and not (result.accepted and isinstance(error, FixedTimePassedError)):
                raise error
            return result  # of the first ones, where the time of others has passed meanwhile
        call = self._send_call(slot, rows, mark)
        return wait_for_room(lambda: self._connections.run(call), self._topic.full_timeout_s, sleep)

    def _send_at_once(self, batch: Batch) -> SendResult | Once:
        """Send a chunk with past fixed times; their messages become due as soon as possible.

        The mark is that of the original times, so that a chunk that was sent before is not sent again.
        """
        mark, ahead_ms = batch.completion, AHEAD_MS
        while True:
            earliest = self._now_ms(batch.slot) + ahead_ms
            rows = [row if row.value >= earliest else row._replace(value=earliest) for row in _rest_of(batch)]
            try:
                return self._send_in_time(batch.slot, rows, mark)
            except FixedTimePassedError:
                if ahead_ms >= MOST_AHEAD_MS:
                    raise
                ahead_ms *= 2

    def _now_ms(self, slot: int) -> int:
        seconds, us = self._connections.command("TIME", key=slot_keys(self._topic.name, slot).store)
        return int(seconds) * 1_000 + int(us) // 1_000

    def _without_passed(self, batch: Batch) -> None:
        """Write the messages whose time is past by Redis' clock to the folder for bad rows, and send the others.

        Messages sent by an earlier run of the batch count as sent, whatever the time is now.
        """
        mark: Mark | None = batch.completion
        first, passed = 0 if mark is None else mark.first, list[int]()
        if mark is not None:
            passed, done = self._passed_before(batch, mark)
            self._put_aside(batch, passed, _PASSED)
            sent = done or len(batch) - len(passed) if passed else first
            self._book(Once(0, 0, sent - first))
            first = sent
        left = [(index, row) for index, row in enumerate(batch) if index not in passed][first:]
        while left:
            now_ms = self._now_ms(batch.slot)
            late = [index for index, row in left if row.value <= now_ms]
            self._put_aside(batch, late, f"fixed_time is in the past: Redis' time is {now_ms} ms")
            passed += late
            left = [(index, row) for index, row in left if row.value > now_ms]
            if not left:
                break
            refused = None if mark is None else replace(mark.without(passed), first=first)
            try:
                answer = self._send_in_time(batch.slot, [row for _, row in left], refused)
            except FixedTimePassedError:
                continue
            self._book(answer)
            if isinstance(answer, Once):
                taken = len(left) if answer.done is None else answer.done - first
            else:
                taken = answer.accepted
            first, left = first + taken, left[taken:]

    def _send_in_time(self, slot: int, rows: Sequence[EncodedMessage], mark: Mark | None) -> SendResult | Once:
        try:
            answer: SendResult | Once = self._connections.run(self._send_call(slot, rows, mark))
        except BacklogFullError as error:
            if not waits(self._topic, error):
                raise
            return self._send_patiently(slot, rows, mark)
        return answer

    def _passed_before(self, batch: Batch, mark: Mark) -> tuple[list[int], int | None]:
        key = sent_key(self._topic.name, batch.slot, mark.query)
        return mark.refused_in(self._connections.command("HGET", key, f"{mark.partition}:{mark.chunk}"))

    def _put_aside(self, batch: Batch, indices: Sequence[int], reason: str) -> None:
        if indices:
            self._bad_rows.take_encoded([batch[index] for index in indices], reason)

    def _booked(self, batch: Batch, answer: SendResult | Once) -> Batch | None:
        """Count a reply; return the chunk with the messages still to send, or `None`."""
        self._book(answer)
        if not isinstance(answer, Once):
            return batch[answer.accepted :] if answer.accepted < len(batch) else None
        if answer.done is None:
            return None
        batch.completion = replace(batch.completion, first=answer.done)
        return batch

    def _book(self, result: SendResult | Once) -> None:
        self.counts.new += result.new
        self.counts.merged += result.merged
        if isinstance(result, Once):
            self.counts.skipped += result.skipped
            if self._pace is not None:
                self._pace.give_back(result.skipped)


def waits(topic: Topic, full: BacklogFullError) -> bool:
    """Return whether room will become free: the topic lets sends wait, or the full message becomes due at once."""
    if blocks(topic):
        return True
    releases = topic.merge is not None and topic.merge.overflow(topic.type) is Overflow.RELEASE
    return releases and isinstance(full, CollectionFullError)


def _rest_of(batch: Batch) -> Batch:
    """Return the messages of a chunk that no call has accepted so far."""
    mark: Mark | None = batch.completion
    return batch[mark.first :] if mark is not None and mark.first else batch


def cut(rows: Sequence[EncodedMessage], most: int) -> Iterator[Batch]:
    """Yield chunks of at most `most` messages of one slot and `BATCH_BYTES` bytes; a single message may be larger."""
    whole = Batch.of(rows) if rows else Batch(0)
    for first in range(0, len(whole), most):
        batch = whole[first : first + most]
        if batch.size_bytes <= BATCH_BYTES:
            yield batch
        else:
            yield from _cut_by_size(batch)


def _cut_by_size(whole: Batch) -> Iterator[Batch]:
    first = size = 0
    for index, row in enumerate(whole):
        length = len(row.content) + len(row.body or b"")
        if index > first and size + length > BATCH_BYTES:
            yield whole[first:index]
            first, size = index, 0
        size += length
    yield whole[first:]


COLLECTED_BYTES = 4 * 1_048_576
"""Maximum size of the items that one chunk rewrites, by the topic's bound, bytes: a chunk is one script call."""


@dataclass(frozen=True)
class Target:
    """Settings for the writes to one topic.

    Attributes:
        layout: The columns of the frame for this topic.
        sending: Settings of the sends.
        limit: Rate limit of all tasks; `None` for no limit.
        columns: Columns to write, for a frame with rows for several topics; `None` for all columns.
    """

    layout: Layout
    sending: Sending
    limit: Limit | None = None
    columns: tuple[str, ...] | None = None

    @property
    def topic(self) -> Topic:
        """The registered definition."""
        return self.layout.topic

    def cut(self, partitions: int) -> Cut:
        """Return the division of the rows into calls, for this number of tasks."""
        return Cut(partitions, self.sending.hold if self.sending.fold else 0, self.sending.chunk)


def target_of(schema: StructType, topic: Topic, options: Options, limit: Limit | None) -> Target:
    """Return the settings for a write of a frame to a topic.

    Raises:
        InvalidValueError: The columns or options do not fit the topic.
    """
    layout = layout_of(schema, topic, options)
    stream = topic.type is TopicType.STREAM
    if stream and options.merge == "partition":
        raise InvalidValueError(f"topic {topic.name} is STREAM, and its entries are never merged: remove option merge")
    if options.when_passed is not None and topic.type is not TopicType.FIXED_TIME:
        raise InvalidValueError(
            f"whenPassed is {options.when_passed!r}, but topic {topic.name} is {topic.type.name}: the "
            "option is for FIXED_TIME topics"
        )
    chunk = options.chunk_size if limit is None else min(options.chunk_size, limit.burst)
    if blocks(topic) and topic.merge is not None:  # a marked chunk waits for room as a whole
        chunk = max(1, min(chunk, topic.max_backlog_per_slot // 2))
    if topic.merge is not None and isinstance(topic.merge.reduce, Collect):  # a chunk rewrites what is collected
        chunk = max(1, min(chunk, COLLECTED_BYTES // topic.merge.reduce.max_bytes))
    fold = not stream and options.merge != "none"
    return Target(layout, Sending(fold, options.merge_rows, chunk, options.pipeline_depth), limit)


class TaskWrite(TaskSender):
    """Write of one task to one topic, as record batches. It ends with `finish`, or with `close` after an error.

    Args:
        connections: Connections to Redis.
        target: Settings for the topic.
        folder: Folder for bad rows; `None` to fail the task at the first one.
        name: Name of the task and its attempt, for files of bad rows.
        mark: Identifies the task, so that a retry does not send its chunks again; `None` for no marks.
        passed: Handling of a fixed time that is past when it arrives at Redis.
        done: Whether all rows were sent before, so that they are only counted as skipped.
    """

    def __init__(
        self,
        connections: Connections,
        target: Target,
        folder: str | None,
        name: str,
        mark: Mark | None,
        passed: WhenPassed,
        *,
        done: bool = False,
    ) -> None:
        self._target, self._was_done = target, done
        pace = None if target.limit is None else TaskPace(connections, target.topic, target.limit)
        bad_rows = BadRows(target.layout, folder, name)
        super().__init__(connections, target.topic, replace(target.sending, passed=passed), bad_rows, mark, pace)

    def take(self, batch: Any) -> None:
        """Encode and buffer a `pyarrow.RecordBatch`, sending the buffer whenever it is full."""
        self.counts.rows += batch.num_rows
        if self._was_done:
            self.counts.skipped += batch.num_rows
            return
        if self._target.columns is not None:
            batch = batch.select(list(self._target.columns))
        good, bad = encode_rows(self._target.layout, batch)
        self._bad_rows.take(batch, bad)
        self.add(good)

    def finish(self) -> Counts:
        """Send the buffered rows, close the file of bad rows, and return the counts."""
        counts = super().finish()
        self._bad_rows.keep()
        counts.bad = self._bad_rows.count
        return counts

    def close(self) -> None:
        """Discard outstanding replies, and delete an unfinished file of bad rows."""
        super().close()
        self._bad_rows.drop()
