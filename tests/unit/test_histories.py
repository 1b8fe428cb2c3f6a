"""Each check of the judge finds the fault that is planted in a log by hand, and nothing in a good log."""

from __future__ import annotations

import pytest

from tests.histories import journal
from tests.histories.journal import start_process
from tests.histories.judge import UNOWNED, Rules, Verdict, counted, judge
from tests.histories.story import tell

RULES = Rules(lease_s=6.0, session_s=4.0, folding=("fold",), pause_s=6.0)

CLOCK = "clock 0 1000000"  # so that second 10 of the monotonic clock is 1,010,000 ms
SEND = "try 10 9 b1 each c1 i1"
SENT = "sent 10.1 b1 - -"
BEGIN = "begin 11 1 r1 each 0 c1 i1 1010900 1010500"
END = "end 11.5 acked r1"
GOOD = (CLOCK, SEND, SENT, BEGIN, END, "shard 0 each 0 0", "owns 5 1 each 0", "watch 6 100")
KILLED = "trouble worker_killed pid_1 12 inf"


def verdict_of(*lines: str, rules: Rules = RULES, kinds: tuple[str, ...] | None = None) -> Verdict:
    """Judge lines with blanks for tabs, `_` for a blank, and `-` for no names."""
    marks = ["\t".join("" if word == "-" else word.replace("_", " ") for word in line.split()) for line in lines]
    return judge(tell(marks), rules, kinds)


MERGED = (CLOCK, SEND, "due b1 1010950", SENT, "begin 11 1 r1 each 0 c1 i1 1010900 1019000", END)
"""The newest of its sends makes a content due at 1,019,000 ms, and the first one at 1,010,950 ms."""


def without(*lines: str) -> tuple[str, ...]:
    return tuple(line for line in GOOD if line not in lines)


def test_a_good_log_is_good():
    verdict = verdict_of(*GOOD)
    assert verdict.violations == []
    assert (verdict.accepted, verdict.refused, verdict.unknown, verdict.runs) == (1, 0, 0, 1)
    assert not verdict.duplicates
    assert verdict.longest_unowned_s == 0.0


AGAIN = ("begin 20 2 r2 each 0 c1 i1 1019900 0", "end 20.1 acked r2")
AT_ONCE = ("begin 11.4 2 r2 each 0 c1 i1 1011300 0", "end 12 acked r2")
IN_SLOT = ("try 10 9 b2 each c2 i2", "sent 10.1 b2 - -", "begin 11.4 2 r2 each 0 c2 i2 1011300 0", "end 12 acked r2")
STRAYED = ("try 29 9 b2 each c4 i4", "begin 30 1 r2 fold 0 c4 i4 1029000 0", "end 31 acked r2")
FOLDED = ("try 10 9 b2 fold c3 i3", "sent 10.1 b2 - -", "begin 11.4 2 r3 fold 0 c3 i3 1010800 0", "end 12 acked r3")


