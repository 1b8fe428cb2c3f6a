"""What a message and an idle worker cost as workers, nodes and slots are added."""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.support import loads, rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import CLIENT_SIDE, Meter, cpu_s, medians
from benchmarks.support.servers import Servers, clusters_supported, some, standalone
from rmq import RmqClient, Topic, TopicType

WORKERS = (1, 2, 4)
NODES = (1, 3)
SLOTS = (1, 8, 64, 512, 4_096)
IDLE_SLOTS = (1, 64, 1_024, 4_096)
WORKER_SLOTS = 64
LIMIT_S = 900.0


def measure(options: argparse.Namespace) -> Document:
    """Vary one thing at a time: worker processes, Redis nodes, slots; then watch an idle worker."""
    number = options.number or (50_000 if options.quick else 100_000)
    idle_s = 2.0 if options.quick else 5.0
    nodes = NODES if clusters_supported() else (1,)
    samples: dict[tuple[str, int], list[dict[str, float]]] = {}
    for repeat in range(options.repeats):
        for what, counts in (("workers", WORKERS), ("nodes", nodes), ("slots", SLOTS)):
            for count in counts:
                say(f"scaling: repeat {repeat + 1} of {options.repeats}, {count} {what}")
                case = {"workers": 1, "nodes": 1, "slots": WORKER_SLOTS} | {what: count}
                with some(case["nodes"]) as servers:
                    row = fill_and_drain(servers, case["workers"], case["slots"], number)
                samples.setdefault((what, count), []).append(row)
    rows: list[Row] = [{"varied": what, "count": count, **medians(each)} for (what, count), each in samples.items()]
    idle: list[Row] = []
    with standalone() as servers:
        version = servers.version
        for slots in IDLE_SLOTS:
            say(f"scaling: an idle worker with {slots} slots")
            idle.append(
                {"slots": slots, **medians([idling(servers, slots, idle_s) for _ in range(min(options.repeats, 3))])}
            )
    return {
        "redis": version,
        "settings": {
            "messages": number,
            "slots": WORKER_SLOTS,
            "idle_s": idle_s,
            "batch": loads.BATCH,
            "type": "PRIORITY",
        },
        "clusters": "measured" if len(nodes) > 1 else "this RMQ does not know redis+cluster:// yet",
        "rows": rows,
        "idle": idle,
    }


def fill_and_drain(servers: Servers, workers: int, slots: int, number: int) -> dict[str, float]:
    """Fill a backlog, then let so many worker processes empty it."""
    topic = Topic("bench-scaling", TopicType.PRIORITY, slots=slots)
    with RmqClient(servers.url) as client:
        messages = loads.priority_messages(loads.contents(number), loads.priorities(number))
        with Meter(servers) as filling:
            client.producer(topic).send_many(messages)
        children = [Child(_work, servers.url, slots) for _ in range(workers)]
        for child in children:
            child.wait_ready()
        with Meter(servers) as draining:
            for child in children:
                child.go()
            done = 0
            deadline = time.monotonic() + LIMIT_S
            while done < number and time.monotonic() < deadline:
                time.sleep(0.01)
                for child in children:
                    done += sum(child.news())
        for child in children:
            child.go()
        cpu_used_s = sum(child.result(60.0) for child in children)
    return {
        "send_server_us": filling.cost.executing_us("evalsha") / number,
        "send_server_cpu_us": filling.cost.server_cpu_s * 1e6 / number,
        "send_client_cpu_us": filling.cost.client_cpu_s * 1e6 / number,
        "send_rate_per_s": number / filling.cost.elapsed_s,
        "work_server_us": draining.cost.executing_us("evalsha") / number,
        "work_server_cpu_us": draining.cost.server_cpu_s * 1e6 / number,
        "work_client_cpu_us": cpu_used_s * 1e6 / number,
        "work_rate_per_s": number / draining.cost.elapsed_s,
        "work_calls_per_1000": draining.cost.calls.get("evalsha", 0) * 1000 / number,
    }


def _work(line: Line, url: str, slots: int) -> float:
    fresh = 0
    lock = threading.Lock()

    def handle(deliveries: list[Any]) -> None:
        nonlocal fresh
        with lock:
            fresh += len(deliveries)

    with RmqClient(url) as client:
        client.listener(Topic("bench-scaling", TopicType.PRIORITY, slots=slots), batch=loads.BATCH)(handle)
        line.ready()
        cpu_before_s = cpu_s()
        client.start()
        while not line.told():
            time.sleep(0.02)
            with lock:
                number, fresh = fresh, 0
            if number:
                line.report(number)
        used_s = cpu_s() - cpu_before_s
        client.stop()
    return used_s


