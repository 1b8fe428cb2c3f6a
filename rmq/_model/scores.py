"""Meaning of the scores in the sorted sets. Pure; the scripts in `lua/` follow the same rules.

| where | score |
|---|---|
| store, time topics | due ms |
| store, PRIORITY, ties `any` | priority, > max_retries |
| store, PRIORITY, ties `oldest` | priority x scale + scale - 1 - age mark: see `Ages` |
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
"""The retries left are less than this, so `max_retries` is at most 999."""

MAX_SCORE = 2**53 - 1
"""Largest score up to which every whole number is exact in a double."""

_EXPONENT = 10**17
"""From this number on, Redis writes whole numbers with an exponent, Valkey with all digits."""


def score_of(text: bytes) -> int:
    """Parse a score as Redis returns it.

    A score that no script has written becomes the nearest whole number: a fraction is rounded up, as the scripts do, so
    that no time is early; an infinite or too large score becomes the largest.
    """
    try:
        number = int(text)
        if -_EXPONENT < number < _EXPONENT:  # a priority above all that can be sent stays what it is
            return number
    except ValueError:
        number = float(text)
    return math.ceil(max(-MAX_SCORE, min(number, MAX_SCORE)))


def scores_of(texts: Sequence[bytes]) -> list[int]:
    """Parse scores as Redis returns them: see `score_of`."""
    try:
        return list(map(int, texts))
    except ValueError:
        return [score_of(text) for text in texts]


def stamped(stamp: int, retries_left: int) -> int:
    """Return a claim or retry score: stamp or second in the high digits, the retries left in the low three."""
    return stamp * STAMP + retries_left


def stamp_of(score: int) -> int:
    """Return the stamp of a claim score, epoch ms or a little later, or the due second of a retry score."""
    return score // STAMP


def retries_left_of(score: int) -> int:
    """Return the retries left of a prepare or retry score."""
    return score % STAMP


def retries_left_after_claim(store_score: int, max_retries: int) -> int:
    """Return the retries left after the delivery of a message with this store score.

    A fresh message has all of them; one that was rolled back carries its count as its score.
    """
    return max(0, store_score - 1) if store_score <= max_retries else max_retries


def lease_end_ms(claim_score: int, lease_ms: int) -> int:
    """Return the first millisecond in which a claim's lease has expired, by the clock of its slot: never early."""
    return claim_score // STAMP + lease_ms + 1


class Ties(Enum):
    """Order of delivery among messages of equal priority.

    Examples:
        >>> Topic("jobs", TopicType.PRIORITY, ties=Ties.ANY).ties.value
        'any'
    """

    OLDEST = "oldest"
    """The message sent first is first; sending it again with the same priority keeps its place."""
    ANY = "any"
    """In no particular order; allows priorities above `max_retries`, up to 2^53 - 1."""


@dataclass(frozen=True, slots=True)
class Ages:
    """Encoding of priorities in the scores of a PRIORITY topic, with ages if the oldest of equals is first.

    A score is `priority * scale + scale - 1 - mark`; the mark is the time of sending in whole units since 2025-01-01.
    Source: a score holds 53 bits exactly. The bits that `max_priority` leaves have to last for 20 years.

    Attributes:
        scale: A power of two; 1 if a score is the priority and has no age.
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
        """Return the priority in a store score, at most `highest`; not for scores of a rollback."""
        return min(score // self.scale, self.highest)

    def sent_ms(self, score: int) -> int | None:
        """Return the time of sending in a store score, epoch ms in whole units; `None` if the score has no age."""
        if self.scale == 1 or not self.scale <= score < (self.highest + 1) * self.scale:
            return None
        return _AGES_FROM_MS + (self.scale - 1 - score % self.scale) * self.unit_ms


MAX_AGED_PRIORITY = 2**23 - 1
"""The largest `max_priority`: beyond, ages of 20 years have units above a second."""

_AGES_LAST_MS = 20 * 365 * 86_400_000
_AGES_FROM_MS = 1_735_689_600_000


@cache
def ages_for(max_priority: int | None) -> Ages:
    """Return the encoding of priorities up to `max_priority`, with the finest unit of age that lasts 20 years.

    `None` is for topics that are not PRIORITY or whose ties are `any`: their scores have no ages.
    """
    if max_priority is None:
        return Ages()
    scale = 2**53 >> max_priority.bit_length()
    unit_ms = next((unit for unit in (1, 10, 100) if scale * unit >= _AGES_LAST_MS), 1000)
    return Ages(scale, unit_ms, max_priority)
