"""Deliveries of async handlers and consumers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic

from rmq._model import claims as columns
from rmq._model import deliveries as plain
from rmq._model.entries import StreamDelivery as PlainStreamDelivery
from rmq._model.typed import PayloadT
from rmq.aio.greenlets import TaskGroup
from rmq.aio.proxy import shielded_method

if TYPE_CHECKING:
    from rmq._model.claims import ColumnFacts
    from rmq._model.deliveries import DeliveryFacts
else:  # their members come from the plain object
    DeliveryFacts, ColumnFacts = Generic, object


class _Claimed:
    """What a plain object has claimed, with all its members. Methods that settle it are awaited.

    Args:
        plain_object: A delivery, or deliveries as columns.
        tasks: Runs its methods.
    """

    __slots__ = ("_plain", "_tasks")

    def __init__(self, plain_object: Any, tasks: TaskGroup) -> None:
        self._plain = plain_object
        self._tasks = tasks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def __repr__(self) -> str:
        return repr(self._plain)


class Delivery(_Claimed, DeliveryFacts[PayloadT]):  # pyright: ignore[reportGeneralTypeIssues] - no base at run time
    """A claimed message: `await` its `ack` when done, its `nack` to have it retried, or let the lease expire.

    Has all members of `rmq.Delivery`; methods that settle it are awaited. If cancelled, they still run to their end.
    """

    __slots__ = ()

    ack = shielded_method(plain.Delivery.ack)
    nack = shielded_method(plain.Delivery.nack)
    bury = shielded_method(plain.Delivery.bury)
    release = shielded_method(plain.Delivery.release)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Delivery) and other._plain == self._plain

    def __hash__(self) -> int:
        return hash(self._plain)


class StreamDelivery(Delivery[PayloadT]):
    """A delivery of a stream topic: acked, nacked and renewed for one group."""

    __slots__ = ()

    if TYPE_CHECKING:
        group: str
        id: str
        time_ms: int
        fields: Mapping[str, bytes]


class DeliveryColumns(_Claimed, ColumnFacts):  # pyright: ignore[reportGeneralTypeIssues] - as above
    """Deliveries as columns: `await` their `ack` when all is done, or `nack` some rows and ack the rest.

    Has all members of `rmq.DeliveryColumns`; the methods that settle it are awaited.
    """

    __slots__ = ()

    ack = shielded_method(columns.DeliveryColumns.ack)
    nack = shielded_method(columns.DeliveryColumns.nack)
    bury = shielded_method(columns.DeliveryColumns.bury)
    release = shielded_method(columns.DeliveryColumns.release)

    @property
    def deliveries(self) -> list[Delivery]:
        """A `Delivery` for each row. Creating them takes the time that columns save."""
        return wrap_deliveries(self._plain.deliveries, self._tasks)

    def __len__(self) -> int:
        return len(self._plain)


def wrap_delivery(delivery: plain.Delivery, tasks: TaskGroup) -> Delivery:
    """Return the async object of a delivery."""
    return (StreamDelivery if isinstance(delivery, PlainStreamDelivery) else Delivery)(delivery, tasks)


def wrap_deliveries(deliveries: Iterable[plain.Delivery], tasks: TaskGroup) -> list[Delivery]:
    """Return the async objects of deliveries."""
    plain_deliveries = list(deliveries)
    kind = StreamDelivery if plain_deliveries and isinstance(plain_deliveries[0], PlainStreamDelivery) else Delivery
    return list(map(kind, plain_deliveries, repeat(tasks)))


def unwrap_deliveries(deliveries: Iterable[Delivery]) -> list[plain.Delivery]:
    """Return the plain deliveries of async ones. Other values are returned unchanged, and refused later."""
    return [getattr(delivery, "_plain", delivery) for delivery in deliveries]  # pyright: ignore[reportReturnType]
