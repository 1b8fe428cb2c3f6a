"""Redis Streams by redis-py: XADD in pipelines, XREADGROUP and XACK in batches; no retries, delays or dead letters."""

from __future__ import annotations

from adapter import Peer, content, main

BATCH = 500
PEER = Peer(
    "Redis Streams (redis-py)",
    ("redis", "hiredis"),
    (("XLEN", "peers"),),
    {"delete": f"COUNT {BATCH}, XACK and XDEL in batches"},
    f"pipelines of {BATCH} XADD",
)


def enqueue(url: str, number: int) -> None:
    """Add in pipelines."""
    import redis

    with redis.Redis.from_url(url) as client:
        for first in range(0, number, BATCH):
            pipe = client.pipeline(transaction=False)
            for index in range(first, min(first + BATCH, number)):
                pipe.xadd("peers", {"c": content(index)})
            pipe.execute()


def work(url: str, variant: str) -> None:
    """Read, ack, and delete, so that memory does not grow for ever (and the backlog can be seen to shrink)."""
    del variant
    import redis

    with redis.Redis.from_url(url) as client:
        try:
            client.xgroup_create("peers", "group", "0", mkstream=True)
        except redis.ResponseError:
            pass
        while True:
            for _, entries in client.xreadgroup("group", "worker", {"peers": ">"}, count=BATCH, block=100) or ():
                names = [name for name, _ in entries]
                client.xack("peers", "group", *names)
                client.xdel("peers", *names)


if __name__ == "__main__":
    main(enqueue, work)
