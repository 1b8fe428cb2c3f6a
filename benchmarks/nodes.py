"""What a message costs a listener over several nodes, beside one node and beside a loop that polls the same slots."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable

from benchmarks.support import loads, rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Meter, cpu_s
from benchmarks.support.samples import Sample, ratio, sample, summary
from benchmarks.support.servers import Servers, some
from rmq import DeliveryColumns, RmqClient, Topic, TopicType

NODES = (1, 4)
SLOTS = 32
BACKLOG, BESIDE = "backlog", "beside"
"""All messages are there when the worker starts; or one producer sends while the worker is at work."""
LISTENER, POLL = "listener", "poll loop"
LIMIT_S = 900.0
ROWS = 20_000
"""Rows of a `send_columns`."""
TOPIC = Topic("bench-nodes", TopicType.PRIORITY, slots=SLOTS)
COSTS = ("calls_per_1000", "server_cpu_us", "worker_cpu_us")


def measure(options: argparse.Namespace) -> Document:
    """Let a listener, and a loop of `poll_columns` and `ack`, empty the slots of one node and of several."""
    number = options.number or (100_000 if options.quick else 300_000)
    samples: list[Sample] = []
    for repeat in range(options.repeats):
        for nodes in options.nodes:
            for load in options.loads:
                for way in options.ways:
                    case = f"{load}, {way}, {nodes} Redis"
                    say(f"nodes: repeat {repeat + 1} of {options.repeats}, {case}")
                    with some(nodes) as servers:
                        version = servers.version
                        run = drain if load == BACKLOG else beside
                        samples.append(sample(case, repeat, run(servers, way, number, options.batch)))
    settings = {"messages": number, "content_bytes": 20, "batch": options.batch, "slots": SLOTS}
    return {"redis": version, "settings": settings, "samples": samples}


def drain(servers: Servers, way: str, number: int, batch: int) -> dict[str, float]:
    """Fill the slots, then let one worker empty them."""
    with RmqClient(servers.url) as client:
        _fill(client, number)
    worker = Child(_work, servers.url, way, number, batch)
    worker.wait_ready()
    with Meter(servers) as meter:
        worker.go()
        worked = worker.result(LIMIT_S)
    return _costs(meter, worked, number, worked["until_s"] - worked["from_s"])


def beside(servers: Servers, way: str, number: int, batch: int) -> dict[str, float]:
    """Let one producer send while one worker handles. The calls and the server's time of both are counted."""
    worker, producer = Child(_work, servers.url, way, number, batch), Child(_send, servers.url, number)
    for child in (worker, producer):
        child.wait_ready()
    with Meter(servers) as meter:
        worker.go()
        producer.go()
        try:
            from_s = producer.result(LIMIT_S)
            worked = worker.result(LIMIT_S)
        finally:
            worker.end()
            producer.end()
    return _costs(meter, worked, number, worked["until_s"] - from_s)


def _costs(meter: Meter, worked: dict[str, float], number: int, elapsed_s: float) -> dict[str, float]:
    cost = meter.cost
    return {
        "calls_per_1000": cost.calls.get("evalsha", 0) * 1_000 / number,
        "server_us": cost.executing_us("evalsha") / number,
        "server_cpu_us": cost.server_cpu_s * 1e6 / number,
        "worker_cpu_us": worked["cpu_s"] * 1e6 / number,
        "rows_each": number / worked["handled"],
        "rate_per_s": number / elapsed_s,
    }


def _fill(client: RmqClient, number: int) -> None:
    producer, priorities = client.producer(TOPIC), loads.priorities(10_000)
    for part in loads.batches(loads.contents(number), ROWS):
        producer.send_columns(part, **loads.soon_in_columns(TOPIC.type, len(part), priorities, 0))


def _send(line: Line, url: str, number: int) -> float:
    with RmqClient(url) as client:
        client.producer(TOPIC)
        line.ready()
        from_s = time.time()
        _fill(client, number)
    return from_s


