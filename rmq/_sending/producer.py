"""Producers: send messages one at a time, or any number in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from rmq._broker.broker import QueueBroker
from rmq._broker.sends import MERGES_AGAIN
from rmq._io.observers import Observers
from rmq._model.batches import EncodedMessage, Row, Rows
from rmq._model.display import brief
from rmq._model.encoding import Column, Encoder
from rmq._model.messages import Message, payload_bytes
from rmq._model.replies import SendResult
from rmq._model.times import Duration, Instant
from rmq._model.topics import Topic, TopicType
from rmq._sending.batch_sender import BatchSender, SendOptions, blocks, wait_for_room, with_details
from rmq._transport.connections import Connections
from rmq._transport.rpc_ids import RpcId, named_rpc_id
from rmq.errors import DurabilityError, InvalidValueError, SendError

MAX_ONCE = 200
"""Maximum length of the name of a call."""

Source = Callable[[Callable[[], None]], Iterable[Any]]
"""Returns messages, or values that become messages. Its argument is a function that waits for the calls in flight."""


class Producer:
    """Sends to one topic. Thread-safe.

    Args:
        connections: The connections to the topic's servers.
        topic: The registered definition.
        observers: Observers of sends.
        again: Topics without `merge=`: a sentence for errors about `durability` on the effect of repeating a send.

    Examples:
        >>> producer = client.producer(Topic("jobs", TopicType.PRIORITY, slots=8))
        >>> producer.send(PriorityMessage("job:1", 5)).new
        1
        >>> producer.send_many(PriorityMessage(f"job:{number}", 5) for number in range(1_000)).merged
        1
    """

    def __init__(
        self, connections: Connections, topic: Topic, observers: Observers | None = None, again: str = MERGES_AGAIN
    ) -> None:
        self._observers = observers or Observers()
        self._connections = connections
        self._broker = QueueBroker(connections, topic, again)
        self._encoder = Encoder(topic)
        self._blocks = blocks(topic)
        self._appends = topic.type is TopicType.STREAM
        self.topic = topic

    def send(self, message: Message, *, once: str | None = None) -> SendResult:
        """Send one message.

        Args:
            message: The message.
            once: Topics with `merge=`: a name for this call, 1 to 200 characters. Another call of this name within an
                hour, by any process, changes nothing and returns the same result. Each slot keeps its own names: a call
                with another content is refused if that content is in the same slot; otherwise it is a different call.

        Returns:
            One new or one merged message; on a stream topic, also the id of the entry.

        Raises:
            InvalidMessageError: The message breaks a rule; nothing was sent.
            InvalidValueError: `once` is not a valid name, or is used on a topic without `merge=`.
            SendError: The message was refused and not stored: `FixedTimePassedError`, `BacklogFullError`,
                `MemoryFullError`, or `CallChangedError` if the call of this name sent another content or value.
            DurabilityError: The message is stored on the master, but `durability` was not confirmed.
            RedisUnavailableError: Redis did not answer before the deadline; the message may be stored. For the effect
                of sending it again after this error or `DurabilityError`, see `SendError.unknown`.

        Guarantee: atomic; repeated automatically after a lost reply. The repeat merges with the message, or adds it
        again if it was claimed meanwhile. On topics with `merge=`, sends are numbered, and each counts once. On a
        stream topic, a repeat can append the entry twice.
        """
        encoded = self._encoder.one(message)
        rpc_id = None if once is None else named_rpc_id(self._checked(once), 1)
        if not self._observers.all:
            return self._send(encoded, message, rpc_id)
        with self._observers.sending(self.topic, 1) as trace:
            return self._send(self._encoder.traced(encoded, trace), message, rpc_id)

    def _checked(self, once: str) -> str:
        """Return the name of a call if it is valid and the topic takes one."""
        if not isinstance(once, str) or not 1 <= len(once) <= MAX_ONCE:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"once is {brief(once, 80)}; it must be a name of 1 to {MAX_ONCE} characters")
        payload_bytes(once, "once")
        if self.topic.merge is None:
            raise InvalidValueError(
                f"once is {once!r:.80}; it needs a topic with merge=, and topic {self.topic.name} has none"
            )
        return once

    def _send(self, encoded: EncodedMessage, message: Message, rpc_id: RpcId | None) -> SendResult:
        call = self._broker.send_call(encoded.slot, (encoded,), self._appends, rpc_id)
        send = partial(self._connections.run_shared, call, len(encoded.content) + len(encoded.body or b""))
        try:
            if self._blocks:
                runtime, timeout_s = self._connections.runtime, self.topic.full_timeout_s
                kind = self.topic.name, "wait for room"
                return runtime.limited(kind, lambda: wait_for_room(send, timeout_s, runtime.sleep))
            return send()
        except DurabilityError as error:
            raise with_details(error, 0, (), (message,)) from None
        except SendError as error:
            raise with_details(error, 0, (message,)) from None

    def send_many(
        self, messages: Iterable[Message], *, outcomes: bool = False, fold: bool = False, once: str | None = None
    ) -> SendResult:
        """Send any number of messages in bounded memory, grouped by slot, with several calls in flight.

        Args:
            messages: Any iterable; it is read as fast as Redis takes the messages.
            outcomes: Also return for each message whether it was new, and on a stream topic its id. This takes memory
                for each message.
            fold: Topics with `merge=`: fold messages of one content by the topic's reducer before they are sent. The
                result is the same, with fewer messages sent. Cannot be combined with `outcomes`.
            once: Topics with `merge=`: a name for this call, as for `send`. A repeat must send the same messages in
                the same order, with the same `fold`. Each slot checks only its own messages: if a repeat has other
                messages, one slot may refuse its part while another one stores messages that are new to it.

        Returns:
            Number of new and merged messages; zero and zero for no messages.

        Raises:
            InvalidValueError: `fold` or `once` is used on a topic without `merge=`, `fold` is combined with `outcomes`,
                or `once` is not a valid name.
            InvalidBatchError: A message breaks a rule. Like all errors here, it says how many messages were stored and
                which of those taken from the iterable were not; the rest of the iterable was not read.
            SendError: Messages were refused, or their reply was lost (`unknown`). Messages that exceed the bounds of a
                `Collect` or the range of a `Sum`, or whose fixed time has passed, are refused individually
                (`not_stored`): all others are sent, up to 20,000 refusals; with `once`, without this limit.
            DurabilityError: Messages are stored, but `durability` was not confirmed (`unknown`).

        Guarantee: atomic per call of up to 1,000 messages of one slot. The order within a slot is kept, even if calls
            are refused and repeated; no message is stored after a failed call to its slot.
        """
        return self._send_from(lambda _: messages, outcomes, SendOptions(once, fold))

    def send_columns(
        self,
        contents: Column,
        *,
        time_range: Duration | Column | None = None,
        priorities: int | Column | None = None,
        fixed_times: Instant | Column | None = None,
        delays: Duration | Column | None = None,
        bodies: Column | None = None,
        slot_bases: Column | None = None,
        outcomes: bool = False,
    ) -> SendResult:
        """Send many messages from columns, as `send_many` does, but without an object for each message.

        A column is a list, a tuple or an Arrow array, with one value for each message (row). Text and bytes, whole
        numbers of ms and whole priorities are fastest; other values that messages take are accepted, too.

        Args:
            contents: Contents, each `str` or `bytes`.
            time_range: RANGE_MERGE topics: one merge window for all rows, a `timedelta` or a text such as "5s"; or a
                column of these, or of numbers of ms.
            priorities: PRIORITY topics: a column of whole numbers, or one number for all rows.
            fixed_times: FIXED_TIME topics: one aware `datetime` for all rows; or a column of these, or of epoch ms.
            delays: FIXED_TIME topics, instead of `fixed_times`: one delay for all rows, a `timedelta` or a text such as
                "10s"; or a column of these, or of numbers of ms.
            bodies: Bodies, `None` for a row without one; on a topic with `merge=`, values that its reducer takes.
            slot_bases: Slot bases, from which slots are computed instead of the contents; `None` for a row without one.
            outcomes: Also return for each row whether its message was new, and on a stream topic its id.

        Returns:
            Number of new and merged messages; zero and zero for no rows.

        Raises:
            InvalidBatchError: A row breaks a rule; the error names the row and the rule, and nothing was sent.
            InvalidValueError: A column has another number of values than `contents`, or the topic does not take it.
                A topic that joins parts or merges by `Newest` takes no columns.
            SendError: As for `send_many`; `not_stored` and `unknown` are row numbers, from 0.
            DurabilityError: As for `send_many`; `unknown` has row numbers.

        Guarantee: as for `send_many`; the order of rows is kept within a slot.
        """
        values = {"time_range": time_range, "priorities": priorities, "fixed_times": fixed_times, "delays": delays}
        rows = self._encoder.columns(contents, values, bodies, slot_bases)
        sender = BatchSender(self._connections, self._broker, outcomes, self._blocks, SendOptions())
        if not self._observers.all:
            return _sent(sender, lambda: sender.take_rows(rows))
        with self._observers.sending(self.topic, len(rows)) as trace:
            if trace:
                rows = Rows.of([self._encoder.traced(row, trace) for row in rows])
            return _sent(sender, lambda: sender.take_rows(rows))

    def _send_from(
        self, source: Source, outcomes: bool, calls: SendOptions, make: Callable[[Any], Message] | None = None
    ) -> SendResult:
        if calls.fold and (outcomes or self.topic.merge is None):
            why = "messages with outcomes cannot be folded" if outcomes else f"topic {self.topic.name} has no merge="
            raise InvalidValueError(f"fold is {calls.fold!r}, but {why}")
        if calls.once is not None:
            calls = replace(calls, once=self._checked(calls.once))
        sender = BatchSender(self._connections, self._broker, outcomes, self._blocks, calls)
        if not self._observers.all:
            return self._send_values(sender, source(sender.collect), make)
        with self._observers.sending(self.topic, 0) as trace:
            return self._send_values(sender, source(sender.collect), make, trace)

    def _send_values(
        self, sender: BatchSender, values: Iterable[Any], make: Callable[[Any], Message] | None, trace: str = ""
    ) -> SendResult:
        encoder = self._encoder
        encode: Callable[[Message], Row] = encoder.row
        if trace:
            encode = lambda message: encoder.traced(encoder.one(message), trace)  # noqa: E731
        if make is None:
            return _sent(sender, lambda: sender.take(values, encode))
        return _sent(sender, lambda: sender.take(values, lambda value: encode(make(value))))


def send_from(
    producer: Producer, source: Source, outcomes: bool, calls: SendOptions, make: Callable[[Any], Message] | None = None
) -> SendResult:
    """Send the elements of a source, as `send_many`. `make` converts an element to a message, or raises its error."""
    return producer._send_from(source, outcomes, calls, make)  # pyright: ignore[reportPrivateUsage]


def _sent(sender: BatchSender, take: Callable[[], None]) -> SendResult:
    """Take all messages, send them, and return the result."""
    try:
        take()
        return sender.finish()
    finally:
        sender.collect()  # read all outstanding replies, even after an error, so that the connection can be reused
