"""A worker process of the demo: draws pictures, closes orders, and writes down what it did.

    RMQ_URL=... python -m rmq.demo.worker SECONDS_PER_MINUTE

Says `ready` when it is listening. Ends when its input ends, so also when the demo was killed, and then writes down its
`Handled` records, one JSON list a line.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rmq import Delivery, RmqClient, Topic
from rmq.demo.handled import Handled
from rmq.demo.jobs import CLOSE_ORDER, CUSTOMER_PICTURE, PRICE_PICTURE, fail_if_fated
from rmq.demo.redis_clock import RedisClock

WORK_MIN = {PRICE_PICTURE.name: 0.2, CUSTOMER_PICTURE.name: 0.25, CLOSE_ORDER.name: 0.1}
"""How long a job takes, in minutes of order time."""

THREADS = {PRICE_PICTURE.name: 4, CUSTOMER_PICTURE.name: 1, CLOSE_ORDER.name: 1}
"""Few for the customers' pictures: a big order then makes a queue, and one sees who comes first."""

_DRAIN_S = 5.0

_DEADLINE_S = 5.0
"""Short: when the demo is killed, its Redis goes as well, and its workers soon after."""


class Worker:
    """Handles all topics of the demo and keeps records.

    Args:
        client: Where the topics are.
        seconds_per_minute: How long a minute of order time takes.
    """

    def __init__(self, client: RmqClient, seconds_per_minute: float) -> None:
        self._client = client
        self._seconds_per_minute = seconds_per_minute
        self._clock = RedisClock(client, CLOSE_ORDER)
        self.records: list[Handled] = []

    def listen(self, topic: Topic) -> None:
        """Add a listener for a topic."""

        @self._client.listener(topic, threads=THREADS[topic.name])
        def handle(delivery: Delivery) -> None:
            self._handle(delivery)

        del handle

    def _handle(self, delivery: Delivery) -> None:
        entered_ms, started_s = self._clock.now_ms(), time.monotonic()
        body: dict[str, Any] = json.loads(delivery.body or b"{}")
        due_ms = delivery.due_ms
        early = due_ms is not None and delivery.claimed_ms < due_ms
        if due_ms is None and delivery.attempt == 1:
            due_ms = body.get("sent_ms")  # a priority message is due when it is sent
        done = False
        try:
            time.sleep(WORK_MIN[delivery.topic.name] * self._seconds_per_minute)
            fail_if_fated(delivery.text, delivery.attempt)
            done = True
        finally:
            # a list's append is atomic: the threads need no lock
            self.records.append(
                Handled(
                    delivery.topic.name,
                    delivery.text,
                    done,
                    started_s,
                    time.monotonic(),
                    None if due_ms is None else max(0, entered_ms - due_ms),
                    early,
                    body.get("tier"),
                )
            )


def main() -> None:
    """Work until the input ends."""
    with RmqClient(deadline_s=_DEADLINE_S) as client:
        worker = Worker(client, float(sys.argv[1]))
        for topic in (PRICE_PICTURE, CUSTOMER_PICTURE, CLOSE_ORDER):
            worker.listen(topic)
        client.start()
        print("ready", flush=True)
        sys.stdin.buffer.read()
        client.stop(_DRAIN_S)
    for record in worker.records:
        print(record.to_json())


if __name__ == "__main__":
    main()
