"""How long handlers take, in counts that can be added up over threads and workers; and those that run. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

BUCKETS = 160
"""Classes of durations; four a doubling, from 1 µs to two weeks."""

_PER_DOUBLING = 4
_MOST_COUNT = 2**53


@dataclass(frozen=True, slots=True)
class RunningHandler:
    """A call of a handler that runs.

    Attributes:
        slot: Of its message; of the first one, where it got several.
        content: Of its message, harmless for terminals and at most 100 characters; empty where it got columns.
        messages: How many it got.
        running_ms: For how long it runs, ms.
        hung: Whether it has run for longer than the listener's `timeout`, and was given up.

    Examples:
        >>> [each.running for worker in client.workers() for each in worker.listeners]  # nobody listens
        []
    """

    slot: int
    content: str
    messages: int
    running_ms: int
    hung: bool = False


@dataclass(frozen=True, slots=True)
class HandlerTimes:
    """How long calls of a handler took, counted by duration: four classes a doubling. Those of workers can be added.

    Attributes:
        counts: Class -> calls in it, the quickest first; classes without a call are left out.

    Examples:
        >>> times = HandlerTimes()
        >>> times.count, times.quantile_ms(0.99)
        (0, None)
    """

    counts: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """How many calls were counted."""
        return sum(count for _, count in self.counts)

    def quantile_ms(self, quantile: float) -> float | None:
        """Return the duration that a share of the calls did not exceed, ms, to within a tenth; `None` without calls.

        Args:
            quantile: The share: 0.5 for the median, 0.99 for the slowest hundredth.
        """
        left = max(1, math.ceil(quantile * self.count))
        for number, count in self.counts:
            left -= count
            if left <= 0:
                return 2 ** ((number + 0.5) / _PER_DOUBLING) / 1_000
        return None

    def __add__(self, other: HandlerTimes) -> HandlerTimes:
        return self.summed([self, other])

    @classmethod
    def summed(cls, parts: Iterable[HandlerTimes]) -> HandlerTimes:
        """Return all of them as one."""
        sums = [0] * BUCKETS
        for part in parts:
            for number, count in part.counts:
                sums[number] += count
        return cls.of(sums)

    @classmethod
    def of(cls, counts: Sequence[int]) -> HandlerTimes:
        """Return the times of counts by class, one for each of `BUCKETS`."""
        return cls(tuple((number, count) for number, count in enumerate(counts) if count > 0))

    def to_json(self) -> dict[str, int]:
        """Return it as it is kept."""
        return {str(number): count for number, count in self.counts}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> HandlerTimes:
        """Rebuild it; a ValueError or TypeError where it is none."""
        counts = [0] * BUCKETS
        for key, count in value.items():
            number = int(key)
            if not 0 <= number < BUCKETS or not isinstance(count, int) or not 0 <= count < _MOST_COUNT:
                raise ValueError(f"{key[:20]}: {str(count)[:20]} is no count of calls")
            counts[number] = count
        return cls.of(counts)


NO_TIMES = HandlerTimes()


class TimesCounter:
    """Counts durations; one thread notes, any may read.

    Attributes:
        counts: How many durations fell into each class, since it was made.
    """

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS

    def note(self, elapsed_s: float) -> None:
        """Count a duration."""
        micros = elapsed_s * 1e6
        self.counts[min(BUCKETS - 1, int(_PER_DOUBLING * math.log2(micros))) if micros > 1 else 0] += 1
