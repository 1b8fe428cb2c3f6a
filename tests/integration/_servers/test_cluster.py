"""A real Redis Cluster: everything works there, through moves of hash slots and the death of a master."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from rmq import (
    BacklogFullError,
    Delivery,
    Fixed,
    Merge,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    StreamMessage,
    Sum,
    Topic,
    TopicType,
)
from rmq.errors import InvalidUrlError, RedisUnavailableError
from tests.support.clients import stats_of
from tests.support.core import Connections, hash_slot, parse_url, rate_key, slot_keys, take_tokens
from tests.support.exercise import exercise, wake
from tests.support.servers import RedisServer
from tests.support.sides import SIDES, Side
from tests.support.topologies import NEVER_MS, RedisClusterServers
from tests.support.traffic import SECOND, Traffic
from tests.support.waiting import wait_until

_numbers = count(1)


@pytest.fixture
def client(cluster: RedisClusterServers) -> Iterator[RmqClient]:
    with make_client(cluster) as client:
        yield client


@pytest.fixture
def topic() -> Topic:
    return Topic(f"cluster{os.getpid()}-{next(_numbers)}", TopicType.PRIORITY, slots=16, lease=5 * SECOND)


def make_client(cluster: RedisClusterServers, **options: object) -> RmqClient:
    return RmqClient(cluster.url, **{"timeout_s": 20.0, "deadline_s": 60.0, **options})  # pyright: ignore[reportArgumentType]


def commands_of(cluster: RedisClusterServers) -> int:
    """Commands that clients sent: not those within scripts, and not those of the measuring."""
    stats = [cluster.ask(server, "INFO", "commandstats") for server in cluster.servers]
    ours = ("cmdstat_evalsha", "cmdstat_ping", "cmdstat_cluster", "cmdstat_cluster|slots", "cmdstat_script")
    return sum(each[name]["calls"] for each in stats for name in ours if name in each)


@pytest.mark.parametrize("side", SIDES, indirect=True)
def test_everything_works(cluster: RedisClusterServers, side: Side) -> None:
    with side.client(cluster.url, timeout_s=20.0) as client:
        exercise(client, f"all{next(_numbers)}")


def test_the_slots_of_a_topic_lie_on_all_nodes(cluster: RedisClusterServers, client: RmqClient) -> None:
    # so many slots that no name of a topic leaves a node without any
    topic = Topic(f"wide{next(_numbers)}", TopicType.PRIORITY, slots=128)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(500))
    owners = {cluster.owner(slot_keys(topic.name, slot).store).port for slot in range(topic.slots)}
    assert len(owners) == 3
    keys = slot_keys(topic.name, 0)
    names = [getattr(keys, field) for field in keys.__slots__]
    assert len({hash_slot(name) for name in names}) == 1
    assert [hash_slot(name) for name in names] == [
        cluster.ask(cluster.servers[0], "CLUSTER", "KEYSLOT", name) for name in names
    ]


def test_hints_wake_an_idle_consumer(client: RmqClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._claiming.consumer.LOOK_EVERY_S", 3_600.0)
    wake(client, f"wake{next(_numbers)}")


def test_an_idle_consumer_of_many_slots_is_quiet(cluster: RedisClusterServers, client: RmqClient) -> None:
    with client.consumer(Topic(f"quiet{next(_numbers)}", TopicType.PRIORITY, slots=1_024)) as consumer:
        while consumer.poll(timeout=0.2):
            pass
        wait_until(lambda: consumer.poll(timeout=1.0) == [])
        before, started_s = commands_of(cluster), time.monotonic()
        assert consumer.poll(timeout=4.0) == []
        elapsed_s = time.monotonic() - started_s
        rate = (commands_of(cluster) - before) / elapsed_s
    assert 0 < rate <= 10


def test_hash_slots_move_while_messages_flow(cluster: RedisClusterServers, topic: Topic) -> None:
    """Pitfall 22: MOVED, ASK and TRYAGAIN execute nothing, so all is repeated, and nothing is lost or doubled."""
    with Traffic(lambda: make_client(cluster), topic) as traffic:
        traffic.wait_for(200)
        for slot in range(0, topic.slots, 3):
            key = slot_keys(topic.name, slot).store
            source = cluster.owner(key)
            target = next(server for server in cluster.servers if server is not source)
            cluster.move(key, target, between=lambda: time.sleep(0.02))
        traffic.wait_for(500)
        assert traffic.settle() == set()
        assert traffic.errors == []
        assert set(traffic.handled.values()) == {1}
        stats_of(traffic.handling, topic)


@pytest.mark.parametrize("side", SIDES, indirect=True)
def test_the_order_of_a_slot_holds_while_it_moves(cluster: RedisClusterServers, side: Side) -> None:
    """TRYAGAIN, ASK and MOVED refuse calls of a flight, and others of it may pass."""
    stream = Topic(f"cluster{os.getpid()}-{next(_numbers)}", TopicType.STREAM, slots=1)
    key = slot_keys(stream.name, 0).store
    with side.client(cluster.url, timeout_s=5.0, deadline_s=20.0) as client:
        producer = client.producer(stream)
        producer.send(StreamMessage("-1"))
        stop = threading.Event()

        def move() -> None:
            for turn in itertools.count():
                others = [server for server in cluster.servers if server is not cluster.owner(key)]
                cluster.move(key, others[turn % 2], between=lambda: time.sleep(0.005))
                if stop.is_set():
                    return

        mover = threading.Thread(target=move)
        mover.start()
        try:
            for first in range(0, 20_000, 4_000):
                assert producer.send_many(StreamMessage(str(first + i)) for i in range(4_000)).new == 4_000
        finally:
            stop.set()
            mover.join()
    found = [int(fields[b"content"]) for _, fields in cluster.ask(cluster.owner(key), "XRANGE", key, "-", "+")]
    assert found == list(range(-1, 20_000))


def test_hints_follow_a_moved_hash_slot(
    cluster: RedisClusterServers, client: RmqClient, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = client.producer(topic)
    basis = next(f"b{i}" for i in range(1_000) if topic.slot_of(f"b{i}".encode()) == 5)
    key = slot_keys(topic.name, 5).store
    with client.consumer(topic) as consumer:
        assert consumer.poll(timeout=1.2) == []
        target = next(server for server in cluster.servers if server is not cluster.owner(key))
        cluster.move(key, target)
        producer.send(PriorityMessage("first", 100, slot_basis=basis))
        [delivery] = consumer.poll(timeout=50)
        assert delivery.ack()  # found by looking at all, since hints may have been missed
        monkeypatch.setattr("rmq._claiming.consumer.LOOK_EVERY_S", 3_600.0)  # from here on only a hint can wake it
        assert consumer.poll(timeout=1.2) == []
        timer = threading.Timer(0.1, lambda: producer.send(PriorityMessage("second", 100, slot_basis=basis)))
        timer.start()
        [delivery] = consumer.poll(timeout=50)
        assert delivery.ack()
        timer.join()


def test_scripts_are_loaded_on_each_node(cluster: RedisClusterServers, client: RmqClient, topic: Topic) -> None:
    """Pitfall 7."""
    producer = client.producer(topic)
    producer.send_many(PriorityMessage(f"m{i}", 100) for i in range(100))
    for server in cluster.servers:
        cluster.ask(server, "SCRIPT", "FLUSH")
    assert producer.send_many(PriorityMessage(f"n{i}", 100) for i in range(100)).new == 100


def test_a_script_is_loaded_on_the_node_that_a_hash_slot_moves_to(cluster: RedisClusterServers, topic: Topic) -> None:
    """While a hash slot moves, its new keys are on the new node already: ASK leads there, and the script, too."""
    limited = replace(topic, max_rate=1_000.0)
    key = rate_key(limited.name)
    target = next(server for server in cluster.servers if server is not cluster.owner(key))
    connections = Connections(parse_url(cluster.url), timeout_s=20.0, deadline_s=60.0)

    def take() -> None:
        cluster.ask(target, "SCRIPT", "FLUSH")
        taken.append(connections.run(take_tokens(limited, 5))[0])

    taken: list[int] = []
    try:
        cluster.move(key, target, between=take)
        assert set(taken) == {5}  # again for each key that another test has left in the hash slot
        assert connections.run(take_tokens(limited, 5))[0] == 5
    finally:
        connections.command("DEL", key)
        connections.close()


def test_a_frozen_node_holds_up_no_reading_of_the_map(cluster: RedisClusterServers) -> None:
    frozen, *others = cluster.servers
    url = "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)
    connections = Connections(parse_url(url), timeout_s=600.0)
    key = next(f"k{i}" for i in range(1_000) if cluster.owner(f"k{i}") is others[0])
    try:
        assert connections.command("EXISTS", key) == 0
        frozen.pause()
        for _ in range(8):  # each time another node may be asked
            time.sleep(0.15)
            connections.router.invalidate()
            assert connections.command("EXISTS", key) == 0
    finally:
        frozen.resume()
        connections.close()
        cluster.wait_whole()


def test_a_named_call_that_failed_on_one_node_is_repeated_exactly(client: RmqClient) -> None:
    """Its repeat numbers the same messages: a batch that was cut short would hide those that belong to it."""
    topic = Topic(f"once{next(_numbers)}", TopicType.RANGE_MERGE, slots=16, merge=Merge(Sum(), window=Fixed("100ms")))
    by_slot: dict[int, list[str]] = {}
    for content in (f"c{number}" for number in range(200)):
        by_slot.setdefault(topic.slot_of(content.encode()), []).append(content)
    fullest = max(by_slot, key=lambda slot: len(by_slot[slot]))
    often = by_slot[fullest][0]
    rare = [content for contents in by_slot.values() for content in contents if content != often]
    topic = replace(topic, max_backlog=topic.slots * len(by_slot[fullest]))
    producer, control = client.producer(topic), client.control(topic)
    filler = next(f"f{number}" for number in range(1_000) if topic.slot_of(f"f{number}".encode()) == fullest)
    producer.send(
        RangeMergeMessage(filler, time_range_ms=3_600_000, body=1)
    )  # leaves no room for the one that comes last

    def messages() -> Iterator[RangeMergeMessage]:
        for number in range(30_000):
            yield RangeMergeMessage(rare[number % len(rare)], body=1)
            if number >= 20_000:
                yield RangeMergeMessage(often, body=1)

    with pytest.raises(BacklogFullError) as caught:
        producer.send_many(messages(), once="job")
    assert 0 < caught.value.stored < 30_000
    control.cancel(filler)
    assert producer.send_many(messages(), once="job").accepted == 40_000
    found: dict[str, int] = {}
    consumer = client.consumer(topic)
    while deliveries := consumer.poll(timeout=2.0):
        for delivery in deliveries:
            found[delivery.text] = found.get(delivery.text, 0) + delivery.value
            delivery.ack()
    assert (found[often], sum(found[content] for content in rare)) == (10_000, 30_000)


def test_a_server_that_is_no_cluster() -> None:
    with RedisServer() as server, pytest.raises(InvalidUrlError, match="is not a cluster; use redis://"):
        with RmqClient(f"redis+cluster://127.0.0.1:{server.port}") as client:
            client.topics()


def test_nobody_there() -> None:
    with RmqClient("redis+cluster://127.0.0.1:1", deadline_s=0.3) as client:
        with pytest.raises(RedisUnavailableError, match="no node of the cluster answers"):
            client.topics()


def test_a_master_dies_while_messages_flow(topic: Topic) -> None:
    """Pitfalls 7, 20, 27: the consumers go on with the other nodes' slots at once, and with its own after failover."""
    with RedisClusterServers(3, replicas=1) as cluster:
        with Traffic(
            lambda: make_client(cluster, durability="replicated", timeout_s=1.0, deadline_s=5.0), topic
        ) as traffic:
            traffic.wait_for(300)
            victim = cluster.owner(slot_keys(topic.name, 0).store)
            alive = next(
                slot for slot in range(topic.slots) if cluster.owner(slot_keys(topic.name, slot).store) is not victim
            )
            basis = next(f"b{i}" for i in range(1_000) if topic.slot_of(f"b{i}".encode()) == alive)
            key = slot_keys(topic.name, 0).store
            with make_client(cluster, timeout_s=1.0) as other:
                producer = other.producer(topic)
                producer.send(PriorityMessage("before", 100, slot_basis=basis))
                victim.kill()
                producer.send(PriorityMessage("on another node", 100, slot_basis=basis))
            wait_until(lambda: "on another node" in traffic.handled, message="the others' slots to go on")
            assert cluster.find_owner(key) in (victim, None)
            cluster.take_for_dead_after()
            started_s = time.monotonic()
            wait_until(lambda: cluster.find_owner(key) not in (victim, None), 60, "failover")
            failover_s = time.monotonic() - started_s
            cluster.wait_whole()
            cluster.take_for_dead_after(NEVER_MS)
            victim.start()
            traffic.wait_for(300)
            accepted = len(traffic.accepted)
            wait_until(lambda: len(traffic.accepted) > accepted + 100, message="accepted again")
            lost = traffic.settle()
        print(
            f"failover {failover_s:.1f} s, slowest send {traffic.slowest_send_s:.1f} s, longest silence of the "
            f"handlers {traffic.longest_gap_s:.1f} s, accepted {len(traffic.accepted)}, lost {len(lost)}, "
            f"delivered twice {sum(n > 1 for n in traffic.handled.values())}, errors {len(traffic.errors)}"
        )
        assert lost == set()


