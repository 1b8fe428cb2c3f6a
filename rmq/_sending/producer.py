"""Sends messages: one at a time, or millions in a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rmq.backpressure import blocks, send_patiently
from rmq.connections import Connections
from rmq.envelope import unwrap, wrap
from rmq.errors import (
    BacklogFullError,
    DurabilityError,
    InvalidBatchError,
    InvalidMessageError,
    RedisUnavailableError,
    RmqError,
    SendError,
)
from rmq.messages import Encoded, Message, encode
from rmq.observing import Observers
from rmq.results import SendResult
from rmq.slot import SlotWriter
from rmq.topics import Topic, TopicType

BATCH = 500
"""Messages per script call."""

BATCH_BYTES = 1_048_576
"""A batch is sent before it grows beyond this."""

CALLS_IN_FLIGHT = 4
"""Script calls per round trip; while one round is under way, the next is put together."""

BUFFERED = 20_000
"""Most messages held back to fill batches, over all slots."""


class Producer:
    """Sends to one topic. Thread-safe.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        observers: Who watches.
    """

    def __init__(self, connections: Connections, topic: Topic, observers: Observers | None = None) -> None:
        self._observers = observers or Observers()
        self._connections = connections
        self._slots = SlotWriter(connections, topic)
        self._blocks = blocks(topic)
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
            return self._slots.send(encoded.slot, (encoded,), self.topic.type is TopicType.STREAM)
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

        Guarantee: atomic per call of up to 500 messages of one slot. The order within a slot is kept.
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
    """Messages of one slot on their way into one call."""

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
        self._open: dict[int, _Batch] = {}
        self._ready: list[tuple[int, _Batch]] = []
        self._under_way: tuple[list[tuple[int, _Batch]], Callable[[], list[Any]]] | None = None
        self._taken = self._buffered = self._new = self._stored = self._dropped = 0
        self._outcomes: dict[int, bool] = {}
        self._ids: dict[int, str] = {}
        self._not_stored: list[Message] = []
        self._unknown: list[Message] = []
        self._error: RmqError | None = None

    def add(self, encoded: Encoded, message: Message) -> None:
        batch = self._open.get(encoded.slot)
        if batch is None:
            batch = self._open[encoded.slot] = _Batch()
        batch.encoded.append(encoded)
        batch.messages.append(message)
        if self._detailed:
            batch.positions.append(self._taken)
        batch.size_bytes += len(encoded.content) + len(encoded.body or b"")
        self._taken += 1
        self._buffered += 1
        if len(batch.encoded) == BATCH or batch.size_bytes >= BATCH_BYTES:
            self._ready.append((encoded.slot, self._open.pop(encoded.slot)))
            if len(self._ready) == CALLS_IN_FLIGHT:
                self._send_ready()
        elif self._buffered >= BUFFERED:
            self._flush()

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
        for batch in [*(batch for _, batch in self._ready), *self._open.values()]:
            self._not_stored += batch.messages
        return InvalidBatchError(
            f"message {self._taken + 1} of send_many: {error}",
            topic=self._slots.topic.name,
            stored=self._stored,
            not_stored=(*self._not_stored, message),
            unknown=tuple(self._unknown),
        )

    def _flush(self) -> None:
        self._ready += self._open.items()
        self._open = {}
        while self._ready:
            self._send_ready()

    def _send_ready(self) -> None:
        size = self._apart() if self._blocks else CALLS_IN_FLIGHT
        round_, self._ready = self._ready[:size], self._ready[size:]
        self._buffered -= sum(len(batch.encoded) for _, batch in round_)
        calls = [self._slots.send_call(slot, batch.encoded, self._detailed) for slot, batch in round_]
        self.collect()  # only now: Redis worked while these batches were put together, and the order is kept
        if self._error is not None:
            self._ready = round_ + self._ready
            self._raise_error()
        self._under_way = (round_, self._connections.submit(calls))

    def _apart(self) -> int:
        """Return how many of the next batches go to slots of their own: one that waits must not be overtaken."""
        slots: set[int] = set()
        for slot, _ in self._ready[:CALLS_IN_FLIGHT]:
            if slot in slots:
                break
            slots.add(slot)
        return len(slots)

    def collect(self) -> None:
        """Wait for the round under way and book what it stored."""
        if self._under_way is None:
            return
        (round_, results), self._under_way = self._under_way, None
        for (slot, batch), result in zip(round_, results(), strict=True):
            if isinstance(result, SendResult):
                self._book(batch, result)
            elif self._blocks and isinstance(result, BacklogFullError):
                stored, error = send_patiently(
                    self._slots, slot, batch.encoded, self._connections.blocking.sleep, self._detailed
                )
                self._book(batch, stored)
                if error is not None:
                    self._fail(error, batch.messages[stored.accepted :])
            else:
                self._fail(result, batch.messages)

    def _book(self, batch: _Batch, result: SendResult) -> None:
        self._stored += result.accepted
        self._new += result.new
        self._dropped += result.dropped
        self._outcomes.update(zip(batch.positions, result.outcomes, strict=False))
        self._ids.update(zip(batch.positions, result.ids, strict=False))

    def _fail(self, error: RmqError, messages: list[Message]) -> None:
        self._error = self._error or error
        unknown = isinstance(error, RedisUnavailableError | DurabilityError)
        (self._unknown if unknown else self._not_stored).extend(messages)

    def _raise_error(self) -> None:
        if self._error is None:
            return
        for batch in [*(batch for _, batch in self._ready), *self._open.values()]:
            self._not_stored += batch.messages
        raise _with_details(self._error, self._stored, tuple(self._not_stored), tuple(self._unknown)) from self._error


def _with_details(
    error: RmqError, stored: int, not_stored: tuple[Message, ...], unknown: tuple[Message, ...] = ()
) -> SendError:
    kind = type(error) if isinstance(error, SendError) else SendError
    text = f"{error} ({stored} messages stored, {len(not_stored)} not stored, {len(unknown)} unknown)"
    return kind(text, topic=error.topic, slot=error.slot, stored=stored, not_stored=not_stored, unknown=unknown)
