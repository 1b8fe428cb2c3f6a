"""What the tests of `format("rmq")` without Spark share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from rmq import RmqClient
from rmq.spark.sink import writer as writers
from tests.support.core import Connections, parse_url
from tests.support.slots import forget_topic
from tests.support.spark_mistakes import TOPICS, Driver
from tests.support.spark_task import Task


@pytest.fixture(scope="module")
def known_topics(redis_url: str, redis_client: redis.Redis) -> Iterator[None]:
    """A topic of each type, and some that merge or have a bound."""
    with RmqClient(redis_url) as client:
        for topic in TOPICS:
            client.producer(topic)
    yield
    for topic in TOPICS:
        forget_topic(redis_client, topic.name)


@pytest.fixture
def driver(redis_url: str, redis_client: redis.Redis, known_topics: None, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Spark's driver, in a program whose environment names no Redis."""
    monkeypatch.delenv("RMQ_URL", raising=False)
    return Driver(redis_url, redis_client)


@pytest.fixture
def sender(redis_url: str) -> Iterator[RmqClient]:
    """A client of an ordinary program beside Spark."""
    with RmqClient(redis_url) as client:
        yield client


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    """The task that a sink believes to run in; it starts as partition 0 of batch 0."""
    context = Task()
    monkeypatch.setattr(writers, "task_context", lambda: context)
    return context


@pytest.fixture
def connections(redis_url: str) -> Iterator[Connections]:
    """Connections of a task of Spark, which gives up after ten seconds."""
    connections = Connections(parse_url(redis_url), deadline_s=10.0)
    yield connections
    connections.close()
