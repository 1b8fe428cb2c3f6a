"""One process sends while another one consumes: how much goes through, and beside it Redis Streams and single sends."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import redis

from benchmarks.support import loads, rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document, Row
from benchmarks.support.meters import Figures, Meter, cpu_s
from benchmarks.support.samples import Sample, in_turns, ratio, summary
from benchmarks.support.servers import Servers, some, standalone
from rmq import Producer, RmqClient, TopicType
from rmq.errors import FixedTimePassedError

SLOTS = 8
DELAY_MS = 250
"""Fixed times must lie ahead when they arrive; merge windows are as long, for the same conditions.

It is short beside the time that all sends take, so that most messages are sent while others are consumed."""
STREAM, GROUP = "stream", "group"
STREAMS = "STREAMS"
SINGLE = "one a call: "
ZADD = SINGLE + "bare ZADD"
THREADS = 2
"""Threads of RMQ's listener: one waits for its claim while the other handles."""
LIMIT_S = 900.0
ROWS = 20_000
"""Rows of a `send_columns`, as of a file that is read piece by piece."""
NOTED = 5_000
"""A sender notes the time after so many messages."""
COLUMNS = " in columns"
"""Marks a kind that is sent by `send_columns` and consumed by a listener with `columns=True`."""
KINDS = (*(each.value for each in loads.TYPES), *(each.value + COLUMNS for each in loads.TYPES), STREAMS)
COMMANDS = ("evalsha", "xadd", "xreadgroup", "xack")

Progress = list[tuple[float, int]]
"""When how many messages were done."""


def measure(options: argparse.Namespace) -> Document:
    """Send in one process and consume in another at the same time; per topic type, and through Redis Streams."""
    number = options.number or (100_000 if options.quick else 400_000)

    def run(kind: str, count: int) -> Figures:
        with some(count) as servers:
            return both_at_once(servers, kind, number)

    cases = {
        _case(kind, count): partial(run, kind, count)
        for count in options.nodes
        for kind in options.only
        if kind != STREAMS or count == 1  # a stream is one key, and so in one node
    }
    samples = in_turns("throughput", options.repeats, cases)
    if options.singles:
        samples += singles(2_000 if options.quick else 10_000, options.repeats)
    settings = {"messages": number, "content_bytes": 20, "batch": loads.BATCH, "slots": SLOTS, "delay_ms": DELAY_MS}
    return {"settings": settings, "samples": samples}


def _case(kind: str, nodes: int) -> str:
    return f"{kind}, {nodes} Redis"


def both_at_once(servers: Servers, kind: str, number: int) -> dict[str, float]:
    """Let a sender and a consumer run at the same time."""
    send, consume = (_send_stream, _consume_stream) if kind == STREAMS else (_send, _consume)
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
    return {
        "send_rate_per_s": number / (sent["until_s"] - sent["from_s"]),
        "consume_rate_per_s": number / (consumed["until_s"] - consumed["from_s"]),
        **at_the_same_time(sent["progress"], consumed["progress"]),
        "both_rate_per_s": number / busy_s,
        "sender_cpu_us": sent["cpu_s"] * 1e6 / number,
        "consumer_cpu_us": consumed["cpu_s"] * 1e6 / number,
        "server_us": meter.cost.executing_us(*COMMANDS) / number,
        "server_cpu_us": meter.cost.server_cpu_s * 1e6 / number,
        "server_busy_share": meter.cost.server_cpu_s / busy_s / len(servers.ports),
    }


def at_the_same_time(sent: Progress, consumed: Progress) -> dict[str, float]:
    """Return both rates between the first delivery and the last send, and the share of all messages sent in it."""
    from_s, until_s = consumed[0][0], sent[-1][0]
    if until_s <= from_s:
        return {"sent_meanwhile_per_s": 0.0, "consumed_meanwhile_per_s": 0.0, "meanwhile_share": 0.0}
    meanwhile = [_done(each, until_s) - _done(each, from_s) for each in (sent, consumed)]
    return {
        "sent_meanwhile_per_s": meanwhile[0] / (until_s - from_s),
        "consumed_meanwhile_per_s": meanwhile[1] / (until_s - from_s),
        "meanwhile_share": meanwhile[0] / sent[-1][1],
    }


