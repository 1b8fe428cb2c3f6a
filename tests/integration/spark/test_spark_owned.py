"""The driver's side of a query that owns slots through a real ZooKeeper, without Spark, beside plain workers."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, cast

import pytest
import redis
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from rmq import Coordinator, Delivery, PriorityMessage, RedisOwners, RmqClient, Topic, TopicType
from rmq.errors import CoordinationError, FencedError, TopicMismatchError
from tests.conftest import MakeTopic
from tests.integration.spark.test_spark_driver import Query, fill, in_flight
from tests.support.core import OWNERS_KEYS, PASSWORD, query_keys
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperEnsemble

LIMIT_S = 60
SESSION_S = 2
SLOTS = 4
NUMBER = 80


class Site:
    """A topic with owners: plain workers and queries join it."""

    def __init__(self, url: str, sender: RmqClient, servers: ZooKeeperEnsemble, topic: Topic) -> None:
        self.url, self.sender, self.servers, self.topic = url, sender, servers, topic
        self.chroot = f"/spark-{os.getpid()}-{random.randrange(10**9)}"
        self.handled: list[str] = []
        self.queries: list[Query] = []

    def query(self, **options: str) -> Query:
        own = {"zookeeper": self.servers.hosts, "zookeeperChroot": self.chroot}
        own["zookeeperSessionSeconds"] = str(SESSION_S)
        self.queries.append(Query(self.url, self.topic, **own, **options))
        return self.queries[-1]

    @contextmanager
    def worker(self, gate: threading.Event | None = None) -> Iterator[RmqClient]:
        """A plain worker; with a gate its handlers wait for that."""
        coordinator = Coordinator(self.servers.hosts, chroot=self.chroot, session_timeout_s=SESSION_S)
        with RmqClient(self.url, zookeeper=coordinator) as client:

            def handle(delivery: Delivery) -> None:
                self.handled.append(delivery.text)
                assert gate is None or gate.wait(LIMIT_S)

            client.listener(self.topic)(handle)
            client.start()
            yield client
            client.stop()

    def owners(self) -> Counter[str]:
        """How many slots workers have, by the names of their nodes."""
        found: Counter[str] = Counter()
        with probe(self) as zookeeper:
            for slot in range(self.topic.slots):
                path = f"{self.chroot}/owners/{self.topic.name}/{slot}"
                with suppress(NoNodeError):
                    found[data_of(zookeeper, path).decode()] += 1
        return found

    def own(self, query: Query) -> int:
        return self.owners()[f"spark-{query.batch.query}"]

    def slots_of(self, query: Query) -> set[int]:
        assert query.driver._owning is not None
        return set(query.driver._owning.owned())


@contextmanager
def probe(site: Site) -> Iterator[KazooClient]:
    client = KazooClient(site.servers.hosts)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture
def site(
    redis_url: str, redis_client: redis.Redis, sender: RmqClient, zookeeper: ZooKeeperEnsemble, make_topic: MakeTopic
) -> Iterator[Site]:
    topic = make_topic(TopicType.PRIORITY, slots=SLOTS, lease=timedelta(seconds=3))
    sender.producer(topic)
    made = Site(redis_url, sender, zookeeper, topic)
    yield made
    for query in made.queries:
        query.close()
        for slot in range(SLOTS):
            own = query_keys(topic.name, slot, query.batch.query)
            redis_client.delete(own.query, own.body)


def drained(site: Site) -> bool:
    stats = site.sender.inspect(site.topic).stats()
    return stats.backlog + stats.in_flight + stats.waiting == 0


def work_off(site: Site, query: Query) -> list[str]:
    """Run batches until nothing is left in the query's slots; return what it has read."""
    found: list[str] = []
    while query.plan():
        found += query.read()
    return found


def test_a_query_alone_owns_all_slots_and_gives_them_back_at_once(site: Site) -> None:
    sent = fill(site.sender, site.topic, NUMBER)
    query = site.query()
    assert query.plan() == NUMBER
    assert query.read() == sent
    assert query.read() == sent, "the same again"
    assert site.own(query) == SLOTS
    assert query.plan() == 0, "acked"
    assert drained(site)
    query.driver.close()
    assert site.owners() == Counter()


