"""Every example runs as it stands."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rmq import RmqClient
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


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
                wait_until(lambda: view.stats().total("acked") == 3, 30)
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(30) == 0
                assert view.stats().unaccounted == 0
        finally:
            worker.kill()
            worker.wait()
    drawn = {path.name: path.read_text("utf-8") for path in (tmp_path / "drawn").iterdir()}
    assert sorted(drawn) == ["a_2f_b.svg", "cup.svg", "mug.svg"]
    assert "mug: £3.99" in drawn["mug.svg"]
