"""What the views of topics have in common: slots, the audit log, and the reports of Spark queries, stored in Redis."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from rmq._admin.calls import viewing
from rmq._admin.messages import AuditLine
from rmq._broker.claims import MAX_BATCH
from rmq._broker.keys import spark_queries_key
from rmq._io.reports import PassedOver
from rmq._model.display import shown
from rmq._model.messages import Payload, payload_bytes
from rmq._model.schema import new_document, reading
from rmq._model.settings import check_whole
from rmq._model.times import MAX_SCORE
from rmq._model.topics import Topic, checked_slots
from rmq._model.workers import read_report
from rmq._transport.call import Call, T, plain
from rmq._transport.connections import Connections, run_slots
from rmq._transport.exchange import results_of
from rmq.errors import InvalidValueError, UnreadableDocumentError

REPORT_S = 5.0
"""Interval of a source's reports."""

KEEP_S = 86_400
"""Seconds for which the last report of a query is kept."""

MOST_QUERIES = 200
"""Maximum number of queries of a topic whose reports are kept."""

_TIME = b"us:"
"""Prefix of the field with the time that tasks of a query have waited for Redis, in microseconds."""

ROLES = ("source", "sink", "write")


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """The last report of a Spark query about its work on a topic.

    Attributes:
        role: `source`, `sink`, or `write` with `txnAppId`.
        name: Identity of the query in its checkpoint; for a source of a STREAM topic its group, for a write its
            `txnAppId`.
        batch: Number of the last finished batch; for a write its last `txnVersion`.
        seen_ms: Time of the report, epoch ms. A source reports every 5 s, the others with each batch.
        now_ms: Redis' time when the report was read, epoch ms.
        totals: For a source, since its driver started: `acked`, `refused`, `redelivered` and `lost` messages. For the
            others, since the first report: `rows`, of which `folded`; `new` and `merged` messages; `skipped` and `bad`
            rows.
        redis_s: Seconds for which its driver and its tasks have waited for Redis.
        behind: For a source: number of due messages, or of entries of a STREAM topic, that are in no batch yet. `None`
            if it is unknown, and for the others.
        lease_left_s: For a source: seconds left of its batch's leases at the time of the report; `None` without a
            batch.

    Examples:
        >>> _ = client.producer(Topic("jobs", TopicType.PRIORITY))
        >>> client.inspect("jobs").spark_queries()  # Spark does not work on it
        []
    """

    role: str
    name: str
    batch: int
    seen_ms: int
    now_ms: int
    totals: Mapping[str, int]
    redis_s: float = 0.0
    behind: int | None = None
    lease_left_s: float | None = None

    @property
    def silent_ms(self) -> int:
        """Time since the report, in ms."""
        return max(0, self.now_ms - self.seen_ms)

    @property
    def lease_left_now_s(self) -> float | None:
        """Seconds until the batch's leases end, unless they were renewed since the report; `None` without a batch."""
        return None if self.lease_left_s is None else max(0.0, self.lease_left_s - self.silent_ms / 1_000)

    @property
    def sent(self) -> int:
        """Number of messages that a sink or a write has sent, both new and merged; 0 for a source."""
        return self.totals.get("new", 0) + self.totals.get("merged", 0)

    def to_json(self) -> str:
        """Return the report as the JSON document that Redis stores."""
        names = ("batch", "seen_ms", "redis_s", "behind", "lease_left_s")
        return new_document({"totals": dict(self.totals), **{each: getattr(self, each) for each in names}}).to_json()

    @classmethod
    def from_json(cls, text: bytes, role: str, name: str, now_ms: int) -> SparkQuery:
        """Parse a stored report.

        Raises:
            UnreadableDocumentError: The text is for newer versions of RMQ only, or is not the report of a query.
        """
        with reading(text, f"the report of Spark's {role} {name}") as value:
            if role not in ROLES:
                raise ValueError(f"role is {role!r:.50}; it must be source, sink or write")
            return read_report(cls, {**value, "role": role, "name": name, "now_ms": now_ms})


class SparkQueries:
    """Reads and writes the reports of Spark queries on one topic.

    Args:
        connections: Connections of the client.
        topic: Name of the topic.
    """

    def __init__(self, connections: Connections, topic: str) -> None:
        self._connections, self._key = connections, spark_queries_key(topic)

    def read(self) -> list[SparkQuery]:
        """Return the reports of the last day, sources first; those that cannot be read are logged once."""
        flat: list[bytes] = self._connections.command("HGETALL", self._key)
        if not flat:
            return []
        now_ms, fields = self._now_ms(), dict(zip(flat[::2], flat[1::2], strict=True))
        found = [query for field in fields if (query := _query(fields, field, now_ms))]
        recent = [query for query in found if query.silent_ms < KEEP_S * 1_000]
        return sorted(recent, key=lambda query: (query.role != "source", query.role, query.name))

    def publish(self, query: SparkQuery) -> None:
        """Store a report, with Redis' time, in place of the query's previous one."""
        query = replace(query, seen_ms=self._now_ms())
        self._run(("HSET", self._key, _field(query.role, query.name), query.to_json()))

    def add(self, role: str, name: str, batch: int, totals: Mapping[str, int], redis_s: float) -> None:
        """Add a batch to a query's last report. A batch that it includes, as after a restart, is not added again."""
        before = next((query for query in self.read() if (query.role, query.name) == (role, name)), None)
        if before is None:
            self.forget_old()
            before = SparkQuery(role, name, batch, 0, 0, totals, redis_s)
        elif before.batch < batch:
            sums = {event: before.totals.get(event, 0) + number for event, number in totals.items()}
            before = replace(before, batch=batch, totals=sums, redis_s=before.redis_s + redis_s)
        self.publish(before)

    def add_time(self, role: str, name: str, redis_s: float) -> None:
        """Add the seconds that a task of a query has waited for Redis."""
        field = _TIME + _field(role, name).encode()
        self._run(("HINCRBY", self._key, field, max(0, round(redis_s * 1_000_000))))

    def forget_old(self) -> None:
        """Delete reports older than a day, and the oldest ones if there is no room for another."""
        keys: list[bytes] = self._connections.command("HGETALL", self._key)[::2]
        kept = sorted(self.read(), key=lambda query: query.silent_ms)[: MOST_QUERIES - 1]
        known = {_field(query.role, query.name).encode() for query in kept}
        gone = [key for key in keys if key.removeprefix(_TIME) not in known]
        if gone:
            self._connections.command("HDEL", self._key, *gone, key=self._key)

    def _now_ms(self) -> int:
        seconds, us = self._connections.command("TIME", key=self._key)
        return int(seconds) * 1_000 + int(us) // 1_000

    def _run(self, command: tuple[Any, ...]) -> None:
        calls = [plain(*command, key=self._key), plain("EXPIRE", self._key, KEEP_S, key=self._key)]
        results_of(self._connections.run_many(calls))


def _field(role: str, name: str) -> str:
    return f"{role}:{name}"


def _query(fields: Mapping[bytes, bytes], field: bytes, now_ms: int) -> SparkQuery | None:
    if field.startswith(_TIME):
        return None
    role, _, name = field.decode(errors="replace").partition(":")
    try:
        query = SparkQuery.from_json(fields[field], role, name, now_ms)
    except UnreadableDocumentError as error:
        _passed_over.tell(shown(field), error)
        return None
    tasks_us = fields.get(_TIME + field, b"0")
    return replace(query, redis_s=query.redis_s + (int(tasks_us) if tasks_us.isdigit() else 0) / 1_000_000)


_passed_over = PassedOver(logging.getLogger("rmq.spark"))


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
