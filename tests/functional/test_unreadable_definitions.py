"""A registry with definitions of newer versions, of other tenants and of nobody: every face shows all the rest."""

from __future__ import annotations

import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from rmq import PriorityMessage, RmqClient, StreamMessage, Topic, TopicType
from rmq.metrics import render
from tests.conftest import MakeTopic
from tests.support.cli import Cli, bury
from tests.support.dashboard import served
from tests.support.garbage import NEWER_NAME, littered

WIDE = {"COLUMNS": "250"}


@pytest.fixture
def mine(client: RmqClient, make_topic: MakeTopic) -> Topic:
    """A topic with something to see."""
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many(PriorityMessage(name, 100) for name in ("a", "b"))
    bury(client, topic)
    client.producer(topic).send(PriorityMessage("c", 100))
    return topic


def test_the_command_line_shows_the_rest(cli: Cli, mine: Topic, redis_client: redis.Redis) -> None:
    with littered(redis_client) as number:
        for command in ("topics", "stats"):
            ran = cli(command, env=WIDE)
            assert ran.code == 0, ran.err
            assert mine.name in ran.out
            assert f"not shown: the definition of topic {NEWER_NAME} is for schema version" in ran.err
            assert "upgrade this RMQ" in ran.err
            document = cli(command, "--json").json
            assert mine.name in [topic.get("name", topic.get("topic")) for topic in document["topics"]]
            newer = next(each for each in document["unreadable"] if each["name"] == NEWER_NAME)
            assert newer["min_reader"] < newer["version"]
            assert len(document["unreadable"]) == number
        assert cli("stats", mine.name).code == 0
        assert cli("topics", "show", mine.name).code == 0
        assert cli("dead", "list", mine.name).code == 0
        for command in (("topics", "show"), ("stats",), ("topics", "change", "--lease", "9s"), ("peek",)):
            ran = cli(*command, NEWER_NAME, code=2)
            assert "is for schema version" in ran.err
            assert "Traceback" not in ran.err


def test_every_page_shows_the_rest(client: RmqClient, mine: Topic, redis_client: redis.Redis) -> None:
    with (
        littered(redis_client),
        served(client) as address,
        httpx.Client(base_url=address, trust_env=False, follow_redirects=True) as browser,
    ):
        name = mine.name
        for path in (
            "/", f"/topic/{name}", f"/topic/{name}/slot/0", "/workers", "/search", f"/search?topic={name}",
            f"/find?q={name}", f"/message?topic={name}&content=a", "/dead", f"/dead?topic={name}",
            "/audit", f"/audit?topic={name}",
        ):  # fmt: skip
            answer = browser.get(path, timeout=60)
            assert answer.status_code == 200, path
            assert path == "/workers" or name in answer.text, path
        first = browser.get("/").text
        assert NEWER_NAME in first
        assert "is for schema version" in first
        assert "\x1b" not in first
        for path in (f"/topic/{NEWER_NAME}", f"/search?topic={NEWER_NAME}", f"/audit?topic={NEWER_NAME}"):
            answer = browser.get(path)
            assert answer.status_code == 400, path
            assert "is for schema version" in answer.text, path


def test_prometheus_gets_the_rest(client: RmqClient, mine: Topic, redis_client: redis.Redis) -> None:
    with littered(redis_client) as number:
        families = {family.name: family.samples for family in text_string_to_metric_families(render(client))}
        assert families["rmq_up"][0].value == 1
        assert families["rmq_definitions_unreadable"][0].value == number
        assert mine.name in [sample.labels["topic"] for sample in families["rmq_backlog"]]


def test_a_topic_whose_keys_are_of_a_foreign_type_hides_no_other(
    cli: Cli, client: RmqClient, mine: Topic, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    broken = make_topic(TopicType.PRIORITY, checked=False)
    stream = make_topic(TopicType.STREAM, checked=False)
    client.producer(broken).send(PriorityMessage("a", 100))
    client.producer(stream).send(StreamMessage("a"))
    redis_client.set(f"{broken.name}_0", "foreign")
    redis_client.set(f"{stream.name}_0", "foreign")
    try:
        ran = cli("stats", env=WIDE)
        assert ran.code == 0
        assert mine.name in ran.out
        assert f"not shown: topic {broken.name}: " in ran.err
        assert f"not shown: topic {stream.name}: " in ran.err
        families = {family.name: family.samples for family in text_string_to_metric_families(render(client))}
        assert families["rmq_up"][0].value == 1
        unreadable = {sample.labels["topic"] for sample in families["rmq_topic_unreadable"]}
        assert unreadable == {broken.name, stream.name}
        assert mine.name in [sample.labels["topic"] for sample in families["rmq_backlog"]]
    finally:
        redis_client.delete(f"{broken.name}_0", f"{stream.name}_0")
