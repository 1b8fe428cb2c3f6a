"""Owners of slots in Redis: what a client accepts, on both sides, and how a topic moves to ZooKeeper and back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from rmq import Coordinator, Delivery, Listener, PriorityMessage, RedisOwners, RmqClient, Topic, TopicType, aio
from rmq._ownership import redis_keeper
from rmq._ownership.redis_keeper import RedisCoordinator
from rmq.errors import CoordinationError, EnsembleMismatchError, FencedError, InvalidValueError
from tests.conftest import MakeTopic
from tests.support.cli import Cli
from tests.support.core import OWNERS_KEYS, parse_url
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperEnsemble

PATIENCE_S = 60.0


@pytest.fixture
def url(redis_url: str, redis_client: redis.Redis) -> Iterator[str]:
    yield redis_url
    redis_client.delete(*OWNERS_KEYS.values())


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    return make_topic(TopicType.PRIORITY, slots=8, lease=timedelta(seconds=5))


class Work:
    """Handlers of several clients, which notice when two of one slot run at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: set[int] = set()
        self.tokens: list[tuple[int, int]] = []
        self.handled: Counter[str] = Counter()
        self.faults: list[str] = []

    def __call__(self, delivery: Delivery) -> None:
        with self.lock:
            if delivery.slot in self.running:
                self.faults.append(f"two handlers in slot {delivery.slot}")
            self.running.add(delivery.slot)
            self.tokens.append((delivery.slot, delivery.fencing_token or 0))
        with self.lock:
            self.running.discard(delivery.slot)
            self.handled[delivery.text] += 1

    def check(self, number: int) -> None:
        """Check that each content was handled once, one after the other in a slot, with tokens that never fell."""
        assert (self.faults, len(self.handled), self.handled.total()) == ([], number, number)
        highest: dict[int, int] = {}
        for slot, token in self.tokens:
            assert token >= highest.get(slot, 1)
            highest[slot] = token


def send(client: RmqClient, topic: Topic, name: str, number: int = 100) -> None:
    client.producer(topic).send_many(PriorityMessage(f"{name}{index}", 10) for index in range(number))


def shares(client: RmqClient) -> list[int]:
    """Return how many slots each worker serves, as it last reported."""
    return sorted(len(each.listeners[0].slots) for each in client.workers())


@pytest.mark.usefixtures("frequent_reports")
def test_listeners_of_two_clients_share_the_slots(url: str, topic: Topic) -> None:
    work = Work()
    with RmqClient(url, owners="redis") as first, RmqClient(url, owners=RedisOwners(2, weight=3)) as second:
        for client in (first, second):
            client.listener(topic, threads=2)(work)
            client.start()
        wait_until(lambda: shares(first) == [2, 6], PATIENCE_S)
        send(first, topic, "a")
        wait_until(lambda: len(work.handled) == 100, PATIENCE_S)
        first.stop()
        send(second, topic, "b")
        wait_until(lambda: len(work.handled) == 200, PATIENCE_S)
        stats = second.inspect(topic).stats()
        assert min(slot.epoch for slot in stats.slots) > 0
    work.check(200)


def test_a_name_that_was_freed_serves_another_number_of_slots(url: str, topic: Topic) -> None:
    """The nodes of owners outlive the topic: no worker of the new one started, as the old definition was in them."""
    for slots in (8, 4):
        work = Work()
        with RmqClient(url, owners=RedisOwners(2)) as client:
            client.listener(replace(topic, slots=slots))(work)
            client.start()
            send(client, replace(topic, slots=slots), "a")
            wait_until(lambda: len(work.handled) == 100, PATIENCE_S)  # noqa: B023
        work.check(100)
        with RmqClient(url) as other:
            other.delete_topic(topic.name, force=True, forget=True)


