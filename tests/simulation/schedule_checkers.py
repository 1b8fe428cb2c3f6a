"""Finds in a history what is promised of schedules: each time is sent, not early, and again only after a trouble."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.histories.judge import Violation
from tests.simulation.history import History, ScheduleMark, Sent, clock_s
from tests.simulation.scheduled_plan import TICKS
from tests.simulation.schedules import due_of
from tests.simulation.world import START_S

LEASE_S = 60.0
"""A trouble up to so long before explains that a schedule is late, or sent again: its lease, and a retry."""


def schedule_missing(history: History) -> Iterator[Violation]:
    """Each due time is sent, soon where nothing is wrong, and so is each run by hand."""
    for marks, times in _schedules(history):
        yield from _missing(history, marks, times)
        yield from _asked(history, marks, times)


def schedule_wrong(history: History) -> Iterator[Violation]:
    """Nothing is sent early, of another version, at a time of no rule, or after a removal."""
    for marks, times in _schedules(history):
        yield from _wrong(history, marks, times)


def schedule_repeated(history: History) -> Iterator[Violation]:
    """A due time is sent again only after a trouble."""
    for _, times in _schedules(history):
        for due_ms, sends in times.items():
            at = sorted(at_ms for each in sends for at_ms in each.executed_ms)
            if len(at) > 1 and not _met(history, due_ms, at[-1]):
                yield Violation("schedule repeated", f"{sends[0].content} was sent at {[_at(each) for each in at]}")


def _schedules(history: History) -> Iterator[tuple[list[ScheduleMark], dict[int, list[Sent]]]]:
    """Return the changes of each schedule, and what was sent for it by its due time."""
    sent: dict[str, dict[int, list[Sent]]] = {}
    for each in history.sends:
        if each.topic == TICKS and each.executed_ms:
            times = sent.setdefault(each.content.partition("/")[0], {})
            times.setdefault(due_of(each.content), []).append(each)
    for name in sorted({mark.name for mark in history.marks}):
        yield [mark for mark in history.marks if mark.name == name], sent.get(name, {})


def _missing(history: History, marks: list[ScheduleMark], times: dict[int, list[Sent]]) -> Iterator[Violation]:
    """Each due time is sent; without `catch_up` one message may stand for several."""
    runs = {run.content for run in history.runs if run.topic == TICKS}
    executed = sorted(
        (at_ms, due_ms)
        for due_ms, sends in times.items()
        for each in sends
        for at_ms, at_s in zip(each.executed_ms, each.executed_s, strict=True)
        if each.content in runs or not history.forgotten(at_s, at_s)
    )
    for mark, after in pairwise([each for each in marks if each.what in ("put", "remove")]):
        if mark.what == "remove" or _forgotten(history, mark):
            continue
        for due_ms in range(mark.to_ms - mark.to_ms % mark.every_ms + mark.every_ms, after.from_ms, mark.every_ms):
            if mark.catch_up:
                first_ms = min((at_ms for at_ms, due in executed if due == due_ms), default=None)
            else:
                first_ms = min((at_ms for at_ms, due in executed if due <= due_ms <= at_ms), default=None)
            if first_ms is None:
                yield Violation("schedule missing", f"{mark.name} was not sent for {_at(due_ms)}")
            elif (late_ms := first_ms - due_ms) > 1_000 * history.patience_s and not history.economy:
                if not _met(history, due_ms, first_ms):
                    yield Violation("schedule missing", f"{mark.name} of {_at(due_ms)} was sent {late_ms} ms late")


def _asked(history: History, marks: list[ScheduleMark], times: dict[int, list[Sent]]) -> Iterator[Violation]:
    """A run by hand is sent, with a time up to that of the call."""
    for mark in marks:
        if mark.what == "run" and mark.done and not _forgotten(history, mark):
            sends = [each for due_ms, sends in times.items() if due_ms <= mark.to_ms for each in sends]
            if not any(at_ms >= mark.from_ms for each in sends for at_ms in each.executed_ms):
                yield Violation("schedule missing", f"{mark.name} was not sent by hand at {_at(mark.from_ms)}")


def _wrong(history: History, marks: list[ScheduleMark], times: dict[int, list[Sent]]) -> Iterator[Violation]:
    rules = {mark.every_ms for mark in marks if mark.every_ms}
    asked = [mark for mark in marks if mark.what == "run"]
    replaced = [mark for mark in marks if mark.what == "older" and mark.done]
    for mark in replaced:
        if not history.forgotten(0.0, clock_s(mark.to_ms)):
            yield Violation("schedule wrong", f"{mark.name} by a lower version at {_at(mark.to_ms)}")
    for due_ms, sends in times.items():
        at_ms = min(at_ms for each in sends for at_ms in each.executed_ms)
        if at_ms < due_ms:
            yield Violation("schedule wrong", f"{sends[0].content} was sent {due_ms - at_ms} ms early")
        by_hand = any(mark.from_ms <= due_ms <= mark.to_ms for mark in asked)
        if not by_hand and not replaced and all(due_ms % every_ms for every_ms in rules):
            yield Violation("schedule wrong", f"{sends[0].content} is no time of its rule")
    ends = [each for each in marks if each.what in ("put", "remove")]
    for mark, after in pairwise(ends):
        if mark.what == "remove" and not _forgotten(history, mark):
            for due_ms in times:
                if mark.to_ms < due_ms < after.from_ms:
                    yield Violation("schedule wrong", f"{mark.name} was sent for {_at(due_ms)}, after its removal")


def _forgotten(history: History, mark: ScheduleMark) -> bool:
    return history.forgotten(clock_s(mark.from_ms), clock_s(mark.to_ms))


def _met(history: History, from_ms: int, to_ms: int) -> bool:
    """Return whether anybody met with a trouble, since any worker may run a schedule."""
    from_s, to_s = clock_s(from_ms) - LEASE_S, clock_s(to_ms) + 0.01
    return any(each.kind != "lose_hints" and each.from_s < to_s and each.to_s > from_s for each in history.troubles)


def _at(ms: int) -> str:
    return f"{clock_s(ms) - START_S:.3f}"
