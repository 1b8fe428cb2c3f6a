"""What the scores of the sorted sets mean. Pure; the scripts in `lua/` follow the same rules.

| where | score |
|---|---|
| store, time topics | due ms |
| store, PRIORITY | priority, > max_retries |
| store, after a rollback | retries left, 1 to max_retries |
| prepare | claim second x 1000 + retries left after this delivery |
| retry | due second x 1000 + retries left |
"""

from __future__ import annotations

STAMP = 1000
"""Retries left lie below this; so `max_retries` is at most 999."""


def stamped(second: int, retries_left: int) -> int:
    """Return a claim or retry score: the second in the high digits, the retries left in the low three."""
    return second * STAMP + retries_left


def second_of(score: int) -> int:
    """Return the claim or due second of a prepare or retry score."""
    return score // STAMP


def retries_left_of(score: int) -> int:
    """Return the retries left of a prepare or retry score."""
    return score % STAMP


def retries_left_after_claim(store_score: int, max_retries: int) -> int:
    """Return how many retries are left once a message with this store score is delivered.

    A fresh message has all of them; one that was rolled back carries its count as its score.
    """
    return store_score - 1 if store_score <= max_retries else max_retries


def lease_end_second(claim_second: int, lease_s: int) -> int:
    """Return the first whole second in which a claim's lease has expired: never early, up to a second late."""
    return claim_second + lease_s + 1
