"""One owner for each slot: real worker processes with a real ZooKeeper, under faults. `make chaos` goes further."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rmq import Delivery, PriorityMessage, RmqClient, Topic, TopicType, calls
from rmq.claimer import Claimer
from rmq.connections import Connections
from rmq.coordination import Coordinator
from rmq.delivery import ACKED, Holder
from rmq.errors import CoordinationError, EnsembleMismatchError, FencedError, InvalidValueError, RmqError
from rmq.ownership import Owner
from rmq.results import Claimed
from rmq.zookeeper_server import ZooKeeperEnsemble
from tests.conftest import MakeTopic
from tests.support import scenarios
from tests.support.cli import Cli
from tests.support.ledger import tell
from tests.support.link import Link
from tests.support.ownership import SESSION_S, TICK_MS, Report, Rig
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:No chroot path exists")

LEASE_S = 8
"""Longer than every pause here: no overlap has an excuse."""


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tick_ms=TICK_MS) as servers:
        yield servers


@pytest.fixture
def link(zookeeper: ZooKeeperEnsemble) -> Iterator[Link]:
    with Link(zookeeper.servers[0].port) as link:
        yield link


def new_chroot() -> str:
    return f"/owned-{os.getpid()}-{random.randrange(10**9)}"


# --- processes


def check(report: Report) -> None:
    """Check that nothing was lost, nothing ran twice at once, nothing late was accepted."""
    told = report.to_json()
    assert report.sent > 0, told
    assert (report.lost, report.unaccounted, report.stale_starts) == (0, 0, 0), told
    assert (report.content_overlaps, report.slot_overlaps) == ((0, 0), (0, 0)), told
    assert report.late[1] == 0, told


def make_rig(zookeeper: ZooKeeperEnsemble, redis: RedisServer, folder: Path) -> Rig:
    types, lease = (TopicType.RANGE_MERGE, TopicType.PRIORITY), timedelta(seconds=LEASE_S)
    topics = [Topic(f"{folder.name}-{type_.name}", type_, slots=16, lease=lease) for type_ in types]
    return Rig(redis.url, zookeeper.hosts, folder, topics)


def test_work_is_spread_evenly_and_serial_per_slot_while_workers_come_and_go(
    zookeeper: ZooKeeperEnsemble, redis_server: RedisServer, tmp_path: Path
) -> None:
    with make_rig(zookeeper, redis_server, tmp_path) as rig:
        rig.start("w0")
        rig.wait_owned()
        with rig.traffic() as traffic:
            rig.start("w1")
            rig.wait_owned()
            measured = scenarios.join_and_leave(rig)
            time.sleep(1)
        report = rig.account("join and leave", traffic, lease_s=LEASE_S, **measured)
        check(report)
        assert report.duplicates == 0
        assert {run.pid for run in rig.story().runs} == {worker.pid for worker in rig.workers.values()}


def test_a_worker_dies_stands_still_or_is_cut_off(
    zookeeper: ZooKeeperEnsemble, redis_server: RedisServer, tmp_path: Path, link: Link
) -> None:
    # pitfalls 31, 37, 38, 41
    with make_rig(zookeeper, redis_server, tmp_path) as rig:
        rig.start("w0", hosts=f"127.0.0.1:{link.port}")
        rig.start("w1", "w2")
        rig.wait_owned()
        with rig.traffic() as traffic:
            cut = scenarios.cut_from_zookeeper([link], "w0", 1.5 * SESSION_S)(rig)
            redis_cut = scenarios.cut_from_redis(2.0)(rig)
            stopped = scenarios.stopped(2.0)(rig)
            killed = scenarios.killed(rig)
        report = rig.account("faults", traffic, lease_s=LEASE_S)
        check(report)
        for measured in (cut, stopped, killed):
            assert measured["again_s"] < SESSION_S + scenarios.RECOVERY_S
        assert redis_cut["moved"] == 0


# --- the checker itself


def line(kind: str, at_s: float, pid: int = 1, content: str = "c", epoch: int = 1) -> str:
    return f"{kind} {at_s} {pid} thread t 0 {content} {epoch}"


def test_the_checker_finds_what_must_not_be() -> None:
    story = tell(
        [
            line("start", 0, 1, "a"),
            line("start", 1, 2, "a", 2),
            line("end", 2, 2, "a", 2),
            line("start", 3, 2, "b", 2),
            line("end", 4, 2, "b", 2),
            "pause 5 1 4.5",
            line("end", 5, 1, "a"),
            line("start", 6, 1, "d"),
        ],
        {1: 7.0},
    )
    assert len(story.content_overlaps()) == 1
    assert len(story.slot_overlaps()) == 2
    assert {overlap.paused_s for overlap in story.slot_overlaps()} == {4.5}
    assert [(run.content, refused) for run, refused in story.late(4)] == [("a", True)]
    assert [run.content for run in story.epochs_fall()] == ["d"]
    assert story.handled == {("t", "a"), ("t", "b")}
    assert story.duplicates == 1
    assert story.runs[-1].end_s == 7.0


# --- one process


Coordinate = Callable[..., Coordinator]


@pytest.fixture
def coordinate(zookeeper: ZooKeeperEnsemble) -> Coordinate:
    """Make coordinators of one cluster: `coordinate(hosts=..., chroot=...)`."""
    chroot = new_chroot()

    def make(**options: Any) -> Coordinator:
        options = {"hosts": zookeeper.hosts, "chroot": chroot, "session_timeout_s": SESSION_S, **options}
        return Coordinator(options.pop("hosts"), **options)

    return make


def test_deliveries_know_their_epoch_and_whether_their_slot_is_still_ours(
    redis_url: str, make_topic: MakeTopic, coordinate: Coordinate, connections: Connections
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, lease=1_000)
    seen: list[Delivery] = []
    go_on = threading.Event()
    lost: list[Delivery] = []
    with RmqClient(redis_url, zookeeper=coordinate()) as first, RmqClient(redis_url) as plain:

        @first.listener(topic, on_lost=lost.append)
        def handle(delivery: Delivery) -> None:
            seen.append(delivery)
            go_on.wait(10)

        plain.producer(topic).send(PriorityMessage("a", 1_000))
        first.start()
        wait_until(lambda: seen)
        (delivery,) = seen
        stats = plain.inspect(topic).stats()
        assert delivery.epoch == stats.slots[delivery.slot].epoch > 0
        time.sleep(2.5)  # more than two leases: they are renewed in the owner's name
        assert delivery.still_owner()
        assert not lost
        newer = Owner(delivery.epoch + 1_000_000, delivery.owner.ensemble)
        connections.run(calls.claim(topic, delivery.slot, 0, owner=newer))
        wait_until(lambda: lost)
        assert not delivery.still_owner()
        with pytest.raises(RmqError):
            delivery.raise_if_lost()
        go_on.set()
        with pytest.raises(FencedError):
            plain.consumer(topic).poll(1, 0.1)
        first.stop()
        stats = plain.inspect(topic).stats()
        assert stats.in_flight + stats.backlog == 1  # the late ack was refused


def test_a_slot_that_comes_back_stays_with_the_thread_that_is_still_at_work_there(
    redis_url: str, make_topic: MakeTopic, coordinate: Coordinate, link: Link
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    running: set[int] = set()
    done: list[str] = []
    trouble: list[str] = []
    lock = threading.Lock()
    coordinator = coordinate(hosts=f"127.0.0.1:{link.port}")
    with RmqClient(redis_url, zookeeper=coordinator) as client, RmqClient(redis_url) as plain:

        @client.listener(topic, threads=4)
        def handle(delivery: Delivery) -> None:
            with lock:
                if delivery.slot in running:
                    trouble.append(delivery.text)
                running.add(delivery.slot)
            time.sleep(0.5)
            with lock:
                running.discard(delivery.slot)
                done.append(delivery.text)

        client.start()
        wait_until(lambda: len(coordinator.owned()) == 8)
        plain.producer(topic).send_many(PriorityMessage(f"m{number}", 1_000) for number in range(32))
        wait_until(lambda: len(running) == 4)
        for _ in range(3):
            link.cut()
            wait_until(lambda: not coordinator.owned())
            link.mend()
            wait_until(lambda: len(coordinator.owned()) == 8)
        wait_until(lambda: len(set(done)) == 32, 20)
        assert not trouble


def test_a_new_owner_waits_for_what_the_one_before_has_in_flight(
    make_topic: MakeTopic, connections: Connections, redis_url: str
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, lease=1_000)
    with RmqClient(redis_url) as client:
        client.producer(topic).send_many(PriorityMessage(content, 1_000) for content in ("a", "b", "c"))
    reply = connections.run(calls.claim(topic, 0, 1, owner=Owner(1, "zk")))
    (held,) = reply.messages
    assert isinstance(held, Claimed)
    claimer = Claimer(connections, topic, ())
    claimer.set_owned({0: Owner(2, "zk")})
    started_s = time.monotonic()
    claimed: list[Delivery] = []

    holder = mock.create_autospec(Holder)

    def claims() -> bool:
        claimer.wait(0.1)
        claimed.extend(claimer.claim(10, holder).deliveries)
        return len(claimed) == 3

    assert not claims()
    with pytest.raises(FencedError):
        connections.run(calls.claim(topic, 0, 1, owner=Owner(1, "zk")))
    wait_until(claims)
    assert time.monotonic() - started_s > 0.9
    assert {delivery.epoch for delivery in claimed} == {2}
    for delivery in claimed:
        delivery.mark(ACKED)
    claimer.claim(0, holder, claimed)
    claimer.set_owned({})
    claimer.set_owned({0: Owner(2, "zk")})
    with RmqClient(redis_url) as client:
        client.producer(topic).send(PriorityMessage("d", 1_000))
    claimed.clear()
    claimed += claimer.claim(10, holder).deliveries
    assert [delivery.text for delivery in claimed] == ["d"]  # back with the same epoch: nobody came between


def test_a_worker_that_stops_hands_over_at_once_what_no_handler_holds(
    redis_url: str, make_topic: MakeTopic, coordinate: Coordinate
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    begun, go_on = threading.Event(), threading.Event()
    heir = coordinate()
    with RmqClient(redis_url, zookeeper=coordinate()) as first, RmqClient(redis_url, zookeeper=heir) as second:

        @first.listener(topic)
        def handle(delivery: Delivery) -> None:
            begun.set()
            go_on.wait(20)

        second.listener(topic)(lambda delivery: None)
        first.start()
        first.producer(topic).send(PriorityMessage("a", 1_000))
        assert begun.wait(10)
        second.start()
        stopping = threading.Thread(target=first.stop)
        stopping.start()
        wait_until(lambda: len(heir.owned()) == 7)
        assert stopping.is_alive()
        go_on.set()
        wait_until(lambda: len(heir.owned()) == 8)
        stopping.join(10)
        wait_until(lambda: second.inspect(topic).stats().total("acked") == 1)
        assert second.inspect(topic).stats().total("delivered") == 1


def test_with_zookeeper_a_topic_has_one_listener_and_no_pull_consumers(
    redis_url: str, make_topic: MakeTopic, coordinate: Coordinate
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    with RmqClient(redis_url, zookeeper=coordinate()) as client:
        client.listener(topic)(print)
        client.listener(topic)(print)
        with pytest.raises(InvalidValueError, match="2 listeners"):
            client.start()
        with pytest.raises(CoordinationError, match="listener"):
            client.consumer(topic)


def test_adopting_is_the_way_to_another_ensemble(
    redis_url: str, make_topic: MakeTopic, coordinate: Coordinate, connections: Connections
) -> None:
    # pitfall 41; a chroot of its own is an ensemble of its own
    topic = make_topic(TopicType.PRIORITY, slots=4)
    handled: list[str] = []

    def run(coordinator: Coordinator, content: str) -> None:
        with RmqClient(redis_url, zookeeper=coordinator) as client, RmqClient(redis_url) as plain:
            client.listener(topic)(lambda delivery: handled.append(delivery.text))
            client.start()
            plain.producer(topic).send(PriorityMessage(content, 1_000))
            wait_until(lambda: content in handled)
            wait_until(lambda: all(slot.epoch for slot in plain.inspect(topic).stats().slots))
            if content == "old":
                assert client.adopt(topic).stored == {coordinator.ensemble: 4}

    old = coordinate()
    run(old, "old")
    elsewhere = new_chroot()
    with RmqClient(redis_url, zookeeper=coordinate(chroot=elsewhere)) as client:
        shown = client.adopt(topic)
        assert shown.stored == {old.ensemble: 4}
        assert shown.ensemble not in ("", old.ensemble)
        assert shown.moved == 0
    with pytest.raises(EnsembleMismatchError):
        connections.run(calls.claim(topic, 0, 1, owner=Owner(10**9, shown.ensemble)))
    with RmqClient(redis_url, zookeeper=coordinate(chroot=elsewhere)) as client:
        assert client.adopt(topic, old.ensemble).moved == 4
    run(coordinate(chroot=elsewhere), "new")
    with RmqClient(redis_url) as plain:
        assert plain.adopt(topic.name, shown.ensemble).moved == 4
        assert plain.consumer(topic).poll(1, 0.1) == []


def test_adopting_from_the_command_line(
    redis_url: str, make_topic: MakeTopic, zookeeper: ZooKeeperEnsemble, connections: Connections
) -> None:
    topic, rmq = make_topic(TopicType.PRIORITY, slots=4), Cli(redis_url)
    with RmqClient(redis_url) as client:
        client.producer(topic)
    connections.run(calls.claim(topic, 1, 0, owner=Owner(7, "old")))
    assert "old" in rmq("adopt", topic.name).out
    assert "either --zookeeper" in rmq("adopt", topic.name, "--from", "old", code=2).err
    there = ("--zookeeper", zookeeper.hosts, "--chroot", new_chroot())
    shown = rmq("adopt", topic.name, *there)
    (new,) = re.findall(r"[0-9a-f-]{36}", shown.err)
    assert rmq("adopt", topic.name, *there, "--from", "old").out == f"1 of 4 slots moved to {new}\n"
    moved = rmq("adopt", topic.name, "--no-zookeeper", "--from", new, "--json").json
    assert (moved["stored"], moved["moved"]) == ({"": 3, new: 1}, 1)
