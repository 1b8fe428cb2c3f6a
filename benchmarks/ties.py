"""Equal priorities: what it costs to deliver the oldest first, and who waits under a load that never ends.

    python -m benchmarks.ties [--quick]

The overload: each round sends 60 messages of tier 300, 60 of tier 200 and 30 of tier 100, and handles 100. Each content
has larger bytes than all before, so that a sorted set alone would deliver the newest of a tier first.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.support import loads, rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Meter, medians
from benchmarks.support.servers import Servers, standalone
from rmq import PriorityMessage, RmqClient, Topic, TopicType

ORDERS: dict[str, dict[str, Any]] = {
    "any": {"ties": "any"},
    "oldest, 100 ms": {},
    "oldest, 1 ms": {"max_priority": 8_191},
}
TIERS = {300: 60, 200: 60, 100: 30}
"""Priority -> messages that are sent in a round."""

CAPACITY = 100
OVERLOADS = (("any", 0.005), ("oldest, 100 ms", 0.005), ("oldest, 100 ms", 0.1), ("oldest, 1 ms", 0.005))
"""Which order, and how long a round takes, s: times are told apart by their unit, batches that are shorter are not."""
SCRIPTS = ("evalsha", "eval")


def measure(options: argparse.Namespace) -> Document:
    """Measure sends, claims and acks of each order in turns, then let each run overloaded."""
    number, rounds = (20_000, 200) if options.quick else (100_000, 1_000)
    contents = loads.contents(number)
    with standalone() as servers:
        _costs(servers, {}, contents[:5_000])
        samples: dict[tuple[str, str], list[dict[str, float]]] = {}
        for repeat in range(options.repeats):
            for name, settings in ORDERS.items():
                say(f"ties: repeat {repeat + 1} of {options.repeats}, {name}")
                for what, row in _costs(servers, settings, contents).items():
                    samples.setdefault((name, what), []).append(row)
        waits = [_overload(servers, name, min(rounds, round(20 / round_s)), round_s) for name, round_s in OVERLOADS]
        return {
            "redis": servers.version,
            "settings": {"messages": number, "content_bytes": 20, "slots": 1, "rounds": rounds, "tiers": TIERS},
            "rows": [{"ties": name, "what": what, **medians(each)} for (name, what), each in samples.items()],
            "waits": waits,
        }


def _costs(servers: Servers, settings: dict[str, Any], contents: list[bytes]) -> dict[str, dict[str, float]]:
    servers.flush()
    found: dict[str, dict[str, float]] = {}
    number = len(contents)
    draw = random.Random(1)
    priorities = [draw.choice(list(TIERS)) for _ in range(number)]
    topic = Topic("bench-ties", TopicType.PRIORITY, **settings)
    with RmqClient(servers.url) as client:
        producer = client.producer(topic)
        for what, step in (("send", 0), ("send again", 0), ("send again, another priority", 1)):
            with Meter(servers) as meter:
                producer.send_many(
                    PriorityMessage(content, priority + step)
                    for content, priority in zip(contents, priorities, strict=True)
                )
            found[what] = meter.cost.row(number, *SCRIPTS)
        with Meter(servers) as meter, client.consumer(topic) as consumer:
            while claimed := consumer.poll(100):
                consumer.ack(claimed)
        found["claim and ack"] = meter.cost.row(number, *SCRIPTS)
    return found


def _overload(servers: Servers, name: str, rounds: int, round_s: float) -> Row:
    """Run overloaded; waits count in rounds, for the tier that is served in part."""
    say(f"ties: overload, {name}, rounds of {1_000 * round_s:g} ms")
    servers.flush()
    numbers = iter(range(10**9))
    sent: dict[bytes, int] = {}
    waits: list[int] = []
    behind = 0
    topic = Topic("bench-ties", TopicType.PRIORITY, **ORDERS[name])
    with RmqClient(servers.url) as client, client.consumer(topic) as consumer:
        producer = client.producer(topic)
        for turn in range(rounds):
            started_s = time.monotonic()
            messages = list(_of_a_round(numbers))
            producer.send_many(messages)
            sent |= {bytes(message.content): turn for message in messages if message.priority == 200}
            found = consumer.poll(CAPACITY)
            consumer.ack(found)
            served = [sent.pop(delivery.content) for delivery in found if delivery.priority == 200]
            waits += [turn - since for since in served]
            if served:
                behind = max(behind, max(served) - min(sent.values(), default=turn))
            time.sleep(max(0.0, round_s - (time.monotonic() - started_s)))
    mean = sum(waits) / len(waits)
    oldest = rounds - min(sent.values(), default=rounds)
    return {
        "ties": name, "round_ms": 1_000 * round_s, "handled": len(waits), "mean_rounds": round(mean, 1),
        "most_rounds": max(waits), "oldest_left_rounds": oldest, "behind_rounds": behind,
    }  # fmt: skip


def _of_a_round(numbers: Iterator[int]) -> Iterator[PriorityMessage]:
    for priority, count in TIERS.items():
        for _ in range(count):
            yield PriorityMessage(b"m%012d" % next(numbers), priority)


def tables(document: Document) -> str:
    """Render costs beside those of `any`, and the waits."""
    plain = {row["what"]: row["server_us"] for row in document["rows"] if row["ties"] == "any"}
    costs = [
        [row["ties"], row["what"], f"{row['server_us']:.2f}", f"{row['server_us'] / plain[row['what']]:.2f}"]
        for row in document["rows"]
    ]
    waits = [
        [row["ties"], f"{row['round_ms']:g} ms", f"{row['handled']:,}", f"{row['mean_rounds']:,}",
         f"{row['most_rounds']:,}", f"{row['oldest_left_rounds']:,}", f"{row['behind_rounds']:,}"]
        for row in document["waits"]
    ]  # fmt: skip
    return (
        f"Redis {document['redis']}, medians of {document['repeats']} repeats in turns.\n\n"
        + rendering.table(["ties", "what", "server, µs a message", "beside any"], costs)
        + "\n\nTier 200, waits in rounds of at least this time; `behind`: how "
        "much younger one was delivered than the oldest that was left.\n\n"
        + rendering.table(["ties", "round", "handled", "mean wait", "longest", "oldest left", "behind"], waits)
    )


BENCHMARK = Benchmark("ties", measure, tables)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
