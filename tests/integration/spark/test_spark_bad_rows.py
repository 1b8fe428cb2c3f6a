"""What a sink puts aside where the server refuses a part of a marked chunk, on a real Redis and without Spark."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]
import pytest
import redis

from rmq import Topic, TopicType
from rmq.spark.marks import Mark
from rmq.spark.sink.columns import Layout
from rmq.spark.sink.encoding import BadRows
from rmq.spark.sink.sender import Counts, Sending, TaskSender
from tests.conftest import MakeTopic
from tests.support.core import Connections, EncodedMessage, Rows, sent_key, slot_keys


class Task:
    """One task of one batch, which may be tried again."""

    def __init__(self, connections: Connections, topic: Topic, folder: Path, *, marked: bool) -> None:
        self._connections, self._topic, self._folder = connections, topic, folder
        self._mark = Mark("q", 0, 0, 60) if marked else None

    def attempt(self, rows: list[EncodedMessage]) -> tuple[Counts, BadRows]:
        layout = Layout(self._topic, "fixed_time")
        bad_rows = BadRows(layout, self._folder.as_uri(), "part")
        columns = {"content": [row.content for row in rows], "fixed_time": [row.value for row in rows]}
        bad_rows.take(pa.record_batch(columns), {})
        sender = TaskSender(self._connections, self._topic, Sending(True, 100, 100, 1, "collect"), bad_rows, self._mark)
        sender.add(Rows.of(rows))
        return sender.finish(), bad_rows

    def put_aside(self) -> list[bytes]:
        return [
            content for path in self._folder.iterdir() for content in parquet.read_table(path)["content"].to_pylist()
        ]


@pytest.mark.parametrize("marked", [True, False])
def test_a_row_that_the_server_refused_is_put_aside_by_the_attempt_that_ends_well(
    connections: Connections, make_topic: MakeTopic, redis_client: redis.Redis, tmp_path: Path, marked: bool
) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=1)
    task = Task(connections, topic, tmp_path / "bad", marked=marked)
    now_ms = int(time.time() * 1_000)
    soon_ms = now_ms + 5_000
    rows = [EncodedMessage(0, *row, None) for row in ((b"passed", 7), (b"soon", soon_ms), (b"later", now_ms + 10**6))]
    counts, bad_rows = task.attempt(rows)
    assert counts == Counts(new=2)
    bad_rows.drop()  # something else ends the task
    assert task.put_aside() == []
    time.sleep(max(0.0, soon_ms / 1_000 - time.time()) + 0.05)
    counts, bad_rows = task.attempt(rows)
    bad_rows.keep()
    if marked:
        assert counts == Counts(skipped=2)
        assert task.put_aside() == [b"passed"], "what was sent is not bad because its time has come"
    else:
        assert counts == Counts(merged=1)
        assert sorted(task.put_aside()) == [b"passed", b"soon"]
    stored = redis_client.zrange(slot_keys(topic.name, 0).store, 0, -1)
    assert sorted(stored) == [b"later", b"soon"]
    redis_client.delete(sent_key(topic.name, 0, "q"))
