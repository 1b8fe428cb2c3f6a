"""A queue of values that become due after a delay, with a blocking take, like Java's DelayQueue.

The queue is a FIXED_TIME topic, so delivery is at least once: a value that was taken but not finished is redelivered
when its lease expires. The content of a message is the encoded value, with a random id in front so that equal values
stay separate elements. With `merge=True` there is no id: values with the same bytes are one element.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import repeat
from struct import Struct
from typing import Any, Generic, Self

from rmq._admin.control import Control
from rmq._admin.inspection import Inspection
from rmq._broker.claims import MAX_BATCH
from rmq._claiming.consumer import Consumer, checked_poll
from rmq._claiming.prefetch import Prefetch
from rmq._io.reports import reporter
from rmq._model.codecs import Codec, encodes_alike
from rmq._model.deliveries import Delivery
from rmq._model.display import brief
from rmq._model.encoding import Encoder
from rmq._model.messages import FixedTimeMessage, Payload, payload_bytes
from rmq._model.replies import ControlResult, SendResult
from rmq._model.times import DURATION_RULE, Duration, monotonic_s, seconds, usual_ms
from rmq._model.topics import Topic, TopicType
from rmq._model.typed import PayloadClass, ValueT, decode_payload
from rmq._registry.audit import confirm_all
from rmq._sending.batch_sender import SendOptions
from rmq._sending.producer import Producer, send_from
from rmq.client import RmqClient
from rmq.errors import (
    InvalidBatchError,
    InvalidMessageError,
    InvalidTopicError,
    InvalidValueError,
    PayloadError,
    RmqError,
    SendError,
)

log = reporter("rmq.delayed")

pack_number = Struct(">I").pack

YEAR_MS = 365 * 86_400_000
"""Delays of up to this many ms are valid on every topic, so the full check is skipped."""

ID_BYTES = 12
"""Length of the id in front of a value. It is random, but for its last four bytes in `offer_many`, which count up. With
a billion values in a queue, one queue in 10^11 has two equal ids."""


USUAL_BYTES = 1_000
"""Values of up to this many bytes skip the full check, if the topic allows a content of this length and an id."""

OFFERED_AGAIN = "Offering a value again adds a second element, unless the queue has merge=True"
"""Effect of repeating an offer, for the text of errors. A repeated send would merge instead."""

_OFFERS = SendOptions(method=("offer_many", "value"))

Source = Callable[[Callable[[], None]], Iterable[tuple[Any, Duration]]]
"""Returns pairs of a value and its delay. Its argument is a function that waits for the calls in flight."""


class DelayedQueue(Generic[ValueT]):
    """A queue whose values become due after a delay. Thread-safe; use it as a context manager, or close it.

    Args:
        client: The client.
        name: Name of the queue, and of its topic.
        merge: Equal values are one element, and the last offer sets its due time. Without it, each offer is an element.
        slots: Number of slots of the queue, a power of two. With 1, values come in the order of their due times; with
            more, the order holds within each slot.
        lease: Time after which a taken value that is not finished is redelivered: a `timedelta` or a text such as
            "90s", whole seconds, 1 s to 24 h.
        payload: Class of the values: a dataclass, a msgspec struct or a pydantic model. By default they are `str` or
            `bytes`, and are returned as `bytes`. Each program sets its own; Redis does not store it.
        codec: Encodes the values; `JsonCodec()` by default. With `merge` it must encode equal values as equal bytes,
            since values are compared by their bytes.

    Raises:
        TopicMismatchError: The name is registered with another type or number of slots, or with a reducer.
        InvalidTopicError: `name`, `slots`, `lease`, `payload` or `codec` is invalid, or `merge` is used with a codec
            that encrypts, which encodes the same value differently each time.

    Examples:
        >>> with DelayedQueue(client, "reminders") as reminders:
        ...     reminders.offer("call ann", "50ms")
        ...     reminders.take(timeout=5)
        b'call ann'
    """

    def __init__(
        self,
        client: RmqClient,
        name: str,
        *,
        merge: bool = False,
        slots: int = 1,
        lease: Duration = timedelta(seconds=60),
        payload: PayloadClass[ValueT] | None = None,
        codec: Codec | None = None,
    ) -> None:
        topic = Topic(name, TopicType.FIXED_TIME, slots=slots, lease=lease)
        self._values = _Values(replace(topic, payload=payload, codec=codec), merge)
        self._connections, self.topic = client._registered(topic)  # pyright: ignore[reportPrivateUsage]
        self._merge = merge
        self._producer = Producer(self._connections, self.topic, again=OFFERED_AGAIN)
        self._ahead = Prefetch(Consumer(self._connections, self.topic), self._connections.runtime)
        self._connections.close_with_us(self._ahead)
        self._view = Inspection(self._connections, self.topic)
        self._control = Control(self._connections, self.topic)

    def offer(self, value: ValueT | Payload, delay: Duration) -> None:
        """Put a value into the queue.

        Args:
            value: `str` or `bytes`, not empty; with a payload class, an object of it.
            delay: Time until it is due, by Redis' clock: a `timedelta` or a text such as "10s"; "0s" for at once.

        Raises:
            InvalidMessageError: The value is too long, empty, of another type, or cannot be encoded; or the delay is
                not a duration.
            SendError: The value was refused and not stored: `BacklogFullError`, `MemoryFullError`. `not_stored` has the
                pair of value and delay.
            DurabilityError: The value is stored on the master, but `durability` was not confirmed; `unknown` has the
                pair.
            RedisUnavailableError: Redis did not answer before the deadline; the value may be stored. After this error
                or `DurabilityError`, offering the value again adds a second element, unless the queue has `merge`.

        Guarantee: retried automatically after a lost reply. That is safe, because the element keeps its id.
        """
        offered = (value, delay)
        try:
            self._producer.send(self._values.message(offered, b"" if self._merge else secrets.token_bytes(ID_BYTES)))
        except SendError as error:
            error.not_stored, error.unknown = ((offered,) if each else () for each in (error.not_stored, error.unknown))
            raise

    def offer_many(self, values: Iterable[tuple[ValueT | Payload, Duration]]) -> SendResult:
        """Put any number of values into the queue, in few calls and in bounded memory.

        Args:
            values: Pairs of a value and its delay, as for `offer`; any iterable, read as fast as Redis takes them.

        Returns:
            Number of new values, and of values that merged.

        Raises:
            InvalidBatchError: A value or a delay is invalid. The error names it and says how many were stored;
                `not_stored` has the pairs read so far that were not stored. A list or tuple is checked as a whole
                before anything is sent.
            SendError: Values were refused, or their reply was lost (`unknown`). The error says how many were stored;
                `not_stored` and `unknown` are pairs. Offering unknown values again may duplicate them without `merge`.

        Guarantee: as for `offer`; atomic per call of up to 1,000 values of one slot. Without `merge`, values of a slot
            that are due at the same time are returned in the order of the pairs.
        """
        if isinstance(values, list | tuple):
            self._check_all(values)
        return self._offer_from(lambda _: values)

    def _check_all(self, values: Sequence[tuple[Any, Duration]]) -> None:
        """Raise for the first invalid pair, before any pair is sent."""
        check, any_id = Encoder(self._producer.topic).row, b"" if self._merge else bytes(ID_BYTES)
        most_bytes = min(USUAL_BYTES, self.topic.max_content_bytes - len(any_id))
        for number, value in enumerate(values, 1):
            if not self._values.typed and _is_usual(value, most_bytes):
                continue
            try:
                check(self._values.message(value, any_id))
            except InvalidMessageError as error:
                text = f"value {number} of offer_many: {error}"
                raise InvalidBatchError(text, topic=self.topic.name, not_stored=tuple(values)) from error

    def _offer_from(self, source: Source) -> SendResult:
        ids: Iterator[bytes] = repeat(b"") if self._merge else _ids_in_order()
        return send_from(self._producer, source, False, _OFFERS, lambda value: self._values.message(value, next(ids)))

    def take(self, timeout: float | timedelta | None = None) -> ValueT:
        """Wait for a value, remove it from the queue, and return it.

        If the caller fails after this, the value is lost; use `taking` to prevent that. Acks are sent a moment later,
        several together. If the process is killed before that, the values are delivered again; if it ends normally,
        it sends the acks and releases the values that it claimed in advance.

        A value that does not decode as the payload class goes to the dead letters with a WARNING in the log, and the
        wait continues. The same holds for all methods that take values.

        Args:
            timeout: How long to wait, in seconds or as a `timedelta`; without limit by default.

        Raises:
            TimeoutError: No value became due within `timeout`.
            InvalidValueError: `timeout` is out of range.
            RedisUnavailableError: Redis did not answer before the deadline; a claimed value is redelivered when its
                lease expires.
            ClientClosedError: The queue or its client is closed, or was closed during the wait.

        Guarantee: an interrupted call loses nothing: a value is acked only after it was returned to the caller.
        """
        value = self._take(timeout)
        if value is None:
            raise TimeoutError(f"queue {self.topic.name}: nothing due within {seconds(timeout or 0, 'timeout'):g} s")
        return value

    def poll(self, timeout: float | timedelta = 0.0) -> ValueT | None:
        """Take a value as `take` does; return `None` if none becomes due within `timeout`; 0 does not wait."""
        return self._take(timeout)

    def take_many(self, max_values: int = 100, timeout: float | timedelta | None = None) -> list[ValueT]:
        """Wait for the first value; remove and return as many values as are due.

        As with `take`, acks are sent a moment later, and the values are lost if the caller fails after this.

        Args:
            max_values: Maximum number of values, 1 to 10,000; fewer are returned if they exceed 16 MiB.
            timeout: How long to wait for the first one, as for `take`; 0 does not wait.

        Returns:
            The values, within a slot in the order of their due times; empty if none became due within `timeout`.

        Raises:
            InvalidValueError: `max_values` or `timeout` is out of range.
            RedisUnavailableError: Redis did not answer before the deadline; claimed values are redelivered when their
                leases expire.
            ClientClosedError: As for `take`.

        Guarantee: as for `take`.
        """
        deliveries = self.claim_many(max_values, timeout)
        if deliveries:
            self._ahead.done(deliveries)
        return self._values.claimed(deliveries)

    @contextmanager
    def taking(self, timeout: float | timedelta | None = None) -> Generator[ValueT]:
        """Wait for a value and remove it from the queue when the block ends. An exception puts it back, as `put_back`.

        Args:
            timeout: As for `take`.

        Raises:
            TimeoutError: No value became due within `timeout`.
            InvalidValueError: As for `take`.
            LeaseLostError: The block took longer than the lease: another consumer may have the value, too.
            RedisUnavailableError: As for `take`.
            ClientClosedError: As for `take`.

        Guarantee: at least once: if the process dies inside the block, the value is redelivered.
        """
        delivery = self.claim(timeout)
        try:
            yield self.value_of(delivery)
        except BaseException as error:
            self.put_back(delivery, error)
            raise
        self.finish(delivery)

    def claim(self, timeout: float | timedelta | None = None) -> Delivery:
        """Wait for a value and claim it; end with `finish` or `put_back`. Arguments and errors are those of `take`."""
        delivery = self.claim_soon(timeout)
        if delivery is None:
            raise TimeoutError(f"queue {self.topic.name}: nothing due within {seconds(timeout or 0, 'timeout'):g} s")
        return delivery

    def claim_soon(self, timeout: float | timedelta | None) -> Delivery | None:
        """Claim a value as `claim` does; return `None` if none becomes due within `timeout`."""
        deliveries = self._claim(timeout, 1)
        return deliveries[0] if deliveries else None

    def claim_many(self, max_values: int, timeout: float | timedelta | None) -> list[Delivery]:
        """Wait for the first value, and claim up to `max_values`. Arguments and errors are those of `take_many`."""
        return self._claim(timeout, checked_poll(max_values, "max_values"))

    def _claim(self, timeout: float | timedelta | None, most: int) -> list[Delivery]:
        """Wait for values that decode; bury the others."""
        until_s = _until(timeout)
        while deliveries := self._ahead.next(until_s, most):
            if readable := [delivery for delivery in deliveries if self._decode(delivery, deliveries)]:
                return readable
        return []

    def _decode(self, delivery: Delivery, deliveries: Sequence[Delivery]) -> bool:
        """Decode a value and return True; bury it if its bytes are invalid.

        Another error, such as a lack of memory, may be temporary: then all claimed values are put back.
        """
        if not self._values.typed:
            return True
        try:
            delivery.decoded = self._values.value(delivery.content)
        except PayloadError as error:
            log.warning("topic %s: a value that cannot be decoded goes to the dead letters: %s", self.topic.name, error)
            try:
                delivery.bury(error)
            except RmqError as trouble:
                log.warning(
                    "topic %s: a value could not be moved to the dead letters; it is redelivered when its lease "
                    "expires: %s",
                    self.topic.name,
                    trouble,
                )
            return False
        except Exception as error:
            for claimed in deliveries:
                if claimed.outcome is None:
                    self.put_back(claimed, error)
            raise
        return True

    def finish(self, delivery: Delivery) -> None:
        """Remove a claimed value from the queue.

        Raises:
            LeaseLostError: The lease has expired: another consumer may have the value, too.
            InvalidValueError: `delivery` was not claimed from this queue.
        """
        self._check_claimed(delivery)
        if not delivery.ack():
            delivery.raise_if_lost()

    def put_back(self, delivery: Delivery, error: BaseException) -> None:
        """Put a claimed value back into the queue as failed: it is due again after the retry delay of the topic.

        If it has no retries left (the topic has 16 by default), it goes to the dead letters instead. If the value
        cannot be put back, that is logged, and it is redelivered when its lease expires.

        Args:
            delivery: A result of `claim`.
            error: The reason, which is stored with the value.

        Raises:
            InvalidValueError: `delivery` was not claimed from this queue, or `error` is neither an exception nor text.
        """
        self._check_claimed(delivery)
        if not isinstance(error, BaseException | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"error is {brief(error, 100)}; it must be an exception or a str with the reason")
        try:
            delivery.nack(error=error)
        except RmqError as trouble:  # it must not hide the error
            log.warning(
                "topic %s: a value could not be put back; it is redelivered when its lease expires: %s",
                self.topic.name,
                trouble,
            )

    def keep(self, delivery: Delivery) -> None:
        """Remove a claimed value from the queue a moment later, together with others. Does not wait.

        Raises:
            InvalidValueError: `delivery` was not claimed from this queue.
        """
        self._check_claimed(delivery)
        self._ahead.done([delivery])

    def keep_many(self, deliveries: Sequence[Delivery]) -> None:
        """Remove several claimed values from the queue a moment later, as `keep` does, with the same errors."""
        self._check_claimed(*_several(deliveries))
        if deliveries:
            self._ahead.done(deliveries)

    def values_of(self, deliveries: Sequence[Delivery]) -> list[ValueT]:
        """Return the values of deliveries claimed from this queue. Raises `InvalidValueError` for any other."""
        self._check_claimed(*_several(deliveries))
        return self._values.claimed(deliveries)

    def value_of(self, delivery: Delivery) -> ValueT:
        """Return the value of a delivery claimed from this queue. Raises `InvalidValueError` for any other."""
        self._check_claimed(delivery)
        return self._values.claimed([delivery])[0]

    def _check_claimed(self, *deliveries: Delivery) -> None:
        for delivery in deliveries:
            if not isinstance(delivery, Delivery):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidValueError(f"delivery is {brief(delivery, 100)}; it must be one that `claim` returned")
            if delivery.topic.name != self.topic.name:
                raise InvalidValueError(
                    f"delivery is of topic {delivery.topic.name}; it must be one that `claim` of queue "
                    f"{self.topic.name} returned",
                    topic=self.topic.name,
                )

    def remove(self, value: ValueT | Payload) -> bool:
        """Remove a value that was not taken yet; return whether it was in the queue.

        Of equal values the one due first is removed. Without `merge` this searches the whole queue. Values of a payload
        class are equal if `==` is true or their bytes are the same; with `merge`, if their bytes are the same.

        Raises:
            InvalidMessageError: The value is of another type, or cannot be encoded.
            DurabilityError: The value was removed or not found, but `durability` was not confirmed.
        """
        encoded, equal = self._values.encoded(value), self._values.is_equal
        if any(self._ahead.remove(each.__eq__) for each in self._ahead.contents() if equal(each, value, encoded)):
            return True
        if self._merge:
            return self._control.cancel(encoded) is ControlResult.DONE
        for content in self._contents():
            if equal(content, value, encoded) and self._control.cancel(content) is ControlResult.DONE:
                return True
        confirm_all(self._connections, self.topic)
        return False

    def size(self) -> int:
        """Return the number of values in the queue, due or not, without those that are claimed."""
        stats = self._view.stats()
        return stats.backlog + stats.waiting + len(self._ahead.contents())

    def __len__(self) -> int:
        return self.size()

    def __iter__(self) -> Iterator[ValueT]:
        """Yield the values in the queue without taking them, slot by slot, in the order of their due times.

        Values that are offered or taken meanwhile may or may not be included. A value that does not decode is skipped,
        with a WARNING in the log.
        """
        for content in (*self._ahead.contents(), *self._contents()):
            try:
                value = self._values.value(content)
            except PayloadError as error:
                log.warning("topic %s: a value that cannot be decoded was skipped: %s", self.topic.name, error)
                continue
            yield value

    def close(self) -> None:
        """Stop claiming, send the last acks, and release values that were claimed in advance.

        May be called from any thread: calls that wait for a value raise `ClientClosedError`. Values in the queue are
        kept. Closing a client closes its queues.
        """
        self._ahead.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _take(self, timeout: float | timedelta | None) -> ValueT | None:
        delivery = self.claim_soon(timeout)
        if delivery is None:
            return None
        self._ahead.done([delivery])
        return self._values.claimed([delivery])[0]

    def _contents(self) -> Iterator[bytes]:
        for slot in range(self.topic.slots):
            for place in ("store", "retry"):
                for message in self._view.pages(slot, place, MAX_BATCH):
                    yield message.content


def offer_from(queue: DelayedQueue[Any], source: Source) -> SendResult:
    """Put the pairs that a source returns into a queue, as `offer_many` does."""
    return queue._offer_from(source)  # pyright: ignore[reportPrivateUsage]


def _until(timeout: float | timedelta | None) -> float | None:
    return None if timeout is None else monotonic_s() + seconds(timeout, "timeout")


def _is_usual(value: tuple[Payload, Duration], most_bytes: int) -> bool:
    """Return True if a pair is certainly valid, so that the full check, which costs more, can be skipped."""
    if type(value) is not tuple or len(value) != 2:
        return False
    content, delay = value
    usual = type(content) is bytes or (type(content) is str and content.isascii())
    return usual and 0 < len(content) <= most_bytes and 0 <= usual_ms(delay) < YEAR_MS


_NOT_DECODED = object()


def _several(deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
    if not isinstance(deliveries, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"deliveries is {brief(deliveries, 100)}; it must be a list that `claim_many` returned")
    return deliveries


class _Values:
    """Converts values to contents and back.

    Args:
        topic: The queue's topic, with the payload class and the codec of its values, which Redis does not store.
        merge: Whether equal values are one element. Then their contents have no id.

    Raises:
        InvalidTopicError: `merge` is used with a codec that encodes equal values differently.
    """

    def __init__(self, topic: Topic[Any], merge: bool) -> None:
        self._topic, self._merge = topic, merge
        self.typed = topic.typed is not None
        self._unproven = merge and self.typed
        if self._unproven and not encodes_alike(topic.codec):
            raise InvalidTopicError(
                f"queue {topic.name} has merge=True and {brief(topic.codec, 100)}: equal values merge by their bytes, "
                "but a codec that encrypts encodes the same value differently each time; use only one of the two",
                topic=topic.name,
            )

    def encoded(self, value: Any) -> bytes:
        """Return the bytes of a value, without an id. Raises `InvalidMessageError` if it is invalid."""
        if not self.typed:
            return payload_bytes(value, "value")
        encoded = self._topic.encode(value)
        if self._unproven:  # checks a user's own codec with the first value
            if self._topic.encode(value) != encoded:
                raise InvalidMessageError(
                    f"queue {self._topic.name} has merge=True, but its codec encoded one value differently the second "
                    "time, so equal values would never merge; use a codec with stable output",
                    topic=self._topic.name,
                )
            self._unproven = False
        return encoded

    def value(self, content: bytes) -> Any:
        """Return the value of a content; raise `PayloadError` if it does not decode."""
        raw = content if self._merge else content[ID_BYTES:]
        return decode_payload(self._topic.typed, self._topic.name, raw, "content") if self.typed else raw

    def claimed(self, deliveries: Sequence[Delivery]) -> list[Any]:
        """Return the values of deliveries, decoding each only once; raises as `value`."""
        if not self.typed:
            start = 0 if self._merge else ID_BYTES
            return [delivery.content[start:] for delivery in deliveries]
        decoded = ((delivery, getattr(delivery, "decoded", _NOT_DECODED)) for delivery in deliveries)
        return [self.value(delivery.content) if value is _NOT_DECODED else value for delivery, value in decoded]

    def is_equal(self, content: bytes, value: Any, encoded: bytes) -> bool:
        """Return whether the value of a content equals `value`."""
        if (content if self._merge else content[ID_BYTES:]) == encoded:
            return True
        if self._merge or not self.typed:
            return False
        try:
            return bool(self.value(content) == value)
        except PayloadError:
            return False

    def message(self, pair: tuple[Any, Duration], own_id: bytes) -> FixedTimeMessage:
        """Return the message for a value and its delay; `own_id` keeps it separate from equal values."""
        try:
            value, delay = pair
        except (TypeError, ValueError):
            shown = f"{pair!r:.80}" if encodes_alike(self._topic.codec) else f"an object of {type(pair).__name__}"
            raise InvalidMessageError(f"{shown} is not a pair of a value and its delay") from None
        payload = self.encoded(value)
        if delay is None:  # pyright: ignore[reportUnnecessaryComparison] - a message could have a fixed time instead
            raise InvalidMessageError(f"delay is None; it must be {DURATION_RULE}")
        return FixedTimeMessage(own_id + payload if payload else b"", delay=delay)


def _ids_in_order() -> Iterator[bytes]:
    """Yield the ids of one call: random bytes and a counter, which keeps the order of values due at the same time."""
    while True:
        yield from map(secrets.token_bytes(ID_BYTES - 4).__add__, map(pack_number, range(2**32)))
