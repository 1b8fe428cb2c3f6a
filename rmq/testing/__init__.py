"""Helpers for tests of programs that use RMQ, the basis of the fixtures of `pytest_rmq`.

They take a synchronous or an asyncio client; with an `rmq.aio.RmqClient` the result must be awaited. See
docs/guide/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from rmq import EmbeddedServer, Topic
from rmq.client import RmqClient
from rmq.errors import InvalidValueError
from rmq.spi import Payload, PayloadT
from rmq.spi.scripts import Connections, parse_url
from rmq.testing.clock import CLOCK_KEY, Clock, connect_on_clock
from rmq.testing.runs import Ran, Rules, run
from rmq.testing.runs import run_schedules as run_due
from rmq.testing.sent import Expected, SentMessage, check_sent, refuse_sent, sent_to

if TYPE_CHECKING:
    from rmq import aio

__all__ = [
    "Clock",
    "Ran",
    "SentMessage",
    "Server",
    "assert_not_sent",
    "assert_sent",
    "run_at_most",
    "run_schedules",
    "run_until_empty",
    "sent",
]

T = TypeVar("T")
Awaited: TypeAlias = Coroutine[Any, Any, T]


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


@overload
def run_until_empty(
    client: RmqClient, *, clock: Clock | None = None, raises: bool = True, limit: int = 10_000
) -> Ran: ...
@overload
def run_until_empty(
    client: aio.RmqClient, *, clock: Clock | None = None, raises: bool = True, limit: int = 10_000
) -> Awaited[Ran]: ...
def run_until_empty(
    client: RmqClient | aio.RmqClient, *, clock: Clock | None = None, raises: bool = True, limit: int = 10_000
) -> Ran | Awaited[Ran]:
    """Run the handlers of a client in this thread until no message is due, including messages that handlers send.

    They run one after the other, with the arguments, outcomes, retries and observers of a worker. Unlike in a worker,
    leases are not renewed, rate limits do not apply, and a new group of a stream starts with the first entry.

    Args:
        client: The client of the listeners, which must not be started.
        clock: If given, continue until no message waits: when none is due, move this clock to the next due time, retry
            or lease expiry.
        raises: Raise the first error of a handler, after its delivery is nacked, or the first `PayloadError`, after its
            delivery is buried. If false, the run continues, as a worker does.
        limit: Maximum number of deliveries.

    Returns:
        The numbers of outcomes, and the errors.

    Raises:
        AssertionError: More than `limit` deliveries were due, as with a handler that sends to its own topic.
        RmqError: The client has no listeners, or they have been started; or `limit` is not a whole number from 1.

    Examples:
        >>> from rmq.testing import run_until_empty
        >>> images = Topic("images", TopicType.PRIORITY)
        >>> @client.listener(images)
        ... def draw(delivery): print("draw", delivery.text)
        >>> _ = client.producer(images).send(PriorityMessage("mug", 5))
        >>> run_until_empty(client).acked
        draw mug
        1
    """
    rules = Rules(_checked(limit, "limit"), clock, raises, must_end=True)
    return _call(client, run, rules, with_listeners=True)


@overload
def run_at_most(client: RmqClient, number: int, *, clock: Clock | None = None, raises: bool = True) -> Ran: ...
@overload
def run_at_most(
    client: aio.RmqClient, number: int, *, clock: Clock | None = None, raises: bool = True
) -> Awaited[Ran]: ...
def run_at_most(
    client: RmqClient | aio.RmqClient, number: int, *, clock: Clock | None = None, raises: bool = True
) -> Ran | Awaited[Ran]:
    """Run handlers as `run_until_empty` does, but for at most `number` deliveries.

    Args:
        client: The client of the listeners.
        number: Maximum number of deliveries, at least 1. A batch has at most as many as are left of it.
        clock: As for `run_until_empty`.
        raises: As for `run_until_empty`.

    Returns:
        The numbers of outcomes, and the errors.

    Raises:
        RmqError: The client has no listeners, or they have been started; or `number` is not a whole number from 1.

    Examples:
        >>> from rmq.testing import run_at_most
        >>> ticks = Topic("ticks", TopicType.PRIORITY)
        >>> @client.listener(ticks)
        ... def tick(delivery):
        ...     client.producer(ticks).send(PriorityMessage(delivery.text + "+", 5))
        >>> _ = client.producer(ticks).send(PriorityMessage("tick", 5))
        >>> run_at_most(client, 3).acked
        3
    """
    rules = Rules(_checked(number, "number"), clock, raises, must_end=False)
    return _call(client, run, rules, with_listeners=True)


@overload
def run_schedules(client: RmqClient, *, limit: int = 10_000) -> int: ...
@overload
def run_schedules(client: aio.RmqClient, *, limit: int = 10_000) -> Awaited[int]: ...
def run_schedules(client: RmqClient | aio.RmqClient, *, limit: int = 10_000) -> int | Awaited[int]:
    """Send the messages of all schedules that are due, as workers do. Handlers are not called: see `run_until_empty`.

    Schedules of handlers that are marked as `scheduled` are put first, as `start` does.

    Args:
        client: The client whose schedules run.
        limit: Maximum number of due times.

    Returns:
        The number of messages that were sent.

    Raises:
        AssertionError: A message could not be sent, or more than `limit` due times had passed.

    Examples:
        >>> from rmq.testing import Server, assert_sent, run_schedules
        >>> with Server() as server, server.client() as client:
        ...     clock = server.clock()
        ...     reports = Topic("reports", TopicType.FIXED_TIME)
        ...     _ = client.schedules.put(Schedule("hourly", reports, "report", every="1h"))
        ...     clock.advance("1h")
        ...     print(run_schedules(client), assert_sent(client, reports).text)
        1 report
    """
    return _call(client, run_due, _checked(limit, "limit"), with_listeners=True)


@overload
def sent(client: RmqClient, topic: Topic[PayloadT]) -> list[SentMessage[PayloadT]]: ...
@overload
def sent(client: RmqClient, topic: str) -> list[SentMessage]: ...
@overload
def sent(client: aio.RmqClient, topic: Topic[PayloadT]) -> Awaited[list[SentMessage[PayloadT]]]: ...
@overload
def sent(client: aio.RmqClient, topic: str) -> Awaited[list[SentMessage]]: ...
def sent(client: RmqClient | aio.RmqClient, topic: Topic[Any] | str) -> Any:
    """Return the backlog of a topic, that is, messages sent and not claimed; on a stream, all entries.

    Within a slot they are in order of delivery.

    Examples:
        >>> from rmq.testing import sent
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send_many(PriorityMessage(f"job:{number}", number) for number in (1, 2))
        >>> [message.text for message in sent(client, jobs)]
        ['job:2', 'job:1']
    """
    return _call(client, sent_to, Expected(topic))


@overload
def assert_sent(
    client: RmqClient,
    topic: Topic[PayloadT],
    content: Payload | None = None,
    *,
    payload: PayloadT | None = None,
    body: Payload | None = None,
    priority: int | None = None,
) -> SentMessage[PayloadT]: ...
@overload
def assert_sent(
    client: aio.RmqClient,
    topic: Topic[PayloadT],
    content: Payload | None = None,
    *,
    payload: PayloadT | None = None,
    body: Payload | None = None,
    priority: int | None = None,
) -> Awaited[SentMessage[PayloadT]]: ...
def assert_sent(
    client: RmqClient | aio.RmqClient,
    topic: Topic[PayloadT],
    content: Payload | None = None,
    *,
    payload: PayloadT | None = None,
    body: Payload | None = None,
    priority: int | None = None,
) -> Any:
    """Check that a message is in the backlog of a topic, or in a stream. Arguments that are `None` match any value.

    Args:
        client: The client to use.
        topic: The topic. It need not be registered.
        content: The expected content.
        payload: The expected payload, an object of the topic's payload class; on a topic that collects, one of its
            payloads.
        body: The expected body.
        priority: The expected priority.

    Returns:
        The first matching message. Compare its `due` with `rmq_clock.now`.

    Raises:
        AssertionError: No message matches. The error lists the first 10 messages of the backlog.

    Examples:
        >>> from rmq.testing import assert_sent
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5, body="data"))
        >>> assert_sent(client, jobs, "job:1", body="data").priority
        5
        >>> assert_sent(client, jobs, "job:2")
        Traceback (most recent call last):
        AssertionError: no message with content 'job:2' is in the backlog of topic jobs, which has 1 message:
          'job:1', body b'data', priority 5
    """
    return _call(client, check_sent, Expected(topic, content, payload, body, priority))


@overload
def assert_not_sent(
    client: RmqClient, topic: Topic[PayloadT], content: Payload | None = None, *, payload: PayloadT | None = None
) -> None: ...
@overload
def assert_not_sent(
    client: aio.RmqClient, topic: Topic[PayloadT], content: Payload | None = None, *, payload: PayloadT | None = None
) -> Awaited[None]: ...
def assert_not_sent(
    client: RmqClient | aio.RmqClient,
    topic: Topic[PayloadT],
    content: Payload | None = None,
    *,
    payload: PayloadT | None = None,
) -> Any:
    """Check that no matching message is in the backlog of a topic, or in a stream. Arguments as for `assert_sent`.

    Raises:
        AssertionError: There are matching messages. The error lists the first 10.

    Examples:
        >>> from rmq.testing import assert_not_sent
        >>> assert_not_sent(client, Topic("jobs", TopicType.PRIORITY), "job:1")
    """
    return _call(client, refuse_sent, Expected(topic, content, payload))


def _call(client: RmqClient | aio.RmqClient, body: Callable[..., Any], *args: Any, with_listeners: bool = False) -> Any:
    """Call `body` with a client, its listeners and `args`; for an asyncio client return a coroutine that does so."""
    if not isinstance(client, RmqClient):
        from rmq.testing.awaited import call  # imports greenlet, which only asyncio clients need

        return call(client, body, args, with_listeners)
    added = [client._listeners.added] if with_listeners else []  # pyright: ignore[reportPrivateUsage]
    return body(client, *added, *args)


def _checked(number: int, name: str) -> int:
    if type(number) is not int or number < 1:
        raise InvalidValueError(f"{name} is {number!r}; it must be a whole number of 1 or more")
    return number
