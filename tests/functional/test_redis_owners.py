"""Owners of slots in Redis: real worker processes under faults, judged by the ledger that they keep outside Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from rmq import Topic, TopicType
from tests.support import scenarios
from tests.support.core import OWNERS_KEYS
from tests.support.ownership import Rig
from tests.support.servers import RedisServer
from tests.support.topologies import RedisClusterServers, SentinelServers
from tests.support.waiting import wait_until

SESSION_S = 6.0
LEASE_S = 20
"""Longer than every pause here: no overlap has an excuse."""
PROMPT_S = 60.0
"""For what takes the session and 5 s on a machine that has nothing else to do."""


@contextmanager
def rig_on(url: str, folder: Path, workers: int = 3) -> Iterator[Rig]:
    types, lease = (TopicType.RANGE_MERGE, TopicType.PRIORITY), timedelta(seconds=LEASE_S)
    topics = [Topic(f"{folder.name}-{type_.name}", type_, slots=32, lease=lease) for type_ in types]
    with Rig(url, "", folder, topics, session_s=SESSION_S) as rig:
        rig.start(*(f"w{number}" for number in range(workers)))
        rig.wait_owned()
        yield rig


def leader_of(rig: Rig) -> str:
    """Return the name of the leading worker."""
    node: Any = rig.client._connections.command("HGET", OWNERS_KEYS["nodes"], "/leader")  # pyright: ignore[reportPrivateUsage]
    return node.split(b" ", 4)[4].decode()


def test_workers_join_die_and_stand_still(tmp_path: Path) -> None:
    with RedisServer() as redis, rig_on(redis.url, tmp_path) as rig:
        with rig.traffic() as traffic:
            joined = scenarios.join_and_leave(rig)
            stopped = scenarios.stopped(2.0)(rig)
            rig.workers[leader_of(rig)].kill()
            killed_s = scenarios.again(rig, timeout_s=PROMPT_S)
        measured = {"joined_s": joined["joined_s"], "stopped_s": stopped["again_s"], "killed_s": killed_s}
        rig.account("faults", traffic, timeout_s=PROMPT_S, lease_s=LEASE_S, **measured).check()


def test_a_redis_that_stood_still_finds_the_same_owners(tmp_path: Path) -> None:
    with RedisServer() as redis, rig_on(redis.url, tmp_path) as rig:
        with rig.traffic() as traffic:
            before = rig.in_redis()
            redis.pause()
            time.sleep(1.5 * SESSION_S)
            redis.resume()
            started_s = time.monotonic()
            rig.wait_can_claim(PROMPT_S)
            back_s = round(time.monotonic() - started_s, 2)
            assert rig.in_redis() == before, "owners, epochs and sessions"
            redis.pause()
            rig.workers["w1"].kill()
            time.sleep(1.5 * SESSION_S)
            redis.resume()
            dead_s = scenarios.again(rig, timeout_s=PROMPT_S)
            after = rig.in_redis()
            kept = {key: node for key, node in before.items() if node[0] != "w1"}
            assert {key: after[key] for key in kept} == kept
        rig.account("frozen", traffic, timeout_s=PROMPT_S, lease_s=LEASE_S, back_s=back_s, dead_s=dead_s).check()


def test_acquisitions_that_redis_forgets_are_made_again_above_them(tmp_path: Path) -> None:
    """The slots remember their newer epochs: the earlier owner, whose node is there again, is refused with its own."""
    with RedisServer() as redis, rig_on(redis.url, tmp_path) as rig, redis.connect() as server:
        with rig.traffic() as traffic:
            kept = {name: server.dump(key) for name, key in OWNERS_KEYS.items() if name != "wake"}
            before = rig.in_redis()
            rig.start("joiner")
            rig.wait_owned()
            rig.wait_can_claim(PROMPT_S)
            with server.pipeline() as pipe:
                for name, dump in kept.items():
                    pipe.restore(OWNERS_KEYS[name], 0, dump, replace=True)  # pyright: ignore[reportArgumentType]
                pipe.execute()
            rig.wait_owned(timeout_s=PROMPT_S)
            rig.wait_can_claim(PROMPT_S)
            newest = max(run.epoch for run in rig.story().runs)
            moved = {key for key, node in rig.in_redis().items() if node[0] == "joiner"}
            assert {before[key][0] for key in moved} <= {"w0", "w1", "w2"}
        assert newest > max(epoch for _, (epoch, _) in before.values())
        rig.account("forgotten", traffic, timeout_s=PROMPT_S, lease_s=LEASE_S).check()


def deafen(replica: RedisServer) -> None:
    """Let a replica receive nothing more from its master, and keep what it has."""
    with replica.connect() as client:
        client.config_set("masteruser", "nobody")
        client.config_set("masterauth", "nothing")
        client.execute_command("CLIENT", "KILL", "TYPE", "master")
        wait_until(lambda: client.info("replication")["master_link_status"] == "down")  # pyright: ignore[reportIndexIssue]


def fail_over(rig: Rig, replica: RedisServer, kill: Callable[[], object]) -> None:
    """Lose a worker's acquisitions in a failover; all slots must have live owners again, and messages be handled."""
    before = rig.in_redis()
    deafen(replica)
    rig.start("joiner")
    rig.wait_owned()
    acquired = {key: node for key, node in rig.in_redis().items() if node != before[key]}
    assert {node[0] for node in acquired.values()} == {"joiner"}
    kill()
    wait_until(rig.in_redis, PROMPT_S, "Redis to answer again")
    started_s = time.monotonic()
    rig.wait_owned(timeout_s=PROMPT_S)
    rig.wait_can_claim(PROMPT_S)
    again_s = round(time.monotonic() - started_s, 2)
    for key, (_, (epoch, _)) in rig.in_redis().items():
        if key in acquired and rig.in_redis()[key] != before[key]:
            assert epoch > acquired[key][1][0], "an epoch that was lost is not given again"
    with rig.traffic() as traffic:
        wait_until(lambda: len(traffic.accepted) > 500)
    rig.account("failover", traffic, timeout_s=PROMPT_S, lease_s=LEASE_S, again_s=again_s).check()


def test_a_failover_by_sentinel_loses_the_last_acquisitions(tmp_path: Path) -> None:
    with SentinelServers() as servers, rig_on(servers.url, tmp_path) as rig:
        master, replica = servers.servers

        def kill() -> None:
            master.kill()
            servers.take_for_dead_after(3_000)  # ten times as long may a replica have been without its master
            wait_until(lambda: servers.master is replica, PROMPT_S, "the replica to be promoted")

        fail_over(rig, replica, kill)


def test_a_failover_in_a_cluster_loses_the_last_acquisitions(tmp_path: Path) -> None:
    with RedisClusterServers(3, 1) as servers, rig_on(servers.url, tmp_path) as rig:
        master = servers.owner(OWNERS_KEYS["nodes"])
        ports = [(each, each.connect().info("replication")) for each in servers.servers]
        (replica,) = (each for each, info in ports if info.get("master_port") == master.port)  # pyright: ignore[reportAttributeAccessIssue]
        fail_over(rig, replica, lambda: servers.kill_and_replace(master))
