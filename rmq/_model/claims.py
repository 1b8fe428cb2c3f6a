"""Rows of claims, as consumers and listeners pass them on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rmq._model.deliveries import Claim, Delivery
from rmq._model.outcomes import Outcome


class Selection(NamedTuple):
    """Some rows of a claim."""

    claim: Claim
    rows: Sequence[int]

    def deliveries(self) -> list[Delivery]:
        """Return the deliveries of the rows."""
        return self.claim.deliveries(self.rows)


def select(deliveries: Iterable[Delivery]) -> list[Selection]:
    """Return the claims of deliveries with their rows, in the order of the deliveries; each row once."""
    rows: dict[Claim, dict[int, None]] = defaultdict(dict)
    for delivery in deliveries:
        rows[delivery.claim][delivery.row] = None
    return [Selection(claim, list(chosen)) for claim, chosen in rows.items()]


def mark(selections: Sequence[Selection], outcome: Outcome) -> None:
    """Give rows an outcome.

    Raises:
        AlreadySettledError: One of the rows was settled before; then no row has got the outcome.
    """
    for claim, rows in selections:
        if len(claim.open_rows(rows)) < len(rows):
            for delivery in claim.deliveries(rows):
                delivery.refuse_if_settled()
    for claim, rows in selections:
        for row in rows:
            claim.outcomes[row] = outcome


def settle_open(selections: Iterable[Selection], outcome: Outcome) -> None:
    """Give an outcome to those rows that have none yet."""
    for claim, rows in selections:
        outcomes = claim.outcomes
        for row in rows:
            if outcomes[row] is None:
                outcomes[row] = outcome


def deliveries_of(selections: Iterable[Selection]) -> list[Delivery]:
    """Return the deliveries of the selected rows."""
    return [
        claim.kind(claim, row, claim.rows.contents[row], claim.rows.bodies[row] if claim.rows.bodies else None)
        for claim, rows in selections
        for row in rows
    ]


def whole(claim: Claim) -> Selection:
    """Return all rows of a claim."""
    return Selection(claim, range(len(claim.outcomes)))


def bytes_of(selections: Iterable[Selection]) -> int:
    """Return the size of rows in bytes: contents, and bodies or items."""
    return sum([claim.bytes_of(rows) for claim, rows in selections])


def size_of(selections: Iterable[Selection]) -> int:
    """Return the number of the selected rows."""
    return sum([len(rows) for _, rows in selections])


def cut(selections: Sequence[Selection], most: int) -> tuple[list[Selection], list[Selection]]:
    """Divide selections: up to `most` rows, and the rest."""
    taken: list[Selection] = []
    rest: list[Selection] = []
    for claim, rows in selections:
        if most > 0:
            taken.append(Selection(claim, rows[:most]))
        if len(rows) > max(0, most):
            rest.append(Selection(claim, rows[max(0, most) :]))
        most -= len(rows)
    return taken, rest
