"""Looking inside and steering by the command line, against a real Redis."""

from __future__ import annotations

import json

import redis

from rmq import RmqClient, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.cli import COLORFUL, Cli, bury
from tests.support.waiting import wait_until

# --- looking inside


def test_stats_by_topic_and_slot(cli: Cli, client: RmqClient, merging: Topic, priority: Topic) -> None:
    cli("send", merging.name, *map(str, range(20)), "--time-range", "1ms")
    cli("send", priority.name, "a", "--priority", "20")
    bury(client, priority)
    wait_until(lambda: client.inspect(merging).stats().due_now == 20)
    ran = cli("stats", merging.name, priority.name, "--slots")
    assert "Since the topic began" in ran.out
    assert "1 of 2 slots were never used" in ran.out
    assert "unaccounted" not in ran.out
    first, second = cli("stats", merging.name, priority.name, "--slots", "--json").json["topics"]
    assert (first["backlog"], first["due_now"], first["totals"]["accepted"], second["dead"]) == (20, 20, 20, 1)
    assert first["late_ms"] > 0
    assert sum(slot["backlog"] for slot in first["per_slot"]) == 20
    everything = cli("stats", "--json").json["topics"]
    assert {merging.name, priority.name} <= {topic["topic"] for topic in everything}
    assert "per_slot" not in everything[0]


def test_what_is_unaccounted_for_stands_out(
    cli: Cli, make_topic: MakeTopic, client: RmqClient, redis_client: redis.Redis
) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY, checked=False)).topic
    cli("send", topic.name, "a", "--priority", "20")
    redis_client.delete(f"{topic.name}_0")
    redis_client.hset(f"meta{{{topic.name}_0}}", "paused", "1")
    ran = cli("stats", topic.name, "--slots", env=COLORFUL)
    assert "\x1b[1;31m" in ran.out
    assert "1 message unaccounted for" in ran.out
    assert "1 of 1 slots are paused" in ran.out
    assert cli("stats", topic.name, "--json").json["topics"][0]["unaccounted"] == 1


def test_stats_of_an_empty_redis() -> None:
    ran = Cli("embedded://")("stats")
    assert ran.out == ""
    assert "using a temporary Redis" in ran.err
    assert "no topics" in ran.err
    assert Cli("embedded://")("stats", "--json").json == {"topics": []}
    assert "no topics" in Cli("embedded://")("topics").err


def test_peek_shows_the_next_ones_first(cli: Cli, client: RmqClient, priority: Topic) -> None:
    for number in (17, 30, 20):
        cli("send", priority.name, f"p{number}", "--priority", str(number))
    found = cli("peek", priority.name, "--json", "--limit", "2").lines
    assert [(each["content"], each["priority"]) for each in found] == [("p30", 30), ("p20", 20)]
    with client.consumer(priority) as consumer:
        consumer.poll(1)[0].nack(delay="10m")
        consumer.poll(1)
    (held,) = cli("peek", priority.name, "--place", "in-flight", "--json").lines
    assert (held["place"], held["retries_left"]) == ("in-flight", 16)
    (retry,) = cli("peek", priority.name, "--place", "retry", "--json").lines
    assert (retry["retries_left"], retry["priority"]) == (16, None)
    assert "lease ends" in cli("peek", priority.name, "--place", "in-flight").out
    assert "   in " in cli("peek", priority.name, "--place", "retry").out
    slot = priority.slot_of(b"p17")
    assert [each["content"] for each in cli("peek", priority.name, "--slot", str(slot), "--json").lines] == ["p17"]
    assert cli("peek", priority.name, "--slot", str(1 - slot)).out == ""
    assert "has no slot 2" in cli("peek", priority.name, "--slot", "2", code=2).err


# --- dead letters


def test_dead_letters_are_listed_with_their_reasons(cli: Cli, client: RmqClient, priority: Topic) -> None:
    cli("send", priority.name, "a", "b", "--priority", "20", "--body", "the body")
    bury(client, priority, error=KeyError("gone"))
    ran = cli("dead", "list", priority.name)
    assert "KeyError: 'gone'" in ran.out
    assert ran.out.count(" ago") == 2
    lines = cli("dead", "list", priority.name, "--json").lines
    assert {line["content"] for line in lines} == {"a", "b"}
    assert (lines[0]["error_type"], lines[0]["attempts"], lines[0]["body"]) == ("KeyError", 1, "the body")
    assert lines[0]["died_ms"] >= lines[0]["last_failed_ms"] > 0
    for json_option in ((), ("--json",)):
        ran = cli("dead", "list", priority.name, "--limit", "1", *json_option)
        assert "only the first 1 are shown" in ran.err
        assert "more than" not in cli("dead", "list", priority.name, "--limit", "2", *json_option).err
        assert "more than" not in cli("dead", "list", priority.name, "--limit", "0", *json_option).err


def test_filters_of_the_dead(cli: Cli, client: RmqClient, priority: Topic) -> None:
    cli("send", priority.name, "order:1", "order:2", "--priority", "20")
    bury(client, priority, error=KeyError("gone"))
    cli("send", priority.name, "item:1", "--priority", "20")
    bury(client, priority)

    def listed(*options: str) -> set[str]:
        return {line["content"] for line in cli("dead", "list", priority.name, "--json", *options).lines}

    assert listed("--matching", "order:*") == {"order:1", "order:2"}
    assert listed("--error", "ValueError") == {"item:1"}
    assert listed("--content", "item:1", "--content", "order:2") == {"item:1", "order:2"}
    assert listed("--after", "1h") == {"order:1", "order:2", "item:1"}
    assert listed("--before", "1h") == set()
    assert listed("--before", "2999-01-01T00:00Z", "--matching", "*:1") == {"order:1", "item:1"}
    assert "or an age such as 2h" in cli("dead", "list", priority.name, "--after", "soon", code=2).err
    assert "no dead messages" in cli("dead", "list", priority.name, "--error", "Nothing").err


