"""One owner for each slot: real worker processes with a real ZooKeeper, under faults. `make chaos` goes further."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from rmq import Coordinator, Delivery, Owner, PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import CoordinationError, EnsembleMismatchError, FencedError, InvalidValueError, RmqError
from tests.conftest import Coordinate, MakeTopic
from tests.support import scenarios
from tests.support.claims import Claimed
from tests.support.cli import Cli
from tests.support.core import (
    ACKED,
    ENSEMBLES_KEY,
    REDIS_KEY,
    ClaimPlanner,
    Connections,
    EpochFloors,
    Fetcher,
    Holder,
    redis_identity,
    select,
)
from tests.support.ledger import tell
from tests.support.link import Link
from tests.support.one_slot import claim_slot
from tests.support.ownership import SESSION_S, TICK_MS, Rig
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperEnsemble

LEASE_S = 8
"""Longer than every pause here: no overlap has an excuse."""
LIMIT_S = 60.0
"""For what takes seconds on a machine that has nothing else to do."""


@pytest.fixture
def link(zookeeper: ZooKeeperEnsemble) -> Iterator[Link]:
    with Link(zookeeper.servers[0].port) as link:
        yield link


# --- processes


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
        report.check()
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
        report.check()
        for measured in (cut, stopped, killed):
            assert measured["again_s"] < 30, "a few seconds on top of the session, on a machine that has time"
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


@pytest.fixture
def coordinate(coordinate: Coordinate) -> Coordinate:
    """Make coordinators of one cluster whose sessions are short."""
    return partial(coordinate, session_timeout_s=SESSION_S)


def test_deliveries_know_their_epoch_and_whether_their_slot_is_still_ours(
    redis_url: str, make_topic: MakeTopic, coordinate: Coordinate, connections: Connections
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, lease="4s")
    seen: list[Delivery] = []
    go_on = threading.Event()
    lost: list[Delivery] = []
    with (
        RmqClient(redis_url, zookeeper=coordinate(session_timeout_s=6.0)) as first,
        RmqClient(redis_url) as plain,
    ):

        @first.listener(topic, on_lost=lost.append)
        def handle(delivery: Delivery) -> None:
            seen.append(delivery)
            go_on.wait(100)

        plain.producer(topic).send(PriorityMessage("a", 1_000))
        first.start()
        wait_until(lambda: seen)
        (delivery,) = seen
        stats = plain.inspect(topic).stats()
        assert delivery.fencing_token == stats.slots[delivery.slot].epoch > 0
        time.sleep(5.5)  # more than a lease: it is renewed in the owner's name
        assert delivery.still_owner()
        assert not lost
        newer = Owner(delivery.owner.epoch + 1_000_000, delivery.owner.ensemble)
        connections.run(claim_slot(topic, delivery.slot, 0, owner=newer))
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
        wait_until(lambda: len(coordinator.owned()) == 8, LIMIT_S)
        plain.producer(topic).send_many(PriorityMessage(f"m{number}", 1_000) for number in range(32))
        wait_until(lambda: running, LIMIT_S)
        for _ in range(3):
            link.cut()
            wait_until(lambda: not coordinator.owned(), LIMIT_S)
            link.mend()
            wait_until(lambda: len(coordinator.owned()) == 8, LIMIT_S)
        wait_until(lambda: len(set(done)) == 32, LIMIT_S)
        assert not trouble


def test_a_new_owner_waits_for_what_the_one_before_has_in_flight(
    make_topic: MakeTopic, connections: Connections, redis_url: str
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, lease="3s")
    with RmqClient(redis_url) as client:
        client.producer(topic).send_many(PriorityMessage(content, 1_000) for content in ("a", "b", "c"))
    started_s = time.monotonic()
    reply = connections.run(claim_slot(topic, 0, 1, owner=Owner(1, "zk")))
    (held,) = reply.messages
    assert isinstance(held, Claimed)
    planner = ClaimPlanner(connections, topic, ())
    planner.set_owned({0: Owner(2, "zk")})
    claimed: list[Delivery] = []

    at_work = Fetcher(planner, mock.create_autospec(Holder))

    def claims() -> bool:
        planner.wait(0.1)
        claimed.extend(at_work.claim(10).deliveries)
        return len(claimed) == 3

    assert not claims()
    with pytest.raises(FencedError):
        connections.run(claim_slot(topic, 0, 1, owner=Owner(1, "zk")))
    wait_until(claims)
    assert time.monotonic() - started_s > 2.9
    assert {delivery.fencing_token for delivery in claimed} == {2}
    for delivery in claimed:
        delivery.claim.outcomes[delivery.row] = ACKED
    at_work.claim(0, select(claimed))
    planner.set_owned({})
    planner.set_owned({0: Owner(2, "zk")})
    with RmqClient(redis_url) as client:
        client.producer(topic).send(PriorityMessage("d", 1_000))
    claimed.clear()
    claimed += at_work.claim(10).deliveries
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
            go_on.wait(100)

        second.listener(topic)(lambda delivery: None)
        first.start()
        first.producer(topic).send(PriorityMessage("a", 1_000))
        assert begun.wait(60)
        second.start()
        stopping = threading.Thread(target=first.stop)
        stopping.start()
        wait_until(lambda: len(heir.owned()) == 7)
        assert stopping.is_alive()
        go_on.set()
        wait_until(lambda: len(heir.owned()) == 8)
        stopping.join(60)
        wait_until(lambda: second.inspect(topic).stats().total("acked") == 1)
        assert second.inspect(topic).stats().total("delivered") == 1


def test_a_stop_keeps_the_slot_as_long_as_its_handler_may_run(
    redis_url: str, make_topic: MakeTopic, coordinate: Coordinate
) -> None:
    """Also where the drain time of the stop is longer than that of the coordinator; the lease ends long before."""
    topic = make_topic(TopicType.PRIORITY, slots=1, lease="4s")
    begun, go_on, both = threading.Event(), threading.Event(), threading.Event()
    running: list[str] = []
    leaving, heir = coordinate(drain_timeout_s=0.2), coordinate()
    with RmqClient(redis_url, zookeeper=leaving) as first, RmqClient(redis_url, zookeeper=heir) as second:

        @first.listener(topic)
        def handle(delivery: Delivery) -> None:
            running.append("first")
            begun.set()
            go_on.wait(100)
            running.append("first ended")

        @second.listener(topic)
        def handle_too(delivery: Delivery) -> None:
            running.append("second")
            both.set()

        first.start()
        first.producer(topic).send(PriorityMessage("a", 1_000))
        assert begun.wait(60)
        second.start()
        stopping = threading.Thread(target=first.stop, args=(100.0,))
        stopping.start()
        assert not both.wait(6)  # a lease and more after the coordinator's own drain time
        assert not heir.owned()
        go_on.set()
        stopping.join(60)
        wait_until(lambda: len(heir.owned()) == 1)
        assert running == ["first", "first ended"]


def test_run_lets_slots_that_move_wait_as_long_as_handlers_may_run(
    redis_url: str, make_topic: MakeTopic, coordinate: Coordinate
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, lease="1s")
    own, plain = coordinate(drain_timeout_s=7.0), coordinate()
    for coordinator, expected_s in ((own, 7.0), (plain, 123.0)):
        with RmqClient(redis_url, zookeeper=coordinator) as client:
            client.listener(topic)(lambda delivery: None)
            client.start(drain_s=123.0)
            assert coordinator.drain_timeout_s == expected_s


def test_with_zookeeper_a_topic_has_one_listener_and_no_pull_consumers(
    redis_url: str, make_topic: MakeTopic, coordinate: Coordinate
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    with RmqClient(redis_url, zookeeper=coordinate()) as client:
        client.listener(topic, shared=True)(print)
        client.listener(topic, shared=True)(print)
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
    elsewhere = f"/{topic.name}"
    with RmqClient(redis_url, zookeeper=coordinate(chroot=elsewhere)) as client:
        shown = client.adopt(topic)
        assert shown.stored == {old.ensemble: 4}
        assert shown.ensemble not in ("", old.ensemble)
        assert shown.moved == 0
    with pytest.raises(EnsembleMismatchError):
        connections.run(claim_slot(topic, 0, 1, owner=Owner(10**9, shown.ensemble)))
    with RmqClient(redis_url, zookeeper=coordinate(chroot=elsewhere)) as client:
        assert client.adopt(topic, old.ensemble).moved == 4
    run(coordinate(chroot=elsewhere), "new")
    with RmqClient(redis_url) as plain:
        assert plain.adopt(topic.name, shown.ensemble).moved == 4
        assert plain.consumer(topic).poll(1, 0.1) == []


@pytest.mark.parametrize("marked", [True, False], ids=["marks", "fence"])
@pytest.mark.parametrize("worker_first", [True, False], ids=["worker", "adopt"])
def test_a_zookeeper_restored_from_a_backup_is_told_of_and_adopted(
    marked: bool, worker_first: bool, make_topic: MakeTopic, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its epochs are below those that Redis has, under the same identity; `marked`: Redis knows how far it counted."""
    topic = make_topic(TopicType.PRIORITY, slots=4)
    sent: set[str] = set()
    handled: list[str] = []
    with ZooKeeperEnsemble(tick_ms=TICK_MS) as servers, RmqClient(redis_url) as plain:
        (server,) = servers.servers
        data, backup = server.folder / "data", server.folder / "backup"

        def work(content: str, *, waits: bool = True) -> Coordinator:
            coordinator = Coordinator(servers.hosts, session_timeout_s=SESSION_S)
            with RmqClient(redis_url, zookeeper=coordinator) as client:
                client.listener(topic)(lambda delivery: handled.append(delivery.text))
                client.start()
                plain.producer(topic).send(PriorityMessage(content, 1_000))
                sent.add(content)
                if waits:
                    wait_until(lambda: sent <= set(handled))
                    wait_until(lambda: all(slot.epoch for slot in plain.inspect(topic).stats().slots))
                    highest = max(each.epoch for each in coordinator.owned().values())
                    wait_until(lambda: EpochFloors(connections).counted().get(coordinator.ensemble or "", 0) >= highest)
                else:
                    wait_until(lambda: "was restored from an older state" in caplog.text)
                    wait_until(lambda: coordinator.ensemble != old)
                    assert content not in handled
            return coordinator

        connections = plain._registered(topic)[0]
        old = work("first").ensemble
        assert old is not None
        server.stop()
        shutil.copytree(data, backup)
        server.start()
        server.wait_ready()
        for number in range(3):
            work(f"m{number}")
        server.stop()
        shutil.rmtree(data)
        shutil.copytree(backup, data)
        server.start()
        server.wait_ready()
        if not marked:
            connections.command("DEL", ENSEMBLES_KEY)
        if worker_first:
            work("waits", waits=False)
            assert caplog.text.count("was restored from an older state") == 1
        with RmqClient(redis_url, zookeeper=Coordinator(servers.hosts, session_timeout_s=SESSION_S)) as client:
            adoption = client.adopt(topic, old)
        assert (adoption.moved, adoption.stored) == (4, {old: 4})
        assert adoption.ensemble not in ("", old)
        assert work("again").ensemble == adoption.ensemble


