"""One process sends while another one consumes: how much goes through, and beside it Redis Streams and single sends."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis

from benchmarks.support import loads, rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Meter, cpu_s, medians
from benchmarks.support.servers import Servers, clusters_supported, some, standalone
from rmq import RmqClient, TopicType
from rmq._model.messages import Message

SLOTS = 8
DELAY_MS = 1_000
"""Fixed times must lie ahead when they arrive; merge windows are as long, for the same conditions."""
STREAM, GROUP = "stream", "group"
THREADS = 2
"""Threads of RMQ's listener: one waits for its claim while the other handles."""
LIMIT_S = 900.0
ROWS = 20_000
"""Rows of a `send_columns`, as of a file that is read piece by piece."""
COLUMNS = " in columns"
"""Marks a kind that is sent by `send_columns` and consumed by a listener with `columns=True`."""
COMMANDS = ("evalsha", "xadd", "xreadgroup", "xack")


def measure(options: argparse.Namespace) -> Document:
    """Send in one process and consume in another at the same time; per topic type, and through Redis Streams."""
    number = options.number or (100_000 if options.quick else 400_000)
    nodes = [1, 2] if clusters_supported() else [1]
    samples: dict[tuple[int, str], list[dict[str, float]]] = {}
    for repeat in range(options.repeats):
        for count in nodes:
            objects = [each.value for each in loads.TYPES]
            kinds = [*objects, *(each + COLUMNS for each in objects), *(["STREAMS"] if count == 1 else [])]
            for kind in kinds if options.only is None else [each for each in kinds if each in options.only]:
                say(f"throughput: repeat {repeat + 1} of {options.repeats}, {count} Redis, {kind}")
                with some(count) as servers:
                    version = servers.version
                    try:
                        samples.setdefault((count, kind), []).append(both_at_once(servers, kind, number))
                    except (RuntimeError, TimeoutError) as error:
                        say(f"throughput: this one failed: {str(error).strip().splitlines()[-1]}")
    rows: list[Row] = [
        {"nodes": count, "type": kind, **medians(each)} for (count, kind), each in samples.items() if each
    ]
    return {
        "redis": version,
        "settings": {"messages": number, "content_bytes": 20, "batch": loads.BATCH, "slots": SLOTS},
        "clusters": "measured" if 2 in nodes else "this RMQ does not know redis+cluster:// yet",
        "rows": rows,
        "singles": singles(2_000 if options.quick else 10_000, options.repeats),
    }


def both_at_once(servers: Servers, kind: str, number: int) -> dict[str, float]:
    """Let a sender and a consumer run at the same time."""
    send, consume = (_send_stream, _consume_stream) if kind == "STREAMS" else (_send, _consume)
    children = Child(consume, servers.url, kind, number), Child(send, servers.url, kind, number)
    with Meter(servers) as meter:
        for child in children:
            child.wait_ready()
        for child in children:
            child.go()
        try:
            sent, consumed = (child.result(LIMIT_S) for child in reversed(children))  # a sender that fails says so soon
        finally:
            for child in children:
                child.end()
    busy_s = consumed["until_s"] - sent["from_s"]
    during = [done for at_s, done in consumed["progress"] if at_s <= sent["until_s"]]
    sending_s = sent["until_s"] - sent["from_s"]
    overlap_s = sent["until_s"] - consumed["from_s"]
    return {
        "send_rate_per_s": number / sending_s,
        "consume_rate_per_s": number / (consumed["until_s"] - consumed["from_s"]),
        "consumed_while_sending_per_s": during[-1] / overlap_s if during and overlap_s > 0 else 0.0,
        "both_rate_per_s": number / busy_s,
        "sender_cpu_us": sent["cpu_s"] * 1e6 / number,
        "consumer_cpu_us": consumed["cpu_s"] * 1e6 / number,
        "server_us": meter.cost.executing_us(*COMMANDS) / number,
        "server_cpu_us": meter.cost.server_cpu_s * 1e6 / number,
        "server_busy_share": meter.cost.server_cpu_s / busy_s / len(servers.ports),
    }


