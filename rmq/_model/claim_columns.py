"""Messages of one claim held as one delivery, as columns, until one of them needs a delivery of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock

from rmq._model.deliveries import ACKED, Delivery, Holder, Outcome
from rmq._model.records import TRACE_MARK, unwrap
from rmq._model.replies import NO_OWNER, ClaimedRows, Owner
from rmq._model.topics import Topic

_SPREADING = Lock()
"""Held while deliveries are made of columns: by the keeper of the leases, or by a handler. Nobody waits meanwhile."""


class ClaimColumns(Delivery):
    """All messages of a claim with one claim score. If they are acked as a whole, no object is made for each.

    If a message gets an outcome, a lease or an error of its own, `each` makes a delivery of every one. They replace the
    columns from then on, and have the outcome of the columns unless they have one of their own.

    Attributes:
        rows: The claimed rows.
    """

    __slots__ = ("_each", "_outcome", "rows")

    def __init__(
        self,
        topic: Topic,
        slot: int,
        rows: ClaimedRows,
        claimed_ms: int,
        lease_until_s: float,
        holder: Holder,
        owner: Owner = NO_OWNER,
    ) -> None:
        self._each: list[Delivery] | None = None
        self._outcome: Outcome | None = None
        super().__init__(topic, slot, rows[0], claimed_ms, lease_until_s, holder, owner)
        self.rows = rows

    @property
    def name(self) -> bytes:
        """Empty: replies by name never refer to a columnar claim."""
        return b""

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of all messages without one of their own."""
        return self._outcome

    @outcome.setter
    def outcome(self, outcome: Outcome | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._outcome = outcome
        self._hand_down()

    @property
    def is_spread(self) -> bool:
        """True once there is a delivery for each message."""
        return self._each is not None

    def must_spread(self, now_s: float) -> bool:
        """Return whether these cannot be settled as a whole: only acks can be, and only while the lease runs."""
        if self._each is not None:
            return True
        whole = self._outcome is ACKED and not self.ack_individually and self.lease_until_s >= now_s
        return self._outcome is not None and not (whole and len(self.rows) > 1)

    def each(self) -> list[Delivery]:
        """Return a delivery for each message, always the same objects."""
        if self._each is not None:
            return self._each
        with _SPREADING:
            if self._each is None:
                shared = (self.claimed_ms, self.lease_until_s, self._holder, self.owner)
                made = [Delivery(self.topic, self.slot, claimed, *shared) for claimed in self.rows]
                for delivery in made:
                    delivery.ack_individually, delivery.lost = self.ack_individually, self.lost
                self._each = made
                self.ack_individually = True  # so these are settled in place of the columns
        self._hand_down()  # an outcome may have been noted meanwhile
        return self._each

    def bodies(self) -> list[bytes | None]:
        """Return the bodies, without the trace contexts before them."""
        bodies = self.rows.bodies
        if not bodies:
            return [None] * len(self.rows)
        return [body if body is None or not body.startswith(TRACE_MARK) else unwrap(body)[0] for body in bodies]

    def traces(self) -> list[str]:
        """Return the trace contexts, empty for none."""
        return [unwrap(body)[1] for body in self.rows.bodies] or [""] * len(self.rows)

    def _hand_down(self) -> None:
        if self._each is not None and self._outcome is not None:
            for delivery in self._each:
                if delivery.outcome is None:
                    delivery.outcome = self._outcome


def spread(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Return a delivery for each message."""
    given = list(deliveries)
    if not _has_columns(given):
        return given
    return [one for each in given for one in (each.each() if isinstance(each, ClaimColumns) else (each,))]


def spread_some(deliveries: Sequence[Delivery], now_s: float) -> Sequence[Delivery]:
    """Return deliveries, with columns that cannot be settled as a whole split into rows, unless they are under way."""
    if not _has_columns(deliveries):
        return deliveries
    found: list[Delivery] = []
    for each in deliveries:
        if isinstance(each, ClaimColumns) and not each.under_way and each.must_spread(now_s):
            found += each.each()
        else:
            found.append(each)
    return found


def take_up_to(waiting: deque[Delivery], most: int) -> list[Delivery]:
    """Take up to a number of waiting messages; the first columns even if they have more. Thread-safe."""
    taken: list[Delivery] = []
    number = 0
    try:
        while number < most:
            part = waiting.popleft()
            if isinstance(part, ClaimColumns) and part.is_spread:  # each has a lease of its own
                waiting.extendleft(reversed(part.each()))
            elif taken and number + number_of([part]) > most:
                waiting.appendleft(part)
                break
            else:
                taken.append(part)
                number += number_of([part])
    except IndexError:  # no more, or another thread was faster
        pass
    return taken


def number_of(deliveries: Sequence[Delivery]) -> int:
    """Return how many messages there are."""
    if not _has_columns(deliveries):
        return len(deliveries)
    return sum([len(each.rows) if isinstance(each, ClaimColumns) else 1 for each in deliveries])


def size_of(deliveries: Sequence[Delivery]) -> tuple[int, int]:
    """Return the number of messages, and of their slots."""
    return number_of(deliveries), len({delivery.slot for delivery in deliveries})


def _has_columns(deliveries: Sequence[Delivery]) -> bool:
    return ClaimColumns in set(map(type, deliveries))  # mostly there are none: nobody looks at each
