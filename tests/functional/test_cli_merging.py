"""Topics that merge, by the command line: made, changed, sent to and looked into, against a real Redis."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq import (
    PER_MESSAGE,
    Collect,
    Fixed,
    JoinMessage,
    Keep,
    Leading,
    Max,
    Merge,
    Newest,
    PriorityMessage,
    PriorityRule,
    RangeMergeMessage,
    Replace,
    RmqClient,
    Sliding,
    Sum,
    Topic,
    TopicType,
)
from tests.conftest import MakeTopic
from tests.support.cli import COLORFUL, Cli, bury

HOUR_MS = 3_600_000
KEYS = {"value", "item_count", "merged", "first_sent_ms", "last_sent_ms", "version", "wanted", "complete"}


def registered(
    client: RmqClient, make_topic: MakeTopic, merge: Merge, kind: TopicType = TopicType.RANGE_MERGE
) -> Topic:
    return client.producer(make_topic(kind, slots=2, merge=merge)).topic


@pytest.fixture
def stock(client: RmqClient, make_topic: MakeTopic) -> Topic:
    """A topic of sums, due after an hour."""
    return registered(client, make_topic, Merge(Sum(), window=Fixed(timedelta(milliseconds=HOUR_MS))))


@pytest.fixture
def tags(client: RmqClient, make_topic: MakeTopic) -> Topic:
    """A topic of collections, with priorities."""
    return registered(client, make_topic, Merge(Collect()), TopicType.PRIORITY)


@pytest.fixture
def orders(client: RmqClient, make_topic: MakeTopic) -> Topic:
    """A topic of joins."""
    parts = Merge(Collect(unique=True), window=Sliding(max_wait=timedelta(milliseconds=HOUR_MS)), max_count=PER_MESSAGE)
    return registered(client, make_topic, parts)


# --- definitions


@pytest.mark.parametrize(
    ("options", "merge", "words"),
    [
        (("--merge", "keep", "--window", "leading 1m drop"), Merge(Keep(), window=Leading("1m", trailing=False)),
         "window       leading, first send at once, others within 1 m dropped"),
        (("--merge", "SUM", "--window", "sliding 2s  max 30s"), Merge(Sum(), window=Sliding("2s", max_wait="30s")),
         "window       sliding, due 2 s after the last send, or 30 s after the first"),
        (("--merge", "max", "--max-count", "1000"), Merge(Max(), max_count=1_000),
         "max count    due at once with 1,000 sends"),
        (("--merge", "newest", "--window", "fixed 5s"), Merge(Newest(), window=Fixed("5s")),
         "merge        newest: the body of the largest version"),
        (("--merge", "collect", "--collect-unique", "--collect-max-items", "10", "--collect-max-bytes", "99",
          "--collect-when-full", "drop-oldest"),
         Merge(Collect(max_items=10, max_bytes=99, unique=True, when_full="drop_oldest")),
         "items        up to 10 of 99 bytes; then the oldest items are dropped"),
        (("--merge", "join", "--window", "sliding max 1h"),
         Merge(Collect(unique=True), window=Sliding(max_wait=timedelta(milliseconds=HOUR_MS)), max_count=PER_MESSAGE),
         "max count    due at once when all parts have arrived"),
    ],
)  # fmt: skip
def test_topics_that_merge_are_created(
    cli: Cli, client: RmqClient, topic_name: str, options: tuple[str, ...], merge: Merge, words: str
) -> None:
    ran = cli("topics", "create", topic_name, "--type", "range-merge", "--slots", "4", "--lease", "2m", *options)
    assert client.topic(topic_name).merge == merge
    assert (client.topic(topic_name).slots, client.topic(topic_name).lease_s) == (4, 120)
    assert f"  {words}\n" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    assert cli("topics", "show", topic_name).out == ran.out


def test_priorities_of_a_topic_that_merges(cli: Cli, client: RmqClient, topic_name: str) -> None:
    options = ("--type", "priority", "--merge", "replace", "--merge-priority", "sum", "--max-priority", "99")
    assert "priority     the sum of those sent" in cli("topics", "create", topic_name, *options).out
    assert client.topic(topic_name).merge == Merge(Replace(), priority=PriorityRule.SUM)
    assert client.topic(topic_name).max_priority == 99


def test_a_topic_is_created_once(cli: Cli, client: RmqClient, topic_name: str) -> None:
    create = ("topics", "create", topic_name, "--type", "priority", "--max-backlog", "100")
    assert "before" not in cli(*create).err
    assert "is already registered with this definition" in cli(*create).err
    for other in (("--merge", "sum"), ("--lease", "2m"), ("--slots", "2")):
        ran = cli(*create, *other, code=1)
        assert f"topic {topic_name} is registered with another definition" in ran.err
        assert ran.out == ""
    assert client.topic(topic_name).merge is None


def test_a_stream_is_created_with_its_bounds(cli: Cli, client: RmqClient, topic_name: str) -> None:
    cli("topics", "create", topic_name, "--type", "stream", "--max-age", "7d")
    retention = client.topic(topic_name).retention
    assert retention is not None
    assert (retention.max_length, retention.max_age_ms) == (None, 7 * 24 * HOUR_MS)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (("--merge", "total"), "--merge is 'total'; it must be one of keep, replace, newest, max"),
        (("--merge", "sum", "--window", "sliding 5s"), "--window is 'sliding 5s'; it must have a form such as"),
        (("--merge", "sum", "--window", "fixed 5"), "--window is 'fixed 5': fixed is '5': is it '5ms' or '5s'?"),
        (("--merge", "sum", "--window", "sliding 5s max 2s"), "it must be at least quiet"),
        (("--merge", "sum", "--max-count", "many"), "--max-count is 'many'; it must be a whole number from 1 to"),
        (("--merge", "sum", "--max-count", "0"), "--max-count is '0'; it must be a whole number from 1 to 2147483648"),
        (("--merge", "join", "--max-count", "none"), "--max-count is none; with --merge join it must be per-message"),
        (("--merge", "join", "--window", "leading 1m"), "--window is leading, but --merge is join, which waits"),
        (("--merge", "sum", "--max-count", "per-message"), "--max-count is per-message, which requires --merge join"),
        (("--merge", "join", "--max-count", "5"), "--max-count is 5; with --merge join it must be"),
        (("--merge", "sum", "--collect-max-items", "5"), "--collect-max-items requires --merge collect or join, not"),
        (("--merge", "sum", "--collect-unique"), "--collect-unique requires --merge collect"),
        (("--merge", "collect", "--collect-max-items", "0"), "--collect-max-items is '0'; it must be a whole"),
        (("--merge", "collect", "--collect-max-bytes", "5k"), "--collect-max-bytes is '5k'; it must be a whole number"),
        (("--slots", "many"), "--slots is 'many'; it must be a whole number"),
        (("--max-retries", "x"), "--max-retries is 'x'; it must be a whole number"),
        (("--ties", "any"), "is 'any'; only PRIORITY topics have this setting, not RANGE_MERGE"),
        (("--type", "priority", "--ties", "newest"), "--ties is 'newest'; it must be one of oldest, any"),
        (("--type", "priority", "--ties", "any", "--max-priority", "5"), "is 5; it needs ties='oldest'"),
        (("--merge", "collect", "--collect-when-full", "block"), "'block'; it must be one of release, refuse"),
        (("--window", "fixed 5s"), "--window requires --merge keep"),
        (("--collect-unique",), "--collect-unique requires --merge keep"),
        (("--type", "priority", "--merge-priority", "sum"), "--merge-priority requires --merge keep"),
        (("--merge", "sum", "--merge-priority", "sum"), "--merge-priority requires a priority topic"),
        (("--merge", "sum", "--merge-priority", "first"), "--merge-priority is 'first'; it must be one of last"),
        (("--type", "priority", "--merge", "sum", "--window", "fixed 5s"), "--window requires a range-merge topic"),
        (("--type", "priority", "--merge", "join"), "--merge join requires a range-merge topic; the type is priority"),
        (("--type", "stream", "--merge", "sum"), "is STREAM; entries of a stream do not merge"),
        (("--type", "fifo"), "--type is 'fifo'; it must be one of"),
    ],
)  # fmt: skip
def test_definitions_that_are_none(cli: Cli, topic_name: str, options: tuple[str, ...], rule: str) -> None:
    ran = cli("topics", "create", topic_name, "--type", "range-merge", *options, code=2)
    assert rule in ran.err
    assert ran.err.count("\n") == 1
    assert "datetime" not in ran.err
    assert "PER_MESSAGE" not in ran.err
    assert "is not registered" in cli("topics", "show", topic_name, code=1).err


def test_windows_and_bounds_are_changed(
    cli: Cli, client: RmqClient, stock: Topic, tags: Topic, priority: Topic
) -> None:
    ran = cli("topics", "change", stock.name, "--window", "leading 2m", "--max-count", "7", "--lease", "3m")
    assert "until they restart" in ran.err
    assert "others within 2 m at its end" in ran.out
    assert client.topic(stock.name).merge == Merge(Sum(), window=Leading("2m"), max_count=7)
    cli("topics", "change", stock.name, "--window", "none", "--max-count", "none")
    assert client.topic(stock.name).merge == Merge(Sum())
    assert client.topic(stock.name).lease_s == 180
    cli("topics", "change", tags.name, "--collect-max-items", "5", "--collect-when-full", "refuse")
    assert client.topic(tags.name).merge == Merge(Collect(max_items=5, when_full="refuse"))

    def refused(topic: Topic, *options: str) -> str:
        return cli("topics", "change", topic.name, *options, code=2).err

    assert "the merge of topic" in refused(stock, "--collect-max-items", "5")
    assert "which does not support per-message" in refused(stock, "--max-count", "per-message")
    assert "has no merge" in refused(priority, "--window", "none")
    assert "--window requires a range-merge topic; the type is priority" in refused(tags, "--window", "fixed 5s")


def test_the_list_says_what_merges(cli: Cli, stock: Topic, orders: Topic, priority: Topic) -> None:
    rows = {line.split()[0]: line.split() for line in cli("topics", env={"COLUMNS": "200"}).out.splitlines()[2:]}
    assert [rows[topic.name][2] for topic in (stock, orders, priority)] == ["sum", "join", "-"]


# --- sends


def test_numbers_add_up(cli: Cli, client: RmqClient, stock: Topic) -> None:
    assert cli("send", stock.name, "item:42", "--body", "-3").out == "1 new, 0 merged\n"
    cli("send", stock.name, "item:42", "--body", "1.5e1", "--weight", "10")
    (message,) = client.inspect(stock).peek()
    assert (message.number, message.merged) == (12, 11)


def test_a_named_send_counts_once(cli: Cli, client: RmqClient, stock: Topic) -> None:
    named = ("send", stock.name, "item:42", "item:43", "--body", "2", "--once", "order:1001")
    assert cli(*named).out == cli(*named).out == "2 new, 0 merged\n"
    assert [message.number for message in client.inspect(stock).peek()] == [2, 2]


def test_versions_and_items_and_parts(
    cli: Cli, client: RmqClient, make_topic: MakeTopic, tags: Topic, orders: Topic
) -> None:
    newest = registered(client, make_topic, Merge(Newest()), TopicType.PRIORITY)
    cli("send", newest.name, "a", "--priority", "1", "--body", "new", "--version", "7")
    cli("send", newest.name, "a", "--priority", "1", "--body", "old", "--version", "6")
    cli("send", tags.name, "a", "--priority", "1", "--body", "x")
    cli("send", tags.name, "a", "--priority", "1", "--body", "y")
    cli("send", orders.name, "a", "--part", "invoice", "--of", "2")
    found = [client.inspect(topic).peek()[0] for topic in (newest, tags, orders)]
    assert [message.value for message in found] == [b"new", (b"x", b"y"), (b"invoice",)]
    assert (found[2].wanted, found[2].complete) == (2, False)
    assert "    2 sends, version 7, sent " in cli("find", newest.name, "a").out
    assert ", 2 sends, version 7, sent " in cli("consume", newest.name, "--max", "1").out


def test_rows_of_a_file_carry_it_all(
    cli: Cli, client: RmqClient, stock: Topic, tags: Topic, orders: Topic, tmp_path: Path
) -> None:
    def send(topic: Topic, rows: list[dict[str, Any]], *options: str) -> str:
        (tmp_path / "rows").write_text("\n".join(map(json.dumps, rows)), "utf-8")
        return cli("send", topic.name, "--jsonl", "--file", str(tmp_path / "rows"), *options).out

    numbers = [{"content": "a", "body": 4}, {"content": "a", "body": -1.5, "weight": 3}, {"content": "a", "body": "2"}]
    assert send(stock, numbers, "--fold", "--once", "day 1") == "1 new, 2 merged\n"
    assert send(stock, numbers, "--fold", "--once", "day 1") == "1 new, 2 merged\n"
    send(tags, [{"content": "a", "body": ["x", {"base64": "/w=="}]}, {"content": "a", "body": "y"}], "--priority", "1")
    send(orders, [{"content": "a", "part": part, "of": 3} for part in ("p", "q")])
    found = [client.inspect(topic).peek()[0] for topic in (stock, tags, orders)]
    assert [message.value for message in found] == [4.5, (b"x", b"\xff", b"y"), (b"p", b"q")]
    assert [message.merged for message in found] == [5, 2, 2]


def test_bad_sends_name_value_and_rule(cli: Cli, stock: Topic, tags: Topic, orders: Topic, priority: Topic) -> None:
    def refused(topic: Topic, *options: str, stdin: str = "") -> str:
        ran = cli("send", topic.name, *options, stdin=stdin, code=2)
        assert (ran.out, ran.err.count("\n")) == ("", 1)
        return ran.err

    assert "body is 'four'; on topic" in refused(stock, "a", "--body", "four")
    assert "body is '0x10'" in refused(stock, "a", "--body", "0x10")
    assert "must be a number from -(2^53" in refused(stock, "a", "--body", "1e300")
    assert "has the merge sum; its messages require --body (body in JSON)" in refused(stock, "a")
    assert "do not take --version" in refused(stock, "a", "--body", "1", "--version", "2")
    assert "do not take --part" in refused(stock, "a", "--body", "1", "--part", "2")
    assert "--weight is '0'; it must be a whole number from 1 to" in refused(stock, "a", "--body", "1", "--weight", "0")
    assert "must be a name of 1 to 200 characters" in refused(stock, "a", "--body", "1", "--once", "x" * 201)
    assert "has the merge collect; its messages require --body" in refused(tags, "a", "--priority", "1")
    assert "require --of (of in JSON)" in refused(orders, "a", "--part", "p")
    assert "do not take --body" in refused(orders, "a", "--part", "p", "--of", "2", "--body", "x")
    assert "do not take --weight" in refused(orders, "a", "--part", "p", "--of", "2", "--weight", "2")
    assert "it must be at most max_items, which is 1000" in refused(orders, "a", "--part", "p", "--of", "2000")
    assert "has no merge; its messages do not take --weight" in refused(
        priority, "a", "--priority", "1", "--weight", "2"
    )
    assert "--once requires a topic with a merge" in refused(priority, "a", "--priority", "1", "--once", "x")
    assert "--fold requires a topic with a merge" in refused(priority, "--priority", "1", "--fold", stdin="a")
    for body in ("true", "NaN", "[1]", '["1"]', "null", '{"x": 1}'):
        assert "line 1: " in refused(stock, "--jsonl", stdin=f'{{"content": "a", "body": {body}}}')
    assert "body is 7; on topic" in refused(tags, "--jsonl", "--priority", "1", stdin='{"content": "a", "body": 7}')
    assert "body is an array" in refused(
        priority, "--jsonl", "--priority", "1", stdin='{"content": "a", "body": ["x"]}'
    )
    for topic in (stock, tags, orders, priority):
        assert cli("stats", topic.name, "--json").json["topics"][0]["totals"]["accepted"] == 0


def test_a_named_file_is_sent_whole_or_not_at_all(cli: Cli, client: RmqClient, stock: Topic) -> None:
    rows = "".join(f'{{"content": "{number}", "body": 1}}\n' for number in range(1_500))
    bad = cli("send", stock.name, "--jsonl", "--once", "import", stdin=f'{rows}{{"content": "x"}}', code=2)
    assert "line 1501: " in bad.err
    assert "nothing was sent" in bad.err
    assert cli("send", stock.name, "--jsonl", "--once", "import", stdin=rows).out == "1,500 new, 0 merged\n"
    assert client.inspect(stock).stats().backlog == 1_500


def test_what_redis_refuses_ends_in_one_line(cli: Cli, stock: Topic) -> None:
    cli("send", stock.name, "a", "--body", str(2**53 - 1))
    ran = cli("send", stock.name, "a", "--body", "1", code=1)
    assert "adds 1 to the sum of b'a'; a sum must be from -(2^53 - 1) to 2^53 - 1 (0 messages stored" in ran.err
    assert ran.err.endswith("; nothing was sent\n")
    assert ran.err.count("\n") == 1


def test_type_and_slots_of_a_topic_that_merges_may_be_repeated(cli: Cli, stock: Topic) -> None:
    same = ("--type", "range-merge", "--slots", "2")
    assert cli("send", stock.name, "a", "--body", "1", *same).out == "1 new, 0 merged\n"
    assert "can't be changed" in cli("send", stock.name, "a", "--body", "1", "--type", "priority", code=1).err


def test_dropped_sends_are_told(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    leading = Merge(Keep(), window=Leading(timedelta(milliseconds=HOUR_MS), trailing=False))
    topic = registered(client, make_topic, leading)
    cli("send", topic.name, "a")
    cli("consume", topic.name, "--max", "1")
    assert cli("send", topic.name, "a").out == "0 new, 1 merged, 1 dropped\n"
    assert cli("send", topic.name, "a", "--json").json["dropped"] == 1


# --- looking inside


def sample(client: RmqClient, stock: Topic, tags: Topic, orders: Topic) -> None:
    numbers = client.producer(stock)
    numbers.send(RangeMergeMessage("item:42", body=-3))
    numbers.send(RangeMergeMessage("item:42", body=-1.5))
    client.producer(tags).send_many(PriorityMessage("page", 9, body=f"tag {number}") for number in range(30))
    client.producer(orders).send(JoinMessage("order:7", part="in\x1b[31mvoice", of=3))


def test_peek_and_find_say_what_it_came_to(
    cli: Cli, client: RmqClient, stock: Topic, tags: Topic, orders: Topic
) -> None:
    sample(client, stock, tags, orders)
    head, _, row = cli("peek", stock.name, env=COLORFUL | {"COLUMNS": "80"}).out.splitlines()
    assert all(word in head for word in ("value", "sends", "sent", "due"))
    assert row.split()[:3] == ["item:42", "-4.5", "2"]
    assert "1 of 3: in\\x1b[31mv" in cli("peek", orders.name).out
    assert "30: tag 0, tag" in cli("peek", tags.name).out
    out = cli("find", stock.name, "item:42").out
    assert "    2 sends, sent " in out
    assert "    value: -4.5\n" in out
    assert "    parts: 1 of 3: in\\x1b[31mvoice\n" in cli("find", orders.name, "order:7").out
    assert "tag 19, …\n" in cli("find", tags.name, "page").out


def test_rows_of_json_carry_it_all(cli: Cli, client: RmqClient, stock: Topic, tags: Topic, orders: Topic) -> None:
    sample(client, stock, tags, orders)
    (row,) = cli("peek", stock.name, "--json").lines
    assert (row["value"], row["body"], row["merged"], row["item_count"]) == (-4.5, "-4.5", 2, 0)
    assert row["first_sent_ms"] <= row["last_sent_ms"] <= row["due_ms"]
    (found,) = cli("search", orders.name, "--json").lines
    assert (found["value"], found["item_count"], found["wanted"]) == (["in\x1b[31mvoice"], 1, 3)
    assert found["complete"] is False
    place = cli("find", tags.name, "page", "--json").json["places"]["store"]
    assert place["value"] == [f"tag {number}" for number in range(30)]
    (line,) = cli("consume", tags.name, "--json", "--timeout", "0").lines
    assert (line["value"], line["merged"], line["body"]) == (place["value"], 30, None)
    for each in (row, found, place, line):
        assert each.keys() >= KEYS


def test_what_does_not_merge_is_shown_as_ever(cli: Cli, client: RmqClient, priority: Topic) -> None:
    client.producer(priority).send(PriorityMessage("a", 9, body="b"))
    (row,) = cli("peek", priority.name, "--json").lines
    assert not row.keys() & KEYS
    assert "retries left" in cli("peek", priority.name).out
    assert "sends" not in cli("search", priority.name).out


def test_consume_says_how_many_sends_it_was(cli: Cli, client: RmqClient, tags: Topic, stock: Topic) -> None:
    client.producer(tags).send_many(PriorityMessage("page", 9, body=f"tag {number}") for number in range(3))
    client.producer(stock).send(RangeMergeMessage("item:42", time_range_ms=1, body=7))
    _, facts, items = cli("consume", tags.name, "--timeout", "0").out.splitlines()
    assert "3 sends, sent " in facts
    assert items == "  items 3: tag 0, tag 1, tag 2"
    lines = cli("consume", stock.name, "--max", "1").out.splitlines()
    assert "1 send, sent " in lines[1]
    assert lines[2] == "  value 7"


def test_the_dead_say_what_they_came_to(cli: Cli, client: RmqClient, tags: Topic) -> None:
    client.producer(tags).send_many(PriorityMessage("page", 9, body=f"tag {number}") for number in range(3))
    bury(client, tags, error=KeyError("gone"))
    head, _, row, times = cli("dead", "list", tags.name, env={"COLUMNS": "120"}).out.splitlines()
    assert head.split() == ["content", "value", "sends", "error", "attempts", "slot", "died"]
    assert "3: tag 0, tag 1, tag 2       3   KeyError: 'gone'" in row
    assert times.split()[0] == "sent"
    (line,) = cli("dead", "list", tags.name, "--json").lines
    assert (line["value"], line["merged"]) == (["tag 0", "tag 1", "tag 2"], 3)
    assert "    items: 3: tag 0, tag 1, tag 2\n" in cli("find", tags.name, "page").out
    assert "3: tag 0" in cli("search", tags.name, "--place", "dead").out


def test_stats_say_how_much_merged(cli: Cli, client: RmqClient, tags: Topic, stock: Topic) -> None:
    client.producer(tags).send_many(PriorityMessage("page", 9, body="x") for _ in range(3))
    out = cli("stats", tags.name, stock.name, env={"COLUMNS": "200"}).out
    assert f"{tags.name}: 66.7% of the sends merged, by collect" in out
    assert f"{stock.name}: " not in out
    assert cli("stats", tags.name, "--json").json["topics"][0]["merged_ratio"] == pytest.approx(2 / 3)


def test_tables_of_long_values_fit_80_columns(cli: Cli, client: RmqClient, tags: Topic) -> None:
    contents = [f"{'long' * 50}{number}" for number in range(4)]
    producer = client.producer(tags)
    producer.send_many(PriorityMessage(each, 1_048_575, body="b" * 99) for each in contents * 3)
    bury(client, tags, 2, ValueError("a long reason " * 20))
    for command in (("peek",), ("dead", "list"), ("search",)):
        lines = cli(*command, tags.name).out.splitlines()
        assert max(map(len, lines)) <= 80, command
        assert all(word in lines[0] for word in ("content", "value", "sends"))
        assert "long" in lines[2]
        assert "3: b" in lines[2]
