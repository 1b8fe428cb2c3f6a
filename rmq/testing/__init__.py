"""Helpers for tests of programs that use RMQ; the fixtures of `pytest_rmq` are made of them.

They take a client of either side: what an `rmq.aio.RmqClient` gets is to be awaited. See docs/guide/testing.md.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from rmq._model.messages import Payload
from rmq._model.topics import Topic
from rmq._model.typed import PayloadT
from rmq.client import RmqClient
from rmq.errors import InvalidValueError
from rmq.testing.clock import Clock
from rmq.testing.runs import Ran, Rules, run
from rmq.testing.sent import Expected, SentMessage, check_sent, refuse_sent, sent_to
from rmq.testing.server import Server

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
    "run_until_empty",
    "sent",
]

T = TypeVar("T")
Awaited: TypeAlias = Coroutine[Any, Any, T]


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
    """Run the handlers of a client here and now, until none of their messages is due, also none that a handler sends.

    They run one after the other, with the arguments, outcomes, retries and observers of a worker. There is no worker:
    leases are not renewed, rate limits do not hold, and a new group of a stream gets all entries from the first one.

    Args:
        client: Whose listeners. They must not be started.
        clock: Go on until nothing waits: move this clock to the next due time, retry or end of a lease, over and over.
        raises: Raise the first error of a handler, once its delivery is nacked. `False` goes on, as a worker does.
        limit: How many deliveries that may be.

    Returns:
        What came of them.

    Raises:
        AssertionError: More than `limit` were due: a handler that sends to its own topic never ends.
        RmqError: The client has no listener, or they run already.

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
    return _run(client, Rules(_checked(limit, "limit"), clock, raises, must_end=True))


@overload
def run_at_most(client: RmqClient, number: int, *, clock: Clock | None = None, raises: bool = True) -> Ran: ...
@overload
def run_at_most(
    client: aio.RmqClient, number: int, *, clock: Clock | None = None, raises: bool = True
) -> Awaited[Ran]: ...
def run_at_most(
    client: RmqClient | aio.RmqClient, number: int, *, clock: Clock | None = None, raises: bool = True
) -> Ran | Awaited[Ran]:
    """Run handlers as `run_until_empty`, for so many deliveries at most: for handlers that send to their own topic.

    Args:
        client: Whose listeners.
        number: How many deliveries at most, 1 or more. A batch gets no more than are left.
        clock: As for `run_until_empty`.
        raises: As for `run_until_empty`.

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
    return _run(client, Rules(_checked(number, "number"), clock, raises, must_end=False))


@overload
def sent(client: RmqClient, topic: Topic[PayloadT]) -> list[SentMessage[PayloadT]]: ...
@overload
def sent(client: RmqClient, topic: str) -> list[SentMessage]: ...
@overload
def sent(client: aio.RmqClient, topic: Topic[PayloadT]) -> Awaited[list[SentMessage[PayloadT]]]: ...
@overload
def sent(client: aio.RmqClient, topic: str) -> Awaited[list[SentMessage]]: ...
def sent(client: RmqClient | aio.RmqClient, topic: Topic[Any] | str) -> Any:
    """Return the backlog of a topic: what was sent, and is not claimed. On a stream: all entries.

    The order within a slot is that of delivery.

    Examples:
        >>> from rmq.testing import sent
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send_many(PriorityMessage(f"job:{number}", number) for number in (1, 2))
        >>> [message.text for message in sent(client, jobs)]
        ['job:2', 'job:1']
    """
    expected = Expected(topic)
    if isinstance(client, RmqClient):
        return sent_to(client, expected)
    from rmq.testing.awaited import sent_async

    return sent_async(client, expected)


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
    """Check that a message is in the backlog of a topic, or in a stream. What is `None` may be anything.

    Args:
        client: Where to look.
        topic: The topic; one that nobody has used yet is registered.
        content: Its content.
        payload: Its payload, an object of the topic's payload class. Of a topic that collects: one of its payloads.
        body: Its body.
        priority: Its priority.

    Returns:
        The first such message: compare its `due` with `rmq_clock.now`.

    Raises:
        AssertionError: There is none; it says what there is.

    Examples:
        >>> from rmq.testing import assert_sent
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5, body="data"))
        >>> assert_sent(client, jobs, "job:1", body="data").priority
        5
        >>> assert_sent(client, jobs, "job:2")
        Traceback (most recent call last):
        AssertionError: no message with content 'job:2' is in the backlog of topic jobs, which holds 1:
          'job:1', body b'data', priority 5
    """
    expected = Expected(topic, content, payload, body, priority)
    if isinstance(client, RmqClient):
        return check_sent(client, expected)
    from rmq.testing.awaited import check_sent_async

    return check_sent_async(client, expected)


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
    """Check that no such message is in the backlog of a topic, or in a stream. The arguments are as for `assert_sent`.

    Raises:
        AssertionError: There is one; it says which.

    Examples:
        >>> from rmq.testing import assert_not_sent
        >>> assert_not_sent(client, Topic("jobs", TopicType.PRIORITY), "job:1")
    """
    unexpected = Expected(topic, content, payload)
    if isinstance(client, RmqClient):
        return refuse_sent(sent_to(client, unexpected), unexpected)
    return _refuse_sent(client, unexpected)


async def _refuse_sent(client: aio.RmqClient, unexpected: Expected) -> None:
    from rmq.testing.awaited import sent_async

    refuse_sent(await sent_async(client, unexpected), unexpected)


def _run(client: RmqClient | aio.RmqClient, rules: Rules) -> Ran | Awaited[Ran]:
    if isinstance(client, RmqClient):
        return run(client, client._listeners.added, rules)  # pyright: ignore[reportPrivateUsage]
    from rmq.testing.awaited import run_async  # without asyncio nobody needs greenlet

    return run_async(client, rules)


def _checked(number: int, name: str) -> int:
    if type(number) is not int or number < 1:
        raise InvalidValueError(f"{name} is {number!r}; it must be a whole number of 1 or more")
    return number
