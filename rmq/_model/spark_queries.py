"""Reports of Spark queries about their work on a topic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmq._model.schema import new_document, read_document
from rmq.errors import UnreadableDocumentError

REPORT_S = 5.0
"""How often a source reports."""

KEEP_S = 86_400
"""How long a report is kept after a query's last one, seconds."""

MOST_QUERIES = 200
"""Queries of a topic whose reports are kept."""

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
        raise ValueError(f"{seconds} are no seconds")
    return seconds
