"""How many handlers of a listener may run in parallel, found from how long they take and how often they fail. Pure.

Additive increase, multiplicative decrease, as TCP does with its window. Too much is known by two signs: messages take
`tolerance` times as long as they do at their best, or more than `failures` of them fail. Where even the fewest handlers
fail, there are pauses between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from rmq.errors import InvalidValueError

NOISE_S = 0.005
"""Differences below this are the scheduler's, not the downstream's."""

FORGET_S = 600.0
"""How slowly a downstream that stays slow becomes what is normal."""

SURE = 20
"""So many messages in a window are believed at once when they are quicker than ever; fewer only in part."""

STEPS = 20
"""From nothing to the most in so many good windows."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """How a listener finds the number of its handlers.

    Args:
        least: Fewest handlers in parallel, 1 or more; `threads` of the listener are the most.
        tolerance: How many times their usual time handlers may take, more than 1.
        failures: Which share of them may fail, 0 up to 1.
        window_s: How often the number is decided anew, in seconds, more than 0.
        longest_pause_s: Longest pause between two tries where everything fails, in seconds, from `window_s`.

    Raises:
        InvalidValueError: A value out of range.

    Source: AIMD as in TCP congestion control; latency against its best as in TCP Vegas and Netflix concurrency-limits.

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
            raise InvalidValueError(f"least is {self.least!r}; it must be a whole number from 1")
        if not self.tolerance > 1:
            raise InvalidValueError(f"tolerance is {self.tolerance!r}; it must be more than 1")
        if not 0 <= self.failures < 1:
            raise InvalidValueError(f"failures is {self.failures!r}; it must be from 0 up to 1")
        if not 0 < self.window_s <= self.longest_pause_s < float("inf"):
            raise InvalidValueError("window_s must be more than 0, and longest_pause_s no less")


class AdaptiveLimit:
    """The number of handlers, window by window. Not thread-safe; times are those of one monotonic clock, in seconds.

    Args:
        settings: When it is too much.
        most: Most handlers in parallel.
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

    def allowed(self, now_s: float) -> int:
        """Return how many handlers may run now; 0 in a pause."""
        return 0 if now_s < self._paused_until_s else int(self._limit)

    @property
    def careful(self) -> bool:
        """Whether handlers fail even one at a time: no more than one message should be tried at once."""
        return self._pause_s > 0

    def began(self, running: int) -> None:
        """Learn that a handler began, and how many run now."""
        self._busiest = max(self._busiest, running)

    def ended(self, elapsed_s: float, failed: bool) -> None:
        """Learn how long a handler took for a message, and whether it failed."""
        self._elapsed_s.append(elapsed_s)
        self._failed += failed

    def decide(self, now_s: float, ages_s: Iterable[float] = ()) -> None:
        """Change the number, if a window has passed and something was seen in it.

        Args:
            now_s: The time.
            ages_s: How long the handlers have run that still run: those that hang never end.
        """
        tried = self.careful and self._elapsed_s  # one try is enough to know that the pause goes on
        if now_s - self._window_s < self._settings.window_s and not tried:
            return
        seen = self._elapsed_s + [age_s for age_s in ages_s if self._is_slow(age_s)]
        if seen:
            self._take_window(seen, now_s)
        self._window_s = now_s
        self._elapsed_s, self._failed, self._busiest = [], 0, 0

    def _take_window(self, seen: list[float], now_s: float) -> None:
        usual_s = median(seen)
        failing = self._failed > self._settings.failures * len(seen)
        if failing or self._is_slow(usual_s):
            if failing and self._limit <= self._least:
                self._pause_s = min(self._settings.longest_pause_s, max(self._settings.window_s, 2 * self._pause_s))
                self._paused_until_s = now_s + self._pause_s
            self._limit = max(self._least, self._limit / 2)
            self._starting = False
        else:
            self._pause_s = 0.0
            if 2 * self._busiest >= self._limit:  # what nobody uses says nothing about what would be too much
                step = self._limit if self._starting else max(1.0, self._most / STEPS)
                self._limit = min(self._most, self._limit + step)
        if not failing:  # an error is often quick
            self._learn(usual_s, len(seen), now_s - self._window_s)

    def _is_slow(self, elapsed_s: float) -> bool:
        best_s = self._best_s
        return best_s is not None and elapsed_s > max(self._settings.tolerance * best_s, best_s + NOISE_S)

    def _learn(self, usual_s: float, seen: int, window_s: float) -> None:
        best_s = self._best_s
        if best_s is None:
            self._best_s = usual_s
        elif usual_s < best_s:  # a single message with nothing to do must not make all others look slow
            self._best_s = best_s + (usual_s - best_s) * min(1.0, seen / SURE)
        else:
            self._best_s = best_s + (usual_s - best_s) * min(1.0, window_s / FORGET_S)
