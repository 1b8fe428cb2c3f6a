from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import ExponentialRetry, ImmediateRetry, LadderRetry, Retention, RmqClient, Topic, TopicType, WhenFull
from rmq.errors import InvalidTopicError, InvalidValueError

seconds = st.integers(1, 86_400).map(lambda number: timedelta(seconds=number))

topics = st.builds(
    Topic,
    st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True),
    st.sampled_from(TopicType),
    slots=st.integers(0, 14).map(lambda power: 2**power),
    max_retries=st.integers(0, 999),
    lease=seconds,
    retry=st.sampled_from([ImmediateRetry(), ExponentialRetry(), LadderRetry(("1s", "2s"))]),
    max_content_bytes=st.integers(1, 65_536),
    max_body_bytes=st.integers(0, 16 * 1_048_576),
    max_backlog=st.none() | st.integers(1, 2**53 - 1),
    max_dead=st.integers(0, 2**53 - 1),
    max_dead_age=st.integers(0, 10**12).map(lambda ms: timedelta(milliseconds=ms)),
)


@given(topics)
def test_json_and_back(topic: Topic) -> None:
    assert Topic.from_json(topic.to_json()) == topic
    assert Topic.from_json(topic.to_json().encode()) == topic


@pytest.mark.parametrize("when_full", WhenFull)
def test_how_long_a_send_waits_is_kept_also_where_none_waits_yet(when_full: WhenFull) -> None:
    topic = Topic("t", TopicType.PRIORITY, when_full=when_full, full_timeout="5s")
    assert Topic.from_json(topic.to_json()) == topic


def test_the_defaults_are_those_of_the_contract() -> None:
    topic = Topic("t", TopicType.RANGE_MERGE)
    assert (topic.slots, topic.max_retries, topic.lease_s, topic.retry) == (1, 16, 60, ExponentialRetry())
    assert (topic.max_backlog_per_slot, topic.max_dead_per_slot) == (0, 1_000_000)
    assert topic.max_dead_age_ms == 30 * 86_400_000
    assert hash(topic) == hash(Topic("t", TopicType.RANGE_MERGE))


def test_shares_of_a_slot_are_rounded_up() -> None:
    topic = Topic("t", TopicType.PRIORITY, slots=8, max_backlog=9, max_dead=17)
    assert (topic.max_backlog_per_slot, topic.max_dead_per_slot) == (2, 3)


def test_durations_may_be_texts() -> None:
    topic = Topic("t", TopicType.PRIORITY, lease="5s", max_dead_age="0.5ms")
    assert (topic.lease, topic.lease_s, topic.max_dead_age_ms) == (timedelta(seconds=5), 5, 1)


@pytest.mark.parametrize("kind", TopicType)
def test_two_types_are_timed(kind: TopicType) -> None:
    assert kind.timed is (kind in (TopicType.RANGE_MERGE, TopicType.FIXED_TIME))


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "a{b}", "{a", "a}", "ä", "a\n", "a:b", 7, None])
def test_names(name: Any) -> None:
    # pitfall 23
    with pytest.raises(InvalidTopicError) as refused:
        Topic(name, TopicType.PRIORITY)
    assert str(refused.value) == f"topic name is {name!r}; it must be 1 to 128 characters of A-Z a-z 0-9 . _ -"


