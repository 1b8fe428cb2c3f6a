"""Windows: when the messages of a RANGE_MERGE topic with `merge=` are due. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from rmq._model.checks import check_flag
from rmq._model.times import Duration, duration_ms
from rmq.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Fixed:
    """Due `time_range` after the first send.

    Args:
        time_range: `timedelta` or ms, > 0, at most 100 years; a message may name another one.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> pictures = Topic("pictures", TopicType.RANGE_MERGE, merge=Merge(window=Fixed(timedelta(seconds=2))))
        >>> client.producer(pictures).send(RangeMergeMessage("mug")).new
        1
    """

    time_range: Duration

    def __post_init__(self) -> None:
        _set_duration(self, "time_range")

    @property
    def range_ms(self) -> int:
        """The time range, ms."""
        return duration_ms(self.time_range, "time_range")


@dataclass(frozen=True, slots=True)
class Sliding:
    """Due once nothing was sent for `quiet`, and at the latest `max_wait` after the first send.

    Args:
        quiet: `timedelta` or ms, > 0; a message may name another one. By default `max_wait`: so no send delays it.
        max_wait: `timedelta` or ms, at least `quiet`, at most 100 years.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> calm = Sliding(quiet=timedelta(seconds=1), max_wait=timedelta(seconds=10))
        >>> pushes = Topic("pushes", TopicType.RANGE_MERGE, merge=Merge(Replace(), window=calm))
        >>> client.producer(pushes).send(RangeMergeMessage("repository", body="a1f")).new
        1
    """

    quiet: Duration | None = None
    max_wait: Duration = field(kw_only=True)

    def __post_init__(self) -> None:
        _set_duration(self, "max_wait")
        if self.quiet is not None:
            _set_duration(self, "quiet")
        if self.range_ms > self.max_wait_ms:
            raise InvalidValueError(
                f"max_wait of Sliding is {self.max_wait_ms} ms; it must be at least quiet, which is {self.range_ms} ms"
            )

    @property
    def range_ms(self) -> int:
        """How long nothing may be sent, ms."""
        return duration_ms(self.max_wait if self.quiet is None else self.quiet, "quiet")

    @property
    def max_wait_ms(self) -> int:
        """The longest wait from the first send, ms."""
        return duration_ms(self.max_wait, "max_wait")


@dataclass(frozen=True, slots=True)
class Leading:
    """The first send is due at once; those within `time_range` after it wait for its end, or are dropped.

    Args:
        time_range: `timedelta` or ms, > 0, at most 100 years; a message may name another one.
        trailing: Deliver what was sent within the window at its end, where the next window begins; else drop it.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> alarms = Topic("alarms", TopicType.RANGE_MERGE, merge=Merge(window=Leading(60_000, trailing=False)))
        >>> _ = client.producer(alarms).send(RangeMergeMessage("disk full"))
        >>> [delivery.ack() for delivery in client.consumer(alarms).poll(timeout=5)]  # at once
        [True]
        >>> client.producer(alarms).send(RangeMergeMessage("disk full")).dropped
        1
    """

    time_range: Duration
    trailing: bool = True

    def __post_init__(self) -> None:
        _set_duration(self, "time_range")
        check_flag("trailing of Leading", self.trailing)

    @property
    def range_ms(self) -> int:
        """The time range, ms."""
        return duration_ms(self.time_range, "time_range")


Window: TypeAlias = Fixed | Sliding | Leading
"""When a merged message is due."""


def window_json(window: Window) -> dict[str, Any]:
    """Return a window as JSON values, for the topic's definition."""
    match window:
        case Fixed():
            return {"kind": "fixed", "time_range_ms": window.range_ms}
        case Leading():
            return {"kind": "leading", "time_range_ms": window.range_ms, "trailing": window.trailing}
        case Sliding():
            quiet = {} if window.quiet is None else {"quiet_ms": window.range_ms}
            return {"kind": "sliding", **quiet, "max_wait_ms": window.max_wait_ms}


def window_of(value: dict[str, Any]) -> Window:
    """Rebuild a window from a topic's definition."""
    match value.get("kind"):
        case "fixed":
            return Fixed(value["time_range_ms"])
        case "leading":
            return Leading(value["time_range_ms"], value["trailing"])
        case "sliding":
            return Sliding(value.get("quiet_ms"), max_wait=value["max_wait_ms"])
        case other:
            raise InvalidValueError(f"window {other!r} is unknown; known: fixed, sliding, leading")


def _set_duration(window: Window, name: str) -> None:
    value: Duration = getattr(window, name)
    what = f"{name} of {type(window).__name__}"
    if (value_ms := duration_ms(value, what)) == 0:
        raise InvalidValueError(f"{what} is {value!r}; it must be more than 0")
    object.__setattr__(window, name, timedelta(milliseconds=value_ms))
