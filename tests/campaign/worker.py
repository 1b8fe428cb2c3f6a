"""A worker process of a campaign. Run with `python -m tests.campaign.worker OPTIONS`; SIGTERM stops it.

It also runs beside the release before: it uses only what both know.
"""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import rmq
from rmq import Coordinator, DelayedQueue, Delivery, RmqClient
from rmq.errors import RmqError
from tests.campaign.clocks import sleep_by_select
from tests.campaign.links import use_links
from tests.campaign.topics import (
    COLLECT,
    DELAYED,
    FIXED,
    GROUP,
    LEASE_S,
    PRIORITY,
    RANGE,
    SESSION_S,
    SLOTS,
    SPARK,
    STREAM,
    Sent,
    sent_of,
    topics,
)
from tests.histories.journal import Journal, now_s

TICK_S = 0.02
STATUS_TICKS = 10
STILL_S = 0.5
"""A process that misses so much time says so."""

SINGLE = (FIXED, COLLECT)
"""Topics whose handlers get one delivery at a time; those of the others get batches."""

COLUMNS = (PRIORITY, RANGE)
"""Topics whose handlers get columns, in a release that has them."""

OWN_FROM = 2
"""Claims of streams read in names of their own from so few entries on: a campaign leaves no large backlog."""

DRAIN_S = LEASE_S * 2.0
LONG_S = LEASE_S * 1.5
SHORT_S = 0.002
LONG_CHANCE = 0.0002
FAIL_CHANCE = 0.01


@dataclass(frozen=True, slots=True)
class Row:
    """A row of columns, with what a handling asks for."""

    body: bytes | None
    slot: int
    claimed_ms: int


class Handling:
    """What each handler does: writes down its beginning and end, takes some time, and fails now and then."""

    def __init__(self, journal: Journal, seed: int) -> None:
        self._journal = journal
        self._chance = random.Random(seed)
        self._numbers = itertools.count()

    def __call__(self, given: Delivery | list[Delivery]) -> None:
        """Handle a delivery, or a batch."""
        deliveries = given if isinstance(given, list) else [given]
        runs = [self._begin(each, each.topic.name, each.text) for each in deliveries]
        fails = self._work(alone=given is not deliveries)
        self._end(runs, [each.lost for each in deliveries], fails)

    def columns(self, given: Any) -> None:
        """Handle columns, without an object of the library for each row; the release before does not know them."""
        rows = zip(given.contents, given.bodies, given.slots, given.claimed_ms, strict=True)
        runs = [self._begin(Row(*row), given.topic.name, content.decode()) for content, *row in rows]
        fails = self._work(alone=False)
        self._end(runs, given.lost, fails)

    def value(self, delivery: Delivery, value: bytes) -> str:
        """Note that a value of the delayed queue is handled; return the name of the run."""
        return self._begin(delivery, DELAYED, value.decode())

    def done(self, run: str, delivery: Delivery) -> None:
        """Note its end."""
        self._end([run], [delivery.lost])

    def _begin(self, delivery: Delivery | Row, topic: str, content: str) -> str:
        run = f"{os.getpid()}.{next(self._numbers)}"
        if topic in (DELAYED, SPARK):
            carried = [Sent(content)]
        elif isinstance(delivery, Delivery) and topic == COLLECT:
            carried = [sent_of(item) for item in delivery.items]
        else:
            carried = [] if delivery.body is None else [sent_of(delivery.body)]
        ids, due_ms = [each.sent_id for each in carried], max((each.due_ms for each in carried), default=0)
        slot = -1 if topic == DELAYED else delivery.slot
        self._journal.begin(run, topic, slot, content, ids, delivery.claimed_ms, due_ms)
        return run

    def _work(self, *, alone: bool) -> bool:
        """Take some time; return whether to fail."""
        long = alone and self._chance.random() < LONG_CHANCE
        time.sleep(LONG_S if long else self._chance.random() * SHORT_S)
        return self._chance.random() < FAIL_CHANCE

    def _end(self, runs: Iterable[str], lost: Iterable[bool], fails: bool = False) -> None:
        # `late`: somebody else has the message or will have it; nobody counts on this outcome
        by_outcome: dict[str, list[str]] = {}
        for run, late in zip(runs, lost, strict=True):
            by_outcome.setdefault("late" if late else "failed" if fails else "acked", []).append(run)
        for outcome, names in by_outcome.items():
            self._journal.end(outcome, *names)
        if fails:
            raise ValueError("this one fails")


