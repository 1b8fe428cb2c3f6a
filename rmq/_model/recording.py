"""Turns what a message carries into a record, as its topic's `merge` says."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NoReturn, cast

from rmq._model.merging import MAX_COUNT, Collect, Merge
from rmq._model.payloads import Body, Payload, checked_body, checked_payload
from rmq._model.records import BODIES, ITEMS, MAX_WHOLE, framed, new_record, wanting
from rmq._model.topics import Topic
from rmq.errors import InvalidMessageError


def refuse_extras(topic: Topic, content: bytes, version: int | None, weight: int) -> NoReturn:
    """Refuse a version or a weight on a topic without `merge`, with `InvalidMessageError`."""
    name, value = ("weight", weight) if version is None else ("version", version)
    raise InvalidMessageError(
        f"{name} of {content!r:.80} is {value!r}; topic {topic.name} has no merge, and takes none", topic=topic.name
    )


def record_of(topic: Topic, content: bytes, body: Body, version: int | None, weight: int) -> bytes:
    """Return the record of a message, without times: Redis knows them.

    Raises:
        InvalidMessageError: Version, weight or body are not what the topic's reducer takes.
    """
    merge = cast("Merge", topic.merge)
    if type(weight) is not int or not 1 <= weight <= MAX_COUNT:
        raise InvalidMessageError(
            f"weight of {content!r:.80} is {weight!r}; it must be a whole number from 1 to {MAX_COUNT}",
            topic=topic.name,
        )
    kind = merge.kind
    number = 0 if version is None and kind != "N" else _version(topic, content, version, kind)
    if kind in BODIES:
        stored = checked_body(topic, content, body)
        value = b"" if stored is None else b"=" + stored
    elif kind in ITEMS:
        items = body if isinstance(body, tuple | list) else (body,)
        number, value = _collected(topic, merge, content, items)
    else:
        number, value = _number(topic, content, body, kind), b""
    return new_record(kind, value, number, weight)


def join_record(topic: Topic, content: bytes, part: Payload, of: int) -> bytes:
    """Return the record of one part of a join, without times; raises as `record_of`."""
    merge = cast("Merge", topic.merge)
    most = cast("Collect", merge.reduce).max_items
    if of > most:
        raise InvalidMessageError(
            f"of of {content!r:.80} is {of}; topic {topic.name} takes up to max_items, which is {most}",
            topic=topic.name,
        )
    number, value = _collected(topic, merge, content, (part,))
    return new_record("J", wanting(of) + value, number)


def _version(topic: Topic, content: bytes, version: int | None, kind: str) -> int:
    if kind != "N":
        rule = f"only topics with merge=Merge(Newest()) take one, and {topic.name} is none"
    elif type(version) is int and 0 <= version <= MAX_WHOLE:
        return version
    else:
        rule = f"on topic {topic.name} it must be a whole number from 0 to 2^53 - 1"
    raise InvalidMessageError(f"version of {content!r:.80} is {version!r}; {rule}", topic=topic.name)


def _number(topic: Topic, content: bytes, body: Body, kind: str) -> int | float:
    if type(body) is int and -MAX_WHOLE <= body <= MAX_WHOLE:
        return body
    if isinstance(body, int | float) and not isinstance(body, bool):
        if abs(body) <= MAX_WHOLE or (isinstance(body, float) and kind != "S" and isfinite(body)):
            return body
    most = "up to 2^53 - 1, plus or minus" if kind == "S" else "finite, a whole one up to 2^53 - 1, plus or minus"
    raise InvalidMessageError(
        f"body of {content!r:.80} is {body!r:.80}; on topic {topic.name} it must be a number, {most}",
        topic=topic.name,
    )


def _collected(topic: Topic, merge: Merge, content: bytes, items: Sequence[Body]) -> tuple[int, bytes]:
    """Return the number of items and their frames."""
    bounds = cast("Collect", merge.reduce)
    if not items or None in items:
        raise InvalidMessageError(
            f"body of {content!r:.80} is {tuple(items)!r:.80}; "
            f"topic {topic.name} collects items: it must be one, or a tuple of them",
            topic=topic.name,
        )
    name = "part" if merge.joins else "item"
    stored = [checked_payload(topic, content, item, name) for item in items]
    if bounds.unique:
        stored = list(dict.fromkeys(stored))
    value = framed(stored)
    if len(stored) > bounds.max_items or len(value) > bounds.max_bytes:
        raise InvalidMessageError(
            f"body of {content!r:.80} has {len(stored)} items of {len(value)} bytes, 4 more each than they have; topic "
            f"{topic.name} collects up to max_items={bounds.max_items}, max_bytes={bounds.max_bytes}",
            topic=topic.name,
        )
    return len(stored), value
