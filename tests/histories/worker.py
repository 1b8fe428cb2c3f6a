"""A consuming process of a history. Run with `python -m tests.histories.worker`; SIGTERM stops it."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Iterable

from rmq import Delivery, RmqClient, Topic, TopicType
from rmq.aio import RmqClient as AsyncClient
from rmq.errors import RmqError
from tests.histories.journal import Journal
from tests.histories.topics import GROUP, LEASE_S, topics

SIDES = ("threads", "batches", "asyncio", "pull")


class Handling:
    """What each handler does: writes down its beginning and end, takes some time, and fails now and then."""

    def __init__(self, journal: Journal, chance: random.Random) -> None:
        self._journal = journal
        self._chance = chance
        self._numbers = itertools.count()

    def begin(self, delivery: Delivery) -> str:
        """Note the beginning; return the name of the run."""
        run = f"{os.getpid()}.{next(self._numbers)}"
        sent = json.loads(delivery.body or b"{}")
        ids, due_ms = [sent["id"]] if sent else [], int(sent.get("due_ms", 0))
        self._journal.begin(run, delivery.topic.name, delivery.slot, delivery.text, ids, delivery.claimed_ms, due_ms)
        return run

    def takes_s(self) -> float:
        """Return how long it takes: mostly little, now and then longer than a lease."""
        draw = self._chance.random()
        return LEASE_S * 1.5 if draw < 0.0005 else self._chance.uniform(0, 0.5) if draw < 0.01 else draw * 0.01

    def end(self, runs: Iterable[tuple[str, Delivery]]) -> None:
        """Note the end, and fail now and then."""
        fails = self._chance.random() < 0.05
        for run, delivery in runs:
            # `late`: somebody else has the message or will have it; nobody counts on this outcome
            self._journal.end("late" if delivery.lost else "failed" if fails else "acked", run)
        if fails:
            raise ValueError("this one fails")


def with_threads(url: str, handling: Handling, batch: int | None) -> None:
    """Listen with threads."""
    with RmqClient(url) as client:

        def handle(given: Delivery | list[Delivery]) -> None:
            deliveries = given if isinstance(given, list) else [given]
            runs = [(handling.begin(each), each) for each in deliveries]
            time.sleep(handling.takes_s())
            handling.end(runs)

        for topic in topics():
            group = GROUP if topic.type is TopicType.STREAM else None
            client.listener(topic, threads=2, batch=batch, group=group, start="all")(handle)
        client.run(drain_s=LEASE_S * 2)


async def with_asyncio(url: str, handling: Handling) -> None:
    """Listen with asyncio."""
    async with AsyncClient(url) as client:

        async def handle(delivery: Delivery) -> None:
            run = handling.begin(delivery)
            await asyncio.sleep(handling.takes_s())
            handling.end([(run, delivery)])

        for topic in topics():
            group = GROUP if topic.type is TopicType.STREAM else None
            client.listener(topic, concurrency=4, group=group, start="all")(handle)
        await client.run(drain_s=LEASE_S * 2)


def with_polls(url: str, handling: Handling) -> None:
    """Pull, in a thread for each topic."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())

    def pull(topic: Topic) -> None:
        consumer = (
            client.consumer(topic, group=GROUP, start="all")
            if topic.type is TopicType.STREAM
            else (client.consumer(topic))
        )
        while not stopping.is_set():
            try:
                for delivery in consumer.poll(max_messages=10, timeout=0.2):
                    if time.monotonic() > delivery.lease_until_s:  # nobody renews for a consumer
                        break
                    run = handling.begin(delivery)
                    time.sleep(min(handling.takes_s(), 0.02))
                    try:
                        handling.end([(run, delivery)])
                    except ValueError as error:
                        delivery.nack(error=error)
                    else:
                        delivery.ack()
            except RmqError:
                stopping.wait(0.2)

    with RmqClient(url) as client:
        threads = [threading.Thread(target=pull, args=(topic,)) for topic in topics()]
        for each in threads:
            each.start()
        for each in threads:
            each.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("journal")
    parser.add_argument("seed", type=int)
    parser.add_argument("side", choices=SIDES)
    options = parser.parse_args()
    logging.getLogger("rmq.worker").setLevel(logging.ERROR)  # handlers fail by design
    handling = Handling(Journal(options.journal), random.Random(options.seed))
    if options.side == "asyncio":
        asyncio.run(with_asyncio(options.url, handling))
    elif options.side == "pull":
        with_polls(options.url, handling)
    else:
        with_threads(options.url, handling, 20 if options.side == "batches" else None)


if __name__ == "__main__":
    main()
