"""SAQ: many jobs at a time on one event loop, results not kept."""

from __future__ import annotations

import asyncio

from adapter import Peer, content, main

PEER = Peer(
    "SAQ",
    ("saq[redis]", "hiredis", "typing_extensions"),
    (("ZCARD", "saq:peers:incomplete"),),
    {"10": "concurrency 10", "100": "concurrency 100"},
    "enqueue, 100 at a time on one event loop, ttl=-1",
)


async def job(context: dict, *, text: str) -> None:
    """Do nothing."""
    del context, text


async def _enqueue(url: str, number: int) -> None:
    from saq import Job, Queue

    queue = Queue.from_url(url, name="peers", max_concurrent_ops=100)
    await queue.connect()
    for first in range(0, number, 100):
        indices = range(first, min(first + 100, number))
        jobs = [Job("job", kwargs={"text": content(index)}, ttl=-1) for index in indices]
        await asyncio.gather(*[queue.enqueue(each) for each in jobs])
    await queue.disconnect()


def enqueue(url: str, number: int) -> None:
    """Enqueue concurrently."""
    asyncio.run(_enqueue(url, number))


def work(url: str, variant: str) -> None:
    """Run a worker."""
    from saq import Queue, Worker

    async def run() -> None:
        queue = Queue.from_url(url, name="peers", max_concurrent_ops=100)
        await Worker(queue, functions=[("job", job)], concurrency=int(variant)).start()

    asyncio.run(run())


if __name__ == "__main__":
    main(enqueue, work)
