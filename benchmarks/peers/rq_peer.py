"""RQ: enqueue_many in pipelines; SimpleWorker, which does not fork per job."""

from __future__ import annotations

from adapter import Peer, by_threads, content, main

BATCH = 500
OPTIONS = {"result_ttl": 0, "description": ""}
PEER = Peer(
    "RQ",
    ("rq", "redis", "hiredis"),
    (("LLEN", "rq:queue:peers"),),
    {"bulk": f"enqueue_many, {BATCH} at a time, result_ttl=0", "threads": "enqueue, 8 threads, result_ttl=0"},
    {"1 process": "one SimpleWorker", "2 processes": "two SimpleWorkers"},
)


def job(text: str) -> None:
    """Do nothing."""


def enqueue(url: str, number: int) -> None:
    """Enqueue in pipelines."""
    from redis import Redis
    from rq import Queue

    queue = Queue("peers", connection=Redis.from_url(url))
    for first in range(0, number, BATCH):
        indices = range(first, min(first + BATCH, number))
        queue.enqueue_many([Queue.prepare_data("rq_peer.job", (content(index),), **OPTIONS) for index in indices])


def enqueue_singly(url: str, number: int) -> None:
    """Enqueue from threads."""
    from redis import Redis
    from rq import Queue

    queue = Queue("peers", connection=Redis.from_url(url))
    by_threads(
        number,
        lambda indices: [queue.enqueue("rq_peer.job", args=(content(index),), **OPTIONS) for index in indices],
    )


def work(url: str, variant: str) -> None:
    """Work in one or two processes."""
    import os

    from redis import Redis
    from rq import Queue, SimpleWorker

    if variant == "2 processes":
        os.fork()
    connection = Redis.from_url(url)
    SimpleWorker([Queue("peers", connection=connection)], connection=connection).work(logging_level="ERROR")


if __name__ == "__main__":
    main({"bulk": enqueue, "threads": enqueue_singly}, work)
