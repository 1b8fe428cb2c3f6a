"""Messages folded before they are sent leave what they would leave one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq import (
    PER_MESSAGE,
    Collect,
    Fixed,
    FixedTimeMessage,
    JoinMessage,
    Keep,
    Leading,
    Max,
    Merge,
    Min,
    Newest,
    PriorityMessage,
    PriorityRule,
    RangeMergeMessage,
    Replace,
    Sliding,
    Sum,
    Topic,
    TopicType,
)
from rmq._model.batches import EncodedMessage
from rmq._model.records import Record, fold, read_record
from tests.support.core import encode, fold_messages

HIGHEST = 100
REDUCERS = [Keep(), Replace(), Newest(), Max(), Min(), Sum(), Collect(), Collect(unique=True)]
WINDOWS = [None, Fixed("5ms"), Sliding("5ms", max_wait="50ms"), Leading("5ms"), Leading("5ms", trailing=False)]
JOIN = Merge(Collect(unique=True), Sliding(max_wait="50ms"), PER_MESSAGE)


def made(merge: Merge, type: TopicType = TopicType.RANGE_MERGE, **settings: Any) -> Topic:
    return Topic("t", type, merge=merge, **settings)


TOPICS = [
    made(JOIN),
    *(made(Merge(reduce, window)) for reduce in (Newest(), Sum()) for window in WINDOWS),
    *(
        made(Merge(reduce, priority=rule), TopicType.PRIORITY, max_priority=HIGHEST)
        for reduce in (Newest(), Sum())
        for rule in PriorityRule
    ),
    *(made(Merge(reduce), TopicType.FIXED_TIME) for reduce in REDUCERS),
]


def records(encoded: Sequence[EncodedMessage]) -> list[Record]:
    return [record for message in encoded if (record := read_record(message.body)) is not None]


@st.composite
def sends(draw: st.DrawFn, topic: Topic) -> list[EncodedMessage]:
    def one() -> EncodedMessage:
        content, score = draw(st.sampled_from("ab")), draw(st.sampled_from([3, 30, 60, 90]))
        merge = topic.merge
        assert merge is not None
        if merge.joins:
            return encode(
                topic, JoinMessage(content, draw(st.sampled_from("xyz")), draw(st.integers(1, 3)), time_range_ms=score)
            )
        body: Any = draw(st.sampled_from("uvw"))
        if merge.kind in "XIS":
            body = draw(st.integers(-9, 9))
        version = draw(st.integers(0, 3)) if merge.kind == "N" else None
        kinds: dict[TopicType, Any] = {
            TopicType.RANGE_MERGE: RangeMergeMessage,
            TopicType.PRIORITY: PriorityMessage,
            TopicType.FIXED_TIME: FixedTimeMessage,
        }
        weight = draw(st.integers(1, 5))
        names = {TopicType.RANGE_MERGE: "time_range_ms", TopicType.PRIORITY: "priority"}
        given: Any = {names.get(topic.type, "fixed_time_ms"): score}
        return encode(topic, kinds[topic.type](content, body=body, version=version, weight=weight, **given))

    return [one() for _ in range(draw(st.integers(0, 5)))]


class Store:
    """What docs/internals/merging.md says that sends at one instant, time 0, leave in an empty slot."""

    def __init__(self, topic: Topic) -> None:
        assert topic.merge is not None
        self._topic, self._merge = topic, topic.merge
        self.messages: dict[bytes, tuple[int, Record]] = {}

    def send(self, encoded: Sequence[EncodedMessage]) -> Store:
        for message, record in zip(encoded, records(encoded), strict=True):
            if message.content not in self.messages:
                self.messages[message.content] = self._first(message.value, record), record
                continue
            score, stored = self.messages[message.content]
            newest = record.kind != "N" or record.number >= stored.number
            folded = fold(stored, record)
            self.messages[message.content] = self._next(score, message.value, folded, newest), folded
        return self

    def _first(self, sent: int, record: Record) -> int:
        if isinstance(self._merge.window, Leading) or self._complete(record):
            return 0
        return min(sent, 50) if isinstance(self._merge.window, Sliding) else sent

    def _next(self, score: int, sent: int, folded: Record, newest: bool) -> int:
        if score == 0 or not newest:
            return score
        if self._topic.type is TopicType.FIXED_TIME:
            return sent
        if self._topic.type is TopicType.PRIORITY:
            return self._priority(score, sent)
        return self._first(sent, folded) if isinstance(self._merge.window, Sliding) else score

    def _priority(self, score: int, sent: int) -> int:
        match self._merge.priority:
            case PriorityRule.HIGHEST:
                return max(score, sent)
            case PriorityRule.LOWEST:
                return min(score, sent)
            case PriorityRule.SUM:
                return min(score + sent, HIGHEST)
            case _:
                return sent

    def _complete(self, record: Record) -> bool:
        return record.kind == "J" and record.number >= record.wanted


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: repr(topic.merge))
@settings(max_examples=50)
@given(st.data())
def test_folded_or_one_by_one_the_same_is_left(topic: Topic, data: st.DataObject) -> None:
    before, after = data.draw(sends(topic)), data.draw(sends(topic))
    store = Store(topic).send(before).send(after)
    assert Store(topic).send(before).send(fold_messages(topic, after)).messages == store.messages


@pytest.mark.parametrize("topic", [made(Merge(Sum(), Fixed("5ms"))), made(Merge(Collect()), TopicType.FIXED_TIME)])
@given(st.data())
def test_the_messages_of_a_content_become_one(topic: Topic, data: st.DataObject) -> None:
    encoded = data.draw(sends(topic))
    contents = [message.content for message in fold_messages(topic, encoded)]
    assert contents == list(dict.fromkeys(message.content for message in encoded))


def test_a_fold_stays_within_the_bounds() -> None:
    topic = made(Merge(Collect(max_items=3, max_bytes=20), Fixed("5ms")))
    some = [encode(topic, RangeMergeMessage("a", body=body)) for body in ("1", "2", "3", "4", "5" * 16, "6")]
    folded = records(fold_messages(topic, some))
    assert [record.items for record in folded] == [(b"1", b"2", b"3"), (b"4",), (b"5" * 16,), (b"6",)]
    assert [record.count for record in folded] == [3, 1, 1, 1]


def test_a_set_that_has_the_item_already_needs_no_room() -> None:
    topic = made(Merge(Collect(2, unique=True), Fixed("5ms")))
    some = [encode(topic, RangeMergeMessage("a", body=body)) for body in ("1", "2", "1", "2", "3")]
    folded = records(fold_messages(topic, some))
    assert [(record.items, record.count) for record in folded] == [((b"1", b"2"), 4), ((b"3",), 1)]


def test_parts_of_a_join_have_the_bytes_of_its_items_only() -> None:
    topic = made(Merge(Collect(9, 10, unique=True), Sliding(max_wait="5ms"), PER_MESSAGE))
    some = [encode(topic, JoinMessage("a", part, of=3)) for part in "123"]
    assert [record.items for record in records(fold_messages(topic, some))] == [(b"1", b"2"), (b"3",)]


def test_a_sum_stays_within_its_range() -> None:
    topic = made(Merge(Sum(), Fixed("5ms")))
    some = [encode(topic, RangeMergeMessage("a", body=body)) for body in (2**53 - 1, 1, -1, -5)]
    assert [record.number for record in records(fold_messages(topic, some))] == [2**53 - 1, -5]


@pytest.mark.parametrize("rule", ["highest", "lowest", "sum"])
def test_versions_are_not_folded_where_only_the_store_knows_which_priorities_count(rule: str) -> None:
    topic = made(Merge(Newest(), priority=rule), TopicType.PRIORITY)
    some = [encode(topic, PriorityMessage("a", 5, body="b", version=version)) for version in (1, 2)]
    assert fold_messages(topic, some) == some
