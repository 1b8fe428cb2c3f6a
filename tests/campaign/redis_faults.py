"""The faults of Redis: each begins with all replicas in step, takes its time, and ends with all in step again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import redis

from tests.campaign.shards import SHARDS
from tests.campaign.stage import Stage
from tests.campaign.topics import LEASE_S, topics
from tests.histories.journal import now_s
from tests.support.core import slot_keys
from tests.support.servers import RedisServer

FLUSHES = 20
FILLER = "filler"
_CHUNK = b"\0" * 1_048_576


class RedisFaults:
    """Does things to the servers of a stage.

    Args:
        stage: The stage.
        brief: Keep every fault short.
    """

    def __init__(self, stage: Stage, brief: bool) -> None:
        self._stage = stage
        self._shards = stage.shards
        self._brief = brief
        self.by_kind: dict[str, Callable[[random.Random], str]] = {
            "redis master killed": self.kill_master,
            "redis replica killed": self.kill_replica,
            "redis frozen": self.freeze,
            "failover": self.fail_over,
            "slots moved": self.move_slots,
            "memory full": self.fill_memory,
            "disk full": self.fill_disk,
            "scripts flushed": self.flush_scripts,
            "connections killed": self.kill_connections,
            "redis rolling restart": self.restart_all,
        }

    def settle(self) -> None:
        """Wait until the next fault may begin."""
        self._shards.settle()

    def kill_master(self, chance: random.Random) -> str:
        """Kill a master with SIGKILL; its replica takes over, and it comes back as a replica."""
        shard = chance.randrange(SHARDS)
        master, replica = self._shards.pair(shard)
        from_s = now_s()
        master.kill()
        if not self._shards.elections:
            self._stage.shards.cluster.ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
        self._shards.wait_master(shard, replica)
        self._trouble("redis master killed", shard, from_s)
        self._shards.restart(master)
        return f"shard {shard}: the master was killed, its replica took over after {now_s() - from_s:.1f} s"

    def kill_replica(self, chance: random.Random) -> str:
        """Kill a replica with SIGKILL: meanwhile no send is confirmed."""
        shard = chance.randrange(SHARDS)
        _, replica = self._shards.pair(shard)
        from_s = now_s()
        replica.kill()
        time.sleep(chance.uniform(0, 1))
        self._shards.restart(replica)
        self._shards.settle()
        self._trouble("redis replica killed", shard, from_s)
        return f"shard {shard}: the replica was killed"

    def freeze(self, chance: random.Random) -> str:
        """Stop a master with SIGSTOP: for a moment, for longer than its replica waits, or for longer than a lease."""
        shard = chance.randrange(SHARDS)
        length_s = chance.choice((0.5, 1.0) if self._brief else (0.5, LEASE_S * 0.6, LEASE_S * 1.5))
        master, _ = self._shards.pair(shard)
        from_s = now_s()
        master.pause()
        time.sleep(length_s)
        master.resume()
        self._trouble("redis frozen", shard, from_s)
        return f"shard {shard}: the master was frozen for {length_s:.1f} s"

    def fail_over(self, chance: random.Random) -> str:
        """Let master and replica change places, as before an upgrade."""
        shard = chance.randrange(SHARDS)
        from_s = now_s()
        self._shards.promote(shard)
        self._trouble("redis failover", shard, from_s)
        return f"shard {shard}: master and replica changed places"

    def move_slots(self, chance: random.Random) -> str:
        """Move slots to other masters, key by key, while all goes on."""
        moved: list[str] = []
        for _ in range(1 if self._brief else chance.randint(1, 4)):
            topic = chance.choice(topics())
            slot = chance.randrange(topic.slots)
            target = (self._shards.shard_of(topic.name, slot) + chance.randint(1, SHARDS - 1)) % SHARDS
            self._shards.note(topic.name, slot, target)
            self._shards.cluster.move(slot_keys(topic.name, slot).store, self._shards.pair(target)[0])
            moved.append(f"{topic.name}/{slot} to shard {target}")
        return f"moved: {', '.join(moved)}"

    def fill_memory(self, chance: random.Random) -> str:
        """Let a master be at its maxmemory: it refuses sends, and the rest goes on."""
        shard = chance.randrange(SHARDS)
        master, _ = self._shards.pair(shard)
        master.config_set("maxmemory", "1mb")
        time.sleep(1.0 if self._brief else chance.uniform(2, 5))
        master.config_set("maxmemory", 0)
        return f"shard {shard}: the memory was full"

    def fill_disk(self, chance: random.Random) -> str:
        """Fill the small disk under the first node's AOF: Redis refuses all writes until there is room again."""
        disk, server = self._stage.disk, self._shards.servers[0]
        assert disk is not None
        shard = 0
        if self._shards.pair(shard)[0] is not server:
            self._shards.promote(shard)
            self._shards.settle()
        from_s = now_s()
        try:
            _fill(disk / FILLER)
            time.sleep(2.0 if self._brief else chance.uniform(2, 5))
        finally:
            (disk / FILLER).unlink()
        self._wait_writable(server)
        self._trouble("disk full", shard, from_s)
        return f"shard {shard}: the disk under the AOF was full for {now_s() - from_s:.1f} s"

    def flush_scripts(self, chance: random.Random) -> str:
        """Let all nodes forget their scripts, again and again."""
        del chance
        for _ in range(FLUSHES):
            for server in self._shards.servers:
                self._shards.cluster.ask(server, "SCRIPT", "FLUSH")
            time.sleep(0.02)
        return f"all nodes forgot their scripts, {FLUSHES} times"

    def kill_connections(self, chance: random.Random) -> str:
        """Cut all clients' connections to a master."""
        shard = chance.randrange(SHARDS)
        master, _ = self._shards.pair(shard)
        from_s = now_s()
        self._shards.cluster.ask(master, "CLIENT", "KILL", "TYPE", "normal")
        self._trouble("connections killed", shard, from_s)
        return f"shard {shard}: all connections were cut"

    def restart_all(self, chance: random.Random) -> str:
        """Restart one node after the other with SIGTERM, masters once their replicas have taken over."""
        del chance
        for shard in range(1 if self._brief else SHARDS):
            for _ in range(2):
                self._shards.settle()
                from_s = now_s()
                _, replica = self._shards.pair(shard)
                replica.halt()
                self._shards.restart(replica)
                self._shards.settle()
                self._shards.promote(shard)
                self._trouble("redis restarted", shard, from_s)
        return "all nodes were restarted, one after the other"

    def _trouble(self, cause: str, shard: int, from_s: float) -> None:
        self._shards.trouble(cause, shard, from_s)

    def _wait_writable(self, server: RedisServer) -> None:
        end_s = now_s() + 30
        while now_s() < end_s:
            with suppress(redis.RedisError), server.connect() as client:
                info: dict[str, object] = client.info("persistence")  # pyright: ignore
                if info["aof_last_write_status"] == "ok":
                    return
            time.sleep(0.1)


def _fill(path: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(_CHUNK)
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(b"\0" * 512)
