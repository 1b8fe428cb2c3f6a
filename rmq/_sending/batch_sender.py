"""Runs one `send_many`: batches by slot, their results, and the messages left if it ends early.

On topics with `WhenFull.BLOCK`, sends wait while the backlog is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar, cast

from rmq._broker.broker import QueueBroker
from rmq._broker.claims import MAX_BATCH
from rmq._model.batches import Batch, EncodedMessage, Row, Rows
from rmq._model.display import counted
from rmq._model.merging import Collect
from rmq._model.replies import PartlySent, SendResult
from rmq._model.settings import check_flag
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic, WhenFull
from rmq._sending.pipeline import BATCH_BYTES, Pipeline, RoundLimits
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq._transport.refusals import error_of
from rmq._transport.rpc_ids import named_rpc_id, part_rpc_id
from rmq.errors import (
    BacklogFullError,
    CollectionFullError,
    DurabilityError,
    FixedTimePassedError,
    InvalidBatchError,
    InvalidMessageError,
    RedisUnavailableError,
    RmqError,
    SendError,
    SumOutOfRangeError,
)

BATCH = 500
"""Messages per script call; more if a topic has few slots, see `batch_size`."""

CALLS_IN_FLIGHT = 4
"""Maximum number of script calls per round trip, each to another slot; during a round trip, the next one is built."""

BUFFERED_BYTES = 64 * BATCH_BYTES
"""Maximum bytes of contents and bodies held back to fill batches."""

COLLECTED_BYTES = 8 * BATCH_BYTES
"""Maximum bytes of stored items with which the messages of one call may have to merge, by the topic's bounds. A call
ends early if merging costs too much; another call sends its remaining messages."""

BUFFERED = 20_000
"""Maximum number of messages held back to fill batches, over all slots."""

CHUNK = 4_000
"""Rows of columns that are sorted by slot at a time."""

M = TypeVar("M")
"""Type of the caller's messages: messages, or numbers of rows."""

ROUND = RoundLimits(CALLS_IN_FLIGHT * BATCH, CALLS_IN_FLIGHT * BATCH_BYTES)


@dataclass(frozen=True, slots=True)
class SendOptions:
    """Options of the calls of one `send_many`.

    Attributes:
        once: Name of all the calls together, for repeats in other processes.
        fold: Whether messages of one content are folded before they are sent.
        method: Name of the method and its word for a message, for errors.
    """

    once: str | None = None
    fold: bool = False
    method: tuple[str, str] = ("send_many", "message")


