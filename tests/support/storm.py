"""A Redis that forgets its scripts all the time, while others load them again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import redis

from tests.support.core import default_scripts


@contextlib.contextmanager
def script_storm(url: str, scripts: Sequence[str], pause_s: float = 0.002, loaders: int = 2) -> Iterator[None]:
    """Have the server of a URL forget all scripts every few ms, and some clients load these ones again, for a block."""
    stop = threading.Event()
    texts = [default_scripts()[name].text for name in scripts]

    def flush() -> None:
        with redis.Redis.from_url(url) as plain:
            while not stop.wait(pause_s):
                plain.execute_command("SCRIPT", "FLUSH")

    def load() -> None:
        with redis.Redis.from_url(url) as plain:
            while not stop.wait(pause_s / 4):
                for text in texts:
                    plain.execute_command("SCRIPT", "LOAD", text)

    threads = [threading.Thread(target=flush), *(threading.Thread(target=load) for _ in range(loaders))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
