"""What the tests against one real Redis share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq import RmqClient


@pytest.fixture
def client(redis_url: str) -> Iterator[RmqClient]:
    """A client of the shared Redis."""
    with RmqClient(redis_url, deadline_s=10.0) as client:
        yield client
