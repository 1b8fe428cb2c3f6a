"""The plugin of pytest as users have it: the wheels of RMQ and of an example project, in a folder of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHOP = ROOT / "examples/tested_shop"
TESTS = ("test_shop.py", "test_shop_async.py")
FILES = ("shop.py", *(f"tests/{name}" for name in TESTS))
PAGE = (ROOT / "docs/guide/testing.md").read_text("utf-8")

ONE_TEST = """
import rmq, pytest_rmq

def test_where_all_comes_from(request):
    assert request.config.pluginmanager.get_plugin("rmq") is pytest_rmq
    print("from", rmq.__file__, pytest_rmq.__file__)

def test_nothing_is_left_of_a_test(rmq):
    from rmq import PriorityMessage, Topic, TopicType
    assert rmq.topics() == []
    rmq.producer(Topic("left", TopicType.PRIORITY)).send(PriorityMessage("left", 5))

def test_nothing_is_left_of_a_test_before(rmq):
    test_nothing_is_left_of_a_test(rmq)

def test_a_test_without_the_fixtures_keeps_its_url(monkeypatch):
    import os
    assert os.environ.get("RMQ_URL") == "redis://production"

def test_the_clock_runs_again(rmq_clock, rmq_server):
    rmq_clock.advance("10d")

def test_the_clock_runs_again_afterwards(rmq, rmq_server):
    from rmq import RangeMergeMessage, Topic, TopicType
    from rmq.testing import assert_sent
    import time
    rmq.producer(Topic("t", TopicType.RANGE_MERGE)).send(RangeMergeMessage("a", "1ms"))
    assert assert_sent(rmq, "t").due_ms < time.time() * 1000 + 10**8
"""

LEFT_OPEN = """
import asyncio

def test_left_open(rmq_aio):
    asyncio.run(rmq_aio.open())
"""

IMPORTS = """
def test_nothing_of_rmq_is_imported():
    import sys
    assert "pytest_rmq" in sys.modules
    assert "rmq" not in sys.modules
"""


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "PYTEST_"))}
    environment |= {"PYTHONPATH": "", "RMQ_URL": "redis://production", **variables}
    return subprocess.run(
        [*command], cwd=cwd, env=environment, capture_output=True, encoding="utf-8", timeout=100, check=False
    )


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has the wheels of RMQ and of the project; for all else it looks into this environment."""
    folder = tmp_path_factory.mktemp("installed")
    done = run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"), cwd=folder)
    assert done.returncode == 0, done.stderr
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # of a .pth file in there nobody hears
    python = str(folder / "venv/bin/python")
    pip = ("-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed")
    done = run(sys.executable, *pip, "--no-build-isolation", str(ROOT), str(SHOP), cwd=folder)
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The tests of the project, without its code, which is installed."""
    shutil.copytree(SHOP / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SHOP / "pyproject.toml", tmp_path)
    return tmp_path


def pytest_in(project: Path, python: str, *arguments: str) -> str:
    done = run(python, "-m", "pytest", "-p", "no:valkey", "-p", "no:cacheprovider", *arguments, cwd=project)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_example_projects_tests_pass(python: str, project: Path) -> None:
    assert {path.relative_to(SHOP).as_posix() for path in SHOP.rglob("*.py")} == set(FILES)
    said = pytest_in(project, python)
    assert re.search(r"^=+ 7 passed in ", said, re.MULTILINE), said


@pytest.mark.slow
def test_they_pass_beside_each_other(python: str, project: Path) -> None:
    said = pytest_in(project, python, "-n", "2")
    assert "2 workers" in said
    assert "7 passed" in said, said


@pytest.mark.slow
def test_each_test_begins_with_an_empty_server(python: str, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(ONE_TEST)
    said = pytest_in(tmp_path, python, "-s")
    assert "6 passed" in said, said
    folder = re.escape(str(Path(python).parents[1] / "lib"))
    assert re.search(rf"from {folder}/\S+/rmq/__init__\.py {folder}/\S+/pytest_rmq\.py", said), said


@pytest.mark.slow
def test_an_asyncio_client_left_open_is_an_error(python: str, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(LEFT_OPEN)
    said = pytest_in(tmp_path, python)
    assert "1 passed, 1 error" in said, said
    assert "rmq_aio is still open; write `async with rmq_aio:`" in said


def test_the_plugin_imports_rmq_for_those_who_ask_only(python: str, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(IMPORTS)
    said = pytest_in(tmp_path, python)
    assert "1 passed" in said, said


def test_the_page_shows_the_example_project() -> None:
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    texts = [(SHOP / name).read_text("utf-8") for name in FILES]
    assert len(blocks) >= 4
    assert [block for block in blocks if not any(block in text for text in texts)] == []


def test_the_page_names_all_fixtures(python: str, tmp_path: Path) -> None:
    said = pytest_in(tmp_path, python, "--fixtures", "-q")
    fixtures = set(re.findall(r"^(rmq\w*)\b", said, re.MULTILINE))
    assert fixtures == {"rmq", "rmq_aio", "rmq_clock", "rmq_server", "rmq_url"}
    assert [name for name in fixtures if f"| `{name}` |" not in PAGE] == []
