"""Real Redis Clusters and Sentinels for tests, with short timeouts, whose nodes can be killed and whose slots moved."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import redis

from tests.support.core import Address, create_cluster, hash_slot
from tests.support.servers import RedisServer
from tests.support.waiting import LIMIT_S, wait_until

NODE_TIMEOUT_MS = 1_000
DOWN_AFTER_MS = 500
NEVER_MS = 3_600_000
"""After so long nobody is taken for dead, however slow this machine is: for all tests but those of a failover."""
SERVICE = "queue"

_DATA = ("repl-diskless-sync yes", "repl-diskless-sync-delay 0", "repl-timeout 5", "repl-ping-replica-period 1")
_BUS_OFFSET = 10_000


def free_cluster_port() -> int:
    """Return a port that is free, and whose cluster bus port is, too."""
    while True:
        port = random.randint(12_000, 22_000)
        with suppress(OSError), ExitStack() as stack:
            for number in (port, port + _BUS_OFFSET):
                probe = stack.enter_context(socket.socket())
                probe.bind(("127.0.0.1", number))
            return port


class RedisClusterServers:
    """A Redis Cluster, started and formed at once; it ends with `stop`.

    Its nodes take no other for dead unless `take_for_dead_after` says so.

    Args:
        masters: How many masters; they share the hash slots evenly.
        replicas: How many replicas each master has.
        config: Extra lines of redis.conf for all.
        binary: The program; None: the one that RMQ_TEST_REDIS chooses.
    """

    def __init__(
        self, masters: int = 3, replicas: int = 0, *, config: tuple[str, ...] = (), binary: Path | None = None
    ) -> None:
        settings = (
            *_DATA,
            "cluster-enabled yes",
            f"cluster-node-timeout {NEVER_MS}",
            "cluster-require-full-coverage no",
            "cluster-replica-validity-factor 0",
            "cluster-migration-barrier 10",  # else a master whose replicas are late is given another master's
            "appendonly yes",
            *config,
        )
        self.servers: list[RedisServer] = []
        try:
            for _ in range(masters * (1 + replicas)):
                self.servers.append(RedisServer(settings, port=free_cluster_port(), binary=binary))
            addresses = [Address("127.0.0.1", server.port) for server in self.servers]
            create_cluster(addresses[:masters], addresses[masters:])
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """URL that names two of the nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:2])

    def ask(self, server: RedisServer, *command: str | int) -> Any:
        """Send one command to one node."""
        with server.connect() as client:
            return client.execute_command(*command)

    def owner(self, key: str) -> RedisServer:
        """Return the master that holds a key now, as the first node that runs sees it."""
        owner = self.find_owner(key)
        assert owner is not None, f"nobody holds {key}"
        return owner

    def find_owner(self, key: str) -> RedisServer | None:
        """Return the same, or None if its master has failed."""
        number = hash_slot(key)
        for server in self.servers:
            with suppress(redis.RedisError, RuntimeError):
                for line in self._nodes(server):
                    words = line.split()
                    if "master" in words[2] and "fail" not in words[2] and _holds(words[8:], number):
                        port = int(words[1].partition("@")[0].rpartition(":")[2])
                        return next(each for each in self.servers if each.port == port)
        return None

    def node_id(self, server: RedisServer) -> str:
        """Return a node's id."""
        return self.ask(server, "CLUSTER", "MYID").decode()

    def move(self, key: str, target: RedisServer, between: Callable[[], None] = lambda: None) -> None:
        """Move a key's hash slot to another master, one key at a time, as resharding does.

        Args:
            key: Any key of the hash slot.
            target: Where to.
            between: Called after each key has moved, and once before the first: while calls meet ASK and TRYAGAIN.
        """
        number, source = hash_slot(key), self.owner(key)
        if source is target:
            return
        source_id, target_id = self.node_id(source), self.node_id(target)
        self.ask(target, "CLUSTER", "SETSLOT", number, "IMPORTING", source_id)
        self.ask(source, "CLUSTER", "SETSLOT", number, "MIGRATING", target_id)
        between()
        with source.connect() as client:
            while names := client.execute_command("CLUSTER", "GETKEYSINSLOT", number, 1):
                client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 30_000, "KEYS", *names)
                between()
        for server in dict.fromkeys((target, source, *self.servers)):
            with suppress(redis.RedisError):  # replicas refuse, dead ones do not answer
                self.ask(server, "CLUSTER", "SETSLOT", number, "NODE", target_id)

    def begin_to_move(self, key: str, target: RedisServer) -> bool:
        """Begin to move a key's hash slot as a whole; return False where the servers can't (before Valkey 9)."""
        number = hash_slot(key)
        try:
            command = ("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", number, number, "NODE", self.node_id(target))
            self.ask(self.owner(key), *command)
        except redis.ResponseError as error:
            if "unknown subcommand" not in str(error).lower():
                raise
            return False
        return True

    def wait_whole(self, timeout: float = LIMIT_S) -> None:
        """Wait until all servers that run agree that all hash slots are served."""

        def whole() -> bool:
            with suppress(redis.RedisError):
                running = [server for server in self.servers if server.running]
                return all("cluster_state:ok" in self._info(server) for server in running)
            return False

        wait_until(whole, timeout, "a whole cluster")

    def take_for_dead_after(self, ms: int = NODE_TIMEOUT_MS) -> None:
        """Let the nodes that run take one for dead that has said nothing for so long."""
        for server in self.servers:
            if server.running:
                server.config_set("cluster-node-timeout", ms)

    def kill_and_replace(self, master: RedisServer) -> None:
        """Kill a master; its replica takes over as soon as it has read all that the dead one had sent.

        No node votes: on a busy machine those that wait too short a time for each other also lose masters that live.
        """
        replica = next(server for server in self.servers if self._replication(server).get("master_port") == master.port)
        master.kill()
        wait_until(lambda: self._replication(replica)["master_link_status"] == "down", LIMIT_S, "the end of the link")
        self.ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")

    def stop(self) -> None:
        """End all servers."""
        for server in self.servers:
            server.stop()

    def __enter__(self) -> RedisClusterServers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _nodes(self, server: RedisServer) -> list[str]:
        reply: Any = self.ask(server, "CLUSTER", "NODES")  # as two words: redis-py would parse the reply to one
        return reply.decode().splitlines()

    def _replication(self, server: RedisServer) -> dict[str, Any]:
        with server.connect() as client:
            info: Any = client.info("replication")
            return info

    def _info(self, server: RedisServer) -> str:
        with server.connect() as client:
            return str(client.execute_command("CLUSTER", "INFO"))


