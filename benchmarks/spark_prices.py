"""The job on price pictures over a year of a shop's order lines: what folding saves, in Spark and in Redis."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import medians
from benchmarks.support.orders import find_orders, is_sample
from benchmarks.support.servers import standalone
from benchmarks.support.spark_work import spark_session
from rmq.demo.spark.prices import MERGES, PriceReport, PriceSettings, run


def measure(options: argparse.Namespace) -> Document:
    """Send the price changes of all order lines, folded in each task, over all of them, and not at all."""
    orders = options.orders or find_orders()
    samples: dict[str, list[dict[str, float]]] = {}
    reports: dict[str, PriceReport] = {}
    with standalone() as servers, spark_session(2) as session:
        for repeat in range(options.repeats + 1):
            for merge in MERGES:
                servers.flush()
                started_s = time.perf_counter()
                report = run(session, PriceSettings(str(orders), servers.url, merge=merge))
                elapsed_s = time.perf_counter() - started_s
                if not repeat:
                    continue  # the first is Spark's start
                say(f"spark_prices: repeat {repeat} of {options.repeats}, merge={merge}: {elapsed_s:.1f} s")
                reports[merge] = report
                figures = {
                    "seconds": elapsed_s,
                    "lines_per_s": report.lines / elapsed_s,
                    "sending_s": report.pictures.elapsed_s,
                }
                samples.setdefault(merge, []).append(figures)
        version, spark_version = servers.version, session.version
    rows: list[Row] = [{"merge": merge, **medians(each), **_folding(reports[merge])} for merge, each in samples.items()]
    report = reports[MERGES[0]]
    settings = {"lines": report.lines, "changes": report.pictures.messages, "windows": report.windows, "window_h": 1}
    found: Document = {"redis": version, "spark": spark_version, "settings": settings, "rows": rows}
    return found | {"sample": is_sample(orders)}


def _folding(report: PriceReport) -> Row:
    pictures = report.pictures
    return {
        "folded": pictures.folded,
        "merged": pictures.merged,
        "new": pictures.new,
        "saved": round(pictures.saved, 4),
        "contacts": report.contacts.new,
    }


def tables(document: Document) -> str:
    """Render what each way of folding saves."""
    settings = document["settings"]
    asked, windows = settings["changes"], settings["windows"]
    rows = [
        (
            row["merge"],
            rendering.number(asked),
            rendering.number(row["folded"]),
            rendering.number(row["merged"]),
            rendering.number(row["new"]),
            f"{row['saved']:.1%}",
            rendering.number(row["sending_s"], 1),
            rendering.number(row["seconds"], 1),
            rendering.number(row["lines_per_s"]),
        )
        for row in document["rows"]
    ]
    columns = ["merge", "changes", "folded in Spark", "merged in Redis", "messages", "saved", "sending, s", "job, s"]
    return (
        f"{settings['lines']:,} order lines (UCI Online Retail, CC BY 4.0) through `rmq.demo.spark.prices`, Spark "
        f"{document['spark']} on `local[2]`, Redis {document['redis']}. All at once, all changes of an item "
        f"are one message; sent as they came, with windows of {settings['window_h']} h, {windows:,} of {asked:,} would "
        f"be left: {1 - windows / asked:.1%} saved.\n\n" + rendering.table([*columns, "lines/s"], rows)
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--orders", type=Path, help="the order lines, Parquet (RMQ_DATA; else the day of the demo)")


BENCHMARK = Benchmark("spark_prices", measure, tables, None, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
