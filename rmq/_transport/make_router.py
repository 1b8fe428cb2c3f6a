"""What is behind a URL: one server, a master that Sentinels watch, or a Redis Cluster."""

from __future__ import annotations

from rmq._io.backend import Blocking
from rmq._transport.cluster import ClusterRouter
from rmq._transport.durability import Durability
from rmq._transport.node import Node, NodeFactory
from rmq._transport.router import Router
from rmq._transport.sentinel import SentinelRouter
from rmq._transport.standalone import StandaloneRouter
from rmq._transport.urls import RedisUrl, Topology

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
