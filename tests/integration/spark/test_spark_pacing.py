"""The limit of one Spark write, on a real Redis and without Spark."""

from __future__ import annotations

import pytest
import redis

from rmq import TopicType
from rmq.spark.sink import sender
from rmq.spark.sink.sender import KEEP_S, Limit, TaskPace, sent_so_far
from tests.conftest import MakeTopic
from tests.support.core import Connections, parse_url, write_rate_key


def test_a_write_that_takes_longer_than_its_bucket_is_kept_goes_on_counting(
    redis_url: str, make_topic: MakeTopic, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, limit = make_topic(TopicType.PRIORITY), Limit(1_000_000.0, 10)
    key = write_rate_key(topic.name, limit.name)
    connections = Connections(parse_url(redis_url), deadline_s=10.0)
    now_s = [1_000.0]
    monkeypatch.setattr(sender, "monotonic_s", lambda: now_s[0])
    try:
        pace = TaskPace(connections, topic, limit)
        for _ in range(3):
            pace.wait(10)
            assert redis_client.ttl(key) > KEEP_S - 10
            redis_client.expire(key, 600)  # most of the hour is over
            pace.wait(1)
            assert redis_client.ttl(key) <= 600, "not at each chunk: that would be a trip more"
            now_s[0] += KEEP_S - 600
        assert sent_so_far(connections, topic, limit) == 33
    finally:
        connections.close()
        redis_client.delete(key)
