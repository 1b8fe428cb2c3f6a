"""Executors that come and go while a query drains a topic: a standalone master with two workers decides how many."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rmq import RmqClient
from tests.spark.standalone import standalone_cluster

pytestmark = pytest.mark.spark_long

NUMBER = 4_000
ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "4s",
}

JOB = """
import json, os, sys, time
from pathlib import Path
from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.spark import open_session

url, report = sys.argv[1:]
batches, seen = [], []


def take(frame, number):
    # slow enough that a second executor is worth while
    rows = frame.rdd.map(lambda row: (time.sleep(0.004), bytes(row.content).decode())[1]).collect()
    batches.append(rows)
    seen.append(executors())


def executors():
    return spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # without the driver


def wait_for(condition):
    until_s = time.monotonic() + 120
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.2)
    return condition()


with open_session("elastic") as spark, RmqClient(url) as client:
    topic = {"url": url, "topic": "elastic"}
    rows = spark.range(NUMBER).selectExpr("concat('item:', id) content", "id + 1 priority")
    rows.write.format("rmq").options(**topic, type="PRIORITY", slots=4).mode("append").save()
    stream = spark.readStream.format("rmq").options(**topic, maxMessagesPerTrigger=1000).load()
    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", os.path.abspath("checkpoint")).start()
    saw = {"drained": wait_for(lambda: sum(map(len, batches)) >= NUMBER)}
    saw["most"] = max(seen)
    saw["none left"] = wait_for(lambda: executors() == 0)
    elastic = Topic("elastic", TopicType.PRIORITY, slots=4)
    client.producer(elastic).send_many(PriorityMessage(f"late:{n}", 1) for n in range(1000))
    saw["drained again"] = wait_for(lambda: sum(map(len, batches)) >= NUMBER + 1000)
    saw["acked"] = wait_for(lambda: client.inspect("elastic").stats().in_flight == 0)
    query.stop()
saw["rows"] = sorted(row for batch in batches for row in batch)
Path(report).write_text(json.dumps(saw))
""".replace("NUMBER", str(NUMBER))


def test_a_query_goes_on_while_executors_come_and_go(spark_client: RmqClient, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    settings = [word for name, value in ALLOCATION.items() for word in ("--conf", f"{name}={value}")]
    with standalone_cluster(tmp_path) as cluster:
        cluster.environment["PYSPARK_PYTHON"] = sys.executable
        ran = cluster.submit(tmp_path, *settings, "job.py", spark_client.url, str(tmp_path / "report"))
    assert ran.returncode == 0, "\n".join(line for line in ran.stderr.splitlines() if " INFO " not in line)[-5_000:]
    saw = json.loads((tmp_path / "report").read_text())
    expected = sorted([*(f"item:{n}" for n in range(NUMBER)), *(f"late:{n}" for n in range(1_000))])
    assert saw.pop("rows") == expected, "nothing lost, nothing twice"
    assert saw.pop("most") >= 1, "at the end of a batch; how many Spark starts depends on how long its tasks take"
    assert saw == {"drained": True, "none left": True, "drained again": True, "acked": True}
    stats = spark_client.inspect("elastic").stats()
    assert (stats.backlog, stats.in_flight, stats.dead, stats.total("acked")) == (0, 0, 0, NUMBER + 1_000)
