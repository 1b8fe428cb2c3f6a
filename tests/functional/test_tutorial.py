"""The programs of the tutorial and of the topic types' pages run as they stand, and print what the pages say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rmq import RmqClient
from tests.support.cli import Cli
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
STEPS = {
    "first_message": "1-first-message",
    "merge_duplicates": "2-merge",
    "priorities": "3-priorities",
    "delays": "4-delays",
    "retries": "5-retries",
    "worker": "6-workers",
}
"""Program of a step -> its page."""
TOPICS = ("merging", "priorities", "delayed", "streams")
"""Pages of the topic types; the first program of each is its type's."""


def page(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text("utf-8")


def shown(text: str) -> str:
    """Return what a page says that its program prints: its first block of code without a language after it."""
    found = re.search(r"```python\n.*?```.*?\n```\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def run(program: str, url: str) -> str:
    """Run a program on a Redis of the test, so that its accounts can be looked at."""
    environment = os.environ | {"RMQ_URL": url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program.replace('"embedded://"', repr(url))]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("step", [name for name in STEPS if name != "worker"])
def test_a_step_prints_what_its_page_says(step: str) -> None:
    with RedisServer() as server:
        program = (ROOT / f"examples/tutorial/{step}.py").read_text("utf-8")
        assert run(program, server.url) == shown(page(f"tutorial/{STEPS[step]}"))
        with RmqClient(server.url) as client:
            assert all(client.inspect(topic).stats().unaccounted == 0 for topic in client.topics())


def test_every_step_has_a_page_that_shows_its_program() -> None:
    assert sorted(path.stem for path in (ROOT / "examples/tutorial").glob("*.py")) == sorted(STEPS)
    for step, name in STEPS.items():
        assert f"<!-- examples/tutorial/{step}.py -->\n" in page(f"tutorial/{name}")


@pytest.mark.timeout(150)
@pytest.mark.parametrize("owners", [False, True])
def test_the_last_step_with_processes_that_share_a_folder(tmp_path: Path, owners: bool) -> None:
    commands = page("tutorial/6-workers")
    url = f"embedded://{tmp_path}/shop"
    assert "embedded:///tmp/shop" in commands
    assert "rmq worker worker:client --processes 2\n" in commands
    folder = ROOT / "examples/tutorial"
    assert "rmq worker worker:client --processes 2 --owners redis\n" in commands
    command = ["worker", "worker:client", "--processes", "2", *(["--owners", "redis"] if owners else [])]
    with Cli(url).process(*command, cwd=folder, stderr=None) as worker:
        assert run((folder / "worker.py").read_text("utf-8"), url) == "743 pictures to draw\n"
        with RmqClient(url) as client:
            wait_until(lambda: client.inspect("price-pictures").stats().total("acked") == 743, 60)
            shares = [4, 4] if owners else [8, 8]
            wait_until(lambda: [len(each.listeners[0].slots) for each in client.workers()] == shares, 60)
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0
        assert said.count("draw item:") == 743  # threads may print into each other's lines


@pytest.mark.parametrize("name", TOPICS)
def test_the_program_of_a_topic_type_prints_what_its_page_says(name: str, tmp_path: Path) -> None:
    text = page(f"guide/{name}")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    with RedisServer() as server:
        assert run(code[1], server.url) == shown(text)