def _work(line: Line, url: str, way: str, number: int, batch: int) -> dict[str, float]:
    work: Callable[[RmqClient, Line, int, int], tuple[float, float, int]] = _listen if way == LISTENER else _poll
    with RmqClient(url) as client:
        from_s, cpu_before_s, handled = work(client, line, number, batch)
        return {"from_s": from_s, "until_s": time.time(), "cpu_s": cpu_s() - cpu_before_s, "handled": handled}


def _listen(client: RmqClient, line: Line, number: int, batch: int) -> tuple[float, float, int]:
    finished, done, handled = threading.Event(), 0, 0

    @client.listener(TOPIC, batch=batch, columns=True)
    def handle(columns: DeliveryColumns) -> None:
        nonlocal done, handled
        done += len(columns)
        handled += 1
        if done >= number:
            finished.set()

    line.ready()
    from_s, cpu_before_s = time.time(), cpu_s()
    client.start()
    if not finished.wait(LIMIT_S):
        raise TimeoutError(f"{done} of {number} messages were delivered")
    client.stop()
    return from_s, cpu_before_s, handled


def _poll(client: RmqClient, line: Line, number: int, batch: int) -> tuple[float, float, int]:
    done = handled = 0
    with client.consumer(TOPIC) as consumer:
        line.ready()
        from_s, cpu_before_s = time.time(), cpu_s()
        while done < number:
            if columns := consumer.poll_columns(max_messages=batch, timeout=LIMIT_S):
                done += len(columns)
                handled += 1
                columns.ack()
    return from_s, cpu_before_s, handled


def summarize(document: Document) -> Document:
    """Work out medians, and ratios within the repeats: to the same on one Redis, and to the poll loop."""
    samples = document["samples"]
    rows: list[Row] = []
    found = summary(samples)
    for case, figures in found.items():
        load, way, rest = case.split(", ")
        row: Row = {"load": load, "way": way, "nodes": int(rest.split()[0]), **figures}
        for beside, other in (("of_one", f"{load}, {way}, 1 Redis"), ("of_poll", f"{load}, {POLL}, {rest}")):
            if other in found and other != case:
                keys = (*COSTS, "rate_per_s")
                row[beside] = {key: ratio(samples, case, other, key) for key in keys}
        rows.append(row)
    return {"rows": rows}


def tables(document: Document) -> str:
    """Render the costs."""
    settings = document["settings"]
    lines = [
        (
            row["load"],
            row["way"],
            row["nodes"],
            *(_with_ratios(row, key) for key in COSTS),
            rendering.number(row["rows_each"]),
            _with_ratios(row, "rate_per_s"),
        )
        for row in document["rows"]
    ]
    columns = ["load", "worker", "Redis", "calls per 1,000", "server CPU, µs", "worker CPU, µs", "rows a batch"]
    return (
        f"{settings['messages']:,} PRIORITY messages of {settings['content_bytes']} bytes in {settings['slots']} "
        f"slots, columns of up to {settings['batch']:,}, one worker. `{BESIDE}`: one producer sends meanwhile; its "
        "calls and its part of the server's CPU count too. In brackets: the ratio to the same on one Redis, and to the "
        "poll loop.\n\n"
        f"{rendering.table([*columns, 'messages, 1/s'], lines)}"
    )


def _with_ratios(row: Row, key: str) -> str:
    ratios = [rendering.ratio(row[beside][key]) if beside in row else "–" for beside in ("of_one", "of_poll")]
    return f"{rendering.number(row[key], 2)} ({', '.join(ratios)})"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages (300,000; quick: 100,000)")
    parser.add_argument("--batch", type=int, default=2_000, help="most rows of a batch, and of a poll (2,000)")
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES, help="numbers of Redis nodes")
    parser.add_argument("--loads", nargs="+", choices=(BACKLOG, BESIDE), default=(BACKLOG, BESIDE))
    parser.add_argument("--ways", nargs="+", choices=(LISTENER, POLL), default=(LISTENER, POLL))


BENCHMARK = Benchmark("nodes", measure, tables, arguments=_arguments, summarize=summarize)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
