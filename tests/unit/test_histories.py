"""Each check of the judge of random histories finds the fault that it is for, and nothing in a good history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.histories.journal import FOREVER_S, History, Outage, Run, Send
from tests.histories.judge import judge

LEASE_S = 6.0
SEND = Send("t", "a", "1", 10.0, "accepted")
RUN = Run("r1", 1, "t", 0, "a", due_ms=10_500, start_s=11.0, start_wall_ms=11_000, end_s=11.1, outcome="acked")


def history(*runs: Run, sends: tuple[Send, ...] = (SEND,), outages: tuple[Outage, ...] = ()) -> History:
    return History(list(sends), sorted(runs, key=lambda each: each.start_s), list(outages), {("t", 0): [(0.0, "0")]})


def test_a_good_history_is_good():
    verdict = judge(history(RUN), LEASE_S, dead=())
    assert verdict.good
    assert (verdict.sends, verdict.runs) == (1, 1)


@pytest.mark.parametrize(
    ("found", "bad"),
    [
        pytest.param("lost", history(), id="an accepted send without a delivery"),
        pytest.param("lost", history(replace(RUN, start_s=9.0)), id="only a delivery before the send"),
        pytest.param("lost", history(RUN, sends=(SEND, replace(SEND, begun_s=12.0))), id="a second send"),
        pytest.param("unfinished", history(replace(RUN, outcome="failed")), id="a failure without a retry"),
        pytest.param("unfinished", history(replace(RUN, outcome="", end_s=FOREVER_S)), id="a killed handler"),
        pytest.param("early", history(replace(RUN, start_wall_ms=10_499)), id="early"),
        pytest.param(
            "early",
            history(replace(RUN, start_wall_ms=10_400), sends=(replace(SEND, due_ms=10_450),)),
            id="before the first of its sends was due",
        ),
        pytest.param(
            "early",
            history(
                RUN,
                replace(RUN, run="r2", start_s=12.0),
                replace(RUN, run="r3", start_s=13.0, due_ms=19_000),
                sends=(
                    replace(SEND, due_ms=10_500, ended_s=10.1),
                    replace(SEND, begun_s=11.5, due_ms=19_000, ended_s=11.6),
                ),
            ),
            id="due only by a send of before",
        ),
        pytest.param(
            "overlaps",
            history(replace(RUN, end_s=13.0), replace(RUN, run="r2", pid=2, start_s=12.9, end_s=14.0)),
            id="two handlings at once",
        ),
        pytest.param(
            "overlaps",
            history(
                replace(RUN, end_s=20.0),
                replace(RUN, run="r2", pid=2, start_s=19.0, end_s=21.0),
                outages=(Outage("node 1", 12.0, 18.9), Outage("pid 2", 12.0, 18.9), Outage("pid 1", 12.0, 14.9)),
            ),
            id="at once after outages of others, and one that was too short",
        ),
    ],
)
def test_the_judge_finds(found: str, bad: History):
    verdict = judge(bad, LEASE_S, dead=())
    assert not verdict.good
    assert len(getattr(verdict, found)) == 1


@pytest.mark.parametrize("who", ["pid 1", "node 0"])
def test_an_outage_that_no_lease_survives_excuses_an_overlap(who: str):
    runs = replace(RUN, end_s=20.0), replace(RUN, run="r2", pid=2, start_s=19.0, end_s=21.0)
    verdict = judge(history(*runs, outages=(Outage(who, 12.0, 18.9),)), LEASE_S, dead=())
    assert verdict.good
    assert verdict.excused == 1


def test_two_entries_of_a_stream_may_overlap_where_a_server_was_killed_during_the_send():
    runs = replace(RUN, end_s=20.0), replace(RUN, run="r2", start_s=19.0, end_s=21.0)
    sent = replace(SEND, ended_s=10.6)
    for killed_s, streams, good in ((10.4, ("t",), True), (10.4, (), False), (10.7, ("t",), False)):
        outages = (Outage("node 0", killed_s, killed_s + 0.1),)
        assert judge(history(*runs, sends=(sent,), outages=outages), LEASE_S, (), streams).good == good


def test_a_killed_handler_overlaps_nothing_after_its_death():
    runs = replace(RUN, end_s=FOREVER_S, outcome=""), replace(RUN, run="r2", pid=2, start_s=15.0, end_s=16.0)
    assert judge(history(*runs, outages=(Outage("pid 1", 12.0, FOREVER_S),)), LEASE_S, dead=()).good


def test_a_handling_with_the_newest_body_is_due_when_the_first_of_its_sends_is():
    sends = replace(SEND, due_ms=10_400), replace(SEND, begun_s=10.2, due_ms=19_000)
    failed, again = replace(RUN, outcome="failed"), replace(RUN, run="r2", start_s=12.0, due_ms=19_000)
    assert judge(history(replace(RUN, due_ms=19_000), sends=sends), LEASE_S, dead=()).good
    assert judge(history(failed, again, sends=sends), LEASE_S, dead=()).good


def test_a_dead_message_is_not_lost():
    assert judge(history(), LEASE_S, dead={("t", "a")}).good