def test_redrive(cli: Cli, client: RmqClient, priority: Topic) -> None:
    cli("send", priority.name, "a", "b", "c", "--priority", "20")
    bury(client, priority)
    cli("send", priority.name, "a", "--priority", "99")
    assert cli("dead", "redrive", priority.name, "--matching", "[ab]", "--rate", "100").out == (
        "1 redriven, 1 merged with the backlog\n"
    )
    ran = cli("dead", "redrive", priority.name, "--priority", "50", "--limit", "5", "--json")
    assert ran.json == {"redriven": 1, "merged": 0, "absent": 0}
    found = {message.content: message.priority for message in client.inspect(priority).peek()}
    assert found == {b"a": 99, b"b": 1, b"c": 50}
    assert "and has priorities" in cli("dead", "redrive", priority.name, "--due-in", "5s", code=2).err
    assert "per_second" in cli("dead", "redrive", priority.name, "--rate", "0", code=2).err


def test_purge_asks_or_wants_yes(cli: Cli, client: RmqClient, priority: Topic) -> None:
    cli("send", priority.name, "a", "b", "--priority", "20")
    bury(client, priority)
    assert "add --yes" in cli("dead", "purge", priority.name, code=2).err
    assert client.inspect(priority).stats().dead == 2
    assert cli("dead", "purge", priority.name, "--content", "a", "--yes").out == "1 purged\n"
    assert cli("dead", "purge", priority.name, "--yes", "--json").json == {"purged": 1}


# --- control and topics


def test_cancel_and_reschedule(cli: Cli, client: RmqClient, merging: Topic) -> None:
    cli("send", merging.name, "a", "b", "--time-range", "1h", "--slot-basis", "s")
    assert cli("reschedule", merging.name, "a", "--in", "0", "--slot-basis", "s").out == "rescheduled: a\n"
    assert cli("reschedule", merging.name, "b", "--at", "2099-01-01T00:00Z", "--slot-basis", "s").out
    with client.consumer(merging) as consumer:
        (delivery,) = consumer.poll(timeout=50)
        ran = cli("cancel", merging.name, "a", "--slot-basis", "s", code=1)
        assert (ran.out, ran.err) == ("", "not changed, because it is in flight: a\n")
        delivery.ack()
    assert cli("cancel", merging.name, "b", "--slot-basis", "s", "--json").json == {
        "topic": merging.name,
        "content": "b",
        "result": "done",
    }
    assert "not found in the backlog" in cli("cancel", merging.name, "b", "--slot-basis", "s", code=1).err
    assert cli("cancel", merging.name, "b", "--json", code=1).json["result"] == "absent"
    assert "and has due times" in cli("reschedule", merging.name, "b", "--priority", "20", code=2).err
    assert "exactly one of" in cli("reschedule", merging.name, "b", code=2).err


def test_the_order_of_equal_priorities_is_shown_and_stays(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY, ties="any")).topic
    assert "ties         any" in cli("topics", "show", topic.name).out
    cli("send", topic.name, "a", "--priority", "5000")
    assert "now count as retries" in cli("topics", "change", topic.name, "--max-retries", "20").err
    assert "attempts" not in cli("topics", "show", topic.name).out
    oldest = client.producer(make_topic(TopicType.PRIORITY, keep_attempts=3)).topic
    assert "attempts     the last 3 failed ones are kept" in cli("topics", "show", oldest.name).out
    assert "ties         oldest first, priorities up to 1,048,575" in cli("topics", "show", oldest.name).out


def test_topics_are_listed_shown_and_changed(cli: Cli, client: RmqClient, priority: Topic) -> None:
    assert priority.name[:20] in cli("topics").out
    assert priority.name in {topic["name"] for topic in cli("topics", "--json").json["topics"]}
    for args in (("topics", "list", "--json"), ("--json", "topics", "list"), ("topics", "--json", "list")):
        assert cli(*args).json == cli("topics", "--json").json
    assert cli("topics", "show", priority.name, "--json").json == json.loads(priority.to_json())
    changes = ("--lease", "2m", "--retry", "ladder:1s,1m", "--max-backlog", "1000", "--max-retries", "20")
    changes += ("--max-content-bytes", "100", "--max-body-bytes", "0", "--max-dead", "10", "--max-dead-age", "1d")
    ran = cli("topics", "change", priority.name, *changes)
    assert "until they restart" in ran.err
    assert "retry        ladder, 1 s, 1 m" in ran.out
    changed = client.topic(priority.name)
    assert (changed.lease_s, changed.max_backlog, changed.max_retries) == (120, 1_000, 20)
    cli("topics", "change", priority.name, "--max-backlog", "none", "--retry", "immediate")
    assert client.topic(priority.name).max_backlog is None
    shown = cli("topics", "show", priority.name).out
    assert "no limit" in shown
    assert "retry        immediate" in shown
    assert "nothing to change" in cli("topics", "change", priority.name, code=2).err
    assert "'1500ms'; it must be whole s" in cli("topics", "change", priority.name, "--lease", "1500ms", code=2).err
    assert "from 0 to 999" in cli("topics", "change", priority.name, "--max-retries", "1000", code=2).err
    assert "is not registered" in cli("topics", "show", "no-such-topic", code=1).err
