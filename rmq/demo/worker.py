"""A worker process of the demo: draws pictures, closes orders, books takings, and writes down what it did.

    RMQ_URL=... python -m rmq.demo.worker SECONDS_PER_MINUTE

Says `ready` when it is listening. Ends when its input ends, so also when the demo was killed, and then writes down its
`Handled` records, one JSON list a line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rmq import Delivery, RmqClient
from rmq.demo.jobs import CLOSE_ORDER, CUSTOMER_PICTURE, PRICE_PICTURE, TAKINGS, TOPICS, fail_if_fated
from rmq.demo.play import redis_clock
from rmq.demo.summary import Handled

WORK_MIN = {PRICE_PICTURE.name: 0.2, CUSTOMER_PICTURE.name: 0.25, CLOSE_ORDER.name: 0.1, TAKINGS.name: 0.1}
"""How long a job takes, in minutes of order time."""

THREADS = {PRICE_PICTURE.name: 4, CUSTOMER_PICTURE.name: 1, CLOSE_ORDER.name: 1, TAKINGS.name: 1}
"""Few for the customers' pictures: a big order then makes a queue, and one sees who comes first."""

_DRAIN_S = 5.0

_DEADLINE_S = 5.0
"""Short: when the demo is killed, its Redis goes as well, and its workers soon after."""


def handler(now_ms: Callable[[], int], seconds_per_minute: float, records: list[Handled]) -> Callable[[Delivery], None]:
    """Return what handles all topics of the demo, and adds to the records."""

    def handle(delivery: Delivery) -> None:
        entered_ms, started_s = now_ms(), time.monotonic()
        summed = delivery.topic.merge is not None
        body: dict[str, Any] = {} if summed else json.loads(delivery.body or b"{}")
        due_ms = delivery.due_ms
        early = due_ms is not None and delivery.claimed_ms < due_ms
        if due_ms is None and delivery.attempt == 1:
            due_ms = body.get("sent_ms")  # a priority message is due when it is sent
        late_ms = None if due_ms is None else max(0, entered_ms - due_ms)
        topic, content, done = delivery.topic.name, delivery.text, False
        try:
            time.sleep(WORK_MIN[topic] * seconds_per_minute)
            fail_if_fated(content, delivery.attempt)
            done = True
        finally:
            handled = Handled(topic, content, done, started_s, time.monotonic(), late_ms, early, body.get("tier"))
            if summed:
                handled = replace(handled, pence=delivery.value, first_sent_ms=delivery.first_sent_ms)
            records.append(handled)  # it is atomic: the threads need no lock

    return handle


def main() -> None:
    """Work until the input ends."""
    records: list[Handled] = []
    with RmqClient(deadline_s=_DEADLINE_S) as client:
        handle = handler(redis_clock(client), float(sys.argv[1]), records)
        for topic in TOPICS:
            client.listener(topic, threads=THREADS[topic.name])(handle)
        client.start()
        print("ready", flush=True)
        sys.stdin.buffer.read()
        client.stop(_DRAIN_S)
    for record in records:
        print(record.to_json())


if __name__ == "__main__":
    main()
