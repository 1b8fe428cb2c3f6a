"""A producer process of a campaign. Run with `python -m tests.campaign.sender OPTIONS`; it ends with its input.

Before each send it writes down what it will send, so that also a killed producer's sends are known.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rmq import DelayedQueue, RmqClient
from tests.campaign.clocks import sleep_by_select
from tests.campaign.links import use_links
from tests.campaign.topics import (
    COLLECT,
    DELAYED,
    FIXED,
    LEASE_S,
    PRIORITY,
    RANGE,
    SLOTS,
    STREAM,
    delay_ms,
    message,
    sent_of,
    topics,
)
from tests.histories.journal import Journal

SIZES = (1, 1, 5, 40, 100)
LARGE = 200
"""Messages of a batch while the sender is behind."""

DEADLINE_S = 15.0


class Sender:
    """Sends to all topics in turn, and writes down what became of each message."""

    def __init__(self, client: RmqClient, journal: Journal, seed: int) -> None:
        self._client = client
        self._journal = journal
        self._chance = random.Random(seed)
        self._name = f"s{os.getpid()}"
        known = {topic.name: topic for topic in topics()}
        self._producers = {name: client.producer(known[name]) for name in (FIXED, RANGE, COLLECT, PRIORITY, STREAM)}
        self._queue = _queue(client)
        self._numbers = dict.fromkeys((*self._producers, DELAYED), 0)

    def send(self, size: int) -> None:
        """Send a batch to a topic drawn by lot."""
        name = self._chance.choice(list(self._numbers))
        numbers = range(self._numbers[name], self._numbers[name] + size)
        self._numbers[name] += size
        if name == DELAYED:
            values = [f"{self._name}.d{number}" for number in numbers]
            self._journal.send(name, [(value, value) for value in values], lambda: self._offer(values), _value_of)
            return
        drawn = [message(name, f"{self._name}{name[0]}", number, self._chance) for number in numbers]
        batch = [each for each, _, _ in drawn]
        producer = self._producers[name]
        pairs = [(content, sent_id) for _, content, sent_id in drawn]
        self._journal.send(name, pairs, lambda: producer.send_many(batch), _id_of)

    def _offer(self, values: Sequence[str]) -> None:
        self._queue.offer_many([(value, timedelta(milliseconds=delay_ms(self._chance))) for value in values])


def _queue(client: RmqClient) -> DelayedQueue:
    from datetime import timedelta

    return DelayedQueue(client, DELAYED, slots=SLOTS // 4, lease=timedelta(seconds=LEASE_S))


def _id_of(sent: Any) -> str:
    body = sent.body
    return sent_of(body if isinstance(body, bytes) else str(body).encode()).sent_id


def _value_of(offered: tuple[str, int]) -> str:
    return offered[0]


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    use_links(options["links"])
    sleep_by_select()
    chance = random.Random(options["seed"])
    begun_s, sent = time.monotonic(), 0
    client = RmqClient(options["url"], durability="replicated", timeout_s=3.0, deadline_s=DEADLINE_S)
    with client:
        sender = Sender(client, Journal(options["journal"]), options["seed"])
        while not select.select([sys.stdin], [], [], 0)[0]:
            behind = (time.monotonic() - begun_s) * options["per_second"] - sent
            if behind < 0:
                time.sleep(min(0.05, -behind / options["per_second"]))
                continue
            size = LARGE if behind > LARGE else chance.choice(SIZES)
            sender.send(size)
            sent += size


if __name__ == "__main__":
    main()
