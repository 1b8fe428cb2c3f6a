"""How long a stream topic keeps its entries. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rmq._model.times import Duration, duration_ms
from rmq.errors import InvalidValueError

_PLAIN = ("max_length", "shrink", "approximate", "unacked")
"""Settings that a definition has as they are."""


@dataclass(frozen=True, slots=True)
class Retention:
    """When entries of a stream topic are trimmed. Part of the topic's definition.

    Args:
        max_length: Most entries to keep in the topic, each slot an equal share, rounded up; `None` for no bound.
        max_age: How long to keep entries: a `timedelta` or a text such as "7d"; `None` for no bound.
        shrink: At each clean-up, drop what was there at the one before and keep what has arrived since.
        every: Time between two clean-ups of a slot: a `timedelta` or a text such as "1m", 1 s to 24 h. Listeners and
            polls do them.
        approximate: Drop whole nodes of Redis' stream only (`~`): cheaper, and keeps some more, usually under 100.
        unacked: Drop entries that a group has not acked, too. Without it they stay, whatever the bounds say.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> kept = Retention(max_length=100_000, max_age=timedelta(days=7))
        >>> Topic("clicks", TopicType.STREAM, retention=kept).retention.max_age_ms
        604800000
    """

    max_length: int | None = 1_000_000
    max_age: Duration | None = None
    shrink: bool = False
    every: Duration = timedelta(minutes=1)
    approximate: bool = True
    unacked: bool = False

    def __post_init__(self) -> None:
        if self.max_length is not None and (type(self.max_length) is not int or not 0 <= self.max_length < 2**53):
            raise InvalidValueError(
                f"max_length is {self.max_length!r}; it must be a whole number from 0 to 2^53 - 1, or None"
            )
        for name in ("shrink", "approximate", "unacked"):
            if type(value := getattr(self, name)) is not bool:
                raise InvalidValueError(f"{name} is {value!r}; it must be True or False")
        if self.max_age is not None:
            object.__setattr__(self, "max_age", timedelta(milliseconds=duration_ms(self.max_age, "max_age")))
        every_ms = duration_ms(self.every, "every")
        if not 1_000 <= every_ms <= 86_400_000:
            raise InvalidValueError(f"every is {self.every!r}; it must lie between 1 s and 24 h")
        object.__setattr__(self, "every", timedelta(milliseconds=every_ms))

    @property
    def every_ms(self) -> int:
        """Time between two clean-ups of a slot, ms."""
        return duration_ms(self.every, "every")

    @property
    def max_age_ms(self) -> int | None:
        """How long entries are kept, ms; `None` for no bound."""
        return None if self.max_age is None else duration_ms(self.max_age, "max_age")

    @property
    def bounded(self) -> bool:
        """Whether a clean-up can ever drop anything."""
        return self.max_length is not None or self.max_age is not None or self.shrink

    def max_length_of_slot(self, slots: int) -> int | None:
        """Return each slot's share of `max_length`, rounded up; `None` for no bound."""
        return None if self.max_length is None else -(-self.max_length // slots)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, for the topic's definition."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return plain | {"max_age_ms": self.max_age_ms, "every_ms": self.every_ms}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Retention:
        """Rebuild it from a topic's definition."""
        age_ms, every = value["max_age_ms"], timedelta(milliseconds=value["every_ms"])
        max_age = None if age_ms is None else timedelta(milliseconds=age_ms)
        return cls(max_age=max_age, every=every, **{name: value[name] for name in _PLAIN})
