"""The Redis server of a test run, and its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmq import EmbeddedServer
from rmq.client import RmqClient
from rmq.spi.scripts import Connections, parse_url
from rmq.testing.clock import CLOCK_KEY, Clock, connect_on_clock

if TYPE_CHECKING:
    from rmq import aio


class ClientOnClock(RmqClient):
    """A client that uses the test clock."""

    _connect = staticmethod(connect_on_clock)


class Server:
    """An embedded Redis for tests. Start one for many tests, and `flush` it before each, as the fixtures do.

    Each process has its own server, as does each worker of pytest-xdist.

    Attributes:
        url: URL of the server, for other programs. Only clients created by this object use the test clock.

    Raises:
        EmbeddedServerError: The server did not start.

    Examples:
        >>> from rmq.testing import Server, run_until_empty
        >>> with Server() as server, server.client() as rmq:
        ...     jobs = Topic("jobs", TopicType.PRIORITY)
        ...     @rmq.listener(jobs)
        ...     def work(delivery): print(delivery.text)
        ...     _ = rmq.producer(jobs).send(PriorityMessage("job:1", 5))
        ...     ran = run_until_empty(rmq)
        job:1
    """

    def __init__(self) -> None:
        self._server = EmbeddedServer.start()
        self.url = self._server.url
        self._connections = Connections(parse_url(self.url))

    def client(self, **options: Any) -> RmqClient:
        """Return a client of this server, with options of `RmqClient`. The caller closes it."""
        return ClientOnClock(self.url, **options)

    def async_client(self, **options: Any) -> aio.RmqClient:
        """Return an asyncio client of this server, with options of `rmq.aio.RmqClient`. The caller closes it."""
        from rmq.testing.awaited import AsyncClientOnClock  # imports greenlet, which only asyncio clients need

        return AsyncClientOnClock(self.url, **options)

    def clock(self) -> Clock:
        """Stop the time of this server's clients; return the clock that moves it."""
        return Clock(self._connections)

    def flush(self) -> None:
        """Delete all messages and topics, and return to Redis' time."""
        self._connections.command("FLUSHALL", key=CLOCK_KEY)

    def close(self) -> None:
        """Stop the server."""
        self._connections.close()
        self._server.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
