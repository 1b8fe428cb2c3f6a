"""Finding and steering by the command line, against a real Redis; payloads that are meant to harm a terminal."""

from __future__ import annotations

import os
import pty

import pytest

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.cli import Cli, bury

HOSTILE = "<script>\x1b[31m\u202e"
NARROW = {"COLUMNS": "80"}


@pytest.fixture
def hostile(client: RmqClient, priority: Topic) -> Topic:
    client.producer(priority).send(PriorityMessage(HOSTILE, 100, body=b"\xff\x1b[2J" + b"x" * 262_144))
    return priority


def test_find_says_where_a_content_is(cli: Cli, client: RmqClient, priority: Topic) -> None:
    client.producer(priority).send(PriorityMessage("a", 100, body="b"))
    ran = cli("find", priority.name, "a")
    assert "in store: priority 100" in ran.out
    assert "body, 1 bytes: b" in ran.out
    with client.consumer(priority) as consumer:
        delivery = consumer.poll(1, timeout=50)[0]
        ran = cli("find", priority.name, "a")
        assert "in flight: its lease expires in" in ran.out
        assert "not known" in ran.out
        assert cli("find", priority.name, "a", "--json").json["places"]["in-flight"]["lease_left_ms"] > 0
        delivery.nack(delay="10m")
    ran = cli("find", priority.name, "a")
    assert "waits for a retry, in" in ran.out
    assert "last failed" in ran.out
    assert cli("find", priority.name, "a", "--json").json["failure"]["error_type"] == ""
    bury(client, priority)
    ran = cli("find", priority.name, "gone", code=1)
    assert "was acked, cancelled, or never sent" in ran.err
    assert cli("find", priority.name, "gone", "--everywhere", "--json", code=1).json["gone"] is True


def test_find_shows_why_one_died(cli: Cli, client: RmqClient, priority: Topic) -> None:
    client.producer(priority).send(PriorityMessage("a", 100, body="b"))
    bury(client, priority)
    ran = cli("find", priority.name, "a")
    assert "dead: died" in ran.out
    assert "body of the dead" in ran.out
    assert cli("find", priority.name, "a", "--json").json["places"]["dead"]["attempts"] == 1


def test_hostile_payloads_are_shown_and_not_obeyed(cli: Cli, hostile: Topic) -> None:
    for arguments in (["find", hostile.name, HOSTILE], ["search", hostile.name], ["promote", hostile.name, HOSTILE]):
        for form in ([], ["--json"]):
            ran = cli(*arguments, *form, env=NARROW)
            assert all(character.isprintable() or character == "\n" for character in ran.out + ran.err)
    ran = cli("find", hostile.name, HOSTILE)
    assert r"<script>\x1b[31m\u202e" in ran.out
    assert "262,149 bytes" in ran.out
    assert len(ran.out) < 2_000, "cut"
    ran = cli("audit", hostile.name, env=NARROW)
    assert all(character.isprintable() or character == "\n" for character in ran.out)


def test_tables_fit_80_columns(cli: Cli, client: RmqClient, priority: Topic) -> None:
    client.producer(priority).send_many(PriorityMessage(f"item:{n}:" + "y" * 200, 100, body="z" * 99) for n in range(9))
    bury(client, priority)
    for command in (["search", priority.name], ["audit", priority.name], ["workers"], ["stats", priority.name]):
        ran = cli(*command, env=NARROW)
        assert max(map(len, ran.out.splitlines()), default=0) <= 80, command


def test_search_by_pattern_prefix_and_place(cli: Cli, client: RmqClient, priority: Topic) -> None:
    client.producer(priority).send_many(PriorityMessage(f"item:{n}", 100 + n) for n in range(300))
    assert cli("search", priority.name, "item:2?7", "--json").out.count("\n") == 10
    ran = cli("search", priority.name, "--prefix", "item:29", "--json", "--place", "store")
    assert ran.out.count("\n") == 11
    ran = cli("search", priority.name, "--prefix", "item:*", code=1)
    assert f"no message of topic {priority.name} matches" in ran.err
    ran = cli("search", priority.name, "--limit", "3", "--json")
    cursor = ran.err.partition("--cursor '")[2].partition("'")[0]
    first = ran.out.count("\n")
    rest = cli("search", priority.name, "--cursor", cursor, "--limit", "1000", "--json").out.count("\n")
    assert first + rest >= 300
    assert cli("search", priority.name, "a", "--prefix", "b", code=2)
    assert cli("search", priority.name, "--cursor", "nonsense", code=2)
    assert cli("search", "no-such-topic", code=1)


def test_a_search_that_ends_before_all_was_searched_does_not_deny_the_message(
    cli: Cli, client: RmqClient, priority: Topic
) -> None:
    client.producer(priority).send_many(PriorityMessage(f"item:{n}", 100) for n in range(30_000))
    ran = cli("search", priority.name, "nothing", "--budget", "1", code=1)
    assert "continue with --cursor" in ran.err
    assert "no message matches so far" in ran.err
    assert f"no message of topic {priority.name} matches" not in ran.err


def test_promote_and_reprioritise(cli: Cli, client: RmqClient, priority: Topic) -> None:
    client.producer(priority).send_many(PriorityMessage(name, 100) for name in "ab")
    assert "promoted: a" in cli("promote", priority.name, "a").out
    assert "reprioritised: b" in cli("reprioritise", priority.name, "b", "200").out
    assert cli("reprioritise", priority.name, "b", "0", code=2)
    ran = cli("promote", priority.name, "x", code=1)
    assert "not found in the backlog" in ran.err
    assert cli("promote", priority.name, "x", "--json", code=1).json["result"] == "absent"


