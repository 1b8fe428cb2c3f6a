"""The recipes run as they stand on a real Redis, and the page shows their programs and what they print."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rmq import RmqClient
from tests.support.servers import RedisServer

ROOT = Path(__file__).parents[2]
RECIPES = {path.stem: path for path in sorted((ROOT / "examples/recipes").glob("*.py"))}
PAGE = (ROOT / "docs/guide/recipes.md").read_text("utf-8")
SECTION = re.compile(r"```python\n[^`]*```\n\n```\n(?P<output>[^`]*)```\n\n\[`\w+\.py`\]\([^)]*/(?P<name>\w+)\.py\)")
SHOWN = {found["name"]: found for found in SECTION.finditer(PAGE)}
COUNTED = re.compile(r"^(.*?)(?:: ([+-]\d+))? (?:pushes|changes)=(\d+)$", re.MULTILINE)


def run(name: str) -> str:
    """Return what a recipe prints; it leaves nothing behind in Redis."""
    with RedisServer() as server:
        program = RECIPES[name].read_text("utf-8").replace('"embedded://"', repr(server.url))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=90)
        assert (done.returncode, done.stderr) == (0, "")
        with RmqClient(server.url) as client:
            for topic in client.topics():
                stats = client.inspect(topic).stats()
                assert (stats.unaccounted, stats.backlog, stats.in_flight, stats.waiting, stats.dead) == (0,) * 5
                assert stats.total("acked") > 0
    return done.stdout


def totals(output: str) -> Counter[str]:
    """Add up values and counts of what a recipe prints: a slow machine may need a delivery more for the same sends."""
    found = Counter[str]()
    for what, value, count in COUNTED.findall(output):
        found[f"{what}, value"] += int(value or 0)
        found[f"{what}, sends"] += int(count)
    return found


def test_the_page_shows_each_program() -> None:  # tests/unit/test_docs.py holds that it shows it as it stands
    assert SHOWN.keys() == RECIPES.keys()
    assert all(f"<!-- examples/recipes/{name}.py -->\n{found[0]}" in PAGE for name, found in SHOWN.items())


@pytest.mark.parametrize(
    "name", ["apply_sum_once", "digest_mail", "hottest_first", "invalidate_cache", "join_order", "newest_price"]
)
def test_a_recipe_prints_what_the_page_shows(name: str) -> None:
    assert run(name) == SHOWN[name]["output"]


def test_stock_changes_add_up_and_count_once() -> None:
    printed, shown = totals(run("sum_stock")), totals(SHOWN["sum_stock"]["output"])
    assert printed == shown
    assert shown == {"item:mug, value": 97, "item:mug, sends": 2, "item:cup, value": -2, "item:cup, sends": 1}


def test_the_last_push_is_built_last() -> None:
    printed, shown = run("debounce_webhook").splitlines(), SHOWN["debounce_webhook"]["output"]
    commits = [line.rpartition(":")[0] for line in printed]
    assert commits[-1] == shown.rpartition(":")[0] == "build repo:shop at c3d"
    assert sum(int(line.rpartition("=")[2]) for line in printed) == 3
    assert shown.endswith("pushes=3\n")
