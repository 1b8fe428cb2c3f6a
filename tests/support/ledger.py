"""Reads the ledgers of `owned_worker` and finds what must not be: overlaps, losses. Pure but for reading the file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.owned_worker import PAUSE_S

FOREVER_S = float("inf")


@dataclass
class Run:
    """One handling of one content; not done where its process was killed, or is still at it."""

    pid: int
    thread: str
    topic: str
    slot: int
    content: str
    epoch: int
    start_s: float
    end_s: float = FOREVER_S
    done: bool = False


@dataclass(frozen=True)
class Overlap:
    """Two handlings at once that must not be: of one content, or of one slot."""

    first: Run
    second: Run
    paused_s: float

    def __str__(self) -> str:
        first, second = self.first, self.second
        return (
            f"{first.topic}/{first.slot}: {first.content} in {first.pid} ({first.epoch}) {first.start_s:.3f}.."
            f"{first.end_s:.3f}, then {second.content} in {second.pid} ({second.epoch}) {second.start_s:.3f}.."
            f"{second.end_s:.3f}; paused {self.paused_s:.2f} s"
        )


@dataclass
class Story:
    """What a ledger tells.

    Attributes:
        runs: All handlings, by start.
        pauses: Process -> (from, to) in which it did not run.
    """

    runs: list[Run] = field(default_factory=list)
    pauses: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def handled(self) -> set[tuple[str, str]]:
        """(topic, content) of all that was handled to its end."""
        return {(run.topic, run.content) for run in self.runs if run.done}

    @property
    def duplicates(self) -> int:
        """How many handlings came on top of the first of a content."""
        return sum(number - 1 for number in Counter((run.topic, run.content) for run in self.runs).values())

    def paused_s(self, run: Run) -> float:
        """The longest pause of its process that touches a run."""
        return max(
            (to - start for start, to in self.pauses[run.pid] if start < run.end_s and to > run.start_s), default=0.0
        )

    def overlaps(self, by: Callable[[Run], object]) -> list[Overlap]:
        """Return the runs that began before an earlier one of the same `by` had ended."""
        found: list[Overlap] = []
        last: dict[object, Run] = {}
        for run in self.runs:
            before = last.get(by(run))
            if before is not None and run.start_s < before.end_s:
                found.append(Overlap(before, run, self.paused_s(before)))
            if before is None or run.end_s > before.end_s:
                last[by(run)] = run
        return found

    def content_overlaps(self) -> list[Overlap]:
        return self.overlaps(lambda run: (run.topic, run.content))

    def slot_overlaps(self) -> list[Overlap]:
        return self.overlaps(lambda run: (run.topic, run.slot))

    def late(self, limit_s: float) -> list[tuple[Run, bool]]:
        """Return the runs that ended after a pause longer than `limit_s`, and whether their outcome was refused.

        It was refused if the content was handled again: an outcome that had been accepted would have ended it.
        """
        epochs: dict[tuple[str, str], set[int]] = defaultdict(set)
        for run in self.runs:
            epochs[run.topic, run.content].add(run.epoch)
        paused = [run for run in self.runs if self._woke_in(run, limit_s)]
        return [(run, max(epochs[run.topic, run.content]) > run.epoch) for run in paused]

    def _woke_in(self, run: Run, limit_s: float) -> bool:
        """Tell whether a run began before such a pause and ended after it; pauses are noticed a little late."""
        return any(
            to - start > limit_s and run.start_s < start + 1.0 and (start + to) / 2 < run.end_s and run.done
            for start, to in self.pauses[run.pid]
        )

    def epochs_fall(self) -> list[Run]:
        """Return the runs that began in a slot after one of a newer epoch: what fencing must not let pass."""
        newest: dict[tuple[str, int], int] = {}
        found: list[Run] = []
        for run in self.runs:
            if run.epoch < newest.get((run.topic, run.slot), 0):
                found.append(run)
            newest[run.topic, run.slot] = max(run.epoch, newest.get((run.topic, run.slot), 0))
        return found


def read_ledger(path: Path, killed: Mapping[int, float] | None = None) -> Story:
    """Read a ledger.

    Args:
        path: The file.
        killed: Process -> when it was killed: what it was at ended there.
    """
    return tell(path.read_text().splitlines(), killed or {})


def tell(lines: Iterable[str], killed: Mapping[int, float]) -> Story:
    """Make a story of the lines of a ledger."""
    story = Story()
    running: dict[tuple[int, str], Run] = {}
    for line in lines:
        kind, time_s, pid, *words = line.split()
        at_s, process = float(time_s), int(pid)
        if kind == "start":
            thread, topic, slot, content, epoch = words
            run = Run(process, thread, topic, int(slot), content, int(epoch), at_s)
            assert (process, thread) not in running, f"a thread does two things at once: {line}"
            running[process, thread] = run
            story.runs.append(run)
        elif kind == "end":
            run = running.pop((process, words[0]))
            run.end_s, run.done = at_s, True
        elif kind == "pause":
            assert float(words[0]) > PAUSE_S
            story.pauses[process].append((at_s - float(words[0]), at_s))
    for run in running.values():
        run.end_s = killed.get(run.pid, FOREVER_S)
    story.runs.sort(key=lambda run: run.start_s)
    return story
