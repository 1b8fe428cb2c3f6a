"""What the tests against one real Redis share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq import RmqClient
from rmq.testing import Server
from tests.support.sides import SIDES, Side, side_of

BOTH_SIDES = {
    f"test_{part}"
    for part in (
        "order producer consumer streams resuming delayed_queue dead control deletion faults merged_deliveries stop "
        "retry_after"
    ).split()
}
"""Modules whose tests run over both sides."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of some modules over the asyncio side, too."""
    if "side" in metafunc.fixturenames and metafunc.definition.path.stem in BOTH_SIDES:
        metafunc.parametrize("side", SIDES, indirect=True)


@pytest.fixture
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """One side of the library."""
    with side_of(getattr(request, "param", "threads")) as side:
        yield side


@pytest.fixture
def client(redis_url: str, side: Side) -> Iterator[RmqClient]:
    """A client of the shared Redis."""
    with side.client(redis_url, deadline_s=10.0) as client:
        yield client


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of `rmq.testing`, whose clock a test can stop."""
    with Server() as server:
        yield server


@pytest.fixture
def rmq(server: Server) -> Iterator[RmqClient]:
    """A client of that server, which is empty."""
    server.flush()
    with server.client() as client:
        yield client
