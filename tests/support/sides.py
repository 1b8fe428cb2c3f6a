"""Both sides of the library under the same names: the asyncio side runs in an event loop of another thread."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, cast

from anyio.from_thread import BlockingPortal, start_blocking_portal

from rmq import DelayedQueue, RmqClient, aio

SIDES = ("threads", "asyncio")
WRAPPED = (
    aio.Consumer, aio.Control, aio.DeadLetters, aio.DelayedQueue, aio.Delivery, aio.GroupDead, aio.History,
    aio.Inspection, aio.Producer, aio.Schedules, aio.StreamTopic,
)  # fmt: skip


class Side(Protocol):
    """One side."""

    def client(self, url: str, **options: Any) -> RmqClient:
        """Make a client."""
        ...

    def queue(self, client: RmqClient, name: str, **options: Any) -> DelayedQueue:
        """Make a delayed queue."""
        ...


class Threads:
    """The plain side."""

    def client(self, url: str, **options: Any) -> RmqClient:
        return RmqClient(url, **options)

    def queue(self, client: RmqClient, name: str, **options: Any) -> DelayedQueue:
        return DelayedQueue(client, name, **options)


class Asyncio:
    """The asyncio side, behind the names of the plain one."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal

    def client(self, url: str, **options: Any) -> RmqClient:
        client = aio.RmqClient(url, **options)
        self._portal.call(client.open)
        return cast("RmqClient", _Client(client, self._portal))

    def queue(self, client: RmqClient, name: str, **options: Any) -> DelayedQueue:
        queue = aio.DelayedQueue(_bare(client), name, **options)
        self._portal.call(queue.open)
        return cast("DelayedQueue", _Behind(queue, self._portal))


@contextlib.contextmanager
def side_of(name: str) -> Iterator[Side]:
    """Return the side of a name; what runs for it ends with the block."""
    if name == "threads":
        yield Threads()
    else:
        with start_blocking_portal() as portal:
            portal.call(_give_handlers_threads)
            yield Asyncio(portal)


def _give_handlers_threads() -> None:
    """Let as many plain handlers run at once as a test asks for: an event loop has few threads on a small machine."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))


class _Behind:
    """An object of the asyncio side whose methods are called, not awaited."""

    def __init__(self, awaited: Any, portal: BlockingPortal) -> None:
        self._awaited = awaited
        self._portal = portal

    @property
    def __class__(self) -> Any:
        plain = getattr(self._awaited, "_plain", None)
        return type(self) if plain is None else type(plain)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._awaited, name)
        return self._called(value) if callable(value) else self._shown(value)

    def _called(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            return self._portal.call(self._carried_out, method, tuple(map(_bare, args)), options)

        return call

    async def _carried_out(self, method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        result = method(*args, **options)
        return self._shown(await result if inspect.isawaitable(result) else result)

    def _shown(self, result: Any) -> Any:
        if isinstance(result, WRAPPED):
            return _Behind(result, self._portal)
        if isinstance(result, list):
            return [self._shown(each) for each in cast("list[Any]", result)]
        if isinstance(result, AsyncIterator):
            return self._gone_through(result)
        if hasattr(result, "__aenter__"):
            return self._portal.wrap_async_context_manager(result)
        return result

    def _gone_through(self, entries: AsyncIterator[Any]) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(entries, _END)

        while (entry := self._portal.call(following)) is not _END:
            yield self._shown(entry)

    def __iter__(self) -> Iterator[Any]:
        return self._gone_through(aiter(self._awaited))

    def __len__(self) -> int:
        return self.size()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self._called(self._awaited.close)()

    def __eq__(self, other: object) -> bool:
        return self._awaited == _bare(other)

    def __hash__(self) -> int:
        return hash(self._awaited)

    def __repr__(self) -> str:
        return repr(self._awaited)


class _Client(_Behind):
    """A client; its handlers are plain ones, and run in threads that hold up nobody."""

    def listener(self, topic: Any, *, threads: int = 1, **options: Any) -> Callable[[Any], Any]:
        decorate = self._awaited.listener(topic, concurrency=threads, **options)

        def decorated(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
            async def call(delivery: Any) -> None:
                await asyncio.to_thread(handler, self._shown(delivery))

            decorate(call)
            return handler

        return decorated


_END = object()


def _bare(value: Any) -> Any:
    if isinstance(value, list):
        return [_bare(each) for each in cast("list[Any]", value)]
    try:
        return object.__getattribute__(value, "_awaited")
    except AttributeError:
        return value
