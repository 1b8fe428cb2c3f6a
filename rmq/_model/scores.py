"""Meaning of the scores in the sorted sets. Pure; the scripts in `lua/` follow the same rules.

| where | score |
|---|---|
| store, time topics | due ms |
| store, PRIORITY, ties `any` | priority, > max_retries |
| store, PRIORITY, ties `oldest` | priority x scale + what its age mark leaves of scale - 1: see `Ages` |
| store, after a rollback | retries left, 1 to max_retries |
| prepare | claim stamp x 1000 + retries left after this delivery |
| retry | due second x 1000 + retries left |

A claim stamp is Redis' time in ms, made unique: no two claims or renewals of a slot have the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

STAMP = 1000
"""Retries left lie below this; so `max_retries` is at most 999."""

MAX_SCORE = 2**53 - 1
"""Above this, not every whole number is a score."""

_EXPONENT = 10**17
"""From here on Redis tells a whole number with an exponent, Valkey in digits."""


def score_of(text: bytes) -> int:
    """Return a score as Redis tells it.

    What no script has written becomes the nearest whole number that one could have: a fraction is rounded up, as the
    scripts do, so that no time is early; an infinite or too large one becomes the largest.
    """
    try:
        number = int(text)
        if -_EXPONENT < number < _EXPONENT:  # a priority above all that can be sent stays what it is
            return number
    except ValueError:
        number = float(text)
    return math.ceil(max(-MAX_SCORE, min(number, MAX_SCORE)))


def scores_of(texts: Sequence[bytes]) -> list[int]:
    """Return scores as Redis tells them: see `score_of`."""
    try:
        return list(map(int, texts))
    except ValueError:
        return [score_of(text) for text in texts]


def stamped(stamp: int, retries_left: int) -> int:
    """Return a claim or retry score: stamp or second in the high digits, the retries left in the low three."""
    return stamp * STAMP + retries_left


def second_of(score: int) -> int:
    """Return the due second of a retry score."""
    return score // STAMP


def retries_left_of(score: int) -> int:
    """Return the retries left of a prepare or retry score."""
    return score % STAMP


def retries_left_after_claim(store_score: int, max_retries: int) -> int:
    """Return how many retries are left once a message with this store score is delivered.

    A fresh message has all of them; one that was rolled back carries its count as its score.
    """
    return max(0, store_score - 1) if store_score <= max_retries else max_retries


def lease_end_ms(claim_score: int, lease_ms: int) -> int:
    """Return the first millisecond in which a claim's lease has expired, by the clock of its slot: never early."""
    return claim_score // STAMP + lease_ms + 1


class Ties(Enum):
    """Which of equal priorities is delivered first.

    Examples:
        >>> Topic("jobs", TopicType.PRIORITY, ties=Ties.ANY).ties.value
        'any'
    """

    OLDEST = "oldest"
    """The one that was sent first; sending it again with the same priority keeps its turn."""
    ANY = "any"
    """Any, whatever the contents: priorities above `max_retries`, up to 2^53 - 1."""


@dataclass(frozen=True, slots=True)
class Ages:
    """Encoding of priorities in the scores of a PRIORITY topic, with ages if the oldest of equals is first.

    A score is `priority * scale + scale - 1 - mark`; the mark is the time of sending in whole units since 2025-01-01.
    Source: a score holds 53 bits exactly. What `max_priority` leaves of them has to last for 20 years.

    Attributes:
        scale: A power of two; 1 where a score is the priority, and says no age.
        unit_ms: Unit of the ages, ms.
        highest: The largest priority; a promoted message may have a score above it.
    """

    scale: int = 1
    unit_ms: int = 1
    highest: int = MAX_SCORE

    def mark_at(self, time_ms: float) -> int:
        """Return the age mark of a message sent at a time, epoch ms."""
        return max(0, min(int(time_ms - _AGES_FROM_MS) // self.unit_ms, self.scale - 1))

    def aged(self, priorities: Sequence[int], mark: int) -> list[int]:
        """Return the scores of messages with these priorities and an age mark."""
        scale, left = self.scale, self.scale - 1 - mark
        return [priority * scale + left for priority in priorities]

    def priority_of(self, score: int) -> int:
        """Return the priority in a store score that is not of a rollback: one that a message may be sent with."""
        return min(score // self.scale, self.highest)

    def sent_ms(self, score: int) -> int | None:
        """Return the time of sending in such a score, epoch ms in whole units; `None` where it says none."""
        if self.scale == 1 or not self.scale <= score < (self.highest + 1) * self.scale:
            return None
        return _AGES_FROM_MS + (self.scale - 1 - score % self.scale) * self.unit_ms


MAX_AGED_PRIORITY = 2**23 - 1
"""The largest `max_priority`: beyond, ages of 20 years have units above a second."""

_AGES_LAST_MS = 20 * 365 * 86_400_000
_AGES_FROM_MS = 1_735_689_600_000


@cache
def ages_for(max_priority: int | None) -> Ages:
    """Return how scores hold priorities up to a largest one, and ages in the finest unit of 1 ms to 1 s that lasts.

    `None`, for topics that are not PRIORITY or whose ties are `any`: without ages.
    """
    if max_priority is None:
        return Ages()
    scale = 2**53 >> max_priority.bit_length()
    unit_ms = next((unit for unit in (1, 10, 100) if scale * unit >= _AGES_LAST_MS), 1000)
    return Ages(scale, unit_ms, max_priority)
