"""Stream topics by the command line, against a real Redis."""

from __future__ import annotations

import threading

import pytest

from rmq import ImmediateRetry, Retention, RmqClient, StreamMessage, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.cli import Cli
from tests.support.waiting import wait_until


@pytest.fixture
def orders(make_topic: MakeTopic, client: RmqClient) -> Topic:
    topic = make_topic(
        TopicType.STREAM,
        checked=False,
        slots=2,
        retry=ImmediateRetry(),
        retention=Retention(max_length=1_000, approximate=False),
    )
    return client.producer(topic).topic


def send(client: RmqClient, topic: Topic, *contents: str) -> list[str]:
    """Send entries to one slot; return their ids."""
    producer = client.producer(topic)
    return [producer.send(StreamMessage(content, slot_basis="one slot")).ids[0] for content in contents]


# --- sending and consuming


def test_entries_with_a_content_and_with_fields(cli: Cli, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, slots=2)
    assert cli("send", topic.name, "a", "b", "--type", "stream", "--slots", "2").out == "2 sent\n"
    sent = cli("send", topic.name, "--field", "order=7", "--field", "state=a=b", "--slot-basis", "customer 3")
    assert sent.out == "1 sent\n"
    lines = b'{"fields": {"order": "8", "raw": {"base64": "//4="}}}\n{"content": "c", "body": "more"}\n'
    assert cli("send", topic.name, "--jsonl", "--json", stdin=lines).json == {
        "topic": topic.name, "new": 2, "merged": 0, "dropped": 0,
    }  # fmt: skip
    found = cli("consume", topic.name, "--group", "billing", "--start", "all", "--json").lines
    assert {each["content"] for each in found if each["fields"] is None} == {"a", "b", "c"}
    assert [each["body"] for each in found if each["content"] == "c"] == ["more"]
    fields = [each["fields"] for each in found if each["fields"] is not None]
    assert {"order": "7", "state": "a=b"} in fields
    assert {"order": "8", "raw": {"base64": "//4="}} in fields
    assert {(each["group"], each["attempt"]) for each in found} == {("billing", 1)}
    assert cli("consume", topic.name, "--group", "billing", "--timeout", "0").out == ""
    shown = cli("consume", topic.name, "--group", "mail", "--start", "all").out
    assert '{"order":"7","state":"a=b"}\n  id ' in shown


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--field", "x"), "NAME=VALUE"),
        (("--field", "=x"), "NAME=VALUE"),
        (("--field", "x=1", "--field", "x=2"), "given twice"),
        (("a", "--field", "x=1"), "either a content or fields"),
        (("--field", "x=1", "--jsonl"), "cannot be combined with --file"),
        (("--field", "x=1", "--body", "b"), "no body"),
        (("--field", "rmq:x=1"), "rmq:"),
    ],
)
def test_wrong_fields_are_refused(cli: Cli, orders: Topic, args: tuple[str, ...], why: str) -> None:
    assert why in cli("send", orders.name, *args, code=2).err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"fields": []}', "must be an object"),
        (b'{"fields": {"a": 1}}', "fields.a"),
        (b'{"fields": {"a": "1"}, "content": "x"}', "cannot be combined"),
        (b'{"body": "x"}', '"content" is missing'),
    ],
)
def test_wrong_lines_are_refused(cli: Cli, orders: Topic, line: bytes, why: str) -> None:
    assert why in cli("send", orders.name, "--jsonl", stdin=line, code=2).err


def test_groups_are_for_streams_and_streams_need_one(cli: Cli, orders: Topic, priority: Topic) -> None:
    for command in (("consume",), ("peek",), ("dead", "list"), ("dead", "redrive"), ("dead", "purge", "--yes")):
        assert "needs a group" in cli(*command, orders.name, code=2).err
        assert "only STREAM" in cli(*command, priority.name, "--group", "g", code=2).err
    assert "only STREAM" in cli("stats", priority.name, "--group", "g", code=2).err
    assert "requires the name of a stream topic" in cli("stats", "--group", "g", code=2).err
    assert (
        "only entries of stream topics" in cli("send", priority.name, "--priority", "20", "--field", "a=b", code=2).err
    )
    assert "--group" in cli("consume", priority.name, "--start", "all", code=2).err
    for command in ("groups", "trim", "range", "tail"):
        assert "PRIORITY" in cli("stream", command, priority.name, code=2).err
    assert "not registered" in cli("stream", "groups", "nobody-knows-it", code=1).err


# --- looking inside


