"""Of two deliveries of one entry that have the same token, only the newer one counts."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from weakref import ref

from rmq._model.entries import NO_DELIVERY, StreamDelivery

FEWEST_KEPT = 1_024
"""So many entries may be known without a look at which of their deliveries nobody has any more."""


class NewestDeliveries:
    """Knows the deliveries of one consumer of a group that somebody still has. Thread-safe.

    The token of a delivery is its consumer and its number. Redis keeps both in the pending list, and so they cost
    nothing. But a server that forgets its last writes gives the same number anew, and a release takes it back. Then a
    late settlement of the delivery before would settle the one after it. So the one before loses its token once the
    next one is here.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._newest: dict[tuple[int, bytes], ref[StreamDelivery]] = {}
        self._limit = FEWEST_KEPT

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, deliveries: Sequence[StreamDelivery]) -> None:
        """Take new deliveries; those before them of the same entries count no more."""
        with self._lock:
            newest = self._newest
            for delivery in deliveries:
                place = delivery.slot, delivery.name
                if (known := newest.get(place)) is not None and (before := known()) is not None:
                    before.claim_score = NO_DELIVERY
                newest[place] = ref(delivery)
            if len(newest) > self._limit:
                self._newest = {place: known for place, known in newest.items() if known() is not None}
                self._limit = max(FEWEST_KEPT, 2 * len(self._newest))
