"""A write that returns the counts of its rows, while Spark's own `save()` returns nothing."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from rmq.spark.option_checks import check_sink
from rmq.spark.options import parse_options
from rmq.spark.sink.redrive_writer import RedriveWriter
from rmq.spark.sink.sender import Counts
from rmq.spark.sink.writer import BatchWriter, write_parts


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Counts of the rows of a write.

    Attributes:
        rows: Number of rows of the frame.
        folded: Rows folded into another row of their task before they were sent.
        new: Messages that were added as new entries.
        merged: Messages that merged with one in the backlog.
        skipped: Messages already sent by a failed task or job; of a redrive, messages that were no longer dead.
        bad: Rows written to the folder for bad rows, with `badRows=collect`.
        redis_s: Total time that all tasks waited for calls to Redis, seconds.

    Examples:
        >>> from rmq.spark import SaveResult
        >>> SaveResult(rows=5, folded=2, new=2, merged=1).sent
        3
    """

    rows: int = 0
    folded: int = 0
    new: int = 0
    merged: int = 0
    skipped: int = 0
    bad: int = 0
    redis_s: float = 0.0

    @property
    def sent(self) -> int:
        """Messages that were sent: new and merged ones."""
        return self.new + self.merged


def save(frame: DataFrame, topic: str | None = None, **options: str | float | bool) -> SaveResult:
    """Write a frame to a topic, as `frame.write.format("rmq")` does with the same options, and return the counts.

    Args:
        frame: Frame with the columns of a sink.
        topic: Name of the topic; without it, each row goes to the topic that its column `topic` names.
        options: Options of the sink by name: `url`, `merge`, `txnAppId` and so on.

    Returns:
        The total counts of each task's last attempt.

    Raises:
        InvalidValueError: An option is unknown, a value breaks a rule, or the columns do not fit the topic.
        UnknownTopicError: The topic is not registered, and no options define it.

    Guarantee: as for `write`: at least once, or exactly once on topics with `merge=`, or with `txnAppId`.
    """
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    parsed = parse_options(given if topic is None else {**given, "topic": topic})
    check_sink(parsed)
    writer = (RedriveWriter if parsed.redrive else BatchWriter)(frame.schema, parsed)
    parts = write_parts(frame, writer)
    writer.commit([*parts])
    total = Counts.total(part.counts for part in parts)
    return SaveResult(
        total.rows, total.folded, total.new, total.merged, total.skipped, total.bad, total.redis_us / 1_000_000
    )
