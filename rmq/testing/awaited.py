"""The test client for asyncio, whose handlers run in the caller's task."""

from __future__ import annotations

from rmq import Listener
from rmq.aio.client import LoopState, PlainClient, RmqClient
from rmq.aio.listener import plain_listener
from rmq.testing.clock import connect_on_clock
from rmq.testing.runs import Ran, Rules, run, run_schedules
from rmq.testing.sent import Expected, SentMessage, check_sent, sent_to


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


async def run_async(client: RmqClient, rules: Rules) -> Ran:
    """Run handlers of an asyncio client, one after the other."""
    opened, added = await _opened(client)
    listeners = [plain_listener(each, opened.tasks) for each in added]
    return await opened.tasks.run(run, opened.plain, listeners, rules)


async def run_schedules_async(client: RmqClient, most: int) -> int:
    """Send the messages of all schedules that are due; return their number."""
    opened, added = await _opened(client)
    return await opened.tasks.run(run_schedules, opened.plain, added, most)


async def sent_async(client: RmqClient, expected: Expected) -> list[SentMessage]:
    """Return the matching messages in the backlog."""
    opened, _ = await _opened(client)
    return await opened.tasks.run(sent_to, opened.plain, expected)


async def check_sent_async(client: RmqClient, expected: Expected) -> SentMessage:
    """Return the first matching message; raise `AssertionError` if there is none."""
    opened, _ = await _opened(client)
    return await opened.tasks.run(check_sent, opened.plain, expected)


async def _opened(client: RmqClient) -> tuple[LoopState, list[Listener]]:
    return await client._open(), client._listeners  # pyright: ignore[reportPrivateUsage]
