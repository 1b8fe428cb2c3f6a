"""A test server, and what the plugin's fixtures give. The plugin runs in tests/functional/test_tested_shop.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq import RmqClient
from rmq.testing import Clock, Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def rmq(server: Server) -> Iterator[RmqClient]:
    server.flush()
    with server.client() as client:
        yield client


@pytest.fixture
def clock(server: Server, rmq: RmqClient) -> Clock:
    return server.clock()