def watch(journal: Journal, coordinator: Coordinator, status: Path) -> None:
    """Write down every change of the slots that may be claimed from, and when this process stood still.

    The file `status` says all the while how many slots there are.
    """
    owned: set[tuple[str, int]] = set()
    last_s = now_s()
    for tick in itertools.count():
        time.sleep(TICK_S)
        at_s = now_s()
        if at_s - last_s > STILL_S:
            journal.write("trouble", "process stood still", f"pid {os.getpid()}", last_s, at_s)
        last_s = at_s
        before, owned = owned, set(coordinator.owned())
        for kind, keys in (("owns", owned - before), ("leaves", before - owned)):
            for topic, slot in keys:
                journal.write(kind, at_s, os.getpid(), topic, slot)
        if tick % STATUS_TICKS == 0:
            status.write_text(f"{os.getpid()} {len(owned)}\n")


def take(queue: DelayedQueue, handling: Handling, ended: threading.Event) -> None:
    """Take values out of the delayed queue until the end."""
    while not ended.is_set():
        try:
            delivery = queue.claim_soon(0.3)
            if delivery is not None:
                run = handling.value(delivery, queue.value_of(delivery))
                handling.done(run, delivery)
                queue.finish(delivery)
        except RmqError:
            ended.wait(0.2)


def new_coordinator(options: dict[str, Any]) -> Coordinator:
    """Return what keeps the owners of slots: ZooKeeper, or Redis where no hosts are given."""
    hosts, name = options["hosts"], options["name"]
    if hosts:
        chroot = options["chroot"]
        return Coordinator(hosts, name, chroot=chroot, session_timeout_s=SESSION_S, drain_timeout_s=DRAIN_S)
    keeper: Any = importlib.import_module("rmq._ownership.redis_keeper")
    try:
        urls: Any = importlib.import_module("rmq._servers.urls")
    except ImportError:  # the release before
        urls = importlib.import_module("rmq._transport.urls")
    url = urls.parse_url(options["url"])
    return keeper.RedisCoordinator(url, rmq.RedisOwners(SESSION_S, name, drain_timeout_s=DRAIN_S))


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(
        level="INFO",
        filename=options["log"],
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(threadName)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger("rmq.worker").setLevel(logging.ERROR)  # handlers fail by design
    use_links(options["links"])
    sleep_by_select()
    journal = Journal(options["journal"])
    handling = Handling(journal, options["seed"])
    coordinator = new_coordinator(options)
    ended = threading.Event()
    columns = hasattr(rmq, "DeliveryColumns")
    with suppress(ImportError):  # the release before has it elsewhere
        streams: Any = importlib.import_module("rmq._broker.stream_broker")
        streams.OWN_FROM = OWN_FROM
    url = options["url"]
    with RmqClient(url, timeout_s=3.0, deadline_s=15.0) as plain:
        queue = DelayedQueue(plain, DELAYED, slots=SLOTS // 4, lease=timedelta(seconds=LEASE_S))
        taker = threading.Thread(target=take, args=(queue, handling, ended))
        client = RmqClient(url, zookeeper=coordinator, timeout_s=3.0, deadline_s=15.0)
        for topic in topics():
            group = GROUP if topic.name == STREAM else None
            if columns and topic.name in COLUMNS:
                client.listener(topic, threads=2, batch=20, columns=True)(handling.columns)
                continue
            batch = None if topic.name in SINGLE else 20
            client.listener(topic, threads=2, batch=batch, group=group, start="all")(handling)
        taker.start()
        threading.Thread(target=watch, args=(journal, coordinator, Path(options["status"])), daemon=True).start()
        client.run(drain_s=DRAIN_S)
        ended.set()
        taker.join()


if __name__ == "__main__":
    main()