def _done(progress: Progress, at_s: float) -> int:
    return max((done for noted_s, done in progress if noted_s <= at_s), default=0)


def _noted(messages: Iterable[Any], progress: Progress, each: int = NOTED) -> Iterator[Any]:
    """Yield them all, and note the time now and then."""
    first = progress[-1][1] if progress else 0
    for done, message in enumerate(messages, first):
        if done % each == 0:
            progress.append((time.time(), done))
        yield message


def _send(line: Line, url: str, kind: str, number: int) -> dict[str, Any]:
    topic_type = TopicType(kind.removesuffix(COLUMNS))
    contents, priorities = loads.contents(number), loads.priorities(10_000)
    progress: Progress = []
    with RmqClient(url) as client:
        producer = client.producer(loads.topic(topic_type, SLOTS))
        line.ready()
        cpu_before_s, from_s = cpu_s(), time.time()
        if kind.endswith(COLUMNS):
            for first, part in enumerate(loads.batches(contents, ROWS)):
                progress.append((time.time(), first * ROWS))
                _send_columns(producer, topic_type, part, priorities)
        else:
            _send_objects(producer, topic_type, contents, priorities, progress)
        return _sent(progress, from_s, number, cpu_s() - cpu_before_s)


def _send_objects(
    producer: Producer, topic_type: TopicType, contents: Iterable[bytes], priorities: list[int], progress: Progress
) -> None:
    """Send them all; where the machine stood still until a fixed time had passed, go on with a new one."""
    left = iter(contents)
    while True:
        try:
            producer.send_many(_noted(loads.soon(topic_type, left, priorities, DELAY_MS), progress))
            return
        except FixedTimePassedError as error:
            left = chain([message.content for message in error.not_stored], left)


def _send_columns(producer: Producer, topic_type: TopicType, contents: Sequence[bytes], priorities: list[int]) -> None:
    """Send them all, as `_send_objects` does."""
    while contents:
        try:
            producer.send_columns(contents, **loads.soon_in_columns(topic_type, len(contents), priorities, DELAY_MS))
            return
        except FixedTimePassedError as error:
            contents = [contents[row] for row in error.not_stored]


def _consume(line: Line, url: str, kind: str, number: int) -> dict[str, Any]:
    finished = threading.Event()
    counting = threading.Lock()
    progress: Progress = []
    done = 0

    def handle(deliveries: Any) -> None:
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


def _send_stream(line: Line, url: str, kind: str, number: int) -> dict[str, Any]:
    del kind
    contents = loads.contents(number)
    progress: Progress = []
    with redis.Redis.from_url(url) as client:
        client.ping()
        line.ready()
        cpu_before_s, from_s = cpu_s(), time.time()
        for part in _noted(loads.batches(contents, loads.BATCH), progress, 1):
            pipe = client.pipeline(transaction=False)
            for content in part:
                pipe.xadd(STREAM, {"c": content})
            pipe.execute()
        noted = [(at_s, done * loads.BATCH) for at_s, done in progress]
        return _sent(noted, from_s, number, cpu_s() - cpu_before_s)


def _consume_stream(line: Line, url: str, kind: str, number: int) -> dict[str, Any]:
    del kind
    progress: Progress = []
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


def _sent(progress: Progress, from_s: float, number: int, used_s: float) -> dict[str, Any]:
    until_s = time.time()
    return {"from_s": from_s, "until_s": until_s, "cpu_s": used_s, "progress": [*progress, (until_s, number)]}


def _consumed(progress: Progress, used_s: float) -> dict[str, Any]:
    return {"from_s": progress[0][0], "until_s": progress[-1][0], "cpu_s": used_s, "progress": progress}


def singles(number: int, repeats: int) -> list[Sample]:
    """Send one message a call, and call a bare redis-py ZADD as often."""
    contents = loads.contents(number)
    with standalone() as servers, servers.connect() as bare:

        def add() -> Figures:
            servers.flush()
            with Meter(servers) as meter:
                for content in contents:
                    bare.zadd("bare", {content: 1_800_000_000_000})
            return meter.cost.row(number, "zadd")

        def send(kind: TopicType) -> Figures:
            with RmqClient(servers.url) as client:
                producer = client.producer(loads.topic(kind))
                messages = list(loads.soon(kind, contents, [1_000, 5_000], 600_000))
                with Meter(servers) as meter:
                    for message in messages:
                        producer.send(message)
            return meter.cost.row(number, "evalsha")

        ours = {SINGLE + kind.value: partial(send, kind) for kind in loads.TYPES}
        return in_turns("throughput", repeats, {ZADD: add, **ours})


