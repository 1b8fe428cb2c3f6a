"""A queue of values that come due after a delay, with a blocking take: what Java users know as the delayed queue.

It is a FIXED_TIME topic, so that a value which was taken and not finished comes back: at least once, where others take
and forget. Equal values are told apart by a random id in front of the content. Values of a class are the content in
their encoded form, so what merges, and what is removed by `merge=True`, goes by these bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import repeat
from struct import Struct
from types import TracebackType
from typing import Any, Generic, Self, overload

from rmq._admin.control import Control
from rmq._admin.inspection import Inspection
from rmq._broker.claims import MAX_BATCH
from rmq._broker.queue_broker import QueueBroker
from rmq._broker.slot_calls import confirm_all
from rmq._claiming.consumer import Consumer, checked_poll
from rmq._claiming.prefetch import Prefetch
from rmq._model.codecs import Codec, encodes_alike
from rmq._model.deliveries import Delivery
from rmq._model.display import brief
from rmq._model.encoding import Encoder
from rmq._model.messages import Payload, RangeMergeMessage, payload_bytes
from rmq._model.replies import ControlResult, SendResult
from rmq._model.reports import reporter
from rmq._model.times import Duration, duration_ms, monotonic_s, seconds, usual_ms
from rmq._model.topics import Topic, TopicType
from rmq._model.typed import PayloadClass, ValueT, decode_payload
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
"""A shorter delay needs no further look."""

ID_BYTES = 12
"""Bytes that tell equal values apart, the last four by a number in `offer_many`. Else they are random: of a billion
values in a queue two are the same once in 10^11 queues."""


USUAL_BYTES = 1_000
"""Values of up to so many bytes are not measured one by one, where a content may be as long with an id before it."""

_OFFERS = SendOptions(method=("offer_many", "value"))

Source = Callable[[Callable[[], None]], Iterable[tuple[Any, Duration]]]
"""Returns values and their delays; gets what waits for the calls under way."""


class DelayedQueue(Generic[ValueT]):
    """A queue whose values become due after a delay. Thread-safe; use it as a context manager, or close it.

    Args:
        client: The client.
        name: Name of the queue, and of its topic.
        merge: Equal values are one element, and the last offer decides when it is due. Without, each offer is one.
        slots: Over how many slots the queue is spread, a power of two. With 1, values come in the order of their
            due times; with more, of those of each slot.
        lease: How long a taken value may be in somebody's hands before it comes back; whole seconds.
        payload: Class of the values: a dataclass, a msgspec struct or a pydantic model. By default they are `str` or
            `bytes`, and come as `bytes`. Each program chooses its own; Redis does not store it.
        codec: How values become bytes; `JsonCodec()` by default. With `merge`, one that makes equal bytes of equal
            values: these bytes say which are equal.

    Raises:
        TopicMismatchError: The name is registered with another type or number of slots.
        InvalidTopicError: `payload` or `codec` is none; or `merge` with a codec that encrypts, which makes other bytes
            of a value each time.

    Examples:
        >>> with DelayedQueue(client, "reminders") as reminders:
        ...     reminders.offer("call ann", "50ms")
        ...     reminders.take(timeout=5)
        b'call ann'
    """

    @overload
    def __init__(
        self: DelayedQueue[bytes],
        client: RmqClient,
        name: str,
        *,
        merge: bool = False,
        slots: int = 1,
        lease: Duration = timedelta(seconds=60),
    ) -> None: ...
    @overload
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
    ) -> None: ...
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
        self._producer = Producer(  # values come with a delay, as those of RANGE_MERGE do
            self._connections,
            replace(self.topic, type=TopicType.RANGE_MERGE),
            slots=QueueBroker(self._connections, self.topic, delayed=True),
        )
        self._ahead = Prefetch(Consumer(self._connections, self.topic), self._connections.runtime)
        self._connections.close_with_us(self._ahead)
        self._view = Inspection(self._connections, self.topic)
        self._control = Control(self._connections, self.topic)

    def offer(self, value: ValueT | Payload, delay: Duration) -> None:
        """Put a value into the queue.

        Args:
            value: `str` or `bytes`, not empty; with a payload class, an object of it.
            delay: Due after so long by Redis' clock: a `timedelta` or a text such as "10s"; "0s" for at once.

        Raises:
            InvalidMessageError: The value is too long, empty, of another type, or cannot be encoded; the delay is no
                duration.
            SendError: It was refused and not stored: `BacklogFullError`, `MemoryFullError`. `not_stored` has the pair
                of value and delay.
            DurabilityError: Stored on the master, but not as safe as the client asked for; `unknown` has the pair.
            RedisUnavailableError: No answer until the deadline: stored or not. After both, a value that is offered
                again is a second element, unless with `merge`.

        Guarantee: repeated by itself after a lost reply, which is safe: the element is the same.
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
            How many were new, and how many merged.

        Raises:
            InvalidBatchError: A value or a delay breaks its rule; the error names it, and says how many were stored.
                `not_stored` has those pairs up to there that were not. Of a list or tuple, nothing was sent.
            SendError: Values were refused, or their reply was lost (`unknown`); it says how many were stored.
                `not_stored` and `unknown` are pairs. To offer unknown ones again may double them, unless with `merge`.

        Guarantee: as `offer`; atomic per call of up to 1,000 values of one slot. Without `merge`, values of a slot that
            are due at the same time come in the order of these pairs.
        """
        if isinstance(values, list | tuple):
            self._check_all(values)
        return self._offer_from(lambda _: values)

    def _check_all(self, values: Sequence[tuple[Any, Duration]]) -> None:
        """Refuse pairs of which one breaks a rule, before any is sent."""
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
        """Wait for a value, take it out of the queue for good, and return it.

        What fails after this is lost with its value: `taking` is the way that loses nothing. Acks go out a moment
        later, those of neighbours together: a process that is killed right then takes them once more. One that ends
        in the ordinary way sends them before, and gives back what it had claimed ahead.

        A value that does not decode as the payload class is nobody's: it goes to the dead letters, with a WARNING in
        the log, and the wait goes on. So it is with all that takes.

        Args:
            timeout: How long to wait, in seconds or as a `timedelta`; for ever by default.

        Raises:
            TimeoutError: Nothing became due in time.
            RedisUnavailableError: No answer until the deadline; a value that was claimed comes back with its lease.
            ClientClosedError: The queue, or its client, is closed, or was closed in the meantime.

        Guarantee: interrupted, it loses nothing: a value is acked only once it is in the caller's hands.
        """
        value = self._take(timeout)
        if value is None:
            raise TimeoutError(f"nothing became due in {self.topic.name} within {timeout}")
        return value

    def poll(self, timeout: float | timedelta = 0.0) -> ValueT | None:
        """Like `take`, with `None` where nothing became due in time; 0 does not wait."""
        return self._take(timeout)

    def take_many(self, max_values: int = 100, timeout: float | timedelta | None = None) -> list[ValueT]:
        """Wait for the first value, take as many as are due out of the queue for good, and return them.

        What holds for `take` holds for each of them: acks go out a moment later, and what fails after this is lost.

        Args:
            max_values: Most values, 1 to 10,000; fewer where they have more than 16 MiB.
            timeout: How long to wait for the first one, as for `take`; 0 does not wait.

        Returns:
            The values, those due first at first; none where nothing became due in time.

        Raises:
            InvalidValueError: `max_values` or `timeout` out of range.
            RedisUnavailableError: No answer until the deadline; what was claimed comes back with its lease.
            ClientClosedError: As for `take`.

        Guarantee: as `take`.
        """
        deliveries = self.claim_many(max_values, timeout)
        if deliveries:
            self._ahead.done(deliveries)
        return self._values.claimed(deliveries)

    @contextmanager
    def taking(self, timeout: float | timedelta | None = None) -> Generator[ValueT]:
        """Wait for a value, and take it out of the queue when the block ends; an error puts it back.

        Args:
            timeout: As for `take`.

        Raises:
            TimeoutError: Nothing became due in time.
            LeaseLostError: The block took longer than the lease: somebody else may have the value, too.

        Guarantee: at least once: a process that dies inside the block loses nothing.
        """
        delivery = self.claim(timeout)
        try:
            yield self.value_of(delivery)
        except BaseException as error:
            self.put_back(delivery, error)
            raise
        self.finish(delivery)

    def claim(self, timeout: float | timedelta | None = None) -> Delivery:
        """Begin what `taking` does: wait for a value, to `finish` with or to `put_back`. Raises as `take`."""
        delivery = self.claim_soon(timeout)
        if delivery is None:
            raise TimeoutError(f"nothing became due in {self.topic.name} within {timeout}")
        return delivery

    def claim_soon(self, timeout: float | timedelta | None) -> Delivery | None:
        """Like `claim`, with `None` where nothing became due in time."""
        deliveries = self._claim(timeout, 1)
        return deliveries[0] if deliveries else None

    def claim_many(self, max_values: int, timeout: float | timedelta | None) -> list[Delivery]:
        """Begin what `take_many` does; raises as that does."""
        return self._claim(timeout, checked_poll(max_values, "max_values"))

    def _claim(self, timeout: float | timedelta | None, most: int) -> list[Delivery]:
        """Wait for values that decode; what does not goes to the dead letters."""
        until_s = _until(timeout)
        while deliveries := self._ahead.next(until_s, most):
            if readable := [delivery for delivery in deliveries if self._decode(delivery, deliveries)]:
                return readable
        return []

    def _decode(self, delivery: Delivery, deliveries: Sequence[Delivery]) -> bool:
        """Decode a value; bury one that does not decode. What fails for another reason puts all that was claimed back.

        That may be too little memory: another time the value may decode.
        """
        if not self._values.typed:
            return True
        try:
            delivery.decoded = self._values.value(delivery.content)
        except PayloadError as error:
            log.warning("topic %s: a value goes to the dead letters: %s", self.topic.name, error)
            try:
                delivery.bury(error)
            except RmqError as trouble:
                log.warning("topic %s: it comes back with its lease: %s", self.topic.name, trouble)
            return False
        except Exception as error:
            for claimed in deliveries:
                if claimed.outcome is None:
                    self.put_back(claimed, error)
            raise
        return True

    def finish(self, delivery: Delivery) -> None:
        """Take a claimed value out of the queue; raises `LeaseLostError` where somebody else may have it, too.

        This and the next methods raise `InvalidValueError` for what no `claim` of this queue has returned.
        """
        self._check_claimed(delivery)
        if not delivery.ack():
            delivery.raise_if_lost()

    def put_back(self, delivery: Delivery, error: BaseException) -> None:
        """Put a claimed value back, and say why."""
        self._check_claimed(delivery)
        if not isinstance(error, BaseException | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"error is {brief(error, 100)}; it must be an exception or a str that says why")
        try:
            delivery.nack(error=error)
        except RmqError as trouble:  # it must not hide the error
            log.warning("topic %s: a value comes back with its lease: %s", self.topic.name, trouble)

    def keep(self, delivery: Delivery) -> None:
        """Take a claimed value out of the queue a moment later: it is in its taker's hands. Does not wait."""
        self._check_claimed(delivery)
        self._ahead.done([delivery])

    def keep_many(self, deliveries: Sequence[Delivery]) -> None:
        """Do what `keep` does with several values."""
        self._check_claimed(*_several(deliveries))
        if deliveries:
            self._ahead.done(deliveries)

    def values_of(self, deliveries: Sequence[Delivery]) -> list[ValueT]:
        """Return the values that were claimed."""
        self._check_claimed(*_several(deliveries))
        return self._values.claimed(deliveries)

    def value_of(self, delivery: Delivery) -> ValueT:
        """Return the value that was claimed."""
        self._check_claimed(delivery)
        return self._values.claimed([delivery])[0]

    def _check_claimed(self, *deliveries: Delivery) -> None:
        for delivery in deliveries:
            if not isinstance(delivery, Delivery):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidValueError(f"delivery is {brief(delivery, 100)}; it must be one that `claim` returned")
            if delivery.topic.name != self.topic.name:
                raise InvalidValueError(
                    f"delivery is of topic {delivery.topic.name}; it must be one that `claim` of queue {self.topic.name} "
                    "returned",
                    topic=self.topic.name,
                )

    def remove(self, value: ValueT | Payload) -> bool:
        """Take a value out before it is due or taken; return whether it was there.

        Of equal values the one due first goes. Without `merge`, it is looked for: that reads the queue. Values of a
        class are equal if `==` says so or their bytes are the same; with `merge`, if their bytes are the same.
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
        """Return how many values are in the queue, due or not; those that somebody has in hand are not."""
        stats = self._view.stats()
        return stats.backlog + stats.waiting + len(self._ahead.contents())

    def __len__(self) -> int:
        return self.size()

    def __iter__(self) -> Iterator[ValueT]:
        """Yield the values in the queue without taking them, slot by slot, those due first at first.

        What is offered or taken meanwhile may be missed or shown. What does not decode is passed over, with a WARNING.
        """
        for content in (*self._ahead.contents(), *self._contents()):
            try:
                value = self._values.value(content)
            except PayloadError as error:
                log.warning("topic %s: a value was passed over: %s", self.topic.name, error)
                continue
            yield value

    def close(self) -> None:
        """Stop listening, send the last acks, and give back what was claimed ahead. Values in the queue stay there.

        From any thread: whoever waits for a value meets `ClientClosedError`.

        A client that closes does it for its queues.
        """
        self._ahead.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """Put what a source returns into a queue, as `offer_many`."""
    return queue._offer_from(source)  # pyright: ignore[reportPrivateUsage]


def _until(timeout: float | timedelta | None) -> float | None:
    return None if timeout is None else monotonic_s() + seconds(timeout, "timeout")


def _is_usual(value: tuple[Payload, Duration], most_bytes: int) -> bool:
    """Return whether this certainly is a pair that the queue takes, which is cheaper to say than to check."""
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
    """How values become contents, and values again.

    Args:
        topic: The queue's topic, with the payload class and the codec of its values, which Redis does not store.
        merge: Whether equal values are one element; then no id stands before them.

    Raises:
        InvalidTopicError: Values that merge would never be equal in their encoded form.
    """

    def __init__(self, topic: Topic[Any], merge: bool) -> None:
        self._topic, self._merge = topic, merge
        self.typed = topic.typed is not None
        self._unproven = merge and self.typed
        if self._unproven and not encodes_alike(topic.codec):
            raise InvalidTopicError(
                f"queue {topic.name} has merge=True and {brief(topic.codec, 100)}: equal values merge by their bytes, "
                "and a codec that encrypts makes other bytes of a value each time; leave one of the two out",
                topic=topic.name,
            )

    def encoded(self, value: Any) -> bytes:
        """Return the bytes of a value, without an id. Raises `InvalidMessageError` for one that the queue refuses."""
        if not self.typed:
            return payload_bytes(value, "value")
        encoded = self._topic.encode(value)
        if self._unproven:  # of a codec that is not ours, the first value shows it
            if self._topic.encode(value) != encoded:
                raise InvalidMessageError(
                    f"queue {self._topic.name} has merge=True, and its codec made other bytes of one value the second "
                    "time: equal values would never merge",
                    topic=self._topic.name,
                )
            self._unproven = False
        return encoded

    def value(self, content: bytes) -> Any:
        """Return the value of a content; raises `PayloadError` where it holds none."""
        raw = content if self._merge else content[ID_BYTES:]
        return decode_payload(self._topic.typed, self._topic.name, raw, "content") if self.typed else raw

    def claimed(self, deliveries: Sequence[Delivery]) -> list[Any]:
        """Return the values of deliveries, which are decoded once; raises as `value`."""
        if not self.typed:
            start = 0 if self._merge else ID_BYTES
            return [delivery.content[start:] for delivery in deliveries]
        decoded = ((delivery, getattr(delivery, "decoded", _NOT_DECODED)) for delivery in deliveries)
        return [self.value(delivery.content) if value is _NOT_DECODED else value for delivery, value in decoded]

    def is_equal(self, content: bytes, value: Any, encoded: bytes) -> bool:
        """Return whether a content holds a value that is equal to this one."""
        if (content if self._merge else content[ID_BYTES:]) == encoded:
            return True
        if self._merge or not self.typed:
            return False
        try:
            return bool(self.value(content) == value)
        except PayloadError:
            return False

    def message(self, pair: tuple[Any, Duration], own_id: bytes) -> RangeMergeMessage:
        """Return what is sent for a value and its delay; `own_id` tells it from others."""
        try:
            value, delay = pair
        except (TypeError, ValueError):
            shown = f"{pair!r:.80}" if encodes_alike(self._topic.codec) else f"an object of {type(pair).__name__}"
            raise InvalidMessageError(f"{shown} is not a pair of a value and its delay") from None
        payload = self.encoded(value)
        try:
            delay_ms = max(1, duration_ms(delay, "delay"))
        except InvalidValueError as error:
            raise InvalidMessageError(str(error)) from error
        return RangeMergeMessage(own_id + payload if payload else b"", time_range_ms=delay_ms)


def _ids_in_order() -> Iterator[bytes]:
    """Yield ids of one call: random bytes that no other call has, and a number: equal due times keep this order."""
    while True:
        yield from map(secrets.token_bytes(ID_BYTES - 4).__add__, map(pack_number, range(2**32)))