class BatchSender:
    """The state of one `send_many`."""

    def __init__(
        self, connections: Connections, slots: QueueBroker, outcomes: bool, blocks: bool, calls: SendOptions
    ) -> None:
        check_flag("outcomes", outcomes)
        check_flag("fold", calls.fold)
        self._once, self._fold, self._method = calls.once, calls.fold, calls.method
        self._numbers: dict[int, int] = {}
        self._connections = connections
        self._broker = slots
        self._detailed = outcomes
        self._blocks = blocks
        self._round_size = min(CALLS_IN_FLIGHT, slots.topic.slots)
        join = None if slots.send_many_call is None else partial(slots.send_many_call, detailed=outcomes)
        self._pipeline = Pipeline(connections, slots.topic, ROUND, self._call, self._settle, join=join)
        self._batch_size = batch_size(slots.topic)
        self._open: dict[int, Batch] = {}
        self._taken = self._new = self._stored = self._dropped = 0
        self._outcomes: dict[int, bool] = {}
        self._ids: dict[int, str] = {}
        self._not_stored: list[Any] = []
        self._unknown: list[Any] = []
        self._rows_left: Iterable[Any] = ()  # rows that stand behind those taken
        self._error: RmqError | None = None
        self._refusal: RmqError | None = None
        self.collect = self._pipeline.collect

    def take(self, messages: Iterable[M], encode: Callable[[M], Row], first: int = 0) -> None:
        """Encode messages, and send them as batches fill.

        Args:
            messages: Any iterable.
            encode: Checks a message and encodes it.
            first: Number of the first message within the caller's whole call.

        Raises:
            InvalidBatchError: A message breaks a rule; those after it stay in the iterable.
        """
        batches, full, fold, detailed = self._open, self._batch_size, self._fold, self._detailed
        held = held_bytes = 0  # in open batches
        for number, message in enumerate(messages, first):
            try:
                row = encode(message)
            except InvalidMessageError as error:
                raise self._invalid_batch(error, message, number) from error
            slot = row[0]
            batch = batches.get(slot)
            if batch is None:
                batch = batches[slot] = Batch(slot)
            size_bytes = batch.fold(self._broker.topic, EncodedMessage(*row), message) if fold else None
            held_bytes += batch.add(row, message) if size_bytes is None else size_bytes
            held += 1
            if detailed:
                batch.positions.append(number)
                self._taken += 1
            if len(batch.contents) == full or batch.size_bytes >= BATCH_BYTES:
                held -= batch.taken
                held_bytes -= batch.size_bytes
                self._queue(batches.pop(slot))
            elif held < BUFFERED and held_bytes < BUFFERED_BYTES:
                continue
            else:
                self._flush()
                held = held_bytes = 0
            if self._error is not None:
                self._stop_sending()

    def take_rows(self, rows: Rows) -> None:
        """Encode all rows of columns, and send them as batches fill; errors name row numbers."""
        for first in range(0, len(rows), CHUNK):
            last = min(first + CHUNK, len(rows))
            self._rows_left = range(last, len(rows))
            self._take_chunk(rows[first:last], first, last)

    def _take_chunk(self, rows: Rows, first: int, last: int) -> None:
        """Sort a chunk of rows by slot, and send them. Works column by column, so that no row costs a function call."""
        if rows.longest * self._batch_size > BATCH_BYTES:  # where a batch ends depends on its bytes
            numbers, messages = iter(range(first, last)), iter(rows)
            self._rows_left = chain(numbers, self._rows_left)
            self.take(numbers, lambda number: next(messages), first)
            return
        for slot, places in rows.places.items():
            while places:
                batch = self._open.get(slot)
                if batch is None:
                    batch = self._open[slot] = Batch(slot)
                room = self._batch_size - len(batch.contents)
                part, places = places[:room], places[room:]
                batch.extend(rows, part)
                numbers = [first + place for place in part]
                batch.messages += numbers
                if self._detailed:
                    batch.positions += numbers
                if len(batch.contents) == self._batch_size:
                    self._queue(self._open.pop(slot))
        if self._detailed:
            self._taken = last
        if self._error is not None:
            self._stop_sending()

    def _queue(self, batch: Batch) -> None:
        queue = self._pipeline.enqueue(batch)
        if queue.number >= self._round_size:
            self._pipeline.send(queue)

    def _stop_sending(self) -> None:
        """Send the batches of all servers but the failed one, then raise the error.

        Batches of a named call must end where those of its repeat end: otherwise a repeat would skip unsent messages.
        """
        self._flush(unfinished=self._once is None)
        self.collect()
        self._raise_error()

    def finish(self) -> SendResult:
        self._flush()
        self.collect()
        self._raise_error()
        known = self._outcomes.get  # what another process has sent may have been sent without outcomes
        outcomes = tuple(known(index, False) for index in range(self._taken)) if self._detailed else ()
        ids = tuple(self._ids[index] for index in range(self._taken)) if self._ids else ()
        return SendResult(self._new, self._stored - self._new, outcomes, ids, self._dropped)

    def _invalid_batch(self, error: InvalidMessageError, message: object, number: int) -> InvalidBatchError:
        """Stop before an invalid message; return the error, which lists the messages that were stored."""
        self.collect()
        method, what = self._method
        return InvalidBatchError(
            f"{what} {number + 1} of {method}: {error}",
            topic=self._broker.topic.name,
            stored=self._stored,
            not_stored=(*self._not_stored, *self._left(), message),
            unknown=tuple(self._unknown),
        )

    def _flush(self, unfinished: bool = True) -> None:
        if unfinished:
            for batch in self._open.values():
                self._pipeline.enqueue(batch)
            self._open.clear()
        self._pipeline.flush()

    def _call(self, batch: Batch) -> Call[SendResult]:
        if self._once is not None:
            number = self._numbers[batch.slot] = self._numbers.get(batch.slot, 0) + 1
            batch.completion = named_rpc_id(self._once, number)
        return self._broker.send_call(batch.slot, batch, self._detailed, batch.completion, "each")

    def _settle(self, batch: Batch, result: SendResult | RmqError) -> bool:
        """Record the result of a batch, and send its remaining messages until all are stored or refused."""
        first, part, waits = 0, 0, False
        while True:
            if isinstance(result, SendResult):
                first = self._record(batch, result, first)
                if first == len(batch):
                    return self._error is None
                part += 1
            elif self._blocks and not waits and isinstance(result, BacklogFullError):
                if batch.completion is None:
                    return self._store_in_parts(batch, first)
                waits = True  # a repeat in another process has the same calls, so the messages stay together
            else:
                break
            result = self._send_rest(batch, first, part, waits)
        full = isinstance(result, CollectionFullError | SumOutOfRangeError) and not self._blocks  # of the last one
        if full or isinstance(result, FixedTimePassedError):  # of all of them
            self._refuse(cast("RmqError", result), batch.originals(first))
            return self._error is None
        return self._fail(result, batch.originals(first))

    def _store_in_parts(self, batch: Batch, first: int) -> bool:
        """Send a batch, starting at one of its messages, in parts as space becomes free in the backlog."""
        sleep, rest = self._connections.runtime.sleep, batch[first:]
        stored, error = send_patiently(self._broker, batch.slot, rest, sleep, self._detailed, each=True)
        first = self._record(batch, stored, first)
        return self._error is None if error is None else self._fail(error, batch.originals(first))

    def _send_rest(self, batch: Batch, first: int, part: int, waits: bool) -> SendResult | RmqError:
        """Send a batch, starting at one of its messages; with `waits`, once the backlog has room for all of them."""
        rpc_id = batch.completion
        if rpc_id is not None and part:
            rpc_id = part_rpc_id(rpc_id, part)
        call = self._broker.send_call(batch.slot, batch[first:], self._detailed, rpc_id, "each")
        send = partial(self._connections.run, call)
        try:
            if waits:
                return wait_for_room(send, self._broker.topic.full_timeout_s, self._connections.runtime.sleep)
            return send()
        except RmqError as error:
            return error

    def _record(self, batch: Batch, result: SendResult, first: int = 0) -> int:
        """Record the stored and refused messages of a call; return the index of the first message that remains."""
        refused: Mapping[int, str] = result.refused if isinstance(result, PartlySent) else {}
        last = first + result.accepted + len(refused)
        for place, code in refused.items():
            doubtful = code == "RMQ_PAST" and isinstance(result, PartlySent) and result.repeated
            given = batch.originals(first + place, first + place + 1)
            self._refuse(self._refusal_of(batch, first + place, code), given, self._unknown if doubtful else None)
        self._stored += len(batch.originals(first, last)) - sum(
            len(batch.originals(first + place, first + place + 1)) for place in refused
        )
        self._new += result.new
        self._dropped += result.dropped
        self._outcomes.update(zip(batch.positions[first:last], result.outcomes, strict=False))
        self._ids.update(zip(batch.positions[first:last], result.ids, strict=False))
        return last

    def _refusal_of(self, batch: Batch, place: int, code: str) -> RmqError:
        if self._refusal is not None:  # one is told
            return self._refusal
        call = self._broker.send_call(batch.slot, batch[place : place + 1], False, named_rpc_id("", 1))
        value = batch[place].value if code == "RMQ_PAST" else 1
        return error_of(call, f"{code} {value}")

    def _refuse(self, error: RmqError, messages: list[Any], noted: list[Any] | None = None) -> None:
        """Record messages that were refused individually: the others are sent, unless too many were refused.

        A named call is always sent to its end: its repeat would get the same refusals and stop as early.
        """
        noted = self._not_stored if noted is None else noted
        self._refusal = self._refusal or error
        noted += messages
        if len(noted) > BUFFERED and self._once is None:
            self._error = self._error or error

    def _fail(self, error: RmqError, messages: list[Any]) -> bool:
        self._error = self._error or error
        unknown = isinstance(error, RedisUnavailableError | DurabilityError)
        (self._unknown if unknown else self._not_stored).extend(messages)
        return False

    def _left(self) -> Iterator[Any]:
        """Yield the messages that were taken but not sent, and the rows after them."""
        for batch in chain(self._pipeline.unsent(), self._open.values()):
            yield from batch.originals()
        yield from self._rows_left

    def _raise_error(self) -> None:
        error = self._error or self._refusal
        if error is None:
            return
        self._not_stored += self._left()
        raise with_details(error, self._stored, tuple(self._not_stored), tuple(self._unknown)) from error


