"""One cluster of docker-compose.yml for all tests of this folder; skipped, with the reason, where no engine answers.

RMQ_DOCKER_BUDGET_S says for how many seconds tests are begun; later ones are skipped. CI sets it: it must not take
longer where an engine is slow. A test that was begun has to end within its own limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.support.compose import ComposeProject, DockerError, find_engine

BUDGET_VARIABLE = "RMQ_DOCKER_BUDGET_S"

# The log of the workers is the ledger of deliveries.
WORKER = ["rmq", "worker", "rmq.demo.cluster:client", "--log-level", "debug"]
METRICS = ["--metrics-port", "9461", "--metrics-host", "0.0.0.0"]


BEGAN_S = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip what would begin too late."""
    budget_s = float(os.environ.get(BUDGET_VARIABLE) or "inf")
    if time.monotonic() - BEGAN_S > budget_s:
        pytest.skip(f"the tests in containers had {budget_s:g} s to begin ({BUDGET_VARIABLE})")


@pytest.fixture(scope="session")
def engine() -> tuple[str, ...]:
    """The command of Compose for the engine of this machine."""
    try:
        return find_engine()
    except DockerError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cluster(engine: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeProject]:
    """The running cluster, of images built from this repository. Whatever happens, nothing of it is left."""
    project = ComposeProject(engine, tmp_path_factory.mktemp("compose"), {"worker": {"command": [*WORKER, *METRICS]}})
    try:
        project("build", "worker", slow=True)
        project("up", "--detach", slow=True)
        yield project
    finally:
        project("--profile", "*", "down", "--volumes", "--remove-orphans", slow=True)
        left = project.containers(all=True), project.volumes(), project.networks()
    assert left == ([], [], [])