def test_what_a_group_has_before_it_in_hand_and_waiting(cli: Cli, client: RmqClient, orders: Topic) -> None:
    first, second, third = send(client, orders, "a", "b", "c")
    with client.consumer(orders, group="mail", start="all", name="mailer-1") as consumer:
        consumer.poll(1)
        (delivery,) = consumer.poll(1)
        delivery.nack(delay="10m")
        assert [each["id"] for each in cli("peek", orders.name, "--group", "mail", "--json").lines] == [third]
        (held,) = cli("peek", orders.name, "--group", "mail", "--place", "in-flight", "--json").lines
        assert (held["id"], held["consumer"], held["deliveries"]) == (first, "mailer-1", 1)
        (waiting,) = cli("peek", orders.name, "--group", "mail", "--place", "retry", "--json").lines
        assert (waiting["id"], waiting["consumer"]) == (second, None)
        assert "mailer-1" in cli("stream", "pending", orders.name, "mail").out
        assert "waits for a retry" in cli("stream", "pending", orders.name, "mail").out
        own = cli("stream", "pending", orders.name, "mail", "--consumer", "mailer-1", "--json").lines
        assert [each["id"] for each in own] == [first]
        more = cli("stream", "pending", orders.name, "mail", "--limit", "1")
        assert "are shown; --limit N shows more" in more.err
        assert "no pending entries" in cli("stream", "pending", orders.name, "nobody").err
        assert "no entries found" in cli("peek", orders.name, "--group", "nobody").err


def test_stats_of_streams_groups_and_consumers(cli: Cli, client: RmqClient, orders: Topic, priority: Topic) -> None:
    first, *_, last = send(client, orders, *"abcd")
    with client.consumer(orders, group="mail", start="all", name="mailer-1") as consumer:
        consumer.ack(consumer.poll(2))
        consumer.poll(1)
    cli("stream", "add-group", orders.name, "billing")
    (found,) = cli("stats", orders.name, "--json").json["topics"]
    assert (found["length"], found["first_id"], found["last_id"], found["unaccounted"]) == (4, first, last, 0)
    billing, mail = found["groups"]
    assert (billing["group"], billing["lag"], mail["lag"], mail["in_flight"]) == ("billing", 0, 1, 1)
    assert (mail["totals"]["delivered"], mail["totals"]["acked"]) == (3, 2)
    assert cli("stream", "groups", orders.name, "--json").json["groups"] == [billing, mail]
    (found,) = cli("stats", orders.name, "--group", "mail", "--slots", "--json").json["topics"]
    (consumer_,) = found["consumers"]
    assert (consumer_["name"], consumer_["pending"], consumer_["gone"]) == ("mailer-1", 1, False)
    assert sum(slot["length"] for slot in found["per_slot"]) == 4
    out = cli("stats", orders.name, priority.name, "--slots").out
    assert all(title in out for title in ("Now", "Streams", "Groups now", "Since the group began", "oldest unacked"))
    assert "unaccounted" not in out
    assert "mailer-1" in cli("stats", orders.name, "--group", "mail").out
    assert "no group nobody" in cli("stats", orders.name, "--group", "nobody").out
    names = {each["topic"] for each in cli("stats", "--json").json["topics"]}
    assert {orders.name, priority.name} <= names


def test_ranges_from_both_ends_by_id_time_and_age(cli: Cli, client: RmqClient, orders: Topic) -> None:
    ids = send(client, orders, *"abcd")

    def found(*args: str) -> list[str]:
        return [each["id"] for each in cli("stream", "range", orders.name, "--json", *args).lines]

    assert found() == ids
    assert found("--newest", "--limit", "2") == [ids[3], ids[2]]
    assert found("--from", ids[1], "--to", ids[2]) == ids[1:3]
    assert found("--from", f"({ids[0]}", "--to", f"({ids[3]}") == ids[1:3]
    assert "the text after ( must be an id" in cli("stream", "range", orders.name, "--from", "(2h", code=2).err
    assert found("--from", "1h") == ids
    assert found("--to", "1h") == []
    assert found("--from", ids[0].partition("-")[0]) == ids
    assert "are shown; --limit N shows more" in cli("stream", "range", orders.name, "--limit", "1").err
    assert ids[0] in cli("stream", "range", orders.name).out
    assert "no entries found" in cli("stream", "range", orders.name, "--to", "1h").err
    assert "--from" in cli("stream", "range", orders.name, "--from", "yesterday", code=2).err
    assert "has no slot 2" in cli("stream", "range", orders.name, "--slot", "2", code=2).err


