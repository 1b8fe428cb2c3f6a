"""The pytest plugin of RMQ: fixtures for tests of programs that use it. See docs/guide/testing.md.

pytest loads this module in every run, so that it imports `rmq` only where a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from rmq import RmqClient, aio
    from rmq.testing import Clock, Server
    from rmq.testing.awaited import AsyncClientOnClock


@pytest.fixture(scope="session")
def rmq_server() -> Iterator[Server]:
    """The embedded Redis of this process' tests: each worker of pytest-xdist has its own."""
    from rmq.testing import Server

    with Server() as server:
        yield server


@pytest.fixture
def rmq_url(rmq_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the tests' Redis, which is empty when the test begins. `RMQ_URL` names it during the test."""
    rmq_server.flush()
    monkeypatch.setenv("RMQ_URL", rmq_server.url)
    return rmq_server.url


@pytest.fixture
def rmq(rmq_server: Server, rmq_url: str) -> Iterator[RmqClient]:
    """A client of the tests' Redis, which is empty when the test begins."""
    with rmq_server.client() as client:
        yield client


@pytest.fixture
def rmq_aio(rmq_server: Server, rmq_url: str) -> Iterator[aio.RmqClient]:
    """An asyncio client of the tests' Redis, which is empty when the test begins. Use it with `async with`."""
    client = cast("AsyncClientOnClock", rmq_server.async_client())
    yield client
    if client.is_open:
        pytest.fail("rmq_aio is still open; write `async with rmq_aio:`, or `await rmq_aio.close()`", pytrace=False)


@pytest.fixture
def rmq_clock(rmq_server: Server, rmq_url: str) -> Clock:
    """The clock of `rmq` and `rmq_aio`: it stands still until the test moves it."""
    return rmq_server.clock()
