"""Thousands of random histories of a slot that merges: scripts and model agree, and each send counts once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from rmq import TopicType
from tests.stateful.databases import on_database
from tests.stateful.machine import CONTENTS
from tests.stateful.merging_machine import MergingMachine
from tests.support.slots import scripts_with_fake_clock

EXAMPLES = {"default": 60, "ci": 100, "mutants": 100, "long": 2_500}
"""Histories of each of the four topics."""

STEPS = {"default": 30, "ci": 30, "mutants": 30, "long": 50}


@pytest.fixture(scope="module")
def machine(redis_url: str) -> Iterator[type[MergingMachine]]:
    with on_database(redis_url, 2, MergingMachine, scripts_with_fake_clock()) as machine:
        yield machine


@pytest.mark.hypothesis
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("kind", "definition", "few"),
    [
        pytest.param(TopicType.RANGE_MERGE, {}, 2, id="RANGE_MERGE"),
        pytest.param(TopicType.FIXED_TIME, {}, 2, id="FIXED_TIME"),
        pytest.param(TopicType.PRIORITY, {"ties": "any"}, 3, id="PRIORITY-any"),
        pytest.param(TopicType.PRIORITY, {"max_priority": 3}, 3, id="PRIORITY-oldest"),
    ],
)
def test_each_send_counts_once(
    machine: type[MergingMachine], kind: TopicType, definition: dict[str, object], few: int
) -> None:
    profile = os.environ.get("RMQ_HYPOTHESIS_PROFILE") or "default"
    members = {"type": kind, "definition": definition, "contents": CONTENTS[-few:], "steps": 0}
    of_this_type: type[MergingMachine] = type(f"{kind.name}Machine", (machine,), members)
    bounds = settings(max_examples=EXAMPLES[profile], stateful_step_count=STEPS[profile])
    run_state_machine_as_test(of_this_type, settings=bounds)
    print(f"{kind.name}: {EXAMPLES[profile]} examples, {of_this_type.steps} steps")
