"""What is behind a URL: one server, a master that Sentinels watch, or a Redis Cluster."""

from __future__ import annotations

from rmq.blocking import Blocking
from rmq.durability import Durability
from rmq.topologies.cluster import ClusterRouter
from rmq.topologies.node import Node, NodeFactory
from rmq.topologies.router import Router
from rmq.topologies.sentinel import SentinelRouter
from rmq.topologies.standalone import StandaloneRouter
from rmq.urls import RedisUrl, Topology

__all__ = ["Node", "Router", "make_router"]


def make_router(url: RedisUrl, timeout_s: float, durability: Durability, blocking: Blocking) -> Router:
    """Return the router for a URL; it connects at its first use.

    Args:
        url: Where Redis is.
        timeout_s: How long to wait for a connection, and for a reply.
        durability: What servers must be able to do.
        blocking: How to wait.

    Raises:
        InvalidUrlError: redis-py can't use the URL.
    """
    nodes = NodeFactory(url, timeout_s, durability, blocking)
    if url.topology is Topology.CLUSTER:
        return ClusterRouter(url, nodes)
    if url.topology is Topology.SENTINEL:
        return SentinelRouter(url, nodes)
    return StandaloneRouter(nodes)
