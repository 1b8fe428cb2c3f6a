"""What ZooKeeper refuses is refused to one request: real servers with ACLs, quotas, copied trees and slow links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions, make_digest_acl

from rmq import Coordinator, DigestAuth
from rmq.errors import CoordinationError
from tests.integration._ownership.test_zookeeper import TICK_MS, Cluster, plain_client, wait_until
from tests.support.link import Link
from tests.support.zookeeper import ZooKeeperEnsemble

ADMIN = [make_digest_acl("admin", "secret", all=True)]
AUTH = [("digest", "admin:secret")]


@pytest.fixture(scope="module")
def quotas() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tick_ms=TICK_MS, java_options=("-Dzookeeper.enforceQuota=true",)) as servers:
        yield servers


@pytest.fixture
def cluster(quotas: ZooKeeperEnsemble) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(quotas.hosts, stack)


def add(cluster: Cluster, name: str, *topics: str, slots: int = 8, **options: Any) -> Coordinator:
    """Let a worker consume several topics."""
    first, *others = topics
    worker = cluster.add(name, slots, first, **options)
    for topic in others:
        worker.register_topic(topic, f'{{"slots":{slots},"version":4,"min_reader":4}}')
        worker.consume(topic, slots)
    return worker


def owns(worker: Coordinator, **slots: int) -> Callable[[], bool]:
    """Return a condition: so many slots of these topics are the worker's."""
    return lambda: slots == {topic: sum(place == topic for place, _ in worker.owned()) for topic in slots}


def trouble(worker: Coordinator, *words: str) -> bool:
    return any(all(word in text for word in words) for text in worker.troubles)


def deny(cluster: Cluster, path: str, *, all_but: int = 0) -> None:
    """Close a node to everybody but the administrator; `all_but`: permissions that others keep."""
    kept = [ACL(all_but, Id("world", "anyone"))] if all_but else []
    with plain_client(cluster.hosts + cluster.chroot, auth_data=AUTH) as admin:
        admin.set_acls(path, [*ADMIN, *kept])


def test_a_topic_whose_owners_are_denied_stops_no_other_after_the_leader_is_gone(cluster: Cluster) -> None:
    first, second = add(cluster, "w0", "one", "two"), add(cluster, "w1", "one", "two")
    cluster.settle(16)
    wait_until(lambda: first.leads)
    deny(cluster, "/owners/one")
    first.stop(drain=False)
    wait_until(owns(second, two=8))
    wait_until(lambda: second.leads)
    wait_until(lambda: trouble(second, "denies access", f"{cluster.chroot}/owners/one", "list"))
    kept = {slot for topic, slot in second.owned() if topic == "one"}
    assert len(kept) == 4, "what it has it keeps"
    third = add(cluster, "w2", "one", "two")  # a worker that starts now is not stopped by it, either
    wait_until(owns(third, two=4))
    with plain_client(cluster.hosts + cluster.chroot, auth_data=AUTH) as admin:
        admin.set_acls("/owners/one", OPEN_ACL_UNSAFE)
    cluster.settle(16, "w1", "w2")
    wait_until(lambda: not trouble(second, "denies access"))


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/topics/one", 0),
        ("/owners/one", Permissions.READ),
        ("/owners/one", Permissions.READ | Permissions.CREATE),
    ],
)
def test_any_denied_node_of_a_topic_stops_no_other(cluster: Cluster, path: str, kept: int) -> None:
    with plain_client(cluster.hosts, auth_data=AUTH) as admin:
        admin.create(f"{cluster.chroot}/topics/one", b'{"slots":8,"version":4,"min_reader":4}', makepath=True)
        admin.create(f"{cluster.chroot}/owners/one", makepath=True)
        if path.startswith("/owners") and kept & Permissions.CREATE:
            admin.set_acls(cluster.chroot + path, OPEN_ACL_UNSAFE)
    if kept & Permissions.CREATE:  # owned, and then they can't be handed over
        first = add(cluster, "w0", "one", "two")
        cluster.settle(16)
        deny(cluster, path, all_but=kept)
    else:
        deny(cluster, path, all_but=kept)
        first = cluster.add("w0", 8, "two")
        first.consume("one", 8)
    second = cluster.add("w1", 8, "two")
    second.consume("one", 8)
    wait_until(owns(second, two=4))
    wait_until(owns(first, two=4))
    wait_until(lambda: trouble(first, "denies access", cluster.chroot + path))


def test_a_login_rolled_in_takes_nothing_from_who_has_none_and_both_tell(cluster: Cluster) -> None:
    first = add(cluster, "a", "one", "two")
    cluster.settle(16)
    second = add(cluster, "b", "one", "two", auth=DigestAuth("rmq", "secret"))
    wait_until(lambda: trouble(first, "denies access", f"{cluster.chroot}/workers/b"))
    wait_until(lambda: trouble(first, "worker b gets no slots"))
    wait_until(lambda: trouble(second, "none of the 8 slots of topic one", f"{cluster.chroot}/workers/b"))
    assert owns(first, one=8, two=8)()
    first.stop()
    wait_until(owns(second, one=8, two=8))
    assert second.leads


