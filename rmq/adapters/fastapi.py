"""RMQ for FastAPI and Starlette: a lifespan, dependencies, and handlers in the event loop of the service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, Unpack

from rmq import Listener, ScheduleOptions, Topic, scan
from rmq.aio import HandlerDecorator, Producer, RmqClient
from rmq.aio.listener import ListenerOptions, plain_options
from rmq.client import DRAIN_S
from rmq.errors import RmqError
from rmq.spi import HandlerT, PayloadT, check_async, chosen_url, listener_decorator, scheduled_decorator

__all__ = ["Rmq"]


class Rmq:
    """RMQ for one application. Create it next to the application; no event loop needs to run.

    Each run of the lifespan creates a client, so that tests can start the application several times.

    Args:
        url: As for `rmq.RmqClient`, but a temporary Redis is not the default: if `url` is omitted, the environment
            variable `RMQ_URL` must be set, for example to `embedded://`.
        listen: Run the handlers in the service. If False, it only sends, and another process runs the handlers with
            `run`.
        concurrency: Maximum number of handlers in parallel per listener; `None` uses each listener's setting.
        handlers: Maximum number of handlers in parallel over all listeners; `None` for no limit.
        idle: Mode while no message is due: `normal`, or `economy` for few commands.
        drain_s: Seconds to wait for running handlers at the end.
        exit_when_hung: As for `rmq.RmqClient.run`; applies to `run` only.
        options: Further options of `rmq.aio.RmqClient`.

    Examples:
        >>> from fastapi import FastAPI
        >>> from rmq.adapters.fastapi import Rmq
        >>> rmq = Rmq()
        >>> app = FastAPI(lifespan=rmq.lifespan)
        >>> @rmq.listener(Topic("pictures", TopicType.PRIORITY), concurrency=100)
        ... async def draw(delivery): ...
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        listen: bool = True,
        concurrency: int | None = None,
        handlers: int | None = None,
        idle: str = "normal",
        drain_s: float = DRAIN_S,
        exit_when_hung: bool = False,
        **options: Any,
    ) -> None:
        self._url, self._options = url, options
        self._listen, self._concurrency, self._handlers = listen, concurrency, handlers
        self._idle, self._drain_s, self._exit_when_hung = idle, drain_s, exit_when_hung
        self._listeners: list[Listener] = []
        self._client: RmqClient | None = None
        self._producers: dict[str, Producer] = {}

    def listener(self, topic: Topic[PayloadT], **options: Unpack[ListenerOptions]) -> HandlerDecorator[PayloadT]:
        """Register an async handler, which runs in the service's event loop; see `rmq.aio.RmqClient.listener`."""
        return listener_decorator(self._add, topic, **plain_options(options))

    def scheduled(self, name: str, **options: Unpack[ScheduleOptions]) -> Callable[[HandlerT], HandlerT]:
        """Register an async handler with a schedule, which the service stores when it starts; see `rmq.scheduled`."""
        return scheduled_decorator(self._add, name, options)

    def scan(self, package: str | ModuleType) -> None:
        """Register the handlers of a package, decorated with `rmq.listener` or `rmq.scheduled`; see `rmq.scan`."""
        for listener in scan(package):
            self._add(listener)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Connect, and run handlers while the service runs; at its end, wait for running handlers.

        Use it as `FastAPI(lifespan=rmq.lifespan)`, or in your own lifespan: `async with rmq.lifespan(app):`.

        Raises:
            RmqError: The lifespan of this object is already running; otherwise as for `rmq.aio.RmqClient.start`.
            InvalidUrlError: Neither `url` nor the environment variable `RMQ_URL` is set.
        """
        del app
        if self._client is not None:
            raise RmqError("the lifespan of this Rmq is already running; create another Rmq for another application")
        try:
            async with self._new_client() as self._client:
                if self._listen and self._listeners:
                    await self._client.start(self._concurrency, self._drain_s, self._idle, handlers=self._handlers)
                try:
                    yield
                finally:
                    await self._client.stop(self._drain_s)
        finally:
            self._client = None
            self._producers.clear()

    async def client(self) -> RmqClient:
        """Return the client. For a dependency, as in `Annotated[RmqClient, Depends(rmq.client)]`.

        Raises:
            RmqError: The lifespan is not running.
        """
        if self._client is None:
            raise RmqError(
                "the lifespan of Rmq is not running; pass it to the application: FastAPI(lifespan=rmq.lifespan)"
            )
        return self._client

    def producer(self, topic: Topic) -> Callable[[], Coroutine[Any, Any, Producer]]:
        """Return a dependency for the topic's producer: `Annotated[Producer, Depends(rmq.producer(PRICE))]`."""

        async def give() -> Producer:
            producer = self._producers.get(topic.name)
            if producer is None:
                producer = self._producers[topic.name] = await (await self.client()).producer(topic)
            return producer

        return give

    async def run(self) -> None:
        """Run the handlers without the service, as in `asyncio.run(rmq.run())`, until SIGTERM or SIGINT.

        Raises:
            RmqError: As for `rmq.aio.RmqClient.run`.
            InvalidUrlError: Neither `url` nor the environment variable `RMQ_URL` is set.
        """
        async with self._new_client() as client:
            await client.run(
                self._drain_s,
                self._concurrency,
                self._idle,
                handlers=self._handlers,
                exit_when_hung=self._exit_when_hung,
            )

    def _new_client(self) -> RmqClient:
        client = RmqClient(chosen_url(self._url).url, **self._options)
        client.add(*self._listeners)
        return client

    def _add(self, listener: Listener) -> None:
        check_async(listener.handler)
        self._listeners.append(listener)
