"""RMQ's delayed queue: offers and takes one at a time from threads, and many in a call."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from threading import Thread

from adapter import DELAY_MS, THREADS, Peer, by_threads, content, main
from rmq_peer import client_of

from rmq import DelayedQueue

PEER = Peer(
    "RMQ, DelayedQueue",
    (),
    (("ZCARD", "peers_0"), ("ZCARD", "prepare{peers_0}")),
    {"bulk": "offer_many", "threads": "offer, 8 threads"},
    {"batch": "take_many(500)", "single": "take, 8 threads"},
    times=50,
    delayed=True,
)
_due_s = time.time() + DELAY_MS / 1_000


def queue_of(url: str) -> DelayedQueue:
    """Return the queue."""
    return DelayedQueue(client_of(url), "peers")


def _delay() -> timedelta:
    return timedelta(seconds=max(_due_s - time.time(), 0))


def offer_many(url: str, number: int) -> None:
    """Offer in one stream."""
    with queue_of(url) as queue:
        queue.offer_many((content(index), _delay()) for index in range(number))


def offer(url: str, number: int) -> None:
    """Offer from threads."""
    with queue_of(url) as queue:
        by_threads(number, lambda indices: [queue.offer(content(index), _delay()) for index in indices])


def work(url: str, variant: str) -> None:
    """Take until SIGTERM."""
    queue = queue_of(url)

    def take() -> None:
        while True:
            queue.take_many(500, timeout=60) if variant == "batch" else queue.take(timeout=60)

    for _ in range(1 if variant == "batch" else THREADS):
        Thread(target=take).start()


def late(url: str, per_s: int, number: int) -> None:
    """Offer at a rate, each 1 s ahead, and take in threads; print by how many ms each was late."""
    found: list[float] = []
    with queue_of(url) as queue:

        def take(indices: Iterable[int]) -> None:
            for _ in indices:
                due_s = float(queue.take(timeout=60))
                found.append((time.time() - due_s) * 1_000)

        taking = Thread(target=by_threads, args=(number, take))
        taking.start()
        started_s = time.time()
        for index in range(number):
            time.sleep(max(started_s + index / per_s - time.time(), 0))
            queue.offer(f"{time.time() + 1:020.9f}", timedelta(seconds=1))
        taking.join()
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "late":
        late(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main({"bulk": offer_many, "threads": offer}, work)
