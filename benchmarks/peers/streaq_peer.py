"""streaQ: enqueue_many in pipelines; many tasks at a time on one event loop, results not kept."""

from __future__ import annotations

import asyncio

from adapter import Peer, content, main

BATCH = 500
PEER = Peer(
    "streaQ",
    ("streaq",),
    (("XLEN", "streaq:peers:queues:normal"),),
    {"16": "concurrency 16", "128": "concurrency 128, prefetch 256"},
    f"enqueue_many, {BATCH} at a time, ttl=0",
)


def _worker(url: str, concurrency: int):
    from streaq import Worker

    prefetch = None if concurrency <= 16 else 2 * concurrency
    worker = Worker(redis_url=url, queue_name="peers", concurrency=concurrency, prefetch=prefetch)

    @worker.task(ttl=0)
    async def job(text: str) -> None:
        del text

    return worker, job


async def _enqueue(url: str, number: int) -> None:
    worker, job = _worker(url, 16)
    async with worker:
        for first in range(0, number, BATCH):
            indices = range(first, min(first + BATCH, number))
            await worker.enqueue_many([job.enqueue(content(index)) for index in indices])


def enqueue(url: str, number: int) -> None:
    """Enqueue in pipelines."""
    asyncio.run(_enqueue(url, number))


def work(url: str, variant: str) -> None:
    """Run a worker."""
    worker, _ = _worker(url, int(variant))
    worker.run_sync()


if __name__ == "__main__":
    main(enqueue, work)
