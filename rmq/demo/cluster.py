"""The workload of the demo cluster: prices change, and workers draw pictures of the items.

    python -m rmq.demo.cluster                     # the producer
    rmq worker rmq.demo.cluster:client             # a worker

Both find Redis by RMQ_URL and ZooKeeper, if there is one, by RMQ_ZOOKEEPER.
"""

from __future__ import annotations

import logging
import os
import random
import time
from datetime import timedelta

from rmq import Delivery, RangeMergeMessage, RmqClient, RmqError, Topic, TopicType
from rmq.spi import until_signal

log = logging.getLogger("rmq.cluster_demo")

PICTURES = Topic("price-picture", TopicType.RANGE_MERGE, slots=64)
ITEMS = 2_000
CHANGES_PER_ROUND, ROUND_S = 50, 0.25
WINDOW = timedelta(seconds=2)
DRAWING_S = 0.002


def client() -> RmqClient:
    """Return a client whose listener draws pictures."""
    made = RmqClient(zookeeper=os.environ.get("RMQ_ZOOKEEPER") or None)

    @made.listener(PICTURES, threads=2)
    def draw(delivery: Delivery) -> None:  # pyright: ignore[reportUnusedFunction]
        log.debug("drawing %s", delivery.text)
        time.sleep(DRAWING_S)

    return made


def main() -> None:
    """Change prices until SIGTERM or SIGINT. Errors during a failover are logged."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    cluster = os.environ.get("RMQ_URL", "").startswith("redis+cluster://")
    with until_signal() as stop, RmqClient(durability="replicated" if cluster else "memory") as made:
        producer = made.producer(PICTURES)
        while not stop.wait(ROUND_S):
            items = random.choices(range(ITEMS), k=CHANGES_PER_ROUND)  # noqa: S311
            try:
                result = producer.send_many(RangeMergeMessage(f"item:{item}", WINDOW) for item in items)
                log.info("%d changes: %d new, %d merged", CHANGES_PER_ROUND, result.new, result.merged)
            except RmqError as error:
                log.warning("sending changes failed: %s", error)


if __name__ == "__main__":
    main()
