"""The processes that share a topic. `python -m tests.spark_kills.rival_programs KIND URL JOURNAL CHECKPOINT SEED`.

Each one writes down when it begins to handle a content, and when it has ended.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import NamedTuple

from pyspark.sql import DataFrame

from rmq import Delivery, RmqClient, Topic, TopicType
from rmq.errors import RmqError
from tests.histories.journal import Journal
from tests.spark.sessions import make_session, stream_of
from tests.spark_kills.programs import end_with

LEASE_S = 10
TOPIC = Topic("rivals", TopicType.PRIORITY, slots=8, lease=timedelta(seconds=LEASE_S), max_retries=500)


class Handled(NamedTuple):
    """A message that is handled; `claimed_ms` is 0 where it is not known when it was claimed."""

    slot: int
    content: str
    sent_id: str
    claimed_ms: int


class Handling:
    """What each process does with messages: it takes some time, and writes that down."""

    def __init__(self, journal: Journal, chance: random.Random) -> None:
        self._journal, self._chance, self._numbers = journal, chance, count()

    def handle(self, messages: Sequence[Handled], longest_s: float, *, renewed: bool = True) -> list[str]:
        """Handle messages; return the names of the handlings.

        Args:
            messages: The messages.
            longest_s: How long that takes at most.
            renewed: Whether their leases are renewed meanwhile: then it takes longer than a lease now and then.
        """
        runs = [f"{os.getpid()}.{next(self._numbers)}" for _ in messages]
        for run, (slot, content, sent_id, claimed_ms) in zip(runs, messages, strict=True):
            self._journal.begin(run, TOPIC.name, slot, content, (sent_id,), claimed_ms, 0)
        takes_long = renewed and self._chance.random() < 0.005
        time.sleep(1.5 * LEASE_S if takes_long else self._chance.uniform(0, longest_s))
        return runs

    def end(self, runs: Sequence[str], outcome: str = "acked") -> None:
        """Note that handlings have ended."""
        self._journal.end(outcome, *runs)


def _handled(delivery: Delivery) -> Handled:
    return Handled(delivery.slot, delivery.text, (delivery.body or b"").decode(), delivery.claimed_ms)


def query(url: str, checkpoint: str, handling: Handling) -> None:
    """Drain the topic with Spark."""

    def handle(frame: DataFrame, number: int) -> None:
        del number
        rows = frame.selectExpr("slot", "cast(content as string) content", "cast(body as string) body").collect()
        # rows do not tell when they were claimed
        handling.end(handling.handle([Handled(row.slot, row.content, row.body, 0) for row in rows], 1.0))

    stream = stream_of(make_session("local[2]"), url, TOPIC.name, maxMessagesPerTrigger=400, maxReplays=450)
    writer = stream.writeStream.foreachBatch(handle).option("checkpointLocation", checkpoint)
    writer.start().awaitTermination()


def listener(url: str, handling: Handling) -> None:
    """Listen with threads."""
    with RmqClient(url) as client:

        @client.listener(TOPIC, threads=2)
        def handle(delivery: Delivery) -> None:
            runs = handling.handle([_handled(delivery)], 0.05)
            handling.end(runs, "late" if delivery.lost else "acked")

        client.run()


def reader(url: str, handling: Handling) -> None:
    """Take batches, and ack each as a whole."""
    with RmqClient(url, deadline_s=60) as client:
        consumer = client.consumer(TOPIC)
        while True:
            try:
                batch = consumer.poll(max_messages=50, timeout=0.5)
                if not batch or time.monotonic() > min(each.lease_until_s for each in batch) - LEASE_S / 2:
                    continue  # nobody renews for a consumer
                runs = handling.handle([_handled(each) for each in batch], 0.3, renewed=False)
                late = time.monotonic() > min(each.lease_until_s for each in batch)
                handling.end(runs, "late" if late else "acked")
                consumer.ack(batch)
                time.sleep(0.5)  # and leave some to the queries
            except RmqError:
                time.sleep(0.2)


def main() -> None:
    kind, url, journal, checkpoint, seed = sys.argv[1:]
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    logging.getLogger("rmq").setLevel(logging.ERROR)
    handling = Handling(Journal(journal), random.Random(int(seed)))
    if kind == "query":
        query(url, checkpoint, handling)
    elif kind == "listener":
        listener(url, handling)
    else:
        reader(url, handling)


if __name__ == "__main__":
    main()
