"""RMQ in FastAPI and Starlette: a lifespan, dependencies, and handlers in the event loop of the service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, Unpack

from rmq._listening.discovery import scan
from rmq._listening.listener import Listener, decorator
from rmq._model.handlers import check_async
from rmq._model.topics import Topic
from rmq._model.typed import PayloadT
from rmq._transport.urls import chosen_url
from rmq.aio import HandlerDecorator, Producer, RmqClient
from rmq.aio.listener import ListenerOptions, plain_options
from rmq.client import DRAIN_S
from rmq.errors import RmqError

__all__ = ["Rmq"]


class Rmq:
    """RMQ in one application; made where the application is, also before an event loop runs.

    Each run of the lifespan makes a client of its own, so that tests may start the application several times.

    Args:
        url: As for `rmq.RmqClient`; by default `RMQ_URL` from the environment. One of them must name a Redis, if only
            `embedded://`.
        listen: True if the handlers run in the service; without, it only sends, and `run` handles elsewhere.
        concurrency: How many handlers of each listener run at the same time; `None` for as many as it says itself.
        handlers: How many run at the same time over all listeners; `None` for no such bound.
        idle: How to wait where nothing is due: `normal`, or `economy` for few commands.
        drain_s: Seconds to wait for running handlers at the end.
        exit_when_hung: As for `rmq.RmqClient.run`; for `run`, not for the service.
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
        """Decorate an async handler, which runs in the event loop of the service; see `rmq.aio.RmqClient.listener`."""
        return decorator(self._add, topic, **plain_options(options))

    def scan(self, package: str | ModuleType) -> None:
        """Add all handlers of a package that are marked with `rmq.listener`; see `rmq.scan`."""
        for listener in scan(package):
            self._add(listener)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Connect and handle while the service runs; at its end let running handlers finish.

        For `FastAPI(lifespan=rmq.lifespan)`, or in a lifespan of yours: `async with rmq.lifespan(app):`.

        Raises:
            RmqError: The lifespan of this object runs already.
            InvalidUrlError: Neither `url` nor `RMQ_URL` names a Redis.
        """
        del app
        if self._client is not None:
            raise RmqError("the lifespan of this Rmq runs already; make another Rmq for another application")
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
        """Return the client: a dependency, `Annotated[RmqClient, Depends(rmq.client)]`.

        Raises:
            RmqError: The lifespan does not run.
        """
        if self._client is None:
            raise RmqError(
                "the lifespan of Rmq does not run: pass it to the application, FastAPI(lifespan=rmq.lifespan)"
            )
        return self._client

    def producer(self, topic: Topic) -> Callable[[], Coroutine[Any, Any, Producer]]:
        """Return a dependency that gives the topic's producer: `Annotated[Producer, Depends(rmq.producer(PRICE))]`."""

        async def give() -> Producer:
            producer = self._producers.get(topic.name)
            if producer is None:
                producer = self._producers[topic.name] = await (await self.client()).producer(topic)
            return producer

        return give

    async def run(self) -> None:
        """Run the handlers without the service until SIGTERM or SIGINT: `asyncio.run(rmq.run())`.

        Raises:
            RmqError: As `rmq.aio.RmqClient.run`.
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
