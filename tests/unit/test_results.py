"""Results of long runs: what is kept, and what the pages show of it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support import record, server_matrix
from tests.support.results import FOLDER, ROOT, Table, cell, duration, read, render

PAGE = "# Page\n\n<!-- results -->\nbefore\n<!-- end -->\n\nmore\n"

REPORT = """<?xml version="1.0"?>
<testsuites><testsuite tests="5" time="2.5">
<testcase classname="tests.lua.test_ack" name="test_a" />
<testcase classname="tests.lua.test_ack" name="test_b[1]"><failure message="m">text</failure></testcase>
<testcase classname="tests.lua.test_ack" name="test_c"><error message="m">text</error></testcase>
<testcase classname="tests.lua.test_ack" name="test_d"><skipped message="no promtool" /></testcase>
<testcase classname="tests.lua.test_ack" name="test_e" />
</testsuite></testsuites>"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "long-runs.md").write_text(PAGE)
    return tmp_path


def test_a_result_is_kept_and_shown(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", "print('much'); print('12 passed | 1 <failed>')"]
    assert record.main(["mutants", "--", *command], folder) == 0
    assert capfd.readouterr().out == "much\n12 passed | 1 <failed>\n"
    result = read("long-runs", folder)["mutants"]
    assert (result["exit_code"], result["said"]) == (0, "12 passed | 1 <failed>")
    assert str(Path(sys.executable).parent) not in json.dumps(result)
    page = (folder / "long-runs.md").read_text()
    assert "passed: 12 passed \\| 1 &lt;failed> |" in page
    assert "before" not in page
    assert page.endswith("<!-- end -->\n\nmore\n")


def test_a_failure_is_kept_and_passed_on(folder: Path) -> None:
    assert record.main(["chaos", "--", sys.executable, "-c", "raise SystemExit(3)"], folder) == 3
    assert "**failed** (3)" in (folder / "long-runs.md").read_text()


def test_what_is_interrupted_is_not_kept(folder: Path) -> None:
    dies = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert record.main(["chaos", "--", sys.executable, "-c", dies], folder) == 128 + 15
    assert record.main(["bench", "--", sys.executable, "-c", "", "--quick"], folder) == 0
    assert read("long-runs", folder) == {}


@pytest.mark.parametrize("arguments", [[], ["chaos"], ["chaos", "true", "--"], ["nothing", "--", "true"]])
def test_a_name_that_is_not_known_is_refused(arguments: list[str], folder: Path) -> None:
    assert record.main(arguments, folder) == 2
    assert read("long-runs", folder) == {}


def test_each_run_is_recorded_by_its_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recorded = re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    named = {
        name: f"make {target}" for target, recipe in recorded for name in re.findall(r"call record,([\w-]+)\)", recipe)
    }
    assert named == {name: run.target for name, run in record.RUNS.items()}


def test_counts_of_a_report() -> None:
    assert server_matrix.counts(REPORT) == {
        "passed": 2,
        "failed": ["test_ack::test_b[1]", "test_ack::test_c"],
        "skipped": {"no promtool": 1},
        "took_s": 2.5,
    }


def test_the_table_shows_what_failed_and_what_was_skipped() -> None:
    suite = {**server_matrix.counts(REPORT), "finished": "2026-11-22T20:00+00:00", "commit": "abc"}
    table = server_matrix.table(
        {"Redis 7.0": {"version": "7.0.15", "origin": "the PATH", "suites": {"scripts": suite}}}
    )
    assert "| Redis 7.0 (7.0.15) | the PATH | 2 passed, **2 failed**, 1 skipped | not run yet |" in table
    assert "- Failed on Redis 7.0: `test_ack::test_b[1]`" in table
    assert "- Skipped on Redis 7.0 (1): no promtool" in table


def test_each_file_belongs_to_one_suite() -> None:
    files = [file for suite in server_matrix.SUITES for file in server_matrix.files_of(suite)]
    there = {
        str(path.relative_to(ROOT))
        for folder in ("lua", "stateful", "integration")
        for path in (ROOT / "tests" / folder).rglob("test_*.py")
    }
    assert len(files) == len(set(files))
    assert {file for file in there - set(files) if not file.startswith(server_matrix.LEFT_OUT)} == set()
    assert all(server_matrix.files_of(suite) for suite in server_matrix.SUITES)


def test_servers_are_found_by_what_they_say(tmp_path: Path) -> None:
    program = tmp_path / "new" / "valkey-server"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'Valkey server v=8.7.6 sha=0'\n")
    program.chmod(0o755)
    found = {server.name: server for server in server_matrix.servers({"RMQ_SERVERS": str(tmp_path)})}
    assert found["Valkey 8.7"].version == "8.7.6"
    assert str(tmp_path) not in found["Valkey 8.7"].origin
    with pytest.raises(SystemExit, match="must be a folder"):
        server_matrix.servers({"RMQ_SERVERS": str(program)})


@pytest.mark.parametrize(("name", "table"), [("servers", server_matrix.table), ("long-runs", record.table)])
def test_the_pages_show_what_the_files_say(name: str, table: Table) -> None:
    page = (FOLDER / f"{name}.md").read_text("utf-8")
    assert render(page, table(read(name))) == page


def test_a_page_without_a_place_for_results_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 places"):
        render("# Page\n", "table")


def test_words_of_durations_and_cells() -> None:
    words = {3.4: "3 s", 119: "119 s", 120: "2 min", 7_000: "117 min", 9_000: "2.5 h"}
    assert {seconds: duration(seconds) for seconds in words} == words
    assert cell("\x1b[32mgreen\x1b[0m  and\tlong", 12) == "green and l…"
