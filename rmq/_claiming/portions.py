"""How many bytes deliveries have, and portions of them whose names fit into one script call. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rmq._broker.claims import CLAIM_BYTES
from rmq._model.claim_columns import ClaimColumns
from rmq._model.deliveries import Delivery
from rmq._model.merged_deliveries import MergedDelivery


def bytes_of(deliveries: Iterable[Delivery]) -> int:
    """Return how many bytes deliveries have in memory: contents, and bodies or items."""
    size_bytes = 0
    for delivery in deliveries:
        if isinstance(delivery, ClaimColumns):
            size_bytes += sum(map(len, delivery.rows.contents)) + sum(map(len, filter(None, delivery.rows.bodies)))
        else:
            value = delivery.record.value if isinstance(delivery, MergedDelivery) else delivery.body
            size_bytes += len(delivery.content) + len(value or b"")
    return size_bytes


def portions(
    deliveries: Sequence[Delivery], most: int, *, most_bytes: int = CLAIM_BYTES
) -> Iterator[Sequence[Delivery]]:
    """Cut deliveries into portions, in their order.

    Args:
        deliveries: Any number of them.
        most: Most deliveries in a portion.
        most_bytes: Most bytes of names in a portion; a single one may have more. What else a call moves, its script
            bounds.
    """
    if len(deliveries) == 1:
        yield deliveries
        return
    first, size_bytes = 0, 0
    for index, delivery in enumerate(deliveries):
        own_bytes = len(delivery.name)
        if index > first and (index - first == most or size_bytes + own_bytes > most_bytes):
            yield deliveries[first:index]
            first, size_bytes = index, 0
        size_bytes += own_bytes
    if first < len(deliveries):
        yield deliveries[first:]
