"""One process sends while another one consumes: how much goes through, which rate holds, and single sends.

The long run sends as fast as it can. Then the highest rate is searched at which the backlog does not grow; it is held
for a minute, and exceeded for some seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from benchmarks.support import loads, rendering
from benchmarks.support.flow import DELAY_MS, KINDS, SLOTS, STREAMS, THREADS, flow
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Figures, Meter, rounded
from benchmarks.support.samples import Sample, in_turns, ratio, summary
from benchmarks.support.servers import standalone
from rmq import RmqClient, TopicType

SINGLE = "one a call: "
ZADD = SINGLE + "bare ZADD"
HELD = ("priority", "priority in columns", STREAMS)
LENGTHS_S = {False: [4.0, 60.0, 8.0], True: [2.0, 6.0, 3.0]}
"""By whether it is a first look: how long a rate is tried, held, and exceeded."""
CLOSE = 0.04
"""The search ends where the highest rate that held and the lowest one that did not are as close as this share."""
AGAIN = 2
"""So often a lower rate is held instead; a busy machine may let none hold, and the table then shows how much was sent.
"""
MOST_GROWTH, LEAST_SENT = 0.01, 0.98
"""A rate holds if the backlog grows by no larger share of what is sent, and so much of the rate is sent."""


def measure(options: argparse.Namespace) -> Document:
    """Send in one process and consume in another: as fast as they can, in turns, and at the highest rate that holds."""

    def run(kind: str) -> Figures:
        with standalone() as servers:
            return flow(servers, kind, options.number // (4 if KINDS[kind].cargo else 1))

    samples = in_turns("throughput", options.repeats, {kind: partial(run, kind) for kind in options.only})
    if options.singles:
        samples += singles(2_000 if options.quick else 10_000, options.repeats)
    lengths_s = LENGTHS_S[options.quick]
    settings = {
        "messages": options.number,
        "content_bytes": 20,
        "batch": loads.BATCH,
        "slots": SLOTS,
        "delay_ms": DELAY_MS,
    }
    found = {"settings": settings | {"lengths_s": lengths_s}, "samples": samples}
    return found | ({"held": [steady(kind, *lengths_s) for kind in options.hold]} if options.hold else {})


def steady(kind: str, trial_s: float, held_s: float, over_s: float) -> Row:
    """Find the highest rate that holds; return what it costs for longer, and what twice as much does."""

    def run(rate: float, seconds: float) -> Figures:
        with standalone() as servers:
            found = flow(servers, kind, int(rate * seconds), rate=rate)
        say(f"throughput: {kind}, {rate:,.0f}/s: {'holds' if holds(found, rate) else 'does not hold'}")
        return found

    with standalone() as servers:
        rate = highest(lambda tried: holds(run(tried, trial_s), tried), flow(servers, kind, 300_000)["both_rate_per_s"])
    held = run(rate, held_s)
    for _ in range(AGAIN):
        if holds(held, rate):
            break
        rate *= 1 - CLOSE  # it grew too slowly to be seen before
        held = run(rate, held_s)
    over = run(2 * rate, over_s)
    rows = {
        name: {key: rounded(value) for key, value in each.items()} for name, each in (("held", held), ("over", over))
    }
    return {"type": kind, "rate_per_s": rounded(rate), **rows}


def holds(found: Figures, rate: float) -> bool:
    """Return whether as much was sent, and the backlog did not grow."""
    return found["growth_share"] <= MOST_GROWTH and found["sent_per_s"] >= LEAST_SENT * rate


def highest(holds: Callable[[float], bool], about: float) -> float:
    """Return the highest rate that holds, by halving, from what goes through at most."""
    low, high = 0.0, 1.25 * about
    while high - low > CLOSE * high:
        rate = (low + high) / 2
        low, high = (rate, high) if holds(rate) else (low, rate)
    return low


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
        beside = {f"{name}_of_streams": ratio(samples, case, STREAMS, figure) for name, figure in RATES.items()}
        rows.append({"type": case, **figures, **beside})
    return {"rows": rows, "singles": single_rows}


RATES = {"sent": "sent_per_s", "both": "both_rate_per_s"}
COSTS: tuple[rendering.Column, ...] = (
    ("sender CPU, µs", "{sender_cpu_us:,.2f}"),
    ("consumer CPU, µs", "{consumer_cpu_us:,.2f}"),
    ("server CPU, µs", "{server_cpu_us:,.2f}"),
    ("server busy", "{server_busy_share:.0%}"),
)


def tables(document: Document) -> str:
    """Render the long run, the rates that hold, and the single sends."""
    first = rendering.listed(
        document["rows"],
        ("the long run", "{type}"),
        ("end to end, 1/s", "{both_rate_per_s:,.0f}"),
        ("of Streams", "{both_of_streams:×}"),
        ("sent, 1/s", "{sent_per_s:,.0f}"),
        ("of Streams", "{sent_of_streams:×}"),
        ("backlog at the last send", "{backlog_end:,.0f}"),
        *COSTS,
    )
    second = rendering.listed(
        [{"type": each["type"], "rate": rate, **each[what]} for each in document.get("held", ())
         for what, rate in (("held", each["rate_per_s"]), ("over", 2 * each["rate_per_s"]))],
        ("at a rate", "{type}"),
        ("messages/s", "{rate:,.0f}"),
        ("of it sent", "{sent_per_s:,.0f}"),
        ("backlog, mean", "{backlog_mean:,.0f}"),
        ("at the last send", "{backlog_end:,.0f}"),
        ("drained after, s", "{drain_s:,.2f}"),
        ("late by, ms: p50", "{late_p50_ms:,.1f}"),
        ("p99", "{late_p99_ms:,.1f}"),
        *COSTS,
    )  # fmt: skip
    third = rendering.listed(
        document["singles"],
        ("one message a call", "{what}"),
        ("1/s", "{rate_per_s:,.0f}"),
        ("of bare ZADD", "{ratio:×}"),
        ("client CPU, µs", "{client_cpu_us:,.1f}"),
        ("server CPU, µs", "{server_cpu_us:,.1f}"),
    )
    found = {"long_run": first, "held": second, "single": third}
    return rendering.text("throughput", document | found, threads=THREADS, close=CLOSE)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hold", nargs="*", choices=KINDS, default=HELD, help="the kinds whose rate is searched")
    parser.add_argument(
        "--singles", action=argparse.BooleanOptionalAction, default=True, help="single sends, too, beside bare ZADD"
    )


PLOT = rendering.picture(
    "One process sends while another one consumes",
    rendering.Panel("thousand messages per second", "{type}", {"end to end": "both_rate_per_s"}, each=1_000),
    rendering.Panel("thousand calls per second", "{what}", {"one a call": "rate_per_s"}, "singles", each=1_000),
)
SIZES = (600_000, 100_000)
BENCHMARK = Benchmark("throughput", measure, tables, PLOT, _arguments, summarize, numbers=SIZES, cases=KINDS)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
