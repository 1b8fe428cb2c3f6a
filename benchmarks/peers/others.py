"""Peers in other languages. Their adapters obey the command line of adapter.py; with each stands what it needs."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.peers.adapter import Peer

_BULLMQ = Peer(
    "BullMQ (Node)",
    ("bullmq",),
    (("LLEN", "bull:peers:wait"), ("LLEN", "bull:peers:active"), ("ZCARD", "bull:peers:delayed")),
    {"bulk": "addBulk, 500 at a time, removeOnComplete", "tasks": "add, 100 promises, removeOnComplete"},
    {"1": "concurrency 1", "50": "concurrency 50"},
    "node/bullmq.mjs",
    times=10,
)
PEERS = {
    "bullmq": _BULLMQ,
    "bullmq_delayed": replace(_BULLMQ, name="BullMQ (Node), delay", delayed=True),
    "asynq": Peer(
        "asynq (Go)",
        ("github.com/hibiken/asynq",),
        (("LLEN", "asynq:{default}:pending"), ("LLEN", "asynq:{default}:active")),
        {"8": "Enqueue, 8 goroutines", "100": "Enqueue, 100 goroutines"},
        {"10": "Concurrency 10", "100": "Concurrency 100"},
        "asynq/main.go",
        times=10,
    ),
    "redisson": Peer(
        "Redisson (Java), RDelayedQueue",
        ("redisson",),
        (("LLEN", "redisson_delay_queue:{peers}"), ("LLEN", "peers")),
        {"8": "offer, 8 threads", "100": "offer, 100 threads"},
        {"batch": "poll(500)", "8": "take, 8 threads"},
        "redisson/Peer.java",
        times=10,
        delayed=True,
    ),
}
