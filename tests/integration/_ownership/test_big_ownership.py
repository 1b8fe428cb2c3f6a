"""A worker that owns much and dies takes nobody with it: three servers with a small `jute.maxbuffer`."""

from __future__ import annotations

import pytest

from benchmarks.big_ownership import Setting, play

SMALL = 8_192
"""The servers read transactions up to twice as long."""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_ensemble_lives_when_the_only_worker_is_killed_and_others_own_all_slots_again() -> None:
    setting = Setting(SMALL, 7_000, topics=2, slots=300, session_s=3.0)
    seen = play(setting, patience_s=20.0, rest_s=6.0)
    assert 0 < seen.owned < setting.all_slots
    assert seen.alive
    assert seen.restarted
    assert seen.owned_again == setting.all_slots


@pytest.mark.long
@pytest.mark.timeout(240)
def test_without_a_bound_the_ensemble_would_die() -> None:
    """What the bound is for; should ZooKeeper mend it (ZOOKEEPER-4306), this test says so."""
    setting = Setting(SMALL, 10**9, topics=2, slots=300, session_s=3.0)
    seen = play(setting, patience_s=10.0, serve_s=10.0)
    assert seen.owned == setting.all_slots
    assert not (seen.alive and seen.restarted)
