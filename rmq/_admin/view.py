"""Base of the read-only views of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from rmq._admin.calls import viewing
from rmq._admin.messages import AuditLine
from rmq._admin.spark_queries import SparkQueries, SparkQuery
from rmq._broker.claims import MAX_BATCH
from rmq._model.messages import Payload, payload_bytes
from rmq._model.settings import check_whole
from rmq._model.times import MAX_SCORE
from rmq._model.topics import Topic, checked_slots
from rmq._transport.call import Call, T
from rmq._transport.connections import Connections, run_slots
from rmq._transport.exchange import results_of
from rmq.errors import InvalidValueError


class View:
    """Base class of the read-only views of one topic."""

    def __init__(self, connections: Connections, topic: Topic) -> None:
        self._connections = connections
        self.topic = topic

    def spark_queries(self) -> list[SparkQuery]:
        """Return the last report, if not older than a day, of each Spark query on the topic, sources first."""
        return SparkQueries(self._connections, self.topic.name).read()

    def _per_slot(
        self,
        build: Callable[[int], Call[T]],
        slots: Iterable[int] | None = None,
        join: Callable[[Sequence[Call[T]]], Call[list[T]]] | None = None,
    ) -> list[T]:
        return results_of(run_slots(self._connections, map(build, checked_slots(self.topic, slots)), join))

    def _audit_lines(self, limit: int, slots: Iterable[int] | None) -> list[AuditLine]:
        """Return the last entries of the audit log, newest first."""
        check_whole("limit", limit, MAX_BATCH)
        lines = chain.from_iterable(self._per_slot(lambda slot: viewing.audit_lines(self.topic, slot, limit), slots))
        return sorted(lines, key=lambda line: (line.time_ms, line.slot), reverse=True)[:limit]


def locate(topic: Topic, content: Payload, slot_basis: Payload | None) -> tuple[bytes, int]:
    """Return a content in bytes, and its slot."""
    name = payload_bytes(content, "content")
    return name, topic.slot_of(name if slot_basis is None else payload_bytes(slot_basis, "slot_basis"))


def most(value: int | None, name: str) -> int:
    """Return an upper bound, at most 2^53 - 1, which is also the bound for `None`."""
    if value is None:
        return MAX_SCORE
    if type(value) is not int or value < 0:
        raise InvalidValueError(f"{name} is {value!r}; it must be a whole number of 0 or more, or None")
    return min(value, MAX_SCORE)
