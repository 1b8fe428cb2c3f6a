"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from rmq import client as plain
from rmq._io.observers import Observers
from rmq._listening.listener import (
    HandlerT,
    Listener,
    ScheduleOptions,
    check_shared,
    listener_decorator,
    scheduled_decorator,
)
from rmq._model.handlers import check_async
from rmq._model.topics import Topic
from rmq._model.typed import PayloadT
from rmq._model.workers import IDLE, Health
from rmq._processes.service_manager import ServiceManager
from rmq._processes.signals import exit_hung, frozen_objects, handlers_put_back, require_main_thread
from rmq.aio.backend import EventLoop, call_semaphore
from rmq.aio.delivery import Delivery, wrap_deliveries
from rmq.aio.facades import Consumer, Control, DeadLetters, History, Inspection, Producer, Schedules, StreamTopic
from rmq.aio.greenlets import GreenletTask, TaskGroup, wait_here
from rmq.aio.listener import HandlerDecorator, ListenerOptions, TaskWorker, plain_listener, plain_options
from rmq.aio.proxy import Closing, async_method, signature_of
from rmq.client import DRAIN_S
from rmq.errors import ClientClosedError, RmqError

P = ParamSpec("P")
T = TypeVar("T")
WrapperT = TypeVar("WrapperT")


class PlainClient(plain.RmqClient):
    """A plain client that waits in an event loop; `TaskGroup` runs its methods."""

    _worker = TaskWorker

    def __init__(self, loop: EventLoop, *args: Any, observers: Observers, **options: Any) -> None:
        self._runtime = loop
        self._observers = lambda: observers
        super().__init__(*args, **options)

    def drop(self) -> None:
        """Close the connections of a closed event loop, and the temporary Redis. Outcomes can no longer be sent."""
        self._listeners.runners, self._listeners.leaving = [], []
        self._recording.forget()
        self._connections.forget_users()
        self.close()