def _holds(ranges: list[str], number: int) -> bool:
    for words in ranges:
        if words.startswith("["):  # moving
            continue
        first, _, last = words.partition("-")
        if int(first) <= number <= int(last or first):
            return True
    return False


class SentinelServers:
    """A master, its replicas and Sentinels that watch them, started at once; it ends with `stop`.

    The Sentinels take no server for dead unless `take_for_dead_after` says so.

    Args:
        replicas: How many replicas.
        sentinels: How many Sentinels; the quorum is more than half of them.
        config: Extra lines of redis.conf for the data servers.
        binary: The program; None: the one that RMQ_TEST_REDIS chooses.
    """

    def __init__(
        self, replicas: int = 1, sentinels: int = 3, *, config: tuple[str, ...] = (), binary: Path | None = None
    ) -> None:
        self.servers: list[RedisServer] = []
        self.sentinels: list[RedisServer] = []
        settings = (*_DATA, "appendonly yes", *config)
        try:
            self.servers.append(RedisServer(settings, binary=binary))
            follow = f"replicaof 127.0.0.1 {self.servers[0].port}"
            for _ in range(replicas):
                self.servers.append(RedisServer((*settings, follow), binary=binary))
            watch = (
                f"sentinel monitor {SERVICE} 127.0.0.1 {self.servers[0].port} {sentinels // 2 + 1}",
                f"sentinel down-after-milliseconds {SERVICE} {NEVER_MS}",
                f"sentinel failover-timeout {SERVICE} 3000",
            )
            for _ in range(sentinels):
                self.sentinels.append(RedisServer(watch, arguments=("--sentinel",), binary=binary))
            wait_until(lambda: all(map(self._sees_all, self.sentinels)), message="the Sentinels to find each other")
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """URL that names all Sentinels."""
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels) + f"/{SERVICE}"

    @property
    def master(self) -> RedisServer:
        """The master as the first Sentinel sees it."""
        with self.sentinels[0].connect() as client:
            reply: Any = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server in self.servers if server.port == int(reply[1]))

    def take_for_dead_after(self, ms: int = DOWN_AFTER_MS) -> None:
        """Let the Sentinels take a server for dead that has said nothing for so long."""
        for sentinel in self.sentinels:
            with sentinel.connect() as client:
                client.execute_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", ms)

    def stop(self) -> None:
        """End all servers."""
        for server in (*self.sentinels, *self.servers):
            server.stop()

    def __enter__(self) -> SentinelServers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _sees_all(self, sentinel: RedisServer) -> bool:
        with sentinel.connect() as client:
            info: Any = client.execute_command("INFO", "sentinel")
        line = str(info)
        return f"slaves={len(self.servers) - 1},sentinels={len(self.sentinels)}" in line or (
            isinstance(info, dict)
            and info.get("master0", {}).get("slaves") == len(self.servers) - 1
            and info.get("master0", {}).get("sentinels") == len(self.sentinels)
        )
