"""Stream topics on a Redis Cluster: slots on several nodes, each script on one of them."""

from __future__ import annotations

import os
from datetime import timedelta

from rmq import DelayedQueue, ImmediateRetry, Retention, RmqClient, StreamMessage, Topic, TopicType
from tests.support.cli import Cli
from tests.support.streams import drain_entries
from tests.support.topologies import RedisClusterServers


def test_groups_the_dead_trimming_and_reading_on_a_cluster(cluster: RedisClusterServers) -> None:
    topic = Topic(
        f"streams{os.getpid()}",
        TopicType.STREAM,
        slots=16,
        lease=timedelta(seconds=20),
        max_retries=0,
        retry=ImmediateRetry(),
    )  # without a retention: a consumer would trim what it has acked, now and then
    with RmqClient(cluster.url) as client:
        client.producer(topic).send_many(StreamMessage(f"m{number}") for number in range(2_000))
        view = client.stream(topic)
        for group in ("a", "b"):
            with client.consumer(topic, group=group, start="all") as consumer:
                first = consumer.poll(1, 50)
                first[0].nack(error="dead at once")
                found = drain_entries(consumer, 1.0)
                assert len(set(found)) == len(found) == 1_999
                assert view.dead(group).redrive().redriven == 1
                assert drain_entries(consumer, 2.0) == [first[0].text]
            assert (view.group(group).lag, view.group(group).pending, view.group(group).unaccounted) == (0, 0, 0)
        assert len(list(view.range())) == 2_000
        trimmed = view.trim(retention=Retention(max_length=0, approximate=False))
        assert (sum(slot.dropped for slot in trimmed), {slot.length for slot in trimmed}) == (2_000, {0}), trimmed
        assert view.stats().unaccounted == 0


def test_a_delayed_queue_on_a_cluster(cluster: RedisClusterServers) -> None:
    with RmqClient(cluster.url) as client, DelayedQueue(client, f"delayed{os.getpid()}", slots=4) as queue:
        for number in range(20):
            queue.offer(str(number), f"{10 * number}ms")
        assert sorted(queue.take(50.0) for _ in range(20)) == sorted(str(number).encode() for number in range(20))


def test_the_command_line_on_a_cluster(cluster: RedisClusterServers) -> None:
    cli, name = Cli(cluster.url), f"cli{os.getpid()}"
    contents = [f"m{number}" for number in range(40)]
    assert cli("send", name, *contents, "--type", "stream", "--slots", "8").out == "40 sent\n"
    cli("stream", "add-group", name, "mail", "--start", "all")
    assert len(cli("peek", name, "--group", "mail", "--json", "--limit", "100").lines) == 40
    left = cli("consume", name, "--group", "mail", "--max", "10", "--settle", "leave", "--name", "m", "--json").lines
    assert len(left) == 10
    (found,) = cli("stats", name, "--group", "mail", "--json").json["topics"]
    assert (found["length"], found["groups"][0]["lag"], found["consumers"][0]["pending"]) == (40, 30, 10)
    assert cli("stream", "remove-consumer", name, "mail", "m").out == "m removed, 10 entries returned\n"
    found = cli("consume", name, "--group", "mail", "--json").lines
    assert sorted(each["content"] for each in found) == sorted(contents)
    entries = cli("stream", "range", name, "--json").lines
    assert len(entries) == 40
    slot, id_ = str(entries[0]["slot"]), entries[0]["id"]  # ids are unique in a slot only
    assert cli("stream", "delete", name, id_, "--slot", slot).out.startswith("1 ")
