"""Deliveries of topics with `merge=`, with the result of their sends."""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from typing import Any

from rmq._model.deliveries import Delivery, Fold, Holder
from rmq._model.records import BODIES, ITEMS, NOTHING, Record, read_record
from rmq._model.replies import NO_OWNER, Claimed, Owner
from rmq._model.times import moment_of
from rmq._model.topics import Topic
from rmq._model.typed import PayloadT
from rmq._model.whereabouts import body_of, version_of


class MergedDelivery(Delivery[PayloadT]):
    """A delivery of a topic with `merge=`; its `record` is the result of its sends."""

    __slots__ = ("_items", "record")

    def __init__(
        self,
        topic: Topic,
        slot: int,
        claimed: Claimed,
        claimed_ms: int,
        lease_until_s: float,
        holder: Holder,
        owner: Owner = NO_OWNER,
    ) -> None:
        super().__init__(topic, slot, claimed, claimed_ms, lease_until_s, holder, owner)
        self.ack_individually = True  # its value in flight goes with its ack
        record = read_record(claimed.body) or NOTHING
        self.record: Record = record
        self._items: tuple[bytes, ...] | None = None
        self.body, self.trace = body_of(record)

    @property
    def merged(self) -> int:
        """Number of sends merged into this delivery."""
        return self.record.count

    @property
    def value(self) -> Any:
        """The result of its sends: the body, a number, or the items."""
        if self.record.kind in BODIES:
            return self.body
        return self.items if self.record.kind in ITEMS else self.record.number

    @property
    def items(self) -> tuple[bytes, ...]:
        """The items of a `Collect` in the order of sending."""
        if self._items is None:
            self._items = self.record.items
        return self._items

    @property
    def first_sent_ms(self) -> int | None:
        """When the first of its sends arrived, epoch ms by Redis' clock; `None` where that is unknown."""
        return self.record.first_ms or None

    @property
    def last_sent_ms(self) -> int | None:
        """When the last of its sends arrived, likewise."""
        return self.record.last_ms or None

    @property
    def first_sent(self) -> datetime | None:
        """When the first of its sends arrived, by Redis' clock; `None` where that is unknown."""
        return moment_of(self.record.first_ms)

    @property
    def last_sent(self) -> datetime | None:
        """When the last of its sends arrived, likewise."""
        return moment_of(self.record.last_ms)

    @property
    def version(self) -> int | None:
        """The largest `version=` of its sends, where the topic keeps `Newest`."""
        return version_of(self.record)

    @property
    def wanted(self) -> int:
        """Number of parts that a join waits for."""
        return self.record.wanted

    @property
    def complete(self) -> bool:
        """True if all parts of a join have arrived."""
        return self.record.number >= self.wanted if self.wanted else True

    def fold(self, function: Fold, initial: Any = None) -> Any:
        """Reduce the items to one value."""
        first = () if initial is None and self.items else (initial,)
        return reduce(function, self.items, *first)
