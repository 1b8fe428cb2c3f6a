"""Thousands of random histories of a slot: the scripts must do what the model says, key by key."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from rmq import TopicType
from tests.stateful.databases import on_database
from tests.stateful.machine import CONTENTS, SlotMachine
from tests.support.slots import scripts_with_fake_clock

EXAMPLES = {"default": 120, "ci": 120, "mutants": 120, "long": 10_000}
"""Histories of each topic and number of contents. Those of `mutants` find most planted bugs; the rest, tests/lua."""

STEPS = {"default": 30, "ci": 30, "mutants": 30, "long": 50}


@pytest.fixture(scope="module")
def machine(redis_url: str) -> Iterator[type[SlotMachine]]:
    with on_database(redis_url, 1, SlotMachine, scripts_with_fake_clock()) as machine:
        yield machine


@pytest.mark.hypothesis
@pytest.mark.timeout(0)
@pytest.mark.parametrize("few", [2, 4])
@pytest.mark.parametrize(
    ("kind", "definition"),
    [
        pytest.param(TopicType.RANGE_MERGE, {}, id="RANGE_MERGE"),
        pytest.param(TopicType.FIXED_TIME, {}, id="FIXED_TIME"),
        pytest.param(TopicType.PRIORITY, {"ties": "any"}, id="PRIORITY-any"),
        pytest.param(TopicType.PRIORITY, {"max_priority": 3}, id="PRIORITY-oldest"),
    ],
)
def test_the_scripts_do_what_the_model_says(
    machine: type[SlotMachine], kind: TopicType, definition: dict[str, object], few: int
) -> None:
    # pitfalls 13, 28, 29, 31, 32, 34, 36
    profile = os.environ.get("RMQ_HYPOTHESIS_PROFILE") or "default"
    members = {"type": kind, "definition": definition, "contents": CONTENTS[-few:], "steps": 0}
    of_this_type: type[SlotMachine] = type(f"{kind.name}Machine", (machine,), members)
    bounds = settings(max_examples=EXAMPLES[profile], stateful_step_count=STEPS[profile])
    run_state_machine_as_test(of_this_type, settings=bounds)
    print(f"{kind.name}, {few} contents: {EXAMPLES[profile]} examples, {of_this_type.steps} steps")
