"""Workers on real ZooKeeper servers: one, and an ensemble of three."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NotEmptyError
from kazoo.security import CREATOR_ALL_ACL

from rmq import Coordinator, DigestAuth, Ownership
from rmq._ownership import SlotKey
from rmq.errors import CoordinationError, ForkedClientError, InvalidValueError
from tests.support.core import monotonic_s
from tests.support.zookeeper import ZooKeeperEnsemble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SESSION_S = 3.0
TICK_MS = 300
PROMPT_S = SESSION_S + 60.0
"""What begins with the end of a session has ended by then, on a busy machine, too."""


def wait_until(condition: Callable[[], Any], timeout_s: float = 60.0) -> float:
    """Wait until a condition holds; return how long that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout_s, f"not within {timeout_s} s"
        time.sleep(0.01)
    return time.monotonic() - start


def held_for(owns: Callable[[], object], timeout_s: float = 60.0) -> float:
    """Wait until a worker says that it owns nothing; return when it was last asked and still owned something.

    However late this process gets to ask: a worker that gives up by its clock never owns after that.
    """
    start = last = time.monotonic()
    while True:
        asked = time.monotonic()
        if not owns():
            return last - start
        last = asked
        assert last - start < timeout_s, f"not within {timeout_s} s"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def single() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tick_ms=TICK_MS) as servers:
        yield servers


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(servers=3, tick_ms=TICK_MS) as servers:
        yield servers


@contextmanager
def plain_client(hosts: str, **options: Any) -> Iterator[Any]:
    client = KazooClient(hosts=hosts, **options)
    try:
        client.start()
        yield client
    finally:
        client.stop()
        client.close()


def drain(worker: Coordinator) -> None:
    for key in worker.revoking():
        worker.drained(*key)


class Cluster:
    """Workers of one test, below a chroot of their own; each drains at once unless told otherwise."""

    def __init__(self, hosts: str, stack: ExitStack) -> None:
        self.hosts, self.stack = hosts, stack
        self.chroot = f"/test-{uuid4().hex[:8]}"
        self.workers: dict[str, Coordinator] = {}

    def add(self, name: str, slots: int = 16, topic: str = "t", *, drains: bool = True, **options: Any) -> Coordinator:
        options = {"session_timeout_s": SESSION_S, "chroot": self.chroot, "drain_timeout_s": 5.0, **options}
        worker = Coordinator(options.pop("hosts", self.hosts), name, **options)
        if drains:
            worker.on_change = lambda: drain(worker)
        self.stack.callback(worker.stop, drain=False)
        worker.start()
        worker.register_topic(topic, f'{{"slots":{slots},"version":4,"min_reader":4}}')
        worker.consume(topic, slots)
        self.workers[name] = worker
        return worker

    def owners(self, *names: str) -> dict[SlotKey, str]:
        """Return who owns what; fails if two own one slot."""
        owners: dict[SlotKey, str] = {}
        for name in names or self.workers:
            for key in self.workers[name].owned():
                assert key not in owners, f"{key} has two owners"
                owners[key] = name
        return owners

    def settle(self, slots: int, *names: str, timeout_s: float = 60.0) -> float:
        """Wait until the named workers own all slots, evenly; return how long that took."""

        def even() -> bool:
            counts = Counter(self.owners(*names).values())
            shares = [counts[name] for name in names or self.workers]
            return sum(shares) == slots and max(shares) - min(shares) <= 1

        return wait_until(even, timeout_s)


@pytest.fixture
def cluster(single: ZooKeeperEnsemble) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(single.hosts, stack)


@pytest.fixture
def cluster_of_three(ensemble: ZooKeeperEnsemble) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(ensemble.hosts, stack)


def epochs(*owned: Mapping[SlotKey, Ownership]) -> dict[SlotKey, int]:
    return {key: ownership.epoch for slots in owned for key, ownership in slots.items()}


def test_join_and_leave_move_what_they_must(cluster: Cluster) -> None:
    for number in range(3):
        cluster.add(f"w{number}", 64)
    cluster.settle(64)
    before, before_epochs = cluster.owners(), epochs(*(worker.owned() for worker in cluster.workers.values()))
    cluster.add("w3", 64)
    took_s = cluster.settle(64)
    after, after_epochs = cluster.owners(), epochs(*(worker.owned() for worker in cluster.workers.values()))
    moved = {key for key in before if before[key] != after[key]}
    assert len(moved) == 16
    assert {after[key] for key in moved} == {"w3"}
    assert all((after_epochs[key] > before_epochs[key]) is (key in moved) for key in before)
    print(f"the others took its slots over within {took_s:.1f} s")
    cluster.workers["w1"].stop()
    cluster.settle(64, "w0", "w2", "w3")
    final = cluster.owners("w0", "w2", "w3")
    assert {key for key in after if after[key] != final[key]} == {key for key in after if after[key] == "w1"}


