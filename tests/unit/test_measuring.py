"""What benchmarks share: where results go, figures of several runs, and the native floor."""

from __future__ import annotations

import argparse
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import hiredis
import pytest

from benchmarks import report, scaling, suite, throughput
from benchmarks.support import flow, harness, loads, native, rendering
from benchmarks.support.samples import in_turns, joined, ratio, sample, summary


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return where first looks and measurements go in this test."""
    first_looks, results = tmp_path / "first", tmp_path / "results"
    monkeypatch.setattr(harness, "FIRST_LOOKS", first_looks)
    monkeypatch.setattr(harness, "RESULTS", results)
    monkeypatch.setattr(harness, "_end_in_order", lambda: None)
    return first_looks, results


def benchmark(rates: list[float]) -> harness.Benchmark:
    """Return a benchmark of two cases that takes its figures from a list."""

    def measure(options: argparse.Namespace) -> harness.Document:
        samples = [
            sample(case, repeat, {"rate": rates.pop(0)})
            for repeat in range(options.repeats)
            for case in ("ours", "bare")
        ]
        return {"settings": {"messages": 1 if options.quick else 2}, "samples": samples}

    def summarize(document: harness.Document) -> harness.Document:
        return {"rows": summary(document["samples"]), "over": ratio(document["samples"], "ours", "bare", "rate")}

    return harness.Benchmark("toy", measure, lambda document: str(document["over"]), None, None, summarize)


def read(folder: Path) -> Any:
    return json.loads((folder / "toy.json").read_text("utf-8"))


def test_a_first_look_leaves_the_kept_results_alone(folders: tuple[Path, Path]) -> None:
    first_looks, results = folders
    benchmark([4.0, 2.0]).main(["--repeats", "1"])
    kept = (results / "toy.json").read_bytes()
    benchmark([9.0, 1.0]).main(["--quick", "--repeats", "1"])
    assert (results / "toy.json").read_bytes() == kept
    assert read(first_looks)["over"] == 9.0


def test_git_does_not_keep_first_looks() -> None:
    assert harness.FIRST_LOOKS.is_relative_to(harness.ROOT / "build")
    assert "build/" in (harness.ROOT / ".gitignore").read_text("utf-8").splitlines()


def test_repeats_of_several_runs_join(folders: tuple[Path, Path]) -> None:
    results = folders[1]
    benchmark([4.0, 2.0]).main(["--repeats", "1"])
    benchmark([9.0, 3.0, 80.0, 10.0]).main(["--repeats", "2", "--add"])
    found = read(results)
    assert (found["repeats"], len(found["runs"])) == (3, 2)
    assert found["rows"]["ours"] == {"rate": 9.0, "repeats": 3}
    assert found["over"] == 3.0  # the median of 2, 3 and 8, and not 9 over 3 of the medians
    benchmark([5.0, 1.0]).main(["--repeats", "1"])
    assert (read(results)["repeats"], read(results)["over"]) == (1, 5.0)


def test_runs_with_other_settings_do_not_join(folders: tuple[Path, Path]) -> None:
    first_looks = folders[0]
    benchmark([4.0, 2.0]).main(["--quick", "--repeats", "1"])
    with pytest.raises(SystemExit, match="messages"):
        benchmark([4.0, 2.0]).main(["--repeats", "1", "--add", "--results", str(first_looks)])


def test_a_ratio_is_taken_within_repeats_that_have_both() -> None:
    samples = [sample("a", 0, {"x": 6}), sample("b", 0, {"x": 2}), sample("a", 1, {"x": 50}), sample("b", 2, {"x": 1})]
    assert ratio(samples, "a", "b", "x") == 3
    assert ratio(samples, "a", "c", "x") is None
    assert [each["repeat"] for each in joined(samples, samples)] == [0, 0, 1, 2, 3, 3, 4, 5]


def test_cases_are_measured_in_turns() -> None:
    seen: list[str] = []

    def run(case: str) -> dict[str, float]:
        seen.append(case)
        return {"x": float(len(seen))}

    samples = in_turns("toy", 2, {case: partial(run, case) for case in ("a", "b")})
    assert seen == ["a", "b", "b", "a"]
    assert summary(samples) == {"a": {"x": 2.5, "repeats": 2}, "b": {"x": 2.5, "repeats": 2}}


def test_a_table_formats_the_figures_of_each_row() -> None:
    rows = [{"case": "a", "RMQ": {"rate": 1234.5}, "over": 1.239}, {"case": "b", "RMQ": {"rate": 9.0}, "over": None}]
    columns: list[rendering.Column] = [("", "{case}"), ("1/s", "{RMQ[rate]:,.1f}"), ("over", "{over:×}"), ("n", len)]
    assert rendering.listed(rows, *columns).splitlines() == [
        "|  | 1/s | over | n |",
        "|---|---:|---:|---:|",
        "| a | 1,234.5 | 1.24 × | 3 |",
        "| b | 9.0 | – | 3 |",
    ]


def test_a_page_names_all_commits_of_its_runs() -> None:
    machine = {**harness.machine(), "commit": "bbb", harness.LOAD: 2.0}
    runs = [{"commit": "aaa", harness.LOAD: 0.5}, {"commit": "bbb", harness.LOAD: 2.0}]
    document = {"machine": machine, "quick": False, "repeats": 5, "finished": "2026-01-02T03:04", "runs": runs}
    said = report.provenance(document)
    assert "Medians of 5 in 2 runs; 2026-01-02, commit aaa, bbb;" in said
    assert "load at the start 0.5 to 2.0" in said


def test_what_the_suite_measures_is_on_a_page() -> None:
    shown = {
        name for page in report.PAGES for name in re.findall(r"<!-- benchmark: (\w+) -->", page.read_text("utf-8"))
    }
    assert set(suite.NAMES) <= report.MODULES.keys()
    assert shown == report.MODULES.keys()


def test_a_backlog_grows_by_what_is_sent_and_not_consumed() -> None:
    sent = [(float(second), 100 * second) for second in range(11)]
    same, half = ([(at_s + 0.5, int(done * share)) for at_s, done in sent] for share in (1.0, 0.5))
    steady, growing = flow.backlogs([sent], [same]), flow.backlogs([sent], [half])
    assert (steady["backlog_end"], growing["backlog_end"]) == (100, 550)
    assert abs(steady["growth_share"]) < 0.02
    assert growing["growth_share"] == pytest.approx(0.5, abs=0.05)
    twice = flow.backlogs([sent, sent], [half, half])
    assert twice["growth_share"] == pytest.approx(growing["growth_share"])
    assert twice["backlog_end"] == 1_100


def test_the_highest_rate_is_found_by_halving() -> None:
    tried: list[float] = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= 70_000

    assert 70_000 * (1 - throughput.CLOSE) <= throughput.highest(holds, 100_000) <= 70_000
    assert len(tried) <= 7


def test_contents_tell_their_places() -> None:
    assert [loads.index_of(each) for each in loads.contents(5, 1_000_000)] == [*range(1_000_000, 1_000_005)]


@pytest.mark.parametrize(("cores", "rate", "waits_for"), [(2, 250_000, "clients"), (16, 500_000, "Redis")])
def test_more_cores_end_where_redis_or_the_clients_are_busy(cores: int, rate: float, waits_for: str) -> None:
    row = {"kind": "priority", "nodes": 1, "producers": 1, "workers": 1}
    costs = {"server_cpu_us": 2.0, "sender_cpu_us": 1.5, "consumer_cpu_us": 2.5}
    found = scaling.model(row | costs, cores)
    assert (found["rate_per_s"], found["waits_for"], found["enough_cores"]) == (rate, waits_for, 3.0)


@pytest.mark.parametrize(("highest_first", "order"), [(False, b"cfebad"), (True, b"adebcf")])
def test_the_floor_pops_what_each_slot_has_in_turns(highest_first: bool, order: bytes) -> None:
    contents, scores = [b"%c" % letter for letter in b"abcdef"], [5, 4, 1, 6, 3, 2]
    life = native.encode(contents, scores, 1, highest_first, slots=2)
    assert [command[1] for command in commands(life.sends)] == [b"native_0", b"native_1"] * 3
    claims = commands(life.claims)
    assert [command[:2] for command in claims[::3]] == [
        [b"ZPOPMAX" if highest_first else b"ZPOPMIN", b"native_%d" % slot] for slot in (0, 1)
    ] * 3
    assert b"".join(command[-1] for command in claims[2::3]) == order
    assert life.number == 6


def commands(requests: list[bytes]) -> list[list[bytes]]:
    reader = hiredis.Reader()
    reader.feed(b"".join(requests))
    return list(iter(reader.gets, False))


@pytest.mark.parametrize("name", report.MODULES)
def test_each_kept_result_can_be_rendered(name: str) -> None:
    shown = report.section(name, harness.RESULTS)
    assert "earlier version" not in shown
    assert "Not measured yet" not in shown
