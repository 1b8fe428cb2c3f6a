"""The test client for asyncio, whose handlers run in the caller's task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rmq.aio.client import PlainClient, RmqClient
from rmq.aio.listener import plain_listener
from rmq.testing.clock import connect_on_clock


class PlainClientOnClock(PlainClient):
    """The synchronous core of an asyncio client that uses the test clock."""

    _connect = staticmethod(connect_on_clock)


class AsyncClientOnClock(RmqClient):
    """An asyncio client that uses the test clock."""

    _plain = PlainClientOnClock

    @property
    def is_open(self) -> bool:
        """True if the client has been used and not closed."""
        return self._opened is not None


async def call(client: RmqClient, body: Callable[..., Any], args: Sequence[Any], with_listeners: bool) -> Any:
    """Call `body` with the synchronous core of a client, its listeners and `args`."""
    opened = await client._open()  # pyright: ignore[reportPrivateUsage]
    listeners = [plain_listener(each, opened.tasks) for each in client._listeners]  # pyright: ignore[reportPrivateUsage]
    added = [listeners] if with_listeners else []
    return await opened.tasks.run(body, opened.plain, *added, *args)
