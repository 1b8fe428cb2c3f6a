"""What one does with a topic: send, claim, look, steer. The logic and the rules are those of the plain classes."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self

from rmq import consumer as plain_consumer
from rmq import control as plain_control
from rmq import dead as plain_dead
from rmq import history as plain_history
from rmq import inspection as plain_inspection
from rmq import producer as plain_producer
from rmq import stream_dead as plain_stream_dead
from rmq import stream_topic as plain_stream
from rmq.aio.blocking import gate
from rmq.aio.delivery import Delivery, faced_all, plain_all
from rmq.aio.greenlets import Tasks, wait
from rmq.aio.mirror import Mirror, awaited, each, iterated
from rmq.blocking import Lock
from rmq.delivery import Delivery as PlainDelivery
from rmq.messages import Message
from rmq.results import SendResult
from rmq.stream_values import Position, StreamEntry
from rmq.topics import Topic


class Producer(Mirror[plain_producer.Producer], of=plain_producer.Producer):
    """Sends to one topic; any number of tasks may share it. See `rmq.producer.Producer`."""

    def __init__(self, plain: plain_producer.Producer, tasks: Tasks) -> None:
        super().__init__(plain, tasks)
        self._gate = gate()

    async def send(self, message: Message) -> SendResult:
        """Send one message; see `rmq.producer.Producer.send`. Of many at once 64 are under way, the others wait."""
        return await self._tasks.run(self._send, message)

    @property
    def topic(self) -> Topic:
        """The registered definition."""
        return self._plain.topic

    async def send_many(
        self, messages: Iterable[Message] | AsyncIterable[Message], *, outcomes: bool = False
    ) -> SendResult:
        """Send any number of messages; see `rmq.producer.Producer.send_many`.

        Args:
            messages: Any iterable, or an async one.
            outcomes: Also say per message whether it was new.

        Guarantee: other tasks run at each trip to Redis, at the latest after 2,000 messages.
        """
        plain = _gone_through(messages) if isinstance(messages, AsyncIterable) else messages
        return await self._tasks.run(self._plain.send_many, plain, outcomes=outcomes)

    def _send(self, message: Message) -> SendResult:
        with self._gate:
            return self._plain.send(message)


class Consumer(Mirror[plain_consumer.Consumer], of=plain_consumer.Consumer):
    """Claims messages of a topic on request; polls of several tasks take turns. Use it with `async with`."""

    def __init__(self, plain: plain_consumer.Consumer, tasks: Tasks, turn: Lock) -> None:
        super().__init__(plain, tasks)
        self._turn = turn

    @property
    def topic(self) -> Topic:
        """The registered definition."""
        return self._plain.topic

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that it claims from."""
        return self._plain.slots

    async def poll(self, max_messages: int = 100, timeout: float | timedelta = 0.0) -> list[Delivery]:
        """Claim due messages; wait for the first one if there is none. See `rmq.consumer.Consumer.poll`.

        Guarantee: cancelled, it loses nothing: what it has claimed, or is about to, goes back at once.
        """
        found = await self._tasks.finish(partial(self._poll, max_messages, timeout), self._plain.release)
        return faced_all(found, self._tasks)

    async def ack(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Ack several deliveries, one call per slot; see `rmq.consumer.Consumer.ack`. Goes on even if cancelled."""
        wanted = plain_all(deliveries)
        return faced_all(await self._tasks.finish(partial(self._plain.ack, wanted)), self._tasks)

    async def release(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Give back several deliveries that were not begun. Returns and raises like `ack`."""
        wanted = plain_all(deliveries)
        return faced_all(await self._tasks.finish(partial(self._plain.release, wanted)), self._tasks)

    async def extend(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Renew the leases of several deliveries; see `rmq.consumer.Consumer.extend`."""
        wanted = plain_all(deliveries)
        return faced_all(await self._tasks.finish(partial(self._plain.extend, wanted)), self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    close = awaited(plain_consumer.Consumer.close)

    def _poll(self, max_messages: int, timeout: float | timedelta) -> list[PlainDelivery]:
        with self._turn:
            return self._plain.poll(max_messages, timeout)


class DeadLetters(Mirror[plain_dead.DeadLetters], of=plain_dead.DeadLetters):
    """The dead messages of one topic. See `rmq.dead.DeadLetters`."""

    list = iterated(plain_dead.DeadLetters.list)
    count = awaited(plain_dead.DeadLetters.count)
    redrive = awaited(plain_dead.DeadLetters.redrive)
    purge = awaited(plain_dead.DeadLetters.purge)

    @property
    def topic(self) -> Topic:
        """The registered definition."""
        return self._plain.topic


class Inspection(Mirror[plain_inspection.Inspection], of=plain_inspection.Inspection):
    """Reads one topic. See `rmq.inspection.Inspection`."""

    stats = awaited(plain_inspection.Inspection.stats)
    peek = awaited(plain_inspection.Inspection.peek)
    pages = iterated(plain_inspection.Inspection.pages)
    find = awaited(plain_inspection.Inspection.find)
    search = awaited(plain_inspection.Inspection.search)
    dead_reasons = awaited(plain_inspection.Inspection.dead_reasons)
    audit = awaited(plain_inspection.Inspection.audit)

    @property
    def topic(self) -> Topic:
        """The registered definition."""
        return self._plain.topic


class Control(Mirror[plain_control.Control], of=plain_control.Control):
    """Steers a topic: by content, as a whole. See `rmq.control.Control`."""

    cancel = awaited(plain_control.Control.cancel)
    reschedule = awaited(plain_control.Control.reschedule)
    promote = awaited(plain_control.Control.promote)
    reprioritise = awaited(plain_control.Control.reprioritise)
    pause = awaited(plain_control.Control.pause)
    resume = awaited(plain_control.Control.resume)
    purge = awaited(plain_control.Control.purge)
    purge_dead = awaited(plain_control.Control.purge_dead)
    redrive = awaited(plain_control.Control.redrive)

    @property
    def topic(self) -> Topic:
        """The registered definition."""
        return self._plain.topic


class History(Mirror[plain_history.History], of=plain_history.History):
    """The last day of all topics. See `rmq.history.History`."""

    last = awaited(plain_history.History.last)


class GroupDead(Mirror[plain_stream_dead.GroupDead], of=plain_stream_dead.GroupDead):
    """The dead of one group of a stream topic. See `rmq.stream_dead.GroupDead`."""

    list = iterated(plain_stream_dead.GroupDead.list)
    count = awaited(plain_stream_dead.GroupDead.count)
    redrive = awaited(plain_stream_dead.GroupDead.redrive)
    purge = awaited(plain_stream_dead.GroupDead.purge)


class StreamTopic(Mirror[plain_stream.StreamTopic], of=plain_stream.StreamTopic):
    """A stream topic to read, to follow and to look after. See `rmq.stream_topic.StreamTopic`."""

    range = iterated(plain_stream.StreamTopic.range)
    pending = iterated(plain_stream.StreamTopic.pending)
    get = awaited(plain_stream.StreamTopic.get)
    stats = awaited(plain_stream.StreamTopic.stats)
    groups = awaited(plain_stream.StreamTopic.groups)
    group = awaited(plain_stream.StreamTopic.group)
    consumers = awaited(plain_stream.StreamTopic.consumers)
    delete = awaited(plain_stream.StreamTopic.delete)
    trim = awaited(plain_stream.StreamTopic.trim)
    add_group = awaited(plain_stream.StreamTopic.add_group)
    remove_group = awaited(plain_stream.StreamTopic.remove_group)
    remove_consumer = awaited(plain_stream.StreamTopic.remove_consumer)
    remove_gone_consumers = awaited(plain_stream.StreamTopic.remove_gone_consumers)

    @property
    def topic(self) -> Topic:
        """The registered definition."""
        return self._plain.topic

    def dead(self, group: str, actor: str | None = None) -> GroupDead:
        """Return the dead of a group; `actor` is who redrives and purges, for the audit."""
        return GroupDead(self._plain.dead(group, actor), self._tasks)

    async def tail(
        self,
        start: Position | None = None,
        timeout: float | timedelta | None = None,
        slots: Iterable[int] | None = None,
    ) -> AsyncIterator[StreamEntry]:
        """Follow the topic: `async for entry in await stream.tail()`. See `rmq.stream_topic.StreamTopic.tail`."""
        return each(self._tasks, await self._tasks.run(self._plain.tail, start, timeout, slots))


def _gone_through(messages: AsyncIterable[Message]) -> Iterator[Message]:
    """Yield in plain logic what an async iterable yields."""
    entries = aiter(messages)
    while True:
        try:
            message = wait(anext(entries))
        except StopAsyncIteration:
            return
        yield message
