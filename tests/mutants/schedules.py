"""Bugs to plant in the code of schedules, each with the test that must notice it.

`python -m pytest -p tests.mutants.schedules` plants the one that `RMQ_PLANTED` names: the modules that it changes are
read with the replacements. Without that variable nothing happens.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

Edit = tuple[str, str, str]
"""Module, text to replace in it, text to put there."""

_RUNNER, _ADMIN, _MODEL = "rmq._listening.timetable", "rmq._admin.schedules", "rmq._model.schedules"

_AHEAD = "int(__import__('time').time() * 1000) + 20 * 366 * 86_400_000"
"""The clock of a worker that is ahead of Redis' clock, also of that of a test."""


@dataclass(frozen=True)
class Planted:
    """A planted bug.

    Attributes:
        name: What goes wrong, in words.
        noticed_by: The test of tests/integration/test_schedules.py that must fail.
        edits: How.
    """

    name: str
    noticed_by: str
    edits: tuple[Edit, ...]


PLANTED = (
    Planted(
        "a schedule is released before its send",
        "test_a_refused_schedule_comes_again_with_its_due_time",
        (
            (
                _RUNNER,
                "            producer.send(",
                "            delivery.mark(Outcome(Verb.RELEASE, due_ms=next_ms))\n            producer.send(",
            ),
            (
                _RUNNER,
                "delivery.mark(self._run(read_schedule(delivery.content, delivery.body), delivery))",
                "outcome = self._run(read_schedule(delivery.content, delivery.body), delivery)\n"
                "            delivery.outcome or delivery.mark(outcome)",
            ),
            (_RUNNER, "        delivery.mark(Outcome(", "        delivery.outcome or delivery.mark(Outcome("),
        ),
    ),
    Planted(
        "the next time is computed from the worker's clock",
        "test_a_schedule_is_sent_at_each_of_its_times",
        ((_RUNNER, "if schedule.catch_up else now_ms)", f"if schedule.catch_up else {_AHEAD})"),),
    ),
    Planted(
        "an hour that comes twice runs a schedule twice",
        "test_a_daily_schedule_runs_once_in_the_hour_that_comes_twice",
        ((_MODEL, "return [min(shown)]", "return shown"),),
    ),
    Planted(
        "a registration moves the due time although nothing changed",
        "test_a_put_of_the_same_schedule_changes_nothing",
        ((_ADMIN, "there.to_fields() == schedule.to_fields()", "there.to_json() == schedule.to_json()"),),
    ),
    Planted(
        "a lower version replaces a higher one",
        "test_a_lower_version_does_not_replace_a_higher_one",
        ((_ADMIN, "if there.outranks(schedule) else", "if schedule.outranks(there) else"),),
    ),
    Planted(
        "the due time is forgotten when a worker dies",
        "test_a_killed_worker_leaves_the_same_due_time",
        ((_RUNNER, "due_ms = min(filter(", "due_ms = now_ms or min(filter("),),
    ),
    Planted(
        "only the last missed time is sent after a kill",
        "test_kills_lose_no_missed_time",
        ((_RUNNER, "next_ms(due_ms if schedule.catch_up else now_ms)", "next_ms(now_ms)"),),
    ),
    Planted(
        "a failed send uses up a retry",
        "test_a_refused_schedule_comes_again_with_its_due_time",
        ((_RUNNER, "Outcome(Verb.RELEASE, delay_ms, *describe(error))", "Outcome(Verb.BURY, 0, *describe(error))"),),
    ),
    Planted(
        "a schedule that is removed in flight comes back",
        "test_a_schedule_is_removed_while_it_is_in_flight_and_was_changed",
        ((_ADMIN, "if _present(self._find(name)) is not None:", "if False:"),),
    ),
    Planted(
        "a run by hand is forgotten when its worker dies",
        "test_a_run_by_hand_survives_a_worker_that_dies",
        ((_MODEL, "return asked_ms if due_ms is None else min(asked_ms, due_ms)", "return due_ms"),),
    ),
    Planted(
        "missed times that one message stood for are sent when its worker dies",
        "test_one_message_stands_for_all_missed_times_also_if_its_worker_dies",
        ((_MODEL, "0 if schedule.catch_up else sent_ms", "0"),),
    ),
)  # fmt: skip


class _Planter(importlib.abc.MetaPathFinder):
    """Finds the modules that a bug changes, with the changes."""

    def __init__(self, planted: Planted) -> None:
        self._edits = planted.edits

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        edits = [edit for edit in self._edits if edit[0] == fullname]
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target) if edits else None
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Changed(fullname, spec.loader.path, edits)
        return spec


class _Changed(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> object:  # pyright: ignore[reportIncompatibleMethodOverride] - a code object
        source = self.get_data(self.path).decode()
        for _, old, new in self._edits:
            if old not in source:
                raise LookupError(f"{old!r} is not in {fullname}")
            source = source.replace(old, new)
        return compile(source, self.path, "exec")


if chosen := os.environ.get("RMQ_PLANTED"):
    sys.meta_path.insert(0, _Planter(next(each for each in PLANTED if each.name == chosen)))
