"""RMQ: a topic that merges, its reducer by the work; a window that slides and has an end."""

from __future__ import annotations

import json
import signal
import threading
from datetime import timedelta

from rival import case, handle, obey

from rmq import (
    Collect,
    Delivery,
    LadderRetry,
    Merge,
    Newest,
    RangeMergeMessage,
    RmqClient,
    Sliding,
    Sum,
    Topic,
    TopicType,
)

CASE = case()
LEASE = timedelta(seconds=20)
"""As long as the rivals' visibility timeouts."""
REDUCERS = {"newest": Newest(), "sum": Sum(), "all": Collect()}
TOPIC = Topic(
    "rival",
    TopicType.RANGE_MERGE,
    lease=LEASE,
    retry=LadderRetry((f"{CASE.retry_ms}ms",)),
    merge=Merge(reduce=REDUCERS[CASE.kind], window=Sliding(f"{CASE.quiet_ms}ms", max_wait=f"{CASE.max_wait_ms}ms")),
)
client = RmqClient(CASE.url)


def send(key: str, number: int, value: int) -> None:
    """Send a value by its version, a number to add, or an item."""
    if CASE.kind == "sum":
        message = RangeMergeMessage(key, body=value)
    elif CASE.kind == "newest":
        message = RangeMergeMessage(key, body=json.dumps([number, value]), version=number)
    else:
        message = RangeMergeMessage(key, body=json.dumps([number, value]))
    client.producer(TOPIC).send(message)


def work() -> None:
    """Listen until it is ended."""
    client.listener(TOPIC, threads=CASE.concurrency)(update)
    client.start()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    client.close()


def update(delivery: Delivery) -> None:
    """Handle what the sends of a key became."""
    key = delivery.content.decode()
    if CASE.kind == "sum":
        handle(CASE, key, None, delivery.merged, int(delivery.value))
    elif CASE.kind == "newest":
        handle(CASE, key, [json.loads(delivery.value)])
    else:
        handle(CASE, key, [json.loads(item) for item in delivery.items])


if __name__ == "__main__":
    obey(send, work)
