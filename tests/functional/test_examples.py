"""Every example runs as it stands: those with Spark in tests/spark/test_examples.py."""

from __future__ import annotations

import ast
import csv
import gzip
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmq import RmqClient
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_no_example_is_without_a_test() -> None:
    texts = "".join(path.read_text("utf-8") for path in (EXAMPLES.parent / "tests").rglob("*.py"))
    assert [path.stem for path in EXAMPLES.rglob("*.py") if f'"{path.stem}' not in texts] == []


def test_the_slice_of_the_demo_is_cut(tmp_path: Path) -> None:
    columns = ast.literal_eval(_assigned(EXAMPLES / "cut_demo_slice.py", "COLUMNS"))
    days = [datetime(2011, 12, day, 9, 30) for day in (7, 8, 8, 9)]
    rows: dict[str, list[object]] = {name: [f"{name} {number}" for number in range(4)] for name in columns}
    rows |= {"invoice_date": list(days), "customer_id": [1, None, 2, 3]}
    pq.write_table(pa.table(rows), tmp_path / "lines.parquet")  # pyright: ignore[reportUnknownMemberType]
    command = [sys.executable, str(EXAMPLES / "cut_demo_slice.py"), "lines.parquet", "cut.csv.gz"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path, timeout=60)
    assert done.stdout.startswith("2 order lines of 2011-12-08, "), done.stderr
    with gzip.open(tmp_path / "cut.csv.gz", "rt", encoding="utf-8") as lines:
        cut = list(csv.DictReader(lines))
    assert [line["invoice_date"] for line in cut] == ["2011-12-08 09:30"] * 2
    assert [line["customer_id"] for line in cut] == ["", "2"]


def _assigned(path: Path, name: str) -> ast.expr:
    """Return what a module's text assigns to a name."""
    tree = ast.parse(path.read_text("utf-8"))
    return next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
    )


def test_the_quickstart() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RMQ_URL"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "quickstart.py"], capture_output=True, encoding="utf-8", env=environment, timeout=40
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["sent mug: new", "sent mug: merged", "sent cup: new"]
    assert sorted(lines[3:]) == ["draw item:cup", "draw item:mug"]


def test_the_quickstart_is_short_enough_for_the_readme() -> None:
    text = (EXAMPLES / "quickstart.py").read_text("utf-8")
    documentation = ast.get_docstring(ast.parse(text), clean=False) or ""
    code = [line for line in text.splitlines() if line.strip() and documentation not in line]
    assert len(code) <= 15


def test_the_middleware(tmp_path: Path) -> None:
    with RedisServer() as server:
        environment, command = {**os.environ, "RMQ_URL": server.url}, [sys.executable, str(EXAMPLES / "middleware.py")]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, cwd=tmp_path, timeout=40)
    assert done.stdout.splitlines() == ["order:1, attempt 1: the bank did not answer", "closed: [('order:1',)]"], (
        done.stderr
    )


@pytest.mark.timeout(90)
def test_the_price_pictures(tmp_path: Path) -> None:
    with RedisServer() as server:
        environment = {**os.environ, "RMQ_URL": server.url, "PICTURES": str(tmp_path / "drawn")}
        command = [sys.executable, str(EXAMPLES / "price_pictures.py")]
        sent = subprocess.run(
            [*command, "send", "mug", "cup", "mug", "a/b"],
            capture_output=True,
            encoding="utf-8",
            env=environment,
            timeout=40,
        )
        assert sent.stdout == "3 new, 1 merged\n", sent.stderr
        worker = subprocess.Popen(command, env=environment)
        try:
            with RmqClient(server.url) as client:
                view = client.inspect("price-picture")
                wait_until(lambda: view.stats().total("acked") == 3)
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(30) == 0
                assert view.stats().unaccounted == 0
        finally:
            worker.kill()
            worker.wait()
    drawn = {path.name: path.read_text("utf-8") for path in (tmp_path / "drawn").iterdir()}
    assert sorted(drawn) == ["a_2f_b.svg", "cup.svg", "mug.svg"]
    assert "mug: £3.99" in drawn["mug.svg"]
