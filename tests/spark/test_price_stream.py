"""The streaming job of docker-compose.yml in a local Spark: changes merge, and what it reads goes to the workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq import RmqClient
from rmq.demo import price_stream
from rmq.demo.cluster import PICTURES
from rmq.demo.price_stream import CHANGES, ITEMS
from tests.spark.frames import stored
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LIMIT_S = 150


@pytest.fixture
def client() -> Iterator[RmqClient]:
    """A client of a Redis of this test: the job names its topics itself, and other tests have such, too."""
    with RedisServer() as server, RmqClient(server.url) as client:
        yield client


def test_changes_merge_and_each_item_comes_to_the_workers(
    spark: SparkSession, client: RmqClient, tmp_path: Path
) -> None:
    client.producer(CHANGES)
    items = {f"stream-item:{number}".encode() for number in range(ITEMS)}
    queries = [start(spark, client.url, str(tmp_path)) for start in (price_stream.fill, price_stream.drain)]
    try:
        client.producer(PICTURES)

        def done() -> bool:
            assert [query.exception() for query in queries] == [None, None]
            return stored(client, PICTURES).keys() == items

        wait_until(done, LIMIT_S, "a picture of each item")
        changes = client.inspect(CHANGES)
        wait_until(lambda: changes.stats().total("acked"), LIMIT_S, "an acked batch")
        assert changes.stats().total("merged") > 0
    finally:
        for query in queries:
            query.stop()
