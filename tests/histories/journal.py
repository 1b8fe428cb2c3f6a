"""What happened in a history, one line an event: written by several processes, read by the judge."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOREVER_S = float("inf")


@dataclass(frozen=True)
class Send:
    """One send of one content.

    Attributes:
        topic: Name of the topic.
        content: Its content.
        sent_id: What its body names it by.
        begun_s: When the send began, on the clock that all processes of this machine share.
        state: `accepted`, `unknown` (the reply was lost) or `refused`.
        due_ms: When it makes its content due, if an earlier send of that content may do so before it; else 0.
        ended_s: When the sender knew the state.
    """

    topic: str
    content: str
    sent_id: str
    begun_s: float
    state: str
    due_ms: int = 0
    ended_s: float = FOREVER_S


@dataclass
class Run:
    """One handling of one delivery; `end_s` is infinite and `outcome` empty where nobody wrote down its end."""

    run: str
    pid: int
    topic: str
    slot: int
    content: str
    due_ms: int
    start_s: float
    start_wall_ms: int
    end_s: float = FOREVER_S
    outcome: str = ""


@dataclass(frozen=True)
class Outage:
    """A time in which a process or a server did not run.

    Attributes:
        who: `pid 123` or `node 0`.
        from_s: Its beginning.
        to_s: Its end; infinite for a process that was killed.
    """

    who: str
    from_s: float
    to_s: float


@dataclass
class History:
    """All events.

    Attributes:
        sends: All sends.
        runs: All handlings, in the order of their beginning.
        outages: All outages.
        holders: Topic and slot -> when which node began to hold it, oldest first.
    """

    sends: list[Send] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    holders: dict[tuple[str, int], list[tuple[float, str]]] = field(default_factory=dict)


class Journal:
    """Appends events to a file. Each event is one write, so that a killed process leaves no half of one."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, kind: str, *values: object) -> None:
        """Append an event."""
        os.write(self._file, ("\t".join((kind, *map(str, values))) + "\n").encode())

    def begin(self, run: str, topic: str, slot: int, content: str, due_ms: int) -> None:
        """Note that a handler begins."""
        self.write("begin", now_s(), os.getpid(), run, topic, slot, content, due_ms, int(time.time() * 1000))

    def end(self, run: str, outcome: str) -> None:
        """Note that a handler ends, before its outcome is on its way."""
        self.write("end", now_s(), run, outcome)


def now_s() -> float:
    """Return the time on the clock that all processes of this machine share."""
    return time.monotonic()


def read(path: Path) -> History:
    """Read a journal."""
    history = History()
    runs: dict[str, Run] = {}
    for kind, values in _lines(path):
        if kind == "send":
            topic, content, sent_id, begun_s, state, *timed = values
            due_ms, ended_s = timed or (0, FOREVER_S)
            sent = Send(topic, content, sent_id, float(begun_s), state, int(due_ms), float(ended_s))
            history.sends.append(sent)
        elif kind == "begin":
            at_s, pid, run, topic, slot, content, due_ms, wall_ms = values
            started = Run(run, int(pid), topic, int(slot), content, int(due_ms), float(at_s), int(wall_ms))
            runs[run] = started
        elif kind == "end":
            at_s, run, outcome = values
            runs[run].end_s, runs[run].outcome = float(at_s), outcome
        elif kind == "outage":
            who, from_s, to_s = values
            history.outages.append(Outage(who, float(from_s), float(to_s)))
        elif kind == "holder":
            at_s, topic, slot, node = values
            history.holders.setdefault((topic, int(slot)), []).append((float(at_s), node))
    history.runs = sorted(runs.values(), key=lambda each: each.start_s)
    return history


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    for line in path.read_text("utf-8").splitlines():
        kind, *values = line.split("\t")
        yield kind, values