@pytest.mark.parametrize(
    ("kinds", "lines"),
    [
        pytest.param("lost", without(BEGIN, END), id="no delivery"),
        pytest.param("lost,unfinished", without(END), id="a handler that never ended"),
        pytest.param("lost,unfinished", (*without(END), "end 11.5 failed r1"), id="a failure without a retry"),
        pytest.param("unfinished", without(SENT, END), id="the handling of an unknown send never ended"),
        pytest.param("unfinished", (*without(SENT, END), "end 11.5 failed r1"), id="it failed without a retry"),
        pytest.param("lost", (*GOOD, "try 12 9 b2 each c1 i4", "sent 12.1 b2 - -"), id="only another send came"),
        pytest.param("lost", (*GOOD, *FOLDED, "try 12 9 b3 fold c3 i5", "sent 12.1 b3 - -"), id="claimed before"),
        pytest.param("unexpected", without(SEND, SENT), id="never sent"),
        pytest.param("unexpected", (*without(SENT), "sent 10.1 b1 i1 -"), id="refused, and delivered"),
        pytest.param("unexpected", (*GOOD, *STRAYED), id="strayed"),
        pytest.param("unexpected", (*GOOD, "begin 30 1 r2 each 0 c9 - 1029000 0", "end 31 acked r2"), id="no send"),
        pytest.param(
            "unexpected",
            (*GOOD, "try 11.7 9 b2 each c4 i4", "begin 11.6 1 r0 each 0 c4 i4 1011000 0", "end 12 acked r0"),
            id="too soon",
        ),
        pytest.param("duplicated", (*GOOD, *AGAIN), id="acked, and handled again"),
        pytest.param("duplicated", (*GOOD, *AGAIN, "trouble worker_killed pid_3 12 inf"), id="a stranger's trouble"),
        pytest.param("duplicated", (*GOOD, *AGAIN, "trouble failover shard_1 12 13"), id="another shard's trouble"),
        pytest.param("duplicated", (*GOOD, *AGAIN, "trouble failover shard_0 7 8"), id="a trouble before the claim"),
        pytest.param("duplicated", (*GOOD, *AGAIN, "trouble election keeper 12 13"), id="ZooKeeper, and no slot left"),
        pytest.param(
            "duplicated", (*GOOD, *AGAIN, "trouble producer_cut pid_9 10 10.5"), id="a trouble of a send that had ended"
        ),
        pytest.param("overlap of a content", (*GOOD, *AT_ONCE, "trouble failover shard_0 11.3 11.4"), id="at once"),
        pytest.param(
            "overlap of a content", (*GOOD, *AT_ONCE, "trouble worker_paused pid_1 11.2 17"), id="a shorter pause"
        ),
        pytest.param("overlap of a slot", (*GOOD, *IN_SLOT), id="two workers in one slot"),
        pytest.param("early", [line.replace("1010500", "1010901") for line in GOOD], id="early"),
        pytest.param("early", MERGED, id="before the first of its sends was due"),
        pytest.param(
            "without an owner", (*GOOD, "leaves 20 1 each 0", "owns 29.1 2 each 0"), id="left, and taken too late"
        ),
        pytest.param("without an owner", (*GOOD, "leaves 20 1 each 0"), id="left for good"),
        pytest.param("without an owner", (*GOOD, KILLED, "owns 21.1 2 each 0"), id="killed, and taken too late"),
        pytest.param("without an owner", (*GOOD, "trouble worker_paused pid_1 20 29.1"), id="stopped for too long"),
        pytest.param(
            "without an owner",
            (*GOOD, "leaves 20 1 each 0", "trouble zookeeper_without_a_leader keeper 21 30", "owns 39.1 2 each 0"),
            id="taken too late after ZooKeeper came back",
        ),
    ],
)
def test_the_judge_finds(kinds: str, lines: tuple[str, ...]):
    assert counted(verdict_of(*lines).violations) == dict.fromkeys(kinds.split(","), 1)


@pytest.mark.parametrize(
    ("trouble", "cause"),
    [
        (KILLED, "worker killed"),
        ("trouble failover shard_0 12 13", "failover"),
        ("trouble without_a_leader keeper 19 25", "without a leader"),
        ("trouble producer_cut pid_9 10 10.5", "producer cut: sent twice"),
        ("trouble failover shard_0 10 10.5", "failover: sent twice"),
    ],
)
def test_a_duplicate_is_explained_by_a_trouble_of_who_had_it(trouble: str, cause: str):
    lines = [line.replace("sent 10.1", "sent 11") for line in GOOD]
    verdict = verdict_of(*lines, *AGAIN, trouble, "leaves 19 1 each 0", "owns 19 2 each 0")
    assert verdict.violations == []
    assert verdict.duplicates == {cause: 1}


def test_a_batch_of_which_a_part_failed_is_sent_again_where_its_sender_does_so():
    lines = [*(line.replace("sent 10.1", "sent 11") for line in GOOD), *AGAIN]
    full, flushed = "fault memory_full 9 10.9 said", "fault scripts_flushed 9 10.9 said"
    retried = Rules(6.0, 4.0, retried=("each",))
    assert verdict_of(*lines, full, rules=retried).duplicates == {"memory full: sent twice": 1}
    assert counted(verdict_of(*lines, full).violations) == {"duplicated": 1}
    other = "trouble redis_frozen shard_1 9 10.9"
    assert verdict_of(*lines, other, rules=retried).duplicates == {"redis frozen: sent twice": 1}
    assert counted(verdict_of(*lines, other).violations) == {"duplicated": 1}
    assert counted(verdict_of(*lines, "trouble redis_frozen shard_1 7 8", rules=retried).violations) == {
        "duplicated": 1
    }
    assert counted(verdict_of(*lines, flushed, rules=retried).violations) == {"duplicated": 1}


