"""`rmq spark dead` and `rmq spark replay` as they are typed, in the session of the tests."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq import RmqClient, Topic, TopicType
from tests.spark.dead_letters import kill
from tests.support.cli import Cli

numbers = count(1)


@pytest.fixture
def topic(spark_client: RmqClient) -> Topic:
    """Three dead of one reason, and one of another that would write to the terminal."""
    topic = Topic(f"typed-{next(numbers)}", TopicType.RANGE_MERGE, slots=2)
    kill(spark_client, topic, ["a", "b", "c"], TimeoutError("late"))
    kill(spark_client, topic, ["d"], ValueError("\x1b[31mred"))
    return topic


@pytest.mark.slow
def test_dead_counts_shows_and_redrives(
    spark: SparkSession, spark_client: RmqClient, topic: Topic, tmp_path: Path
) -> None:
    rmq = Cli(spark_client.url)
    shown = rmq("spark", "dead", topic.name, "--out", str(tmp_path), "--where", "true", "--dry-run").out
    assert "4 dead, of which 4 meet the condition" in shown
    assert "would be redriven: 4" in shown
    assert "wrote " in shown
    assert "\x1b[31m" not in shown
    assert (tmp_path / "by_slot.png").exists()
    found = rmq("spark", "dead", topic.name, "--where", "error_type = 'TimeoutError'", "--redrive", "--json").json
    assert (found["found"], found["chosen"]) == (4, 3)
    assert found["redriven"] == {topic.name: {"redriven": 3, "merged": 0, "absent": 0}}
    assert spark_client.inspect(topic).stats().dead == 1


def test_replay_of_the_dead(spark: SparkSession, spark_client: RmqClient, topic: Topic) -> None:
    rmq = Cli(spark_client.url)
    died_ms = next(iter(spark_client.dead(topic).list())).died_ms
    day = f"{datetime.fromtimestamp(died_ms / 1_000, UTC):%Y-%m-%d}"
    empty = rmq("spark", "replay", topic.name, "--day", "2020-02-29", "--rate", "500/s")
    assert empty.out.strip() == f"0 messages of 2020-02-29 in the dead of topic {topic.name}"
    found = rmq("spark", "replay", topic.name, "--day", day, "--rate", "60000/m", "--json").json
    assert 1 <= found["found"] == found["new"] == found["sent"]  # it may be just past midnight
    assert spark_client.inspect(topic).stats().backlog == found["sent"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("dead", "t", "--redrive"), 2, "--where true selects all dead"),
        (("dead", "t", "--rate", "5/s"), 2, "require --redrive"),
        (("dead", "t", "--redrive", "--where", "true", "--rate", "0"), 2, "--rate is '0'"),
        (("dead", "{topic}", "--where", "error_typ = 1"), 2, "error_typ"),
        (("dead", "{topic}", "--out", "/dev/null/x"), 2, "folder '/dev/null/x' cannot be created"),
        (("dead", "{topic}", "--out", "out", "--format", "xml"), 2, "format is 'xml'"),
        (("dead", "{topic}", "nobody-knows"), 1, "nobody-knows"),
        (("replay", "t", "--day", "2026-02-30", "--rate", "5"), 2, "--day is '2026-02-30'"),
        (("replay", "t", "--day", "2026-02-20", "--rate", "5/d"), 2, "--rate is '5/d'"),
        (("replay", "{topic}", "--day", "2026-02-20", "--rate", "5", "--archive", "/nowhere/at/all"), 2, "/nowhere"),
        (("replay", "nobody-knows", "--day", "2026-02-20", "--rate", "5"), 1, "nobody-knows"),
    ],
)
def test_what_is_typed_wrongly(
    spark: SparkSession, spark_client: RmqClient, topic: Topic, words: tuple[str, ...], code: int, message: str
) -> None:
    ran = Cli(spark_client.url)("spark", *(word.format(topic=topic.name) for word in words), code=code)
    last = ran.err.strip().splitlines()[-1]
    assert last.startswith("rmq: ")
    assert message in last
    assert spark_client.inspect(topic).stats().dead == 4
