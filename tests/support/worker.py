"""A worker process of the tests: handles messages and writes a ledger of what it does. Run with `python -m`.

    python -m tests.support.worker URL TOPIC LEDGER [--handle-ms 1] [--threads 2] [--owners redis] [--drain-s 30]

Each line of the ledger is written at once by one O_APPEND write: `kind pid content attempt`, with the kinds
`started` and `stopped` (once), `begin`, `end`, `lost` (told by on_lost), `stale-end` (ended though lost).
"""

from __future__ import annotations

import argparse
import os
import threading
import time

from rmq import Delivery, RmqClient
from tests.campaign.clocks import sleep_by_select


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("topic")
    parser.add_argument("ledger")
    parser.add_argument("--handle-ms", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--owners")
    parser.add_argument("--drain-s", type=float, default=30.0)
    options = parser.parse_args()
    sleep_by_select()
    ledger = os.open(options.ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(kind: str, content: str = "-", attempt: int = 0) -> None:
        os.write(ledger, f"{kind} {os.getpid()} {content} {attempt}\n".encode())

    with RmqClient(options.url, owners=options.owners) as client:

        def lost(delivery: Delivery) -> None:
            note("lost", delivery.text, delivery.attempt)

        @client.listener(client.topic(options.topic), threads=options.threads, on_lost=lost)
        def handle(delivery: Delivery) -> None:
            note("begin", delivery.text, delivery.attempt)
            until_s = time.monotonic() + options.handle_ms / 1000
            while time.monotonic() < until_s:
                threading.Event().wait(min(0.05, options.handle_ms / 1000))
            note("stale-end" if delivery.lost else "end", delivery.text, delivery.attempt)

        note("started")
        client.run(options.drain_s)
        note("stopped")


if __name__ == "__main__":
    main()
