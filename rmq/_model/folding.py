"""Folds messages before they are sent, as their topic's sends would."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from rmq._model.merging import Collect, Merge, PriorityRule, Sliding
from rmq._model.messages import Encoded
from rmq._model.records import ITEMS, MAX_WHOLE, Record, fold, read_record, write_record
from rmq._model.topics import Topic, TopicType


def fold_messages(topic: Topic, encoded: Iterable[Encoded]) -> list[Encoded]:
    """Return messages of a topic with `merge` with those of one content folded, in the order of their first ones.

    Where a fold would leave the bounds of a `Collect` or the range of a `Sum`, or is not certain to be what the sends
    would make of it, a further message of that content stands behind it.

    Guarantee: sent, they leave what the messages would leave that were sent one by one at one instant, where
        `Collect`'s bounds refuse or drop nothing, and no FIXED_TIME lies in the past.
    """
    folded: list[Encoded] = []
    places: dict[tuple[int, bytes], int] = {}
    for message in encoded:
        name = message.slot, message.content
        place = places.get(name)
        together = None if place is None else fold_pair(topic, folded[place], message)
        if place is None or together is None:
            places[name] = len(folded)
            folded.append(message)
        else:
            folded[place] = together
    return folded


def fold_pair(topic: Topic, older: Encoded, newer: Encoded) -> Encoded | None:
    """Return one message of two of one content, `None` where it is better not to fold them: see `fold_messages`."""
    merge, first, second = cast("Merge", topic.merge), _record_of(older), _record_of(newer)
    together = _together(merge, first, second)
    if together is None:
        return None
    outdated = first.kind == "N" and first.number > second.number
    score = older.score if outdated else _score(topic, merge, older.score, newer.score)
    return older._replace(score=score, body=write_record(together))


def _record_of(message: Encoded) -> Record:
    return cast("Record", read_record(message.body))


def _together(merge: Merge, older: Record, newer: Record) -> Record | None:
    """Return the fold of two sends, `None` where it is better not to fold them."""
    if newer.kind == "N" and merge.priority is not PriorityRule.LAST:
        return None  # an older version leaves the priority: which one is older the message in store says, too
    if newer.kind == "J" and older.wanted != newer.wanted:
        return None  # the first of them may be complete by itself
    together = fold(older, newer)
    if together.kind == "S" and abs(together.number) > MAX_WHOLE:
        return None
    if together.kind in ITEMS:
        bounds = cast("Collect", merge.reduce)
        size = len(together.value) - (8 if together.kind == "J" else 0)
        if together.number > bounds.max_items or size > bounds.max_bytes:
            return None
    return together


def _score(topic: Topic, merge: Merge, older: int, newer: int) -> int:
    """Return the time range, time or priority of two sends, of which the newer one may decide it."""
    if topic.type is TopicType.RANGE_MERGE:
        return newer if isinstance(merge.window, Sliding) else older
    if topic.type is TopicType.FIXED_TIME or merge.priority is PriorityRule.LAST:
        return newer
    if merge.priority is PriorityRule.SUM:
        return min(older + newer, topic.priorities[1])
    return (max if merge.priority is PriorityRule.HIGHEST else min)(older, newer)
