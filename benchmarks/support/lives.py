"""A message's life, measured: sent, claimed and acked by RMQ, and by bare commands on as many sorted sets."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.support import loads, native
from benchmarks.support.meters import Cost, Meter
from benchmarks.support.servers import DEFAULT_ENTRIES, Servers
from rmq import RmqClient, Topic, TopicType

MERGE_RANGE_MS = 500
FIXED_SPREAD_MS = 500
SETTLE_LIMIT_S = 600.0

SEND, LISTEN, PULL, LIFE = "send", "claim + ack", "claim + ack by pull", "life"

ALL_SLOTS = (8, 1, 64)
"""Numbers of slots: first the one that users have mostly."""

Figures = dict[str, dict[str, float]]
"""What of a life -> its figures, see `Cost.row`."""


def floor(servers: Servers, life: native.Life, *, lists: bool) -> Figures:
    """Run a load in native commands, on a server that keeps small sets as lists, or that does not."""
    servers.flush()
    servers.keep_lists(DEFAULT_ENTRIES if lists else 0)
    try:
        pipe = native.Pipe(servers.port)
        gc.collect()
        with Meter(servers) as sending:
            pipe.run(life.sends)
        with Meter(servers) as claiming:
            pipe.run(life.claims, replies_each=3)
        pipe.close()
    finally:
        servers.keep_lists()
    return _figures(life.number, sending.cost, LISTEN, claiming.cost)


def by_rmq(
    servers: Servers, topic: Topic, contents: Sequence[bytes], what: str = LISTEN, cargo: str = loads.PLAIN
) -> Figures:
    """Run a load through RMQ: by a batch listener, whose acks ride on its claims, or by pull."""
    servers.flush()
    with RmqClient(servers.url) as client:  # a new one: the flush dropped the topic that the last one registered
        producer = client.producer(topic)
        messages, due_s = _messages(topic.type, contents)
        if cargo:
            messages = loads.laden(topic, cargo, contents, MERGE_RANGE_MS)
        gc.collect()
        with Meter(servers) as sending:
            producer.send_many(messages)
        time.sleep(max(0.0, due_s() - time.time()))
        gc.collect()
        take = _pull if what == PULL else partial(_listen, cargo=cargo)
        taking = take(servers, client, topic, len(contents))
    return _figures(len(contents), sending.cost, what, taking, "evalsha")


def native_life(topic_type: TopicType, contents: Sequence[bytes], slots: int) -> native.Life:
    """Encode the same load in native commands."""
    highest_first = topic_type is TopicType.PRIORITY
    scores = native_scores(topic_type, len(contents))
    return native.encode(contents, scores, loads.BATCH, highest_first=highest_first, slots=slots)


def native_scores(topic_type: TopicType, number: int) -> list[int]:
    """Return the scores of the same load where nothing works them out."""
    if topic_type is TopicType.PRIORITY:
        return loads.priorities(number)
    if topic_type is TopicType.RANGE_MERGE:  # as they come: a batch shares its time, the next one is 5 ms later
        return [1_800_000_000_000 + index // loads.BATCH * 5 for index in range(number)]
    return loads.due_times(number, 1_800_000_000_000, FIXED_SPREAD_MS)


def warm_up(servers: Servers) -> None:
    """Load the scripts and let the allocator grow, outside of what is measured."""
    contents = loads.contents(20_000)
    for topic_type in loads.TYPES:
        by_rmq(servers, loads.topic(topic_type, suffix="-warm"), contents, PULL)
    servers.flush()


def _listen(servers: Servers, client: RmqClient, topic: Topic, number: int, cargo: str) -> Cost:
    finished, read = threading.Event(), loads.reader(cargo)
    seen = 0

    def handle(deliveries: list[Any]) -> None:
        nonlocal seen
        read(deliveries)
        seen += len(deliveries)
        if seen >= number:
            finished.set()

    client.listener(topic, batch=loads.BATCH)(handle)
    with Meter(servers) as meter:
        client.start()
        if not finished.wait(SETTLE_LIMIT_S):
            raise TimeoutError(f"{seen} of {number} messages were delivered")
        client.stop()
    return meter.cost


def _pull(servers: Servers, client: RmqClient, topic: Topic, number: int) -> Cost:
    consumer, done = client.consumer(topic), 0
    with Meter(servers) as meter:
        while done < number:
            found = consumer.poll(loads.BATCH, 1.0)
            if consumer.ack(found):
                raise RuntimeError("leases were lost during a benchmark")
            done += len(found)
    consumer.close()
    return meter.cost


def _messages(topic_type: TopicType, contents: Sequence[bytes]) -> tuple[Iterator[loads.Message], Callable[[], float]]:
    """Return the messages, and when all of them are due (epoch seconds, asked after the send)."""
    number = len(contents)
    if topic_type is not TopicType.FIXED_TIME:
        after_s = MERGE_RANGE_MS / 1000 + 0.1 if topic_type.timed else 0
        return loads.soon(topic_type, contents, loads.priorities(number), MERGE_RANGE_MS), lambda: time.time() + after_s
    first_ms = int(time.time() * 1000) + 1_000 + number // 60  # ahead even where only 60,000/s are sent
    times = loads.due_times(number, first_ms, FIXED_SPREAD_MS)
    return loads.messages(topic_type, contents, times), lambda: (first_ms + FIXED_SPREAD_MS) / 1000 + 0.1


def _figures(number: int, sending: Cost, what: str, claiming: Cost, *commands: str) -> Figures:
    parts = sending.row(number, *commands), claiming.row(number, *commands)
    life = {key: parts[0][key] + parts[1][key] for key in parts[0]}
    life["rate_per_s"] = 1 / sum(1 / part["rate_per_s"] for part in parts)
    return {SEND: parts[0], what: parts[1], LIFE: life}
