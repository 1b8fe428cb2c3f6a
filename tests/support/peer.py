"""A console of one version of RMQ, for tests of several versions: evaluates Python, and prints what comes of it.

    python -I tests/support/peer.py FOLDER URL

FOLDER has the version, as a checkout has it. A line of input is a JSON text, an expression or statements; a line of
output is `{"value": repr}` or `{"error": text}`. It uses public names alone, which all versions have.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, sys.argv[1])

from rmq import *  # noqa: F403 - what is evaluated needs any of them
from rmq import Consumer, Delivery, RmqClient, Topic

client = RmqClient(sys.argv[2])
t: Topic = None  # pyright: ignore[reportAssignmentType] - each story assigns it
held: dict[str, Delivery] = {}
consumers: dict[Any, Consumer] = {}


def send(*messages: Any, **options: Any) -> tuple[int, int]:
    """Send to the story's topic; return how many were new, and how many merged."""
    result = client.producer(t).send_many(messages, **options)
    return result.new, result.merged


def take(number: int, **options: Any) -> list[tuple[Any, ...]]:
    """Claim exactly so many messages: content, value and attempt. They stay in `held`."""
    key = tuple(sorted(options.items()))
    consumer = consumers.get(key) or consumers.setdefault(key, client.consumer(t, **options))
    taken: list[Delivery] = []
    end_s = time.monotonic() + 30
    while len(taken) < number and time.monotonic() < end_s:
        taken += consumer.poll(number - len(taken), 1.0)
    held.update({each.text: each for each in taken})
    return [(each.text, each.value, each.attempt) for each in taken]


def dead(group: str | None = None) -> list[tuple[Any, ...]]:
    """Return what is dead: content, value, type of the error, attempts."""
    letters = client.dead(t) if group is None else client.stream(t).dead(group)
    return sorted((each.text, each.value, each.error_type, each.attempts) for each in letters.list())


def counts() -> tuple[int, int, int, int, int]:
    """Return how many messages are in the backlog, in flight, waiting and dead, and how many are unaccounted for."""
    stats = client.inspect(t).stats()
    return stats.backlog, stats.in_flight, stats.waiting, stats.dead, stats.unaccounted


def wait(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end_s = time.monotonic() + 50
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError("it does not hold after 50 s")
        time.sleep(0.02)


def _answer(source: str) -> dict[str, str]:
    try:
        try:
            code = compile(source, "peer", "eval")
        except SyntaxError:
            exec(compile(source, "peer", "exec"), globals())
            return {"value": "None"}
        return {"value": repr(eval(code, globals()))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)
    client.close()


if __name__ == "__main__":
    main()
