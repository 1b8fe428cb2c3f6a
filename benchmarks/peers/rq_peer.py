"""RQ: enqueue_many in pipelines; SimpleWorker, which does not fork per job."""

from __future__ import annotations

import os
from functools import partial

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


def _queue(url: str):
    from redis import Redis
    from rq import Queue

    return Queue("peers", connection=Redis.from_url(url))


def enqueue(url: str, number: int) -> None:
    """Enqueue in pipelines."""
    queue = _queue(url)
    for first in range(0, number, BATCH):
        indices = range(first, min(first + BATCH, number))
        queue.enqueue_many([queue.prepare_data("rq_peer.job", (content(index),), **OPTIONS) for index in indices])


def enqueue_singly(url: str, number: int) -> None:
    """Enqueue from threads."""
    enqueue_one = partial(_queue(url).enqueue, "rq_peer.job", **OPTIONS)
    by_threads(number, lambda indices: [enqueue_one(args=(content(index),)) for index in indices])


def work(url: str, variant: str) -> None:
    """Work in one or two processes."""
    from rq import SimpleWorker

    if variant == "2 processes":
        os.fork()
    queue = _queue(url)
    SimpleWorker([queue], connection=queue.connection).work(logging_level="ERROR")


if __name__ == "__main__":
    main({"bulk": enqueue, "threads": enqueue_singly}, work)
