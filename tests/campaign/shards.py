"""The Redis Cluster of a campaign: three shards of two nodes each, and who is the master of each now."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

from tests.campaign.topics import topics
from tests.histories.journal import Journal, now_s
from tests.support.core import OWNERS_KEYS, slot_keys
from tests.support.servers import RedisServer
from tests.support.topologies import RedisClusterServers
from tests.support.waiting import wait_until

SHARDS = 3
NODE_TIMEOUT_MS = 2_000
SETTLE_S = 90.0
ASK_AGAIN_S = 7.0
"""Redis gives up a failover that was asked for after 5 s."""

AWAY = frozenset({"redis master killed", "redis frozen", "redis failover", "disk full"})
"""Troubles in which a shard writes nothing."""

_CONFIG = ("repl-backlog-size 64mb", "auto-aof-rewrite-min-size 16mb", "maxmemory-policy noeviction")
_LOOK_EVERY_S = 0.2


class Shards:
    """Starts the cluster, watches its masters, and writes down each change of them.

    Args:
        journal: Where moves and failovers are written down.
        elections: Whether the nodes elect a new master by themselves; else the campaign names it.
        disk: Folder for the data of the first node, if it is a small disk.
        keeps_owners: Whether it keeps the owners of slots, too.
    """

    def __init__(self, journal: Journal, elections: bool, disk: Path | None, *, keeps_owners: bool) -> None:
        self._journal = journal
        self.elections = elections
        self.cluster = RedisClusterServers(SHARDS, 1, config=_CONFIG)
        if disk is not None:
            self._move_data(self.cluster.servers[0], disk)
        self._pairs = self._paired()
        self._keeper = self._shard_of(OWNERS_KEYS["nodes"]) if keeps_owners else None
        self.masters = [pair[0] for pair in self._pairs]
        self._lock = threading.Lock()
        self._ended = threading.Event()
        if elections:
            self.cluster.take_for_dead_after(NODE_TIMEOUT_MS)
        for topic in topics():
            for slot in range(topic.slots):
                self.note(topic.name, slot, self.shard_of(topic.name, slot))
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def servers(self) -> list[RedisServer]:
        return self.cluster.servers

    def pair(self, shard: int) -> tuple[RedisServer, RedisServer]:
        """Return master and replica of a shard."""
        with self._lock:
            master = self.masters[shard]
        return master, next(each for each in self._pairs[shard] if each is not master)

    def shard_of(self, topic: str, slot: int) -> int:
        """Return which shard holds a slot."""
        return self._shard_of(slot_keys(topic, slot).store)

    def _shard_of(self, key: str) -> int:
        owner = self.cluster.owner(key)
        return next(number for number, pair in enumerate(self._pairs) if owner in pair)

    def note(self, topic: str, slot: int, shard: int) -> None:
        """Write down which shard holds a slot from now on."""
        self._journal.write("shard", now_s(), topic, slot, shard)

    def trouble(self, cause: str, shard: int, from_s: float) -> None:
        """Write down a trouble that ends now; of the keeper, too, where the shard keeps the owners, and was away."""
        self._journal.trouble(cause, f"shard {shard}", from_s)
        if shard == self._keeper and cause in AWAY:
            self._journal.trouble(f"{cause}: owners without a leader", "keeper", from_s)

    def settle(self) -> None:
        """Wait until each shard has one master, whose replica has all that it has.

        A replica that Redis has given to the master of another shard is given back.
        """
        end_s = now_s() + SETTLE_S
        while amiss := "".join(map(self._amiss, range(SHARDS))):
            for shard in range(SHARDS):
                with suppress(redis.RedisError, RuntimeError):
                    self._give_back(shard)
            if now_s() > end_s:
                raise AssertionError(f"not within {SETTLE_S:g} s: {amiss}")
            time.sleep(0.1)
        self.cluster.wait_whole(SETTLE_S)

    def promote(self, shard: int, how: str = "") -> None:
        """Make the replica of a shard its master, and wait until it is."""
        _, replica = self.pair(shard)
        end_s = now_s() + SETTLE_S
        while self.pair(shard)[0] is not replica:  # on a busy machine the nodes may give up before they are done
            if now_s() > end_s:
                raise AssertionError(f"not within {SETTLE_S:g} s: a new master of shard {shard}")
            with suppress(redis.ResponseError):  # it is the master already
                self.cluster.ask(replica, "CLUSTER", "FAILOVER", *([how] if how else []))
            asked_s = now_s()
            while self.pair(shard)[0] is not replica and now_s() - asked_s < ASK_AGAIN_S:
                time.sleep(0.1)

    def wait_master(self, shard: int, server: RedisServer) -> None:
        """Wait until a server is the master of its shard."""
        wait_until(lambda: self.pair(shard)[0] is server, SETTLE_S, f"a new master of shard {shard}")

    def restart(self, server: RedisServer) -> None:
        """Start a server that was ended, with the settings of the others."""
        server.start()
        if self.elections:
            server.config_set("cluster-node-timeout", NODE_TIMEOUT_MS)

    def keep_logs(self, folder: Path) -> None:
        """Write what each server has logged to a folder."""
        for number, server in enumerate(self.servers):
            (folder / f"redis-{number}.log").write_text(f"port {server.port}\n{server.log}", "utf-8")

    def stop(self) -> None:
        """End everything."""
        self._ended.set()
        self._watcher.join(10)
        self.cluster.stop()

    def _paired(self) -> list[tuple[RedisServer, RedisServer]]:
        pairs: list[tuple[RedisServer, RedisServer]] = []
        for master in self.servers[:SHARDS]:
            follows = (each for each in self.servers[SHARDS:] if _info(each).get("master_port") == master.port)
            pairs.append((master, next(follows)))
        return pairs

    def _move_data(self, server: RedisServer, disk: Path) -> None:
        """Put a node's data on another disk; `dir` cannot be set while it writes an AOF."""
        server.config_set("appendonly", "no")
        server.config_set("dir", str(disk))
        server.config_set("appendonly", "yes")

    def _amiss(self, shard: int) -> str:
        """Return what a shard lacks: empty if it has one master, whose replica has all that it has."""
        try:
            master, replica = self.pair(shard)
            above, below = _info(master), _info(replica)
        except (redis.RedisError, RuntimeError) as error:
            return f"shard {shard}: {type(error).__name__}: {error}"
        linked = below.get("master_link_status") == "up" and not below.get("master_sync_in_progress")
        if above["role"] == "master" and linked and above.get("slave0", {}).get("state") == "online":
            return ""
        return f"shard {shard}: {above} {below}"

    def _give_back(self, shard: int) -> None:
        master, replica = self.pair(shard)
        other = _info(replica).get("master_port")
        if other is not None and other not in [each.port for each in self._pairs[shard]]:
            self.cluster.ask(replica, "CLUSTER", "REPLICATE", self.cluster.node_id(master))

    def _watch(self) -> None:
        """Look who is master; a change is a trouble from when all was last well until all is well again."""
        well_s = [now_s()] * SHARDS
        while not self._ended.wait(_LOOK_EVERY_S):
            for shard, pair in enumerate(self._pairs):
                found = [each for each in pair if _role(each) == "master"]
                with self._lock:
                    before = self.masters[shard]
                    if len(found) == 1 and found[0] is not before:
                        self.masters[shard] = found[0]
                        self.trouble("redis failover", shard, well_s[shard])
                    if len(found) == 1:
                        well_s[shard] = now_s()


def _info(server: RedisServer) -> dict[str, Any]:
    with server.connect(socket_timeout=1.0, socket_connect_timeout=1.0) as client:
        info: Any = client.info("replication")
    return info


def _role(server: RedisServer) -> str:
    with suppress(redis.RedisError, RuntimeError):
        if server.running:
            return str(_info(server)["role"])
    return ""
