"""Retry policies, which set the delay before a retry, and the error by which a handler pauses its topic. Pure."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, cast

from rmq._model.settings import kind_json_of, kind_of
from rmq._model.times import Duration, duration_ms, duration_text
from rmq.errors import InvalidValueError

LADDER_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds of the 16 steps. Source: RocketMQ's `messageDelayLevel`, from its third level on."""


class RetryPolicy(Protocol):
    """Determines the delay before a retry; part of a topic's definition, so that every process agrees on it.

    A topic takes an `ImmediateRetry`, `ExponentialRetry` or `LadderRetry`, and no other class.

    Examples:
        >>> policy: RetryPolicy = LadderRetry()
        >>> [policy.delay_ms(attempt, jitter=0.0) // 1_000 for attempt in (1, 2, 3)]
        [10, 30, 60]
    """

    def delay_ms(self, attempt: int, jitter: float) -> int:
        """Return the delay before the retry, in ms; 0 for an immediate retry.

        Args:
            attempt: Number of the delivery that failed, from 1.
            jitter: A random number in [0, 1), which the caller draws so that the method is pure.
        """
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the policy as plain JSON values, for the topic's definition."""
        ...


class _Stored:
    """A policy that a topic's definition stores with its settings, which `POLICIES` names."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return kind_json_of(POLICIES, self, "policy")


@dataclass(frozen=True, slots=True)
class ImmediateRetry(_Stored):
    """A policy without delay: a failed message returns to the backlog at once.

    On PRIORITY topics it is delivered after all messages with a priority; on RANGE_MERGE and FIXED_TIME topics, before
    all messages with a due time.

    Examples:
        >>> Topic("jobs", TopicType.PRIORITY, retry=ImmediateRetry()).retry.delay_ms(attempt=1, jitter=0.5)
        0
    """

    def delay_ms(self, attempt: int, jitter: float) -> int:
        del attempt, jitter
        return 0


@dataclass(frozen=True, slots=True, init=False, repr=False)
class ExponentialRetry(_Stored):
    """Delays that double, with jitter: after failure n, between half and all of `base` x 2^(n-1), at most `cap`.

    Args:
        base: Longest delay after the first failure: a `timedelta` or a text such as "1s", the default.
        cap: Longest delay after any failure, by default "10m".

    Raises:
        InvalidValueError: `base` or `cap` is not a duration, `base` is 0, or `base` is above `cap`.

    Source: "equal jitter" in M. Brooker, Exponential Backoff And Jitter (AWS Architecture Blog, 2015).

    Examples:
        >>> retry = ExponentialRetry(base="1s", cap="5s")
        >>> [retry.delay_ms(attempt, jitter=0.0) for attempt in (1, 2, 3, 4)]
        [500, 1000, 2000, 2500]
    """

    base_ms: int
    cap_ms: int

    def __init__(self, base: Duration = timedelta(seconds=1), cap: Duration = timedelta(minutes=10)) -> None:
        object.__setattr__(self, "base_ms", duration_ms(base, "base of ExponentialRetry"))
        object.__setattr__(self, "cap_ms", duration_ms(cap, "cap of ExponentialRetry"))
        if not 0 < self.base_ms <= self.cap_ms:
            raise InvalidValueError(f"base is {base!r} and cap is {cap!r}; ExponentialRetry needs 0 < base <= cap")

    def delay_ms(self, attempt: int, jitter: float) -> int:
        full = min(self.cap_ms, self.base_ms * 2 ** min(attempt - 1, 62))
        return full // 2 + int((full - full // 2) * jitter)

    def __repr__(self) -> str:
        return f"ExponentialRetry(base='{duration_text(self.base_ms)}', cap='{duration_text(self.cap_ms)}')"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class LadderRetry(_Stored):
    """Fixed delays, by default the 16 of RocketMQ, from 10 s to 2 h; the last one repeats.

    Args:
        steps: Delays after the first, second, ... failure, at least one: each a `timedelta` or a text such as "30s", in
            whole seconds, 0 or more.

    Raises:
        InvalidValueError: `steps` is not a tuple or list, or is empty, or a step is not a duration in whole seconds.

    Examples:
        >>> retry = LadderRetry(("5s", "1m", "1h"))
        >>> [retry.delay_ms(attempt, jitter=0.0) // 1_000 for attempt in (1, 2, 3, 4)]
        [5, 60, 3600, 3600]
    """

    steps_s: tuple[int, ...]

    def __init__(self, steps: Sequence[Duration] | None = None) -> None:
        if steps is not None and not isinstance(steps, tuple | list):
            raise InvalidValueError(f"steps of LadderRetry is {steps!r}; it must be a tuple such as ('10s', '1m')")
        object.__setattr__(self, "steps_s", LADDER_S if steps is None else tuple(map(_step_s, steps)))
        if not self.steps_s:
            raise InvalidValueError("steps of LadderRetry is empty; it needs at least one step")

    def delay_ms(self, attempt: int, jitter: float) -> int:
        del jitter
        return self.steps_s[min(attempt, len(self.steps_s)) - 1] * 1000

    def __repr__(self) -> str:
        return f"LadderRetry(({', '.join(repr(duration_text(step_s * 1000)) for step_s in self.steps_s)},))"


def _step_s(step: Duration) -> int:
    step_ms = duration_ms(step, "a step of LadderRetry")
    if step_ms % 1000:
        raise InvalidValueError(f"a step of LadderRetry is {step!r}; it must be whole seconds")
    return step_ms // 1000


POLICIES: dict[str, type[RetryPolicy]] = {
    "immediate": ImmediateRetry, "exponential": ExponentialRetry, "ladder": LadderRetry,
}  # fmt: skip


def retry_from_json(value: dict[str, Any]) -> RetryPolicy:
    """Rebuild a policy from a topic's definition."""
    return kind_of(POLICIES, value, "retry policy", "policy")


CHANCE = random.Random()  # noqa: S311 - spreads load, keeps no secret
"""The library's own generator: it draws in threads, and would disturb a program that seeds the global one."""
os.register_at_fork(after_in_child=CHANCE.seed)


def draw_jitter() -> float:
    """Return a random number in [0, 1) for `RetryPolicy.delay_ms`."""
    return CHANCE.random()


LONGEST_MS = 24 * 3600 * 1000


class RetryAfterError(Exception):
    """Raised by a listener's handler to pause its topic for a while without using up a retry.

    The messages of the call that have no outcome yet are returned unchanged. The listener claims nothing from the topic
    for this time; other running calls of its handler finish as usual. Other listeners and processes continue.

    Args:
        delay: Length of the pause, up to a day: a `timedelta`, or a text such as `30s`.
        reason: Reason, for the log.

    Raises:
        InvalidValueError: `delay` is not a duration, is negative, or is longer than a day.

    Attributes:
        delay_ms: Length of the pause, ms.

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