def test_1024_slots_are_taken(cluster: Cluster) -> None:
    worker = cluster.add("w", 1024)
    print(f"1,024 slots were taken within {cluster.settle(1024):.1f} s")
    assert len(set(epochs(worker.owned()).values())) == 1024


def test_workers_that_start_together_share_two_topics(cluster: Cluster) -> None:
    start = time.monotonic()
    for number in range(4):
        worker = cluster.add(f"w{number}", 64, "a")
        worker.register_topic("b", '{"slots":64,"version":4,"min_reader":4}')
        worker.consume("b", 64)
    cluster.settle(128)
    print(f"all slots had one owner within {time.monotonic() - start:.1f} s")
    assert Counter(topic for topic, _ in cluster.workers["w2"].owned()) == {"a": 16, "b": 16}


def test_a_revoked_slot_waits_for_its_last_handler(cluster: Cluster) -> None:
    slow = cluster.add("slow", 2, drains=False, drain_timeout_s=60)
    cluster.settle(2)
    (kept, lost) = slow.owned().values()
    fast = cluster.add("fast", 2)
    wait_until(slow.revoking)
    time.sleep(SESSION_S)
    assert slow.revoking() == {(lost.topic, lost.slot)}
    assert list(slow.owned().values()) == [kept]
    assert slow.still_owner(lost)
    assert fast.owned() == {}
    slow.drained(lost.topic, lost.slot)
    cluster.settle(2)
    assert not slow.still_owner(lost)
    assert fast.owned()[lost.topic, lost.slot].epoch > lost.epoch
    assert fast.owned()[lost.topic, lost.slot].ensemble == lost.ensemble


def test_the_drain_limit_hands_over_all_the_same(cluster: Cluster) -> None:
    cluster.add("slow", 2, drains=False, drain_timeout_s=1)
    cluster.settle(2)
    started_s = time.monotonic()
    fast = cluster.add("fast", 2)
    wait_until(fast.owned)
    assert time.monotonic() - started_s >= 1


def test_weights_share_in_proportion(cluster: Cluster) -> None:
    small, large = cluster.add("small", 16), cluster.add("large", 16, weight=3)
    wait_until(lambda: (len(small.owned()), len(large.owned())) == (4, 12))


def test_the_first_definition_rules_and_another_slot_count_gets_nothing(cluster: Cluster) -> None:
    right = cluster.add("right", 4)
    wrong = cluster.add("wrong", 8)
    assert (
        wrong.register_topic("t", '{"slots":8,"version":4,"min_reader":4}') == '{"slots":4,"version":4,"min_reader":4}'
    )
    cluster.settle(4, "right")
    time.sleep(1)
    assert len(right.owned()) == 4
    assert wrong.owned() == {}
    other = '{"slots":8,"version":4,"min_reader":4}'
    assert wrong.replace_topic("t", other) != other, "slots have owners"
    right.stop()
    assert wrong.replace_topic("t", other) == other
    cluster.settle(8, "wrong")


def test_topics_named_with_dots_only(cluster: Cluster) -> None:
    worker = cluster.add("w", 2, "..")
    wait_until(lambda: worker.owned().keys() == {("..", 0), ("..", 1)})


def test_a_killed_worker_is_replaced_after_its_session(cluster: Cluster) -> None:
    survivor = cluster.add("survivor", 8)
    with other_process(cluster, "victim") as victim:
        wait_until(lambda: len(survivor.owned()) == 4)
        victim.kill()
        wait_until(lambda: len(survivor.owned()) == 8, PROMPT_S)


