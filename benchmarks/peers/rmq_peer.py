"""RMQ itself, measured as the others are."""

from __future__ import annotations

import signal
import threading
from typing import Any

from adapter import Peer, content, main

PEER = Peer(
    "RMQ",
    (),
    (("ZCARD", "peers_0"), ("ZCARD", "prepare{peers_0}")),
    {"batch": "listener(batch=500)", "single": "listener, one delivery a call"},
    "send_many",
)


def _topic() -> Any:
    from rmq import Topic, TopicType

    return Topic("peers", TopicType.PRIORITY, slots=1)


def enqueue(url: str, number: int) -> None:
    """Send in one stream."""
    from rmq import PriorityMessage, RmqClient

    global _client
    if _client is None:
        _client = RmqClient(url)
    _client.producer(_topic()).send_many(PriorityMessage(content(index), 1_000) for index in range(number))


_client: Any = None


def work(url: str, variant: str) -> None:
    """Listen until SIGTERM."""
    from rmq import RmqClient

    client = RmqClient(url)
    client.listener(_topic(), batch=500 if variant == "batch" else None)(lambda delivery: None)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    client.start()
    ended.wait()
    client.close()


if __name__ == "__main__":
    main(enqueue, work)