def test_pause_and_resume(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY, slots=4)).topic
    assert "4 slots paused" in cli("pause", topic.name).out
    assert "nothing changed" in cli("pause", topic.name).out
    assert "4 of 4 slots are paused" in cli("stats", topic.name).out
    assert cli("resume", topic.name, "--slot", "2", "--json").json["changed_slots"] == 1
    assert "3 slots resumed" in cli("resume", topic.name).out
    assert cli("pause", topic.name, "--slot", "4", code=2)
    assert cli("pause", topic.name, "--group", "g", code=2)
    ran = cli("audit", topic.name)
    assert "pause" in ran.out
    assert "all 4 slots" in ran.out
    assert cli("audit", topic.name, "--json").out.count("\n") == 4


def test_purge_asks_for_the_name(cli: Cli, client: RmqClient, priority: Topic) -> None:
    client.producer(priority).send_many(PriorityMessage(f"m{n}", 100) for n in range(7))
    assert "cannot ask for confirmation without a terminal" in cli("purge", priority.name, code=2).err
    assert "2 purged" in cli("purge", priority.name, "--limit", "2", "--yes").out
    assert cli("purge", priority.name, "--yes", "--json").json["purged"] == 5
    assert cli("purge", priority.name, "--place", "retry", "--yes", "--json").json["purged"] == 0
    assert client.inspect(priority).stats().unaccounted == 0


@pytest.mark.parametrize(("answer", "left"), [("no", 7), ("the name", 0)])
def test_purge_asks_who_sits_at_a_terminal(
    cli: Cli, client: RmqClient, priority: Topic, answer: str, left: int
) -> None:
    client.producer(priority).send_many(PriorityMessage(f"m{n}", 100) for n in range(7))
    master, slave = pty.openpty()
    try:
        with cli.process("purge", priority.name, stdin=slave) as process:
            os.write(master, (priority.name if left == 0 else answer).encode() + b"\n")
            out, err = process.communicate(timeout=120)
    finally:
        os.close(master)
        os.close(slave)
    assert "This permanently deletes 7 messages" in err
    assert ("7 purged" in out, process.returncode) == ((True, 0) if left == 0 else (False, 1))
    assert client.inspect(priority).stats().backlog == left


def test_limits_are_changed_and_shown(cli: Cli, client: RmqClient, priority: Topic) -> None:
    client.producer(priority)
    cli("topics", "change", priority.name, "--max-backlog", "9", "--when-full", "block", "--full-timeout", "3s")
    ran = cli("topics", "change", priority.name, "--ttl", "2h")
    assert "block, for 3 s" in ran.out
    assert "2 h" in ran.out
    assert client.topic(priority.name).ttl_ms == 7_200_000
    cli("topics", "change", priority.name, "--ttl", "none")
    assert client.topic(priority.name).ttl is None
    assert cli("topics", "change", priority.name, "--when-full", "explode", code=2)


def test_no_workers(cli: Cli) -> None:
    assert "no process" in Cli("embedded://")("workers").err


def test_a_tenant_is_stopped_after_a_count(cli: Cli, client: RmqClient, priority: Topic) -> None:
    client.producer(priority).send_many(PriorityMessage(f"tenant:7:{number}", 100) for number in range(300))
    client.producer(priority).send(PriorityMessage("tenant:8:1", 100))
    name = priority.name
    assert cli("cancel", name, "--matching", "tenant:7:*", "--dry-run").out == "300 messages match\n"
    assert "cannot ask for confirmation without a terminal" in cli("cancel", name, "--prefix", "tenant:7:", code=2).err
    ran = cli("cancel", name, "--prefix", "tenant:7:", "--yes")
    assert (ran.out, ran.err) == ("300 cancelled\n", "300 messages match\n")
    assert client.inspect(priority).stats().backlog == 1
    gone = cli("cancel", name, "--matching", "tenant:7:*", "--yes", "--json", code=1).json
    assert gone == {"topic": name, "dry_run": False, "cancelled": 0, "in_flight": 0}
    for wrong in ([], ["a", "--matching", "b"], ["a", "--dry-run"], ["--matching", "a", "--slot-basis", "b"]):
        cli("cancel", name, *wrong, code=2)


def test_search_prints_no_more_than_its_limit(cli: Cli, client: RmqClient, priority: Topic) -> None:
    client.producer(priority).send_many(PriorityMessage(f"m:{number}", 100) for number in range(40))
    seen: list[str] = []
    cursor: list[str] = []
    while not seen or cursor:
        ran = cli("search", priority.name, "m:*", "--limit", "3", "--json", *(["--cursor", *cursor] if cursor else []))
        assert len(ran.lines) <= 3
        seen += [each["content"] for each in ran.lines]
        cursor = ran.err.split("'")[1:2]
    assert sorted(seen) == sorted(f"m:{number}" for number in range(40))


def test_nothing_is_cut_in_a_pipe(
    cli: Cli, client: RmqClient, priority: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    content = "item:" + "x" * 150
    client.producer(priority).send(PriorityMessage(content, 100, body="b" * 150))
    del cli.env["COLUMNS"]
    with cli.process("peek", priority.name) as process:
        out, _ = process.communicate(timeout=50)
    assert content in out
    assert "b" * 150 in out
    assert max(map(len, out.splitlines())) < 400
