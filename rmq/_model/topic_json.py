"""How the settings of a topic stand in its registered definition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rmq._model.merging import Merge
from rmq._model.retention import Retention
from rmq._model.retry import retry_from_json
from rmq._model.schema import AGES_VERSION, FIRST_VERSION, MERGE_VERSION
from rmq._model.scores import Ties
from rmq._model.times import duration_ms
from rmq._model.topic_types import TopicType, WhenFull

if TYPE_CHECKING:
    from rmq._model.topics import Topic

FULL_TIMEOUT_MS = 10_000


def limits_json(topic: Topic) -> dict[str, Any]:
    """Return what differs from the defaults: earlier versions of RMQ read a definition without them."""
    limits: dict[str, Any] = {}
    full_timeout_ms = duration_ms(topic.full_timeout, "full_timeout")
    if topic.when_full is not WhenFull.REFUSE:
        limits["when_full"] = topic.when_full.value
    if topic.when_full is not WhenFull.REFUSE or full_timeout_ms != FULL_TIMEOUT_MS:
        limits["full_timeout_ms"] = full_timeout_ms
    if topic.ttl is not None:
        limits["ttl_ms"] = topic.ttl_ms
    if topic.max_rate is not None:
        limits["max_rate"] = topic.max_rate
        limits["max_burst"] = topic.max_burst
    if topic.max_priority is not None:
        limits |= {"ties": Ties.OLDEST.value, "max_priority": topic.max_priority}
    if topic.merge is not None:
        limits["merge"] = topic.merge.to_json()
    return limits


def settings_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Topic` that the fields of a definition stand for."""
    return {
        "name": value["name"],
        "type": TopicType(value["type"]),
        "slots": value["slots"],
        "max_retries": value["max_retries"],
        "lease": timedelta(seconds=value["lease_s"]),
        "retry": retry_from_json(value["retry"]),
        "max_content_bytes": value["max_content_bytes"],
        "max_body_bytes": value["max_body_bytes"],
        "max_backlog": value["max_backlog"],
        "max_dead": value["max_dead"],
        "max_dead_age": value["max_dead_age_ms"],
        "retention": Retention.from_json(value["retention"]) if "retention" in value else None,
        "when_full": WhenFull(value.get("when_full", "REFUSE")),
        "full_timeout": value.get("full_timeout_ms", FULL_TIMEOUT_MS),
        "ttl": value.get("ttl_ms"),
        "max_rate": value.get("max_rate"),
        "max_burst": value.get("max_burst"),
        "ties": value.get("ties", Ties.ANY) if value["type"] == TopicType.PRIORITY.value else None,
        "max_priority": value.get("max_priority"),
        "merge": Merge.from_json(value["merge"]) if "merge" in value else None,
    }


def min_reader_of(topic: Topic) -> int:
    """Return the oldest version of RMQ's documents that may act on a topic: older ones misread ages and records."""
    if topic.merge is not None:
        return MERGE_VERSION
    return FIRST_VERSION if topic.max_priority is None else AGES_VERSION
