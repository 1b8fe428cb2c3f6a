"""Log records as JSON lines, with what message they are about. Payloads are escaped and cut: no reader obeys them."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from rmq._model.deliveries import Delivery
from rmq._model.display import safe_lines, shown
from rmq._model.observers import Observer

MOST_MESSAGE, MOST_TRACEBACK = 4_000, 16_000
"""Characters kept."""

_handled: ContextVar[Sequence[Delivery]] = ContextVar("rmq_handled", default=())


def about(deliveries: Sequence[Delivery]) -> dict[str, Any]:
    """Return `extra` for a log record: what it is about."""
    return {"rmq_deliveries": tuple(deliveries)}


class LogContext(Observer):
    """Lets what a handler logs say which message it handles: `client.observers.all.append(LogContext())`.

    Examples:
        >>> client.observers.all.append(LogContext())
    """

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Note what is handled in this thread, or task."""
        token = _handled.set(deliveries)
        try:
            yield
        finally:
            _handled.reset(token)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, ASCII: time, level, logger, message, and of a delivery topic, slot, content, attempt.

    Examples:
        >>> import logging
        >>> handler = logging.StreamHandler()
        >>> handler.setFormatter(JsonFormatter())
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": shown(record.getMessage(), MOST_MESSAGE),
            "process": record.process,
            "thread": record.threadName,
        }
        deliveries: Sequence[Delivery] = getattr(record, "rmq_deliveries", None) or _handled.get()
        if deliveries:
            line |= _fields(deliveries)
        if record.exc_info:
            line["traceback"] = safe_lines(self.formatException(record.exc_info))[-MOST_TRACEBACK:]
        return json.dumps(line)


def _fields(deliveries: Sequence[Delivery]) -> dict[str, Any]:
    first = deliveries[0]
    fields: dict[str, Any] = {"topic": first.topic.name, "slot": first.slot, "content": shown(first.content)}
    fields |= {"attempt": first.attempt, "fencing_token": first.fencing_token}
    if len(deliveries) > 1:
        fields["deliveries"] = len(deliveries)
    if first.trace:
        fields["traceparent"] = first.trace
    return fields
