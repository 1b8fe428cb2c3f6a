from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq import RmqClient
from tests.spark.sessions import make_session
from tests.support.servers import RedisServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give Spark time on a busy machine: a test cut off in a call leaves the one session of all tests broken."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(1_000 if item.get_closest_marker("spark_long") else 400))


@pytest.fixture(scope="session")
def spark_server() -> Iterator[RedisServer]:
    """A Redis that Spark's processes reach by TCP."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of all tests of this folder."""
    session = make_session()
    yield session
    session.stop()


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
