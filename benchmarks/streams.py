"""Stream topics in figures: `python -m benchmarks.streams [NAME ...]`; `--quick` for a tenth."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis

from rmq import Retention, RmqClient, StreamMessage, Topic, TopicType
from rmq._claiming.consumer import Consumer
from rmq._model.deliveries import Delivery
from tests.support.fan_out import FanOut
from tests.support.fan_out import fan_out as fan_out_to
from tests.support.servers import RedisServer
from tests.support.zookeeper import ZooKeeperEnsemble

KEEP = Retention(max_length=None)
KILLS = 12
HISTOGRAM_MS = (1, 2, 5, 10, 50, 1_000)
"""The published test of the original: 74 % below 1 ms, 99.9 % up to 2 ms."""


def paced(messages: int, per_second: int) -> Iterator[str]:
    """Yield the clock so many times, at a steady rate, each as soon as it is its turn."""
    started = time.monotonic()
    for number in range(messages):
        time.sleep(max(0.0, started + number / per_second - time.monotonic()))
        yield str(time.time_ns())


def send_paced(url: str, name: str, messages: int, per_second: int) -> None:
    """Send messages that carry the sender's clock, in a process of its own."""
    with RmqClient(url) as client:
        producer = client.producer(Topic(name, TopicType.STREAM, retention=KEEP))
        for clock in paced(messages, per_second):
            producer.send(StreamMessage(clock))


def send_paced_plain(url: str, name: str, messages: int, per_second: int) -> None:
    """The same with redis-py alone."""
    with redis.Redis.from_url(url) as plain:  # pyright: ignore[reportUnknownMemberType]
        for clock in paced(messages, per_second):
            plain.xadd(name, {"content": clock})


def latency(server: RedisServer, messages: int, per_second: int, unacked: int) -> dict[str, Any]:
    """Measure send to handler, on one machine with one clock, beside so many entries that somebody never acks."""
    topic = Topic("latency", TopicType.STREAM, retention=KEEP)
    late_ms: list[float] = []
    with RmqClient(server.url) as client:
        if unacked:
            client.producer(topic).send_many(StreamMessage(str(number)) for number in range(unacked))
            with client.consumer(topic, group="g", start="all", name="hoards") as hoarder:
                left = unacked
                while left:
                    left -= len(hoarder.poll(min(left, 10_000)))

        @client.listener(topic, group="g", batch=10_000)
        def handle(deliveries: list[Delivery]) -> None:
            now_ns = time.time_ns()
            late_ms.extend((now_ns - int(delivery.content)) / 1e6 for delivery in deliveries)

        client.start()
        in_process(send_paced, server.url, topic.name, messages, per_second)
        wait(lambda: len(late_ms) >= messages, 60)
        client.stop()
    plain_ms = latency_plain(server, messages, per_second)
    return {
        "per_second": per_second, "messages": len(late_ms), "unacked": unacked, "rmq": spread(late_ms),
        "redis-py": spread(plain_ms), "published": "74 % < 1 ms, 99.9 % <= 2 ms",
    }  # fmt: skip


def latency_plain(server: RedisServer, messages: int, per_second: int) -> list[float]:
    """Measure the same with redis-py alone: a blocking XREADGROUP, then XACK, one after the other."""
    late_ms: list[float] = []
    with server.connect() as plain:
        plain.xgroup_create("plain", "g", "$", mkstream=True)

        def consume() -> None:
            while len(late_ms) < messages:
                found: Any = plain.xreadgroup("g", "c", {"plain": ">"}, count=10_000, block=1_000)
                for _, page in found:
                    now_ns = time.time_ns()
                    late_ms.extend((now_ns - int(fields[b"content"])) / 1e6 for _, fields in page)
                    plain.xack("plain", "g", *(entry_id for entry_id, _ in page))

        consumer = threading.Thread(target=consume)
        consumer.start()
        in_process(send_paced_plain, server.url, "plain", messages, per_second)
        consumer.join(60)
    return late_ms


