"""The scenario in which a well-known delayed queue lost values: two timers that end together, and late replies."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta

from rmq.errors import RedisUnavailableError
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.sides import Side, Threads
from tests.support.waiting import wait_until


class Played:
    """What came of the scenario."""

    def __init__(self, offered: Counter[bytes], taken: dict[bytes, float], due: dict[bytes, float], again: int) -> None:
        self.lost = len(offered - Counter(taken.keys()))
        self.again = again
        """How many takes brought what had been taken before."""
        late_s = sorted(taken[value] - due[value] for value in taken) or [0.0]
        self.half_within_s = late_s[len(late_s) // 2]
        self.most_within_s = late_s[len(late_s) * 99 // 100]
        """Ninety-nine of a hundred values."""
        self.latest_s = late_s[-1]


def play(
    server: RedisServer,
    names: list[str],
    count: int,
    delays_s: tuple[float, float],
    reply_s: float = 0.05,
    side: Side | None = None,
    every_s: float = 0.0,
) -> Played:
    """Offer `count` values to each queue; one consumer polls with 1 ms, one with timeouts equal to the delays.

    Each reply to a consumer is up to `reply_s` late. `every_s` is the time between two offers to a queue.
    """
    side = side or Threads()
    choose = random.Random(7)
    offered: Counter[bytes] = Counter()
    due: dict[bytes, float] = {}
    taken: dict[bytes, float] = {}
    again: list[bytes] = []
    lock, ended = threading.Lock(), threading.Event()
    with Proxy(server.port) as proxy, side.client(server.url) as sender, side.client(proxy.url, timeout_s=3.0) as taker:
        proxy.delay_replies(0.0, reply_s, seed=3, command="EVALSHA")

        def consume(name: str, timeouts_s: tuple[float, ...]) -> None:
            with side.queue(taker, name, lease=timedelta(seconds=10)) as queue:
                while not ended.is_set():
                    for timeout_s in timeouts_s:
                        with suppress(RedisUnavailableError):
                            value = queue.poll(timeout_s)
                            if value is not None:
                                with lock:
                                    again.extend([value] if value in taken else [])
                                    taken.setdefault(value, time.monotonic())

        steps = tuple(delays_s[0] + (delays_s[1] - delays_s[0]) * step / 4 for step in range(5))
        workers = [
            threading.Thread(target=consume, args=(name, timeouts)) for name in names for timeouts in ((0.001,), steps)
        ]
        queues = [side.queue(sender, name, lease=timedelta(seconds=10)) for name in names]
        for worker in workers:
            worker.start()
        began_s = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began_s + number * every_s - time.monotonic()))
            for place, queue in enumerate(queues):
                value, delay_s = f"{place}:{number}".encode(), choose.choice(steps)
                queue.offer(value, timedelta(seconds=delay_s))
                offered[value] += 1
                due[value] = time.monotonic() + delay_s
        try:
            wait_until(lambda: len(taken) >= len(offered), delays_s[1] + 30 + count / 50)
        finally:
            ended.set()
            for worker in workers:
                worker.join(20)
            for queue in queues:
                queue.close()
    return Played(offered, taken, due, len(again))
