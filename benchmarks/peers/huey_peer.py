"""Huey: blocking pop, no results; threads in one process, or processes."""

from __future__ import annotations

from adapter import Peer, by_threads, content, main

PEER = Peer(
    "Huey",
    ("huey", "redis", "hiredis"),
    (("LLEN", "huey.redis.peers"),),
    {"threads": "enqueue, 8 threads, results off"},
    {"thread 1": "1 thread", "thread 8": "8 threads", "process 2": "2 processes"},
)


def _queue(url: str):
    from huey import RedisHuey

    queue = RedisHuey("peers", url=url, results=False, store_none=False, blocking=True)

    @queue.task()
    def job(text: str) -> None:
        del text

    return queue, job


def enqueue(url: str, number: int) -> None:
    """Enqueue from threads."""
    _, job = _queue(url)
    by_threads(number, lambda indices: [job(content(index)) for index in indices])


def work(url: str, variant: str) -> None:
    """Run the consumer."""
    import logging

    logging.disable(logging.CRITICAL)
    queue, _ = _queue(url)
    kind, _, workers = variant.partition(" ")
    queue.create_consumer(workers=int(workers), worker_type=kind, periodic=False, check_worker_health=False).run()


if __name__ == "__main__":
    main({"threads": enqueue}, work)
