"""How cost and memory grow with the backlog: 10^5, 10^6, 10^7 messages, with --full 10^8.

At each size the same number of native ZADD, ZPOPMAX, ZADD and ZREM runs on the same sorted sets, since these grow with
the backlog, too: what RMQ adds is the ratio. So does a native ZADD of the smallest backlog, for its bytes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import redis

from benchmarks.support import loads, rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Meter, medians, rounded
from benchmarks.support.servers import Servers, some
from rmq import PriorityMessage, RmqClient, Topic, TopicType
from tests.support.core import Message, ages_for

SLOTS = 64
SAMPLE = 50_000
"""Messages that are sent into, and claimed from, a backlog of each size."""
FULL_NODES = 4
_PRIORITIES = 999_983
_NATIVE_BATCH = 500
_sample_starts = count(0, SAMPLE)


def measure(options: argparse.Namespace) -> Document:
    """Fill a backlog decade by decade; at each, measure a sample of sends, of claims with acks, and the memory."""
    largest = 8 if options.full else 6 if options.quick else 7
    nodes = FULL_NODES if options.full else 1
    topic = Topic("bench-backlog", TopicType.PRIORITY, slots=SLOTS)
    rows: list[Row] = []
    with some(nodes) as servers, RmqClient(servers.url, timeout_s=60.0) as client:
        native_bytes = _native_bytes(servers, topic, 100_000)
        producer = client.producer(topic)
        producer.send_many(_messages(0, 1))  # scripts and keys are there before memory is read
        memory_empty = _memory(servers)
        filled = 1
        for size in (10**power for power in range(5, largest + 1)):
            say(f"backlog: filling up to {size:,}")
            with Meter(servers) as filling:
                producer.send_many(_messages(filled, size))
            added, filled = size - filled, size
            used = _memory(servers) - memory_empty
            say(f"backlog: measuring at {size:,}")
            samples = [{**_sample(servers, client, topic), **_native(servers, topic)} for _ in range(options.repeats)]
            rows.append(
                {
                    "backlog": size,
                    "fill_rate_per_s": rounded(added / filling.cost.elapsed_s),
                    "fill_server_us": rounded(filling.cost.executing_us("evalsha") / added),
                    "bytes_per_message": rounded(used / size),
                    **medians(samples),
                }
            )
        say(f"backlog: draining {filled:,}")
        drained = _drain(servers, client, topic, filled)
        allocator = str(servers.connect().info("memory")["mem_allocator"])
    return {
        **({"benchmark": "backlog_full"} if options.full else {}),
        "allocator": allocator,
        "settings": {"slots": SLOTS, "sample": SAMPLE, "nodes": nodes, "content_bytes": 20, "type": "PRIORITY"},
        "native_bytes_per_message": rounded(native_bytes),
        "rows": rows,
        "drain": drained,
    }


def _messages(start: int, stop: int) -> Iterator[Message]:
    """Contents and priorities in random order: the hardest case for a sorted set."""
    contents = loads.stream(start, stop)
    return (PriorityMessage(content, _priority(index)) for index, content in enumerate(contents, start))


def _priority(index: int) -> int:
    return 1_000 + index * 7_919 % _PRIORITIES


def _sample(servers: Servers, client: RmqClient, topic: Topic) -> dict[str, float]:
    """Send a sample of contents that are not in the backlog and take as many again, so that it keeps its size."""
    first = next(_sample_starts)
    numbers = range(first, first + SAMPLE)
    messages = [PriorityMessage(b"sampl:%014d" % number, _priority(number)) for number in numbers]
    with Meter(servers) as sending:
        client.producer(topic).send_many(messages)
    return {**_named("send", sending, SAMPLE), **_take(servers, client, topic, SAMPLE)}


def _take(servers: Servers, client: RmqClient, topic: Topic, number: int) -> dict[str, float]:
    done = 0
    with client.consumer(topic) as consumer, Meter(servers) as claiming:
        while done < number:
            found = consumer.poll(min(8_000, number - done), 10.0)
            if not found:
                raise RuntimeError(f"only {done} of {number} messages came")
            consumer.ack(found)
            done += len(found)
    return _named("claim_ack", claiming, number)


def _native(servers: Servers, topic: Topic) -> dict[str, float]:
    """Send, take, claim and ack a sample by native commands on the topic's own sorted sets; leave them as they were."""
    native = _native_client(servers)
    first = next(_sample_starts)
    sample: dict[int, dict[bytes, float]] = {slot: {} for slot in range(topic.slots)}
    numbers = range(first, first + SAMPLE)
    for number, score in zip(numbers, _scores(topic, numbers), strict=True):
        sample[number % topic.slots][b"nativ:%014d" % number] = score
    taken: list[tuple[str, dict[bytes, float]]] = []
    with Meter(servers) as sending:
        for slot, batch in _batches(sample):
            native.zadd(f"{topic.name}_{slot}", batch)
    with Meter(servers) as claiming:
        for slot, batch in _batches(sample):
            store, prepare = f"{topic.name}_{slot}", f"native{{{topic.name}_{slot}}}"
            popped = dict(native.zpopmax(store, len(batch)))
            native.zadd(prepare, dict.fromkeys(popped, 1_800_000_000_016))
            native.zrem(prepare, *popped)
            taken.append((store, popped))
    for store, popped in taken:
        native.zadd(store, popped)
    for slot, batch in _batches(sample):
        native.zrem(f"{topic.name}_{slot}", *batch)
    native.close()
    return {
        **_named("native_send", sending, SAMPLE, "zadd"),
        **_named("native_claim_ack", claiming, SAMPLE, "zpopmax", "zadd", "zrem"),
    }