def test_a_tail_shows_what_arrives(cli: Cli, client: RmqClient, orders: Topic) -> None:
    first, second = send(client, orders, "a", "b")
    after = cli("stream", "tail", orders.name, "--from", first, "--max", "1", "--json").lines
    assert [each["id"] for each in after] == [second]
    assert cli("stream", "tail", orders.name, "--timeout", "0").out == ""
    found: list[str] = []
    follow = threading.Thread(target=lambda: found.append(cli("stream", "tail", orders.name, "--max", "1").out))
    follow.start()
    wait_until(lambda: bool(send(client, orders, "news")) and bool(found))
    follow.join()
    assert found[0].startswith("news\n  id ")


def test_a_tail_follows_several_topics(cli: Cli, client: RmqClient, orders: Topic, make_topic: MakeTopic) -> None:
    bills = client.producer(make_topic(TopicType.STREAM, checked=False)).topic
    send(client, orders, "a")
    send(client, bills, "b")
    names = (orders.name, bills.name)
    found = cli("stream", "tail", *names, "--from", "1h", "--max", "2", "--json").lines
    assert [(each["topic"], each["content"]) for each in found] == list(zip(names, ("a", "b"), strict=True))
    out = cli("stream", "tail", *names, "--from", "1h", "--max", "2").out
    assert all(f"topic {name}, id " in out for name in names)
    assert "give one topic" in cli("stream", "tail", *names, "--slot", "0", code=2).err
    assert "not registered" in cli("stream", "tail", orders.name, "nobody-knows-it", code=1).err


def test_pending_from_an_id_and_by_idle_time(cli: Cli, client: RmqClient, orders: Topic) -> None:
    ids = send(client, orders, *"abc")

    def found(*args: str) -> list[str]:
        return [each["id"] for each in cli("stream", "pending", orders.name, "mail", "--json", *args).lines]

    with client.consumer(orders, group="mail", start="all", name="mailer-1") as consumer:
        held: list[object] = []
        while len(held) < 3:
            held += consumer.poll(3, timeout=5)
        assert found() == found("--from", "1h") == found("--idle", "0s") == found("--from", ids[0]) == ids
        assert found("--from", f"({ids[0]}") == ids[1:]
        assert len(found("--limit", "2")) == 2
        assert found("--idle", "1h") == []
        assert "--from is" in cli("stream", "pending", orders.name, "mail", "--from", "soon", code=2).err
        consumer.release(held)  # pyright: ignore[reportArgumentType]


def test_a_trim_with_bounds_of_its_own(cli: Cli, client: RmqClient, orders: Topic) -> None:
    send(client, orders, *(str(number) for number in range(20)))
    assert cli("stream", "trim", orders.name, "--max-age", "1h", "--json").json["dropped"] == 0
    assert "require --max-length" in cli("stream", "trim", orders.name, "--exact", code=2).err
    assert cli("stream", "trim", orders.name, "--max-length", "4", "--exact", "--json").json["length"] <= 4
    client.stream(orders).add_group("mail", "all")
    assert cli("stream", "trim", orders.name, "--max-length", "0", "--exact", "--json").json["dropped"] == 0
    assert cli("stream", "trim", orders.name, "--max-length", "0", "--exact", "--unacked", "--json").json["length"] == 0


# --- looking after it


def test_groups_are_added_and_removed(cli: Cli, client: RmqClient, orders: Topic) -> None:
    send(client, orders, "a", "b")
    assert "registered" in cli("stream", "add-group", orders.name, "mail", "--start", "all").out
    assert client.stream(orders).group("mail").lag == 2
    with client.consumer(orders, group="mail", name="busy") as consumer:
        consumer.poll(1)
        assert "busy" in cli("stream", "remove-group", orders.name, "mail", code=1).err
    assert cli("stream", "remove-group", orders.name, "mail", "--force").out == "group mail removed\n"
    assert "no group mail" in cli("stream", "remove-group", orders.name, "mail", code=1).out
    assert "no groups" in cli("stream", "groups", orders.name).err
    assert "'new', 'all'" in cli("stream", "add-group", orders.name, "mail", "--start", "soon", code=2).err


def test_a_group_is_moved(cli: Cli, client: RmqClient, orders: Topic) -> None:
    send(client, orders, "a", "b")
    view = client.stream(orders)
    view.add_group("mail")
    for place, left in (("all", 2), ("new", 0), ("2h", 2), ("1-1", 2)):
        assert "was moved" in cli("stream", "move-group", orders.name, "mail", place).out
        assert view.group("mail").lag == left
    assert cli("stream", "move-group", orders.name, "mail", "all", "--json").json == {
        "topic": orders.name,
        "group": "mail",
        "start": "all",
    }
    assert "position is 'soon'" in cli("stream", "move-group", orders.name, "mail", "soon", code=2).err
    assert "no group post" in cli("stream", "move-group", orders.name, "post", "all", code=2).err


