from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rmq import RmqClient
from tests.support.servers import RedisServer


@pytest.fixture(scope="session")
def spark_server() -> Iterator[RedisServer]:
    """A Redis that Spark's processes reach by TCP."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def spark_client(spark_server: RedisServer) -> Iterator[RmqClient]:
    with RmqClient(spark_server.url) as client:
        yield client


@pytest.fixture
def background() -> Iterator[threading.Event]:
    """An event that ends a test's threads."""
    stop = threading.Event()
    yield stop
    stop.set()
