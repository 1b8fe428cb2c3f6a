"""What a message's life costs the server and the client, against bare commands on the same server in the same run."""

from __future__ import annotations

import argparse
import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support import loads, native, rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Cost, LongestCalls, Meter, medians, rounded
from benchmarks.support.probe import Probe
from benchmarks.support.servers import Servers, standalone
from rmq import RmqClient, Topic, TopicType
from rmq._model.messages import Message

SWEEP = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
MERGE_RANGE_MS = 1_000
FIXED_SPREAD_MS = 2_000
SETTLE_LIMIT_S = 600.0


def measure(options: argparse.Namespace) -> Document:
    """Measure send, claim and ack of each topic type against bare ZADD, ZPOPMIN, ZADD and ZREM."""
    number = options.number or (50_000 if options.quick else 200_000)
    contents = loads.contents(number)
    with standalone() as servers:
        warm_up(servers)
        document = {
            "redis": servers.version,
            "settings": {"messages": number, "content_bytes": 20, "batch": loads.BATCH, "slots": 1},
            "rows": against_floor(servers, contents, options.repeats),
            "sweep": sweep(servers, contents, 10_000 if options.quick else 100_000, min(options.repeats, 3)),
        }
    return document


def against_floor(servers: Servers, contents: Sequence[bytes], repeats: int) -> list[Row]:
    """Measure floor and RMQ in turns, per topic type."""
    samples: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    lives = {topic_type: _native_life(topic_type, contents) for topic_type in loads.TYPES}
    for repeat in range(repeats):
        for topic_type in loads.TYPES:
            say(f"cost: repeat {repeat + 1} of {repeats}, {topic_type.value}")
            found = run_native(servers, lives[topic_type]) | run_rmq(servers, topic_type, contents)
            for (who, what), row in found.items():
                samples.setdefault((topic_type.value, who, what), []).append(row)
    rows = [{"type": kind, "who": who, "what": what, **medians(each)} for (kind, who, what), each in samples.items()]
    return rows + _ratios(samples)


def run_native(servers: Servers, life: native.Life) -> dict[tuple[str, str], dict[str, float]]:
    """Run a load in native commands."""
    servers.flush()
    pipe = native.Pipe(servers.port)
    gc.collect()
    with Meter(servers) as sending:
        pipe.run(life.sends)
    with Meter(servers) as claiming:
        pipe.run(life.claims, replies_each=3)
    pipe.close()
    return _rows("native", life.number, sending.cost, {"claim + ack": claiming.cost})


def run_rmq(
    servers: Servers, topic_type: TopicType, contents: Sequence[bytes]
) -> dict[tuple[str, str], dict[str, float]]:
    """Run the same load through RMQ: once by a batch listener, whose acks ride on its claims, once by pull."""
    number = len(contents)
    costs: dict[str, Cost] = {}
    for what, consume in (("claim + ack", _listen), ("claim + ack by pull", _pull)):
        servers.flush()
        topic = loads.topic(topic_type)
        with RmqClient(servers.url) as client:  # a new one: the flush dropped the topic that the last one registered
            producer = client.producer(topic)
            messages, due_s = _messages(topic_type, contents)
            gc.collect()
            with Meter(servers) as sending:
                producer.send_many(messages)
            time.sleep(max(0.0, due_s() - time.time()))
            gc.collect()
            costs[what] = consume(servers, client, topic, number)
    return _rows("rmq", number, sending.cost, costs, "evalsha")


def sweep(servers: Servers, contents: Sequence[bytes], most: int, repeats: int) -> list[Row]:
    """Measure batch sizes from 1 to 1,000 with one call at a time, and what other clients feel meanwhile."""
    rows: list[Row] = []
    with Probe(servers.port) as probe:
        time.sleep(1.0)
        quiet = probe.take()
    for size in SWEEP:
        say(f"cost: batches of {size}")
        part = contents[: min(most, size * 4_000)]
        samples = [_one_batch_size(servers, part, size) for _ in range(repeats)]
        merged = medians(samples)
        merged["longest_us"] = max(each["longest_us"] for each in samples)
        merged["over_5_ms"] = sum(each["over_5_ms"] for each in samples)
        rows.append({"batch": size, "messages": len(part), **merged})
    return [{"batch": 0, **{f"probe_{key}_ms": quiet[key] for key in ("p50", "p99", "max")}}, *rows]