def test_what_a_listener_gives_back_is_taken_over_at_once(cluster: RedisClusterServers, topic: Topic) -> None:
    """Without a hint it would be found when its slot's turn comes: 128 s, with so many slots."""
    wide, began, end = replace(topic, slots=1_024, lease=600 * SECOND), threading.Event(), threading.Event()
    with make_client(cluster) as slow, make_client(cluster) as other:

        @slow.listener(wide)
        def work(delivery: Delivery) -> None:
            if delivery.text == "slow":
                began.set()
                end.wait(30)

        producer = slow.producer(wide)
        producer.send_many(PriorityMessage(f"m{number}", 100, "here") for number in range(200))
        slow.start()
        wait_until(lambda: stats_of(slow, wide).total("acked") == 200)  # it claims ahead now
        slow.control(wide).pause([wide.slot_of(b"here")])
        producer.send(PriorityMessage("slow", 900, "here"))
        producer.send_many(PriorityMessage(f"behind{number}", 100, "here") for number in range(20))
        slow.control(wide).resume([wide.slot_of(b"here")])
        with other.consumer(wide) as consumer:
            try:
                assert began.wait(30)
                found: list[str] = []
                wait_until(lambda: found.extend(each.text for each in consumer.poll(timeout=1)) or len(found) == 20)
                assert sorted(found) == sorted(f"behind{number}" for number in range(20))
            finally:
                end.set()
                slow.stop()


