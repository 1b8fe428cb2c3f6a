"""Values of the library as documents for `--json`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from typing import Any

from rmq._model.deliveries import Delivery
from rmq._model.display import json_payload
from rmq._model.entries import DeadEntry, StreamDelivery, StreamEntry
from rmq._model.figures import TOTALS, ConsumerStats, GroupStats, StreamStats, TopicStats
from rmq._model.merge_words import Carrier, item_count, plain_value
from rmq._model.topics import Topic
from rmq._model.whereabouts import DeadMessage, FoundMessage, PeekedMessage, Whereabouts
from rmq._model.workers import WorkerInfo

Document = dict[str, Any]


class Place(Enum):
    """A place: its name in the library, and as people type and read it."""

    store = "store"
    prepare = "in-flight"
    retry = "retry"
    dead = "dead"


SLOT_TOTALS = tuple(name for name in TOTALS if name != "adopted")
"""The counters of a slot that `rmq stats` gives."""

_SIZES = "in_flight waiting dead unaccounted"


def picked(value: object, names: str) -> Document:
    """Return the attributes with these names, separated by blanks; `new=name` gives an attribute another name."""
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
    """Return the fields on a merged message's sends; empty if the topic has no merge."""
    if topic.merge is None or found is None:
        return {}
    value = plain_value(found)
    return {
        "value": [json_payload(item) for item in value] if isinstance(value, tuple) else _plain(value),
        "item_count": item_count(found),
        **picked(found, "merged first_sent_ms last_sent_ms version wanted complete"),
    }


def message(topic: Topic, found: PeekedMessage | FoundMessage) -> Document:
    """Return a message in its section; of one that a search found also its error, and the length of its body."""
    more = "body_bytes error_type error_message" if isinstance(found, FoundMessage) else ""
    document = picked(found, f"topic slot place content body due_ms priority retries_left {more}")
    if isinstance(found, PeekedMessage) and found.place == "prepare":
        document |= picked(found, "handled_by handled_ms")
    return document | {"place": Place[found.place].value} | folded(topic, found)


def dead_message(topic: Topic, message: DeadMessage) -> Document:
    """Return a dead message and why it died; of an entry of a stream also its id and group."""
    entry = "id group" if isinstance(message, DeadEntry) else ""
    why = "died_ms error_type error_message attempts first_failed_ms last_failed_ms"
    return picked(message, f"topic slot {entry} content body {why}") | folded(topic, message)


def whereabouts(topic: Topic, found: Whereabouts) -> Document:
    """Return the places that hold a content, each with the message's data."""
    places: Document = {}
    for message in (found.stored, found.in_flight, found.waiting):
        if message is not None:
            lease = "lease_left_ms handled_by handled_ms" if message is found.in_flight else ""
            known = picked(message, f"score priority due_ms retries_left body {lease}")
            places[Place[message.place].value] = known | folded(topic, message)
    if found.in_flight is not None:
        places["in-flight"]["holders"] = list(found.holders)
    if found.dead is not None:
        known = picked(found.dead, "died_ms error_type error_message attempts body")
        places["dead"] = known | folded(topic, found.dead)
    why = found.failure and picked(found.failure, "error_type=type error_message=message first_ms last_ms")
    return {**picked(found, "topic slot content now_ms"), "places": places, "failure": why, "gone": found.gone}


def entry(topic: Topic, found: StreamEntry | StreamDelivery) -> Document:
    """Return an entry of a stream; `fields` only of one that was sent as fields."""
    fields = found.fields
    document = {"topic": topic.name, **picked(found, "slot id time_ms content body"), "fields": None}
    if "content" in fields and fields.keys() <= {"content", "body"}:
        return document
    payloads = {name: json_payload(value) for name, value in fields.items()}
    return document | {"content": None, "body": None, "fields": payloads}


def delivery(found: Delivery, late_ms: int | None) -> Document:
    """Return a delivery; `late_ms` is how late it came."""
    if isinstance(found, StreamDelivery):
        return {**entry(found.topic, found), **picked(found, "group attempt retries_left claimed_ms")}
    names = "slot content body attempt retries_left due_ms priority claimed_ms"
    return {"topic": found.topic.name, **picked(found, names), "late_ms": late_ms, **folded(found.topic, found)}


def topic_stats(stats: TopicStats, per_slot: bool) -> Document:
    """Return a topic's figures."""
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
    """Return a stream topic's figures with those of its groups, and of the consumers where they are given."""
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
    """Return a group's figures."""
    names = sorted({name for slot in stats.slots for name in slot.totals})
    totals = {name: stats.total(name) for name in names}
    return {**picked(stats, f"group lag pending {_SIZES}"), "totals": totals}


def worker(info: WorkerInfo) -> Document:
    """Return the last report of a worker process."""
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
