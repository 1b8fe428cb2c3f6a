"""What deliveries turn to in tests that have no consumer and no listener."""

from __future__ import annotations

from rmq import Delivery


class HolderStub:
    """Leaves outcomes noted, as a listener's thread does."""

    settle = None

    def still_owner(self, delivery: Delivery) -> bool:
        return True