def batch_size(topic: Topic) -> int:
    """Return the maximum number of messages of a script call.

    One call per slot is under way at a time. Topics with few slots get larger calls, to keep the server busy, except
    with a bounded backlog, which refuses a call as a whole, and with `merge`, whose messages cost several times more.
    """
    if topic.merge is not None and isinstance(topic.merge.reduce, Collect):
        return max(16, min(BATCH, COLLECTED_BYTES // topic.merge.reduce.max_bytes))  # a call reads what is collected
    if topic.max_backlog_per_slot or topic.merge is not None:
        return BATCH
    return max(BATCH, min(MAX_BATCH, BATCH * CALLS_IN_FLIGHT // topic.slots))


def with_details(error: RmqError, stored: int, not_stored: tuple[Any, ...], unknown: tuple[Any, ...] = ()) -> SendError:
    kind = type(error) if isinstance(error, SendError) else SendError
    text = f"{error} ({counted(stored, 'message')} stored, {len(not_stored)} not stored, {len(unknown)} unknown)"
    return kind(text, topic=error.topic, slot=error.slot, stored=stored, not_stored=not_stored, unknown=unknown)


T = TypeVar("T")
Sleep = Callable[[float], None]
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


def blocks(topic: Topic) -> bool:
    """Return whether sends to this topic wait for room."""
    return topic.when_full is WhenFull.BLOCK and topic.max_backlog is not None


def send_patiently(
    slots: QueueBroker,
    slot: int,
    messages: Sequence[EncodedMessage],
    sleep: Sleep,
    detailed: bool = False,
    *,
    each: bool = False,
) -> tuple[SendResult, RmqError | None]:
    """Store messages of one slot in order, in parts as space becomes free in the backlog.

    Args:
        slots: The topic; its `full_timeout` limits the wait since the last part that was stored.
        slot: Number of the slot.
        messages: The messages, of one slot, at most `MAX_BATCH`.
        sleep: Waits for a number of seconds.
        detailed: Also return per message whether it was new.
        each: Refuse messages whose time has passed individually: then the result is a `PartlySent`.

    Returns:
        The result of the stored messages, and the error because of which the others were not stored, or `None`.
    """
    timeout_s = slots.topic.full_timeout_s
    stored, size = SendResult(0, 0), len(messages)
    until_s, pause_s = monotonic_s() + timeout_s, _SHORTEST_PAUSE_S
    while (done := _done(stored)) < len(messages):
        part = messages[done : done + size]
        try:
            stored = add_up(stored, slots.send(slot, part, detailed, each=each))
        except BacklogFullError as full:
            if len(part) > 1:  # a part of it may fit, or merge
                size = max(1, min(full.room, len(part) - 1))
                continue
            if monotonic_s() >= until_s:
                return stored, _timed_out(full, timeout_s)
            sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except RmqError as error:
            if not (each and isinstance(error, FixedTimePassedError)):
                return stored, error
            refused, outcomes = dict.fromkeys(range(len(part)), "RMQ_PAST"), (False,) * len(part) if detailed else ()
            stored = add_up(stored, PartlySent(0, 0, outcomes, done=len(part), refused=refused))
        else:
            size, until_s, pause_s = len(messages), monotonic_s() + timeout_s, _SHORTEST_PAUSE_S
    return stored, None


def wait_for_room(send: Callable[[], T], timeout_s: float, sleep: Sleep) -> T:
    """Repeat a send until the backlog has room for all of its messages.

    Raises:
        BacklogFullError: The backlog had no room for `timeout_s`.
    """
    until_s, pause_s = monotonic_s() + timeout_s, _SHORTEST_PAUSE_S
    while True:
        try:
            return send()
        except BacklogFullError as full:
            if monotonic_s() >= until_s:
                raise _timed_out(full, timeout_s) from full
        sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def add_up(first: SendResult, second: SendResult) -> SendResult:
    """Combine the results of two sends, with the messages of the first one first."""
    total = SendResult(
        first.new + second.new,
        first.merged + second.merged,
        first.outcomes + second.outcomes,
        first.ids + second.ids,
        first.dropped + second.dropped,
    )
    done, refused = _done(first), dict(first.refused) if isinstance(first, PartlySent) else {}
    if isinstance(second, PartlySent):
        refused |= {done + place: code for place, code in second.refused.items()}
    if not refused:
        return total
    repeated = any(each.repeated for each in (first, second) if isinstance(each, PartlySent))
    parts = (total.new, total.merged, total.outcomes, total.ids, total.dropped)
    return PartlySent(*parts, done=done + _done(second), refused=refused, repeated=repeated)


def _done(result: SendResult) -> int:
    return result.done if isinstance(result, PartlySent) else result.accepted


def _timed_out(full: BacklogFullError, timeout_s: float) -> BacklogFullError:
    error = BacklogFullError(f"no room within {timeout_s:g} s: {full}", topic=full.topic, slot=full.slot)
    error.room = full.room
    return error