def test_two_redis_behind_one_zookeeper_are_refused(
    redis_url: str, make_topic: MakeTopic, coordinate: Coordinate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_identity, "FOREIGN_WORKERS_S", 1.0)
    topic = make_topic(TopicType.PRIORITY, slots=4)
    owner = coordinate()
    with (
        RedisServer() as other,
        RmqClient(redis_url, zookeeper=owner) as prod,
        RmqClient(other.url, zookeeper=coordinate()) as staging,
    ):
        for client in (prod, staging):
            client.listener(topic)(lambda delivery: None)
        prod.start()
        wait_until(lambda: len(owner.owned()) == 4)  # before that, others may not see what it consumes
        with pytest.raises(CoordinationError, match="another Redis") as refused:
            staging.start()
        here, there = (EpochFloors(client._registered(topic)[0]).redis("") for client in (prod, staging))
        assert here != there
        assert here in str(refused.value)
        assert there in str(refused.value)
        wait_until(lambda: len(owner.owned()) == 4)


def test_a_redis_that_lost_its_identity_gets_it_back_from_live_workers(
    redis_url: str, make_topic: MakeTopic, coordinate: Coordinate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_identity, "IDENTIFY_EVERY_S", 0.2)
    topic = make_topic(TopicType.PRIORITY, slots=4)
    with RmqClient(redis_url, zookeeper=coordinate()) as first, RmqClient(redis_url, zookeeper=coordinate()) as second:
        for client in (first, second):
            client.listener(topic)(lambda delivery: None)
        first.start()
        connections = first._registered(topic)[0]
        before = connections.command("GET", REDIS_KEY)
        connections.command("DEL", REDIS_KEY)
        wait_until(lambda: connections.command("GET", REDIS_KEY) == before)
        connections.command("SET", REDIS_KEY, "emptied, and another worker was quicker")
        second.start()  # the first one learns it in time


