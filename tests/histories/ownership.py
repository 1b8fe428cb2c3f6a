"""How long slots were without an owner that runs. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby

from tests.histories.story import Story

Slot = tuple[str, int]
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time in which a slot had no owner, without the times in which the keeper did not serve."""

    from_s: float
    to_s: float

    @property
    def length_s(self) -> float:
        return self.to_s - self.from_s


def unowned(story: Story) -> dict[Slot, Gap]:
    """Return (topic, slot) -> the longest gap while slots had to be owned.

    A process that is stopped or dead owns nothing, whatever it wrote down last. One that drains a slot still owns it.
    Nobody can own anything while the keeper of the owners, a ZooKeeper or a shard of Redis, has no leader: such a time
    ends one gap and begins another.
    """
    still = {who: _spans_of(story, who) for who in {each.who for each in story.troubles}}
    away = sorted(still.get("keeper", []))
    drained = _drained(story)
    found: dict[Slot, Gap] = {}
    for key, events in story.owners.items():
        spans = _owned(events, story.watch_s[1])
        for pid, span in drained[key]:
            spans[pid].append(span)
        pieces = _without([story.watch_s], sorted([*_minus_each(spans, still), *away]))
        if pieces:
            found[key] = max((Gap(*piece) for piece in pieces), key=lambda gap: gap.length_s)
    return found


def _drained(story: Story) -> dict[Slot, list[tuple[int, Span]]]:
    """Return for how long which process still handled a message of a slot that it was asked to give up.

    A process that gives up all slots at once, and later has some again, was not asked: it had lost ZooKeeper.
    """
    events = sorted((at_s, pid, owns, key) for key, of_slot in story.owners.items() for at_s, pid, owns in of_slot)
    last_s = {pid: at_s for at_s, pid, owns, _ in events if owns}
    runs: dict[tuple[Slot, int], list[Span]] = defaultdict(list)
    for run in story.runs:
        runs[(run.topic, run.slot), run.pid].append((run.start_s, run.end_s))
    holds: dict[int, set[Slot]] = defaultdict(set)
    found: dict[Slot, list[tuple[int, Span]]] = defaultdict(list)
    for (at_s, pid), together in groupby(events, key=lambda event: event[:2]):
        left: list[Slot] = []
        for _, _, owns, key in together:
            holds[pid].add(key) if owns else holds[pid].discard(key)
            left += [] if owns else [key]
        if holds[pid] or last_s[pid] <= at_s:
            for key in left:
                found[key] += [(pid, (at_s, end_s)) for start_s, end_s in runs[key, pid] if start_s <= at_s < end_s]
    return found


def _spans_of(story: Story, who: str) -> list[Span]:
    """Return when somebody did not run: a cut or a slow link does not count, since a process notices it."""
    stops = ("killed", "paused", "stood still", "without a leader")
    return [(each.from_s, each.to_s) for each in story.troubles if each.who == who and each.cause.endswith(stops)]


def _owned(events: list[tuple[float, int, bool]], end_s: float) -> defaultdict[int, list[Span]]:
    """Return process -> when it owned the slot, as it wrote down."""
    since: dict[int, float] = {}
    spans: defaultdict[int, list[Span]] = defaultdict(list)
    for at_s, pid, owns in events:
        if owns:
            since.setdefault(pid, at_s)
        elif pid in since:
            spans[pid].append((since.pop(pid), at_s))
    for pid, from_s in since.items():
        spans[pid].append((from_s, max(end_s, from_s)))
    return spans


def _minus_each(owned: dict[int, list[Span]], still: dict[str, list[Span]]) -> list[Span]:
    return [span for pid, spans in owned.items() for span in _without(spans, sorted(still.get(f"pid {pid}", [])))]


def _without(spans: list[Span], holes: list[Span]) -> list[Span]:
    """Return what is left of spans where holes, in order of their beginning, are cut out."""
    left: list[Span] = []
    for from_s, to_s in spans:
        at_s = from_s
        for hole_from_s, hole_to_s in holes:
            if hole_to_s <= at_s:
                continue
            if hole_from_s >= to_s:
                break
            if hole_from_s > at_s:
                left.append((at_s, hole_from_s))
            at_s = hole_to_s
        if at_s < to_s:
            left.append((at_s, to_s))
    return left
