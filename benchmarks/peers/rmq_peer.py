"""RMQ itself, measured as the others are: objects in handlers; and columns, which no other queue has."""

from __future__ import annotations

import asyncio
import signal
import threading
from functools import cache

from adapter import Peer, by_tasks, by_threads, content, main

from rmq import PriorityMessage, RmqClient, Topic, TopicType, aio

SLOTS = 8
LEFT = tuple(("ZCARD", key) for slot in range(SLOTS) for key in (f"peers_{slot}", f"prepare{{peers_{slot}}}"))
PEER = Peer(
    "RMQ",
    (),
    LEFT,
    {
        "bulk": "send_many",
        "columns": "send_columns",
        "threads": "send, 8 threads",
        "tasks": "send, 100 tasks of asyncio",
    },
    {
        "batch": "listener(batch=500)",
        "columns": "listener(batch=500, columns=True)",
        "single": "listener, one delivery a call",
    },
    times=50,
)


JOBS = Topic("peers", TopicType.PRIORITY, slots=SLOTS)
client_of = cache(RmqClient)
"""Returns the client of this process, which is made once."""


def enqueue(url: str, number: int) -> None:
    """Send in one stream."""
    client_of(url).producer(JOBS).send_many(PriorityMessage(content(index), 1_000) for index in range(number))


def enqueue_columns(url: str, number: int) -> None:
    """Send the jobs as a column."""
    contents = [content(index) for index in range(number)]
    client_of(url).producer(JOBS).send_columns(contents, priorities=1_000)


def enqueue_singly(url: str, number: int) -> None:
    """Send from threads."""
    producer = client_of(url).producer(JOBS)
    by_threads(number, lambda indices: [producer.send(PriorityMessage(content(index), 1_000)) for index in indices])


async def enqueue_async(url: str, number: int) -> None:
    """Send from tasks."""
    async with aio.RmqClient(url) as client:
        producer = await client.producer(JOBS)
        await by_tasks(number, lambda index: producer.send(PriorityMessage(content(index), 1_000)))


def work(url: str, variant: str) -> None:
    """Run a listener whose handler does nothing, until SIGTERM."""
    client = client_of(url)
    client.listener(JOBS, batch=None if variant == "single" else 500, columns=variant == "columns")(lambda _: None)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    client.start()
    ended.wait()
    client.close()


if __name__ == "__main__":
    tasks = lambda url, number: asyncio.run(enqueue_async(url, number))  # noqa: E731
    main({"bulk": enqueue, "columns": enqueue_columns, "threads": enqueue_singly, "tasks": tasks}, work)
