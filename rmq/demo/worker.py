"""The two sides of the demo: a player that replays a day in compressed time, and the crew of worker processes.

A worker draws pictures, closes orders, books takings, and records its handler runs:

    RMQ_URL=... python -m rmq.demo.worker SECONDS_PER_MINUTE [FOLDER]

With a folder it draws pictures into it; without one it only sleeps.

It prints `ready` when it is listening. It ends when its standard input ends, even if the demo was killed, and then
prints its `Handled` records, one JSON list per line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self, TypeAlias

from rmq import ControlResult, Delivery, FixedTimeMessage, PriorityMessage, RangeMergeMessage, RmqClient
from rmq.demo.jobs import (
    CLOSE_AFTER_MIN,
    CLOSE_ORDER,
    CUSTOMER_PICTURE,
    MERGE_WINDOW_MIN,
    PICTURE_TOPICS,
    PRICE_PICTURE,
    TAKINGS,
    TOPICS,
    Minute,
    Tier,
    fail_if_fated,
)
from rmq.demo.orders import read_orders
from rmq.demo.summary import Handled
from rmq.errors import FixedTimePassedError, RmqError

WritePrices: TypeAlias = Callable[[Mapping[str, int]], None]
"""A function that stores new prices: item -> pence."""

WORK_MIN = {PRICE_PICTURE.name: 0.2, CUSTOMER_PICTURE.name: 0.25, CLOSE_ORDER.name: 0.1, TAKINGS.name: 0.1}
"""Duration of a job in minutes of order time; for a picture, the time to get its photo."""

THREADS = {PRICE_PICTURE.name: 4, CUSTOMER_PICTURE.name: 1, CLOSE_ORDER.name: 1, TAKINGS.name: 1}
"""Number of threads of each topic's listener: one for customers' pictures, so that they queue up and are drawn by
priority."""

_DRAIN_S = 5.0

_DEADLINE_S = 5.0
"""Deadline of calls to Redis, seconds: short, so that workers end soon if the demo and its Redis are killed."""

Render: TypeAlias = Callable[[str, Tier | None], int]
"""A function that draws the picture of a content for a tier, and returns its price in pence."""

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


def handler(
    now_ms: Callable[[], int], seconds_per_minute: float, records: list[Handled], render: Render | None = None
) -> Callable[[Delivery], None]:
    """Return the handler of all topics of the demo, which appends to `records`."""

    def handle(delivery: Delivery) -> None:
        entered_ms, started_s = now_ms(), time.monotonic()
        summed = delivery.topic.merge is not None
        body: dict[str, Any] = {} if summed else json.loads(delivery.body or b"{}")
        due_ms = delivery.due_ms
        early = due_ms is not None and delivery.claimed_ms < due_ms
        if due_ms is None and delivery.attempt == 1:
            due_ms = body.get("sent_ms")  # a priority message is due at once
        late_ms = None if due_ms is None else max(0, entered_ms - due_ms)
        topic, content, done, price = delivery.topic.name, delivery.text, False, None
        tier, claim = body.get("tier"), f"{delivery.slot}:{delivery.claim_score // 1_000}"
        try:
            time.sleep(WORK_MIN[topic] * seconds_per_minute)
            fail_if_fated(content, delivery.attempt)
            if render is not None and topic in PICTURE_TOPICS:
                price = render(content, tier and Tier[tier])
            done = True
        finally:
            handled = Handled(topic, content, done, started_s, time.monotonic(), late_ms, early, tier)
            handled = replace(handled, attempt=delivery.attempt, claim=claim, price=price)
            if summed:
                handled = replace(handled, pence=delivery.value, first_sent_ms=delivery.first_sent_ms)
            records.append(handled)  # append is atomic: the threads need no lock

    return handle


def renderer(folder: str) -> Render:
    """Return a function that draws pictures into a folder."""
    from rmq.demo.pictures import Renderer  # imports Pillow, which only pictures need

    return Renderer(Path(folder), {line.item: line.name for line in read_orders()}).render


def main() -> None:
    """Run the worker until standard input ends."""
    render = renderer(sys.argv[2]) if len(sys.argv) > 2 else None
    records: list[Handled] = []
    with RmqClient(deadline_s=_DEADLINE_S) as client:
        handle = handler(redis_clock(client), float(sys.argv[1]), records, render)
        for topic in TOPICS:
            client.listener(topic, threads=THREADS[topic.name])(handle)
        client.start()
        print("ready", flush=True)
        sys.stdin.buffer.read()
        client.stop(_DRAIN_S)
    for record in records:
        print(record.to_json())


WORKERS = 2

_STOP_LIMIT_S = 10.0
_LOG_LINES = 5


class Crew:
    """Worker processes. They get the URL in `RMQ_URL`, so that a password in it is not visible in the process list.

    At the end of the `with` block the workers have a short time to finish, and are then killed.

    Args:
        url: URL of Redis.
        seconds_per_minute: Duration of a minute of order time.
        folder: Folder of the pictures; `None` draws none.
    """

    def __init__(self, url: str, seconds_per_minute: float, folder: Path | None = None) -> None:
        self._logs: list[IO[str]] = []
        self._workers: list[subprocess.Popen[str]] = []
        try:
            for _ in range(WORKERS):
                self._start(url, [repr(seconds_per_minute), *([] if folder is None else [str(folder)])])
        except BaseException:
            self.__exit__()
            raise

    def _start(self, url: str, arguments: list[str]) -> None:
        log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._logs.append(log)
        self._workers.append(
            subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "rmq.demo.worker", *arguments],
                env={**os.environ, "RMQ_URL": url, "PYTHONIOENCODING": "utf-8"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C in the terminal must reach the demo only, which stops them in order
            )
        )

    def wait_ready(self) -> None:
        """Wait until all workers are listening.

        Raises:
            RmqError: A worker did not start.
        """
        for worker, log in zip(self._workers, self._logs, strict=True):
            if worker.stdout is None or worker.stdout.readline() != "ready\n":
                raise _failed("a worker of the demo did not start", log)

    def check(self) -> None:
        """Check that no worker has failed or exited early.

        Raises:
            RmqError: A worker has failed or exited early.
        """
        for worker, log in zip(self._workers, self._logs, strict=True):
            if worker.poll() is not None and (worker.returncode or worker.stdin is not None):
                raise _failed(f"a worker of the demo ended with code {worker.returncode}", log)

    def dismiss(self) -> list[Handled]:
        """Let all workers finish, and return their records.

        Raises:
            RmqError: A worker did not end, or failed.
        """
        written = self._end()
        for text, log in zip(written, self._logs, strict=True):
            if text is None:
                raise _failed(f"a worker of the demo did not end in {_STOP_LIMIT_S:g} s", log)
        self.check()
        return [Handled.from_json(line) for text in written for line in (text or "").splitlines()]

    def _end(self) -> list[str | None]:
        """Stop all workers; return their output, `None` for one that had to be killed."""
        for worker in self._workers:
            if worker.stdin is not None:
                worker.stdin.close()
                worker.stdin = None
        return [_last_output(worker) for worker in self._workers]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for log in self._logs:
            log.close()


def _last_output(worker: subprocess.Popen[str]) -> str | None:
    try:
        return worker.communicate(timeout=_STOP_LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.communicate()
        return None


def _failed(text: str, log: IO[str]) -> RmqError:
    log.seek(0)
    lines = log.read().splitlines()[-_LOG_LINES:]
    return RmqError(text + "; the end of its log:\n" * bool(lines) + "\n".join(lines))


if __name__ == "__main__":
    main()
