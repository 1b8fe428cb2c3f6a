"""The demo's price list, which renderers read when they draw."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path


class PriceList:
    """The newest price of each item, in pence, in an SQLite file that several processes may open.

    Args:
        path: The file, created if missing.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("CREATE TABLE IF NOT EXISTS prices (item TEXT PRIMARY KEY, pence INTEGER NOT NULL)")

    def write(self, prices: Mapping[str, int]) -> None:
        """Store new prices. All renderers see them when it returns."""
        with self._lock, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT OR REPLACE INTO prices VALUES (?, ?)", prices.items())

    def of(self, item: str) -> int:
        """Return the current price of an item.

        Raises:
            LookupError: The price list has no price of the item.
        """
        with self._lock, closing(self._connection.execute("SELECT pence FROM prices WHERE item = ?", (item,))) as rows:
            row = rows.fetchone()
        if row is None:
            raise LookupError(f"the price list has no item {item!r}")
        return row[0]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
