"""Adjusts the number of parallel handlers of a listener to their duration and failure rate. Pure.

The algorithm is additive increase, multiplicative decrease, as for TCP's congestion window. The downstream counts as
overloaded if messages take `tolerance` times as long as at their best, or if more than `failures` of them fail. If even
the minimum number of handlers fails, there are pauses between calls.

Calls may fail much faster than a window ends. So failures in a row are counted as well: once there are too many to be
random, the number drops to the minimum and the first pause begins. Messages do not die because a downstream is down:
see `FailuresInARow`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf, log
from statistics import median

from rmq._model.display import brief
from rmq._model.settings import is_number
from rmq.errors import InvalidValueError

NOISE_S = 0.005
"""Differences below this are attributed to the scheduler, not to the downstream."""

FORGET_S = 600.0
"""Time constant with which a lasting slower duration becomes the normal one."""

SURE = 20
"""Number of messages in a window that fully establish a new best duration; fewer change it in proportion."""

STEPS = 20
"""Number of good windows in which the limit rises from zero to the maximum."""

CHANCE, LEAST_IN_A_ROW = 1e-5, 5
"""Probability below which a run of failures is not considered random, and the minimum length of such a run."""

LONGEST_SPARED_S = 600.0
"""Maximum delay of a message that failed while the downstream was down."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Settings of a listener that adapts its number of parallel handlers.

    Args:
        least: Minimum number of parallel handlers, 1 or more; the maximum is `threads` of the listener.
        tolerance: Factor of the best duration above which the downstream counts as overloaded; more than 1.
        failures: Tolerated share of failing messages, from 0 to below 1.
        window_s: Interval between adjustments in seconds, more than 0. Five failures in a row (more if `failures` is
            above 0.1) reduce the number to `least` at once.
        longest_pause_s: Maximum pause between two calls if all calls fail, in seconds; at least `window_s`.

    Raises:
        InvalidValueError: A value is out of range.

    Source: AIMD as in TCP congestion control; durations compared with the best one as in TCP Vegas and
        Netflix' concurrency-limits.

    Examples:
        >>> @client.listener(Topic("pictures", TopicType.PRIORITY), threads=32, adaptive=Adaptive(least=2))
        ... def draw(delivery): ...
    """

    least: int = 1
    tolerance: float = 2.0
    failures: float = 0.1
    window_s: float = 0.5
    longest_pause_s: float = 5.0

    def __post_init__(self) -> None:
        if type(self.least) is not int or self.least < 1:
            raise InvalidValueError(f"least is {self.least!r}; it must be a whole number of 1 or more")
        if not is_number(self.tolerance) or not self.tolerance > 1:
            raise InvalidValueError(f"tolerance is {brief(self.tolerance)}; it must be more than 1")
        if not is_number(self.failures) or not 0 <= self.failures < 1:
            raise InvalidValueError(f"failures is {brief(self.failures)}; it must be at least 0 and less than 1")
        numbers = is_number(self.window_s) and is_number(self.longest_pause_s)
        if not numbers or not 0 < self.window_s <= self.longest_pause_s < float("inf"):
            raise InvalidValueError(
                f"window_s is {brief(self.window_s)} and longest_pause_s {brief(self.longest_pause_s)}; both must be "
                "finite, window_s more than 0, and longest_pause_s at least window_s"
            )


class FailuresInARow:
    """A run of failed calls without a success. Decides whether the messages or the downstream are the cause. Pure.

    If different messages fail, the downstream is down, and the messages keep their retries. A message that fails while
    others succeed uses up its retries as usual. If the run has only one message, it is delayed once before it dies, so
    that others can be tried for comparison.

    Attributes:
        number: Number of failed calls since the last success.
    """

    def __init__(self) -> None:
        self.number = 0
        self._since_s = 0.0
        self._first: bytes | None = None
        self._alike = False
        self._compared = False

    def failed(self, names: Iterable[bytes], now_s: float) -> None:
        """Record a failed call, with the names of its messages."""
        if not self.number:
            self._since_s, self._first, self._alike, self._compared = now_s, None, False, False
        self.number += 1
        for name in names:
            self._first = name if self._first is None else self._first
            self._alike = self._alike or name != self._first

    def worked(self) -> None:
        """Record a successful call."""
        self.number = 0

    def retry_free_delay_s(self, attempt: int, retries_left: int, down: bool, now_s: float) -> float | None:
        """Return the delay of a failed message that keeps its retry, in seconds; `None` if it uses up a retry.

        The delay is the time for which the downstream has been down, so that other messages are tried meanwhile.

        Args:
            attempt: Number of the failed delivery, from 1.
            retries_left: Retries left of the message; with 0 it would die.
            down: Whether the downstream is known to be down.
            now_s: The time.
        """
        if self.number < 2 or (retries_left and not (down and self._alike)):
            return None
        if not self._alike:
            if self._compared or attempt > self.number:
                return None
            self._compared = True
        return min(LONGEST_SPARED_S, now_s - self._since_s)


class AdaptiveLimit:
    """The limit of parallel handlers, adjusted after each window. Not thread-safe; times are monotonic seconds.

    Args:
        settings: The settings.
        most: Maximum number of parallel handlers.
        now_s: The time.
    """

    def __init__(self, settings: Adaptive, most: int, now_s: float) -> None:
        self._settings = settings
        self._most = most
        self._least = min(settings.least, most)
        self._limit = float(self._least)
        self._best_s: float | None = None
        self._pause_s = 0.0
        self._paused_until_s = now_s
        self._starting = True
        self._window_s = now_s
        self._elapsed_s: list[float] = []
        self._failed = 0
        self._busiest = 0
        self._failures_in_a_row = FailuresInARow()
        self._no_chance = max(LEAST_IN_A_ROW, ceil(log(CHANCE, settings.failures) - 0.001) if settings.failures else 0)

    def allowed(self, now_s: float) -> int:
        """Return the number of handlers that may run now; 0 during a pause."""
        return 0 if now_s < self._paused_until_s else int(self._limit)

    @property
    def limit(self) -> int:
        """Number of handlers that may run outside pauses."""
        return int(self._limit)

    def pause_s(self, now_s: float) -> float:
        """Return the seconds left of the pause; 0 outside pauses."""
        return max(0.0, self._paused_until_s - now_s)

    @property
    def one_at_a_time(self) -> bool:
        """True while the downstream seems to be down, so that only one message should be tried at a time."""
        return self._pause_s > 0

    def began(self, running: int) -> None:
        """Record that a handler started, and how many run now."""
        self._busiest = max(self._busiest, running)

    def ended(
        self, elapsed_s: float, failed: bool, now_s: float, began_s: float = inf, names: Iterable[bytes] = ()
    ) -> None:
        """Record the duration of a handler and whether it failed; adjust the limit at once if all calls fail.

        Args:
            elapsed_s: Its duration per message.
            failed: Whether it failed.
            now_s: The time.
            began_s: Its start. Calls that started before the last pause are ignored during the recovery.
            names: Names of its messages.
        """
        if failed:
            self._failures_in_a_row.failed(names, now_s)
        if self.one_at_a_time and began_s < self._paused_until_s:
            return
        self._elapsed_s.append(elapsed_s)
        self._failed += failed
        if not failed:
            self._failures_in_a_row.worked()
        elif self._failures_in_a_row.number >= self._no_chance and not self.one_at_a_time:
            self._pause(now_s)
            self._limit, self._starting = float(self._least), False
            self._begin_window(now_s)
        if self.one_at_a_time:
            self.decide(now_s)

    def retry_free_delay_s(self, attempt: int, retries_left: int, now_s: float) -> float | None:
        """Return the delay of a failed message that keeps its retry; see `FailuresInARow.retry_free_delay_s`."""
        retry_free_delay_s = self._failures_in_a_row.retry_free_delay_s(
            attempt, retries_left, self.one_at_a_time, now_s
        )
        return None if retry_free_delay_s is None else max(retry_free_delay_s, self._settings.window_s, self._pause_s)

    def decide(self, now_s: float, ages_s: Iterable[float] = ()) -> None:
        """Adjust the limit once a window with measurements has passed.

        Args:
            now_s: The time.
            ages_s: Durations so far of the running handlers, since hung handlers never end.
        """
        tried = self.one_at_a_time and self._elapsed_s  # one attempt decides whether the pause continues
        if now_s - self._window_s < self._settings.window_s and not tried:
            return
        seen = self._elapsed_s + [age_s for age_s in ages_s if self._is_slow(age_s)]
        if seen:
            self._take_window(seen, now_s)
        self._begin_window(now_s)

    def _begin_window(self, now_s: float) -> None:
        self._window_s = now_s
        self._elapsed_s, self._failed, self._busiest = [], 0, 0

    def _pause(self, now_s: float) -> None:
        self._pause_s = min(self._settings.longest_pause_s, max(self._settings.window_s, 2 * self._pause_s))
        self._paused_until_s = now_s + self._pause_s

    def _take_window(self, seen: list[float], now_s: float) -> None:
        usual_s = median(seen)
        failing = self._failed > self._settings.failures * len(seen)
        if failing or self._is_slow(usual_s):
            if failing and self._limit <= self._least:
                self._pause(now_s)
            self._limit = max(self._least, self._limit / 2)
            self._starting = False
        else:
            self._pause_s = 0.0
            if 2 * self._busiest >= self._limit:  # an unused limit proves nothing about a higher one
                step = self._limit if self._starting else max(1.0, self._most / STEPS)
                self._limit = min(self._most, self._limit + step)
        if not failing:  # failed calls are often quick
            self._learn(usual_s, len(seen), now_s - self._window_s)

    def _is_slow(self, elapsed_s: float) -> bool:
        best_s = self._best_s
        return best_s is not None and elapsed_s > max(self._settings.tolerance * best_s, best_s + NOISE_S)

    def _learn(self, usual_s: float, seen: int, window_s: float) -> None:
        best_s = self._best_s
        if best_s is None:
            self._best_s = usual_s
        elif usual_s < best_s:  # a single trivial message must not make all others look slow
            self._best_s = best_s + (usual_s - best_s) * min(1.0, seen / SURE)
        else:
            self._best_s = best_s + (usual_s - best_s) * min(1.0, window_s / FORGET_S)
