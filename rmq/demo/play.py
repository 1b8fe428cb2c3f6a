"""The sending side: replays a day in compressed time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rmq import ControlResult, FixedTimeMessage, PriorityMessage, RangeMergeMessage, RmqClient
from rmq.demo.jobs import (
    CLOSE_AFTER_MIN,
    CLOSE_ORDER,
    CUSTOMER_PICTURE,
    MERGE_WINDOW_MIN,
    PRICE_PICTURE,
    TAKINGS,
    TOPICS,
    Minute,
)
from rmq.errors import FixedTimePassedError

WritePrices: TypeAlias = Callable[[Mapping[str, int]], None]
"""A function that stores new prices: item -> pence."""

LEAST_AHEAD_MS = 250
"""Minimum delay until an order is closed, ms, for short demos: the time must be in the future when the message
arrives."""

_ATTEMPTS = 5
_CLOCK_READINGS = 7


def redis_clock(client: RmqClient) -> Callable[[], int]:
    """Return a function for Redis' time, epoch ms, to about a millisecond: read a few times, then extrapolated."""
    view, readings = client.inspect(CLOSE_ORDER), list[tuple[float, float]]()
    for _ in range(_CLOCK_READINGS):
        before_s = time.monotonic()
        now_ms = view.stats([0]).slots[0].now_ms
        after_s = time.monotonic()
        readings.append((after_s - before_s, now_ms - 500 * (before_s + after_s)))
    ahead_ms = min(readings)[1]  # from the fastest reading
    return lambda: round(1_000 * time.monotonic() + ahead_ms)


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed of the replay: `minutes` of order time, more than 0, take `seconds`."""

    minutes: int
    seconds: float

    def seconds_of(self, minutes: float) -> float:
        """Return the duration of minutes of order time, in seconds."""
        return minutes * self.seconds / self.minutes

    def ms_of(self, minutes: float) -> int:
        """Return the duration of minutes of order time in ms, at least 1."""
        return max(1, round(1_000 * self.seconds_of(minutes)))

    def minute_at(self, elapsed_s: float) -> int:
        """Return the minute of order time after a number of seconds."""
        return int(elapsed_s * self.minutes / self.seconds)


class Player(threading.Thread):
    """Sends the events of each minute at their time, or as soon as possible after it.

    Args:
        client: The client to use.
        plan: The minutes of the day.
        pace: Speed of order time.
        write_prices: Stores new prices for the renderers; `None` without pictures.

    Attributes:
        lines: Number of order lines replayed so far.
        last_sent_s: Topic name and content -> start of the last send by `time.monotonic`, without orders whose closing
            was cancelled.
        too_late: Number of payments that arrived when the order was being closed.
        error: Error that ended the replay early.
    """

    def __init__(
        self, client: RmqClient, plan: Sequence[Minute], pace: Pace, write_prices: WritePrices | None = None
    ) -> None:
        super().__init__(name="rmq-demo-player", daemon=True)
        self._plan, self._pace, self._write_prices = plan, pace, write_prices
        self._now_ms = redis_clock(client)
        self._prices, self._pictures, self._closings, self._takings = map(client.producer, TOPICS)
        self._control = client.control(CLOSE_ORDER)
        self._stopped = threading.Event()
        self._started_s = time.monotonic()
        self.lines = 0
        self.last_sent_s: dict[tuple[str, str], float] = {}
        self.too_late = 0
        self.error: Exception | None = None

    @property
    def minute(self) -> int:
        """Present minute of order time; it advances after the last order, too."""
        return self._pace.minute_at(time.monotonic() - self._started_s)

    def stop(self) -> None:
        """Stop the replay; returns when the last send is done."""
        self._stopped.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        """Replay the day."""
        self._started_s = time.monotonic()
        try:
            for minute in self._plan:
                due_s = self._started_s + self._pace.seconds_of(minute.number)
                if self._stopped.wait(max(0.0, due_s - time.monotonic())):
                    return
                self._play(minute)
        except Exception as error:
            self.error = error

    def _play(self, minute: Minute) -> None:
        if self._write_prices is not None and minute.prices:
            self._write_prices(minute.prices)  # before the messages, so that every later delivery draws this price
        self._note(PRICE_PICTURE.name, [f"item:{item}" for item in minute.repriced])
        window_ms = self._pace.ms_of(MERGE_WINDOW_MIN)
        # the message has no price: it may merge with an earlier one, and the worker looks up the price
        self._prices.send_many(RangeMergeMessage(f"item:{item}", time_range_ms=window_ms) for item in minute.repriced)
        self._note(CUSTOMER_PICTURE.name, [picture.content for picture in minute.pictures])
        now_ms = self._now_ms()
        self._pictures.send_many(
            PriorityMessage(
                picture.content, picture.tier.value, body=json.dumps({"tier": picture.tier.name, "sent_ms": now_ms})
            )
            for picture in minute.pictures
        )
        self._note(TAKINGS.name, [content for content, _ in minute.takings])
        self._takings.send_many(
            RangeMergeMessage(content, time_range_ms=window_ms, body=pence) for content, pence in minute.takings
        )
        for invoice in minute.opened:
            self._open(invoice)
        for invoice in minute.paid:
            self._pay(invoice)
        self.lines += minute.lines

    def _open(self, invoice: str) -> None:
        content = f"order:{invoice}"
        self._note(CLOSE_ORDER.name, [content])
        ahead_ms = max(LEAST_AHEAD_MS, self._pace.ms_of(CLOSE_AFTER_MIN))
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._closings.send(FixedTimeMessage(content, fixed_time_ms=self._now_ms() + ahead_ms))
                return
            except FixedTimePassedError:  # this process was suspended in between
                if not left:
                    raise

    def _pay(self, invoice: str) -> None:
        content = f"order:{invoice}"
        if self._control.cancel(content) is ControlResult.DONE:
            self.last_sent_s.pop((CLOSE_ORDER.name, content), None)
        else:
            self.too_late += 1

    def _note(self, topic: str, contents: Sequence[str]) -> None:
        now_s = time.monotonic()
        self.last_sent_s.update(((topic, content), now_s) for content in contents)
