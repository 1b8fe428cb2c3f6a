"""The plan of a campaign's faults follows from its seed, and has all kinds."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.campaign.plan import KINDS, draw_plan

ALL = [kind for kinds in KINDS.values() for kind in kinds]


def test_a_seed_draws_the_same_plan_each_time():
    assert draw_plan(7, 50, 600) == draw_plan(7, 50, 600)
    assert draw_plan(7, 50, 600) != draw_plan(8, 50, 600)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_comes_about_equally_often(seed: int):
    plan = draw_plan(seed, 200, 1800)
    counts = Counter(fault.kind for fault in plan)
    assert len(plan) == 200
    assert counts.keys() == set(ALL)
    assert max(counts.values()) - min(counts.values()) <= 2
    assert all(fault.kind in KINDS[fault.lane] and 0 <= fault.at_s < 1800 for fault in plan)
    assert [fault.at_s for fault in plan] == sorted(fault.at_s for fault in plan)


def test_as_many_faults_as_kinds_are_all_kinds():
    assert Counter(fault.kind for fault in draw_plan(1, len(ALL), 60)) == Counter(ALL)


def test_what_cannot_be_tried_is_left_out():
    assert {fault.kind for fault in draw_plan(1, 100, 60, ALL[1:])} == {ALL[0]}
