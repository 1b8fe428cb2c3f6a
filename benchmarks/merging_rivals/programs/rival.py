"""What every rival's Python program does alike; the standard library only, for it runs in the rivals' environments.

`<program> send` reads sends as lines of JSON, `{"key", "number", "value"}`, and answers each by a line as soon as the
rival has answered: `{"key", "number", "error"}`. `<program> work` handles until it is killed. Both read the case from
the variable RIVAL. A handler appends to a ledger outside Redis; a line that is written survives `kill -9`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Item = tuple[int, int]
"""Number of a send within its key, and its value."""


class FailedOnceError(Exception):
    """The handler's first try of a key, where the case wants it to fail."""


@dataclass(frozen=True)
class Case:
    """What the driver asks for; the fields of RIVAL.

    Attributes:
        url: Redis.
        variant: Which way of using the rival.
        kind: Which reducer the work wants, where there is a choice: newest, sum or all.
        ledger: File that handlers append to.
        failed: Folder with a file for each key that has failed.
        quiet_ms: A key's window: so long after its last send it is due.
        max_wait_ms: So long after its first send it is due at the latest, where a rival has such a bound.
        hold_ms: How long a handler takes.
        fail_once: Whether the first try of each key fails.
        retry_ms: Time between tries.
        concurrency: Handlers at a time.
    """

    url: str
    variant: str
    kind: str
    ledger: str
    failed: str
    quiet_ms: int
    max_wait_ms: int
    hold_ms: int
    fail_once: bool
    retry_ms: int
    concurrency: int


def case() -> Case:
    """Return the case that this process is for."""
    return Case(**json.loads(os.environ["RIVAL"]))


class Run:
    """One call of a handler, in the ledger.

    Args:
        asked: The case.
        key: Whose sends these are.
        items: Them, in the order in which they came.
        count: How many sends the delivery says that it stands for, where it carries no items.
        total: The sum that it carries then.
    """

    def __init__(
        self, asked: Case, key: str, items: Sequence[Item] | None, count: int | None = None, total: int | None = None
    ) -> None:
        self._case = asked
        self._name = uuid.uuid4().hex
        self._key = key
        found = None if items is None else [list(item) for item in items]
        self._write("start", items=found, count=count, total=total)

    def end(self) -> None:
        """Fail, if it is this key's turn to; else be done.

        Raises:
            FailedOnceError: It failed.
        """
        if self._case.fail_once and self._first():
            self._write("failed")
            raise FailedOnceError(self._key)
        self._write("done")

    def _first(self) -> bool:
        try:
            (Path(self._case.failed) / self._key).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _write(self, what: str, **more: Any) -> None:
        line = {"what": what, "run": self._name, "key": self._key, "at": time.time() * 1000, **more}
        file = os.open(self._case.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, (json.dumps(line) + "\n").encode())
        os.close(file)


def handle(
    asked: Case, key: str, items: Sequence[Item] | None, count: int | None = None, total: int | None = None
) -> None:
    """Handle a delivery: it takes its time, and fails if it should.

    Raises:
        FailedOnceError: It failed.
    """
    run = Run(asked, key, items, count, total)
    time.sleep(asked.hold_ms / 1000)
    run.end()


def answer(key: str, number: int, error: str | None = None) -> None:
    """Tell the driver what became of a send."""
    print(json.dumps({"key": key, "number": number, "error": error}), flush=True)


def obey(send: Callable[[str, int, int], None], work: Callable[[], None]) -> None:
    """Do what the command line says. A send that raises was refused."""
    if sys.argv[1] == "work":
        work()
        return
    for line in sys.stdin:
        asked = json.loads(line)
        key, number = asked["key"], asked["number"]
        try:
            send(key, number, asked["value"])
        except Exception as error:
            answer(key, number, type(error).__name__)
        else:
            answer(key, number)