def test_without_a_right_to_the_channels_sends_are_taken(cluster: RedisClusterServers, topic: Topic) -> None:
    for server in cluster.servers:
        cluster.ask(server, "ACL", "SETUSER", "mute", "reset", "on", ">pw", "~*", "+@all", "resetchannels")
    with RmqClient(cluster.url.replace("://", "://mute:pw@", 1), timeout_s=20.0) as client:
        sent = client.producer(topic).send_many(PriorityMessage(f"m{number}", 100) for number in range(50))
        assert (sent.new, stats_of(client, topic).backlog) == (50, 50)
        with client.consumer(topic) as consumer:
            found = consumer.poll(100)
            assert [delivery.nack(delay="0s") for delivery in found] == [True] * len(found)
            assert consumer.release(consumer.poll(100)) == []


def test_where_a_node_refuses_the_map_another_one_is_asked(cluster: RedisClusterServers) -> None:
    for server in cluster.servers:
        refused = ["-cluster"] if server is cluster.servers[0] else []
        cluster.ask(server, "ACL", "SETUSER", "half", "reset", "on", ">pw", "~*", "&*", "+@all", *refused)
    url = cluster.url.replace("://", "://half:pw@")
    for _ in range(8):  # which node is asked first is random
        with RmqClient(url, timeout_s=20.0, deadline_s=60.0) as client:
            client.topics()
    with (
        RmqClient(url.partition(",")[0], timeout_s=5.0) as client,
        pytest.raises(RedisUnavailableError, match="refused CLUSTER SLOTS"),
    ):
        client.topics()