def idling(servers: Servers, slots: int, seconds: float) -> dict[str, float]:
    """Watch a listener with nothing to do."""
    servers.flush()
    child = Child(_idle, servers.url, slots)
    child.wait_ready()
    with Meter(servers) as meter:
        child.go()
        time.sleep(seconds)
        child.go()
        worker_cpu_s = child.result(30.0)
    calls = meter.cost.calls
    return {
        "calls_per_s": sum(number for name, number in calls.items() if name in CLIENT_SIDE) / seconds,
        "commands_per_s": sum(calls.values()) / seconds,
        "worker_cpu_share": worker_cpu_s / seconds,
        "server_cpu_share": meter.cost.server_cpu_s / seconds,
    }


def _idle(line: Line, url: str, slots: int) -> float:
    with RmqClient(url) as client:
        client.listener(Topic("bench-idle", TopicType.FIXED_TIME, slots=slots))(print)
        client.start()
        time.sleep(2.0 + slots / 500)  # the first look at all slots is over
        line.ready()
        before_s = cpu_s()
        line.hear()
        return cpu_s() - before_s


def tables(document: Document) -> str:
    """Render cost and idling."""
    settings = document["settings"]
    lines = [
        (
            f"{row['count']:,} {row['varied']}",
            *(rendering.number(row[f"send_{key}"], 2) for key in ("server_us", "server_cpu_us", "client_cpu_us")),
            *(rendering.number(row[f"work_{key}"], 2) for key in ("server_us", "server_cpu_us", "client_cpu_us")),
            rendering.number(row["send_rate_per_s"]),
            rendering.number(row["work_rate_per_s"]),
            rendering.number(row["work_calls_per_1000"], 1),
        )
        for row in document["rows"]
    ]
    columns = ["varied", "send, µs", "server CPU, µs", "client CPU, µs", "claim + ack, µs", "server CPU, µs"]
    columns += ["client CPU, µs", "send, 1/s", "claim + ack, 1/s", "calls per 1,000"]
    idle = [
        (
            f"{row['slots']:,}",
            rendering.number(row["calls_per_s"], 1),
            rendering.number(row["commands_per_s"], 0),
            f"{row['worker_cpu_share']:.2%}",
            f"{row['server_cpu_share']:.2%}",
        )
        for row in document["idle"]
    ]
    idle_columns = ["slots of an idle worker", "calls to Redis a second", "commands in scripts too", "worker's CPU"]
    return (
        f"{settings['messages']:,} {settings['type']} messages, batches of {settings['batch']}; where not varied: "
        f"1 worker process, 1 Redis, {settings['slots']} slots. Clusters: {document['clusters']}.\n\n"
        f"{rendering.table(columns, lines)}\n\n{rendering.table([*idle_columns, 'server CPU'], idle)}"
    )


def plot(document: Document, path: Path) -> None:
    """Draw the cost over slots, the rate over workers and nodes, and idle calls."""
    made, (left, middle, right) = rendering.figure(3, "Scaling")
    slots = [row for row in document["rows"] if row["varied"] == "slots"]
    for index, (key, label) in enumerate((("send_server_cpu_us", "send"), ("work_server_cpu_us", "claim + ack"))):
        values = [row[key] for row in slots]
        left.plot([row["count"] for row in slots], values, "o-", color=rendering.COLOURS[index], label=label)
    left.set(xscale="log", xlabel="slots", ylabel="server CPU, µs per message", ylim=(0, None))
    left.legend(fontsize=8, frameon=False)
    others = [row for row in document["rows"] if row["varied"] != "slots"]
    names = [f"{row['count']} {row['varied']}" for row in others]
    rates = {"claimed and acked": [row["work_rate_per_s"] / 1000 for row in others]}
    rendering.bars(middle, names, rates, "thousand messages per second")
    idle = document["idle"]
    names = [f"{row['slots']:,}" for row in idle]
    calls = {"calls": [row["calls_per_s"] for row in idle]}
    rendering.bars(right, names, calls, "idle worker: calls to Redis a second")
    right.set_xlabel("slots")
    rendering.save(made, path)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages (100,000; quick: 50,000)")


BENCHMARK = Benchmark("scaling", measure, tables, plot, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
