"""The short loads of `benchmarks.paired`, run by an interpreter of each checkout: orders and answers are lines of JSON.

It imports `rmq` alone, and nothing of `benchmarks`: both checkouts must run the same loads.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import count, cycle
from typing import Any

import redis

import rmq
from rmq import Collect, Merge, RangeMergeMessage, RmqClient, Sum, Topic, TopicType, aio

WAIT_S = 60.0
BATCH = 500
GROUP = "paired"
MERGES = {
    "sum": (Merge(Sum()), 5),
    "collect": (Merge(Collect()), b"item"),
    "unique": (Merge(Collect(unique=True)), b"item"),
}
"""Name -> how a topic merges, and the body of its messages."""

RANGE = "time_range_ms" if hasattr(RangeMergeMessage, "time_range_ms") else "time_range"
TIME = "fixed_time_ms" if hasattr(rmq.FixedTimeMessage, "fixed_time_ms") else "fixed_time"
"""Arguments for numbers of ms: the checkout before the redesign took them without a unit in the name."""

_numbers = count(1)


class Meter:
    """What a stretch of work costs: CPU time of this process and the server, calls of functions, commands."""

    def __init__(self, admin: Any, counting: bool) -> None:
        self._admin = admin
        self._counting = counting
        self._calls = 0
        self.cost: dict[str, float] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Measure what is done within."""
        before = self._server()
        gc.collect()
        gc.disable()
        cpu_s = time.process_time()
        if self._counting:
            threading.setprofile(self._count)
            sys.setprofile(self._count)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            cpu_s = time.process_time() - cpu_s
            gc.enable()
        after = self._server()
        self.cost = {name: after[name] - before[name] for name in after}
        self.cost |= {"client_cpu_us": cpu_s * 1e6, "python_calls": self._calls}

    def _count(self, frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def _server(self) -> dict[str, float]:
        stats, cpu = self._admin.info("commandstats"), self._admin.info("cpu")
        found = {"server_cpu_us": (cpu["used_cpu_user"] + cpu["used_cpu_sys"]) * 1e6}
        calls = {name.removeprefix("cmdstat_"): each for name, each in stats.items()}
        scripts: dict[str, float] = calls.pop("evalsha", {"usec": 0, "calls": 0})
        found["scripts_us"], found["scripts"] = scripts["usec"], scripts["calls"]
        own = [each["calls"] for name, each in calls.items() if not name.startswith(("info", "client", "hello"))]
        found["commands"] = sum(own)
        return found


Load = Callable[..., None]
"""Takes the URL, a meter, a number of messages, and the options of a case by name."""


def topic_of(kind: str, slots: int, merge: str | None = None) -> Topic:
    """Return a new topic."""
    return Topic(f"paired-{next(_numbers)}", TopicType[kind], slots=slots, merge=MERGES[merge][0] if merge else None)


def messages(
    kind: str, number: int, body: bool = False, *, due: bool = False, merge: str | None = None, sends: int = 1
) -> list[Any]:
    """Return messages of 20 bytes; those of a time topic are due in an hour, or with `due` in a moment.

    `sends`: how many of them have the same content.
    """
    contents = [b"order:%014d" % (index // sends * 48_271 % 100_000_007) for index in range(number)]
    payload: Any = MERGES[merge][1] if merge else b'{"customer": 4711, "total": "12.50"}' if body else None
    if kind == "PRIORITY":
        numbered = enumerate(contents)
        return [rmq.PriorityMessage(each, 1_000 + index * 7 % 900, body=payload) for index, each in numbered]
    if kind == "STREAM":
        return [rmq.StreamMessage(content, body=payload) for content in contents]
    if kind == "RANGE_MERGE":
        range_ms = 1 if due else 3_600_000
        return [RangeMergeMessage(content, body=payload, **{RANGE: range_ms}) for content in contents]
    at_ms = int(time.time() * 1000) + (1_000 if due else 3_600_000)
    return [rmq.FixedTimeMessage(content, body=payload, **{TIME: at_ms}) for content in contents]


def group_of(kind: str) -> dict[str, Any]:
    """Return the options of who consumes such a topic."""
    return {"group": GROUP, "start": "all"} if kind == "STREAM" else {}


def send(
    url: str, meter: Meter, number: int, *, kind: str = "PRIORITY", slots: int = 1, body: bool = False,
    merge: str | None = None, many: bool = False,
) -> None:  # fmt: skip
    """Send messages that were made beforehand, one after the other or at once."""
    with RmqClient(url) as client:
        producer = client.producer(topic_of(kind, slots, merge))
        each = messages(kind, number + 1, body, merge=merge, sends=2 if merge else 1)
        producer.send(each.pop())
        with meter.on():
            if many:
                producer.send_many(each)
                return
            for message in each:
                producer.send(message)


def send_made(url: str, meter: Meter, number: int, *, slots: int, ranges: int) -> None:
    """Make messages whose time range is a duration, and send them at once."""
    durations = [timedelta(seconds=seconds) for seconds in range(1, 1 + ranges)]
    with RmqClient(url) as client:
        producer = client.producer(topic_of("RANGE_MERGE", slots))
        producer.send(RangeMergeMessage(b"first", durations[0]))
        contents = [b"order:%014d" % index for index in range(number)]
        with meter.on():
            producer.send_many(RangeMergeMessage(c, r) for c, r in zip(contents, cycle(durations), strict=False))


def poll(
    url: str, meter: Meter, number: int, *, batch: int, kind: str = "PRIORITY", slots: int = 1, body: bool = False,
    merge: str | None = None,
) -> None:  # fmt: skip
    """Poll and ack in batches."""
    topic = topic_of(kind, slots, merge)
    with RmqClient(url) as client:
        client.producer(topic).send_many(messages(kind, number, body, due=True, merge=merge))
        if kind == "FIXED_TIME":
            time.sleep(1.1)
        with client.consumer(topic, **group_of(kind)) as consumer:
            left = number
            with meter.on():
                while left:
                    found = consumer.poll(min(batch, left), 5.0)
                    consumer.ack(found)
                    left -= len(found)


def claim(url: str, meter: Meter, number: int, *, body: bool) -> None:
    """Claim one message at a time, one call right after the other: the call of a poll, repeated in one pipeline."""
    with RmqClient(url) as client, redis.Redis.from_url(url, decode_responses=True) as admin:
        topic = topic_of("PRIORITY", 1)
        client.producer(topic).send_many(messages("PRIORITY", number + 2, body))
        consumer = client.consumer(topic)
        consumer.poll(1, 5.0)
        with admin.monitor() as watched:
            consumer.poll(1, 5.0)
            orders = (str(each["command"]) for each in watched.listen())
            call = next(order for order in orders if order.startswith("EVALSHA"))
        pipeline = admin.pipeline(transaction=False)
        for _ in range(number):
            pipeline.execute_command(*call.split(" "))
        with meter.on():
            pipeline.execute()


def listen(
    url: str, meter: Meter, number: int, *, batch: int | None = None, kind: str = "PRIORITY", slots: int = 1
) -> None:
    """Listen with one thread and a handler that does nothing."""
    finished, seen = threading.Event(), 0
    with RmqClient(url) as client:
        topic = topic_of(kind, slots)
        client.producer(topic).send_many(messages(kind, number, due=True))

        def handle(found: Any) -> None:
            nonlocal seen
            seen += len(found) if batch else 1
            if seen >= number:
                finished.set()

        client.listener(topic, batch=batch, **group_of(kind))(handle)
        with meter.on():
            client.start()
            if not finished.wait(WAIT_S):
                raise TimeoutError(f"{seen} of {number} messages were delivered")
            client.stop()


async def listen_aio(url: str, meter: Meter, number: int, *, batch: int | None = None, slots: int = 1) -> None:
    """Listen in a task, with a handler that does nothing."""
    finished, seen = asyncio.Event(), 0
    async with aio.RmqClient(url) as client:
        topic = topic_of("PRIORITY", slots)
        await (await client.producer(topic)).send_many(messages("PRIORITY", number))

        async def handle(found: Any) -> None:
            nonlocal seen
            seen += len(found) if batch else 1
            if seen >= number:
                finished.set()

        client.listener(topic, batch=batch)(handle)
        with meter.on():
            await client.start()
            await asyncio.wait_for(finished.wait(), WAIT_S)
            await client.stop()


LOADS: dict[str, Load] = {
    "send": send,
    "send_many": partial(send, many=True),
    "send_made": send_made,
    "poll": poll,
    "claim": claim,
    "listen": listen,
    "listen_aio": lambda *args, **options: asyncio.run(listen_aio(*args, **options)),
}


def main() -> int:
    """Carry out what standard input says, line by line."""
    port = int(sys.argv[1])
    url = f"redis://127.0.0.1:{port}/0"
    with redis.Redis(port=port) as admin:
        for line in sys.stdin:
            order = json.loads(line)
            admin.flushall()
            meter = Meter(admin, order["counting"])
            LOADS[order["load"]](url, meter, order["number"], **order["options"])
            print(json.dumps({name: value / order["number"] for name, value in meter.cost.items()}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
