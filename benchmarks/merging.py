"""How much downstream work merging saves, on a year of a shop's orders: computed, and a day of it sent for real."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.orders import find_orders, is_sample
from benchmarks.support.servers import standalone
from rmq import RangeMergeMessage, RmqClient, Topic, TopicType

WINDOWS_S = {"1 s": 1, "10 s": 10, "1 min": 60, "10 min": 600, "1 h": 3_600, "6 h": 21_600, "1 day": 86_400}
CHECK_FACTOR = 3_600
"""In the check, an hour of the shop passes in a second."""

Event = tuple[str, int]
"""Item, and time in ms."""


def measure(options: argparse.Namespace) -> Document:
    """Fold order lines and price changes by item, for windows from a second to a day."""
    orders = options.orders or find_orders()
    lines, changes = read(orders)
    rows: list[Row] = []
    for what, events in (("order lines", lines), ("price changes", changes)):
        for name, window_s in WINDOWS_S.items():
            left = deliveries(events, window_s * 1000)
            rows.append(
                {
                    "what": what,
                    "window": name,
                    "window_s": window_s,
                    "sends": len(events),
                    "deliveries": left,
                    "saved_share": round(1 - left / len(events), 4),
                }
            )
    document: Document = {"settings": {"data": orders.name, "seconds": "spread per order"}, "rows": rows}
    document["sample"] = is_sample(orders)
    if not options.no_check:
        document["check"] = check(lines)
    return document


def read(path: Path) -> tuple[list[Event], list[Event]]:
    """Return all order lines, and those that change their item's price, in order of time.

    The data has whole minutes. An order's second within its minute is drawn from its number, so that windows below a
    minute mean something: lines of one order stay together, orders of one minute do not.
    """
    from pyarrow import csv, parquet

    if not path.exists():
        raise SystemExit(f"{path} is not there; name the order data with --orders")
    names = ["invoice_no", "stock_code", "invoice_date", "unit_price"]
    if path.suffix == ".parquet":
        table = parquet.read_table(path, columns=names)
    else:
        kinds = {"invoice_no": "string", "stock_code": "string", "unit_price": "float64"}
        options = csv.ConvertOptions(include_columns=names, column_types=kinds, timestamp_parsers=["%Y-%m-%d %H:%M"])
        table = csv.read_csv(path, convert_options=options)
    columns = table.to_pydict()
    rows = zip(*(columns[name] for name in names), strict=True)
    stamped = sorted(
        (int(minute.timestamp() * 1000) + crc32(invoice.encode()) % 60_000, item, price)
        for invoice, item, minute, price in rows
    )
    prices: dict[str, float] = {}
    lines: list[Event] = []
    changes: list[Event] = []
    for at_ms, item, price in stamped:
        lines.append((item, at_ms))
        if price > 0:
            if prices.get(item, price) != price:
                changes.append((item, at_ms))
            prices[item] = price
    return lines, changes


def deliveries(events: Iterable[Event], window_ms: int) -> int:
    """Return how many deliveries are left: the first send of an item opens its window, the others in it fold."""
    until: dict[str, int] = {}
    number = 0
    for item, at_ms in events:
        if at_ms >= until.get(item, 0):
            until[item] = at_ms + window_ms
            number += 1
    return number


def check(lines: Sequence[Event]) -> Row:
    """Send the busiest day through a real topic, time compressed; compare what is delivered with the computation."""
    by_day: dict[int, list[Event]] = {}
    for event in lines:
        by_day.setdefault(event[1] // 86_400_000, []).append(event)
    day = max(by_day.values(), key=len)
    start_ms = day[0][1]
    events = [(item, (at_ms - start_ms) // CHECK_FACTOR) for item, at_ms in day]
    window_ms = 1_000
    expected = deliveries(events, window_ms)
    say(f"merging: sending {len(events):,} order lines of one day in {events[-1][1] / 1000:.0f} s")
    with standalone() as servers, RmqClient(servers.url) as client:
        topic = Topic("bench-merging", TopicType.RANGE_MERGE, slots=8)
        handled: list[Any] = []
        client.listener(topic, batch=500)(handled.extend)
        client.start()
        producer = client.producer(topic)
        started_s, merged = time.monotonic(), 0
        for item, at_ms in events:
            time.sleep(max(0.0, started_s + at_ms / 1000 - time.monotonic()))
            merged += producer.send(RangeMergeMessage(item, time_range_ms=window_ms)).merged
        deadline_s = time.monotonic() + 10
        while len(handled) + merged < len(events) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        client.stop()
    return {
        "sends": len(events),
        "window": f"1 h as {window_ms} ms",
        "expected_deliveries": expected,
        "deliveries": len(handled),
        "merged": merged,
    }


def tables(document: Document) -> str:
    """Render what is left per window."""
    text = rendering.table(
        ["merge window", "sends", "deliveries", "saved"],
        [
            (
                f"{row['what']}, {row['window']}",
                f"{row['sends']:,}",
                f"{row['deliveries']:,}",
                f"{row['saved_share']:.1%}",
            )
            for row in document["rows"]
        ],
    )
    name = document["settings"]["data"]
    text = f"By item, {name}. The data has whole minutes; an order's second is drawn from its number.\n\n{text}"
    if found := document.get("check"):
        text += (
            f"\n\nChecked through a real topic, the busiest day with an hour in a second: {found['sends']:,} sends, "
            f"{found['deliveries']:,} deliveries, {found['merged']:,} merged; computed were "
            f"{found['expected_deliveries']:,} deliveries."
        )
    return text


def plot(document: Document, path: Path) -> None:
    """Draw the share saved over the window."""
    made, (left, right) = rendering.figure(2, "Downstream work that merging saves: a year of a shop's orders, by item")
    for index, what in enumerate(("order lines", "price changes")):
        rows = [row for row in document["rows"] if row["what"] == what]
        label = f"{what} ({rows[0]['sends']:,})"
        shares = [row["saved_share"] * 100 for row in rows]
        left.plot([row["window_s"] for row in rows], shares, "o-", color=rendering.COLOURS[index], label=label)
    left.set(xscale="log", xlabel="merge window", ylabel="deliveries saved, %", ylim=(0, 100))
    left.set_xticks(list(WINDOWS_S.values()), list(WINDOWS_S), fontsize=8)
    left.minorticks_off()
    left.legend(fontsize=8, frameon=False)
    names = ["no\nmerging", *WINDOWS_S]
    series: dict[str, Sequence[float]] = {}
    for what in ("order lines", "price changes"):
        rows = [row for row in document["rows"] if row["what"] == what]
        series[what] = [rows[0]["sends"] / 1000, *(row["deliveries"] / 1000 for row in rows)]
    rendering.bars(right, names, series, "thousand deliveries in the year", 0)
    right.set_xlabel("merge window")
    rendering.save(made, path)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--orders", type=Path, help="the order data, Parquet (RMQ_DATA; else the day of the demo)")
    parser.add_argument("--no-check", action="store_true", help="compute only, send nothing")


BENCHMARK = Benchmark("merging", measure, tables, plot, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
