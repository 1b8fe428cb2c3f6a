"""Deliveries in portions that one script call may have: bounded in bytes as well as in number. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmq._model.deliveries import Delivery
from rmq._scripts.claiming import CLAIM_BYTES


def bytes_of(delivery: Delivery, body: bool) -> int:
    """Return how many bytes of a delivery a call moves, with or without its body."""
    return len(delivery.name) + (len(delivery.body or b"") if body else 0)


def portions(
    deliveries: Sequence[Delivery], most: int, *, bodies: bool = False, most_bytes: int = CLAIM_BYTES
) -> Iterator[Sequence[Delivery]]:
    """Cut deliveries into portions, in their order.

    Args:
        deliveries: Any number of them.
        most: Most deliveries in a portion.
        bodies: Whether the call moves their bodies, too; else only names count.
        most_bytes: Most bytes in a portion; a single delivery may have more.
    """
    if len(deliveries) == 1:
        yield deliveries
        return
    first, size_bytes = 0, 0
    for index, delivery in enumerate(deliveries):
        own_bytes = bytes_of(delivery, bodies)
        if index > first and (index - first == most or size_bytes + own_bytes > most_bytes):
            yield deliveries[first:index]
            first, size_bytes = index, 0
        size_bytes += own_bytes
    if first < len(deliveries):
        yield deliveries[first:]