def _one_batch_size(servers: Servers, contents: Sequence[bytes], size: int) -> dict[str, float]:
    servers.flush()
    topic = loads.topic(TopicType.PRIORITY)
    number = len(contents)
    messages = list(loads.priority_messages(contents, loads.priorities(number)))
    with RmqClient(servers.url) as client, servers.connect() as admin, Probe(servers.port) as probe:
        producer, consumer = client.producer(topic), client.consumer(topic)
        probe.take()
        with LongestCalls(admin) as longest:
            with Meter(servers) as sending:
                for first in range(0, number, size):
                    producer.send_many(messages[first : first + size])
            with Meter(servers) as claiming:
                done = 0
                while done < number:
                    found = consumer.poll(size)
                    consumer.ack(found)
                    done += len(found)
        felt = probe.take()
        consumer.close()
    return {
        "send_us": sending.cost.executing_us("evalsha") / number,
        "send_cpu_us": sending.cost.server_cpu_s * 1e6 / number,
        "send_rate_per_s": number / sending.cost.elapsed_s,
        "claim_ack_us": claiming.cost.executing_us("evalsha") / number,
        "claim_ack_cpu_us": claiming.cost.server_cpu_s * 1e6 / number,
        "claim_ack_rate_per_s": number / claiming.cost.elapsed_s,
        "longest_us": longest.longest_us,
        "over_5_ms": longest.over_5_ms,
        "probe_p50_ms": felt["p50"],
        "probe_p99_ms": felt["p99"],
        "probe_max_ms": felt["max"],
    }


def warm_up(servers: Servers) -> None:
    """Load the scripts and let the allocator grow, outside of what is measured."""
    contents = loads.contents(20_000)
    with RmqClient(servers.url) as client:
        for topic_type in loads.TYPES:
            topic = loads.topic(topic_type, suffix="-warm")
            client.producer(topic).send_many(loads.soon(topic_type, contents, [1_000], 2_000))
            _pull(servers, client, topic, len(contents))
    servers.flush()


def _listen(servers: Servers, client: RmqClient, topic: Topic, number: int) -> Cost:
    finished = threading.Event()
    seen = 0

    def handle(deliveries: list[Any]) -> None:
        nonlocal seen
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


def _messages(topic_type: TopicType, contents: Sequence[bytes]) -> tuple[Iterator[Message], Callable[[], float]]:
    """Return the messages, and when all of them are due (epoch seconds, asked after the send)."""
    number = len(contents)
    if topic_type is TopicType.PRIORITY:
        return loads.priority_messages(contents, loads.priorities(number)), time.time
    if topic_type is TopicType.RANGE_MERGE:
        return loads.merge_messages(contents, MERGE_RANGE_MS), lambda: time.time() + MERGE_RANGE_MS / 1000 + 0.1
    first_ms = int(time.time() * 1000) + 3_000 + number // 40  # ahead even where only 40,000/s are sent
    times = loads.due_times(number, first_ms, FIXED_SPREAD_MS)
    return loads.fixed_messages(contents, times), lambda: (first_ms + FIXED_SPREAD_MS) / 1000 + 0.1


