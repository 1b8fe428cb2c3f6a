"""A listener whose scripts Redis refuses says so now and then, and not with every try."""

from __future__ import annotations

import time

import pytest
import redis

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from tests.conftest import MakeTopic


@pytest.mark.parametrize("denied", ["zremrangebyrank", "time"])
def test_a_lack_of_rights_is_logged_once_for_many_tries(
    denied: str,
    make_topic: MakeTopic,
    redis_client: redis.Redis,
    redis_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic: Topic = make_topic(TopicType.PRIORITY, slots=4, checked=False)
    with RmqClient(redis_url) as client:
        client.producer(topic).send_many(PriorityMessage(f"m{number}", 100) for number in range(20))
    redis_client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all", f"-{denied}")
    with RmqClient(redis_url.replace("unix://", "unix://limited:pw@", 1)) as client:
        client.listener(topic, threads=3)(print)
        client.start()
        time.sleep(3.0)
        ours = [record.getMessage() for record in caplog.records if record.name.startswith("rmq.")]
        refused = [text for text in ours if topic.name in text]
        client.stop()
    assert 1 <= len(refused) <= 6, refused
