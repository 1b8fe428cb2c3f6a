"""How many handlers of a listener may run in parallel, found from how long they take and how often they fail. Pure.

Additive increase, multiplicative decrease, as TCP does with its window. Too much is known by two signs: messages take
`tolerance` times as long as they do at their best, or more than `failures` of them fail. Where even the fewest handlers
fail, there are pauses between them.

A window may be long beside calls that fail at once. So calls that fail one after the other are counted as well: as
soon as their number is no chance any more, only the fewest handlers are left, and the first pause begins. Nor do
messages die of a downstream that is down: see `FailuresInARow`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf, log
from statistics import median

from rmq._model.checks import is_number
from rmq._model.display import brief
from rmq.errors import InvalidValueError

NOISE_S = 0.005
"""Differences below this are the scheduler's, not the downstream's."""

FORGET_S = 600.0
"""How slowly a downstream that stays slow becomes what is normal."""

SURE = 20
"""So many messages in a window are believed at once when they are quicker than ever; fewer only in part."""

STEPS = 20
"""From nothing to the most in so many good windows."""

CHANCE, LEAST_IN_A_ROW = 1e-5, 5
"""So many failures in a row are no chance: with the share of them that is borne they would be as rare as this."""

LONGEST_SPARED_S = 600.0
"""A message that failed while the downstream was down comes again after so long at most."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """How a listener finds the number of its handlers.

    Args:
        least: Fewest handlers in parallel, 1 or more; `threads` of the listener are the most.
        tolerance: How many times their usual time handlers may take, more than 1.
        failures: Which share of them may fail, 0 up to 1.
        window_s: How often the number is decided anew, in seconds, more than 0. Calls that only fail do not wait for
            it: five in a row are enough, more where `failures` allows more than a tenth.
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
        if not is_number(self.tolerance) or not self.tolerance > 1:
            raise InvalidValueError(f"tolerance is {brief(self.tolerance)}; it must be more than 1")
        if not is_number(self.failures) or not 0 <= self.failures < 1:
            raise InvalidValueError(f"failures is {brief(self.failures)}; it must be from 0 up to 1")
        numbers = is_number(self.window_s) and is_number(self.longest_pause_s)
        if not numbers or not 0 < self.window_s <= self.longest_pause_s < float("inf"):
            raise InvalidValueError(
                f"window_s is {brief(self.window_s)} and longest_pause_s {brief(self.longest_pause_s)}; window_s must "
                "be more than 0, and longest_pause_s no less"
            )


class FailuresInARow:
    """Calls that failed one after the other, with none between that did its work: is it the messages' fault? Pure.

    Where different messages fail, the downstream is down, and none of them shall die of it. A message that fails alone
    while others do their work uses up its retries as ever. One of which only failures in this row are known gets once
    the time to be compared with others, before it dies.

    Attributes:
        number: How many calls have failed since one did its work.
    """

    def __init__(self) -> None:
        self.number = 0
        self._since_s = 0.0
        self._first: bytes | None = None
        self._alike = False
        self._compared = False

    def failed(self, names: Iterable[bytes], now_s: float) -> None:
        """Learn that a call has failed, with what names its messages."""
        if not self.number:
            self._since_s, self._first, self._alike, self._compared = now_s, None, False, False
        self.number += 1
        for name in names:
            self._first = name if self._first is None else self._first
            self._alike = self._alike or name != self._first

    def worked(self) -> None:
        """Learn that a call has done its work."""
        self.number = 0

    def retry_free_delay_s(self, attempt: int, retries_left: int, down: bool, now_s: float) -> float | None:
        """Return after how long a message that has failed comes again without a retry used up; `None`: it uses one up.

        That is as long as the downstream is down already: so others are tried, too, even if several always fail.

        Args:
            attempt: Number of the delivery that has failed, 1 for the first.
            retries_left: Of the message; with 0 it would die.
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
        self._failures_in_a_row = FailuresInARow()
        self._no_chance = max(LEAST_IN_A_ROW, ceil(log(CHANCE, settings.failures) - 0.001) if settings.failures else 0)

    def allowed(self, now_s: float) -> int:
        """Return how many handlers may run now; 0 in a pause."""
        return 0 if now_s < self._paused_until_s else int(self._limit)

    @property
    def limit(self) -> int:
        """How many handlers may run, pauses aside."""
        return int(self._limit)

    def pause_s(self, now_s: float) -> float:
        """Return how long it still pauses, in seconds; 0 where it does not."""
        return max(0.0, self._paused_until_s - now_s)

    @property
    def one_at_a_time(self) -> bool:
        """Whether handlers fail even one at a time: no more than one message should be tried at once."""
        return self._pause_s > 0

    def began(self, running: int) -> None:
        """Learn that a handler began, and how many run now."""
        self._busiest = max(self._busiest, running)

    def ended(
        self, elapsed_s: float, failed: bool, now_s: float, began_s: float = inf, names: Iterable[bytes] = ()
    ) -> None:
        """Learn how long a handler took for a message, and whether it failed; decide at once where all of them fail.

        Args:
            elapsed_s: How long it took, for a message.
            failed: Whether it failed.
            now_s: The time.
            began_s: When it began: what began before the last pause says nothing that is not known.
            names: What names its messages.
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
        """Return after how long a message comes again whose call has just failed: see `FailuresInARow.retry_free_delay_s`."""
        retry_free_delay_s = self._failures_in_a_row.retry_free_delay_s(
            attempt, retries_left, self.one_at_a_time, now_s
        )
        return None if retry_free_delay_s is None else max(retry_free_delay_s, self._settings.window_s, self._pause_s)

    def decide(self, now_s: float, ages_s: Iterable[float] = ()) -> None:
        """Change the number, if a window has passed and something was seen in it.

        Args:
            now_s: The time.
            ages_s: How long the handlers have run that still run: those that hang never end.
        """
        tried = self.one_at_a_time and self._elapsed_s  # one try is enough to know that the pause goes on
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
