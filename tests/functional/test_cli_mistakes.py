"""What is typed wrongly: one line names the option or the key, the value and the rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from rmq import Collect, Fixed, Max, Merge, Newest, RmqClient, Sum, Ties, Topic, TopicType
from rmq.cli.commands import send
from rmq.cli.commands.send import read_lines
from tests.conftest import MakeTopic
from tests.support.cli import Cli
from tests.support.core import Reducer
from tests.support.servers import RedisServer

HOUR_MS = 3_600_000


def a_topic(client: RmqClient, make_topic: MakeTopic, reducer: Reducer) -> Topic:
    return client.producer(
        make_topic(TopicType.RANGE_MERGE, slots=1, merge=Merge(reducer, window=Fixed(timedelta(milliseconds=HOUR_MS))))
    ).topic


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (("send", "T", "a", "--weight", "many"), "--weight is 'many'; it must be a whole number from 1 to 2147483648"),
        (("send", "T", "a", "--version", "1.5"), "--version is '1.5'; it must be a whole number from 0 to 9"),
        (("send", "T", "a", "--version", "-1"), "--version is '-1'; it must be a whole number from 0 to"),
        (("send", "T", "a", "--of", "0"), "--of is '0'; it must be a whole number of at least 1"),
        (("peek", "T", "--limit", "1001"), "--limit is '1001'; it must be a whole number from 1 to 1000"),
        (("peek", "T", "--slot", "one"), "--slot is 'one'; it must be a whole number"),
        (("reprioritise", "T", "a", "high"), "priority is 'high'; it must be a whole number"),
        (("consume", "T", "--timeout", "nan"), "--timeout is 'nan'; it must be a number of at least 0"),
        (("stats", "--watch", "0"), "--watch is '0'; it must be a number from 0.1"),
    ],
)  # fmt: skip
def test_numbers_that_are_none(cli: Cli, args: tuple[str, ...], rule: str) -> None:
    ran = cli(*args, code=2)
    assert ran.err.startswith(f"rmq: {rule}")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (("topics", "create", "T"), "--type is required: range-merge, priority, fixed-time or stream."),
        (("spark", "replay", "T", "--rate", "10/s"), "--day is required: "),
    ],
)
def test_an_option_that_must_be_given(cli: Cli, args: tuple[str, ...], rule: str) -> None:
    ran = cli(*args, code=2)
    assert ran.err.startswith(f"rmq: {rule}")
    assert ran.err.count("\n") == 1
    assert "[required]" in cli(args[0], args[1], "--help").out


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
        (
            Collect(),
            f"{PAYLOAD}, or a non-empty array of such values",
            ["true", "null", "[1, 2]", '{"x": 1}', "3", "[]"],
        ),
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


# --- sends that break off


def test_a_refused_file_says_where_to_go_on(cli: Cli, client: RmqClient, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = client.producer(make_topic(TopicType.RANGE_MERGE, slots=4, max_backlog=8_000)).topic
    lines = [str(number) for number in range(1, 9_001)]
    (tmp_path / "lines").write_text("\n\n".join(lines) + "\n", "utf-8")  # every other one is empty
    ran = cli("send", topic.name, "--file", str(tmp_path / "lines"), "--time-range", "1h", code=1)
    said = re.search(
        r"; ([\d,]+) were accepted: all before line (\d+)(?: and ([\d,]+) after it)?; continue at line (\d+)\n$",
        ran.err,
    )
    assert said is not None, ran.err
    stored, before, behind, go_on = (int((group or "0").replace(",", "")) for group in said.groups())
    first = (before + 1) // 2  # the number in the line at which to go on
    assert before == go_on == 2 * first - 1
    assert client.inspect(topic).stats().backlog == stored == first - 1 + behind
    there = [client.inspect(topic).find(str(number)).stored is not None for number in (1, first - 1, first)]
    assert there == [True, True, False]


def test_a_server_that_dies_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with RedisServer() as server:
        cli = Cli(server.url)
        cli("topics", "create", "work", "--type", "range-merge")
        (tmp_path / "lines").write_text("\n".join(map(str, range(20_000))), "utf-8")

        def dying(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
            for number, line in read_lines(stream):
                if number == 10_001:
                    server.kill()
                yield number, line

        monkeypatch.setattr(send, "read_lines", dying)
        monkeypatch.setattr(send, "_PATIENCE_S", 5.0)
        ran = cli("send", "work", "--file", str(tmp_path / "lines"), "--time-range", "1h", code=1)
    assert ran.err.count("\n") == 1
    said = re.search(r"; ([\d,]+) were accepted: all before line (\d+); continue at line (\d+)\n$", ran.err)
    assert said is not None, ran.err
    stored, before, go_on = (int(group.replace(",", "")) for group in said.groups())
    assert before == go_on == stored + 1  # one slot: in order
    assert 0 < stored <= 10_000


def test_a_named_send_that_breaks_off_is_repeated_as_a_whole(
    cli: Cli, client: RmqClient, make_topic: MakeTopic
) -> None:
    merge = Merge(Sum(), window=Fixed(timedelta(milliseconds=HOUR_MS)))
    topic = client.producer(make_topic(TopicType.RANGE_MERGE, slots=1, merge=merge, max_backlog=1)).topic
    assert cli("send", topic.name, "a", "b", "--body", "1", code=1).err.endswith("; nothing was sent\n")
    args = ("send", topic.name, *["a"] * 500, "b", "--body", "1")  # a call of 500, and another one
    said = "; 500 were accepted: all before 'b'; "
    assert cli(*args, code=1).err.endswith(f"{said}continue at 'b'\n")
    assert cli(*args, "--once", "day 1", code=1).err.endswith(f"{said}send the whole input again with --once 'day 1'\n")


def test_a_name_that_is_nearly_right_is_corrected(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    name = client.producer(make_topic(TopicType.PRIORITY)).topic.name
    assert cli("peek", name[:-1], code=1).err.endswith(f"did you mean {name}?\n")
    assert cli("send", name[:-1], "a", "--priority", "20", code=2).err.endswith(f"did you mean {name}?\n")
    assert "did you mean" not in cli("peek", "quite-another-name", code=1).err
    assert cli("reschedule", name, "a", code=2).err == "rmq: give exactly one of --in, --at and --priority\n"


def test_a_client_of_the_module_is_named(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop_with_client.py").write_text("import rmq\nclient = rmq.RmqClient()\n")
    err = cli("worker", "shop_with_client:clint", code=2).err
    assert "no attribute 'clint'; did you mean shop_with_client:client?" in err
