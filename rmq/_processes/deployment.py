"""The services of a complete RMQ cluster, the source for docker-compose.yml and `rmq cluster up`. Pure.

Three Redis masters with a replica each, three ZooKeeper servers, a demo producer and two workers. A test compares
docker-compose.yml with this module.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmq._servers.urls import Address

MASTERS = ("redis-1", "redis-2", "redis-3")
REPLICAS = ("redis-4", "redis-5", "redis-6")
ZOOKEEPERS = ("zookeeper-1", "zookeeper-2", "zookeeper-3")
WORKERS = 2

REDIS_SETTINGS = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "5000",
    # a shard that is down must not stop the other shards
    "cluster-require-full-coverage": "no",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    # RMQ refuses policies that evict keys: they would drop whole slots
    "maxmemory-policy": "noeviction",
}
"""Settings of every Redis, without port, address and folder."""

ZOOKEEPER_TICK_MS = 2_000
ZOOKEEPER_SETTINGS = {
    "initLimit": "10",
    "syncLimit": "5",
    # hours; by default ZooKeeper never deletes snapshots and logs
    "autopurge.purgeInterval": "1",
    "autopurge.snapRetainCount": "3",
}
"""Settings of every ZooKeeper, without address, folder and the list of servers."""

WORKER_COMMAND = ("rmq", "worker", "rmq.demo.cluster:client")
PRODUCER_COMMAND = ("python", "-m", "rmq.demo.cluster")


def redis_arguments() -> list[str]:
    """Return the arguments of `redis-server`, without port and folder."""
    return [part for name, value in REDIS_SETTINGS.items() for part in (f"--{name}", value)]


def environment(redis: Iterable[Address], zookeepers: Iterable[Address]) -> dict[str, str]:
    """Return the environment variables of workers and producer; without ZooKeeper, workers keep owners in Redis."""
    hosts = ",".join(map(str, zookeepers))
    url = {"RMQ_URL": f"redis+cluster://{','.join(map(str, redis))}"}
    return {**url, "RMQ_ZOOKEEPER": hosts} if hosts else url
