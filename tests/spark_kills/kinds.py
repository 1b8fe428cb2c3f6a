"""What every kind has: work for its program, others beside it, and a judgement."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]

from rmq import Retention, RmqClient, Topic
from tests.spark_kills.actors import Sender
from tests.spark_kills.judging import Beside, Verdict, changed
from tests.spark_kills.lives import Kill
from tests.spark_kills.words import Word, words
from tests.support.waiting import wait_until

SETTLED_S = 120.0
WORK = 4_500
"""Messages for a run, beside those that somebody sends all the time."""

BATCH = 1_500
LAST_BATCH = 20_000
PER_SECOND = 20
NOBODY = Beside({}, (), 0.0)


KEEP = Retention(max_length=None)


def add(verdict: Verdict, other: Verdict) -> None:
    """Add what a second judgement has shown."""
    verdict.rows += other.rows
    verdict.excused += other.excused
    for name in ("lost", "twice", "changed", "accounts"):
        getattr(verdict, name).extend(getattr(other, name))


class Kind(ABC):
    """One thing that is killed.

    Args:
        client: Its topics' Redis.
        folder: For all files.
        chance: Decides.

    Attributes:
        program: Name of its program.
    """

    program = ""

    def __init__(self, client: RmqClient, folder: Path, chance: random.Random) -> None:
        self.client, self.folder, self.chance = client, folder, chance
        self.batch = BATCH
        self._kept: dict[int, list[str]] = {}

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Let others work on the topics."""
        yield

    def make_work(self, life: int) -> None:  # noqa: B027 - not all kinds have any
        """Make work for a run that is about to start."""

    @abstractmethod
    def told(self, life: int) -> dict[str, Any]:
        """Return what the program of a run needs to know."""

    def after(self) -> None:  # noqa: B027 - not all kinds have any
        """Look at what a killed run has left."""

    def rest(self, seconds: float) -> None:  # noqa: B027 - not all kinds have any
        """Get ready for a rest before the next run."""

    def calm(self) -> None:
        """Let nobody send or compete any more: the last run comes."""
        self.batch = LAST_BATCH

    def is_settled(self) -> bool:
        """Return whether the last run has left nothing."""
        return True

    @abstractmethod
    def judge(self, kills: Collection[Kill]) -> Verdict:
        """Judge, after a last run that has ended by itself."""

    def runs(self, word: str) -> list[Word]:
        """Return when batches did something."""
        return [each for each in words(self.folder / "log") if each.word == word]

    def files(self) -> dict[int, list[str]]:
        """Return the rows of the files of each batch."""
        return {_number(path): _contents(path) for path in self.folder.glob("files/batch=*")}

    def keep_newest(self) -> None:
        """Keep the rows of the newest batch whose files are whole."""
        numbers = [_number(path.parent) for path in self.folder.glob("files/batch=*/_SUCCESS")]
        if numbers and (newest := max(numbers)) not in self._kept:
            self._kept[newest] = _contents(self.folder / f"files/batch={newest}")

    def changed_files(self, beside: Beside) -> list[str]:
        """Return how the files of batches differ from what was kept."""
        final = self.files()
        pairs = [(number, sorted(rows), sorted(final.get(number, ()))) for number, rows in self._kept.items()]
        return [text for number, rows, now in pairs for text in changed(number, rows, now, beside)]


class Fed(Kind):
    """A kind whose topics somebody sends to all the time. `sender` is made with the topics."""

    sender: Sender

    def make_work(self, life: int) -> None:
        """Send three batches at once."""
        self.sender.top_up(self.client, WORK)

    def calm(self) -> None:
        """Stop the sender, too."""
        super().calm()
        self.sender.stop()


def _number(path: Path) -> int:
    return int(path.name.removeprefix("batch="))


def _contents(folder: Path) -> list[str]:
    return [text for path in folder.glob("*.parquet") for text in parquet.read_table(path)["content"].to_pylist()]


def entries(client: RmqClient, topic: Topic) -> Counter[str]:
    return Counter(entry.content.decode() for entry in client.stream(topic).range())


def wait_taken(client: RmqClient, topic: Topic) -> None:
    """Wait until a topic is empty."""

    def empty() -> bool:
        stats = client.inspect(topic).stats()
        return stats.backlog + stats.in_flight + stats.waiting == 0

    wait_until(empty, SETTLED_S)


def differences(what: str, expected: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    names = expected.keys() | found.keys()
    return [
        f"{what} of {name}: {found.get(name, 0)} instead of {expected.get(name, 0)}"
        for name in sorted(names)
        if found.get(name, 0) != expected.get(name, 0)
    ]