@contextmanager
def other_process(cluster: Cluster, name: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker in a process of its own; it prints `mine` or `lost` when all its slots come or go."""
    program = f"""
        import time
        from rmq._ownership import Coordinator
        worker = Coordinator({cluster.hosts!r}, {name!r}, chroot={cluster.chroot!r}, session_timeout_s={SESSION_S})
        worker.on_change = lambda: [worker.drained(*key) for key in worker.revoking()]
        worker.start()
        worker.register_topic("t", '{{"slots":8,"version":4,"min_reader":4}}')
        worker.consume("t", 8)
        last = None
        while True:
            now = "mine" if worker.owned() else "lost"
            if now != last:
                print(now, flush=True)
            last = now
            time.sleep(0.001)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_stopped_process_owns_nothing_when_it_wakes(cluster: Cluster) -> None:
    # pitfall 41
    survivor = cluster.add("survivor", 8)
    with other_process(cluster, "paused") as paused:
        wait_until(lambda: len(survivor.owned()) == 4)
        assert paused.stdout is not None
        while paused.stdout.readline() != "mine\n":
            pass
        os.kill(paused.pid, signal.SIGSTOP)
        wait_until(lambda: len(survivor.owned()) == 8, PROMPT_S)
        os.kill(paused.pid, signal.SIGCONT)
        assert paused.stdout.readline() == "lost\n"
        assert paused.stdout.readline() == "mine\n"  # in a new session
        wait_until(lambda: len(survivor.owned()) == 4)


def test_a_frozen_server_stops_claims_before_the_session_ends(cluster: Cluster, single: ZooKeeperEnsemble) -> None:
    # pitfalls 37, 38
    worker = cluster.add("w", 8)
    cluster.settle(8)
    before = dict(worker.owned())
    one = next(iter(before.values()))
    single.servers[0].pause()
    try:
        assert held_for(worker.owned) <= SESSION_S * 2 / 3 + 0.1
        assert held_for(lambda: worker.still_owner(one)) <= SESSION_S * 2 / 3
    finally:
        single.servers[0].resume()
    wait_until(lambda: len(worker.owned()) == 8)
    survived = worker.owned()[one.topic, one.slot].epoch == one.epoch
    assert worker.still_owner(one) is survived


def test_a_short_break_keeps_slots_and_epochs(cluster: Cluster) -> None:
    worker = cluster.add("w", 8)
    cluster.settle(8)
    before = dict(worker.owned())
    worker._client._handler.hang_up()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    wait_until(lambda: not worker.owned())
    assert all(worker.still_owner(ownership) for ownership in before.values())
    wait_until(worker.owned)
    assert worker.owned() == before


def test_nodes_of_an_earlier_session_are_waited_for(cluster: Cluster) -> None:
    # pitfall 42
    first = cluster.add("w", 4)
    cluster.settle(4)
    before = epochs(first.owned())
    with plain_client(cluster.hosts + cluster.chroot) as other:
        # what a process that died under the same name leaves behind for a while
        first.stop()
        other.create("/workers/w", b"{}", ephemeral=True)
        other.create("/owners/t/0", b"w", ephemeral=True)
        again = cluster.add("w", 4)
        time.sleep(1)
        assert again.owned() == {}
    wait_until(lambda: len(again.owned()) == 4)
    assert all(epoch > before[key] for key, epoch in epochs(again.owned()).items())


def test_an_owner_node_deleted_by_hand_is_noticed(cluster: Cluster) -> None:
    worker = cluster.add("w", 4)
    cluster.settle(4)
    before = dict(worker.owned())
    with plain_client(cluster.hosts + cluster.chroot) as other:
        other.delete("/owners/t/2")
    wait_until(lambda: worker.owned().get(("t", 2), before["t", 2]) != before["t", 2])
    assert worker.owned()["t", 2].epoch > before["t", 2].epoch
    assert not worker.still_owner(before["t", 2])


def test_lost_watches_do_not_stick(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # pitfall 40
    monkeypatch.setattr("rmq._ownership.zookeeper.ZooKeeperClient._on_event", lambda *_: None)
    first = cluster.add("w0", 8)
    cluster.add("w1", 8)
    cluster.settle(8)
    first.stop()
    cluster.settle(8, "w1")


def test_all_nodes_lie_below_the_chroot_and_go_with_their_workers(cluster: Cluster) -> None:
    worker = cluster.add("w", 2)
    cluster.settle(2)
    with plain_client(cluster.hosts + cluster.chroot) as client:
        assert set(client.get_children("/")) == {"ensemble", "workers", "topics", "leader", "assignment", "owners"}
        worker.stop()
        assert client.get_children("/workers") == client.get_children("/owners/t") == []
        assert client.exists("/leader") is None


def all_nodes(client: Any, path: str = "/") -> Iterator[str]:
    for name in client.get_children(path):
        child = f"{path.rstrip('/')}/{name}"
        yield child
        yield from all_nodes(client, child)


def test_with_a_login_every_node_is_closed_to_others(cluster: Cluster) -> None:
    # pitfall 46
    cluster.add("w", 2, auth=DigestAuth("rmq", "secret"))
    cluster.settle(2)
    with plain_client(cluster.hosts + cluster.chroot, auth_data=[("digest", "rmq:secret")]) as client:
        nodes = list(all_nodes(client))
        assert len(nodes) == 11
        for node in ["/", *nodes]:
            (acl,) = client.get_acls(node)[0]
            assert (acl.id.scheme, acl.id.id.split(":")[0], acl.perms) == ("digest", "rmq", 31)
    with plain_client(cluster.hosts) as stranger:
        for node in (cluster.chroot, f"{cluster.chroot}/assignment", f"{cluster.chroot}/owners/t/0"):
            with pytest.raises(NoAuthError):
                stranger.get(node)
    with pytest.raises(CoordinationError, match="denies access"):
        cluster.add("intruder", 2, auth=DigestAuth("rmq", "wrong"))


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(DigestAuth("rmq", "secret"))
    assert CREATOR_ALL_ACL[0].perms == 31


def test_a_full_stop_hands_over_without_waiting_for_the_session(cluster: Cluster) -> None:
    first = cluster.add("w0", 8, session_timeout_s=20 * TICK_MS / 1000)
    cluster.add("w1", 8)
    cluster.settle(8)
    with plain_client(cluster.hosts + cluster.chroot) as client:
        client.sync("/")
        first.stop()
        owners = {client.get(f"/owners/t/{slot}")[0] for slot in client.get_children("/owners/t")}
        assert client.get_children("/workers") == ["w1"]
        assert b"w0" not in owners
    cluster.settle(8, "w1")
    assert first.owned() == {}


def test_the_granted_session_timeout_counts(cluster: Cluster) -> None:
    worker = cluster.add("w", 2, session_timeout_s=60)
    assert worker._client.session_timeout_s == pytest.approx(20 * TICK_MS / 1000)  # pyright: ignore[reportPrivateUsage]


def test_no_server_is_a_clear_error() -> None:
    worker = Coordinator("127.0.0.1:1")
    with pytest.raises(CoordinationError, match="no ZooKeeper server"):
        worker.start(timeout_s=0.5)


@pytest.mark.parametrize(
    "options", [{"worker_id": ".."}, {"worker_id": "a/b"}, {"chroot": "rmq"}, {"weight": 0}, {"session_timeout_s": 0}]
)
def test_bad_values_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError):
        Coordinator("127.0.0.1:1", **options)


def test_a_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # pitfall 5
    worker = Coordinator("127.0.0.1:1")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ForkedClientError):
        worker.owned()


