"""What idle workers cost with many topics, and how late a message is when its hint gets lost.

    python -m benchmarks.idle [--quick] [--topics 150] [--slots 16] [--workers 2] [--idle normal]

Each worker is a process with a listener of each topic. No message is sent while costs are measured. Then a producer
without the right to publish sends to random topics, so that no hint arrives; and a proxy keeps the subscriptions of a
further worker open, but drops what arrives on them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import Any

from benchmarks.support import rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Meter, rounded
from benchmarks.support.servers import Servers, standalone
from rmq import Delivery, PriorityMessage, RmqClient, Topic, TopicType
from tests.support.proxy import Proxy

SETTLED_S = 45.0
"""After so long a worker has subscribed, proven its hints, and closed the connections of its start."""

SCRIPTS = ("cmdstat_evalsha", "cmdstat_eval")

USUAL = 0.9
"""Share of the seconds whose calls count: in another one a worker records the minute, with a call for each slot."""
NAMES, END = "idle-{:03}", "end"

SINGLES, BURST = 200, 20_000
"""Messages of a busy topic: one after the other, and at once."""


def topics_of(number: int, slots: int) -> list[Topic]:
    """Return the topics."""
    return [Topic(NAMES.format(each), TopicType.PRIORITY, slots=slots) for each in range(number)]


def _work(line: Line, url: str, topics: Sequence[Topic], idle: str) -> None:
    """Listen to all topics; whenever asked, say how many threads there are beside handlers', and what arrived when."""
    arrived: list[tuple[str, float]] = []

    def handle(delivery: Delivery) -> None:
        arrived.append((delivery.text, time.time()))

    with RmqClient(url) as client:
        for topic in topics:
            client.listener(topic)(handle)
        client.start(idle=idle)
        word = line.ready()
        while word != END:
            line.report((threading.active_count() - 1 - len(topics), list(arrived)))
            word = line.hear()
        client.stop(0.0)


@contextmanager
def workers(number: int, *args: Any) -> Iterator[list[Child]]:
    """Run so many workers, each a process with listeners."""
    found = [Child(_work, *args) for _ in range(number)]
    try:
        for child in found:
            child.wait_ready()
        yield found
    finally:
        for child in found:
            child.go(END)
            child.end()


def measure(options: argparse.Namespace) -> Document:
    """Measure idle workers, and lateness without hints."""
    topics = topics_of(options.topics, options.slots)
    for_s = 20.0 if options.quick else 60.0
    with standalone() as servers:
        with workers(options.workers, servers.url, topics, options.idle) as running:
            say(f"idle: {options.topics} topics, {options.slots} slots, {options.workers} workers")
            time.sleep(SETTLED_S)
            row = _idle(servers, running, for_s)
            if options.late:
                say("idle: messages without hints")
                row |= _late("without_hints", _mute(servers), topics, options.late, running)
        if options.late:
            say("idle: messages while the subscriptions deliver nothing")
            with closing(Proxy(servers.port)) as proxy, workers(1, proxy.url, topics, options.idle) as running:
                time.sleep(SETTLED_S)
                proxy.drop_replies(command="SUBSCRIBE")
                row |= _late("black_hole", servers.url, topics, options.late, running)
            if options.topics > 1:
                say("idle: a busy topic beside the idle ones, and alone")
                row |= _busy(servers, topics, options.idle, 3 if options.quick else 9)
        version = servers.version
    settings = {name: getattr(options, name) for name in ("topics", "slots", "workers", "idle")}
    return {"redis": version, "settings": {**settings, "seconds": for_s}, "rows": [row]}


def _idle(servers: Servers, running: Sequence[Child], for_s: float) -> Row:
    before_s = sum(each.cpu_s() for each in running)
    with Meter(servers) as meter, servers.connect() as plain:
        counts = [_scripts(plain)]
        for _ in range(int(for_s)):
            time.sleep(1.0)
            counts.append(_scripts(plain))
        connections = len(plain.client_list()) - 2  # this one, and the meter's
    used_s = sum(each.cpu_s() for each in running) - before_s
    threads, cost, number = [each.ask()[0] for each in running], meter.cost, len(running)
    seconds = sorted(after - before for before, after in pairwise(counts))
    usual = seconds[: int(len(seconds) * USUAL)]
    return {
        "threads": statistics.mean(threads),
        "connections": connections / number,
        "scripts_per_s": rounded(statistics.mean(usual) / number),
        "scripts_with_records_per_s": rounded((counts[-1] - counts[0]) / cost.elapsed_s / number),
        "commands_per_s": rounded(sum(cost.calls.values()) / cost.elapsed_s / number),
        "server_percent": rounded(cost.server_cpu_s / cost.elapsed_s * 100),
        "worker_percent": rounded(used_s / cost.elapsed_s * 100 / number),
    }


