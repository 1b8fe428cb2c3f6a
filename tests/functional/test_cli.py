"""The command line against a real Redis: results, JSON, exit codes, hostile payloads, 80 columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rmq
from rmq import RmqClient, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.cli import COLORFUL, Cli, bury
from tests.support.servers import RedisServer, free_port

HOSTILE = [
    b"\x1b[31mred\x1b]0;title\x07",
    b"[bold red]markup[/bold red][/]",
    b"\xff\xfe not UTF-8 \x80",
    "‮right to left​".encode(),
    b"several\r\nlines\x00\x9b31m",
    b"x" * 60_000,
]


# --- send


def test_a_topic_is_registered_by_its_first_send(cli: Cli, client: RmqClient, topic_name: str) -> None:
    refused = cli("send", topic_name, "a", code=2)
    assert refused.err.startswith("rmq: topic ")
    assert "is not registered; give --type" in refused.err
    new = ("--type", "range-merge", "--slots", "4")
    assert cli("send", topic_name, "a", "b", "a", "--time-range", "1h", *new).out == "2 new, 1 merged\n"
    assert (client.topic(topic_name).type, client.topic(topic_name).slots) == (TopicType.RANGE_MERGE, 4)
    assert cli("send", topic_name, "a", "--time-range", "1h", "--slots", "4", "--json").json == {
        "topic": topic_name,
        "new": 0,
        "merged": 1,
        "dropped": 0,
    }
    assert "can't be changed" in cli("send", topic_name, "a", "--slots", "8", code=1).err
    assert "can't be changed" in cli("send", topic_name, "a", "--type", "priority", code=1).err


def test_each_type_takes_its_own_option(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    for kind, right, wrong in (
        (TopicType.RANGE_MERGE, ("--time-range", "1h"), ("--priority", "20")),
        (TopicType.PRIORITY, ("--priority", "20"), ("--in", "5s")),
        (TopicType.FIXED_TIME, ("--in", "1h"), ("--time-range", "5s")),
        (TopicType.FIXED_TIME, ("--at", "2099-01-31T14:30:00Z"), ("--priority", "20")),
    ):
        name = client.producer(make_topic(kind)).topic.name
        assert "require --" in cli("send", name, "a", code=2).err
        assert "do not take --" in cli("send", name, "a", *right, *wrong, code=2).err
        assert cli("send", name, "a", *right).out == "1 new, 0 merged\n"


def test_a_time_that_has_passed_is_refused_by_redis(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    name = client.producer(make_topic(TopicType.FIXED_TIME)).topic.name
    assert "is in the past: Redis' time" in cli("send", name, "a", "--at", "2020-01-31T14:30:00Z", code=1).err


def test_due_in_counts_by_the_clock_of_redis(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = client.producer(make_topic(TopicType.FIXED_TIME)).topic
    now_ms = client.inspect(topic).stats().slots[0].now_ms
    cli("send", topic.name, "a", "--in", "1h")
    (message,) = client.inspect(topic).peek()
    assert message.due_ms is not None
    assert 0 <= message.due_ms - now_ms - 3_600_000 < 20_000


def test_body_and_slot_basis(cli: Cli, client: RmqClient, priority: Topic) -> None:
    cli("send", priority.name, "a", "--priority", "20", "--body", "ü", "--slot-basis", "same")
    (message,) = client.inspect(priority).peek()
    assert (message.body, message.slot) == ("ü".encode(), priority.slot_of(b"same"))


def test_lines_of_stdin_and_of_a_file(cli: Cli, client: RmqClient, priority: Topic, tmp_path: Path) -> None:
    lines = b"a\nb\r\n\n\xff\n--c"
    assert cli("send", priority.name, "--priority", "20", stdin=lines).out == "4 new, 0 merged\n"
    (tmp_path / "lines").write_bytes(lines)
    again = ("send", priority.name, "--priority", "20", "--file")
    assert cli(*again, str(tmp_path / "lines")).out == "0 new, 4 merged\n"
    assert cli(*again, "-", stdin=lines).out == "0 new, 4 merged\n"
    contents = {message.content for message in client.inspect(priority).peek()}
    assert contents == {b"a", b"b", b"\xff", b"--c"}
    assert "cannot be read: No such file" in cli(*again, str(tmp_path / "nothing"), code=2).err
    assert "Is a directory" in cli(*again, str(tmp_path), code=2).err
    assert "cannot be combined" in cli(*again, str(tmp_path / "lines"), "content", code=2).err


def test_json_lines_carry_all_of_a_message(cli: Cli, client: RmqClient, priority: Topic) -> None:
    rows = [
        {"content": {"base64": "//4="}, "body": {"base64": "/w=="}, "slot_basis": "s", "priority": 30},
        {"content": "ü"},
    ]
    text = "\n".join(map(json.dumps, rows))
    assert cli("send", priority.name, "--jsonl", "--priority", "20", stdin=text).out == "2 new, 0 merged\n"
    found = {message.content: (message.priority, message.body) for message in client.inspect(priority).peek()}
    assert found == {b"\xff\xfe": (30, b"\xff"), "ü".encode(): (20, None)}


def test_a_stream_ends_at_its_first_bad_line_with_all_before_it_sent(cli: Cli, priority: Topic) -> None:
    for bad in ('{"content": ""}', "{", '{"content": "x", "priority": 0}', '{"content": "x", "time_range": 9}'):
        text = "\n".join([*(json.dumps({"content": f"{n}"}) for n in range(1_200)), bad, '{"content": "after"}'])
        ran = cli("send", priority.name, "--jsonl", "--priority", "20", stdin=text, code=2)
        assert ran.err.startswith("rmq: line 1201: ")
        assert "1,200 messages were sent before it, none after it" in ran.err
    assert cli("send", priority.name, "--jsonl", stdin="[]", code=2).out == ""
    assert cli("stats", priority.name, "--json").json["topics"][0]["backlog"] == 1_200


def test_bad_values_name_value_and_rule(cli: Cli, topic_name: str) -> None:
    def refused(*args: str) -> str:
        return cli("send", topic_name, *args, code=2).err

    assert "--time-range is '5': is it '5ms' or '5s'?" in refused("a", "--time-range", "5")
    assert "--at is '2030-01-01T00:00', which has no zone" in refused("a", "--at", "2030-01-01T00:00")
    assert "--type is 'fifo'; it must be one of" in refused("a", "--type", "fifo")
    assert "slots of topic" in refused("a", "--type", "priority", "--slots", "3")
    assert "must be more than 0" in refused("a", "--type", "range-merge", "--time-range", "0")
    assert "from 1 to max_priority" in refused("a", "--type", "priority", "--priority", "1048576")
    assert "'': content b'' has 0 bytes" in refused("", "--type", "priority", "--priority", "20")
    assert "not registered" in cli("topics", "show", topic_name, code=1).err
    assert "topic name" in cli("send", "a{b}", "a", "--type", "priority", "--priority", "20", code=2).err
    assert "--priority is 'high'; it must be a whole number" in refused("a", "--priority", "high")


# --- consume


def test_consume_prints_and_acks(cli: Cli, client: RmqClient, priority: Topic) -> None:
    cli("send", priority.name, "low", "--priority", "20", "--body", "the body", "--slot-basis", "s")
    cli("send", priority.name, "high", "--priority", "21", "--slot-basis", "s")
    ran = cli("consume", priority.name, "--timeout", "0")
    slot = priority.slot_of(b"s")
    assert ran.out.splitlines() == [
        "high",
        f"  slot {slot}, attempt 1, priority 21",
        "low",
        f"  slot {slot}, attempt 1, priority 20",
        "  body the body",
    ]
    stats = client.inspect(priority).stats()
    assert (stats.total("acked"), stats.backlog, stats.in_flight) == (2, 0, 0)
    assert cli("consume", priority.name, "--timeout", "0").out == ""


def test_consume_as_json_lines(cli: Cli, merging: Topic) -> None:
    cli("send", merging.name, "a", "--time-range", "1ms", "--body", "b")
    (line,) = cli("consume", merging.name, "--json", "--max", "1").lines
    assert line["late_ms"] == line["claimed_ms"] - line["due_ms"]
    assert {name: line[name] for name in ("topic", "content", "body", "attempt", "retries_left", "priority")} == {
        "topic": merging.name,
        "content": "a",
        "body": "b",
        "attempt": 1,
        "retries_left": 16,
        "priority": None,
    }


def test_consume_waits_for_what_becomes_due(cli: Cli, merging: Topic) -> None:
    cli("send", merging.name, "later", "--time-range", "1h")
    assert cli("consume", merging.name, "--timeout", "0").out == ""
    cli("send", merging.name, "a", "--time-range", "400ms")
    assert " late" in cli("consume", merging.name, "--timeout", "20", "--max", "1").out


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (("--no-ack",), "backlog"),
        (("--settle", "release"), "backlog"),
        (("--settle", "nack"), "waiting"),
        (("--settle", "leave"), "in_flight"),
        (("--ack",), None),
    ],
)
def test_what_happens_to_printed_messages(
    cli: Cli, client: RmqClient, priority: Topic, options: tuple[str, ...], where: str | None
) -> None:
    cli("send", priority.name, *map(str, range(250)), "--priority", "20")
    assert len(cli("consume", priority.name, "--json", "--timeout", "0", *options).lines) == 250
    stats = client.inspect(priority).stats()
    found = {name: getattr(stats, name) for name in ("backlog", "waiting", "in_flight")}
    assert found == dict.fromkeys(found, 0) | ({where: 250} if where else {})


def test_consume_says_what_does_not_go_together(cli: Cli, priority: Topic) -> None:
    ran = cli("consume", priority.name, "--follow", "--no-ack", code=2)
    assert "--follow cannot be combined with --settle release" in ran.err
    assert (
        "--follow and --timeout cannot be combined"
        in cli("consume", priority.name, "--follow", "--timeout", "1", code=2).err
    )
    assert "cannot be combined" in cli("consume", priority.name, "--ack", "--settle", "nack", code=2).err
    assert "--max is '0'; it must be" in cli("consume", priority.name, "--max", "0", code=2).err
    assert "is not registered" in cli("consume", "no-such-topic", code=1).err


# --- all commands


def test_hostile_payloads_show_harmlessly(cli: Cli, client: RmqClient, priority: Topic) -> None:
    for payload in HOSTILE:
        text = os.fsdecode(payload).replace("\x00", "0")
        cli("send", priority.name, text, "--priority", "20", "--body", text)
    outputs = [cli("peek", priority.name, env=COLORFUL).out]
    outputs.append(cli("consume", priority.name, "--settle", "release", env=COLORFUL).out)
    outputs.append(cli("cancel", priority.name, HOSTILE[0].decode() + "?", code=1).err)
    with client.consumer(priority) as consumer:
        for delivery in consumer.poll():
            delivery.bury(HOSTILE[0].decode() + HOSTILE[1].decode())
    outputs.append(cli("dead", "list", priority.name, env=COLORFUL).out)
    for output in outputs:
        for forbidden in ("\x1b[31mred", "\x1b]0;", "\x07", "\x9b", "\u202e", "\u200b", "\r", "\x00"):
            assert forbidden not in output
        assert "x" * 300 not in output
    assert r"\x1b[31mred" in outputs[0]
    assert "[bold red]markup[/bold red]" in outputs[1]
    raw = [line["content"] for line in cli("dead", "list", priority.name, "--json").lines]
    assert all(line.isascii() for line in cli("dead", "list", priority.name, "--json").out.splitlines())
    assert {"base64": "//4gbm90IFVURi04IIA="} in raw
    assert r"\x1b[31mevil" in cli("stats", "\x1b[31mevil", code=1).err
    assert "\x1b[31mevil" not in cli("\x1b[31mevil", code=2).err


def test_all_of_it_fits_80_columns(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY, slots=16)).topic
    contents = [f"{'long' * 50}{number}" for number in range(40)]
    cli("send", topic.name, *contents, "--priority", "1048575", "--body", "b" * 99)
    bury(client, topic, 20, ValueError("a long reason " * 20))
    for command in (
        ("stats", topic.name, "--slots"),
        ("peek", topic.name),
        ("dead", "list", topic.name),
        ("topics", "list"),
        ("topics", "show", topic.name),
    ):
        lines = cli(*command).out.splitlines()
        assert max(map(len, lines)) <= 80, command
        if command[0] in ("peek", "dead"):
            assert all(word in lines[0] for word in ("content", "slot"))
            assert "longlonglong" in lines[2]
            assert "…" in lines[2]


def test_global_options_stand_before_or_after(cli: Cli, redis_url: str, priority: Topic) -> None:
    elsewhere = Cli("redis://127.0.0.1:1")
    shared = ("--url", redis_url, "--json")
    for args in ((*shared, "stats", priority.name), ("stats", priority.name, *shared)):
        assert elsewhere(*args).json["topics"][0]["topic"] == priority.name
    assert cli("--version").out == f"rmq {rmq.__version__}\n"
    for args in ((), ("dead",), ("send", "-h"), ("worker", "--help")):
        ran = cli(*args, code=0 if "-h" in args or "--help" in args else 2)
        assert "Usage" in ran.out + ran.err


def test_errors_are_one_line_and_a_traceback_only_on_request(cli: Cli) -> None:
    url = f"redis://user:secret@127.0.0.1:{free_port()}"
    ran = Cli(url)("topics", code=1)
    assert ran.err.startswith("rmq: no answer from Redis at redis://user:***@127.0.0.1")
    assert ran.err.count("\n") == 1
    verbose = cli("--verbose", "topics", "show", "no-such-topic", code=1)
    assert "Traceback" in verbose.err
    for bad in (
        "http://user:secret@x",
        "redis://user:secret@x:port",
        "redis://[::1",
        "redis://u:secret/x@h",
        "unix://",
    ):
        ran = Cli(bad)("topics", code=2)
        assert "rmq: URL" in ran.err
        assert "secret" not in ran.err


def test_a_redis_that_wants_a_password() -> None:
    with RedisServer(["requirepass secret"]) as server:
        ran = Cli(server.url)("topics", code=1)
        assert ran.err.startswith("rmq: ")
        ran = Cli(server.url.replace("redis://", "redis://:wrong@"))("topics", code=1)
        assert ran.err.startswith("rmq: ")
        assert Cli(server.url.replace("redis://", "redis://:secret@"))("topics", "--json").json == {"topics": []}


def test_a_redis_without_memory_says_what_was_stored(topic_name: str) -> None:
    with RedisServer() as server:
        cli = Cli(server.url)
        cli("send", topic_name, "a", "--type", "priority", "--priority", "20")
        server.config_set("maxmemory", 1)
        ran = cli("send", topic_name, "b", "--priority", "20", code=1)
        assert "(0 messages stored, 1 not stored, 0 unknown)" in ran.err
        assert cli("consume", topic_name, "--json", "--max", "1").lines[0]["content"] == "a"


# --- commands of other packages


def test_a_package_brings_commands_and_one_that_fails_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "greet.py").write_text(
        "import typer\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def hello(ctx: typer.Context) -> None:\n"
        "    print('hello', ctx.obj.url)\n"
        "@app.command()\n"
        "def bye() -> None: ...\n",
        "utf-8",
    )
    about = tmp_path / "greet-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greet\nVersion: 1.0\n", "utf-8")
    (about / "entry_points.txt").write_text(
        "[rmq.commands]\ngreet = greet:app\nsend = greet:app\nbroken = greet:nothing\nnumber = greet:__name__\n",
        "utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NO_COLOR": "1"}
    command = [sys.executable, "-c", "import rmq.cli; rmq.cli.main()", "--url", "redis://r", "greet", "hello"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "hello redis://r\n"
    left_out = sorted(line.split(":")[1] for line in ran.stderr.splitlines())
    assert left_out == [f" left out the command {name} of greet" for name in ("broken", "number", "send")]
    assert "another command has this name" in ran.stderr
    assert "has no attribute 'nothing'" in ran.stderr
