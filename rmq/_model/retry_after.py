"""What a handler raises where its downstream takes nothing for a while."""

from __future__ import annotations

from typing import cast

from rmq._model.times import Duration, duration_ms
from rmq.errors import InvalidValueError

LONGEST_MS = 24 * 3600 * 1000


class RetryAfterError(Exception):
    """Raised by a handler of a listener: hold the topic back for a while, without using up a retry.

    The messages of the call that have no outcome yet go back as they were. The listener claims nothing from the topic
    for this time; calls of its handler that run meanwhile end as usual. Other listeners, and other processes, go on.

    Args:
        delay: How long, up to a day: a `timedelta`, or a text such as `30s`.
        reason: Why, for the log.

    Raises:
        InvalidValueError: `delay` is neither, negative, or longer than a day.

    Attributes:
        delay_ms: How long, ms.

    Examples:
        >>> RetryAfterError("1m30s", "429 Too Many Requests").delay_ms
        90000
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        self.delay_ms = duration_ms(delay, "delay")
        if self.delay_ms > LONGEST_MS:
            raise InvalidValueError(f"delay is {delay!r:.100}; it must be at most a day")
        super().__init__(reason or f"retry after {self.delay_ms / 1000:g} s")


RetryAfterError.__module__ = "rmq"  # where users import it from


def retry_after_ms(error: BaseException) -> int | None:
    """Return the delay of a `RetryAfterError`, ms; `None` for another error.

    `isinstance` would read the error's `__class__`, which may be a property that raises.
    """
    return cast("RetryAfterError", error).delay_ms if issubclass(type(error), RetryAfterError) else None
