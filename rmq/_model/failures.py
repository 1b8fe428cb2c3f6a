"""What is kept of a failure, as it is read: JSON that another version, or nobody of ours, may have written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

_MOST = 2**53


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Why a delivery failed, or a message died; what can't be read is empty."""

    type: str = ""
    message: str = ""
    attempts: int = 0  # deliveries that the message had; 0 where that is not known
    first_ms: int | None = None  # the first failure, epoch ms
    last_ms: int | None = None


def read_failure(data: bytes | None) -> FailureRecord:
    """Read a record; one that can't be read says so in its message, so that it hides nothing but itself."""
    if not data:
        return FailureRecord()
    try:
        value: Any = json.loads(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return FailureRecord(message="(what was kept of the failure cannot be read)")
    record = cast("dict[str, Any]", value)
    return FailureRecord(
        _text(record.get("type")),
        _text(record.get("message")),
        _whole(record.get("attempts")) or 0,
        _whole(record.get("first_ms")),
        _whole(record.get("last_ms")),
    )


def why_dead(data: bytes | None, died_ms: int) -> tuple[str, str, int, int, int]:
    """Return what a `DeadMessage` says of the failures, from `error_type` on; times not known are that of death."""
    record = read_failure(data)
    first, last = (died_ms if each is None else each for each in (record.first_ms, record.last_ms))
    return record.type, record.message, record.attempts, first, last


def _text(value: object) -> str:
    # half a pair of surrogates can stand in JSON, but be neither printed nor sent
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    """Return a whole number that Lua has written as a number or as text, `None` for anything else."""
    try:
        number = int(value) if isinstance(value, (int, float, str)) and len(str(value)) < 32 else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and 0 <= number < _MOST else None
