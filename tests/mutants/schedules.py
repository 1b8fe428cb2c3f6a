"""Bugs to plant in the code of schedules, and the tests of integration/test_schedules.py that must notice them.

`python -m pytest -p tests.mutants.schedules` plants the one that `RMQ_PLANTED` names. Without that variable nothing
happens.
"""

from __future__ import annotations

import os

from tests.simulation.planting import planted
from tests.simulation.plants import PLANTS, RUNNER, Plant

_MODEL = "rmq._schedules.schedule"
_DUE_AFTER = "rmq._schedules.schedules:due_after"

_AHEAD = "int(__import__('time').time() * 1000) + 20 * 366 * 86_400_000"
"""The clock of a worker that is ahead of Redis' clock, also of that of a test."""

_OF_SIMULATIONS = {
    "a schedule is released before its send": "test_a_refused_schedule_comes_again_with_its_due_time",
    "a registration moves the due time although nothing changed": "test_a_put_of_the_same_schedule_changes_nothing",
    "a lower version of a schedule replaces a higher one": "test_a_lower_version_does_not_replace_a_higher_one",
    "the due time of a schedule is forgotten when a worker dies": "test_a_killed_worker_leaves_the_same_due_time",
    "only the last missed time of a schedule is sent": "test_kills_lose_no_missed_time",
    "a schedule that is removed in flight comes back": (
        "test_a_schedule_is_removed_while_it_is_in_flight_and_was_changed"
    ),
}
"""Those that simulations must find, too."""

_OWN = {
    Plant(
        "the next time is computed from the worker's clock",
        ((f"{RUNNER}._run", "if schedule.catch_up else now_ms)", f"if schedule.catch_up else {_AHEAD})"),),
    ): "test_a_schedule_is_sent_at_each_of_its_times",
    Plant(
        "an hour that comes twice runs a schedule twice",
        ((f"{_MODEL}:_once", "return [min(shown)]", "return shown"),),
    ): "test_a_daily_schedule_runs_once_in_the_hour_that_comes_twice",
    Plant(
        "a failed send uses up a retry",
        (
            (
                f"{RUNNER}._put_off",
                "Outcome(Verb.RELEASE, delay_ms, *describe(error))",
                "Outcome(Verb.BURY, 0, *describe(error))",
            ),
        ),
    ): "test_a_refused_schedule_comes_again_with_its_due_time",
    Plant(
        "a run by hand is forgotten when its worker dies",
        ((_DUE_AFTER, "asked_ms if due_ms is None else min(asked_ms, due_ms)", "due_ms"),),
    ): "test_a_run_by_hand_survives_a_worker_that_dies",
    Plant(
        "missed times that one message stood for are sent when its worker dies",
        ((_DUE_AFTER, "0 if schedule.catch_up else sent_ms", "0"),),
    ): "test_one_message_stands_for_all_missed_times_also_if_its_worker_dies",
}

BUGS = [*(plant for plant in PLANTS if plant.name in _OF_SIMULATIONS), *_OWN]
NOTICED_BY = _OF_SIMULATIONS | {plant.name: test for plant, test in _OWN.items()}
"""Name of a bug -> the test that must fail."""

if chosen := os.environ.get("RMQ_PLANTED"):
    _planted = planted(next(plant for plant in BUGS if plant.name == chosen))
    _planted.__enter__()  # to the end of this process