def _send(line: Line, url: str, kind: str, number: int) -> dict[str, float]:
    topic_type = TopicType(kind.removesuffix(COLUMNS))
    contents, priorities = loads.contents(number), loads.priorities(10_000)
    with RmqClient(url) as client:
        producer = client.producer(loads.topic(topic_type, SLOTS))
        line.ready()
        cpu_before_s, from_s = cpu_s(), time.time()
        if kind.endswith(COLUMNS):
            for part in loads.batches(contents, ROWS):
                producer.send_columns(part, **loads.soon_in_columns(topic_type, len(part), priorities, DELAY_MS))
        else:
            producer.send_many(loads.soon(topic_type, contents, priorities, DELAY_MS))
        return {"from_s": from_s, "until_s": time.time(), "cpu_s": cpu_s() - cpu_before_s}


def _consume(line: Line, url: str, kind: str, number: int) -> dict[str, Any]:
    finished = threading.Event()
    counting = threading.Lock()
    progress: list[tuple[float, int]] = []
    done = 0

    def handle(deliveries: list[Any]) -> None:
        nonlocal done
        with counting:
            done += len(deliveries)
            progress.append((time.time(), done))
            if done >= number:
                finished.set()

    with RmqClient(url) as client:
        topic = loads.topic(TopicType(kind.removesuffix(COLUMNS)), SLOTS)
        client.listener(topic, batch=loads.BATCH, columns=kind.endswith(COLUMNS), threads=THREADS)(handle)
        line.ready()
        cpu_before_s = cpu_s()
        client.start()
        if not finished.wait(LIMIT_S):
            raise TimeoutError(f"{done} of {number} messages were delivered")
        client.stop()
    return _consumed(progress, cpu_s() - cpu_before_s)


def _send_stream(line: Line, url: str, kind: str, number: int) -> dict[str, float]:
    del kind
    contents = loads.contents(number)
    with redis.Redis.from_url(url) as client:
        client.ping()
        line.ready()
        cpu_before_s, from_s = cpu_s(), time.time()
        for part in loads.batches(contents, loads.BATCH):
            pipe = client.pipeline(transaction=False)
            for content in part:
                pipe.xadd(STREAM, {"c": content})
            pipe.execute()
        return {"from_s": from_s, "until_s": time.time(), "cpu_s": cpu_s() - cpu_before_s}


def _consume_stream(line: Line, url: str, kind: str, number: int) -> dict[str, Any]:
    del kind
    progress: list[tuple[float, int]] = []
    done = 0
    with redis.Redis.from_url(url) as client:
        client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
        line.ready()
        cpu_before_s = cpu_s()
        while done < number:
            found: Any = client.xreadgroup(GROUP, "worker", {STREAM: ">"}, count=loads.BATCH, block=1_000)
            for _, entries in found or ():
                client.xack(STREAM, GROUP, *[entry_id for entry_id, _ in entries])
                done += len(entries)
                progress.append((time.time(), done))
    return _consumed(progress, cpu_s() - cpu_before_s)


