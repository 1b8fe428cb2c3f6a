"""arq: many jobs at a time on one event loop, results not kept."""

from __future__ import annotations

import asyncio

from adapter import Peer, by_tasks, content, main

PEER = Peer(
    "arq",
    ("arq", "hiredis"),
    (("ZCARD", "arq:queue"),),
    {"tasks": "enqueue_job, 100 tasks"},
    {"100": "max_jobs 100, poll_delay 10 ms", "1000": "max_jobs 1,000, poll_delay 10 ms"},
)


async def job(context: dict, text: str) -> None:
    """Do nothing."""
    del context, text


async def _enqueue(url: str, number: int) -> None:
    from arq import create_pool
    from arq.connections import RedisSettings

    pool = await create_pool(RedisSettings.from_dsn(url))
    await by_tasks(number, lambda index: pool.enqueue_job("job", content(index)))
    await pool.aclose()


def enqueue(url: str, number: int) -> None:
    """Enqueue from tasks."""
    asyncio.run(_enqueue(url, number))


def work(url: str, variant: str) -> None:
    """Run a worker."""
    from arq.connections import RedisSettings
    from arq.worker import Worker, func

    asyncio.set_event_loop(asyncio.new_event_loop())
    Worker(
        [func(job, name="job", keep_result=0)],
        redis_settings=RedisSettings.from_dsn(url),
        max_jobs=int(variant),
        poll_delay=0.01,
        keep_result=0,
    ).run()


if __name__ == "__main__":
    main({"tasks": enqueue}, work)