def summarize(document: Document) -> Document:
    """Work out medians, and ratios to Redis Streams and to a bare ZADD within the repeats."""
    samples = document["samples"]
    rows: list[Row] = []
    single_rows: list[Row] = []
    for case, figures in summary(samples).items():
        if case.startswith(SINGLE):
            over = ratio(samples, case, ZADD, "rate_per_s")
            single_rows.append({"what": case.removeprefix(SINGLE), **figures, "ratio": over})
            continue
        kind, _, nodes = case.removesuffix(" Redis").rpartition(", ")
        beside = {
            f"{way}_of_streams": ratio(samples, case, _case(STREAMS, 1), f"{way}_meanwhile_per_s")
            for way in ("sent", "consumed")
        }
        rows.append({"nodes": int(nodes), "type": kind, **figures, **beside})
    return {"rows": rows, "singles": single_rows}


def tables(document: Document) -> str:
    """Render both parts."""
    first = rendering.listed(
        document["rows"],
        ("at the same time", lambda row: _name(row["type"])),
        ("Redis", "{nodes}"),
        ("sent, 1/s", "{sent_meanwhile_per_s:,.0f}"),
        ("of Streams", "{sent_of_streams:×}"),
        ("consumed, 1/s", "{consumed_meanwhile_per_s:,.0f}"),
        ("of Streams", "{consumed_of_streams:×}"),
        ("share of all sends", "{meanwhile_share:.0%}"),
        ("end to end, 1/s", "{both_rate_per_s:,.0f}"),
        ("sender CPU, µs", "{sender_cpu_us:,.2f}"),
        ("consumer CPU, µs", "{consumer_cpu_us:,.2f}"),
        ("server CPU, µs", "{server_cpu_us:,.2f}"),
        ("server busy", "{server_busy_share:.0%}"),
    )
    second = rendering.listed(
        document["singles"],
        ("one message a call", "{what}"),
        ("1/s", "{rate_per_s:,.0f}"),
        ("of bare ZADD", "{ratio:×}"),
        ("client CPU, µs", "{client_cpu_us:,.1f}"),
        ("server CPU, µs", "{server_cpu_us:,.1f}"),
    )
    settings = document["settings"]
    return (
        f"{settings['messages']:,} messages of {settings['content_bytes']} bytes, {settings['slots']} slots, batches "
        f"of {settings['batch']}, one sending and one consuming process; RMQ's has {THREADS} threads. Time topics are "
        f"due {settings['delay_ms']} ms after their send. `in columns`: `send_columns`, and a listener with "
        "`columns=True`. `sent` and `consumed` are the rates between the first delivery and the last send, when both "
        "are at work; `share of all sends` is how many fall into it. `of Streams`: medians of the ratios to Redis "
        f"Streams in the same repeat. `end to end`: from the first send to the last delivery.\n\n{first}\n\n{second}"
    )


def _name(kind: str) -> str:
    if kind == STREAMS:
        return "Redis Streams"
    return kind.replace("_", " ").lower() if kind.isupper() or kind.endswith(COLUMNS) else kind


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages (400,000; quick: 100,000)")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="only these kinds, or none")
    parser.add_argument("--nodes", nargs="+", type=int, default=[1], help="Redis nodes, one count or several (1)")
    parser.add_argument(
        "--singles", action=argparse.BooleanOptionalAction, default=True, help="single sends, too, beside bare ZADD"
    )


BOTH = {"sent": "sent_meanwhile_per_s", "consumed": "consumed_meanwhile_per_s"}
PLOT = rendering.picture(
    "One process sends while another one consumes",
    rendering.Panel("thousand messages per second", "{type}\n{nodes} Redis", BOTH, each=1_000),
    rendering.Panel("thousand calls per second", "{what}", {"one a call": "rate_per_s"}, "singles", each=1_000),
)
BENCHMARK = Benchmark("throughput", measure, tables, PLOT, _arguments, summarize)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
