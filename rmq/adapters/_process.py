"""One client per process, created at first use, since web servers load an application and then fork."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmq import Listener, Producer, RmqClient, Topic
from rmq.client import DRAIN_S
from rmq.errors import RmqError

OPTIONS: Mapping[str, tuple[type[int | float] | tuple[str, ...], Any, str]] = {
    "threads": (int, None, "number of threads per listener"),
    "handlers": (int, None, "maximum number of handlers in parallel over all listeners"),
    "drain": (float, DRAIN_S, "seconds to wait for running handlers"),
    "idle": (("normal", "economy"), "normal", "economy: fewer Redis commands while idle"),
}
"""Options of a worker command -> type or choices, default, and help; `run_worker` checks their ranges."""

HANG_HELP = "exit with code 75 if a handler hangs"
"""Help of the switch `--exit-when-hung`, which a worker command also has."""


def run_worker(client: RmqClient, listeners: Sequence[Listener], drain: float, **options: Any) -> None:
    """Run handlers until SIGTERM or SIGINT; `options` are those of `RmqClient.run`.

    Raises:
        RmqError: As `RmqClient.run`, or handlers were still running `drain` seconds after the signal.
    """
    client.add(*listeners)
    if unfinished := client.run(drain, **options):
        raise RmqError(
            f"number of handlers still running after {drain:g} s: {len(unfinished)}; their messages are redelivered "
            "when their leases expire"
        )


class ProcessClient:
    """Creates a client and producers for the present process, and closes them at its exit.

    Args:
        make: Function that creates a client.
    """

    def __init__(self, make: Callable[[], RmqClient]) -> None:
        self._make = make
        self._forget()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Reset the state after a fork: no client survives it, and the lock may be held by a thread that is gone."""
        self._lock = threading.Lock()
        self._client: RmqClient | None = None
        self._producers: dict[str, Producer] = {}

    def get(self) -> RmqClient:
        """Return the client of this process, creating it at first use."""
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client

    def producer(self, topic: Topic) -> Producer:
        """Return the topic's producer, shared by all threads."""
        client = self.get()
        with self._lock:
            producer = self._producers.get(topic.name)
            if producer is None or self._client is not client:
                producer = self._producers[topic.name] = client.producer(topic)
            return producer

    def close(self) -> None:
        """Close the client; the next use creates another one."""
        with self._lock:
            client, self._client = self._client, None
            self._producers.clear()
        if client is not None:
            client.close()
