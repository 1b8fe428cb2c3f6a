"""The delayed queue for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from rmq import delayed as plain
from rmq._model.codecs import Codec
from rmq._model.deliveries import Delivery as PlainDelivery
from rmq._model.messages import Payload
from rmq._model.replies import SendResult
from rmq._model.times import Duration
from rmq._model.topics import Topic
from rmq._model.typed import PayloadClass, ValueT
from rmq.aio.backend import Permit
from rmq.aio.client import LoopState, RmqClient
from rmq.aio.facades import iterate_async
from rmq.aio.proxy import Closing, async_method, iterate
from rmq.errors import RmqError

P = ParamSpec("P")
T = TypeVar("T")


class DelayedQueue(Closing, Generic[ValueT]):
    """A queue whose values become due after a delay; see `rmq.DelayedQueue`. Any number of tasks may share it.

    Use it with `async with`, or close it. It registers its topic at its first use.

    Args:
        client: The client.
        name: As for `rmq.DelayedQueue`.
        merge: As for `rmq.DelayedQueue`.
        slots: As for `rmq.DelayedQueue`.
        lease: As for `rmq.DelayedQueue`.
        payload: As for `rmq.DelayedQueue`.
        codec: As for `rmq.DelayedQueue`.

    Examples:
        >>> import asyncio
        >>> from rmq import aio
        >>> async def remind() -> None:
        ...     async with aio.RmqClient("embedded://") as client, aio.DelayedQueue(client, "reminders") as reminders:
        ...         await reminders.offer("call ann", "50ms")
        ...         print(await reminders.take(timeout=5))
        >>> asyncio.run(remind())
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
        self._client = client
        self._new_plain = partial(
            plain.DelayedQueue[Any], name=name, merge=merge, slots=slots, lease=lease, payload=payload, codec=codec
        )
        self._ready: tuple[plain.DelayedQueue[Any], LoopState] | None = None

    async def open(self) -> Self:
        """Register the topic now instead of at the first use.

        Raises:
            TopicMismatchError: The name is registered with another type or number of slots, or with a reducer.
            InvalidTopicError: An argument is invalid, or `codec` cannot be combined with `merge`.
        """
        await self._open()
        return self

    async def offer(self, value: ValueT | Payload, delay: Duration) -> None:
        """Put a value into the queue; see `rmq.DelayedQueue.offer`."""
        await self._run(plain.DelayedQueue[Any].offer, value, delay)

    async def offer_many(
        self, values: Iterable[tuple[ValueT | Payload, Duration]] | AsyncIterable[tuple[ValueT | Payload, Duration]]
    ) -> SendResult:
        """Put any number of values into the queue; see `rmq.DelayedQueue.offer_many`. Takes an async iterable, too."""
        queue, opened = await self._open()

        def offer() -> SendResult:
            with Permit(opened.tasks.bulk_semaphores[queue.topic.name]) as place:
                if isinstance(values, AsyncIterable):
                    return plain.offer_from(queue, partial(iterate_async, values, place))
                return queue.offer_many(values)

        return await opened.tasks.run(offer)

    async def take(self, timeout: float | timedelta | None = None) -> ValueT:
        """Wait for a value, remove it from the queue, and return it; see `rmq.DelayedQueue.take`.

        Guarantee: if cancelled, no value is lost: a value that it has claimed is released at once.
        """
        return await self._kept(lambda queue: queue.claim(timeout))

    async def poll(self, timeout: float | timedelta = 0.0) -> ValueT | None:
        """Take a value as `take` does; return `None` if none becomes due within `timeout`; 0 does not wait."""
        return await self._kept(lambda queue: queue.claim_soon(timeout))

    async def take_many(self, max_values: int = 100, timeout: float | timedelta | None = None) -> list[ValueT]:
        """Wait for the first value, and remove and return up to `max_values`; see `rmq.DelayedQueue.take_many`.

        Guarantee: as for `take`.
        """
        queue, _ = await self._open()
        deliveries = await self._finish(lambda queue: queue.claim_many(max_values, timeout), _give_back_many)
        queue.keep_many(deliveries)  # only now: nothing is awaited between this and the caller's next step
        return queue.values_of(deliveries)

    @asynccontextmanager
    async def taking(self, timeout: float | timedelta | None = None) -> AsyncGenerator[ValueT]:
        """Wait for a value, and remove it from the queue when the block ends; see `rmq.DelayedQueue.taking`.

        Guarantee: at least once. If it is cancelled while it waits, a claimed value is released. If the block is
            cancelled, its value is put back, as after any error.
        """
        delivery = await self._finish(lambda queue: queue.claim(timeout), _give_back)
        try:
            queue, _ = await self._open()
            yield queue.value_of(delivery)
        except BaseException as error:
            await self._finish(partial(plain.DelayedQueue.put_back, delivery=delivery, error=error))
            raise
        await self._finish(partial(plain.DelayedQueue.finish, delivery=delivery))

    async def remove(self, value: ValueT | Payload) -> bool:
        """Remove a value that was not taken yet; see `rmq.DelayedQueue.remove`."""
        queue, opened = await self._open()

        def remove() -> bool:
            with opened.tasks.bulk_semaphores[queue.topic.name]:
                return queue.remove(value)

        return await opened.tasks.run(remove)

    size = async_method(plain.DelayedQueue.size)

    async def __aiter__(self) -> AsyncIterator[ValueT]:
        """Yield the values in the queue without taking them; see `rmq.DelayedQueue.__iter__`."""
        queue, opened = await self._open()
        async for value in iterate(opened.tasks, iter(queue)):
            yield value

    async def close(self) -> None:
        """Stop claiming, and release values that were claimed in advance; see `rmq.DelayedQueue.close`."""
        if self._ready is not None:
            queue, opened = self._ready
            await opened.tasks.finish(queue.close)

    @property
    def topic(self) -> Topic:
        """The registered definition of the topic, available once the queue is open.

        Raises:
            RmqError: The queue is not open yet.
        """
        if self._ready is None:
            raise RmqError("this queue is not open yet; use it with `async with`, or await its `open`")
        return self._ready[0].topic

    @overload
    async def _kept(self, claim: Callable[[plain.DelayedQueue[Any]], PlainDelivery]) -> ValueT: ...
    @overload
    async def _kept(self, claim: Callable[[plain.DelayedQueue[Any]], PlainDelivery | None]) -> ValueT | None: ...
    async def _kept(self, claim: Callable[[plain.DelayedQueue[Any]], PlainDelivery | None]) -> ValueT | None:
        queue, _ = await self._open()
        delivery = await self._finish(claim, _give_back)
        if delivery is None:
            return None
        queue.keep(delivery)  # only now: nothing is awaited between this and the caller's next step
        return queue.value_of(delivery)

    async def _run(
        self, method: Callable[Concatenate[plain.DelayedQueue[Any], P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        queue, opened = await self._open()
        return await opened.tasks.run(method, queue, *args, **kwargs)

    async def _finish(
        self,
        action: Callable[[plain.DelayedQueue[Any]], T],
        unclaimed: Callable[[T], object] | None = None,
    ) -> T:
        queue, opened = await self._open()
        return await opened.tasks.finish(partial(action, queue), unclaimed)

    async def _open(self) -> tuple[plain.DelayedQueue[Any], LoopState]:
        if self._ready is None:
            opened = await self._client._open()  # pyright: ignore[reportPrivateUsage]
            queue = await opened.tasks.run(self._new_plain, opened.plain)
            self._ready = self._ready or (queue, opened)  # two tasks may have been here at once
        return self._ready


def _give_back(claimed: PlainDelivery | None) -> None:
    if claimed is not None:
        claimed.release()


def _give_back_many(claimed: Sequence[PlainDelivery]) -> None:
    for delivery in claimed:
        delivery.release()