def test_on_asyncio_too(url: str, topic: Topic) -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        async with aio.RmqClient(url, owners=RedisOwners(2)) as client:

            @client.listener(topic, concurrency=4)
            async def handle(delivery: aio.Delivery) -> None:
                assert delivery.fencing_token
                seen.append(delivery.text)

            await client.start()
            producer = await client.producer(topic)
            await producer.send_many(PriorityMessage(f"m{index}", 10) for index in range(50))
            for _ in range(6_000):
                if len(seen) == 50:
                    break
                await asyncio.sleep(0.01)
            with pytest.raises(CoordinationError, match="only listeners own slots"):
                await client.consumer(topic)
        return sorted(seen)

    assert asyncio.run(main()) == sorted(f"m{index}" for index in range(50))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"owners": "redis", "zookeeper": "zk1:2181"}, "owners and zookeeper are both given"),
        ({"owners": "zookeeper"}, "owners is 'zookeeper'; it must be 'redis' or a RedisOwners"),
        ({"owners": 7}, "owners is 7; it must be"),
    ],
)
def test_what_cannot_own_slots_is_refused(url: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        RmqClient(url, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"session_timeout_s": 0.5}, "session_timeout_s is 0.5; in Redis it must be at least 1"),
        ({"session_timeout_s": "6"}, "session_timeout_s is '6'; it must be more than 0"),
        ({"weight": 0}, "weight is 0; it must be a whole number from 1 to 1000"),
        ({"worker_id": "a b"}, "worker_id is 'a b'; it must be 1 to 128 characters"),
        ({"worker_id": ""}, "worker_id is ''; it must be 1 to 128 characters"),
        ({"drain_timeout_s": -1}, "drain_timeout_s is -1; it must be 0 or more"),
        ({"replicas": True}, "replicas is True; it must be a whole number from 0 to 100"),
    ],
)
def test_settings_are_checked_when_they_are_made(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        RedisOwners(**options)


@pytest.mark.parametrize(
    ("slots", "others", "says"),
    [
        ((16_384, 8), {}, "this worker have 16,392 slots in all; a worker with owners in Redis has at most 16,384"),
        ((8, 4), dict.fromkeys("abcd", 16_384), "consume 65,548 slots in all; owners in Redis have at most 65,536"),
    ],
)  # fmt: skip
def test_too_many_slots_are_refused_before_a_topic_gets_owners(
    url: str, redis_client: redis.Redis, make_topic: MakeTopic, slots: Sequence[int], others: dict[str, int], says: str
) -> None:
    topics, nodes = [make_topic(TopicType.PRIORITY, slots=each) for each in slots], cast("Any", redis_client)
    other = RedisCoordinator(parse_url(url), RedisOwners(2))
    with RmqClient(url, owners=RedisOwners(2)) as client:
        for topic in topics:
            client.listener(topic)(Work())
        other.start()
        try:
            for name, number in others.items():
                other.consume(name, number)
            if others:
                document = f"/workers/{other.worker_id}"
                wait_until(lambda: b'"d":16384' in (nodes.hget(OWNERS_KEYS["nodes"], document) or b""))
            with pytest.raises(InvalidValueError, match=says):
                client.start()
            paths = b" ".join(nodes.hkeys(OWNERS_KEYS["nodes"]))
            assert not [topic for topic in topics if topic.name.encode() in paths]
        finally:
            other.stop(drain=False)
        if others:
            client.start()
            wait_until(lambda: shares(client) == [8], PATIENCE_S)


def test_of_workers_that_start_at_once_the_leader_leaves_out_what_is_too_much(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither has seen the topics of the other one when it was checked."""
    monkeypatch.setattr(redis_keeper, "MOST_SLOTS_IN_ALL", 6)
    workers = [RedisCoordinator(parse_url(url), RedisOwners(2, name)) for name in "ab"]
    try:
        for worker, slots in zip(workers, (4, 3), strict=True):
            worker.start()
            worker.check_slots({worker.worker_id: slots})
        for worker, slots in zip(workers, (4, 3), strict=True):
            worker.register_topic(worker.worker_id, f'{{"slots":{slots},"version":4,"min_reader":4}}')
            worker.consume(worker.worker_id, slots)
        says = "or has more than 6 slots. 1 topics are omitted, so their slots get no new owners: "
        wait_until(lambda: any(says in each for worker in workers for each in worker.troubles), PATIENCE_S)
        wait_until(lambda: sorted(len(worker.owned()) for worker in workers)[0] == 0, PATIENCE_S)
        wait_until(lambda: sum(len(worker.owned()) for worker in workers) in (3, 4), PATIENCE_S)
        with pytest.raises(InvalidValueError, match="the live workers consume 7 slots in all"):
            workers[0].check_slots({"a": 4})
    finally:
        for worker in workers:
            worker.stop(drain=False)


def test_a_client_with_owners_has_no_consumers_and_one_without_is_fenced(url: str, topic: Topic) -> None:
    with RmqClient(url, owners="redis") as client, RmqClient(url) as other:
        with pytest.raises(CoordinationError, match="only listeners own slots"):
            client.consumer(topic)
        work = Work()
        client.listener(topic)(work)
        client.start()
        send(client, topic, "a")
        wait_until(lambda: len(work.handled) == 100, PATIENCE_S)
        with (
            pytest.raises(FencedError, match=r"has an owner .* and this client owns no slots: give it the owners="),
            other.consumer(topic) as consumer,
        ):
            consumer.poll()


@pytest.mark.usefixtures("frequent_reports")
def test_two_workers_with_one_id_do_not_share_it(url: str, topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    with RmqClient(url, owners=RedisOwners(2, "one")) as first, RmqClient(url, owners=RedisOwners(2, "one")) as second:
        for client in (first, second):
            client.listener(topic)(Work())
        first.start()
        wait_until(lambda: shares(first) == [8], PATIENCE_S)
        second.start()
        wait_until(lambda: "two live workers have this id" in caplog.text, PATIENCE_S)
        wait_until(lambda: shares(first) == [0, 8], PATIENCE_S)
        first.stop()
        wait_until(lambda: shares(second) == [8], PATIENCE_S)


def test_kazoo_is_not_loaded(url: str, topic: Topic) -> None:
    code = """
import sys, rmq
client = rmq.RmqClient(sys.argv[1], owners="redis")
client.listener(client.topic(sys.argv[2]))(lambda delivery: None)
client.start()
client.close()
print([name for name in sys.modules if name.startswith("kazoo")])
"""
    with RmqClient(url) as client:
        client.producer(topic)
    ran = subprocess.run([sys.executable, "-c", code, url, topic.name], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_without_the_rights_the_start_says_so(topic: Topic) -> None:
    with RedisServer() as server, server.connect() as admin:
        admin.execute_command(
            "ACL", "SETUSER", "rmq", "on", ">secret", "+@all", "~t*", "~*{t*", "~rmq:{workers}*", "&*"
        )
        admin.execute_command("ACL", "SETUSER", "rmq", "~rmq:topics", "~rmq:history*")
        with RmqClient(f"redis://rmq:secret@127.0.0.1:{server.port}", owners="redis") as client:
            client.listener(topic)(Work())
            with pytest.raises(CoordinationError, match=r"Redis refuses .* rmq:\{owners\}.*NOPERM") as caught:
                client.start()
            assert "operations.md" in str(caught.value)


def test_the_command_line_chooses_owners(url: str, topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        f"import rmq\n"
        f"client = rmq.RmqClient()\n"
        f"other = rmq.RmqClient(owners='redis')\n"
        f"@client.listener(client.topic({topic.name!r}))\n"
        f"def handle(delivery):\n"
        f"    print(delivery.text, bool(delivery.fencing_token), flush=True)\n"
    )
    cli = Cli(url)
    with RmqClient(url) as client:
        send(client, topic, "a", 1)
    with cli.process("worker", "shop:client", "--owners", "redis", "--processes", "2", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "a0 True\n"
    with cli.process("worker", "shop:other", "--owners", "redis", cwd=tmp_path) as process:
        _, said = process.communicate(timeout=60)
        assert "--owners is 'redis', but the client sets owners or zookeeper; omit" in said


# --- from one keeper to another


def test_a_topic_moves_to_redis_and_back(url: str, topic: Topic, zookeeper: ZooKeeperEnsemble) -> None:
    work, chroot, cli = Work(), f"/{topic.name}", Cli(url)
    rounds = ("zookeeper", "redis", "zookeeper", "redis")
    before = ""
    for number, keeper in enumerate(rounds):
        options: dict[str, Any] = {"owners": "redis"}
        if keeper == "zookeeper":
            options = {"zookeeper": Coordinator(zookeeper.hosts, chroot=chroot)}
        with RmqClient(url, **options) as client:
            client.listener(topic, threads=2)(work)
            client.start()
            send(client, topic, f"{number}-")
            if before:
                own = client.adopt(topic)
                assert own.stored == {before: 8}
                with pytest.raises(EnsembleMismatchError):
                    client.adopt(topic, "a third one")
                assert client.adopt(topic, before).moved == 8
            wait_until(lambda: len(work.handled) == 100 * (number + 1), PATIENCE_S)  # noqa: B023
            before = client.adopt(topic).ensemble
            assert before.startswith("redis:") is (keeper == "redis")
        work.check(100 * (number + 1))
    where = ("--zookeeper", zookeeper.hosts, "--chroot", chroot)
    assert "8 of 8 slots moved to" in cli("adopt", topic.name, *where, "--from", before).out
    shown = cli("adopt", topic.name, "--owners", "redis")
    assert f"the ensemble of --owners is {before}" in shown.err
    (other,) = {line.split()[0] for line in shown.out.splitlines() if line.split()[-1] == "8"}
    assert f"8 of 8 slots moved to {before}" in cli("adopt", topic.name, "--owners", "redis", "--from", other).out
    refused = cli("adopt", topic.name, "--owners", "redis", *where, code=2)
    assert "--owners and --zookeeper cannot be combined" in refused.err


def test_a_worker_is_ready_once_it_owns_its_slots(url: str, topic: Topic) -> None:
    with RmqClient(url, owners="redis") as client:
        client.add(Listener(topic, print))
        client.start(drain_s=5)
        wait_until(lambda: client.health().ready, PATIENCE_S)
        [worker] = [each for each in client.workers() for one in each.listeners if one.topic == topic.name]
        assert worker.pid == os.getpid()
        client.stop(5)
        assert client.health().reasons == ("no listener is running",)


def test_an_asynchronous_worker_is_ready_once_it_owns_its_slots(url: str, topic: Topic) -> None:
    async def main() -> None:
        async with aio.RmqClient(url, owners="redis") as client:
            assert client.health().reasons == ("no listener is running",)

            @client.listener(topic)
            async def handle(delivery: aio.Delivery) -> None:
                del delivery

            await client.start(drain_s=5)
            async with asyncio.timeout(PATIENCE_S):
                while not client.health().ready:
                    await asyncio.sleep(0.05)
            await client.stop(5)
            assert not client.health().ready

    asyncio.run(main())
