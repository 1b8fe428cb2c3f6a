"""The Spark examples run as they stand, with the arguments that their first lines name, in the session of the tests."""

from __future__ import annotations

import runpy
import sys
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_shop.order_lines import slice_path

from rmq import RangeMergeMessage, RmqClient, Topic, TopicType
from rmq.spark import open_session
from tests.spark.dead_letters import kill

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
numbers = count(1)


@pytest.fixture(autouse=True)
def keep_the_session(spark: SparkSession) -> None:
    """`open_session` uses this one."""
    with open_session("examples") as found:
        assert found is spark


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: object) -> None:
    path = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
    runpy.run_path(path, run_name="__main__")


def test_the_prices(
    spark_client: RmqClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "spark_prices", spark_client.url, slice_path())
    out = capsys.readouterr().out
    assert "price-picture  " in out
    assert spark_client.inspect("price-picture").stats().total("accepted") > 100


def test_the_audience(
    spark_client: RmqClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(monkeypatch, "spark_audience", spark_client.url, slice_path(), tmp_path / "audience")
    out = capsys.readouterr().out
    assert "of the changes merged. " in out
    assert [line for line in out.splitlines() if line.startswith("vip ")]
    assert "|customer|turnover|segments" in out.replace(" ", "")


def test_both_sample_applications(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spark_client: RmqClient
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "spark_demo", "--url", spark_client.url, "--orders", slice_path())
    out = capsys.readouterr().out
    assert (ended.value.code, "BROKEN" in out) == (0, False), out
    assert "of 20 that the rival changed, not evaluated again: 0" in out
    used = {topic.name for topic in spark_client.topics() if topic.name.startswith("demo.spark-")}
    assert used == {"demo.spark-price-picture", "demo.spark-customer-tier", "demo.spark-audience"}


def test_the_dead_audit(
    spark_client: RmqClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    topic = Topic(f"audited-{next(numbers)}", TopicType.RANGE_MERGE, slots=2)
    kill(spark_client, topic, ["a", "b", "c"], TimeoutError("late"))
    kill(spark_client, topic, ["d"], ValueError("no"))
    run(monkeypatch, "spark_dead_audit", spark_client.url, topic.name, tmp_path)
    assert "3  TimeoutError: late" in capsys.readouterr().out
    assert spark_client.inspect(topic).stats().dead == 4
    run(monkeypatch, "spark_dead_audit", spark_client.url, topic.name, tmp_path, "error_type = 'TimeoutError'")
    out = capsys.readouterr().out
    assert f"{{'{topic.name}': 3}}" in out
    assert list(tmp_path.iterdir())
    assert (spark_client.inspect(topic).stats().dead, spark_client.inspect(topic).stats().backlog) == (1, 3)


def test_the_replay_of_the_dead(
    spark_client: RmqClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = Topic(f"replayed-{next(numbers)}", TopicType.RANGE_MERGE)
    kill(spark_client, topic, ["a", "b", "c"], TimeoutError("late"))
    days = {f"{datetime.fromtimestamp(each.died_ms / 1_000, UTC):%Y-%m-%d}" for each in spark_client.dead(topic).list()}
    for day in days:  # two of them around midnight
        run(monkeypatch, "spark_replay", spark_client.url, topic.name, day, 500)
    assert "sent by an earlier run" in capsys.readouterr().out
    assert spark_client.inspect(topic).stats().backlog == 3


def test_the_replay_of_an_archive(
    spark: SparkSession,
    spark_client: RmqClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    topic = Topic(f"archived-{next(numbers)}", TopicType.RANGE_MERGE)
    spark_client.producer(topic).send(RangeMergeMessage("a", time_range_ms=3_600_000))
    rows = [("a", datetime(2026, 11, 20, 12)), ("b", datetime(2026, 11, 20, 13)), ("c", datetime(2026, 11, 21, 1))]
    archive = str(tmp_path / "archive")
    spark.createDataFrame(rows, "content string, time timestamp").write.parquet(archive)
    run(monkeypatch, "spark_replay", spark_client.url, topic.name, "2026-11-20", 500, archive)
    assert "2 sent: 1 new, 1 merged" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["spark_audience", "spark_dead_audit", "spark_prices", "spark_replay"])
def test_without_arguments_the_usage_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"^usage: .*\.py REDIS_URL "):
        run(monkeypatch, name)
