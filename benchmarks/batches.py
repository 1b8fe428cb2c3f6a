"""What sends and claims of 1 to 1,000 messages a call cost the server, and what other clients feel meanwhile."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.support import loads, rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import LongestCalls, Meter, medians
from benchmarks.support.probe import Probe
from benchmarks.support.servers import Servers, standalone
from rmq import RmqClient, TopicType

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)


def measure(options: argparse.Namespace) -> Document:
    """Send and poll batches of each size, one call at a time, while another client sends PINGs."""
    most = options.number or (10_000 if options.quick else 100_000)
    contents = loads.contents(most)
    rows: list[Row] = []
    with standalone() as servers:
        with Probe(servers.port) as probe:
            time.sleep(1.0)
            quiet = probe.take()
        for size in SIZES:
            say(f"batches: of {size}")
            part = contents[: size * 4_000]
            samples = [_one_size(servers, part, size) for _ in range(options.repeats)]
            merged = medians(samples)
            merged["longest_us"] = max(each["longest_us"] for each in samples)
            merged["over_5_ms"] = sum(each["over_5_ms"] for each in samples)
            rows.append({"batch": size, "messages": len(part), **merged})
        version = servers.version
    settings = {"type": "PRIORITY", "slots": 1, "content_bytes": 20}
    quiet_ms = {key: quiet[key] for key in ("p50", "p99", "max")}
    return {"redis": version, "settings": settings, "quiet_ms": quiet_ms, "rows": rows}


def _one_size(servers: Servers, contents: Sequence[bytes], size: int) -> dict[str, float]:
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


def tables(document: Document) -> str:
    """Render cost, rate and disturbance for each size."""
    rows = [
        (
            rendering.number(row["batch"]),
            rendering.number(row["send_us"], 2),
            rendering.number(row["claim_ack_us"], 2),
            rendering.number(row["send_rate_per_s"]),
            rendering.number(row["claim_ack_rate_per_s"]),
            rendering.number(row["longest_us"] / 1000, 2),
            rendering.number(row["probe_p99_ms"], 2),
        )
        for row in document["rows"]
    ]
    columns = ["batch", "send, µs", "claim + ack, µs", "send, 1/s", "claim + ack, 1/s", "longest call, ms"]
    settings = document["settings"]
    return (
        f"{settings['type']}, {settings['slots']} slot, one call at a time, Redis {document['redis']}. `others' p99`: "
        f"round trip of another client's PING meanwhile; on the idle server {document['quiet_ms']['p99']:.2f} ms.\n\n"
        + rendering.table([*columns, "others' p99, ms"], rows)
    )


def plot(document: Document, path: Path) -> None:
    """Draw the cost over the size, and the longest call."""
    made, (axis,) = rendering.figure(1, "Messages per call")
    sizes = document["rows"]
    for index, (key, label) in enumerate((("send_us", "send"), ("claim_ack_us", "claim + ack"))):
        values = [row[key] for row in sizes]
        axis.plot([row["batch"] for row in sizes], values, "o-", color=rendering.COLOURS[index], label=label)
    axis.set(xscale="log", yscale="log", xlabel="messages per call", ylabel="µs per message, executing")
    longest = axis.twinx()
    values = [row["longest_us"] / 1000 for row in sizes]
    style: dict[str, Any] = {"color": "#777777", "markersize": 4, "label": "longest call (right)"}
    longest.plot([row["batch"] for row in sizes], values, "s--", **style)
    longest.set_ylabel("longest call, ms")
    longest.set_ylim(bottom=0)
    handles = [*axis.get_lines(), *longest.get_lines()]
    axis.legend(handles, [each.get_label() for each in handles], fontsize=8, frameon=False)
    rendering.save(made, path)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages at most (100,000; quick: 10,000)")


BENCHMARK = Benchmark("batches", measure, tables, plot, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