class LoopState:
    """State of a client in one event loop.

    Args:
        plain_client: The client whose logic is run.
        tasks: Runs the methods of the plain client.
        runtime: The runtime of the event loop.
    """

    def __init__(self, plain_client: PlainClient, tasks: TaskGroup, runtime: EventLoop) -> None:
        self.plain, self.tasks, self._runtime = plain_client, tasks, runtime
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None

    @property
    def runs_here(self) -> bool:
        """Whether the caller is a handler of this client, or a task that a handler created."""
        return self.plain._listeners.runs_here  # pyright: ignore[reportPrivateUsage]

    @property
    def is_abandoned(self) -> bool:
        """Whether the client's event loop is closed."""
        return self._loop.is_closed()

    async def run(self, method: Callable[Concatenate[PlainClient, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method of the plain client."""
        return await self.tasks.run(method, self.plain, *args, **kwargs)

    async def run_in_turn(
        self, method: Callable[Concatenate[PlainClient, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a method of the plain client, waiting if too many of its calls are in progress."""

        def run() -> T:
            with self.tasks.client_semaphore:
                return method(self.plain, *args, **kwargs)

        return await self.tasks.run(run)

    def checked(self) -> Self:
        """Return self; raise in another event loop, since connections belong to the loop that opened them."""
        self.tasks.check_loop()
        return self

    async def begin_close(self) -> None:
        """Close the client, and wait until it is closed; in a handler, only until the other handlers have ended."""
        if not self.runs_here:
            self._closing = asyncio.Task(self._close())
            await asyncio.shield(self._closing)
            return
        others = asyncio.ensure_future(self.run(PlainClient.stop))
        self._closing = asyncio.Task(self._close(others), context=Context())  # there it is no handler's
        await asyncio.shield(others)

    async def closed(self) -> None:
        """Wait for a close in this event loop to end; in a handler, return at once, since the close waits for it."""
        closing = self._closing
        if not (closing is None or closing.done() or self.runs_here or self._loop is not asyncio.get_running_loop()):
            await asyncio.wait({closing})

    async def _close(self, others: asyncio.Future[Any] | None = None) -> None:
        if self.is_abandoned:
            await GreenletTask(self.plain.drop).drive()
            return
        if others is not None:
            await asyncio.wait({others})
        try:
            await self.run(PlainClient.stop)
            await self.tasks.settled()
        finally:
            await self.run(PlainClient.close)
            await self._runtime.cancel_jobs(self.tasks.give_up)


class RmqClient(Closing):
    """A connection to RMQ for one event loop. Use it with `async with`, or `close` it.

    Names, arguments and behaviour are those of `rmq.RmqClient`; methods that may talk to Redis are coroutines. The
    client connects at its first use, so it can be created before an event loop runs.

    Args:
        url: As for `rmq.RmqClient`.
        zookeeper: As for `rmq.RmqClient`.
        owners: As for `rmq.RmqClient`.
        durability: As for `rmq.RmqClient`.
        replicas: As for `rmq.RmqClient`.
        timeout_s: As for `rmq.RmqClient`.
        deadline_s: As for `rmq.RmqClient`.
        credentials: As for `rmq.RmqClient`; a provider that is not asynchronous is called in a thread.

    Guarantee: a cancelled call leaves no reply for a later call, and loses no delivery.

    Examples:
        >>> import asyncio
        >>> from rmq import aio
        >>> async def first() -> None:
        ...     async with aio.RmqClient("embedded://") as client:
        ...         jobs = Topic("jobs", TopicType.PRIORITY)
        ...         producer, consumer = await client.producer(jobs), await client.consumer(jobs)
        ...         await producer.send(PriorityMessage("job:1", 5))
        ...         for delivery in await consumer.poll(timeout=5):
        ...             print(delivery.text, await delivery.ack())
        >>> asyncio.run(first())
        job:1 True
    """

    _plain: type[PlainClient] = PlainClient

    @signature_of(plain.RmqClient.__init__)
    def __init__(self, url: str | None = None, **options: Any) -> None:
        self.observers = Observers(wait_here)
        """Observers of sends and handlers. Add them before creating producers and starting listeners."""
        self._new_plain = partial(self._plain, observers=self.observers, url=url, **options)
        self.schedules = Schedules(self._run)
        """Messages that are sent again and again, which every process with started listeners runs."""
        self._listeners: list[Listener] = []
        self._opened: LoopState | None = None
        self._opening: asyncio.Lock | None = None
        self._closed = False
        self._last: LoopState | None = None
        self._started = False

    async def open(self) -> Self:
        """Connect now instead of at the first use.

        Raises:
            RmqError: As for `rmq.RmqClient`.
        """
        await self._open()
        return self

    producer = async_method(PlainClient.producer, Producer)

    async def consumer(
        self,
        topic: Topic[PayloadT],
        slots: Iterable[int] | None = None,
        *,
        group: str | None = None,
        name: str | None = None,
        start: str = "new",
        resume_as: str | None = None,
    ) -> Consumer[PayloadT]:
        """Return a consumer of all slots, or of the given ones; see `rmq.RmqClient.consumer`."""
        make = partial(PlainClient.consumer, group=group, name=name, start=start, resume_as=resume_as)
        return await self._run_wrapped(Consumer, make, topic, slots)

    def listener(self, topic: Topic[PayloadT], **options: Unpack[ListenerOptions]) -> HandlerDecorator[PayloadT]:
        """Decorate an async handler, which runs after `start` or `run`. If it returns, it acks; if it raises, it nacks.

        Args:
            topic: As for `rmq.RmqClient.listener`.
            batch: As for `rmq.RmqClient.listener`.
            columns: As for `rmq.RmqClient.listener`; the handler gets an `rmq.aio.DeliveryColumns`.
            concurrency: Number of handlers that run in parallel, 1 to 1,000. One task claims and settles for all.
            on_lost: Called, not awaited, with each delivery whose lease was lost while it was held.
            group: As for `rmq.RmqClient.listener`.
            start: As for `rmq.RmqClient.listener`.
            adaptive: As for `rmq.RmqClient.listener`, up to `concurrency`.
            weight: As for `rmq.RmqClient.listener`.
            resume_as: As for `rmq.RmqClient.listener`.
            shared: As for `rmq.RmqClient.listener`.
            timeout: Maximum duration of a call, as for `rmq.RmqClient.listener`. Then the call is cancelled, and its
                messages are nacked once it has ended, even if it returns normally. A call that does not end within
                5 s is abandoned.

        Raises:
            InvalidValueError: An option is out of range or does not fit the topic; the handler is not an async
                function, or has a parameter that cannot be filled; or the client already has a listener of these
                messages, and not both are `shared`.

        Guarantee: leases are renewed while a handler runs, unless it blocks the event loop.
        """
        return listener_decorator(self.add, topic, **plain_options(options))

    def scheduled(self, name: str, **options: Unpack[ScheduleOptions]) -> Callable[[HandlerT], HandlerT]:
        """Decorate an async handler that runs on a schedule, which this client stores when its listeners start.

        Arguments and errors are those of `rmq.scheduled`.
        """
        return scheduled_decorator(self.add, name, options)

    def add(self, *listeners: Listener) -> None:
        """Add listeners, for example `client.add(*rmq.scan("my_package"))`; their `threads` is the concurrency.

        Raises:
            RmqError: The listeners of this client are already running.
            InvalidValueError: A handler is not an async function, or the client already has a listener of its messages,
                and not both are `shared`.
        """
        if self._started:
            raise RmqError("the listeners of this client are already running; add listeners before they are started")
        for listener in listeners:
            check_async(listener.handler)
        check_shared(self._listeners, *listeners)
        self._listeners += listeners

    async def start(
        self,
        concurrency: int | None = None,
        drain_s: float = DRAIN_S,
        idle: str = "normal",
        *,
        handlers: int | None = None,
    ) -> None:
        """Start all listeners, which run in tasks of their own.

        Args:
            concurrency: Number of parallel handlers of each listener; `None` uses each listener's setting.
            drain_s: As for `rmq.RmqClient.start`.
            idle: As for `rmq.RmqClient.start`.
            handlers: As for `rmq.RmqClient.start`.

        Raises:
            RmqError: As for `rmq.RmqClient.start`.
        """
        opened = await self._open()
        if not self._started:
            opened.plain.add(*(plain_listener(listener, opened.tasks) for listener in self._listeners))
        self._started = bool(self._listeners)
        await opened.run(PlainClient.start, concurrency, handlers, drain_s, idle)

    stop = async_method(PlainClient.stop, wrap_deliveries)

    async def run(
        self,
        drain_s: float = DRAIN_S,
        concurrency: int | None = None,
        idle: str = "normal",
        *,
        handlers: int | None = None,
        exit_when_hung: bool = False,
    ) -> list[Delivery]:
        """Run all listeners until SIGTERM, SIGINT, `stop` or `close`, or until cancelled, then stop them and close.

        A second signal exits at once. Results, errors and garbage collection are as for `rmq.RmqClient.run`.
        Call it in the event loop of the main thread.

        Args:
            drain_s: As for `start`.
            concurrency: As for `start`.
            idle: As for `start`.
            handlers: As for `start`.
            exit_when_hung: As for `rmq.RmqClient.run`.
        """
        require_main_thread("run()")
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            for number in before:
                loop.remove_signal_handler(number)
            ended.set()

        try:
            with handlers_put_back() as before, frozen_objects():
                try:
                    for number in before:
                        loop.add_signal_handler(number, end)
                    await self.start(concurrency, drain_s, idle, handlers=handlers)
                    service, hung = ServiceManager(), False
                    while not (ended.is_set() or hung) and (opened := self._opened) is not None:
                        listeners = opened.plain._listeners  # pyright: ignore[reportPrivateUsage]
                        if listeners.stopped:
                            break
                        with suppress(TimeoutError):
                            await asyncio.wait_for(ended.wait(), 1.0)
                        service.report(self.health())
                        hung = exit_when_hung and listeners.hang
                    service.stopping()
                    left = [] if self._opened is None else await self.stop(drain_s)
                    if hung:
                        exit_hung()
                    return left
                finally:
                    for number in before:
                        loop.remove_signal_handler(number)
        finally:
            await self.close()

    def health(self) -> Health:
        """Return whether the listeners of this process run, and are ready: see `rmq.RmqClient.health`."""
        return IDLE if self._opened is None else self._opened.plain.health()

    inspect = async_method(PlainClient.inspect, Inspection)
    stream = async_method(PlainClient.stream, StreamTopic)
    dead = async_method(PlainClient.dead, DeadLetters)
    control = async_method(PlainClient.control, Control)
    history = async_method(PlainClient.history, History)
    workers = async_method(PlainClient.workers)
    server_memory = async_method(PlainClient.server_memory)
    record_history = async_method(PlainClient.record_history)
    topics = async_method(PlainClient.topics)
    topic = async_method(PlainClient.topic)
    definitions = async_method(PlainClient.definitions)
    change_topic = async_method(PlainClient.change_topic)
    update_topic = async_method(PlainClient.update_topic)
    delete_topic = async_method(PlainClient.delete_topic)
    adopt = async_method(PlainClient.adopt)

    async def close(self) -> None:
        """Stop running listeners, wait for calls in progress, close all connections, and stop a temporary Redis.

        Handlers that still run after that are cancelled. A handler that ignores its cancellation is ended at its
        current wait 5 s later. In another event loop, this only closes the connections, once the client's loop is
        closed.

        In a handler, it stops the listeners as `stop` does. The rest is done in a task, once the handler has ended and
        its delivery is acked or nacked. A second call waits until the task has ended.

        Raises:
            RmqError: The client belongs to another event loop, which is not closed.
        """
        opened = self._opened
        if opened is not None and not opened.is_abandoned:
            opened.checked()
        self._closed, self._opened = True, None
        if opened is not None:
            self._last = opened
            await opened.begin_close()
        elif self._last is not None:
            await self._last.closed()

    async def _run(self, method: Callable[Concatenate[PlainClient, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await (await self._open()).run_in_turn(method, *args, **kwargs)

    async def _run_wrapped(
        self,
        wrap: Callable[[T, TaskGroup], WrapperT],
        method: Callable[Concatenate[PlainClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> WrapperT:
        opened = await self._open()
        return wrap(await opened.run_in_turn(method, *args, **kwargs), opened.tasks)

    async def _open(self) -> LoopState:
        if self._opened is not None:
            return self._opened.checked()
        if self._closed:
            raise ClientClosedError("this client is closed; create a new one")
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._opened is None:
                loop, tasks = EventLoop(), TaskGroup(call_semaphore)
                self._opened = LoopState(await tasks.run(self._new_plain, loop), tasks, loop)
        return self._opened
