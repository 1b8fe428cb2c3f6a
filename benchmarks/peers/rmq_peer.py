"""RMQ itself, measured as the others are: message by message from an iterable, handlers that get objects."""

from __future__ import annotations

import signal
import threading
from typing import Any

from adapter import Peer, content, main

SLOTS = 8
LEFT = tuple(("ZCARD", key) for slot in range(SLOTS) for key in (f"peers_{slot}", f"prepare{{peers_{slot}}}"))
PEER = Peer(
    "RMQ",
    (),
    LEFT,
    {"batch": "listener(batch=500)", "single": "listener, one delivery a call"},
    "send_many",
)


def jobs() -> Any:
    """Return the topic."""
    from rmq import Topic, TopicType

    return Topic("peers", TopicType.PRIORITY, slots=SLOTS)


_client: Any = None


def client_of(url: str) -> Any:
    """Return the client of this process, which is made once."""
    from rmq import RmqClient

    global _client
    if _client is None:
        _client = RmqClient(url)
    return _client


def enqueue(url: str, number: int) -> None:
    """Send in one stream."""
    from rmq import PriorityMessage

    client_of(url).producer(jobs()).send_many(PriorityMessage(content(index), 1_000) for index in range(number))


def run_listener(url: str, **settings: Any) -> None:
    """Run a listener whose handler does nothing, until SIGTERM."""
    client = client_of(url)
    client.listener(jobs(), **settings)(lambda delivery: None)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    client.start()
    ended.wait()
    client.close()


def work(url: str, variant: str) -> None:
    """Listen until SIGTERM."""
    run_listener(url, batch=500 if variant == "batch" else None)


if __name__ == "__main__":
    main(enqueue, work)
