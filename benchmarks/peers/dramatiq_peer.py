"""Dramatiq: the command-line worker with threads in one or two processes; no result backend."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from adapter import Peer, by_threads, content, main

PEER = Peer(
    "Dramatiq",
    ("dramatiq[redis]", "hiredis"),
    (("HLEN", "dramatiq:peers.msgs"),),
    {"threads": "send, 8 threads"},
    {"2 x 8": "2 processes of 8 threads", "1 x 8": "1 process of 8 threads", "1 x 1": "1 process of 1 thread"},
)


def _job(url: str):
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url, middleware=[])
    dramatiq.set_broker(broker)

    @dramatiq.actor(queue_name="peers", actor_name="job")
    def job(text: str) -> None:
        del text

    return job


def enqueue(url: str, number: int) -> None:
    """Send from threads."""
    job = _job(url)
    by_threads(number, lambda indices: [job.send(content(index)) for index in indices])


def work(url: str, variant: str) -> None:
    """Become dramatiq's own worker, with this file as its module."""
    os.environ["PEERS_URL"] = url
    processes, _, threads = variant.partition(" x ")
    command = [sys.executable, "-m", "dramatiq", "dramatiq_peer", "-p", processes, "-t", threads, "--skip-logging"]
    os.chdir(Path(__file__).parent)
    os.execv(sys.executable, command)


if "PEERS_URL" in os.environ:
    _job(os.environ["PEERS_URL"])

if __name__ == "__main__":
    main({"threads": enqueue}, work)
