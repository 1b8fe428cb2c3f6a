"""SAQ: many jobs at a time on one event loop, results not kept."""

from __future__ import annotations

import asyncio

from adapter import Peer, by_tasks, content, main

PEER = Peer(
    "SAQ",
    ("saq[redis]", "hiredis", "typing_extensions"),
    (("ZCARD", "saq:peers:incomplete"),),
    {"tasks": "enqueue, 100 tasks, ttl=-1"},
    {"10": "concurrency 10", "100": "concurrency 100"},
)


async def job(context: dict, *, text: str) -> None:
    """Do nothing."""
    del context, text


async def _enqueue(url: str, number: int) -> None:
    from saq import Job, Queue

    queue = Queue.from_url(url, name="peers", max_concurrent_ops=100)
    await queue.connect()
    await by_tasks(number, lambda index: queue.enqueue(Job("job", kwargs={"text": content(index)}, ttl=-1)))
    await queue.disconnect()


def enqueue(url: str, number: int) -> None:
    """Enqueue from tasks."""
    asyncio.run(_enqueue(url, number))


def work(url: str, variant: str) -> None:
    """Run a worker."""
    from saq import Queue, Worker

    async def run() -> None:
        queue = Queue.from_url(url, name="peers", max_concurrent_ops=100)
        await Worker(queue, functions=[("job", job)], concurrency=int(variant)).start()

    asyncio.run(run())


if __name__ == "__main__":
    main({"tasks": enqueue}, work)