def _scripts(plain: Any) -> int:
    stats = plain.info("commandstats")
    return sum(stats[name]["calls"] for name in SCRIPTS if name in stats)


def _mute(servers: Servers) -> str:
    """Return a URL whose user may publish nothing."""
    with servers.connect() as plain:
        plain.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels")
    return servers.url.replace("://", "://mute:pw@")


def _late(what: str, url: str, topics: Sequence[Topic], number: int, running: Sequence[Child]) -> Row:
    """Send one message to each of some topics; return how late they were, in seconds."""
    draw, sent = random.Random(1), dict[str, float]()
    with RmqClient(url) as client:
        for turn, topic in enumerate(draw.sample(list(topics), min(number, len(topics)))):
            time.sleep(draw.random() * 0.5)
            content = f"{what} {turn}"
            sent[content] = time.time()
            client.producer(topic).send(PriorityMessage(content, 5))
    until_s, late = time.monotonic() + 90.0, dict[str, float]()
    while len(late) < len(sent) and time.monotonic() < until_s:
        time.sleep(0.5)
        for worker in running:
            late |= {content: at_s - sent[content] for content, at_s in worker.ask()[1] if content in sent}
    found = sorted(late.values())
    return {
        f"{what}_sent": len(sent),
        f"{what}_arrived": len(found),
        f"{what}_p50_s": rounded(statistics.median(found)),
        f"{what}_max_s": rounded(found[-1]),
    }


def _busy(servers: Servers, topics: Sequence[Topic], idle: str, repeats: int) -> Row:
    """Return rates and lateness of a topic that a worker handles alone, and beside idle ones, in turns."""
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "beside": []}
    for _ in range(repeats):
        for case, listened in (("alone", topics[:1]), ("beside", topics)):
            with workers(1, servers.url, listened, idle) as running, RmqClient(servers.url) as client:
                time.sleep(5.0)
                found[case].append(_run(client, topics[0], running[0]))
            servers.flush()
    row: Row = {}
    for case, figures in found.items():
        row[f"{case}_rate_per_s"] = rounded(statistics.median(rate for rate, _ in figures))
        row[f"{case}_late_p50_ms"] = rounded(statistics.median(late for _, late in figures))
    return row


def _run(client: RmqClient, topic: Topic, worker: Child) -> tuple[float, float]:
    """Return the rate of a burst, and the median lateness of single messages, ms."""
    producer, sent = client.producer(topic), dict[str, float]()
    for number in range(SINGLES):
        content = f"single {number}"
        sent[content] = time.time()
        producer.send(PriorityMessage(content, 5))
        time.sleep(0.01)
    began_s = time.time()
    producer.send_many(PriorityMessage(f"burst {number}", 5) for number in range(BURST))
    while len(arrived := worker.ask()[1]) < SINGLES + BURST:
        time.sleep(0.5)
    late = statistics.median((at_s - sent[content]) * 1_000 for content, at_s in arrived if content in sent)
    return BURST / (max(at_s for _, at_s in arrived) - began_s), late


def tables(document: Document) -> str:
    """Render what idle workers cost, and how late messages are."""
    settings, [row] = document["settings"], document["rows"]
    rows = [[what.replace("_", " "), rendering.number(value, 2)] for what, value in row.items()]
    return (
        f"{settings['topics']} topics of {settings['slots']} slots, {settings['workers']} workers, idle for "
        f"{settings['seconds']:.0f} s, Redis {document['redis']}. Threads, connections, calls and commands are those "
        "of a worker, threads besides those of handlers.\n\n" + rendering.table(["figure", "value"], rows)
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topics", type=int, default=150)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--idle", default="normal")
    parser.add_argument("--late", type=int, default=20, help="messages to topics of their own; 0: only costs (20)")


BENCHMARK = Benchmark("idle", measure, tables, arguments=_options)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
