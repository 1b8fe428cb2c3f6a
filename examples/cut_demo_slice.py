"""Cut the demo's slice out of the UCI "Online Retail" data set: every order line of one day, unchanged.

    python examples/cut_demo_slice.py online-retail.parquet rmq/demo/data/orders.csv.gz

Needs pyarrow. The same input and day give the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from datetime import date, datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

COLUMNS = (
    "invoice_no",
    "stock_code",
    "description",
    "quantity",
    "invoice_date",
    "unit_price",
    "customer_id",
    "country",
)
A_BUSY_DAY = date(2011, 12, 8)


def cut(source: Path, target: Path, day: date) -> int:
    """Write one day's rows in their order; return how many."""
    start = datetime(day.year, day.month, day.day)
    at = pc.field("invoice_date")
    rows = pq.read_table(source, columns=list(COLUMNS), filters=(at >= start) & (at < start + timedelta(days=1)))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows.to_pylist():
        row["invoice_date"] = row["invoice_date"].strftime("%Y-%m-%d %H:%M")
        writer.writerow("" if row[column] is None else row[column] for column in COLUMNS)
    target.write_bytes(gzip.compress(text.getvalue().encode(), compresslevel=9, mtime=0))
    return rows.num_rows


def main() -> None:
    """Read the arguments and cut."""
    parser = argparse.ArgumentParser(description="Cut a day of order lines for the demo.")
    parser.add_argument("source", type=Path, help="the data set as a parquet file")
    parser.add_argument("target", type=Path, help="where to write the slice, .csv.gz")
    parser.add_argument("--day", type=date.fromisoformat, default=A_BUSY_DAY, help="default: %(default)s")
    chosen = parser.parse_args()
    lines = cut(chosen.source, chosen.target, chosen.day)
    print(f"{lines} order lines of {chosen.day}, {chosen.target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
