"""The declarative pipeline of docs/guide/spark.md: from a topic to a topic, and a materialized view of the dead."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from rmq import RangeMergeMessage, RmqClient, Topic, TopicType
from tests.spark.dead_letters import kill
from tests.spark.standalone import SPARK_HOME, clean_environment

pytestmark = pytest.mark.spark_long

PAGE = (Path(__file__).resolve().parents[2] / "docs/guide/spark.md").read_text("utf-8")
NUMBER = 100


def test_the_pipeline_of_the_page(spark_client: RmqClient, tmp_path: Path) -> None:
    filled = Topic(f"pipe-{os.getpid()}-mail", TopicType.RANGE_MERGE, slots=2)
    read = Topic(f"pipe-{os.getpid()}-image", TopicType.RANGE_MERGE, slots=2)
    kill(spark_client, read, ["x", "y"], ValueError("bad"))
    spark_client.producer(read).send_many(RangeMergeMessage(f"m{n}", time_range_ms=1) for n in range(NUMBER))
    spark_client.producer(filled)

    [flows] = re.findall(r"### Declarative pipelines.*?```python\n(.*?)```", PAGE, re.DOTALL)
    [spec] = re.findall(r"### Declarative pipelines.*?```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "transformations").mkdir()
    named = flows.replace("price-image", read.name).replace("price-mail", filled.name)
    (tmp_path / "transformations" / "flows.py").write_text(named)
    (tmp_path / "spark-pipeline.yml").write_text(spec.replace("/pipelines", str(tmp_path)))
    ran = subprocess.run(
        [SPARK_HOME / "bin/spark-pipelines", "run", "--conf", "spark.driver.memory=700m"],
        cwd=tmp_path,
        env={**clean_environment(), "PYSPARK_PYTHON": sys.executable, "RMQ_URL": spark_client.url},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert (ran.returncode, "Run is COMPLETED" in ran.stdout + ran.stderr) == (0, True), ran.stderr[-5_000:]

    stats = spark_client.inspect(read).stats()
    assert (stats.backlog, stats.in_flight, stats.dead, stats.total("acked")) == (0, 0, 2, NUMBER)
    assert spark_client.inspect(filled).stats().backlog == NUMBER
    [view] = (tmp_path / "spark-warehouse").glob("dead_by_error")
    assert parquet.read_table(view).to_pylist() == [{"error_type": "ValueError", "count": 2}]
