"""The options of the streaming source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rmq.errors import InvalidValueError

NAMES = (
    "url topic maxMessagesPerTrigger minPartitions maxPartitions maxReplays failOnLeaseLost failOnDataLoss zookeeper"
).split()


@dataclass(frozen=True)
class SourceSettings:
    """The options of the streaming source.

    Attributes:
        url: Where Redis is, as the driver and all executors reach it.
        topic: Name of the topic.
        max_messages: Most messages in a batch.
        min_partitions: Fewest tasks that read a batch, where it has so many chunks.
        max_partitions: Most tasks that read a batch.
        max_replays: How often a batch is begun anew before its messages are dead; `None` for the topic's retries.
        fail_on_lease_lost: Fail a read that would have other rows than the one before, instead of leaving rows out.
        fail_on_data_loss: Fail where Redis has forgotten a query that a checkpoint knows.
    """

    url: str
    topic: str
    max_messages: int = 1_000_000
    min_partitions: int = 1
    max_partitions: int = 200
    max_replays: int | None = None
    fail_on_lease_lost: bool = True
    fail_on_data_loss: bool = True


def source_settings(options: Mapping[str, str]) -> SourceSettings:
    """Read the options of `readStream.format("rmq")`; their names may be in any case, as everywhere in Spark.

    Raises:
        InvalidValueError: An option is missing, unknown, or has no such value.
    """
    given = {name.lower(): value for name, value in options.items()}
    if unknown := given.keys() - {name.lower() for name in NAMES} - {"path"}:
        raise InvalidValueError(f"readStream knows no option {', '.join(sorted(unknown))}; it has {', '.join(NAMES)}")
    if "zookeeper" in given:
        raise InvalidValueError(
            "readStream takes no zookeeper: a query shares no slots with workers; read a topic that has no owners"
        )
    url = given.get("url") or os.environ.get("RMQ_URL", "")
    if not url or url.startswith("embedded"):
        raise InvalidValueError(
            f"readStream needs option url, of a Redis that all executors reach, not {url or 'none'}; "
            "RmqClient().url is that of an embedded one, for executors on this machine"
        )
    if not (topic := given.get("topic")):
        raise InvalidValueError("readStream needs option topic")
    settings = SourceSettings(
        url,
        topic,
        max_messages=_whole(given, "maxMessagesPerTrigger", 1_000_000, 1),
        min_partitions=_whole(given, "minPartitions", 1, 1),
        max_partitions=_whole(given, "maxPartitions", 200, 1),
        max_replays=_whole(given, "maxReplays", 0, 0) if "maxreplays" in given else None,
        fail_on_lease_lost=_truth(given, "failOnLeaseLost"),
        fail_on_data_loss=_truth(given, "failOnDataLoss"),
    )
    if settings.min_partitions > settings.max_partitions:
        raise InvalidValueError(
            f"minPartitions {settings.min_partitions} is more than maxPartitions {settings.max_partitions}"
        )
    return settings


def _whole(given: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < least:
        raise InvalidValueError(f"option {name} is {text!r}; it must be a whole number from {least}")
    return int(text)


def _truth(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name.lower(), "true").strip().lower()
    if text not in ("true", "false"):
        raise InvalidValueError(f"option {name} is {text!r}; it must be true or false")
    return text == "true"
