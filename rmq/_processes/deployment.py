"""What a whole RMQ cluster consists of: the one source for docker-compose.yml and for `rmq cluster up`. Pure.

Three Redis masters with a replica each, three ZooKeepers, a demo producer and two workers. A test holds
docker-compose.yml against this module, since YAML can't import it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmq._transport.urls import Address

MASTERS = ("redis-1", "redis-2", "redis-3")
REPLICAS = ("redis-4", "redis-5", "redis-6")
ZOOKEEPERS = ("zookeeper-1", "zookeeper-2", "zookeeper-3")
WORKERS = 2

REDIS_SETTINGS = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "5000",
    # a shard that is down must not stop the others
    "cluster-require-full-coverage": "no",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    # RMQ refuses policies that drop whole slots
    "maxmemory-policy": "noeviction",
}
"""Settings of every Redis, beside where it listens and keeps its data."""

ZOOKEEPER_TICK_MS = 2_000
ZOOKEEPER_SETTINGS = {
    "initLimit": "10",
    "syncLimit": "5",
    # hours; by default ZooKeeper keeps all snapshots and logs for ever
    "autopurge.purgeInterval": "1",
    "autopurge.snapRetainCount": "3",
}
"""Settings of every ZooKeeper, beside where it listens, its data and the list of all."""

WORKER_COMMAND = ("rmq", "worker", "rmq.demo.cluster:client")
PRODUCER_COMMAND = ("python", "-m", "rmq.demo.cluster")


def redis_arguments() -> list[str]:
    """Return what follows `redis-server` on the command line, beside port and folder."""
    return [part for name, value in REDIS_SETTINGS.items() for part in (f"--{name}", value)]


def environment(redis: Iterable[Address], zookeepers: Iterable[Address]) -> dict[str, str]:
    """Return the environment of workers and producer."""
    return {
        "RMQ_URL": f"redis+cluster://{','.join(map(str, redis))}",
        "RMQ_ZOOKEEPER": ",".join(map(str, zookeepers)),
    }
