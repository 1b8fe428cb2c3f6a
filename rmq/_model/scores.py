"""What the scores of the sorted sets mean. Pure; the scripts in `lua/` follow the same rules.

| where | score |
|---|---|
| store, time topics | due ms |
| store, PRIORITY | priority, > max_retries |
| store, after a rollback | retries left, 1 to max_retries |
| prepare | claim stamp x 1000 + retries left after this delivery |
| retry | due second x 1000 + retries left |

A claim stamp is Redis' time in ms, made unique: no two claims or renewals of a slot have the same. In a release before,
it was the second; such a claim score lies below `FIRST_MS_SCORE`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

STAMP = 1000
"""Retries left lie below this; so `max_retries` is at most 999."""

MAX_SCORE = 2**53 - 1
"""Above this, not every whole number is a score."""

_EXPONENT = 10**17
"""From here on Redis tells a whole number with an exponent, Valkey in digits."""

FIRST_MS_SCORE = 10**14
"""Claim scores below this have whole seconds in their high digits, those above milliseconds."""


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
    """Return the first millisecond in which a claim's lease has expired, by the clock of its slot: never early.

    A claim of a release before ends with a whole second, up to a second late.
    """
    stamp = claim_score // STAMP
    if claim_score < FIRST_MS_SCORE:
        return (stamp + -(-lease_ms // 1000) + 1) * 1000
    return stamp + lease_ms + 1
