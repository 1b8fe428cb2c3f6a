"""BullMQ for Python: addBulk; a worker with many jobs at a time on one event loop, done jobs removed."""

from __future__ import annotations

import asyncio

from adapter import Peer, content, main

BATCH = 500
PEER = Peer(
    "BullMQ (Python)",
    ("bullmq", "hiredis"),
    (("LLEN", "bull:peers:wait"), ("LLEN", "bull:peers:active")),
    {"1": "concurrency 1", "50": "concurrency 50"},
    f"addBulk, {BATCH} at a time, removeOnComplete",
)


async def _enqueue(url: str, number: int) -> None:
    from bullmq import Queue

    queue = Queue("peers", {"connection": url})
    for first in range(0, number, BATCH):
        indices = range(first, min(first + BATCH, number))
        await queue.addBulk(
            [{"name": "job", "data": {"text": content(index)}, "opts": {"removeOnComplete": True}} for index in indices]
        )
    await queue.close()


def enqueue(url: str, number: int) -> None:
    """Enqueue in bulk."""
    asyncio.run(_enqueue(url, number))


def work(url: str, variant: str) -> None:
    """Run a worker."""
    from bullmq import Worker

    async def job(job: object, token: str) -> None:
        del job, token

    async def run() -> None:
        Worker("peers", job, {"connection": url, "concurrency": int(variant)})
        await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main(enqueue, work)
