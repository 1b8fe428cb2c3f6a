"""BullMQ for Node, where node and npm are there; the adapter itself is bullmq_node_peer.mjs."""

from __future__ import annotations

from adapter import Peer

PEER = Peer(
    "BullMQ (Node)",
    ("bullmq",),
    (("LLEN", "bull:peers:wait"), ("LLEN", "bull:peers:active")),
    {"1": "concurrency 1", "50": "concurrency 50"},
    "addBulk, 500 at a time, removeOnComplete",
)