def _native_bytes(servers: Servers, topic: Topic, number: int) -> float:
    """Return the bytes that a native ZADD of the smallest backlog takes per message; leave nothing."""
    native, before = _native_client(servers), _memory(servers)
    filled: dict[int, dict[bytes, float]] = {slot: {} for slot in range(topic.slots)}
    for index, (content, score) in enumerate(zip(loads.stream(0, number), _scores(topic, range(number)), strict=True)):
        filled[index % topic.slots][content] = score
    for slot, batch in _batches(filled):
        native.zadd(f"{topic.name}_{slot}", batch)
    used = _memory(servers) - before
    native.close()
    servers.flush()
    return used / number


def _scores(topic: Topic, numbers: range) -> list[int]:
    """Return scores with ages, as RMQ stores them: others would all stand at one end of its sets, which costs less."""
    return ages_for(topic.max_priority).aged([_priority(number) for number in numbers], 2**29)


def _batches(slots: dict[int, dict[bytes, float]]) -> Iterator[tuple[int, dict[bytes, float]]]:
    for slot, scores in slots.items():
        items = iter(scores.items())
        while batch := dict(islice(items, _NATIVE_BATCH)):
            yield slot, batch


def _native_client(servers: Servers) -> Any:
    if len(servers.ports) > 1:
        return redis.RedisCluster(host="127.0.0.1", port=servers.port)
    return servers.connect()


def _drain(servers: Servers, client: RmqClient, topic: Topic, number: int) -> Row:
    started_s = time.monotonic()
    row = {key: rounded(value) for key, value in _take(servers, client, topic, number).items()}
    stats = client.inspect(topic).stats()
    return {**row, "took_s": round(time.monotonic() - started_s, 1), "left": stats.backlog + stats.in_flight}


def _named(what: str, meter: Meter, number: int, *commands: str) -> dict[str, float]:
    row = meter.cost.row(number, *(commands or ("evalsha",)))
    return {f"{what}_{key}": value for key, value in row.items()}


def _memory(servers: Servers) -> int:
    return sum(int(client.info("memory")["used_memory"]) for client in servers.connect_all())


def tables(document: Document) -> str:
    """Render growth and drain."""
    rows, drain, settings = document["rows"], document["drain"], document["settings"]
    least = rows[0]
    lines = rendering.listed(
        rows,
        ("backlog", "{backlog:,}"),
        ("filled, 1/s", "{fill_rate_per_s:,.0f}"),
        ("send, µs", "{send_server_cpu_us:,.2f}"),
        ("claim + ack, µs", "{claim_ack_server_cpu_us:,.2f}"),
        ("life, µs", lambda row: rendering.number(_life(row), 2)),
        ("life against the smallest", lambda row: rendering.ratio(_life(row) / _life(least))),
        ("native life against the smallest", lambda row: rendering.ratio(_native_life(row) / _native_life(least))),
        ("life against native", lambda row: rendering.ratio(_life(row) / _native_life(row))),
        ("send, 1/s", "{send_rate_per_s:,.0f}"),
        ("claim + ack, 1/s", "{claim_ack_rate_per_s:,.0f}"),
        ("bytes a message", "{bytes_per_message:,.1f}"),
    )
    return (
        f"{settings['type']}, {settings['content_bytes']}-byte contents and priorities in random order, "
        f"{settings['slots']} slots, {settings['nodes']} Redis, allocator {document['allocator']}; samples of "
        f"{settings['sample']:,} messages at each size, by pull. µs are the CPU time of Redis, of all nodes together: "
        "where these share cores, a command's own time has the waits for a core in it.\n\n"
        f"{lines}\n\nDraining all {rows[-1]['backlog']:,} by one process took "
        f"{drain['took_s']:,} s ({drain['claim_ack_rate_per_s']:,.0f}/s); left: {drain['left']}. Natively, "
        f"{least['backlog']:,} such members of sorted sets take {document['native_bytes_per_message']:.1f} bytes each."
    )


def _life(row: Row) -> float:
    return float(row["send_server_cpu_us"] + row["claim_ack_server_cpu_us"])


def _native_life(row: Row) -> float:
    return float(row["native_send_server_cpu_us"] + row["native_claim_ack_server_cpu_us"])


LIVES = {
    "send": "send_server_cpu_us",
    "claim + ack": "claim_ack_server_cpu_us",
    "life": _life,
    "life in native commands": _native_life,
}
PLOT = rendering.picture(
    "Growth with the backlog",
    rendering.Panel("Redis' CPU, µs per message", "{backlog:,.0e}", LIVES),
    rendering.Panel("bytes per message", "{backlog:,.0e}", {"bytes": "bytes_per_message"}, digits=0),
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help=f"up to 10^8, on a cluster of {FULL_NODES}; takes 16 GB")


BENCHMARK = Benchmark("backlog", measure, tables, PLOT, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