def test_a_repeated_send_is_there_twice_where_nothing_is_merged():
    apart, cut = Rules(6.0, 4.0, apart=("each",)), "trouble producer_cut pid_9 10 10.05"
    assert verdict_of(*GOOD, *AGAIN, cut, rules=apart).duplicates == {"producer cut: sent twice": 1}
    verdict = verdict_of(*GOOD, *AT_ONCE, cut, rules=apart)
    assert verdict.violations == []
    assert (verdict.duplicates, verdict.overlaps) == ({"producer cut: sent twice": 1}, {"producer cut: sent twice": 1})
    for rules, trouble in ((RULES, cut), (apart, "trouble producer_cut pid_8 10 10.05")):
        found = verdict_of(*GOOD, *AT_ONCE, trouble, rules=rules).violations
        assert counted(found) == {"duplicated": 1, "overlap of a content": 1}


def test_a_handler_that_began_after_its_lease_is_explained_by_the_pause_of_its_own_process():
    late = ("begin 20 2 r2 each 0 c1 i1 1010800 0", "end 20.1 acked r2")
    assert verdict_of(*GOOD, *late, "trouble worker_paused pid_2 10.9 19.9").duplicates == {"worker paused": 1}
    assert counted(verdict_of(*GOOD, *AGAIN, "trouble worker_paused pid_2 10.9 19.8").violations) == {"duplicated": 1}


def test_a_retry_is_no_duplicate():
    verdict = verdict_of(*without(END), "end 11.5 failed r1", *AGAIN)
    assert verdict.violations == []
    assert (verdict.retries, sum(verdict.duplicates.values())) == (1, 0)


def test_a_slot_that_moved_was_at_both_shards():
    moved = (*GOOD, "shard 15 each 0 2", *AGAIN)
    assert verdict_of(*moved, "trouble failover shard_2 16 17").duplicates == {"failover": 1}
    assert verdict_of(*moved, "trouble failover shard_0 16 17").violations


LATE = ("end 30 late r1", "begin 20 2 r2 each 0 c1 i1 1019900 0", "end 20.1 acked r2")


@pytest.mark.parametrize(
    ("trouble", "pause_s", "excused"),
    [
        ("trouble frozen pid_1 12 18.1", 6.0, True),
        ("trouble frozen shard_0 12 18.1", 6.0, True),
        ("trouble frozen pid_1 12 17.9", 6.0, False),  # the rules ask for more
        ("trouble frozen pid_1 12 15.1", 0.0, True),
        ("trouble frozen pid_1 12 14.9", 0.0, False),  # a lease had that left
        ("trouble frozen pid_1 17.1 30", 0.0, False),  # and here, when the second handling began
        ("trouble frozen pid_2 12 18.1", 0.0, False),
        ("trouble frozen shard_1 12 18.1", 0.0, False),
    ],
)
def test_a_pause_longer_than_what_a_lease_has_left_excuses_an_overlap(trouble: str, pause_s: float, excused: bool):
    rules = Rules(6.0, folding=("fold",), pause_s=pause_s)
    verdict = verdict_of(*without(END), *LATE, trouble, rules=rules, kinds=UNOWNED)
    assert counted(verdict.violations) == ({} if excused else {"overlap of a content": 1})
    assert verdict.overlaps == ({"frozen": 1} if excused else {})


@pytest.mark.parametrize(("from_s", "excused"), [(6, True), (0, False)])
def test_a_claim_of_unknown_time_was_at_most_a_lease_before_its_handling(from_s: int, excused: bool):
    begun = "begin 11 1 r1 each 0 c1 i1 0 0"
    trouble = f"trouble frozen pid_1 {from_s} {from_s + 4}"
    verdict = verdict_of(*without(BEGIN, END), begun, *LATE, trouble, rules=Rules(6.0), kinds=UNOWNED)
    assert counted(verdict.violations) == ({} if excused else {"overlap of a content": 1})


def test_a_killed_handler_overlaps_nothing_after_its_death():
    again = ("begin 20 2 r2 each 0 c1 i1 1019900 0", "end 20.1 acked r2")
    assert verdict_of(*without(END), KILLED, *again, kinds=UNOWNED).violations == []