@pytest.mark.parametrize(
    ("setting", "value", "rule"),
    [
        ("slots", 0, "a whole number from 1 to 16384"),
        ("slots", 32_768, "a whole number from 1 to 16384"),
        ("slots", 12, "a power of two"),
        ("slots", True, "a whole number from 1 to 16384"),
        ("slots", 2.0, "a whole number from 1 to 16384"),
        ("max_retries", -1, "a whole number from 0 to 999"),
        ("max_retries", 1_000, "a whole number from 0 to 999"),
        ("lease", timedelta(0), "whole seconds, 1 s to 24 h"),
        ("lease", timedelta(seconds=1.5), "whole seconds, 1 s to 24 h"),
        ("lease", timedelta(hours=24, seconds=1), "whole seconds, 1 s to 24 h"),
        ("lease", 60, "lease is 60: is it '60ms' or '60s'?"),
        ("lease", timedelta.max, "between 0 and 100 years"),
        ("retry", "ladder", "an ImmediateRetry, ExponentialRetry or LadderRetry"),
        ("retry", None, "an ImmediateRetry, ExponentialRetry or LadderRetry"),
        ("max_content_bytes", 0, "a whole number from 1 to 65536"),
        ("max_content_bytes", 65_537, "a whole number from 1 to 65536"),
        ("max_body_bytes", -1, "a whole number from 0 to 16777216"),
        ("max_body_bytes", 16_777_217, "a whole number from 0 to 16777216"),
        ("max_backlog", 0, "a whole number from 1 to 9007199254740991"),
        ("max_backlog", 2**53, "a whole number from 1 to 9007199254740991"),
        ("max_dead", -1, "a whole number from 0 to 9007199254740991"),
        ("max_dead", None, "a whole number from 0 to 9007199254740991"),
        ("max_dead_age", timedelta(-1), "between 0 and 100 years"),
        ("max_dead_age", float("nan"), "a timedelta, or a text such as"),
        ("retention", 7, "must be a Retention"),
        ("full_timeout", None, "a timedelta, or a text such as"),
    ],
)
def test_bounds_are_told_by_value_and_rule(setting: str, value: Any, rule: str) -> None:
    with pytest.raises(InvalidTopicError) as refused:
        Topic("orders", TopicType.PRIORITY, **{setting: value})
    text = str(refused.value)
    assert setting in text
    assert "orders" in text
    assert repr(value) in text
    assert rule in text


@pytest.mark.parametrize(
    "changes",
    [
        {"shrink": "no"},
        {"approximate": 1},
        {"unacked": None},
        {"max_length": 2**53},
        {"max_length": -1},
        {"max_length": True},
    ],
)
def test_a_retention_is_told_by_value_and_rule(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match=r"is .*; it must be "):
        Retention(**changes)


@pytest.mark.parametrize("name", ["timeout_s", "deadline_s"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "5", None, True, 1e300])
def test_times_of_a_client_are_told_by_value_and_rule(name: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=f"{name} is .*; it must be a number of seconds from "):
        RmqClient("redis://localhost:1", **{name: value})


def test_the_type_is_a_topic_type() -> None:
    with pytest.raises(InvalidTopicError, match="type of topic t is 'PRIORITY'; it must be one of TopicType"):
        Topic("t", "PRIORITY")  # pyright: ignore[reportArgumentType]


def test_settings_change_but_not_the_identity() -> None:
    topic = Topic("t", TopicType.PRIORITY, slots=4)
    assert topic.changed(max_retries=3) == Topic("t", TopicType.PRIORITY, slots=4, max_retries=3)
    for fixed in ("name", "type", "slots"):
        with pytest.raises(InvalidTopicError, match=f"{fixed} of topic t is part of its identity"):
            topic.changed(**{fixed: topic})
    with pytest.raises(InvalidTopicError, match="max_retries of topic t is -1"):
        topic.changed(max_retries=-1)


GOOD = json.loads(Topic("t", TopicType.PRIORITY).to_json())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        b"\xff",
        json.dumps(GOOD | {"type": "NEW"}),
        json.dumps(GOOD | {"slots": 3}),
        json.dumps(GOOD | {"retry": []}),
        json.dumps(GOOD | {"retry": {"policy": "new"}}),
        json.dumps(GOOD | {"retry": {"policy": "exponential"}}),
        json.dumps(GOOD | {"lease_s": 1e30}),
        json.dumps(GOOD | {"lease_s": None}),
    ],
)
def test_what_is_no_definition_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidTopicError, match="cannot be read"):
        Topic.from_json(text)
