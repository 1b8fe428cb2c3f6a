"""What the comparison with other merging queues reads from a ledger."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from benchmarks import report
from benchmarks.merging_rivals.judging import Sent, judge
from benchmarks.merging_rivals.work import works
from benchmarks.support.harness import RESULTS, ROOT

SENDS = {("a", 1): Sent(1, 0), ("a", 2): Sent(1, 1_000), ("b", 1): Sent(-1, 0)}


def run(name: str, key: str, start: float, end: float | None, *numbers: int, **more: Any) -> list[dict[str, Any]]:
    items = [[number, -1 if key == "b" else 1] for number in numbers]
    lines = [{"what": "start", "run": name, "key": key, "at": start, "items": items, **more}]
    return lines if end is None else [*lines, {"what": "done", "run": name, "key": key, "at": end}]


def test_all_that_was_sent_arrived_in_two_deliveries() -> None:
    found = judge(SENDS, [*run("x", "a", 1_500, 1_600, 1, 2), *run("y", "b", 100, 200, 1)])
    nothing = ("refused", "twice", "newest_missing", "ended_old", "shuffled", "overlaps", "sum_wrong", "sum_off")
    assert {key: found[key] for key in nothing} == dict.fromkeys(nothing, 0)
    assert (found["sent"], found["deliveries"], found["arrived"], found["longest_wait_s"]) == (3, 2, 3, 1.5)


def test_a_first_value_that_stands_for_all_loses_the_newest_and_the_sum() -> None:
    found = judge(SENDS, [*run("x", "a", 1_500, 1_600, 1), *run("y", "b", 100, 200, 1)])
    assert (found["newest_missing"], found["ended_old"], found["sum_wrong"], found["sum_off"]) == (1, 0, 1, 1)
    assert (found["sent"] - found["arrived"]) == 1


def test_an_older_value_after_the_newest_one() -> None:
    found = judge(SENDS, [*run("x", "a", 0, 500, 2), *run("z", "a", 600, 700, 1), *run("y", "b", 100, 200, 1)])
    assert (found["newest_missing"], found["ended_old"]) == (0, 1)


def test_a_batch_whose_last_item_is_not_its_newest() -> None:
    assert judge(SENDS, run("x", "a", 0, 500, 2, 1))["shuffled"] == 1


def test_two_at_once_are_two_that_last_at_the_same_time() -> None:
    after = [*run("x", "a", 0, 500, 1), *run("y", "a", 500, 600, 2), *run("z", "b", 100, 200, 1)]
    assert judge(SENDS, after)["overlaps"] == 0
    within = [*run("x", "a", 0, 500, 1), *run("y", "a", 499, 600, 2), *run("z", "b", 100, 200, 1)]
    found = judge(SENDS, within)
    assert (found["overlaps"], found["keys_overlapped"]) == (1, 1)


@pytest.mark.parametrize(("kills_ms", "overlaps"), [((), 1), ((300.0,), 0)])
def test_a_run_without_an_end_lasts_until_the_kill(kills_ms: tuple[float, ...], overlaps: int) -> None:
    lines = [*run("x", "a", 0, None, 1), *run("y", "a", 400, 500, 1, 2)]
    found = judge(SENDS, lines, kills_ms)
    assert (found["overlaps"], found["done"], found["deliveries"]) == (overlaps, 1, 2)


def test_a_failed_run_delivers_nothing() -> None:
    lines = [*run("x", "a", 0, None, 1, 2), {"what": "failed", "run": "x", "key": "a", "at": 10}]
    found = judge(SENDS, lines)
    assert (found["arrived"], found["newest_missing"], found["longest_wait_s"]) == (0, 2, None)


def test_a_refused_send_is_not_part_of_the_sum_but_of_the_newest() -> None:
    sends = {**SENDS, ("a", 2): Sent(1, 1_000, "AlreadyQueued")}
    found = judge(sends, [*run("x", "a", 0, 10, 1), *run("y", "b", 0, 10, 1)])
    assert (found["refused"], found["newest_missing"], found["newest_refused"], found["sum_wrong"]) == (1, 1, 1, 0)


def test_what_is_handled_twice_counts_twice_in_the_sum() -> None:
    lines = [*run("x", "a", 0, 10, 1, 2), *run("y", "a", 20, 30, 2), *run("z", "b", 0, 10, 1)]
    found = judge(SENDS, lines)
    assert (found["twice"], found["arrived"], found["sum_wrong"], found["sum_off"]) == (1, 3, 1, 1)


@pytest.mark.parametrize(("total", "wrong"), [(2, 0), (1, 1)])
def test_a_sum_is_judged_by_its_total_and_its_count(total: int, wrong: int) -> None:
    lines = [*run("x", "a", 0, 10, count=2, total=total), *run("z", "b", 0, 10, count=1, total=-1)]
    found = judge(SENDS, lines)
    assert (found["arrived"], found["sum_wrong"], found["newest_missing"]) == (3, wrong, None)


def test_works_are_the_same_every_time_and_number_each_key_from_1() -> None:
    first, second = works(300, 30), works(300, 30)
    assert first == second
    for work in first:
        counted: dict[str, int] = {}
        for send in work.sends:
            counted[send.key] = counted.get(send.key, 0) + 1
            assert send.number == counted[send.key]


# --- the page


def test_the_page_is_what_the_results_say() -> None:
    page = (ROOT / "docs" / "records" / "merging_rivals.md").read_text("utf-8")
    assert report.render(page, RESULTS) == page
    for word in ("getaddrinfo", "FetchError", "404"):  # what one machine could not reach says nothing of a rival
        assert word not in page


def git(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=False)


WHOLE_HISTORY = git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"


@pytest.mark.skipif(not WHOLE_HISTORY, reason="needs the whole history of a clone")
def test_the_page_names_a_commit_of_this_history() -> None:
    commit = json.loads((RESULTS / "merging_rivals.json").read_text("utf-8"))["machine"]["commit"]
    assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, commit
