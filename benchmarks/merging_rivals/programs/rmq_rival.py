"""RMQ: a topic that merges, its reducer by the work; a window that slides and has an end."""

from __future__ import annotations

import json
import signal
import threading
from datetime import timedelta

from rival import case, handle, obey

import rmq
from rmq import RangeMergeMessage

CASE = case()
LEASE = timedelta(seconds=20)
"""As long as the rivals' visibility timeouts."""
REDUCERS = {"newest": rmq.Newest(), "sum": rmq.Sum(), "all": rmq.Collect()}
WINDOW = rmq.Sliding(f"{CASE.quiet_ms}ms", max_wait=f"{CASE.max_wait_ms}ms")
TOPIC = rmq.Topic(
    "rival",
    rmq.TopicType.RANGE_MERGE,
    lease=LEASE,
    retry=rmq.LadderRetry((f"{CASE.retry_ms}ms",)),
    merge=rmq.Merge(reduce=REDUCERS[CASE.kind], window=WINDOW),
)
client = rmq.RmqClient(CASE.url)


def send(key: str, number: int, value: int) -> None:
    """Send a value by its version, a number to add, or an item."""
    body = value if CASE.kind == "sum" else json.dumps([number, value])
    version = number if CASE.kind == "newest" else None
    client.producer(TOPIC).send(RangeMergeMessage(key, body=body, version=version))


def work() -> None:
    """Listen until it is ended."""
    client.listener(TOPIC, threads=CASE.concurrency)(update)
    client.start()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    client.close()


def update(delivery: rmq.Delivery) -> None:
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