def test_a_leader_that_may_not_write_the_assignment_gives_way(cluster: Cluster) -> None:
    login = DigestAuth("admin", "secret")
    first = add(cluster, "a", "one", "two")
    cluster.settle(16)
    wait_until(lambda: first.leads)
    deny(cluster, "/assignment", all_but=Permissions.READ)
    second = add(cluster, "b", "one", "two", auth=login)
    with plain_client(cluster.hosts + cluster.chroot, auth_data=AUTH) as admin:
        wait_until(lambda: admin.exists("/workers/b"))
        admin.set_acls("/workers/b", OPEN_ACL_UNSAFE)  # so that the leader has something to write
    wait_until(lambda: second.leads and not first.leads)
    wait_until(owns(second, one=4, two=4))
    wait_until(owns(first, one=4, two=4))


def test_a_quota_that_is_met_leaves_slots_of_its_topic_only(cluster: Cluster) -> None:
    with plain_client(cluster.hosts) as client:
        client.create(f"{cluster.chroot}/owners/one", makepath=True)
        client.create(
            f"/zookeeper/quota{cluster.chroot}/owners/one/zookeeper_limits",
            b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=1",
            makepath=True,
        )
        client.create(f"/zookeeper/quota{cluster.chroot}/owners/one/zookeeper_stats", b"count=1,bytes=0")
    worker = add(cluster, "w0", "one", "two")
    wait_until(lambda: trouble(worker, "quota", f"create {cluster.chroot}/owners/one/", "is exceeded"))
    assert worker.leads
    wait_until(owns(worker, one=0, two=8))
    other = add(cluster, "w1", "one", "two")
    wait_until(owns(other, one=0, two=4))
    assert owns(worker, one=0, two=4)()


def test_who_cannot_announce_itself_is_told_by_start(cluster: Cluster) -> None:
    worker = add(cluster, "w0", "one")
    cluster.settle(8)
    deny(cluster, "/workers", all_but=Permissions.READ)
    with pytest.raises(CoordinationError, match=rf"denies access: the ACL of {cluster.chroot}/workers.*create"):
        cluster.add("w1", 8, "one")
    assert owns(worker, one=8)()


def test_nodes_of_a_copied_tree_are_nobodys(cluster: Cluster) -> None:
    """What ought to be ephemeral is not: nobody led, and its slots had no owner for good."""
    with plain_client(cluster.hosts) as client:
        for path in ("/owners/t/0", "/owners/t/3", "/leader", "/workers/w0", "/workers/gone"):
            client.create(
                cluster.chroot + path,
                b'{"topics":{"t":8},"weight":1,"host":"h","pid":1,"room":null,"redis":"","version":4,"min_reader":4}',
                makepath=True,
            )
        told: set[str] = set()
        worker = Coordinator(cluster.hosts, "w0", chroot=cluster.chroot, session_timeout_s=3.0)
        worker.on_change = lambda: told.update(worker.troubles)
        cluster.stack.callback(worker.stop, drain=False)
        worker.start()
        worker.register_topic("t", '{"slots":8,"version":4,"min_reader":4}')
        worker.consume("t", 8)
        wait_until(owns(worker, t=8))
        assert worker.leads
        assert trouble(worker, f"{cluster.chroot}/workers/gone is not ephemeral")
        wait_until(lambda: not trouble(worker, "/owners/"))
        with pytest.raises(NoNodeError):
            client.get(f"{cluster.chroot}/owners/t/8")
        client.create(f"{cluster.chroot}/owners/t/6x")  # no slot's
        client.delete(f"{cluster.chroot}/owners/t/6")
        client.create(f"{cluster.chroot}/owners/t/6")
        wait_until(owns(worker, t=8))


def test_slow_round_trips_lose_no_slots(quotas: ZooKeeperEnsemble) -> None:
    """A round took longer than two thirds of the session timeout, and counted its first reply only."""
    with Link(quotas.servers[0].port) as link, ExitStack() as stack:
        worker = Cluster(f"127.0.0.1:{link.port}", stack).add("w", 8, "t")
        wait_until(owns(worker, t=8))
        before = dict(worker.owned())
        lost: list[int] = []
        worker.on_change = lambda: None if worker.owned() else lost.append(1)
        link.slow(0.25)
        since_s = worker._member.machine._contact_s  # pyright: ignore[reportPrivateUsage]
        wait_until(lambda: worker._member.machine._contact_s > since_s + 8.0)  # pyright: ignore[reportPrivateUsage]
        link.slow(0)
        assert worker.owned() == before
        assert not lost