def test_a_query_shares_owners_in_redis_with_a_worker(site: Site, redis_client: redis.Redis) -> None:
    handled: list[str] = []
    with RmqClient(site.url, owners=RedisOwners(SESSION_S)) as worker:
        worker.listener(site.topic)(lambda delivery: handled.append(delivery.text))
        worker.start()
        query = Query(site.url, site.topic, owners="redis", ownersSessionSeconds=str(SESSION_S))
        site.queries.append(query)
        assert query.plan() == 0
        wait_until(lambda: len(site.slots_of(query)) == SLOTS // 2, LIMIT_S)
        sent = fill(site.sender, site.topic, NUMBER)
        found = work_off(site, query)
        wait_until(lambda: len(handled) + len(found) == NUMBER, LIMIT_S)
        assert sorted(handled + found) == sent
        assert found
        assert handled
    query.driver.close()
    redis_client.delete(*OWNERS_KEYS.values())


def test_a_query_that_ends_with_what_is_available_takes_part(site: Site) -> None:
    with site.worker():
        wait_until(lambda: sum(site.owners().values()) == SLOTS, LIMIT_S)
    sent = fill(site.sender, site.topic, NUMBER)
    query = site.query()
    query.driver.freeze()  # before it has joined, as Spark does
    assert query.plan() == NUMBER
    late = fill_again(site)
    assert query.read() == sent
    assert query.plan() == 0, "what came later is not its own"
    query.driver.close()
    with site.worker():
        wait_until(lambda: drained(site), LIMIT_S)
    assert Counter(site.handled) == Counter(late)


def test_a_query_and_a_plain_worker_share_the_slots(site: Site) -> None:
    with site.worker():
        query = site.query()
        query.plan()
        assert sorted(site.owners().values()) == [SLOTS / 2, SLOTS / 2]
        sent = fill(site.sender, site.topic, NUMBER)
        read: list[str] = []
        wait_until(lambda: bool(read.extend(work_off(site, query))) or drained(site), LIMIT_S)
        assert Counter(site.handled + read) == Counter(sent)
        assert read
        assert site.handled


def test_a_slot_that_is_asked_back_stays_with_its_batch_and_goes_after_the_ack(site: Site) -> None:
    sent = fill(site.sender, site.topic, NUMBER)
    query = site.query()
    assert query.plan() == NUMBER
    assert query.read() == sent
    with site.worker():
        wait_until(lambda: len(site.slots_of(query)) == SLOTS / 2, LIMIT_S)
        assert site.own(query) == SLOTS, "two are asked back, and the batch is not acked"
        assert query.read() == sent
        more = fill_again(site)
        assert query.plan(), "acked; what is planned now lies in the other slots"
        assert set(query.batch.quotas) == site.slots_of(query)
        wait_until(lambda: site.own(query) == SLOTS / 2, LIMIT_S)
        read = query.read() + work_off(site, query)
        wait_until(lambda: drained(site), LIMIT_S)
        assert Counter(site.handled + read) == Counter(more), "nothing twice"
    query.plan()
    wait_until(lambda: len(site.slots_of(query)) == SLOTS, LIMIT_S)
    last = fill(site.sender, site.topic, NUMBER)
    assert wait_until_planned(query) == NUMBER, "all slots again"
    assert query.read() == last


def test_what_a_lost_slot_gave_comes_to_its_owner_and_the_ack_harms_nobody(site: Site) -> None:
    sent = fill(site.sender, site.topic, NUMBER)
    query = site.query(drainSeconds="1")
    assert query.plan() == NUMBER
    assert query.read() == sent
    with site.worker():
        wait_until(lambda: site.own(query) == SLOTS / 2, LIMIT_S)  # not acked within a second
        kept = site.slots_of(query)
        wait_until(lambda: len(site.handled) > 0, LIMIT_S)  # after the lease
        with pytest.raises(FencedError):
            query.read()
        query.driver.ack(query.batch)
        wait_until(lambda: drained(site), LIMIT_S)
    stats = site.sender.inspect(site.topic).stats()
    theirs = {content for content in sent if slot(site.topic, content) not in kept}
    assert set(site.handled) == theirs, "at least once: the query has had them, too"
    assert (stats.total("acked"), stats.unaccounted) == (NUMBER, 0)
    assert query.driver.figures.totals["lost"] == len(theirs)


def test_a_restart_reads_the_same_rows_where_it_has_the_slots(site: Site) -> None:
    sent = fill(site.sender, site.topic, NUMBER)
    query = site.query()
    query.plan()
    assert query.read() == sent
    query.restart()
    assert query.read() == sent, "all slots are its own again"
    assert query.plan() == 0
    assert drained(site)


def test_a_restart_leaves_the_slots_of_others_to_them(site: Site) -> None:
    sent = fill(site.sender, site.topic, NUMBER)
    query = site.query()
    query.plan()
    assert query.read() == sent
    query.driver.close()
    with site.worker():
        wait_until(lambda: sum(site.owners().values()) == SLOTS, LIMIT_S)
        query.restart()
        again = query.read()
        mine = site.slots_of(query)
        assert len(mine) == SLOTS / 2
        assert again == [content for content in sent if slot(site.topic, content) in mine]
        assert query.read() == again
        query.driver.close()  # between the commit and the ack: the next driver acks what was read, and no more
        query.restart()
        query.plan()
        wait_until(lambda: drained(site), LIMIT_S)
    assert Counter(site.handled + again) == Counter(sent)
    assert site.sender.inspect(site.topic).stats().unaccounted == 0


def test_a_new_owner_waits_for_the_leases_of_others_before_it_plans(site: Site) -> None:
    gate = threading.Event()
    try:
        with site.worker(gate) as worker:
            sent = fill(site.sender, site.topic, NUMBER)
            wait_until(lambda: len(site.handled) > 0, LIMIT_S)
            query = site.query()
            threading.Thread(target=worker.stop, args=(0.5,)).start()  # its handler goes on
            assert wait_until_planned(query) > 0
            held = {slot(site.topic, content) for content in site.handled}
            assert in_flight(site.sender, site.topic) <= len(held)
            read: list[str] = query.read()
            wait_until(lambda: bool(read.extend(work_off(site, query))) or drained(site), LIMIT_S)
            assert set(read) == set(sent)
    finally:
        gate.set()


def test_mistakes_are_told_before_anything_is_read(site: Site, redis_url: str) -> None:
    fill(site.sender, site.topic, NUMBER)
    nobody = Query(redis_url, site.topic, zookeeper="127.0.0.1:1")
    with pytest.raises(CoordinationError, match="no ZooKeeper server answered within 15 s"):
        nobody.plan()
    nobody.close()
    with site.worker():
        wait_until(lambda: len(site.handled) == NUMBER, LIMIT_S)
        plain = Query(redis_url, site.topic)
        with pytest.raises(
            FencedError, match="has workers that own its slots, but this query has no option owners or zookeeper"
        ):
            plain.plan()
        plain.close()
    with probe(site) as zookeeper:
        node = f"{site.chroot}/topics/{site.topic.name}"
        zookeeper.set(node, data_of(zookeeper, node).replace(b'"slots":4', b'"slots":8'))
        zookeeper.create(node.replace("/topics/", "/owners/") + "/0", b"a worker with 8 slots")
    query = site.query()
    with pytest.raises(TopicMismatchError, match=r"registered for its owners as PRIORITY with 8 slots, not as .* 4"):
        query.plan()
    assert site.sender.inspect(site.topic).stats().in_flight == 0


def test_a_login_keeps_the_nodes_for_those_who_have_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sent = fill(site.sender, site.topic, NUMBER)
    monkeypatch.setenv(PASSWORD, "the right one")
    query = site.query(zookeeperUser="shop")
    assert query.plan() == NUMBER
    assert query.read() == sent
    monkeypatch.setenv(PASSWORD, "a wrong one")
    said = ""
    for options in ({"zookeeperUser": "shop"}, {}):
        denied = rf"denies access: the ACL of {site.chroot} does not allow this worker to look at .*Use the same login"
        with pytest.raises(CoordinationError, match=denied) as refused:
            site.query(**options).plan()
        said += str(refused.value)
    assert query.plan() == 0, "acked"
    assert "Sending request(xid=" in caplog.text
    assert not any(password in said + caplog.text for password in ("the right one", "a wrong one"))


def data_of(zookeeper: KazooClient, path: str) -> bytes:
    data: bytes = cast("Any", zookeeper).get(path)[0]
    return data


def fill_again(site: Site) -> list[str]:
    contents = sorted(f"again{n}" for n in range(NUMBER))
    site.sender.producer(site.topic).send_many(PriorityMessage(content, 1_000) for content in contents)
    return contents


def slot(topic: Topic, content: str) -> int:
    return topic.slot_of(content.encode())


def wait_until_planned(query: Query) -> int:
    found: list[int] = []
    plan: Callable[[], bool] = lambda: bool(found.append(query.plan()) or found[-1])  # noqa: E731
    wait_until(plan, LIMIT_S)
    return found[-1]