def _consumed(progress: Sequence[tuple[float, int]], used_s: float) -> dict[str, Any]:
    step = max(1, len(progress) // 1_000)
    return {
        "from_s": progress[0][0],
        "until_s": progress[-1][0],
        "cpu_s": used_s,
        "progress": [*progress[::step], progress[-1]],
    }


def singles(number: int, repeats: int) -> list[Row]:
    """Send one message a call, and call a bare redis-py ZADD as often."""
    contents = loads.contents(number)
    samples: dict[str, list[dict[str, float]]] = {}
    with standalone() as servers, servers.connect() as bare:
        for repeat in range(repeats):
            say(f"throughput: single sends, repeat {repeat + 1} of {repeats}")
            servers.flush()
            with Meter(servers) as meter:
                for content in contents:
                    bare.zadd("bare", {content: 1_800_000_000_000})
            samples.setdefault("bare ZADD", []).append(meter.cost.row(number, "zadd"))
            for topic_type in loads.TYPES:
                with RmqClient(servers.url) as client:
                    producer = client.producer(loads.topic(topic_type))
                    messages: list[Message] = list(loads.soon(topic_type, contents, [1_000, 5_000], 600_000))
                    with Meter(servers) as meter:
                        for message in messages:
                            producer.send(message)
                samples.setdefault(topic_type.value, []).append(meter.cost.row(number, "evalsha"))
    floor = samples["bare ZADD"]
    rows: list[Row] = []
    for what, each in samples.items():
        ratios = medians([{"ratio": a["rate_per_s"] / b["rate_per_s"]} for a, b in zip(each, floor, strict=True)])
        rows.append({"what": what, **medians(each), **ratios})
    return rows


def tables(document: Document) -> str:
    """Render both parts."""
    columns = ["at the same time", "Redis", "sent, 1/s", "consumed, 1/s", "while sending, 1/s", "end to end, 1/s"]
    columns += ["sender CPU, µs", "consumer CPU, µs", "server CPU, µs", "server busy"]
    first = rendering.table(
        columns,
        [
            (
                _name(row["type"]),
                row["nodes"],
                rendering.number(row["send_rate_per_s"]),
                rendering.number(row["consume_rate_per_s"]),
                rendering.number(row["consumed_while_sending_per_s"]),
                rendering.number(row["both_rate_per_s"]),
                rendering.number(row["sender_cpu_us"], 2),
                rendering.number(row["consumer_cpu_us"], 2),
                rendering.number(row["server_cpu_us"], 2),
                f"{row['server_busy_share']:.0%}",
            )
            for row in document["rows"]
        ],
    )
    second = rendering.table(
        ["one message a call", "1/s", "of bare ZADD", "client CPU, µs", "server CPU, µs"],
        [
            (
                row["what"],
                rendering.number(row["rate_per_s"]),
                rendering.ratio(row["ratio"]),
                rendering.number(row["client_cpu_us"], 1),
                rendering.number(row["server_cpu_us"], 1),
            )
            for row in document["singles"]
        ],
    )
    settings = document["settings"]
    return (
        f"{settings['messages']:,} messages of {settings['content_bytes']} bytes, {settings['slots']} slots, batches "
        f"of {settings['batch']}, one sending and one consuming process; RMQ's has {THREADS} threads. "
        f"Clusters: {document['clusters']}. `in columns`: `send_columns`, and a listener with `columns=True`. "
        "`while sending`: consumed from the first delivery to the end of the sends. `end to end`: from the first "
        f"send to the last delivery; time topics wait {DELAY_MS / 1000:g} s of it.\n\n{first}\n\n{second}"
    )


def plot(document: Document, path: Path) -> None:
    """Draw the rates of both directions."""
    made, (left, right) = rendering.figure(2, "One process sends while another one consumes")
    names = [f"{_name(row['type'])}\n{row['nodes']} Redis".replace(" ", "\n", 1) for row in document["rows"]]
    series = {
        label: [row[key] / 1000 for row in document["rows"]]
        for key, label in (("send_rate_per_s", "sent"), ("consume_rate_per_s", "consumed"))
    }
    rendering.bars(left, names, series, "thousand messages per second")
    left.tick_params(axis="x", labelsize=7)
    rates = [row["rate_per_s"] / 1000 for row in document["singles"]]
    names = [_name(row["what"]) for row in document["singles"]]
    rendering.bars(right, names, {"one message a call": rates}, "thousand calls per second")
    rendering.save(made, path)


def _name(kind: str) -> str:
    if kind == "STREAMS":
        return "Redis Streams"
    return kind.replace("_", " ").lower() if kind.isupper() or kind.endswith(COLUMNS) else kind


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages (400,000; quick: 100,000)")
    parser.add_argument("--only", nargs="+", help="only these kinds, such as 'PRIORITY in columns'")


BENCHMARK = Benchmark("throughput", measure, tables, plot, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
