"""The five works: which sends there are, what each waits for, how long a handler takes, and what goes wrong meanwhile.

They are the same for every system, random by a fixed seed. A key's sends are numbered from 1; the newest one has the
largest number. A key's window is one second, three at most where a system has such a bound.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SEED = 13
SETTINGS = {"quiet_ms": 1_000, "max_wait_ms": 3_000, "retry_ms": 2_000, "concurrency": 50}
"""A key's window and its longest one, the time between tries, and handlers at a time."""

BEGIN, STARTED, FAILED = "begin", "start", "failed"


@dataclass(frozen=True, slots=True)
class Send:
    """One send to come.

    Attributes:
        key: Whose it is.
        number: Which one of its key, from 1.
        value: What it carries.
        after: What it waits for: the beginning, or its key's first line in the ledger that says `start` or `failed`.
        offset_s: How long after that.
    """

    key: str
    number: int
    value: int
    after: str
    offset_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """A work.

    Attributes:
        name: As in results.
        title: As in tables.
        kind: What shall become of a key's sends: the newest one counts, their sum does, or all do.
        sends: Them, each key's in order.
        hold_ms: How long a handler takes.
        fail_once: Whether the first try of each key fails.
        kill_at_s: When the worker is killed, with `kill -9`, in the middle of a handler; another one starts at once.
    """

    name: str
    title: str
    kind: str
    sends: tuple[Send, ...]
    hold_ms: int
    fail_once: bool = False
    kill_at_s: float | None = None


def works(number: int, keys: int) -> tuple[Work, ...]:
    """Return all works; the first two have so many sends over so many keys, the others are of their own size."""
    return (
        Work("newest", "The newest value of each key", "newest", _stream(number, keys, 5.0, signs=False), 20),
        Work("sum", "The sum of each key", "sum", _stream(number, keys, 5.0, signs=True), 20),
        Work(
            "running", "Sends while the key is being handled", "all", _script(20, ((STARTED, (0.3, 0.6, 0.9)),)), 3_000
        ),
        Work(
            "failing",
            "A handler that fails once, and sends meanwhile",
            "all",
            _script(20, ((STARTED, (0.3, 0.6)), (FAILED, (0.3, 0.6)))),
            1_000,
            fail_once=True,
        ),
        Work("killed", "A worker killed by kill -9", "all", _stream(600, 60, 6.0, signs=False), 300, kill_at_s=3.0),
    )


def _stream(number: int, keys: int, seconds: float, *, signs: bool) -> tuple[Send, ...]:
    """Spread sends over keys and seconds by chance; values are +1 and -1, or a send's own number."""
    chance = random.Random(SEED)
    counted: dict[str, int] = {}
    made: list[Send] = []
    for offset_s in sorted(chance.uniform(0, seconds) for _ in range(number)):
        key = f"key{chance.randrange(keys):04d}"
        counted[key] = counted.get(key, 0) + 1
        value = chance.choice((1, 1, 1, -1)) if signs else counted[key]
        made.append(Send(key, counted[key], value, BEGIN, offset_s))
    return tuple(made)


def _script(keys: int, steps: Sequence[tuple[str, tuple[float, ...]]]) -> tuple[Send, ...]:
    """Send to each key once, and then so long after each of these lines of the ledger."""
    made: list[Send] = []
    for index in range(keys):
        key = f"key{index:04d}"
        planned = [(BEGIN, 0.05 * index), *((after, offset_s) for after, offsets in steps for offset_s in offsets)]
        made.extend(Send(key, number, number, *step) for number, step in enumerate(planned, 1))
    return tuple(made)
