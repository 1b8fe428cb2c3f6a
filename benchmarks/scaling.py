"""What a message and an idle worker cost as workers, nodes and slots are added."""

from __future__ import annotations

import argparse
import threading
import time
from functools import partial
from typing import Any

from benchmarks.support import loads, rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document
from benchmarks.support.meters import CLIENT_SIDE, Figures, Meter, cpu_s
from benchmarks.support.samples import in_turns, summary
from benchmarks.support.servers import Servers, some, standalone
from rmq import RmqClient, Topic, TopicType

VARIED = {"workers": (1, 2, 4), "nodes": (1, 3), "slots": (1, 8, 64, 512, 4_096)}
IDLE_SLOTS = (1, 64, 1_024, 4_096)
WORKER_SLOTS = 64
LIMIT_S = 900.0


def measure(options: argparse.Namespace) -> Document:
    """Vary one thing at a time: worker processes, Redis nodes, slots; then watch an idle worker."""
    number = options.number or (50_000 if options.quick else 100_000)
    idle_s = 2.0 if options.quick else 5.0

    def vary(what: str, count: int) -> Figures:
        case = {"workers": 1, "nodes": 1, "slots": WORKER_SLOTS} | {what: count}
        with some(case["nodes"]) as servers:
            return fill_and_drain(servers, case["workers"], case["slots"], number)

    def idle(slots: int) -> Figures:
        with standalone() as servers:
            return idling(servers, slots, idle_s)

    cases = {f"{count} {what}": partial(vary, what, count) for what, counts in VARIED.items() for count in counts}
    varied = summary(in_turns("scaling", options.repeats, cases))
    idlers = {f"{slots}": partial(idle, slots) for slots in IDLE_SLOTS}
    idling_rows = summary(in_turns("scaling, idle slots", min(options.repeats, 3), idlers))
    settings = {"messages": number, "slots": WORKER_SLOTS, "idle_s": idle_s, "batch": loads.BATCH, "type": "PRIORITY"}
    return {
        "settings": settings,
        "rows": [
            {"varied": case.partition(" ")[2], "count": int(case.partition(" ")[0]), **row}
            for case, row in varied.items()
        ],
        "idle": [{"slots": int(slots), **row} for slots, row in idling_rows.items()],
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
    lines = rendering.listed(
        document["rows"],
        ("varied", "{count:,} {varied}"),
        ("send, µs", "{send_server_us:,.2f}"),
        ("server CPU, µs", "{send_server_cpu_us:,.2f}"),
        ("client CPU, µs", "{send_client_cpu_us:,.2f}"),
        ("claim + ack, µs", "{work_server_us:,.2f}"),
        ("server CPU, µs", "{work_server_cpu_us:,.2f}"),
        ("client CPU, µs", "{work_client_cpu_us:,.2f}"),
        ("send, 1/s", "{send_rate_per_s:,.0f}"),
        ("claim + ack, 1/s", "{work_rate_per_s:,.0f}"),
        ("calls per 1,000", "{work_calls_per_1000:,.1f}"),
    )
    idle = rendering.listed(
        document["idle"],
        ("slots of an idle worker", "{slots:,}"),
        ("calls to Redis a second", "{calls_per_s:,.1f}"),
        ("commands in scripts too", "{commands_per_s:,.0f}"),
        ("worker's CPU", "{worker_cpu_share:.2%}"),
        ("server CPU", "{server_cpu_share:.2%}"),
    )
    return (
        f"{settings['messages']:,} {settings['type']} messages, batches of {settings['batch']}; where not varied: "
        f"1 worker process, 1 Redis, {settings['slots']} slots.\n\n{lines}\n\n{idle}"
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages (100,000; quick: 50,000)")


CPU = {"send": "send_server_cpu_us", "claim + ack": "work_server_cpu_us"}
RATE = {"claimed and acked": "work_rate_per_s"}
PLOT = rendering.picture(
    "Scaling",
    rendering.Panel("server CPU, µs per message", "{count:,} slots", CPU, where=lambda row: row["varied"] == "slots"),
    rendering.Panel(
        "thousand messages per second", "{count} {varied}", RATE, where=lambda row: row["varied"] != "slots", each=1_000
    ),
    rendering.Panel("idle worker: calls to Redis a second", "{slots:,}", {"calls": "calls_per_s"}, "idle"),
)
BENCHMARK = Benchmark("scaling", measure, tables, PLOT, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
