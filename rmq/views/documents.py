"""Conversion of the library's values to the JSON documents of `--json`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from typing import Any

from rmq import (
    ConsumerStats,
    DeadEntry,
    DeadMessage,
    Delivery,
    FoundMessage,
    GroupStats,
    PeekedMessage,
    StreamDelivery,
    StreamEntry,
    StreamStats,
    Topic,
    TopicStats,
    Whereabouts,
    WorkerInfo,
)
from rmq.spi import TOTALS
from rmq.views.findings import Finding, Reading, TopicReading
from rmq.views.words import Carrier, item_count, json_payload, plain_value

Document = dict[str, Any]


class Place(Enum):
    """State of a message: the name is that of the library, the value that of the command line."""

    store = "store"
    prepare = "in-flight"
    retry = "retry"
    dead = "dead"


SLOT_TOTALS = tuple(name for name in TOTALS if name != "adopted")
"""Counters of a slot that `rmq stats` prints."""

_SIZES = "in_flight waiting dead unaccounted"


def picked(value: object, names: str) -> Document:
    """Return a document of the attributes in `names`, separated by spaces; `new=name` renames an attribute."""
    document: Document = {}
    for each in names.split():
        key, _, name = each.partition("=")
        document[key] = _plain(getattr(value, name or key))
    return document


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return json_payload(value)
    return value.isoformat() if isinstance(value, datetime) else value


def folded(topic: Topic, found: Carrier | None) -> Document:
    """Return the value, count and times of a merged message; empty without a message, or on a topic without merge."""
    if topic.merge is None or found is None:
        return {}
    value = plain_value(found)
    return {
        "value": [json_payload(item) for item in value] if isinstance(value, tuple) else _plain(value),
        "item_count": item_count(found),
        **picked(found, "merged first_sent_ms last_sent_ms version wanted complete"),
    }


def message(topic: Topic, found: PeekedMessage | FoundMessage) -> Document:
    """Return the document of a message. A message found by a search also has its error and the size of its body."""
    more = "body_bytes error_type error_message" if isinstance(found, FoundMessage) else ""
    document = picked(found, f"topic slot place content body due_ms priority retries_left {more}")
    if isinstance(found, PeekedMessage) and found.place == "prepare":
        document |= picked(found, "claimed_ms handled_by handled_ms")
    return document | {"place": Place[found.place].value} | folded(topic, found)


def dead_message(topic: Topic, message: DeadMessage) -> Document:
    """Return the document of a dead message and its error. A dead stream entry also has its id and group."""
    entry = "id group" if isinstance(message, DeadEntry) else ""
    why = "died_ms error_type error_message attempts first_failed_ms last_failed_ms"
    return picked(message, f"topic slot {entry} content body {why}") | _attempts(message) | folded(topic, message)


def _attempts(message: DeadMessage) -> Document:
    """Return the failed attempts of a message; empty unless its topic keeps them."""
    if not message.history:
        return {}
    return {"traceback": message.traceback, "history": [asdict(each) for each in message.history]}


def whereabouts(topic: Topic, found: Whereabouts) -> Document:
    """Return the document of `rmq find`: the states in which the content exists, each with the message's data."""
    places: Document = {}
    for message in (found.stored, found.in_flight, found.waiting):
        if message is not None:
            lease = "lease_left_ms claimed_ms handled_by handled_ms" if message is found.in_flight else ""
            known = picked(message, f"score priority due_ms retries_left body {lease}")
            places[Place[message.place].value] = known | folded(topic, message)
    if found.in_flight is not None:
        places["in-flight"]["holders"] = list(found.holders)
    if found.dead is not None:
        known = picked(found.dead, "died_ms error_type error_message attempts body")
        places["dead"] = known | _attempts(found.dead) | folded(topic, found.dead)
    why = found.failure and picked(found.failure, "error_type=type error_message=message first_ms last_ms")
    return {**picked(found, "topic slot content now_ms"), "places": places, "failure": why, "gone": found.gone}


def entry(topic: Topic, found: StreamEntry | StreamDelivery) -> Document:
    """Return the document of a stream entry. `fields` is `None` unless the entry was sent as fields."""
    fields = found.fields
    document = {"topic": topic.name, **picked(found, "slot id time_ms content body"), "fields": None}
    if "content" in fields and fields.keys() <= {"content", "body"}:
        return document
    payloads = {name: json_payload(value) for name, value in fields.items()}
    return document | {"content": None, "body": None, "fields": payloads}


