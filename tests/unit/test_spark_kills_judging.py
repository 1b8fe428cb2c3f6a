"""The judge of killed queries notices what it is there for, and excuses only what docs/guide/spark-stream.md allows."""

from __future__ import annotations

import pytest

from tests.spark_kills.actors import Handled
from tests.spark_kills.judging import Beside, changed, changed_runs, judge_files, judge_target
from tests.spark_kills.lives import Kill
from tests.spark_kills.words import Word

LEASE_S = 15.0
KILLED_S = 100.0
NOBODY = Beside({}, (), LEASE_S)


def beside(at_s: float, deed: str = "ack", content: str = "a") -> Beside:
    return Beside({content: [Handled(at_s, deed)]}, [Kill(0, KILLED_S, "driver", "batch")], LEASE_S)


def ran(number: int, *rows: str, life: int = 0) -> Word:
    return Word(life, 90.0 + life, "ran", number, rows)


def test_each_row_once_is_good() -> None:
    verdict = judge_files(["a", "b"], {0: ["a"], 1: ["b"]}, [], NOBODY)
    assert verdict.good
    assert verdict.rows == 2


@pytest.mark.parametrize(
    ("files", "lost", "twice", "unknown"),
    [({0: ["a"]}, 1, 0, 0), ({0: ["a", "b"], 1: ["b"]}, 0, 1, 0), ({0: ["a", "b", "c"]}, 0, 0, 1)],
)
def test_rows_that_are_lost_twice_or_unknown(files: dict[int, list[str]], lost: int, twice: int, unknown: int) -> None:
    verdict = judge_files(["a", "b"], files, [], NOBODY)
    assert (len(verdict.lost), len(verdict.twice), len(verdict.accounts)) == (lost, twice, unknown)


def test_what_the_consumer_had_is_not_lost() -> None:
    assert judge_files(["a"], {}, [], beside(50.0)).good
    assert judge_files(["a"], {}, [], beside(50.0, "hold")).lost == ["a"]


@pytest.mark.parametrize(("at_s", "good"), [(KILLED_S + 11, True), (KILLED_S + 5, False), (KILLED_S - 20, False)])
def test_both_may_have_a_row_only_after_the_end_of_a_lease(at_s: float, good: bool) -> None:
    verdict = judge_files(["a"], {0: ["a"]}, [ran(0)], beside(at_s))
    assert (verdict.good, verdict.excused) == (good, int(good))


def test_both_may_not_have_a_row_of_a_run_that_was_not_killed() -> None:
    assert not judge_files(["a"], {0: ["a"]}, [ran(0, life=1)], beside(KILLED_S + 11)).good


def test_a_row_that_was_nacked_may_come_once_more() -> None:
    assert judge_files(["a"], {0: ["a"], 1: ["a"]}, [ran(0)], beside(KILLED_S + 11, "nack")).good
    assert not judge_files(["a"], {0: ["a"], 1: ["a"], 2: ["a"]}, [ran(0)], beside(KILLED_S + 11, "nack")).good


@pytest.mark.parametrize("after", [["a"], ["a", "b", "c"], ["b", "a"]])
def test_a_batch_that_comes_back_otherwise(after: list[str]) -> None:
    assert len(changed(3, ["a", "b"], after, NOBODY)) == 1
    assert changed_runs([ran(3, "a", "b"), ran(3, *after, life=1)], NOBODY)
    assert not changed_runs([ran(3, "a", "b"), ran(4, *after, life=1)], NOBODY)


def test_a_batch_may_lack_what_the_consumer_took() -> None:
    assert changed(3, ["a", "b"], ["b"], beside(50.0)) == []
    assert len(changed(3, ["a", "b"], ["a"], beside(50.0))) == 1


@pytest.mark.parametrize(
    ("found", "lost", "twice", "unknown"),
    [
        ({"a": 1, "b": 1}, 0, 0, 0),
        ({"a": 1}, 1, 0, 0),
        ({"a": 1, "b": 2}, 0, 1, 0),
        ({"a": 1, "b": 1, "c": 1}, 0, 0, 1),
    ],
)
def test_a_topic_has_each_row_once(found: dict[str, int], lost: int, twice: int, unknown: int) -> None:
    runs = [ran(0, "a", "b"), ran(0, "a", "b", life=1)]
    verdict = judge_target("target", ["a", "b"], found, runs, NOBODY)
    assert (len(verdict.lost), len(verdict.twice), len(verdict.accounts)) == (lost, twice, unknown)


def test_a_topic_may_have_a_row_twice_where_its_batch_came_back_without_another() -> None:
    runs = [ran(0, "a", "b"), ran(0, "b", life=1)]
    assert judge_target("target", ["a", "b"], {"b": 2}, runs, beside(KILLED_S + 11)).excused == 1
    assert not judge_target("target", ["a", "b"], {"b": 3}, runs, beside(KILLED_S + 11)).good
    assert judge_target("target", ["a", "b"], {"a": 1, "b": 1}, runs, beside(KILLED_S + 11)).good
    assert not judge_target("target", ["a", "b"], {"a": 1, "b": 1}, runs, beside(KILLED_S + 2)).good
