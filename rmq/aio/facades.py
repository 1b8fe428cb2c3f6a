"""The async classes of a topic: send, claim, inspect, control. Logic and rules are those of the plain classes."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from rmq._admin import control as plain_control
from rmq._admin import dead_letters as plain_dead
from rmq._admin import history as plain_history
from rmq._admin import inspection as plain_inspection
from rmq._admin import notices as plain_notices
from rmq._admin import stream_topic as plain_stream
from rmq._admin.messages import DeadEntry, DeadMessage
from rmq._claiming import consumer as plain_consumer
from rmq._model import claims as plain_columns
from rmq._model.deliveries import Delivery as PlainDelivery
from rmq._model.display import brief
from rmq._model.entries import Position, StreamEntry
from rmq._model.handlers import ASYNC, check_plain, kind_of
from rmq._model.messages import Message
from rmq._model.replies import SendResult
from rmq._model.typed import PayloadT
from rmq._schedules import schedules as plain_schedules
from rmq._sending import producer as plain_producer
from rmq._sending.batch_sender import SendOptions
from rmq._sending.producer import send_from
from rmq.aio.backend import Permit
from rmq.aio.delivery import Delivery, DeliveryColumns, unwrap_deliveries, wrap_deliveries
from rmq.aio.greenlets import TaskGroup, wait
from rmq.aio.proxy import AsyncProxy, Closing, TopicProxy, async_iterator, async_method, iterate
from rmq.client import RmqClient as PlainClient
from rmq.errors import InvalidValueError

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound=DeadMessage)


class Producer(TopicProxy[plain_producer.Producer]):
    """Sends to one topic; any number of tasks may share it. See `rmq.Producer`."""

    def __init__(self, plain: plain_producer.Producer, tasks: TaskGroup) -> None:
        super().__init__(plain, tasks)
        name = plain.topic.name
        self._bulk_semaphore = tasks.bulk_semaphores[name]

    async def send(self, message: Message, *, once: str | None = None) -> SendResult:
        """Send one message; see `rmq.Producer.send`. Concurrent sends of small messages share round trips."""
        return await self._tasks.run(self._plain.send, message, once=once)

    async def send_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        *,
        outcomes: bool = False,
        fold: bool = False,
        once: str | None = None,
    ) -> SendResult:
        """Send any number of messages; see `rmq.Producer.send_many`.

        Args:
            messages: Any iterable, or an async one.
            outcomes: As for `rmq.Producer.send_many`.
            fold: As for `rmq.Producer.send_many`.
            once: As for `rmq.Producer.send_many`.

        Guarantee: other tasks run at each round trip, at the latest after 20,000 messages. Of many concurrent calls
            for a topic, 64 run at a time, not counting those that wait for their async iterable.
        """
        return await self._tasks.run(self._send_many, messages, outcomes, fold, once)

    send_columns = async_method(plain_producer.Producer.send_columns)

    async def _run(
        self, method: Callable[Concatenate[plain_producer.Producer, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        def run() -> T:
            with self._bulk_semaphore:
                return method(self._plain, *args, **kwargs)

        return await self._tasks.run(run)

    def _send_many(
        self, messages: Iterable[Message] | AsyncIterable[Message], outcomes: bool, fold: bool, once: str | None
    ) -> SendResult:
        with Permit(self._bulk_semaphore) as place:
            if isinstance(messages, AsyncIterable):
                return send_from(
                    self._plain, partial(iterate_async, messages, place), outcomes, SendOptions(once, fold)
                )
            return self._plain.send_many(messages, outcomes=outcomes, fold=fold, once=once)


class Consumer(Closing, TopicProxy[plain_consumer.Consumer[Any]], Generic[PayloadT]):
    """Claims messages of a topic on request; polls of several tasks take turns. Use it with `async with`."""

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots from which the consumer claims."""
        return self._plain.slots

    async def poll(self, max_messages: int = 100, timeout: float | timedelta = 0.0) -> list[Delivery[PayloadT]]:
        """Claim due messages; wait for the first one if there is none. See `rmq.Consumer.poll`.

        Guarantee: a cancelled call loses nothing: messages that it has claimed, or is claiming, are released at once.
        """
        claimed = await self._tasks.finish(partial(self._plain.poll, max_messages, timeout), self._plain.release)
        return wrap_deliveries(claimed, self._tasks)

    async def poll_columns(self, max_messages: int = 100, timeout: float | timedelta = 0.0) -> DeliveryColumns:
        """Claim due messages as columns. See `rmq.Consumer.poll_columns`.

        Guarantee: a cancelled call loses nothing: messages that it has claimed, or is claiming, are released at once.
        """
        claimed = await self._tasks.finish(
            partial(self._plain.poll_columns, max_messages, timeout), plain_columns.DeliveryColumns.release
        )
        return DeliveryColumns(claimed, self._tasks)

    async def ack(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Ack several deliveries, in few calls; see `rmq.Consumer.ack`. Runs to its end even if cancelled."""
        return await self._finish(self._plain.ack, deliveries)

    async def release(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Release several deliveries whose handling has not begun. Returns and raises the same as `ack`."""
        return await self._finish(self._plain.release, deliveries)

    async def extend(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Renew the leases of several deliveries; see `rmq.Consumer.extend`."""
        return await self._finish(self._plain.extend, deliveries)

    close = async_method(plain_consumer.Consumer.close)

    async def _finish(
        self, action: Callable[[list[PlainDelivery]], Iterable[PlainDelivery]], deliveries: Iterable[Delivery]
    ) -> list[Delivery]:
        return wrap_deliveries(await self._tasks.finish(partial(action, unwrap_deliveries(deliveries))), self._tasks)


class DeadNotices(Closing, AsyncProxy[plain_notices.DeadNotices]):
    """Calls a function with new dead messages until it is closed. Use it with `async with`. See `rmq.DeadNotices`."""

    close = async_method(plain_notices.DeadNotices.close)

    @property
    def failures(self) -> int:
        """Number of consecutive calls of the function that failed; 0 after a successful one."""
        return self._plain.failures


class Dead(TopicProxy[plain_dead.Dead[D]], Generic[D]):
    """The dead messages of a topic, or the dead entries of a group."""

    count = async_method(plain_dead.Dead[D].count)
    purge = async_method(plain_dead.Dead[D].purge)

    async def on_dead(
        self, tell: Callable[[builtins.list[D]], object], *, name: str = "on_dead", every_s: float = 5.0
    ) -> DeadNotices:
        """Call a function with every message that dies; see `rmq.DeadLetters.on_dead`.

        An async function is awaited in a task of its own; any other, such as a `Webhook`, is called in a thread.
        """
        plain = partial(self._plain.on_dead, call_async(tell), name=name, every_s=every_s)
        return DeadNotices(await self._tasks.run(plain), self._tasks)


class DeadLetters(Dead[DeadMessage]):
    """The dead messages of one topic. See `rmq.DeadLetters`."""

    list = async_iterator(plain_dead.DeadLetters.list)
    redrive = async_method(plain_dead.DeadLetters.redrive)


class Inspection(TopicProxy[plain_inspection.Inspection]):
    """Reads one topic. See `rmq.Inspection`."""

    stats = async_method(plain_inspection.Inspection.stats)
    spark_queries = async_method(plain_inspection.Inspection.spark_queries)
    peek = async_method(plain_inspection.Inspection.peek)
    pages = async_iterator(plain_inspection.Inspection.pages)
    find = async_method(plain_inspection.Inspection.find)
    search = async_method(plain_inspection.Inspection.search)
    dead_reasons = async_method(plain_inspection.Inspection.dead_reasons)
    audit = async_method(plain_inspection.Inspection.audit)


class Control(TopicProxy[plain_control.Control]):
    """Controls a topic: single contents, or the whole topic. See `rmq.Control`."""

    cancel = async_method(plain_control.Control.cancel)
    cancel_matching = async_method(plain_control.Control.cancel_matching)
    reschedule = async_method(plain_control.Control.reschedule)
    promote = async_method(plain_control.Control.promote)
    reprioritise = async_method(plain_control.Control.reprioritise)
    pause = async_method(plain_control.Control.pause)
    resume = async_method(plain_control.Control.resume)
    purge = async_method(plain_control.Control.purge)
    purge_dead = async_method(plain_control.Control.purge_dead)
    redrive = async_method(plain_control.Control.redrive)


class History(AsyncProxy[plain_history.History]):
    """Figures of all topics during the last day. See `rmq.History`."""

    last = async_method(plain_history.History.last)


class GroupDead(Dead[DeadEntry]):
    """The dead entries of one group of a stream topic. See `rmq.GroupDead`."""

    list = async_iterator(plain_dead.GroupDead.list)
    redrive = async_method(plain_dead.GroupDead.redrive)

    @property
    def group(self) -> str:
        """Name of the group."""
        return cast("plain_dead.GroupDead", self._plain).group


class Schedules:
    """Messages that are sent again and again. See `rmq.Schedules`."""

    def __init__(self, run: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._run_on_client = run

    async def _run(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        def run(client: PlainClient) -> T:
            return method(client.schedules, *args, **options)

        return await self._run_on_client(run)

    put = async_method(plain_schedules.Schedules.put)
    get = async_method(plain_schedules.Schedules.get)
    list = async_method(plain_schedules.Schedules.list)
    remove = async_method(plain_schedules.Schedules.remove)
    run_now = async_method(plain_schedules.Schedules.run_now)


class StreamTopic(TopicProxy[plain_stream.StreamTopic]):
    """Reads, follows and manages a stream topic. See `rmq.StreamTopic`."""

    range = async_iterator(plain_stream.StreamTopic.range)
    pending = async_iterator(plain_stream.StreamTopic.pending)
    get = async_method(plain_stream.StreamTopic.get)
    stats = async_method(plain_stream.StreamTopic.stats)
    spark_queries = async_method(plain_stream.StreamTopic.spark_queries)
    groups = async_method(plain_stream.StreamTopic.groups)
    with_groups = async_method(plain_stream.StreamTopic.with_groups)
    group = async_method(plain_stream.StreamTopic.group)
    consumers = async_method(plain_stream.StreamTopic.consumers)
    delete = async_method(plain_stream.StreamTopic.delete)
    trim = async_method(plain_stream.StreamTopic.trim)
    add_group = async_method(plain_stream.StreamTopic.add_group)
    move_group = async_method(plain_stream.StreamTopic.move_group)
    remove_group = async_method(plain_stream.StreamTopic.remove_group)
    remove_consumer = async_method(plain_stream.StreamTopic.remove_consumer)
    pause = async_method(plain_stream.StreamTopic.pause)
    resume = async_method(plain_stream.StreamTopic.resume)
    unread = async_iterator(plain_stream.StreamTopic.unread)
    audit = async_method(plain_stream.StreamTopic.audit)
    remove_gone_consumers = async_method(plain_stream.StreamTopic.remove_gone_consumers)

    def dead(self, group: str, actor: str | None = None) -> GroupDead:
        """Return the dead entries of a group. `actor` is recorded in the audit; the default is `user@host`."""
        return GroupDead(self._plain.dead(group, actor), self._tasks)

    async def tail(
        self,
        start: Position | None = None,
        timeout: float | timedelta | None = None,
        slots: Iterable[int] | None = None,
    ) -> AsyncIterator[StreamEntry]:
        """Follow the topic: `async for entry in await stream.tail()`. See `rmq.StreamTopic.tail`."""
        return iterate(self._tasks, await self._tasks.run(self._plain.tail, start, timeout, slots))


async def tail_all(
    streams: Iterable[StreamTopic], start: Position | None = None, timeout: float | timedelta | None = None
) -> AsyncIterator[StreamEntry]:
    """Follow several stream topics, as `rmq.tail_all`; await the call, and then iterate with `async for`."""
    views = list(streams)
    for view in views:
        if not isinstance(view, StreamTopic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"streams contains {brief(view, 100)}; all must be results of `RmqClient.stream`")
    if not views:
        raise InvalidValueError("streams is empty; it must have at least one stream topic")
    tasks, plain = views[0]._tasks, [view._plain for view in views]  # pyright: ignore[reportPrivateUsage]
    return iterate(tasks, await tasks.run(plain_stream.tail_all, plain, start, timeout))


def iterate_async(messages: AsyncIterable[T], place: Permit, collect: Callable[[], None]) -> Iterator[T]:
    """Yield the elements of an async iterable to plain logic.

    Args:
        messages: The iterable. It may wait for hours, or for another call that needs the permit.
        place: The permit of the call, which is released while the iterable waits.
        collect: Waits for the calls under way, so that no connection stays in use meanwhile.
    """
    entries = aiter(messages)
    while True:
        collect()
        place.leave()
        try:
            message = wait(anext(entries))
        except StopAsyncIteration:
            place.take()
            return
        place.take()
        yield message


def call_async(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function with which plain logic can call `function` without blocking the event loop."""
    if kind_of(function) == ASYNC:
        return lambda *args: wait(cast("Any", function(*args)))
    check_plain(function, "tell")
    return lambda *args: wait(asyncio.to_thread(function, *args))