def in_process(work: Callable[..., None], *args: object) -> None:
    """Do some work in a process of its own, and wait for its end."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=args)
    process.start()
    process.join()


def spread(late_ms: list[float]) -> dict[str, Any]:
    """Return a histogram in percent, and the tail."""
    shares, below = {}, 0.0
    for bound in HISTOGRAM_MS:
        share = sum(late < bound for late in late_ms) / len(late_ms)
        shares[f"< {bound} ms"], below = round(100 * (share - below), 2), share
    cuts = statistics.quantiles(late_ms, n=1_000)
    tail = {name: round(cuts[place], 3) for name, place in (("p50_ms", 499), ("p99_ms", 989), ("p99.9_ms", 998))}
    return {"percent": shares, **tail, "worst_ms": round(max(late_ms), 3)}


def throughput(server: RedisServer, messages: int) -> dict[str, Any]:
    """Measure sending and consuming in batches beside plain redis-py doing the same."""
    topic = Topic("throughput", TopicType.STREAM, retention=KEEP)
    done: dict[str, Any] = {"messages": messages}
    with RmqClient(server.url) as client, server.connect() as plain:
        done["send"] = rate(messages, lambda: client.producer(topic).send_many(numbered(messages)))
        with client.consumer(topic, group="g", start="all") as consumer:
            done["consume"] = rate(messages, lambda: drain(consumer, messages))

        def plain_send() -> None:
            for first in range(0, messages, 500):
                pipeline = plain.pipeline(transaction=False)
                for number in range(first, first + 500):
                    pipeline.xadd("plain", {"content": str(number)})
                pipeline.execute()

        def plain_consume() -> None:
            left = messages
            while left:
                found: Any = plain.xreadgroup("g", "c", {"plain": ">"}, count=1_000)
                ((_, page),) = found
                plain.xack("plain", "g", *(entry_id for entry_id, _ in page))
                left -= len(page)

        done["send, redis-py"] = rate(messages, plain_send)
        plain.xgroup_create("plain", "g", "0")
        done["consume, redis-py"] = rate(messages, plain_consume)
    return done


def numbered(messages: int) -> Iterator[StreamMessage]:
    """Return so many messages."""
    return (StreamMessage(str(number)) for number in range(messages))


def drain(consumer: Consumer, messages: int) -> None:
    """Consume so many messages in batches."""
    left = messages
    while left:
        page = consumer.poll(1_000, 1.0)
        consumer.ack(page)
        left -= len(page)


def rate(messages: int, work: Callable[[], object]) -> int:
    """Return how many messages a second some work deals with."""
    started = time.monotonic()
    work()
    return int(messages / (time.monotonic() - started))


def fan_out(server: RedisServer, messages: int) -> dict[str, Any]:
    """Deliver messages to 3 groups of 4 consumer processes, of which some are killed with -9."""
    with tempfile.TemporaryDirectory() as folder:
        return shown(fan_out_to(server.url, "fan-out", Path(folder), messages, kills=KILLS), messages)


def fan_out_owned(server: RedisServer, messages: int) -> dict[str, Any]:
    """The same with an owner for each slot of a group: the order is kept."""
    with ZooKeeperEnsemble(tick_ms=500) as zookeeper, tempfile.TemporaryDirectory() as folder:
        there = zookeeper.hosts, "/fan-out"
        played = fan_out_to(server.url, "fan-out", Path(folder), messages, kills=KILLS, zookeeper=there)
        return {**shown(played, messages), "out_of_order": sum(group.swapped for group in played.groups.values())}


def shown(played: FanOut, messages: int) -> dict[str, Any]:
    """Return the figures of a fan-out."""
    groups = played.groups.values()
    return {
        "messages": messages, "groups": len(groups), "consumers": 12, "killed": played.killed,
        "seconds": round(played.seconds, 2), "missing": sum(group.missing for group in groups),
        "redelivered": sum(group.redelivered for group in groups),
        "of_these_uncounted": sum(group.uncounted for group in groups),
        "leases_expired": sum(group.expired for group in groups),
        "unaccounted": sum(group.unaccounted for group in groups),
    }  # fmt: skip


def takeover(server: RedisServer, entries: int) -> dict[str, Any]:
    """Let survivors take over what a dead consumer holds, while new messages go on."""
    topic = Topic("takeover", TopicType.STREAM, lease=timedelta(seconds=2), retention=KEEP)
    taken: list[list[tuple[str, int]]] = [[], [], []]
    late_ms: list[float] = []
    with RmqClient(server.url) as client:
        producer = client.producer(topic)
        producer.send_many(StreamMessage(f"old{number}") for number in range(entries))
        with client.consumer(topic, group="g", start="all", name="dead") as dead:
            left = entries
            while left:
                left -= len(dead.poll(min(left, 10_000)))
        ended = threading.Event()

        def survive(place: int) -> None:
            with client.consumer(topic, group="g", name=f"survivor-{place}") as consumer:
                while not ended.is_set():
                    page = consumer.poll(100, 0.5)
                    now_ns = time.time_ns()
                    taken[place] += [(each.text, each.attempt) for each in page if each.text.startswith("old")]
                    new = [each.text for each in page if not each.text.startswith("old")]
                    late_ms.extend((now_ns - int(text)) / 1e6 for text in new)
                    consumer.ack(page)

        survivors = [threading.Thread(target=survive, args=(place,)) for place in range(3)]
        for survivor in survivors:
            survivor.start()
        until_s = time.monotonic() + 60
        while sum(map(len, taken)) < entries and time.monotonic() < until_s:
            producer.send(StreamMessage(str(time.time_ns())))
            time.sleep(0.005)
        ended.set()
        for survivor in survivors:
            survivor.join()
    everything = [one for part in taken for one in part]
    orders = [[int(text[3:]) for text, _ in part] for part in taken]
    return {
        "entries": entries, "taken_over": len(everything),
        "once_each": len(everything) == len(set(everything)) == entries, "by_each": [len(part) for part in taken],
        "oldest_first": all(order == sorted(order) for order in orders),
        "new_meanwhile": len(late_ms), "new_latest_ms": round(max(late_ms), 1),
    }  # fmt: skip


def wait(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait until something is so."""
    until_s = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError("it did not come to an end")
        pause.wait(0.05)


MEASUREMENTS: dict[str, tuple[Callable[[RedisServer, int], dict[str, Any]], int]] = {
    "throughput": (throughput, 200_000),
    "latency": (lambda server, messages: latency(server, messages, 1_000, 0), 20_000),
    "latency-unacked": (lambda server, messages: latency(server, messages, 1_000, 50 * messages), 20_000),
    "fan-out": (fan_out, 100_000),
    "fan-out-owned": (fan_out_owned, 100_000),
    "takeover": (takeover, 10_000),
}


def main() -> None:
    """Print a line of JSON for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default, or of {', '.join(MEASUREMENTS)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    options = parser.parse_args()
    if unknown := set(options.names) - MEASUREMENTS.keys():
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}")
    for name in options.names or MEASUREMENTS:
        run, size = MEASUREMENTS[name]
        with RedisServer() as server:
            with server.connect() as client:
                version: Any = client.info("server")["redis_version"]
            print(
                json.dumps({name: {"redis": version, **run(server, size // (10 if options.quick else 1))}}), flush=True
            )


if __name__ == "__main__":
    main()
