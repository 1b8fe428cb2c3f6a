"""Log records as JSON lines, with the message they are about.

Text from messages is escaped and shortened, so that control characters in it cannot affect a terminal or log parser.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from rmq._io.observers import Observer
from rmq._model.deliveries import Delivery
from rmq._model.display import safe_lines, shown
from rmq._model.records import read_context

MOST_MESSAGE, MOST_TRACEBACK = 4_000, 16_000
"""Maximum lengths in characters."""

_handled: ContextVar[Sequence[Delivery]] = ContextVar("rmq_handled", default=())


def about(deliveries: Sequence[Delivery]) -> dict[str, Any]:
    """Return the `extra` of a log record about these deliveries."""
    return {"rmq_deliveries": tuple(deliveries)}


class LogContext(Observer):
    """Adds the message being handled to the log records of a handler: `client.observers.all.append(LogContext())`.

    Examples:
        >>> client.observers.all.append(LogContext())
    """

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Add these deliveries to the log records of this thread or task while the handler runs."""
        token = _handled.set(deliveries)
        try:
            yield
        finally:
            _handled.reset(token)


class JsonFormatter(logging.Formatter):
    """Formats each log record as one line of JSON in ASCII, with time, level, logger, message, process and thread.

    The message is cut after 4,000 characters; of a traceback, the last 16,000 are kept. A record about a delivery also
    has its topic, slot, content, attempt, fencing token and trace context.

    Examples:
        >>> import logging
        >>> handler = logging.StreamHandler()
        >>> handler.setFormatter(JsonFormatter())
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
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
    return fields | read_context(first.trace)
