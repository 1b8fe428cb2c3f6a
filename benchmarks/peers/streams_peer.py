"""Redis Streams by redis-py: XADD in pipelines, XREADGROUP and XACK in batches; no retries, delays or dead letters."""

from __future__ import annotations

from contextlib import suppress

import redis
from adapter import Peer, by_threads, content, main

BATCH = 500
PEER = Peer(
    "Redis Streams (redis-py)",
    ("redis", "hiredis"),
    (("XLEN", "peers"),),
    {"bulk": f"pipelines of {BATCH} XADD", "threads": "XADD, 8 threads"},
    {"batch": f"COUNT {BATCH}, XACK and XDEL in batches", "single": "COUNT 1, XACK and XDEL of one in a pipeline"},
    times=25,
)


def enqueue(url: str, number: int) -> None:
    """Add in pipelines."""
    with redis.Redis.from_url(url) as client:
        for first in range(0, number, BATCH):
            pipe = client.pipeline(transaction=False)
            for index in range(first, min(first + BATCH, number)):
                pipe.xadd("peers", {"c": content(index)})
            pipe.execute()


def enqueue_singly(url: str, number: int) -> None:
    """Add from threads."""
    with redis.Redis.from_url(url) as client:
        by_threads(number, lambda indices: [client.xadd("peers", {"c": content(index)}) for index in indices])


def work(url: str, variant: str) -> None:
    """Read, ack, and delete, so that memory does not grow for ever (and the backlog can be seen to shrink)."""
    count = BATCH if variant == "batch" else 1
    with redis.Redis.from_url(url) as client:
        with suppress(redis.ResponseError):
            client.xgroup_create("peers", "group", "0", mkstream=True)
        while True:
            for _, entries in client.xreadgroup("group", "worker", {"peers": ">"}, count=count, block=100) or ():
                names = [name for name, _ in entries]
                with client.pipeline(transaction=False) as pipe:
                    pipe.xack("peers", "group", *names).xdel("peers", *names).execute()


if __name__ == "__main__":
    main({"bulk": enqueue, "threads": enqueue_singly}, work)
