"""Huey: blocking pop, no results; threads in one process, or processes."""

from __future__ import annotations

from adapter import Peer, content, main

PEER = Peer(
    "Huey",
    ("huey", "redis", "hiredis"),
    (("LLEN", "huey.redis.peers"),),
    {"thread 1": "1 thread", "thread 8": "8 threads", "process 2": "2 processes"},
    "enqueue, one at a time (it has no batches), results off",
)


def _queue(url: str):
    from huey import RedisHuey

    queue = RedisHuey("peers", url=url, results=False, store_none=False, blocking=True)

    @queue.task()
    def job(text: str) -> None:
        del text

    return queue, job


def enqueue(url: str, number: int) -> None:
    """Enqueue one at a time."""
    _, job = _queue(url)
    for index in range(number):
        job(content(index))


def work(url: str, variant: str) -> None:
    """Run the consumer."""
    import logging

    logging.disable(logging.CRITICAL)
    queue, _ = _queue(url)
    kind, _, workers = variant.partition(" ")
    queue.create_consumer(workers=int(workers), worker_type=kind, periodic=False, check_worker_health=False).run()


if __name__ == "__main__":
    main(enqueue, work)
