"""The columns that are decoded from the records of a topic with `merge=`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmq._model.records import BODIES, ITEMS, NOTHING, NUMBERS, Record, read_record, unwrap


def sends_of(bodies: Iterable[bytes | None]) -> dict[str, list[Any]]:
    """Return the additional columns of a topic with `merge=`, decoded from the record of each row, if it has one."""
    records = [read_record(body) or NOTHING for body in bodies]
    return {
        "body": [_said(record)[0] for record in records],
        "trace": [_said(record)[1] for record in records],
        "merged": [record.count for record in records],
        "first_sent": [record.first_ms * 1_000 or None for record in records],
        "last_sent": [record.last_ms * 1_000 or None for record in records],
        "value": [float(record.number) if record.kind in NUMBERS else None for record in records],
        "items": [list(record.items) if record.kind in ITEMS else None for record in records],
        "wanted": [record.wanted or None for record in records],
        "version": [int(record.number) if record.kind == "N" else None for record in records],
    }


def _said(record: Record) -> tuple[bytes | None, str]:
    if record.kind in BODIES:
        return unwrap(record.body)
    return None if record.kind in ITEMS else str(record.number).encode(), ""
