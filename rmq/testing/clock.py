"""A test clock that does not advance by itself, and scripts that read it, for clients of `rmq.testing` only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from rmq.errors import InvalidValueError
from rmq.spi import Duration, duration_ms, instant_ms
from rmq.spi.scripts import Connections, ScriptLibrary

CLOCK_KEY = "rmq:testing:clock"
"""Key of the test clock's time, epoch ms. Without this key, Redis' time applies."""

READ_CLOCK = f"""
local function read_clock()
  if redis.replicate_commands then
    redis.replicate_commands()
  end
  local now_ms = tonumber(redis.call('GET', '{CLOCK_KEY}') or '')
  if not now_ms then
    local time = redis.call('TIME')
    now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now_ms, math.floor(now_ms / 1000)
end
"""
"""Replaces the function of that name in `lua/libraries`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def scripts_on_clock() -> ScriptLibrary:
    """Return the scripts of a test client."""
    return ScriptLibrary(READ_CLOCK)


def connect_on_clock(*args: Any, **options: Any) -> Connections:
    """Return connections whose scripts read the test clock."""
    return Connections(*args, scripts=scripts_on_clock(), **options)


class Clock:
    """The clock of a test server. It starts at Redis' time, and moves only by `advance` and `move_to`.

    `Server.clock` and the fixture `rmq_clock` create it. The next `Server.flush`, and so the next test, removes it.

    Args:
        connections: Connections to the server.

    Examples:
        >>> from rmq.testing import Server
        >>> with Server() as server, server.client() as client:
        ...     clock = server.clock()
        ...     letters = Topic("letters", TopicType.FIXED_TIME)
        ...     _ = client.producer(letters).send(FixedTimeMessage("to ann", clock.now + timedelta(days=1)))
        ...     consumer = client.consumer(letters)
        ...     clock.advance("23h")
        ...     early = consumer.poll()
        ...     clock.advance("1h")
        ...     print(early, [delivery.text for delivery in consumer.poll()])
        [] ['to ann']
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        whole_s, rest_us = connections.command("TIME", key=CLOCK_KEY)
        self._now_ms = 0
        self._set(int(whole_s) * 1000 + int(rest_us) // 1000)

    @property
    def now_ms(self) -> int:
        """The current time, epoch ms."""
        return self._now_ms

    @property
    def now(self) -> datetime:
        """The current time, in UTC."""
        return _EPOCH + timedelta(milliseconds=self._now_ms)

    def advance(self, by: Duration) -> None:
        """Advance the clock by a `timedelta`, or by a text such as "5m".

        Raises:
            InvalidValueError: The value is not a duration, or is negative.
        """
        self._set(self._now_ms + duration_ms(by, "by"))

    def move_to(self, moment: datetime) -> None:
        """Advance the clock to `moment`, an aware `datetime`.

        Raises:
            InvalidValueError: `moment` is not an aware `datetime`, or is before the clock's current time.
        """
        moment_ms = instant_ms(moment, "moment")
        if moment_ms < self._now_ms:
            raise InvalidValueError(
                f"moment is {moment!r}; it must not be before the clock's time, {self.now.isoformat()}"
            )
        self._set(moment_ms)

    def _set(self, now_ms: int) -> None:
        self._connections.command("SET", CLOCK_KEY, now_ms)
        self._now_ms = now_ms
