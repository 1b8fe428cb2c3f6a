"""A campaign's result on its page: figures, faults by kind, what was left out; and when something grows."""

from __future__ import annotations

from typing import Any

from tests.campaign.page import render
from tests.campaign.samples import growing, most

DOCUMENT: dict[str, Any] = {
    "machine": {
        "cpu": "a CPU", "cores": 2, "memory_gb": 8.0, "system": "Linux", "python": "3.11", "redis": "7.0",
        "redis_py": "8.1", "commit": "abc",
    },
    "finished": "2026-01-02T03:04:05+00:00",
    "settings": {"seed": 7, "lease_s": 6, "session_s": 4.0, "recovery_s": 5.0},
    "accepted": 1_234_567, "refused": 12, "unknown": 3, "runs": 9, "retries": 1, "longest_unowned_s": 4.56,
    "duplicates": {"worker killed": 5, "redis failover": 6},
    "excused overlaps": {"worker paused": 2},
    "faults": {"worker killed": 4},
    "not tried": {"clock jumps": "no library"},
    "violations": {"lost": 8, "process": 1},
    "most": {"worker memory MB": [50.0, 51.0]},
    "notes": {"minutes": 30.0, "dead": 0, "drained_s": 2.5, "spark": {"written": 20, "failed": 1}},
}  # fmt: skip
PAGE = "# A page\n\n<!-- benchmark: campaign -->\nold\n<!-- end -->\n\nand more\n"


def test_a_page_has_the_newest_result_and_all_else_as_it_was():
    page = render(PAGE, DOCUMENT)
    assert page.startswith("# A page\n")
    assert page.endswith("<!-- end -->\n\nand more\n")
    assert "old" not in page
    assert render(page, DOCUMENT) == page
    for row in (
        "| sends accepted | 1,234,567 |", "| lost | 8 |", "| process | 1 |", "| duplicated | 0 |",
        "| redis failover | 6 |", "| clock jumps: left out, no library | – |", "| worker memory MB | 50.0 | 51.0 |",
        "| sends handled again through a fault | 11 |", "| writes of the Spark job that failed | 1 |",
    ):  # fmt: skip
        assert row in page
    assert "Seed 7" in page


def test_what_grows_is_found():
    steady, rising = [100.0, 140.0] * 10, [float(100 + 10 * number) for number in range(20)]
    series = {"redis 0 keys": steady, "worker 1 memory MB": rising, "worker 2 threads": rising[:10]}
    assert [said.partition(":")[0] for said in growing(series)] == ["worker 1 memory MB"]


def test_the_most_of_several_is_told():
    series = {"redis 0 keys": [1.0] * 20, "redis 1 keys": [3.0] * 20, "worker 0 threads": [5.0] * 20}
    assert most(series) == {"redis keys": [3.0, 3.0], "worker threads": [5.0, 5.0]}
