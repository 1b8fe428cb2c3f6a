"""One cluster of docker-compose.yml for all tests of this folder; skipped, with the reason, where no engine answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.compose import ComposeProject, DockerError, find_engine

# The log of the workers is the ledger of deliveries.
WORKER = ["rmq", "worker", "rmq.demo.cluster:client", "--log-level", "debug"]
METRICS = ["--metrics-port", "9461", "--metrics-host", "0.0.0.0"]


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
