"""Sizes of deliveries in bytes, and portions whose names fit into one script call. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rmq._broker.claims import CLAIM_BYTES
from rmq._model.deliveries import Delivery, MergedDelivery
from rmq._model.delivery_columns import ClaimColumns

FREED_BYTES = 64 * 1_048_576
"""Maximum bytes of bodies that the acks of one call delete: the server frees about 12 MiB per ms."""


def bytes_of(deliveries: Iterable[Delivery]) -> int:
    """Return the size of deliveries in bytes: contents, and bodies or items."""
    return sum(map(_size_of, deliveries))


def _size_of(delivery: Delivery) -> int:
    if isinstance(delivery, ClaimColumns):
        return sum(map(len, delivery.rows.contents)) + sum(map(len, filter(None, delivery.rows.bodies)))
    value = delivery.record.value if isinstance(delivery, MergedDelivery) else delivery.body
    return len(delivery.content) + len(value or b"")


def chunks(
    deliveries: Sequence[Delivery], most: int, *, most_bytes: int = CLAIM_BYTES, most_freed: int | None = None
) -> Iterator[Sequence[Delivery]]:
    """Divide deliveries into portions, in their order.

    Args:
        deliveries: The deliveries.
        most: Maximum number of deliveries in a portion.
        most_bytes: Maximum bytes of names in a portion; a single name may have more. The script bounds all other data.
        most_freed: Maximum bytes of contents and bodies in a portion, if the calls delete them; `None` if not.
    """
    if len(deliveries) == 1:
        yield deliveries
        return
    first, size_bytes, freed = 0, 0, 0
    for index, delivery in enumerate(deliveries):
        own_bytes, own_freed = len(delivery.name), 0 if most_freed is None else _size_of(delivery)
        too_large = size_bytes + own_bytes > most_bytes or (most_freed is not None and freed + own_freed > most_freed)
        if index > first and (index - first == most or too_large):
            yield deliveries[first:index]
            first, size_bytes, freed = index, 0, 0
        size_bytes += own_bytes
        freed += own_freed
    if first < len(deliveries):
        yield deliveries[first:]
