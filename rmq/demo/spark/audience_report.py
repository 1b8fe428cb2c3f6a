"""What a run of the audience job came to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rmq.demo.spark.serial import Disorder
from rmq.spark.sink.sender import Counts


@dataclass(frozen=True, slots=True)
class AudienceReport:
    """Figures of one run.

    Attributes:
        lines: Order lines read.
        without_customer: Those of them that name no customer: no change.
        sent: Source -> what became of its changes.
        batches: Batches evaluated.
        evaluated: Customers in them, as often as they came.
        passed_over: Messages whose content is no customer.
        customers: Customers with segments in the folder, those of earlier runs too.
        members: Segment -> how many of these it has.
        rival: Customers that the plain consumer had.
        disorder: What should not be.
        expired: Leases that ran out.
        left: Messages still in the topic.
        died: Messages that died in this run, as of a batch that failed too often: their customers were not evaluated.
        elapsed_s: From the first send until the topic was drained, the window's waiting included.
    """

    lines: int
    without_customer: int
    sent: Mapping[str, Counts]
    batches: int
    evaluated: int
    passed_over: int
    customers: int
    members: Mapping[str, int]
    rival: int
    disorder: Disorder
    expired: int
    left: int
    died: int
    elapsed_s: float

    @property
    def total(self) -> Counts:
        """What became of the changes of all sources."""
        total = Counts()
        for counts in self.sent.values():
            total.add(counts)
        return total

    @property
    def merged_share(self) -> float:
        """The folding rate: which share of the changes became no message of its own; 0 without any."""
        total = self.total
        return 1 - total.new / total.rows if total.rows else 0.0

    @property
    def serial(self) -> bool:
        """Whether no customer was in two hands at once, and none is out of date."""
        return self.disorder == Disorder()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        own = {"total": asdict(self.total), "merged_share": round(self.merged_share, 4)}
        return {**asdict(self), **own, "serial": self.serial, "elapsed_s": round(self.elapsed_s, 1)}
