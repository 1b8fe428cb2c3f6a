"""What may happen to a cluster of workers while traffic runs. Each takes a rig with its workers running.

A scenario returns what it measured: `again_s` is how long slots were without a live owner after the fault, or after
its end where nobody can own anything during it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.support.core import OWNERS_KEYS, slot_keys
from tests.support.link import Link
from tests.support.ownership import Rig
from tests.support.servers import RedisServer
from tests.support.topologies import RedisClusterServers
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperEnsemble

Measured = dict[str, Any]
RECOVERY_S = 5.0
"""On top of the session timeout: how long it may take until every slot is owned again."""


def live(rig: Rig) -> set[str]:
    return {name for name, worker in rig.workers.items() if worker.running}


def again(rig: Rig, *names: str, timeout_s: float = 40.0) -> float:
    return round(rig.wait_owned(*(names or live(rig)), timeout_s=timeout_s, even=False), 2)


def moved(before: dict[Any, str], after: dict[Any, str]) -> int:
    return sum(owner != after.get(key) for key, owner in before.items())


def join_and_leave(rig: Rig) -> Measured:
    """One worker more, one less: only what must move moves."""
    before = rig.owners()
    workers = len(live(rig))
    rig.start("joiner")
    join_s = rig.wait_owned(*live(rig))
    joined = rig.owners()
    most = sum(math.ceil(topic.slots / (workers + 1)) for topic in rig.topics)
    assert moved(before, joined) <= most, (moved(before, joined), most)
    assert {joined[key] for key in before if before[key] != joined[key]} == {"joiner"}
    leaver = min(live(rig) - {"joiner"})
    started_s = time.monotonic()
    assert rig.workers[leaver].stop() == 0
    stop_s = time.monotonic() - started_s
    rig.wait_owned(*live(rig))
    left = rig.owners()
    changed = {key for key in joined if joined[key] != left[key]}
    assert changed == {key for key in joined if joined[key] == leaver}
    return {
        "joined_s": round(join_s, 2),
        "moved_by_join": moved(before, joined),
        "most_by_join": most,
        "moved_by_leave": len(changed),
        "stop_s": round(stop_s, 2),
        "again_s": round(time.monotonic() - started_s, 2),
    }


def grow(rig: Rig) -> Measured:
    """From one worker to four: even at every step."""
    first = next(iter(live(rig)))
    took = []
    for number in range(1, 4):
        rig.start(f"{first}-{number}")
        took.append(round(rig.wait_owned(*live(rig)), 2))
    shares = rig.shares()
    return {"joined_s": took, "shares": shares, "again_s": max(took)}


def killed(rig: Rig) -> Measured:
    victim = min(live(rig))
    rig.workers[victim].kill()
    return {"again_s": again(rig)}


def stopped(timeouts: float) -> Callable[[Rig], Measured]:
    """SIGSTOP for so many session timeouts, then SIGCONT."""

    def scenario(rig: Rig) -> Measured:
        victim = min(live(rig))
        worker = rig.workers[victim]
        others = live(rig) - {victim}
        started_s = time.monotonic()
        worker.pause()
        measured: Measured = {"again_s": 0.0}
        if timeouts > 1:
            measured["again_s"] = again(rig, *others)
        time.sleep(max(0.0, started_s + timeouts * rig.session_s - time.monotonic()))
        worker.resume()
        measured["back_s"] = round(rig.wait_owned(*live(rig), timeout_s=30), 2)
        return measured

    return scenario


def zookeeper_leader_killed(ensemble: ZooKeeperEnsemble) -> Callable[[Rig], Measured]:
    """The leader dies; the others elect a new one. The dead one comes back at the end."""

    def scenario(rig: Rig) -> Measured:
        leader = ensemble.leader
        assert leader is not None
        before = rig.owners()
        started_s = time.monotonic()
        leader.kill()
        rig.wait_can_claim(timeout_s=30)
        measured = {"again_s": round(time.monotonic() - started_s, 2)}
        time.sleep(rig.session_s)
        measured["moved"] = moved(before, rig.owners())
        leader.start()
        leader.wait_ready()
        return measured

    return scenario


def quorum_lost(ensemble: ZooKeeperEnsemble, seconds: float) -> Callable[[Rig], Measured]:
    """So many servers stop that nobody leads, for so long."""

    def scenario(rig: Rig) -> Measured:
        victims = ensemble.servers[: len(ensemble.servers) // 2 + 1]
        before = rig.owners()
        for server in victims:
            server.kill()
        time.sleep(seconds)
        for server in victims:
            server.start()
        for server in victims:
            server.wait_ready()
        started_s = time.monotonic()
        rig.wait_can_claim(timeout_s=60)
        return {"again_s": round(time.monotonic() - started_s, 2), "moved": moved(before, rig.owners())}

    return scenario


def cut_from_zookeeper(links: list[Link], worker: str, seconds: float) -> Callable[[Rig], Measured]:
    """One worker loses ZooKeeper, and nothing else, for so long."""

    def scenario(rig: Rig) -> Measured:
        started_s = time.monotonic()
        for link in links:
            link.cut()
        measured = {"again_s": again(rig, *(live(rig) - {worker}))}
        time.sleep(max(0.0, started_s + seconds - time.monotonic()))
        for link in links:
            link.mend()
        measured["back_s"] = round(rig.wait_owned(*live(rig), timeout_s=30), 2)
        return measured

    return scenario


def cut_from_redis(seconds: float) -> Callable[[Rig], Measured]:
    """One worker loses Redis, and nothing else, for so long: it keeps its slots, and their messages wait for it."""

    def scenario(rig: Rig) -> Measured:
        victim = rig.workers[min(live(rig))]
        before = rig.owners()
        victim.cut_from_redis()
        time.sleep(seconds)
        victim.mend()
        started_s = time.monotonic()
        rig.wait_caught_up(timeout_s=40)
        caught_up_s = round(time.monotonic() - started_s, 2)
        return {"again_s": 0.0, "caught_up_s": caught_up_s, "moved": moved(before, rig.owners())}

    return scenario


def redis_master_killed(servers: RedisClusterServers, lag_s: float = 0.0) -> Callable[[Rig], Measured]:
    """A master dies, its replica takes over: that of the owners, where Redis has them. It comes back as a replica.

    Args:
        servers: The cluster.
        lag_s: For how long before that the replica hears nothing.
    """

    def scenario(rig: Rig) -> Measured:
        key = slot_keys(rig.topics[0].name, 0).store if rig.hosts else OWNERS_KEYS["nodes"]
        master = servers.owner(key)
        replica = next(server for server in servers.servers if _follows(server, master))
        if lag_s:
            replica.pause()
            servers.ask(master, "CLIENT", "KILL", "TYPE", "replica")  # else it finds all in its socket when it wakes
            time.sleep(lag_s)
        started_s = time.monotonic()
        master.kill()
        replica.resume()
        wait_until(lambda: _taken_over(servers, key, master))
        failover_s = time.monotonic() - started_s
        rig.wait_caught_up(timeout_s=40)
        caught_up_s = time.monotonic() - started_s
        master.start()
        servers.wait_whole()
        return {"again_s": 0.0, "failover_s": round(failover_s, 2), "caught_up_s": round(caught_up_s, 2)}

    return scenario


def _follows(server: RedisServer, master: RedisServer) -> bool:
    with server.connect() as client:
        info: Any = client.info("replication")
    return info["role"] == "slave" and info["master_port"] == master.port


def _taken_over(servers: RedisClusterServers, key: str, dead: RedisServer) -> bool:
    with suppress(AssertionError):  # for a while nobody holds it
        return servers.owner(key) is not dead
    return False


def slots_migrated(servers: RedisClusterServers) -> Callable[[Rig], Measured]:
    """A tenth of the topic's slots move to another master, key by key."""

    def scenario(rig: Rig) -> Measured:
        topic = rig.topics[0]
        keys = [slot_keys(topic.name, slot).store for slot in range(topic.slots // 8)]
        started_s = time.monotonic()
        for key in keys:
            source = servers.owner(key)
            masters = [servers.owner(slot_keys(topic.name, slot).store) for slot in range(topic.slots)]
            target = next(master for master in masters if master is not source)
            servers.move(key, target)
        took_s = time.monotonic() - started_s
        return {"again_s": 0.0, "migrated": len(keys), "took_s": round(took_s, 2)}

    return scenario