def _native_life(topic_type: TopicType, contents: Sequence[bytes]) -> native.Life:
    number = len(contents)
    if topic_type is TopicType.PRIORITY:
        return native.encode(contents, loads.priorities(number), loads.BATCH, highest_first=True)
    if topic_type is TopicType.RANGE_MERGE:  # as they come: a batch shares its time, the next one is 5 ms later
        scores = [1_800_000_000_000 + index // loads.BATCH * 5 for index in range(number)]
    else:
        scores = loads.due_times(number, 1_800_000_000_000, FIXED_SPREAD_MS)
    return native.encode(contents, scores, loads.BATCH, highest_first=False)


def _rows(
    who: str, number: int, sending: Cost, claiming: dict[str, Cost], *commands: str
) -> dict[tuple[str, str], dict[str, float]]:
    found = {(who, "send"): sending.row(number, *commands)}
    for what, cost in claiming.items():
        found[who, what] = cost.row(number, *commands)
    life = found[who, "send"], found[who, "claim + ack"]
    found[who, "life"] = {key: life[0][key] + life[1][key] for key in life[0]}
    found[who, "life"]["rate_per_s"] = 1 / sum(1 / part["rate_per_s"] for part in life)
    return found


def _ratios(samples: dict[tuple[str, str, str], list[dict[str, float]]]) -> list[Row]:
    """Put RMQ's figures over the floor's of the same repeat; medians of these ratios."""
    rows: list[Row] = []
    for (kind, who, what), ours in samples.items():
        if who != "rmq":
            continue
        floor = samples[kind, "native", what.removesuffix(" by pull")]
        pairs = [{key: a[key] / b[key] for key in a} for a, b in zip(ours, floor, strict=True)]
        spread = sorted(pair["server_us"] for pair in pairs)
        row: Row = {"type": kind, "who": "ratio", "what": what, **medians(pairs)}
        rows.append(row | {"server_us_least": rounded(spread[0]), "server_us_most": rounded(spread[-1])})
    return rows


def tables(document: Document) -> str:
    """Render the comparison and the sweep."""
    rows = {(row["type"], row["who"], row["what"]): row for row in document["rows"]}
    lines: list[Sequence[Any]] = []
    for kind, who, what in rows:
        if who != "rmq":
            continue
        ours, over = rows[kind, "rmq", what], rows[kind, "ratio", what]
        floor = rows[kind, "native", what.removesuffix(" by pull")]
        us = [rendering.number(row["server_us"], 2) for row in (floor, ours)]
        cpu = [rendering.number(row["server_cpu_us"], 2) for row in (floor, ours)]
        figures = [*us, rendering.ratio(over["server_us"]), *cpu, rendering.ratio(over["server_cpu_us"])]
        rates = [rendering.number(ours["client_cpu_us"], 2), rendering.number(ours["rate_per_s"])]
        lines.append([f"{kind}, {what}", *figures, *rates])
    columns = ["per message", "floor, µs", "RMQ, µs", "ratio", "floor CPU, µs", "RMQ CPU, µs", "ratio"]
    first = rendering.table([*columns, "client CPU, µs", "RMQ, 1/s"], lines)
    quiet, *sizes = document["sweep"]
    second = rendering.table(
        [
            *("batch", "send, µs", "claim + ack, µs", "send, 1/s", "claim + ack, 1/s"),
            *("longest call, ms", "others' p99, ms"),
        ],
        [
            (
                rendering.number(row["batch"]),
                rendering.number(row["send_us"], 2),
                rendering.number(row["claim_ack_us"], 2),
                rendering.number(row["send_rate_per_s"]),
                rendering.number(row["claim_ack_rate_per_s"]),
                rendering.number(row["longest_us"] / 1000, 2),
                rendering.number(row["probe_p99_ms"], 2),
            )
            for row in sizes
        ],
    )
    settings = document["settings"]
    return (
        f"{settings['messages']:,} messages of {settings['content_bytes']} bytes, batches of {settings['batch']}, "
        f"Redis {document['redis']}. `µs`: execution time by `INFO commandstats`; `CPU`: all of the server's CPU time, "
        "with reading, parsing and writing. The floor has neither leases, retries, fencing, compare-and-set nor counts."
        f"\n\n{first}\n\nBatch sizes (PRIORITY, one call at a time). `others' p99`: round trip of another client's "
        f"PING meanwhile; on the idle server {quiet['probe_p99_ms']:.2f} ms.\n\n{second}"
    )


def plot(document: Document, path: Path) -> None:
    """Draw server time per message beside the floor, and the sweep."""
    made, (left, right) = rendering.figure(2, "Server time per message")
    rows = {(row["type"], row["who"], row["what"]): row for row in document["rows"]}
    shown = [(kind.value, what) for kind in loads.TYPES for what in ("send", "claim + ack")]
    names = [f"{kind.replace('_', ' ').lower()}\n{what}" for kind, what in shown]
    series = {
        label: [rows[kind, who, what]["server_us"] for kind, what in shown]
        for who, label in (("native", "native commands"), ("rmq", "RMQ"))
    }
    rendering.bars(left, names, series, "µs per message, executing")
    left.tick_params(axis="x", labelsize=7)
    sizes = [row for row in document["sweep"] if row["batch"]]
    for index, (key, label) in enumerate((("send_us", "send"), ("claim_ack_us", "claim + ack"))):
        values = [row[key] for row in sizes]
        right.plot([row["batch"] for row in sizes], values, "o-", color=rendering.COLOURS[index], label=label)
    right.set(xscale="log", yscale="log", xlabel="messages per call", ylabel="µs per message, executing")
    longest = right.twinx()
    values = [row["longest_us"] / 1000 for row in sizes]
    style: dict[str, Any] = {"color": "#777777", "markersize": 4, "label": "longest call (right)"}
    longest.plot([row["batch"] for row in sizes], values, "s--", **style)
    longest.set_ylabel("longest call, ms")
    longest.set_ylim(bottom=0)
    handles = [*right.get_lines(), *longest.get_lines()]
    right.legend(handles, [each.get_label() for each in handles], fontsize=8, frameon=False)
    rendering.save(made, path)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages (200,000; quick: 50,000)")


BENCHMARK = Benchmark("cost", measure, tables, plot, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