def delivery(found: Delivery, late_ms: int | None) -> Document:
    """Return the document of a delivery. `late_ms` is the time from its due time to its claim, if it has a due time."""
    if isinstance(found, StreamDelivery):
        return {**entry(found.topic, found), **picked(found, "group attempt retries_left claimed_ms")}
    names = "slot content body attempt retries_left due_ms priority claimed_ms"
    return {"topic": found.topic.name, **picked(found, names), "late_ms": late_ms, **folded(found.topic, found)}


def topic_stats(stats: TopicStats, per_slot: bool) -> Document:
    """Return the document of a topic's figures, with those of each slot if `per_slot`."""
    document = {**_definition(stats.topic), **_sizes(stats), "merged_ratio": stats.merged_ratio}
    if per_slot:
        document["per_slot"] = [
            {**picked(slot, "slot next_due_ms epoch paused"), **_sizes(TopicStats(stats.topic, (slot,)))}
            for slot in stats.slots
        ]
    return document


def _definition(topic: Topic) -> Document:
    return {"topic": topic.name, "type": topic.type.value, "slots": topic.slots}


def _sizes(stats: TopicStats) -> Document:
    sizes = picked(stats, f"backlog due_now oldest_due_ms late_ms=lateness_ms {_SIZES}")
    return {**sizes, "totals": {name: stats.total(name) for name in SLOT_TOTALS}}


def stream_stats(
    stats: StreamStats, groups: Iterable[GroupStats], consumers: Iterable[ConsumerStats] | None, per_slot: bool
) -> Document:
    """Return the document of a stream topic's figures, with its groups, and its consumers unless they are `None`."""
    groups = list(groups)
    document = {
        **_definition(stats.topic),
        "length": stats.length,
        "first_id": stats.first_id or None,
        "last_id": stats.last_id or None,
        "unaccounted": stats.unaccounted,
        "totals": {name: stats.total(name) for name in ("accepted", "copied", "trimmed", "deleted")},
        "groups": [group(each) for each in groups],
    }
    if consumers is not None:
        document["consumers"] = [asdict(each) for each in consumers]
    if per_slot:
        document["per_slot"] = [
            {**picked(slot, "slot length"), "first_id": slot.first_id or None, "last_id": slot.last_id or None}
            for slot in stats.slots
        ]
        document["groups_per_slot"] = [asdict(slot) for each in groups for slot in each.slots]
    return document


def group(stats: GroupStats) -> Document:
    """Return the document of a group's figures."""
    names = sorted({name for slot in stats.slots for name in slot.totals})
    totals = {name: stats.total(name) for name in names}
    return {**picked(stats, f"group lag pending {_SIZES}"), "totals": totals}


def worker(info: WorkerInfo) -> Document:
    """Return the document of the last report of a worker process."""
    names = "topic group threads slots owned=slots busy=busy_slots in_flight handled failed handled_per_s failed_per_s"
    names += " limit paused_ms throttled"
    return picked(info, "name host pid started_ms seen_ms silent_ms stale zookeeper") | {
        "listeners": [
            picked(each, names)
            | {"slots": len(each.slots)}  # a number there, the slots themselves as `owned`
            | {f"p{part}_ms": each.times.quantile_ms(part / 100) for part in (50, 99)}
            | {"running": len(each.running)}
            | {"handlers": [picked(one, "slot content messages running_ms hung") for one in each.running]}
            for each in info.listeners
        ]
    }


def status(reading: Reading, topics: Iterable[TopicReading], findings: Iterable[Finding]) -> Document:
    """Return the document of `rmq status`: the findings and the topics, the worst first."""
    return {
        "findings": [each.to_document() for each in findings],
        "topics": [
            {**_definition(each.topic), **picked(each, "oldest_ms paused"), "rates": each.rates or None}
            | picked(each.figures, "backlog due_now in_flight waiting dead")
            | {"groups": [{**group(one), "oldest_unread_ms": each.unread_ms.get(one.group)} for one in each.groups]}
            | ({"trouble": each.trouble} if each.trouble else {})
            for each in topics
        ],
        "workers": len(reading.active),
        "memory": {server: asdict(each) for server, each in reading.memory.items()},
    }
