"""The reports of Spark's queries in Redis: who adds what, what is forgotten, and who reads them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from rmq import RmqClient, SparkQuery, Topic, TopicType
from rmq.metrics import render
from tests.conftest import MakeTopic
from tests.support.core import KEEP_S, MOST_QUERIES, Connections, SparkQueries, parse_url, spark_queries_key

SOURCE = SparkQuery("source", "abc", 7, 0, 0, {"acked": 70, "redelivered": 10, "lost": 1}, 0.25, 30, 12.5)


@pytest.fixture
def topic(client: RmqClient, make_topic: MakeTopic) -> Topic:
    return client.producer(make_topic(TopicType.PRIORITY)).topic


@pytest.fixture
def reports(redis_url: str, topic: Topic) -> Iterator[SparkQueries]:
    connections = Connections(parse_url(redis_url))
    yield SparkQueries(connections, topic.name)
    connections.close()


def test_what_a_source_reports_is_read_with_the_time_of_its_tasks(
    client: RmqClient, topic: Topic, reports: SparkQueries, redis_client: redis.Redis
) -> None:
    assert client.inspect(topic).spark_queries() == []
    reports.publish(SOURCE)
    reports.add_time("source", "abc", 0.5)
    reports.add_time("source", "abc", 0.25)
    [found] = client.inspect(topic).spark_queries()
    assert (found.role, found.name, found.batch, found.totals) == ("source", "abc", 7, SOURCE.totals)
    assert (found.behind, found.lease_left_s, found.redis_s) == (30, 12.5, 1.0)
    assert 0 <= found.silent_ms < 60_000
    assert found.lease_left_now_s is not None
    assert found.lease_left_now_s <= 12.5
    left_s: object = redis_client.ttl(spark_queries_key(topic.name))
    assert left_s in range(KEEP_S - 60, KEEP_S + 1)


def test_a_batch_counts_once_however_often_it_is_told_of(
    client: RmqClient, topic: Topic, reports: SparkQueries
) -> None:
    for batch, rows in ((3, 10), (4, 5), (4, 5), (3, 10)):
        reports.add("sink", "q", batch, {"rows": rows, "new": rows - 1, "merged": 1}, 0.5)
    [found] = client.inspect(topic).spark_queries()
    assert (found.batch, found.totals, found.sent) == (4, {"rows": 15, "new": 13, "merged": 2}, 15)
    assert found.redis_s == pytest.approx(1.0)


def test_old_reports_are_forgotten_and_their_number_is_bounded(
    client: RmqClient, topic: Topic, reports: SparkQueries, redis_client: redis.Redis
) -> None:
    key = spark_queries_key(topic.name)
    reports.publish(SOURCE)
    now_ms = client.inspect(topic).spark_queries()[0].now_ms
    for number in range(MOST_QUERIES + 5):
        old = SparkQuery("write", f"w{number}", 1, now_ms - 5_000 - number, 0, {})
        redis_client.hset(key, f"write:w{number}", old.to_json())
    gone = SparkQuery("sink", "gone", 1, now_ms - KEEP_S * 1_000, 0, {})
    redis_client.hset(key, mapping={"sink:gone": gone.to_json(), "us:sink:gone": 5, "us:sink:never": 5})
    assert "gone" not in {query.name for query in client.inspect(topic).spark_queries()}
    reports.add("sink", "new", 1, {"rows": 1}, 0.0)
    names = [query.name for query in client.inspect(topic).spark_queries()]
    assert names[:2] == ["abc", "new"]
    assert len(names) == redis_client.hlen(key) == MOST_QUERIES


def test_what_cannot_be_read_is_passed_over_and_hides_nothing(
    client: RmqClient, topic: Topic, reports: SparkQueries, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    key = spark_queries_key(topic.name)
    reports.publish(SOURCE)
    newer = SOURCE.to_json().replace('"min_reader":4', '"min_reader":99')
    bad: dict[Any, Any] = {
        "sink:a": "no JSON",
        "sink:b": "{}",
        "sink:c": newer,
        "who:d": SOURCE.to_json(),
        "us:source:abc": "x",
    }
    redis_client.hset(key, mapping=bad)
    with caplog.at_level(logging.WARNING, "rmq.spark"):
        assert [query.name for query in client.inspect(topic).spark_queries()] == ["abc"]
    assert sum(record.getMessage().startswith("ignored: ") for record in caplog.records) == 4


def test_prometheus_reads_them_also_of_streams(
    client: RmqClient, redis_url: str, reports: SparkQueries, topic: Topic, make_topic: MakeTopic
) -> None:
    stream = client.producer(make_topic(TopicType.STREAM, checked=False)).topic
    reports.publish(SOURCE)
    connections = Connections(parse_url(redis_url))
    SparkQueries(connections, stream.name).add("sink", "q", 1, {"rows": 8, "new": 8}, 1.5)
    connections.close()
    found = [line for line in render(client).splitlines() if line.startswith("rmq_spark")]

    def value(start: str) -> float:
        [line] = [line for line in found if line.startswith(start)]
        return float(line.rpartition(" ")[2])

    source = f'query="abc",role="source",topic="{topic.name}"'
    assert value(f'rmq_spark_total{{event="redelivered",{source}}}') == 10
    assert value(f"rmq_spark_behind{{{source}}}") == 30
    assert 0 < value(f"rmq_spark_lease_left_seconds{{{source}}}") <= 12.5
    assert 0 <= value(f"rmq_spark_report_age_seconds{{{source}}}") < 60
    sink = f'query="q",role="sink",topic="{stream.name}"'
    assert value(f'rmq_spark_total{{event="rows",{sink}}}') == 8
    assert value(f"rmq_spark_redis_seconds_total{{{sink}}}") == 1.5
    assert not [line for line in found if line.startswith(f"rmq_spark_behind{{{sink}")]