# --- three servers


def test_every_slot_is_owned_again_after_zookeepers_leader_is_killed(
    cluster_of_three: Cluster, ensemble: ZooKeeperEnsemble
) -> None:
    for number in range(3):
        cluster_of_three.add(f"w{number}", 64)
    cluster_of_three.settle(64)
    leader = ensemble.leader
    assert leader is not None
    leader.kill()
    try:
        cluster_of_three.settle(64, timeout_s=PROMPT_S)
    finally:
        leader.start()
        leader.wait_ready()


def test_a_lost_quorum_stops_all_and_its_return_brings_all_back(
    cluster_of_three: Cluster, ensemble: ZooKeeperEnsemble
) -> None:
    for number in range(2):
        cluster_of_three.add(f"w{number}", 16)
    cluster_of_three.settle(16)
    down = ensemble.servers[:2]
    for server in down:
        server.kill()
    assert held_for(cluster_of_three.owners) < SESSION_S
    time.sleep(2 * SESSION_S)
    assert not cluster_of_three.owners()
    for server in down:
        server.start()
    for server in ensemble.servers:
        server.wait_ready()
    cluster_of_three.settle(16, timeout_s=PROMPT_S)


def test_a_worker_that_leads_and_dies_is_replaced(cluster_of_three: Cluster) -> None:
    first = cluster_of_three.add("w0", 16)
    wait_until(lambda: first.leads)
    second, third = cluster_of_three.add("w1", 16), cluster_of_three.add("w2", 16)
    cluster_of_three.settle(16)
    first.stop(drain=False)
    cluster_of_three.settle(16, "w1", "w2")
    wait_until(lambda: second.leads is not third.leads)


