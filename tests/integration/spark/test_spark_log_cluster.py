"""A query that follows a STREAM topic on a Redis Cluster, one of whose masters is replaced meanwhile, without Spark."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from pyspark.sql.streaming.datasource import ReadMaxRows

from rmq import Retention, RmqClient, StreamMessage, Topic, TopicType
from tests.integration.spark.test_spark_log import Query
from tests.support.core import slot_keys
from tests.support.topologies import RedisClusterServers
from tests.support.waiting import wait_until

LIMIT_S = 60
KEEP_ALL = Retention(max_length=0, approximate=False, every=timedelta(hours=1))


def test_a_replica_takes_over_between_two_batches() -> None:
    topic = Topic("log", TopicType.STREAM, slots=16, retention=KEEP_ALL)
    with RedisClusterServers(3, 1) as cluster, RmqClient(cluster.url, deadline_s=60.0) as client:
        client.producer(topic).send_many(StreamMessage(f"e{n}") for n in range(1_000))
        query = Query(cluster.url, topic)
        rows = Counter(content for batch in query.batches(ReadMaxRows(150), most=3) for content in batch)
        server = cluster.owner(slot_keys(topic.name, 0).store)
        cluster.kill_and_replace(server)
        wait_until(lambda: cluster.find_owner(slot_keys(topic.name, 0).store) not in (None, server), LIMIT_S)
        rows += Counter(content for batch in query.batches(ReadMaxRows(150)) for content in batch)
        client.producer(topic).send_many(StreamMessage(f"later{n}") for n in range(50))
        wait_until(lambda: query.plan(), LIMIT_S)
        rows += Counter(content.decode() for _, _, content in query.read())
        assert not query.plan()
        query.reader.stop()
        assert rows == Counter([*(f"e{n}" for n in range(1_000)), *(f"later{n}" for n in range(50))])
        stream = client.stream(topic)
        assert (stream.group("files").lag, stream.group("files").total("fresh")) == (0, 1_050)
        assert sum(trimmed.dropped for trimmed in stream.trim()) == 1_050
