"""What a ledger says of a work: what arrived, what did not, what was old, what ran at once. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

Line = Mapping[str, Any]
Sends = Mapping[tuple[str, int], "Sent"]


@dataclass(frozen=True, slots=True)
class Sent:
    """A send that was tried.

    Attributes:
        value: What it carries.
        at_ms: When it was tried.
        error: Why it was refused; `None`: it was accepted.
    """

    value: int
    at_ms: float
    error: str | None = None


@dataclass(slots=True)
class Run:
    """A call of the handler.

    Attributes:
        key: Its key.
        start_ms: When it began.
        end_ms: When it ended, or was killed.
        done: Whether it ended well.
        items: Numbers and values of the sends that it got.
        count: How many sends it stands for, where it got no items.
        total: Their sum, then.
    """

    key: str
    start_ms: float
    end_ms: float
    done: bool
    items: list[tuple[int, int]] = field(default_factory=list)
    count: int | None = None
    total: int | None = None

    @property
    def newest(self) -> int:
        """The largest number that it got, 0 for none."""
        return max((number for number, _ in self.items), default=0)


def runs_of(lines: Sequence[Line], kills_ms: Sequence[float]) -> list[Run]:
    """Return the handler's calls; one without an end ended when the worker was killed, or lasts still."""
    found: dict[str, Run] = {}
    for line in lines:
        if line["what"] == "start":
            items = [(number, value) for number, value in line.get("items") or ()]
            end_ms = min((at_ms for at_ms in kills_ms if at_ms >= line["at"]), default=float("inf"))
            run = Run(line["key"], line["at"], end_ms, False, items, line.get("count"), line.get("total"))
            found[line["run"]] = run
        else:
            found[line["run"]].end_ms = line["at"]
            found[line["run"]].done = line["what"] == "done"
    return list(found.values())


def judge(sends: Sends, lines: Sequence[Line], kills_ms: Sequence[float] = ()) -> dict[str, Any]:
    """Return the figures of a work.

    `newest_missing` and `ended_old` count keys: the newest send never arrived; it did, but an older one was handled
    after it. `sum_wrong` counts keys, too, and `sum_off` adds up by how much.
    """
    runs = runs_of(lines, kills_ms)
    done = [run for run in runs if run.done]
    arrived = Counter((run.key, number) for run in done for number, _ in run.items)
    newest = {key: max(number for each, number in sends if each == key) for key, _ in sends}
    last = {run.key: run for run in sorted(done, key=lambda run: run.end_ms)}
    numbered = all(run.count is None for run in done)
    off, overlaps = _sums_off(sends, done), _overlaps(runs)
    return {
        "sent": len(sends),
        "refused": sum(sent.error is not None for sent in sends.values()),
        "deliveries": len(runs),
        "done": len(done),
        "arrived": len(arrived) if numbered else sum(run.count or len(run.items) for run in done),
        "twice": sum(times > 1 for times in arrived.values()) if numbered else None,
        "newest_missing": sum((key, number) not in arrived for key, number in newest.items()) if numbered else None,
        "newest_refused": sum(sends[each].error is not None and each not in arrived for each in newest.items()),
        "ended_old": sum(each in arrived and last[each[0]].newest < each[1] for each in newest.items()),
        "shuffled": sum(bool(run.items) and run.items[-1][0] != run.newest for run in done),
        "overlaps": sum(overlaps),
        "keys_overlapped": sum(pairs > 0 for pairs in overlaps),
        "sum_wrong": sum(difference != 0 for difference in off.values()),
        "sum_off": sum(abs(difference) for difference in off.values()),
        "longest_wait_s": _longest_wait_s(sends, done) if numbered else None,
    }


def _sums_off(sends: Sends, done: Sequence[Run]) -> dict[str, int]:
    """Return each key's arrived sum less its accepted one."""
    off: dict[str, int] = defaultdict(int)
    for (key, _), sent in sends.items():
        off[key] -= sent.value if sent.error is None else 0
    for run in done:
        off[run.key] += sum(value for _, value in run.items) if run.total is None else run.total
    return off


def _overlaps(runs: Sequence[Run]) -> list[int]:
    """Return for each key how many pairs of its runs lasted at the same time."""
    return [
        sum(max(one.start_ms, other.start_ms) < min(one.end_ms, other.end_ms) for one, other in combinations(its, 2))
        for its in _by_key(runs).values()
    ]


def _by_key(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.key].append(run)
    return found


def _longest_wait_s(sends: Sends, done: Sequence[Run]) -> float | None:
    """Return the longest time from a send to the beginning of a run that had it or a newer one of its key."""
    by_key, waits = _by_key(done), list[float]()
    for (key, number), sent in sends.items():
        if starts := [run.start_ms for run in by_key[key] if run.newest >= number]:
            waits.append(min(starts) - sent.at_ms)
    return round(max(waits) / 1000, 2) if waits else None
