"""The image: every module imports, nobody is root, nothing is written, and ARM needs no compiler."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.compose import ROOT, ComposeProject, DockerError, run

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

IMAGE = "rmq:local"
EXTRAS = ("aio", "cli", "dashboard", "metrics", "otel")
OF_OTHER_EXTRAS = ("rmq.adapters.django", "rmq.adapters.flask", "rmq.demo.pictures")
OF_SPARK = ("pyspark_rmq", "rmq.demo.price_stream", "rmq.spark")
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true")

# Prints all modules, and the errors of those that cannot be imported.
IMPORT_ALL = """
import importlib, json, pkgutil, rmq
failed = {}
names = ["rmq", "pyspark_rmq", *(each.name for each in pkgutil.walk_packages(rmq.__path__, "rmq.", failed.setdefault))]
for name in names:
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            failed[name] = str(error)
print(json.dumps({"names": names, "failed": failed}))
"""


def in_image(image: str, *command: str, text: str | None = None) -> str:
    """Run a command in a container as Compose makes it, and return what it printed."""
    return run("docker", "run", "--rm", "--interactive", *HARDENED, image, *command, text=text, timeout_s=300)


@pytest.mark.usefixtures("cluster")
def test_every_module_imports_but_those_of_extras_that_it_lacks() -> None:
    found = json.loads(in_image(IMAGE, "python", "-", text=IMPORT_ALL))
    assert _modules() <= set(found["names"]) | _below(found["failed"])
    assert [name for name in sorted(found["failed"]) if not name.startswith(OF_OTHER_EXTRAS + OF_SPARK)] == []


@pytest.mark.usefixtures("cluster")
def test_it_is_nobody_who_may_do_anything() -> None:
    assert in_image(IMAGE, "id", "-u").strip() != "0"
    status = dict(line.split(":", 1) for line in in_image(IMAGE, "cat", "/proc/self/status").splitlines())
    assert {status[name].strip("\t 0") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {""}
    assert status["NoNewPrivs"].strip() == "1"
    with pytest.raises(DockerError, match="Read-only file system"):
        in_image(IMAGE, "touch", "/home/rmq/file")
    in_image(IMAGE, "touch", "/tmp/file")
    compilers = in_image(IMAGE, "sh", "-c", "command -v cc || command -v gcc || command -v clang || echo none")
    assert compilers.strip() == "none"


@pytest.mark.parametrize("service", ["producer", "worker", "dashboard"])
def test_compose_starts_it_that_way(cluster: ComposeProject, service: str) -> None:
    (settings,) = json.loads(run("docker", "inspect", cluster.containers(service)[0]))
    assert settings["HostConfig"]["ReadonlyRootfs"] is True
    assert settings["HostConfig"]["CapDrop"] == ["ALL"]
    assert settings["Config"]["User"] == "rmq"


@pytest.mark.usefixtures("cluster")
def test_arm_gets_all_of_it_as_wheels(tmp_path: Path) -> None:
    """What the image of this machine has installed is there for ARM, too, without a compiler."""
    lines = in_image(IMAGE, "python", "-m", "pip", "freeze").splitlines()
    pinned = [
        line for line in lines if "==" in line and not line.startswith(("rmq==", "pip==", "setuptools==", "wheel=="))
    ]
    assert {"redis", "hiredis", "greenlet", "pydantic_core"} <= {line.partition("==")[0] for line in pinned}
    (tmp_path / "pinned.txt").write_text("\n".join(pinned))
    platforms = [f"--platform={name}_aarch64" for name in ("manylinux2014", "manylinux_2_17", "manylinux_2_28")]
    options = ["--no-deps", "--only-binary=:all:", "--python-version=3.11", "--implementation=cp", *platforms]
    _pip_download(tmp_path, options)
    assert len(list(tmp_path.glob("*.whl"))) == len(pinned)


def test_the_image_has_the_extras_that_are_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) <= extras.keys()
    assert f"rmq[{','.join(EXTRAS)}]" in (ROOT / "Dockerfile").read_text()


def _pip_download(folder: Path, options: Sequence[str]) -> None:
    in_folder = ("--dest", str(folder), "--requirement", str(folder / "pinned.txt"))
    run(sys.executable, "-m", "pip", "download", "--quiet", *in_folder, *options, timeout_s=300)


def _modules() -> set[str]:
    """Return the names of all modules of the repository."""
    paths = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "rmq").rglob("*.py")]
    return {".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__"}


def _below(failed: dict[str, object]) -> set[str]:
    """Return the modules in packages that cannot be imported: nobody gets to see those."""
    return {name for name in _modules() if any(name.startswith(f"{package}.") for package in failed)}
