"""What is typed wrongly: one line names the option or the key, the value and the rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmq import Collect, Fixed, Max, Merge, Newest, RmqClient, Sum, Ties, Topic, TopicType
from rmq._model.reducers import Reducer
from tests.conftest import MakeTopic
from tests.support.cli import Cli

HOUR_MS = 3_600_000


def a_topic(client: RmqClient, make_topic: MakeTopic, reducer: Reducer) -> Topic:
    return client.producer(
        make_topic(TopicType.RANGE_MERGE, slots=1, merge=Merge(reducer, window=Fixed(HOUR_MS)))
    ).topic


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (("send", "T", "a", "--weight", "many"), "--weight is 'many'; it must be a whole number from 1 to 2147483648"),
        (("send", "T", "a", "--version", "1.5"), "--version is '1.5'; it must be a whole number from 0 to 9"),
        (("send", "T", "a", "--version", "-1"), "--version is '-1'; it must be a whole number from 0 to"),
        (("send", "T", "a", "--of", "0"), "--of is '0'; it must be a whole number from 1"),
        (("peek", "T", "--limit", "1001"), "--limit is '1001'; it must be a whole number from 1 to 1000"),
        (("peek", "T", "--slot", "one"), "--slot is 'one'; it must be a whole number"),
        (("reprioritise", "T", "a", "high"), "priority is 'high'; it must be a whole number"),
        (("consume", "T", "--timeout", "nan"), "--timeout is 'nan'; it must be a number from 0"),
        (("stats", "--watch", "0"), "--watch is '0'; it must be a number from 0.1"),
    ],
)  # fmt: skip
def test_numbers_that_are_none(cli: Cli, args: tuple[str, ...], rule: str) -> None:
    ran = cli(*args, code=2)
    assert ran.err.startswith(f"rmq: {rule}")
    assert ran.err.count("\n") == 1


def test_numbers_keep_their_place_in_the_help(cli: Cli) -> None:
    out = " ".join(cli("peek", "--help").out.split())
    assert "--limit 1-1000" in out
    assert "[default: 20]" in out


PAYLOAD = 'a string or {"base64": "..."}'


@pytest.mark.parametrize(
    ("reducer", "rule", "wrong"),
    [
        (Sum(), "a number such as 42 or -1.5", ["true", "null", "[1, 2]", '{"x": 1}', '"x"']),
        (Max(), "a number such as 42 or -1.5", ["true", "null", "[1, 2]", '{"x": 1}', '"x"']),
        (Newest(), PAYLOAD, ["true", "null", "[1, 2]", '{"x": 1}', "3", "1.5"]),
        (Collect(), f"{PAYLOAD}, or an array of one or more such", ["true", "null", "[1, 2]", '{"x": 1}', "3", "[]"]),
    ],
)
def test_bodies_of_json_that_do_not_fit(
    cli: Cli, client: RmqClient, make_topic: MakeTopic, reducer: Reducer, rule: str, wrong: list[str]
) -> None:
    topic = a_topic(client, make_topic, reducer)
    row: dict[str, Any] = {"content": "a"} | ({"version": 1} if isinstance(reducer, Newest) else {})
    for body in wrong:
        said = {"[]": "an empty array", '"x"': "'x'"}.get(body, body)
        line = json.dumps({**row, "body": json.loads(body)})
        ran = cli("send", topic.name, "--jsonl", stdin=line, code=2)
        assert ran.err == f"rmq: line 1: body is {said}; on topic {topic.name} it must be {rule}; nothing was sent\n"
    assert client.inspect(topic).stats().backlog == 0


def test_values_of_json_are_named_as_json_has_them(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = a_topic(client, make_topic, Newest())
    for key, value, rule in (
        ("version", "null", "a whole number"),
        ("weight", "true", "a whole number"),
        ("slot_basis", "[1]", PAYLOAD),
    ):
        line = f'{{"content": "a", "body": "b", "version": 1, "{key}": {value}}}'
        ran = cli("send", topic.name, "--jsonl", stdin=line, code=2)
        assert ran.err == f"rmq: line 1: {key} is {value}; it must be {rule}; nothing was sent\n"


def test_equal_priorities_in_any_order(cli: Cli, client: RmqClient, topic_name: str) -> None:
    ran = cli("topics", "create", topic_name, "--type", "priority", "--ties", "any")
    assert "  ties         any\n" in ran.out
    assert client.topic(topic_name).ties is Ties.ANY
    assert (
        "is registered with another definition"
        in cli("topics", "create", topic_name, "--type", "priority", "--ties", "oldest", code=1).err
    )
