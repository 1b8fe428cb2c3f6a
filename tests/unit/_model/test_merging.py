"""How a topic says that its messages merge: rules, JSON, and what may change."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rmq
from rmq import (
    PER_MESSAGE,
    Collect,
    Fixed,
    InvalidTopicError,
    InvalidValueError,
    Keep,
    Leading,
    Max,
    Merge,
    Min,
    Newest,
    Overflow,
    PriorityRule,
    Replace,
    Sliding,
    Sum,
    Topic,
    TopicType,
)
from rmq._model.merging import same_merging
from rmq._model.times import MAX_DURATION_MS

anything: Any = rmq
"""Calls without types."""

PLAIN = [Keep(), Replace(), Newest(), Max(), Min(), Sum()]
durations = st.integers(1, MAX_DURATION_MS).map(lambda ms: timedelta(milliseconds=ms))
max_bytes = st.integers(1, 1_048_576)
overflows = st.sampled_from([None, *Overflow, *(each.value for each in Overflow)])
collects = st.builds(Collect, st.integers(1, 100_000), max_bytes, st.just(False), overflows) | st.builds(
    Collect, st.integers(1, 5_000), max_bytes, st.just(True), overflows
)
windows = st.one_of(
    st.builds(Fixed, durations),
    st.builds(Leading, durations, st.booleans()),
    durations.map(lambda longest: Sliding(max_wait=longest)),
    st.tuples(durations, durations).map(lambda both: Sliding(min(both), max_wait=max(both))),
)
merges = st.builds(
    Merge, st.sampled_from(PLAIN) | collects, st.none() | windows, st.none() | st.integers(1, 2**31)
) | st.builds(
    Merge,
    st.just(Collect(unique=True)),
    windows.filter(lambda window: not isinstance(window, Leading)),
    st.just(PER_MESSAGE),
)


def topic(merge: Any, type: TopicType = TopicType.RANGE_MERGE) -> Topic:
    return Topic("stock", type, merge=merge)


@given(merges)
def test_json_and_back(merge: Merge) -> None:
    assert Merge.from_json(json.loads(json.dumps(merge.to_json()))) == merge
    made = topic(merge)
    assert Topic.from_json(made.to_json()) == made
    assert hash(made.merge) == hash(merge)


@pytest.mark.parametrize("rule", PriorityRule)
def test_a_rule_of_priorities_and_back(rule: PriorityRule) -> None:
    made = topic(Merge(Sum(), priority=rule.value), TopicType.PRIORITY)
    assert made.merge == Merge(Sum(), priority=rule)
    assert Topic.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("merge", "letter"),
    [
        *((Merge(reduce), letter) for reduce, letter in zip(PLAIN, "KRNXIS", strict=True)),
        (Merge(Collect()), "C"),
        (Merge(Collect(unique=True)), "U"),
        (Merge(Collect(unique=True), max_count=PER_MESSAGE), "J"),
    ],
)
def test_the_letter_of_its_records(merge: Merge, letter: str) -> None:
    assert merge.kind == letter
    assert merge.joins is (letter == "J")


@pytest.mark.parametrize(
    ("window", "range_ms", "kind"),
    [
        (None, None, "fixed"),
        (Fixed(timedelta(seconds=2)), 2_000, "fixed"),
        (Fixed("0.5ms"), 1, "fixed"),
        (Leading("7ms"), 7, "trailing"),
        (Leading("7ms", trailing=False), 7, "leading"),
        (Sliding("2s", max_wait="30s"), 2_000, "sliding"),
        (Sliding("2s", max_wait="2s"), 2_000, "sliding"),
        (Sliding(max_wait=timedelta(hours=1)), 3_600_000, "sliding"),
    ],
)
def test_the_time_range_of_messages_that_name_none(window: Any, range_ms: int | None, kind: str) -> None:
    made = topic(Merge(window=window))
    assert made.default_range_ms == range_ms
    assert made.merge is not None
    assert made.merge.window_kind == kind
    assert topic(None).default_range_ms is None


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: anything.Fixed("0s"), "time_range of Fixed is '0s'; it must be more than 0"),
        (
            lambda: anything.Fixed(timedelta(-1)),
            "time_range of Fixed is datetime.timedelta(days=-1); it must lie between 0",
        ),
        (lambda: anything.Fixed(timedelta.max), "must lie between 0 and 100 years"),
        (
            lambda: anything.Fixed(2),
            r"time_range of Fixed is 2: is it '2ms' or '2s'?",
        ),
        (
            lambda: anything.Leading(timedelta(0)),
            "time_range of Leading is datetime.timedelta(0); it must be more than 0",
        ),
        (lambda: anything.Leading("1ms", trailing=1), "trailing of Leading is 1; it must be True or False"),
        (lambda: anything.Sliding("0s", max_wait="5ms"), "quiet of Sliding is '0s'; it must be more than 0"),
        (lambda: anything.Sliding(max_wait="0s"), "max_wait of Sliding is '0s'; it must be more than 0"),
        (
            lambda: anything.Sliding("2ms", max_wait="1ms"),
            "max_wait of Sliding is 1 ms; it must be at least quiet, which is 2 ms",
        ),
        (lambda: anything.Sliding(max_wait=None), "max_wait of Sliding is None; it must be a timedelta, or a text"),
        (lambda: anything.Collect(0), "max_items of Collect is 0; it must be a whole number from 1 to 100000"),
        (
            lambda: anything.Collect(100_001),
            "max_items of Collect is 100001; it must be a whole number from 1 to 100000",
        ),
        (
            lambda: anything.Collect(max_bytes=0),
            "max_bytes of Collect is 0; it must be a whole number from 1 to 1048576",
        ),
        (
            lambda: anything.Collect(max_bytes=1_048_577),
            "max_bytes of Collect is 1048577; it must be a whole number from 1 to",
        ),
        (lambda: anything.Collect(max_items=True), "max_items of Collect is True"),
        (lambda: anything.Collect(unique=0), "unique of Collect is 0; it must be True or False"),
        (
            lambda: anything.Collect(when_full="drop"),
            "when_full of Collect is 'drop'; it must be one of release, refuse, drop_o",
        ),
        (
            lambda: anything.Merge("sum"),
            "reduce of Merge is 'sum'; it must be Keep(), Replace(), Newest(), Max(), Min(), Sum()",
        ),
        (lambda: anything.Merge(Sum), "reduce of Merge is <class"),
        (lambda: anything.Merge(window=5), "window of Merge is 5; it must be a Fixed, Sliding, Leading or None"),
        (
            lambda: anything.Merge(max_count=0),
            "max_count of Merge is 0; it must be a whole number from 1 to 2147483648",
        ),
        (
            lambda: anything.Merge(max_count=2**31 + 1),
            "max_count of Merge is 2147483649; it must be a whole number from 1 to",
        ),
        (
            lambda: anything.Merge(priority="first"),
            "priority of Merge is 'first'; it must be one of last, highest, lowest, sum",
        ),
        (
            lambda: anything.Merge(max_count=PER_MESSAGE),
            "max_count=PER_MESSAGE needs reduce=Collect(unique=True), not Replace()",
        ),
        (
            lambda: anything.Merge(Collect(), max_count=PER_MESSAGE),
            "PER_MESSAGE needs reduce=Collect(unique=True), not Collect(",
        ),
        (
            lambda: anything.Merge(Collect(unique=True), Leading("5ms"), PER_MESSAGE),
            "; with max_count=PER_MESSAGE it must be Fixed, Sliding or None",
        ),
    ],
)
def test_rules_are_told_with_the_value(make: Any, text: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        make()
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("type", "merge", "text"),
    [
        (TopicType.RANGE_MERGE, Sum(), "merge of topic stock is Sum(); it must be a Merge or None"),
        (TopicType.STREAM, Merge(), "topic stock is STREAM; entries of a stream do not merge, so it takes no merge="),
        (TopicType.PRIORITY, Merge(window=Fixed("5ms")), "window of topic stock is Fixed("),
        (TopicType.FIXED_TIME, Merge(max_count=5), "max_count of topic stock is 5; only RANGE_MERGE topics have a"),
        (
            TopicType.PRIORITY,
            Merge(Collect(unique=True), max_count=PER_MESSAGE),
            "max_count of topic stock is <PerMess",
        ),
        (
            TopicType.RANGE_MERGE,
            Merge(priority="sum"),
            "priority of merge of topic stock is sum; RANGE_MERGE topics have no pri",
        ),
        (
            TopicType.FIXED_TIME,
            Merge(priority="lowest"),
            "priority of merge of topic stock is lowest; FIXED_TIME topics have n",
        ),
        (
            TopicType.FIXED_TIME,
            Merge(Collect(when_full="release")),
            "when_full of Collect of topic stock is release; on FIXED_TIME",
        ),
    ],
)
def test_what_a_type_does_not_have(type: TopicType, merge: Any, text: str) -> None:
    with pytest.raises(InvalidTopicError) as refused:
        topic(merge, type)
    assert text in str(refused.value)


def test_what_is_full_is_due_where_it_can_be() -> None:
    merge = Merge(Collect())
    assert [merge.overflow(kind) for kind in (TopicType.RANGE_MERGE, TopicType.PRIORITY, TopicType.FIXED_TIME)] == [
        Overflow.RELEASE,
        Overflow.RELEASE,
        Overflow.REFUSE,
    ]
    assert Merge(Collect(when_full="drop_oldest")).overflow(TopicType.FIXED_TIME) is Overflow.DROP_OLDEST
    assert topic(merge, TopicType.FIXED_TIME).merge == merge


BASE = Merge(Collect(), Fixed("5ms"), 10)


@pytest.mark.parametrize(
    "after",
    [
        Merge(Collect(), Sliding("1ms", max_wait="9ms"), 10),
        Merge(Collect(), None, None),
        Merge(Collect(5, 50, when_full="refuse"), Fixed("5ms"), 11),
    ],
)
def test_windows_and_bounds_change(after: Merge) -> None:
    changed = topic(BASE).changed(merge=after)
    assert changed.merge == after
    assert changed.changes == {"merge"}


JOIN = Merge(Collect(unique=True), max_count=PER_MESSAGE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BASE, None),
        (None, BASE),
        (BASE, Merge(Sum(), Fixed("5ms"), 10)),
        (BASE, Merge(Collect(unique=True), Fixed("5ms"), 10)),
        (JOIN, Merge(Collect(unique=True), max_count=3)),
        (Merge(Collect(unique=True), max_count=3), JOIN),
    ],
)
def test_the_way_of_merging_does_not_change(before: Merge | None, after: Merge | None) -> None:
    assert not same_merging(before, after)
    with pytest.raises(
        InvalidTopicError, match=r"merge of topic stock is .* and can't become .*: only its window, its max"
    ):
        topic(before).changed(merge=after)


def test_nor_does_the_rule_of_priorities() -> None:
    with pytest.raises(InvalidTopicError, match="can't become"):
        topic(Merge(), TopicType.PRIORITY).changed(merge=Merge(priority="sum"))


GOOD = json.loads(topic(Merge(Collect(), Sliding("1ms", max_wait="9ms"))).to_json())


@pytest.mark.parametrize(
    "merge",
    [
        [],
        {},
        None,
        {"reduce": {"kind": "sum"}},
        {"reduce": {"kind": "median"}, "priority": "last"},
        {"reduce": {"kind": ["sum"]}, "priority": "last"},
        {"reduce": {"kind": "collect"}, "priority": "last"},
        {"reduce": {"kind": "sum"}, "priority": "first"},
        {"reduce": {"kind": "sum"}, "priority": "last", "window": {"kind": "weekly"}},
        {"reduce": {"kind": "sum"}, "priority": "last", "window": {"kind": "sliding"}},
        {"reduce": {"kind": "sum"}, "priority": "last", "max_count": "per_message"},
    ],
)
def test_what_is_no_way_of_merging_is_refused(merge: Any) -> None:
    assert Topic.from_json(json.dumps(GOOD)).merge is not None
    with pytest.raises(InvalidTopicError, match="cannot be read"):
        Topic.from_json(json.dumps(GOOD | {"merge": merge}))
