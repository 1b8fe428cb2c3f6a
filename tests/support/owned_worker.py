"""A worker process of the ownership tests: owns slots through ZooKeeper and keeps a ledger outside Redis.

    python -m tests.support.owned_worker '{"name": "w0", "url": ..., "hosts": ..., "ledger": ..., "topics": [...]}'

Lines of the ledger, each written by one O_APPEND write, times of CLOCK_BOOTTIME in seconds:

    start TIME PID THREAD TOPIC SLOT CONTENT EPOCH
    end   TIME PID THREAD TOPIC SLOT CONTENT EPOCH
    ready TIME PID 0            it is about to join the cluster
    pause TIME PID SECONDS      the process noticed that it did not run for so long before TIME
    owns  TIME PID NUMBER       it owns so many slots now
    left  TIME PID 0            it has ended in order
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from rmq import Coordinator, Delivery, RedisOwners, RmqClient
from tests.support.core import monotonic_s

TICK_S = 0.02
PAUSE_S = 0.25
"""A process that misses so much time says so; a busy machine may take a little without a word."""


class Ledger:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, *words: object) -> None:
        line = " ".join(map(str, (kind, f"{monotonic_s():.6f}", os.getpid(), *words)))
        os.write(self._file, f"{line}\n".encode())


def watch_time(ledger: Ledger, count_owned: Callable[[], int]) -> None:
    """Note every stretch in which this process did not run, and every change in the number of its slots."""
    last_s, owned = monotonic_s(), -1
    while True:
        time.sleep(TICK_S)
        now_s = monotonic_s()
        if now_s - last_s > PAUSE_S:
            ledger.note("pause", f"{now_s - last_s:.6f}")
        last_s = now_s
        if (count := count_owned()) != owned:
            owned = count
            ledger.note("owns", owned)


def owned_by(client: RmqClient) -> int:
    """Return the number of slots from which a client's listeners may claim now."""
    follower = client._listeners._follower  # pyright: ignore[reportPrivateUsage]
    return 0 if follower is None else len(follower._coordinator.owned())  # pyright: ignore[reportPrivateUsage]


class Cut:
    """Cuts this process from Redis while a file exists, and from nothing else: what is no ZooKeeper server is Redis."""

    def __init__(self, path: str, zookeeper: str) -> None:
        self._path = path
        self._zookeeper = {int(host.rpartition(":")[2]) for host in zookeeper.split(",") if host}
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._connect = socket.socket.connect
        socket.socket.connect = lambda own, address: self._guarded(own, address)  # pyright: ignore
        threading.Thread(target=self._watch, daemon=True).start()

    def _guarded(self, own: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[1] not in self._zookeeper:
            if os.path.exists(self._path):
                raise ConnectionRefusedError("cut")
            self._sockets.add(own)
        self._connect(own, address)

    def _watch(self) -> None:
        while True:
            time.sleep(TICK_S)
            if os.path.exists(self._path):
                for each in list(self._sockets):
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(
        level="INFO",
        filename=options["log"],
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(threadName)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    ledger = Ledger(options["ledger"])
    Cut(options["cut"], options["hosts"])
    session_s, drain_s = options["session_s"], options.get("drain_s", 10.0)
    if options["hosts"]:
        chroot = options.get("chroot", "/rmq")
        coordinator = Coordinator(
            options["hosts"], options["name"], session_timeout_s=session_s, drain_timeout_s=drain_s, chroot=chroot
        )
        client = RmqClient(options["url"], zookeeper=coordinator)
    else:
        client = RmqClient(options["url"], owners=RedisOwners(session_s, options["name"], drain_timeout_s=drain_s))
    shortest_s, longest_s = (each / 1000 for each in options["handle_ms"])

    def handle(delivery: Delivery) -> None:
        token = delivery.fencing_token
        words = threading.current_thread().name, delivery.topic.name, delivery.slot, delivery.text, token
        ledger.note("start", *words)
        time.sleep(random.uniform(shortest_s, longest_s))
        ledger.note("end", *words)

    for name in options["topics"]:
        client.listener(client.topic(name), threads=options["threads"])(handle)
    threading.Thread(target=watch_time, args=(ledger, lambda: owned_by(client)), daemon=True).start()
    ledger.note("ready", 0)
    client.run(options.get("stop_s", 10.0))
    ledger.note("left", 0)


if __name__ == "__main__":
    main()
