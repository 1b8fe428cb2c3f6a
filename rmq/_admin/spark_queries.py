"""The reports of Spark's queries on a topic, as they are kept in Redis."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rmq._broker.keys import spark_queries_key
from rmq._model.display import shown
from rmq._model.schema import PassedOver, new_document, read_document
from rmq._transport.call import plain
from rmq._transport.connections import Connections
from rmq.errors import UnreadableDocumentError

REPORT_S = 5.0
"""How often a source reports."""

KEEP_S = 86_400
"""How long a report is kept after a query's last one, seconds."""

MOST_QUERIES = 200
"""Queries of a topic whose reports are kept."""

_TIME = b"us:"
"""Begins the field of the time that tasks of a query have waited for Redis, in microseconds."""

ROLES = ("source", "sink", "write")


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """The last report of a Spark query about its work on a topic.

    Attributes:
        role: `source`, `sink`, or `write` with `txnAppId`.
        name: Identity of the query in its checkpoint; of a source of a STREAM topic its group; of a write its
            `txnAppId`.
        batch: The last batch that it has finished; of a write its last `txnVersion`.
        seen_ms: When it reported, epoch ms. A source does so every 5 s, the others with each batch.
        now_ms: Redis' time of the reading, epoch ms.
        totals: Of a source, since its driver began: `acked`, `refused`, `redelivered` and `lost` messages. Of the
            others, since the first report: `rows`, of these `folded`; `new` and `merged` messages; `skipped` and `bad`
            rows.
        redis_s: How long its driver and its tasks have waited for calls to Redis, seconds.
        behind: Source: messages that are due and not in a batch yet; of a STREAM topic entries, `None` where that is
            not known; else `None`.
        lease_left_s: Source: when it reported, for how long the leases of its batch last without a renewal; `None`
            without a batch.

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
        """How long ago it reported, ms."""
        return max(0, self.now_ms - self.seen_ms)

    @property
    def lease_left_now_s(self) -> float | None:
        """Seconds left of the leases of its batch, unless they were renewed since the report."""
        return None if self.lease_left_s is None else max(0.0, self.lease_left_s - self.silent_ms / 1_000)

    @property
    def sent(self) -> int:
        """Messages that a sink or a write has sent: new and merged ones."""
        return self.totals.get("new", 0) + self.totals.get("merged", 0)

    def to_json(self) -> str:
        """Return its document in Redis."""
        names = ("batch", "seen_ms", "redis_s", "behind", "lease_left_s")
        return new_document({"totals": dict(self.totals), **{each: getattr(self, each) for each in names}}).to_json()

    @classmethod
    def from_json(cls, text: bytes, role: str, name: str, now_ms: int) -> SparkQuery:
        """Rebuild it.

        Raises:
            UnreadableDocumentError: It is for newer versions of RMQ only, or no report of a query.
        """
        what = f"the report of Spark's {role} {name}"
        value = read_document(text, what).fields
        try:
            if role not in ROLES:
                raise ValueError(f"role is {role!r:.50}")
            totals = {str(event): int(number) for event, number in value["totals"].items()}
            behind, lease_left_s = value.get("behind"), value.get("lease_left_s")
            return cls(
                role,
                name,
                int(value["batch"]),
                int(value["seen_ms"]),
                now_ms,
                totals,
                _seconds(value["redis_s"]),
                None if behind is None else int(behind),
                None if lease_left_s is None else _seconds(lease_left_s),
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise UnreadableDocumentError(f"{what} cannot be read: {type(error).__name__}: {error!s:.200}") from None


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is not a finite number of seconds")
    return seconds


class SparkQueries:
    """Reads and writes the reports about one topic.

    Args:
        connections: Where the topic is.
        topic: Its name.
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
        """Keep a report, with Redis' time, in the place of this query's last one."""
        query = replace(query, seen_ms=self._now_ms())
        self._run(("HSET", self._key, _field(query.role, query.name), query.to_json()))

    def add(self, role: str, name: str, batch: int, totals: Mapping[str, int], redis_s: float) -> None:
        """Add a batch to a query's last report; one that is there already, as after a restart, adds nothing."""
        before = next((query for query in self.read() if (query.role, query.name) == (role, name)), None)
        if before is None:
            self.forget_old()
            before = SparkQuery(role, name, batch, 0, 0, totals, redis_s)
        elif before.batch < batch:
            sums = {event: before.totals.get(event, 0) + number for event, number in totals.items()}
            before = replace(before, batch=batch, totals=sums, redis_s=before.redis_s + redis_s)
        self.publish(before)

    def add_time(self, role: str, name: str, redis_s: float) -> None:
        """Add the time that a task of a query has waited for Redis."""
        field = _TIME + _field(role, name).encode()
        self._run(("HINCRBY", self._key, field, max(0, round(redis_s * 1_000_000))))

    def forget_old(self) -> None:
        """Drop the reports of queries that have reported nothing for a day, and make room for one more."""
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
        for answer in self._connections.run_many(calls):
            if isinstance(answer, Exception):
                raise answer


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