def test_adopting_from_the_command_line(
    redis_url: str, make_topic: MakeTopic, zookeeper: ZooKeeperEnsemble, connections: Connections
) -> None:
    topic, rmq = make_topic(TopicType.PRIORITY, slots=4), Cli(redis_url)
    with RmqClient(redis_url) as client:
        client.producer(topic)
    connections.run(claim_slot(topic, 1, 0, owner=Owner(7, "old")))
    assert "old" in rmq("adopt", topic.name).out
    assert "the new owner of the slots: --zookeeper" in rmq("adopt", topic.name, "--from", "old", code=2).err
    there = ("--zookeeper", zookeeper.hosts, "--chroot", f"/{topic.name}")
    shown = rmq("adopt", topic.name, *there)
    (new,) = re.findall(r"[0-9a-f-]{36}", shown.err)
    assert rmq("adopt", topic.name, *there, "--from", "old").out == f"1 of 4 slots moved to {new}\n"
    moved = rmq("adopt", topic.name, "--no-zookeeper", "--from", new, "--json").json
    assert (moved["stored"], moved["moved"]) == ({"": 3, new: 1}, 1)
    connections.run(claim_slot(topic, 2, 0, owner=Owner(7, "\x1b[2J")))
    assert "\\x1b[2J" in rmq("adopt", topic.name).out
