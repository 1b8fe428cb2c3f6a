"""The order lines that some benchmarks measure on: a year of them where it is, else the day that RMQ carries."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.support.harness import ROOT, say

YEAR = ROOT.parent / "shared" / "data" / "online-retail.parquet"
DAY = ROOT / "rmq" / "demo" / "data" / "orders.csv.gz"


def find_orders() -> Path:
    """Return the order lines: what `RMQ_DATA` names, the year beside the checkout, or the day of the demo.

    Raises:
        SystemExit: `RMQ_DATA` leads nowhere.
    """
    named = os.environ.get("RMQ_DATA")
    if named:
        if not Path(named).exists():
            raise SystemExit(f"RMQ_DATA is {named!r}, where nothing is; it must be a Parquet file of order lines")
        return Path(named)
    if YEAR.exists():
        return YEAR
    say(
        "the year of order lines is not here (UCI Online Retail as Parquet; RMQ_DATA or --orders names it): "
        "measured is the one day that RMQ carries, and the published results stay as they are"
    )
    return DAY


def is_sample(path: Path) -> bool:
    """Return whether that is only the day of the demo."""
    return path == DAY
