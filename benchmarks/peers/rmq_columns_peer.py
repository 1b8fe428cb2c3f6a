"""RMQ in columns: a list of contents in one call, and claims whose messages come as columns."""

from __future__ import annotations

from adapter import Peer, content, main
from rmq_peer import LEFT, client_of, jobs, run_listener

PEER = Peer("RMQ in columns", (), LEFT, {"batch": "listener(batch=500, columns=True)"}, "send_columns")


def enqueue(url: str, number: int) -> None:
    """Send the jobs as a column."""
    contents = [content(index) for index in range(number)]
    client_of(url).producer(jobs()).send_columns(contents, priorities=1_000)


def work(url: str, variant: str) -> None:
    """Listen until SIGTERM."""
    del variant
    run_listener(url, batch=500, columns=True)


if __name__ == "__main__":
    main(enqueue, work)
