"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq._model.topics import Topic, TopicType
from rmq.client import RmqClient
from tests.conftest import MakeTopic
from tests.support.cli import Cli


@pytest.fixture
def cli(redis_url: str) -> Cli:
    return Cli(redis_url)


@pytest.fixture
def client(redis_url: str) -> Iterator[RmqClient]:
    with RmqClient(redis_url) as client:
        yield client


@pytest.fixture
def priority(make_topic: MakeTopic, client: RmqClient) -> Topic:
    """A registered PRIORITY topic."""
    return client.producer(make_topic(TopicType.PRIORITY, slots=2)).topic


@pytest.fixture
def merging(make_topic: MakeTopic, client: RmqClient) -> Topic:
    """A registered RANGE_MERGE topic."""
    return client.producer(make_topic(TopicType.RANGE_MERGE, slots=2)).topic