def test_a_handling_with_the_newest_body_is_due_when_the_first_of_its_sends_is():
    good = tuple(line.replace("1010950", "1010400") for line in MERGED)
    newer = ("try 10.2 9 b2 each c1 i2", "due b2 1019000", "sent 10.3 b2 - -")
    again = ("end 11.5 failed r1", "begin 12 1 r2 each 0 c1 i2 1011900 1019000", "end 12.1 acked r2")
    assert counted(verdict_of(*good, *newer, *again, kinds=("early",)).violations) == {}
    assert counted(verdict_of(*good, *again, kinds=("early",)).violations) == {}


def test_an_acked_send_makes_no_later_handling_due():
    later = (
        "begin 12 1 r2 each 0 c1 i1 1011900 0", "end 12.1 acked r2",
        "try 11.5 9 b2 each c1 i2", "due b2 1019000", "sent 11.6 b2 - -",
        "begin 13 1 r3 each 0 c1 i2 1012900 1019000", "end 13.1 acked r3",
    )  # fmt: skip
    good = tuple(line.replace("1010950", "1010500") for line in MERGED)
    assert counted(verdict_of(*good, *later, kinds=("early",)).violations) == {"early": 1}
    # an unknown one may have been stored at any later time
    assert counted(verdict_of(*(line for line in good if line != SENT), *later, kinds=("early",)).violations) == {}


def test_what_is_dead_or_was_not_accepted_is_not_lost():
    dead = Rules(6.0, 4.0, dead={("each", "c1")})
    assert verdict_of(*without(BEGIN, END), rules=dead).violations == []
    assert verdict_of(*without(BEGIN, END, SENT)).violations == []
    assert verdict_of(*without(BEGIN, END, SENT), "sent 10.1 b1 - i1").violations == []
    assert verdict_of(*without(BEGIN, END, SENT), "sent 10.1 b1 i1 -").violations == []


def test_a_later_delivery_stands_for_all_folded_sends():
    later = ("try 10.2 9 b3 fold c3 i5", "sent 10.3 b3 - -")
    assert verdict_of(*GOOD, *FOLDED, *later).violations == []


def test_a_slot_may_be_without_an_owner_for_the_session_and_the_recovery():
    verdict = verdict_of(*GOOD, KILLED, "owns 20.9 2 each 0")
    assert verdict.violations == []
    assert verdict.longest_unowned_s == pytest.approx(8.9)


HANDLED = ("try 19 9 b2 each c2 i2", "sent 19.1 b2 - -", "begin 19.5 1 r2 each 0 c2 i2 1019400 0", "end 33 acked r2")
"""By the owner until second 33, while it gives the slot up at second 20."""
LEFT = ("leaves 20 1 each 0", "owns 33.5 2 each 0")


def test_who_drains_a_slot_still_owns_it():
    kept = ("owns 5 1 each 1", "shard 0 each 1 0")
    for orderly in (kept, ()):  # it keeps other slots, or it stops for good
        verdict = verdict_of(*GOOD, *HANDLED, *LEFT, *orderly)
        assert verdict.violations == []
        assert verdict.longest_unowned_s == pytest.approx(0.5)


def test_who_has_lost_zookeeper_drains_nothing():
    verdict = verdict_of(*GOOD, *HANDLED, *LEFT, "leaves 40 2 each 0", "owns 40 1 each 0")
    assert counted(verdict.violations) == {"without an owner": 1}
    assert verdict.longest_unowned_s == pytest.approx(13.5)


def test_who_is_stopped_drains_nothing():
    kept = ("owns 5 1 each 1", "shard 0 each 1 0", "owns 20 2 each 1")
    verdict = verdict_of(*GOOD, *HANDLED, *LEFT, *kept, "trouble worker_paused pid_1 20.5 32.5")
    assert counted(verdict.violations) == {"without an owner": 1}


def test_nobody_needs_an_owner_before_and_after_the_watch():
    assert verdict_of(*GOOD, "leaves 99 1 each 0", "owns 300 2 each 0").longest_unowned_s == pytest.approx(1.0)


def test_two_runs_of_one_name_are_an_error():
    with pytest.raises(ValueError, match="two runs are called r1"):
        verdict_of(*GOOD, BEGIN)


def test_each_process_of_a_story_has_a_pid_of_its_own(monkeypatch: pytest.MonkeyPatch):
    with start_process(["true"]) as first:
        near = {first.pid + number for number in range(20)}
    monkeypatch.setattr(journal, "_PIDS", set(near))
    with start_process(["true"]) as second:
        assert second.pid not in near


def test_a_line_that_nobody_knows_is_an_error():
    with pytest.raises(KeyError):
        tell(["nonsense\t1\n"])
