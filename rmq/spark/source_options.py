"""The options of the streaming source."""

from __future__ import annotations

from dataclasses import dataclass

from rmq.errors import InvalidValueError
from rmq.spark.options import Options


@dataclass(frozen=True)
class SourceSettings:
    """The options of the streaming source.

    Attributes:
        url: Where Redis is, as the driver and all executors reach it.
        topic: Name of the topic.
        max_messages: Most messages in a batch.
        min_partitions: Fewest tasks that read a batch, where it has so many chunks.
        max_partitions: Most tasks that read a batch.
        max_replays: How often a batch is begun anew as a whole; then it is halved. `None`: see `default_replays`.
        fail_on_lease_lost: Fail a read that would have other rows than the one before, instead of leaving rows out.
        fail_on_data_loss: Fail where Redis has forgotten a query that a checkpoint knows.
        deadline_s: How long to repeat what may be repeated before the query fails, seconds.
    """

    url: str
    topic: str
    max_messages: int = 1_000_000
    min_partitions: int = 1
    max_partitions: int = 200
    max_replays: int | None = None
    fail_on_lease_lost: bool = True
    fail_on_data_loss: bool = True
    deadline_s: int = 60


def source_settings(options: Options) -> SourceSettings:
    """Return what the streaming source takes of all options.

    Raises:
        InvalidValueError: An option that it can't do, or the topic is missing.
    """
    if options.zookeeper:
        raise InvalidValueError(
            "readStream takes no zookeeper: a query shares no slots with workers; read a topic that has no owners"
        )
    if options.lease_s is not None:
        raise InvalidValueError("readStream takes no leaseSeconds: the topic's lease counts, and the driver renews it")
    if options.queue != "backlog":
        raise InvalidValueError(f"readStream drains the backlog, not {options.queue}; spark.read reads that")
    return SourceSettings(
        options.url,
        options.needed_topic(),
        max_messages=options.max_messages_per_trigger or 1_000_000,
        min_partitions=options.min_partitions or 1,
        max_partitions=options.max_partitions or max(200, options.min_partitions or 1),
        max_replays=options.max_replays,
        fail_on_lease_lost=options.fail_on_lease_lost,
        fail_on_data_loss=options.fail_on_data_loss,
        deadline_s=options.deadline_s,
    )