def test_a_cut_worker_gives_up_before_another_one_owns(
    cluster_of_three: Cluster, ensemble: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker knows one server only, and that one freezes; the other servers go on and end its session."""
    leader = ensemble.leader
    assert leader is not None
    frozen, *others = sorted(ensemble.servers, key=lambda server: server is leader)
    cut = cluster_of_three.add("cut", 8, hosts=frozen.address)
    other = cluster_of_three.add("other", 8, hosts=",".join(server.address for server in others))
    cluster_of_three.settle(8)
    frozen.pause()
    start = monotonic_s()
    try:
        lost_s = monotonic_s() - start + held_for(cut.owned)
        wait_until(lambda: len(other.owned()) == 8)
        taken_s = monotonic_s() - start
    finally:
        frozen.resume()
    assert lost_s < SESSION_S * 2 / 3 + 0.1
    assert lost_s < taken_s
    cluster_of_three.settle(8)


def test_a_wiped_zookeeper_is_another_ensemble_and_workers_start_over_in_it() -> None:
    """The new server's transactions are below what our client has seen, so it turns the old session's client away."""
    with ZooKeeperEnsemble(tick_ms=TICK_MS) as servers, ExitStack() as stack:
        (server,) = servers.servers
        worker = Cluster(servers.hosts, stack).add("w", 4)
        wait_until(lambda: len(worker.owned()) == 4)
        before = dict(worker.owned())
        server.kill()
        shutil.rmtree(server.folder / "data")
        server.start()
        server.wait_ready()
        wait_until(lambda: worker.leads and worker.ensemble != before["t", 0].ensemble)

        def owns_all_there() -> bool:
            """What is from the old one is dropped a moment after the new one is known; Redis refuses its epochs."""
            ensembles = {ownership.ensemble for ownership in worker.owned().values()}
            return ensembles == {worker.ensemble} and len(worker.owned()) == 4

        wait_until(owns_all_there)  # what it needs it makes anew by itself
        assert not any(worker.still_owner(ownership) for ownership in before.values())


def test_zookeeper_has_gone_back_where_its_present_identity_has_a_higher_epoch(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Replies to claims in the name of the identity before may come late: they gave up the new one, too."""
    worker = cluster.add("w0", 4)
    cluster.settle(4)
    first = worker.ensemble
    assert first
    worker.fenced(10**12, "one-before")
    cluster.add("w1", 4)
    cluster.settle(4)
    assert worker.ensemble == first
    worker.fenced(10**12, first)
    wait_until(lambda: worker.ensemble not in (None, "", first))
    second = worker.ensemble
    worker.fenced(10**12, first)
    cluster.add("w2", 4)
    wait_until(lambda: len(cluster.owners()) == 4 and cluster.owners("w2"))
    assert worker.ensemble == second
    assert caplog.text.count("was restored from an older state") == 1


@pytest.mark.parametrize("lost", ["/topics/t", "/owners/t", "/topics", "/owners", "/assignment", "/ensemble"])
def test_live_workers_make_deleted_nodes_anew(cluster: Cluster, lost: str) -> None:
    first, second = cluster.add("w0", 8), cluster.add("w1", 8)
    cluster.settle(8)
    before, identity = epochs(first.owned(), second.owned()), first.ensemble
    with plain_client(cluster.hosts) as client:
        with suppress(NotEmptyError):  # its children are gone, and some are there again already
            client.delete(cluster.chroot + lost, recursive=True)
        wait_until(lambda: client.exists(cluster.chroot + lost) is not None)
        wait_until(lambda: client.exists(f"{cluster.chroot}/topics/t") is not None)
    again = cluster.add("w2", 8)
    cluster.settle(8)
    assert {first.ensemble, second.ensemble, again.ensemble} == {identity}
    if lost.startswith("/owners"):
        assert min(epochs(first.owned(), second.owned(), again.owned()).values()) > max(before.values())


def test_what_this_version_cannot_read_hides_only_itself(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    newer = b'{"version":99,"min_reader":99}'
    worker = cluster.add("w0", 8)
    cluster.settle(8)
    with plain_client(cluster.hosts + cluster.chroot) as client:
        client.create("/workers/strange", newer, ephemeral=True)
        client.create("/topics/strange", newer)
        client.set("/assignment", newer)
        wait_until(lambda: client.get("/assignment")[0] != newer)
        worker.consume("strange", 4)
        cluster.add("w1", 8)
        cluster.settle(8, "w0", "w1")
        wait_until(lambda: any("topic strange get" in text for text in worker.troubles))
    told = [record.getMessage() for record in caplog.records if "99" in record.getMessage()]
    assert sum("worker strange gets no slots" in text for text in told) == 1
    assert all("upgrade this RMQ" in text for text in told)


def test_servers_end_with_the_process_that_started_them() -> None:
    program = """
        import os, signal
        from tests.support.zookeeper import ZooKeeperEnsemble
        servers = ZooKeeperEnsemble()
        servers.start()
        print(servers.servers[0].pid, servers.folder, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, check=False
    )
    pid, folder = done.stdout.split()
    shutil.rmtree(folder)

    def ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except FileNotFoundError:
            return True

    wait_until(ended)
