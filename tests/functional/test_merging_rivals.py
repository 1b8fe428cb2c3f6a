"""The comparison with other merging queues, carried out for RMQ in small: it loses nothing, whatever happens."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.merging_rivals import running
from benchmarks.merging_rivals.systems import SYSTEMS
from benchmarks.merging_rivals.work import Work, works

pytestmark = pytest.mark.slow

RMQ = next(system for system in SYSTEMS if system.name == "rmq")
NOTHING = ("refused", "newest_missing", "ended_old", "overlaps", "left", "not_sent", "unfinished")


@pytest.mark.parametrize("work", works(200, 20), ids=lambda work: work.name)
def test_rmq_loses_nothing(work: Work) -> None:
    small = dataclasses.replace(work, sends=tuple(send for send in work.sends if send.key <= "key0009"))
    found = running.run(RMQ, small)
    print(found)
    assert {key: found[key] or 0 for key in NOTHING} == dict.fromkeys(NOTHING, 0)
    assert found["sent"] == len(small.sends)
    if work.kind != "newest":
        assert (found["arrived"], found["sum_off"]) == (found["sent"], 0)