def test_dead_consumers_are_removed_and_what_they_held_goes_to_others(
    cli: Cli, client: RmqClient, orders: Topic
) -> None:
    send(client, orders, "a", "b")
    for name in ("dead-1", "dead-2"):
        with client.consumer(orders, group="mail", start="all", name=name) as consumer:
            assert len(consumer.poll(1)) == 1
    shown = cli("stream", "consumers", orders.name, "mail").out
    assert "dead-1" in shown
    assert "at work" in shown
    assert cli("stream", "remove-consumer", orders.name, "mail", "dead-1").out == "dead-1 removed, 1 entry returned\n"
    assert "no consumer 'dead-1'" in cli("stream", "remove-consumer", orders.name, "mail", "dead-1", code=2).err
    assert cli("stream", "remove-consumer", orders.name, "mail", "--gone", "--json").json["removed"] == []
    gone = cli("stream", "remove-consumer", orders.name, "mail", "--gone", "--idle", "1ms", "--json").json
    assert gone["removed"] == ["dead-2"]
    assert (
        "either the NAME of a consumer, or --gone" in cli("stream", "remove-consumer", orders.name, "mail", code=2).err
    )
    with client.consumer(orders, group="mail") as consumer:
        assert sorted(each.text for each in consumer.poll(10, 50)) == ["a", "b"]
    cli("stream", "remove-group", orders.name, "mail", "--force")
    assert "no consumers" in cli("stream", "consumers", orders.name, "mail").err


def test_trimming_and_deleting(cli: Cli, client: RmqClient, orders: Topic) -> None:
    first, second, *_ = send(client, orders, *"abcd")
    slot = str(next(entry.slot for entry in client.stream(orders).range() if entry.text == "a"))
    assert cli("stream", "delete", orders.name, first, "--slot", slot).out == "1 deleted\n"
    assert cli("stream", "delete", orders.name, first, "--slot", slot, code=1).out == "0 deleted\n"
    assert cli("stream", "delete", orders.name, second, "--slot", "9", code=2).err
    assert "must be an entry's id" in cli("stream", "delete", orders.name, "first", code=2).err
    cli("topics", "change", orders.name, "--max-length", "2")  # only now: consumers would trim, too
    assert cli("stream", "trim", orders.name).out == "2 dropped, 1 left\n"
    assert "2 entries; entries that a group" in cli("topics", "show", orders.name).out
    cli("topics", "change", orders.name, "--max-length", "none", "--max-age", "2h")
    assert "2 h; entries that a group" in cli("topics", "show", orders.name).out
    cli("topics", "change", orders.name, "--max-age", "none")
    assert "all entries are kept" in cli("topics", "show", orders.name).out
    assert "no limits" in cli("stream", "trim", orders.name).err
    assert cli("stream", "trim", orders.name, "--json").json["dropped"] == 0


def test_the_dead_of_a_group(cli: Cli, client: RmqClient, orders: Topic) -> None:
    ids = send(client, orders, "a", "b", "c")
    for group in ("mail", "billing"):
        with client.consumer(orders, group=group, start="all") as consumer:
            for delivery in consumer.poll(10):
                delivery.bury(ValueError(f"no {delivery.text}"))

    def dead(group: str) -> list[str]:
        return [each["id"] for each in cli("dead", "list", orders.name, "--group", group, "--json").lines]

    assert dead("mail") == dead("billing") == ids
    assert "ValueError: no a" in cli("dead", "list", orders.name, "--group", "mail").out
    assert cli("dead", "redrive", orders.name, "--group", "mail", "--content", "a").out == "1 redriven\n"
    assert (
        "cannot be used for the entries of a stream topic"
        in cli("dead", "redrive", orders.name, "--group", "mail", "--rate", "5", code=2).err
    )
    assert cli("dead", "purge", orders.name, "--group", "mail", "--yes", "--limit", "1").out == "1 purged\n"
    assert (dead("mail"), dead("billing")) == (ids[2:], ids)
    again = cli("consume", orders.name, "--group", "mail", "--json").lines
    assert [(each["id"], each["attempt"]) for each in again] == [(ids[0], 1)]
    assert client.stream(orders).group("mail").unaccounted == 0
