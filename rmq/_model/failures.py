"""What is kept of a failure, as it is read: JSON that another version, or nobody of ours, may have written."""

from __future__ import annotations

import json
from typing import Any, cast

from rmq._model.whereabouts import Failure

_MOST = 2**53


def read_failure(data: bytes | None, unknown_ms: int = 0) -> tuple[Failure, int]:
    """Read a record: the failure, and how many deliveries the message had, 0 where that is not known.

    What can't be read is empty, a time `unknown_ms`; no JSON at all says so in the message, and hides nothing else.
    """
    if not data:
        return Failure("", "", unknown_ms, unknown_ms), 0
    try:
        value: Any = json.loads(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return Failure("", "(what was kept of the failure cannot be read)", unknown_ms, unknown_ms), 0
    found = cast("dict[str, Any]", value)
    times = (_whole(found.get(name), unknown_ms) for name in ("first_ms", "last_ms"))
    return Failure(_text(found.get("type")), _text(found.get("message")), *times), _whole(found.get("attempts"), 0)


def why_dead(data: bytes | None, died_ms: int) -> tuple[str, str, int, int, int]:
    """Return what a `DeadMessage` says of its failures, from `error_type` on; times not known are that of death."""
    failure, attempts = read_failure(data, died_ms)
    return failure.type, failure.message, attempts, failure.first_ms, failure.last_ms


def _text(value: object) -> str:
    # half a pair of surrogates can stand in JSON, but be neither printed nor sent
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else ""


def _whole(value: object, otherwise: int) -> int:
    """Return a whole number that Lua has written as a number or as text."""
    try:
        number = int(value) if isinstance(value, (int, float, str)) and len(str(value)) < 32 else -1
    except (ValueError, OverflowError):
        return otherwise
    return number if 0 <= number < _MOST else otherwise
