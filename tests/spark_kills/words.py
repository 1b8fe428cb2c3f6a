"""The log that the programs of a kind write and the judge reads: a line of JSON for each word."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Word:
    """One line of the log.

    Attributes:
        life: Which run of the program wrote it, from 0.
        at_s: When, epoch seconds.
        word: What happened: `ready`, `ran`, `written` and others.
        number: Number of a batch or a job; -1 for none.
        rows: The contents of the batch, where the word has them.
    """

    life: int
    at_s: float
    word: str
    number: int
    rows: tuple[str, ...] = ()


class Log:
    """Appends words to a file. Each is one write, so that a killed process leaves no half of one.

    Args:
        path: The file.
        life: Which run of the program writes.
    """

    def __init__(self, path: Path, life: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._life = life

    def say(self, word: str, number: int = -1, rows: Sequence[str] = ()) -> None:
        """Append a word."""
        os.write(self._file, (json.dumps([self._life, time.time(), word, number, list(rows)]) + "\n").encode())


def words(path: Path, life: int | None = None) -> Iterator[Word]:
    """Yield the words of a log, or those of one run, oldest first; none where there is no log yet."""
    start = "[" if life is None else f"[{life}, "
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            if line.startswith(start):
                found, at_s, word, number, rows = json.loads(line)
                yield Word(found, at_s, word, number, tuple(rows))
