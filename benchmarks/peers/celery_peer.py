"""Celery: no results, no rate limits, no events; prefork with a large prefetch, or threads, or solo."""

from __future__ import annotations

import os
from collections.abc import Iterable

from adapter import Peer, by_threads, content, main

PEER = Peer(
    "Celery",
    ("celery[redis]", "hiredis"),
    (("LLEN", "peers"), ("HLEN", "unacked")),
    {"threads": "apply_async, 8 threads, ignore_result"},
    {
        "prefork 2": "prefork, 2 processes, prefetch 128",
        "threads 8": "8 threads, prefetch 128",
        "solo": "solo pool, prefetch 128",
    },
)


def _app(url: str):
    from celery import Celery

    app = Celery("celery_peer", broker=url)
    app.conf.update(
        task_ignore_result=True,
        task_default_queue="peers",
        worker_prefetch_multiplier=64,
        worker_disable_rate_limits=True,
        broker_connection_retry_on_startup=True,
    )

    @app.task(name="job", ignore_result=True)
    def job(text: str) -> None:
        del text

    return app, job


def enqueue(url: str, number: int) -> None:
    """Enqueue from threads, each over a connection of its own."""
    app, job = _app(url)

    def send(indices: Iterable[int]) -> None:
        with app.producer_or_acquire() as producer:
            for index in indices:
                job.apply_async((content(index),), producer=producer)

    by_threads(number, send)


def work(url: str, variant: str) -> None:
    """Run a worker."""
    app, _ = _app(url)
    kind, _, size = variant.partition(" ")
    os.environ.setdefault("C_FORCE_ROOT", "1")
    common = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR", "-Q", "peers"]
    app.worker_main(["worker", "-P", kind, "-c", size or "1", *common])


if __name__ == "__main__":
    main({"threads": enqueue}, work)
