"""Sends messages: one at a time, or millions in a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from rmq._model.envelope import unwrap, wrap
from rmq._model.messages import Encoded, Message, encode
from rmq._model.observers import Observers
from rmq._model.replies import SendResult
from rmq._model.topics import Topic, TopicType
from rmq._scripts.claiming import MAX_BATCH
from rmq._sending.backpressure import blocks, send_patiently
from rmq._sending.pipeline import BATCH_BYTES, Pipeline, RoundSize
from rmq._slots.slots import SlotWriter
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq.errors import (
    BacklogFullError,
    DurabilityError,
    InvalidBatchError,
    InvalidMessageError,
    RedisUnavailableError,
    RmqError,
    SendError,
)

BATCH = 500
"""Messages per script call; more where a topic has few slots, see `batch_size`."""

CALLS_IN_FLIGHT = 4
"""Most script calls per round trip, each to another slot; while one is under way, the next is put together."""

BUFFERED_BYTES = 64 * BATCH_BYTES
"""Most bytes of contents and bodies held back to fill batches."""

BUFFERED = 20_000
"""Most messages held back to fill batches, over all slots."""

ROUND = RoundSize(CALLS_IN_FLIGHT * BATCH, CALLS_IN_FLIGHT * BATCH_BYTES)


class Producer:
    """Sends to one topic. Thread-safe.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        observers: Who watches.
        slots: The slots themselves; those of the topic by default.
    """

    def __init__(
        self,
        connections: Connections,
        topic: Topic,
        observers: Observers | None = None,
        slots: SlotWriter | None = None,
    ) -> None:
        self._observers = observers or Observers()
        self._connections = connections
        self._slots = slots or SlotWriter(connections, topic)
        self._blocks = blocks(topic)
        self._appends = topic.type is TopicType.STREAM
        self.topic = topic

    def send(self, message: Message) -> SendResult:
        """Send one message.

        Returns:
            One new or one merged; on a stream topic with the entry's id.

        Raises:
            InvalidMessageError: The message breaks a rule; nothing was sent.
            SendError: It was refused and not stored: `FixedTimePassedError`, `BacklogFullError`, `MemoryFullError`.
            DurabilityError: Stored on the master, but not as safe as the client asked for. Sending again is safe.
            RedisUnavailableError: No answer until the deadline: stored or not. Sending again is safe.

        Guarantee: atomic; repeated by itself after a lost reply, which is safe, since a repeated send merges.
        On a stream topic it can append the entry twice.
        """
        encoded = encode(self.topic, message)
        if not self._observers.all:
            return self._send(encoded, message)
        with self._observers.sending(self.topic, 1) as trace:
            return self._send(self._traced(encoded, trace), message)

    def _send(self, encoded: Encoded, message: Message) -> SendResult:
        try:
            if self._blocks:
                result, error = send_patiently(self._slots, encoded.slot, (encoded,), self._connections.blocking.sleep)
                if error is not None:
                    raise error
                return result
            return self._connections.run(self._slots.send_call(encoded.slot, (encoded,), self._appends))
        except DurabilityError as error:
            raise _with_details(error, 0, (), (message,)) from None
        except SendError as error:
            raise _with_details(error, 0, (message,)) from None

    def send_many(self, messages: Iterable[Message], *, outcomes: bool = False) -> SendResult:
        """Send any number of messages in bounded memory, grouped by slot, several calls in flight.

        Args:
            messages: Any iterable; it is read as fast as Redis takes the messages.
            outcomes: Also say per message whether it was new, and on a stream topic its id; takes memory per message.

        Returns:
            How many were new and merged; zero and zero for no messages.

        Raises:
            InvalidBatchError: A message breaks a rule. Like all errors here, it says how many messages
                were stored and which of those taken from the iterable were not; the rest was not touched.
            SendError: Messages were refused, or their reply was lost (`unknown`).
            DurabilityError: Messages are stored, but not as safe as the client asked for (`unknown`).

        Guarantee: atomic per call of up to 1,000 messages of one slot. The order within a slot is kept, also where
            calls are refused and repeated; nothing is stored behind a call of its slot that failed.
        """
        if not self._observers.all:
            return self._send_stream(messages, outcomes)
        with self._observers.sending(self.topic, 0) as trace:
            return self._send_stream(messages, outcomes, trace)

    def _traced(self, encoded: Encoded, trace: str) -> Encoded:
        """Return a message with the trace context before its body; an entry of a stream has none."""
        if not trace or self.topic.type is TopicType.STREAM:
            return encoded
        return encoded._replace(body=wrap(unwrap(encoded.body)[0], trace))

    def _send_stream(self, messages: Iterable[Message], outcomes: bool, trace: str = "") -> SendResult:
        stream = _Stream(self._connections, self._slots, outcomes, self._blocks)
        try:
            for message in messages:
                try:
                    encoded = encode(self.topic, message)
                    if trace:
                        encoded = self._traced(encoded, trace)
                except InvalidMessageError as error:
                    raise stream.abandoned(error, message) from error
                stream.add(encoded, message)
            return stream.finish()
        finally:
            stream.collect()  # whatever ended this, no reply stays behind


@dataclass(slots=True)
class _Batch:
    """Messages of one slot on their way into one call.

    Attributes:
        slot: Number of the slot.
        encoded: The messages.
        messages: The messages as the user gave them.
        positions: Their positions in the stream, where outcomes are asked for.
        size_bytes: Size of their contents and bodies.
    """

    slot: int
    encoded: list[Encoded] = field(default_factory=list["Encoded"])
    messages: list[Message] = field(default_factory=list["Message"])
    positions: list[int] = field(default_factory=list[int])
    size_bytes: int = 0


class _Stream:
    """The state of one `send_many`."""

    def __init__(self, connections: Connections, slots: SlotWriter, outcomes: bool, blocks: bool) -> None:
        self._connections = connections
        self._slots = slots
        self._detailed = outcomes
        self._blocks = blocks
        self._round_size = min(CALLS_IN_FLIGHT, slots.topic.slots)
        self._pipeline = Pipeline[_Batch](connections, slots.topic, ROUND, self._call, self._settle)
        self._batch_size = batch_size(slots.topic)
        self._open: dict[int, _Batch] = {}
        self._taken = self._buffered = self._buffered_bytes = self._new = self._stored = self._dropped = 0
        self._outcomes: dict[int, bool] = {}
        self._ids: dict[int, str] = {}
        self._not_stored: list[Message] = []
        self._unknown: list[Message] = []
        self._error: RmqError | None = None
        self.collect = self._pipeline.collect

    def add(self, encoded: Encoded, message: Message) -> None:
        batch = self._open.get(encoded.slot)
        if batch is None:
            batch = self._open[encoded.slot] = _Batch(encoded.slot)
        batch.encoded.append(encoded)
        batch.messages.append(message)
        if self._detailed:
            batch.positions.append(self._taken)
        size_bytes = len(encoded.content)
        if encoded.body is not None:
            size_bytes += len(encoded.body)
        batch.size_bytes += size_bytes
        self._buffered_bytes += size_bytes
        self._taken += 1
        self._buffered += 1
        if len(batch.encoded) == self._batch_size or batch.size_bytes >= BATCH_BYTES:
            lane = self._pipeline.queue(self._open.pop(encoded.slot))
            self._buffered -= len(batch.encoded)
            self._buffered_bytes -= batch.size_bytes
            if lane.number >= self._round_size:
                self._pipeline.send(lane)
        elif self._buffered >= BUFFERED or self._buffered_bytes >= BUFFERED_BYTES:
            self._flush()
        if self._error is not None:
            self._flush()  # what others than the server that has failed can store
            self.collect()
            self._raise_error()

    def finish(self) -> SendResult:
        self._flush()
        self.collect()
        self._raise_error()
        outcomes = tuple(self._outcomes[index] for index in range(self._taken)) if self._detailed else ()
        ids = tuple(self._ids[index] for index in range(self._taken)) if self._ids else ()
        return SendResult(self._new, self._stored - self._new, outcomes, ids, self._dropped)

    def abandoned(self, error: InvalidMessageError, message: Message) -> InvalidBatchError:
        """Stop before an invalid message and say what was stored."""
        self.collect()
        return InvalidBatchError(
            f"message {self._taken + 1} of send_many: {error}",
            topic=self._slots.topic.name,
            stored=self._stored,
            not_stored=(*self._not_stored, *self._left(), message),
            unknown=tuple(self._unknown),
        )

    def _flush(self) -> None:
        for batch in self._open.values():
            self._pipeline.queue(batch)
        self._open = {}
        self._buffered = self._buffered_bytes = 0
        self._pipeline.flush()

    def _call(self, batch: _Batch) -> Call[SendResult]:
        return self._slots.send_call(batch.slot, batch.encoded, self._detailed)

    def _settle(self, batch: _Batch, result: SendResult | RmqError) -> bool:
        if isinstance(result, SendResult):
            return self._book(batch, result)
        if not self._blocks or not isinstance(result, BacklogFullError):
            return self._fail(result, batch.messages)
        stored, error = send_patiently(
            self._slots, batch.slot, batch.encoded, self._connections.blocking.sleep, self._detailed
        )
        self._book(batch, stored)
        return error is None or self._fail(error, batch.messages[stored.accepted :])

    def _book(self, batch: _Batch, result: SendResult) -> bool:
        self._stored += result.accepted
        self._new += result.new
        self._dropped += result.dropped
        self._outcomes.update(zip(batch.positions, result.outcomes, strict=False))
        self._ids.update(zip(batch.positions, result.ids, strict=False))
        return True

    def _fail(self, error: RmqError, messages: list[Message]) -> bool:
        self._error = self._error or error
        unknown = isinstance(error, RedisUnavailableError | DurabilityError)
        (self._unknown if unknown else self._not_stored).extend(messages)
        return False

    def _left(self) -> Iterator[Message]:
        """Yield what was taken and not sent."""
        for batch in chain(self._pipeline.unsent(), self._open.values()):
            yield from batch.messages

    def _raise_error(self) -> None:
        if self._error is None:
            return
        self._not_stored += self._left()
        raise _with_details(self._error, self._stored, tuple(self._not_stored), tuple(self._unknown)) from self._error


def batch_size(topic: Topic) -> int:
    """Return how many messages go into one script call.

    Of each slot one call is under way. Where a topic has few slots, calls are larger, to keep its server at work.
    A bounded backlog refuses a call as a whole, so there they are not.
    """
    if topic.max_backlog_per_slot:
        return BATCH
    return max(BATCH, min(MAX_BATCH, BATCH * CALLS_IN_FLIGHT // topic.slots))


def _with_details(
    error: RmqError, stored: int, not_stored: tuple[Message, ...], unknown: tuple[Message, ...] = ()
) -> SendError:
    kind = type(error) if isinstance(error, SendError) else SendError
    text = f"{error} ({stored} messages stored, {len(not_stored)} not stored, {len(unknown)} unknown)"
    return kind(text, topic=error.topic, slot=error.slot, stored=stored, not_stored=not_stored, unknown=unknown)
