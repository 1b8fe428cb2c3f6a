"""What a sink's task sends to a topic that merges, and a repeated one does not, on a real Redis and without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]
import pytest
import redis
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType

from rmq import (
    PER_MESSAGE,
    Collect,
    Keep,
    Max,
    Merge,
    Min,
    Newest,
    Replace,
    RmqClient,
    SendResult,
    Sliding,
    Sum,
    Topic,
    TopicType,
    WhenFull,
)
from rmq.errors import BacklogFullError, BatchChangedError, CollectionFullError, InvalidValueError
from rmq.spark.marks import Mark, Once, send_once
from rmq.spark.options import parse_options
from rmq.spark.sink.columns import Layout, layout_of
from rmq.spark.sink.encoding import BadRows, encode_rows
from rmq.spark.sink.sender import Counts, Sending, TaskSender
from tests.conftest import MakeTopic
from tests.support.core import (
    Connections,
    EncodedMessage,
    QueueBroker,
    Record,
    Reducer,
    Rows,
    framed,
    read_record,
    send_patiently,
    sent_key,
    slot_keys,
    stats,
    write_record,
)
from tests.support.waiting import wait_until

MARK = Mark("q", 0, 0, 60)
FOLDED, PLAIN = Sending(True, 10_000, 100, 2), Sending(False, 10_000, 100, 2)


Send = Callable[..., Counts]


@pytest.fixture
def send(connections: Connections, redis_client: redis.Redis) -> Iterator[Send]:
    """Send rows as one attempt of a task does."""
    topics: list[Topic] = []

    def run(topic: Topic, rows: list[EncodedMessage], sending: Sending = FOLDED, mark: Mark | None = MARK) -> Counts:
        topics.append(topic)
        sender = TaskSender(connections, topic, sending, BadRows(Layout(topic), None, "part"), mark)
        try:
            sender.add(Rows.of(rows))
            return sender.finish()
        finally:
            sender.close()

    yield run
    for topic in topics:
        for slot in range(topic.slots):
            redis_client.delete(sent_key(topic.name, slot, "q"))


def values(client: redis.Redis, topic: Topic) -> dict[bytes, tuple[object, ...]]:
    """Return what is stored: content -> count, number, value."""
    found: dict[bytes, tuple[object, ...]] = {}
    for slot in range(topic.slots):
        stored: dict[bytes, bytes] = client.hgetall(slot_keys(topic.name, slot).body)  # pyright: ignore[reportAssignmentType]
        for content, body in stored.items():
            record = read_record(body) or Record(0, 0, 0, 0, "?")
            found[content] = record.count, record.number, record.value
    return found


def rows_of(topic: Topic, number: int = 600, contents: int = 40, seed: int = 1) -> list[EncodedMessage]:
    """Return rows as a frame may have them."""
    random, kind = Random(seed), topic.merge.kind if topic.merge else ""
    rows: list[EncodedMessage] = []
    for i in range(number):
        content = b"c%d" % random.randrange(contents)
        value, figure = b"", float(random.randint(-50, 50))
        if kind in "KRN":
            value, figure = b"=%d" % i, figure + 50 if kind == "N" else 0
        elif kind in "CUJ":
            item = b"%d" % random.randrange(50)
            value, figure = framed([item]), 1
        record = write_record(Record(random.randint(1, 3), 0, 0, figure, kind, value))
        rows.append(EncodedMessage(topic.slot_of(content), content, random.randint(100, 200) * 1_000, record))
    return rows


@pytest.mark.parametrize(
    "reducer",
    [Keep(), Replace(), Newest(), Max(), Min(), Sum(), Collect(), Collect(unique=True), Collect(max_items=7)],
    ids=repr,
)
def test_folded_in_the_task_or_sent_one_by_one_the_results_are_the_same(
    reducer: Reducer, make_topic: MakeTopic, redis_client: redis.Redis, send: Send
) -> None:
    if isinstance(reducer, Collect) and reducer.max_items == 7:
        reducer = Collect(max_items=7, when_full="drop_oldest")
    one, other = (make_topic(TopicType.PRIORITY, slots=4, merge=Merge(reducer)) for _ in range(2))
    folded, plain = send(one, rows_of(one)), send(other, rows_of(other), PLAIN)
    assert values(redis_client, one) == values(redis_client, other)
    assert folded.folded > 0
    assert (plain.folded, plain.new + plain.merged) == (0, 600)


@pytest.mark.parametrize("sending", [FOLDED, PLAIN], ids=["folded", "plain"])
@pytest.mark.parametrize("reducer", [Sum(), Collect(), Collect(max_items=3, when_full="drop_newest")], ids=repr)
def test_a_task_that_is_run_again_counts_once(
    reducer: Reducer, sending: Sending, make_topic: MakeTopic, redis_client: redis.Redis, send: Send
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, merge=Merge(reducer))
    rows = rows_of(topic)
    first = send(topic, rows, sending)
    before = values(redis_client, topic)
    again = send(topic, rows, sending)
    assert (again.new, again.merged, again.skipped) == (0, 0, first.new + first.merged)
    assert values(redis_client, topic) == before
    send(topic, rows, sending, mark=None)
    assert values(redis_client, topic) != before, "without a mark it counts again"


@pytest.mark.parametrize("reducer", [Sum(), Collect(), Collect(unique=True)], ids=repr)
def test_a_task_that_is_run_again_counts_once_whatever_the_order_of_its_rows(
    reducer: Reducer, make_topic: MakeTopic, redis_client: redis.Redis, send: Send
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, merge=Merge(reducer))
    rows = rows_of(topic, 3_000, 900)
    send(topic, rows)
    before = values(redis_client, topic)
    Random(2).shuffle(rows)
    assert send(topic, rows).skipped > 500
    assert values(redis_client, topic) == before


def test_a_chunk_that_costs_more_than_a_call_may_is_sent_by_several(
    make_topic: MakeTopic, redis_client: redis.Redis, connections: Connections, send: Send
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, merge=Merge(Collect()))
    names = [b"c%02d" % index for index in range(60)]

    def rows(item: bytes) -> list[EncodedMessage]:
        record = write_record(Record(1, 0, 0, 1, "C", framed([item])))
        return [EncodedMessage(0, name, 100_000, record) for name in names]

    send(topic, rows(b"x" * 60_000))
    mark = replace(MARK, batch=1)
    started = connections.run(send_once(topic, 0, rows(b"y"), mark.of(0, rows(b"y"), merges=True)))
    assert started.done is not None, "the task broke off when its first call had been carried out"
    counts = send(topic, rows(b"y"), mark=mark)
    assert (counts.new, counts.merged, counts.skipped) == (0, 60 - started.done, started.done)
    again = send(topic, rows(b"y"), mark=mark)
    assert (again.new, again.merged, again.skipped) == (0, 0, 60)
    assert {value[:2] for value in values(redis_client, topic).values()} == {(2, 2)}


@pytest.mark.parametrize("settings", [{}, {"max_backlog": 60, "when_full": WhenFull.BLOCK}], ids=["refuses", "blocks"])
def test_without_a_mark_a_call_takes_no_more_than_it_may_cost_either(
    settings: dict[str, Any], make_topic: MakeTopic, redis_client: redis.Redis, connections: Connections, send: Send
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, merge=Merge(Collect()), **settings)

    def rows(item: bytes) -> list[EncodedMessage]:
        record = write_record(Record(1, 0, 0, 1, "C", framed([item])))
        return [EncodedMessage(0, b"c%02d" % index, 100_000, record) for index in range(60)]

    def calls() -> int:
        return redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]  # pyright: ignore[reportIndexIssue]

    send(topic, rows(b"x" * 60_000))
    before = calls()
    counts = send(topic, rows(b"y"), PLAIN, mark=None)
    assert (counts.new, counts.merged, counts.skipped) == (0, 60, 0)
    assert calls() - before > 1, "all of them in one call"
    broker = QueueBroker(connections, topic)
    first = broker.send(0, rows(b"z"))  # as those send that wait for room
    assert 0 < first.accepted < 60
    rest, error = send_patiently(broker, 0, rows(b"z")[first.accepted :], lambda _: None)
    assert (rest.accepted, error) == (60 - first.accepted, None)
    assert {value[:2] for value in values(redis_client, topic).values()} == {(3, 3)}


def test_other_rows_are_refused_where_each_send_counts(
    make_topic: MakeTopic, redis_client: redis.Redis, send: Send
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, merge=Merge(Sum()))
    send(topic, rows_of(topic))
    before = values(redis_client, topic)
    with pytest.raises(BatchChangedError, match="produced other rows than its first attempt"):
        send(topic, rows_of(topic, seed=2))
    assert values(redis_client, topic) == before


class Consumer:
    """Takes what is there until it is told to stop; `sum` is what it got."""

    def __init__(self, url: str, topic: Topic) -> None:
        self._url, self._topic, self.sum, self.items = url, topic, 0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with RmqClient(self._url) as client, client.consumer(self._topic) as consumer:
            while not self._over.is_set():
                for delivery in consumer.poll(max_messages=50, timeout=0.1):
                    collected = delivery.items
                    self.items += len(collected)
                    self.sum += 0 if collected else int(delivery.value)
                    delivery.ack()

    def __enter__(self) -> Consumer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)


@pytest.mark.parametrize("marked", [True, False])
def test_a_full_topic_that_blocks_gets_all_once(
    marked: bool, make_topic: MakeTopic, redis_url: str, redis_client: redis.Redis, send: Send
) -> None:
    topic = make_topic(
        TopicType.PRIORITY, slots=2, merge=Merge(Sum()), max_backlog=120, when_full=WhenFull.BLOCK, full_timeout="20s"
    )
    rows = rows_of(topic, 2_000, 1_000)
    expected = sum(read_record(row.body).number for row in rows)  # type: ignore[union-attr]
    mark = MARK if marked else None
    with Consumer(redis_url, topic) as consumer:
        first = send(topic, rows, Sending(True, 10_000, 50, 2), mark)
        assert first.new + first.merged == len({row.content for row in rows})
        if marked:
            assert send(topic, rows, Sending(True, 10_000, 50, 2), mark).skipped == first.new + first.merged
        stores = [slot_keys(topic.name, slot).store for slot in range(topic.slots)]
        wait_until(lambda: not any(redis_client.exists(store) for store in stores), 30)
    left = sum(number for _, number, _ in values(redis_client, topic).values())  # type: ignore[misc]
    assert consumer.sum + left == expected


def test_a_full_topic_that_blocks_gives_up_in_the_end(make_topic: MakeTopic, send: Send) -> None:
    topic = make_topic(
        TopicType.PRIORITY, slots=1, merge=Merge(Sum()), max_backlog=10, when_full=WhenFull.BLOCK, full_timeout="100ms"
    )
    with pytest.raises(BacklogFullError, match=r"no room within 0\.1 s"):
        send(topic, rows_of(topic))


def test_items_beyond_the_most_of_a_message_come_when_it_was_taken(
    make_topic: MakeTopic, redis_url: str, redis_client: redis.Redis, send: Send
) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=1, merge=Merge(Collect(max_items=10)), full_timeout="20s")
    rows = [EncodedMessage(0, b"c%d" % (i % 3), 60_000, _item(b"%d" % i)) for i in range(100)]
    with Consumer(redis_url, topic) as consumer:
        for _ in range(2):
            counts = send(topic, rows)
            assert counts.new + counts.merged + counts.skipped == 12
    left = sum(int(number) for _, number, _ in values(redis_client, topic).values())  # type: ignore[call-overload]
    assert consumer.items + left == 100
    refusing = make_topic(TopicType.RANGE_MERGE, slots=1, merge=Merge(Collect(max_items=10, when_full="refuse")))
    with pytest.raises(CollectionFullError):
        send(refusing, rows)


def _item(item: bytes) -> bytes:
    return write_record(Record(1, 0, 0, 1, "C", framed([item])))


def layout(topic: Topic, **columns: DataType) -> Layout:
    fields = [StructField(name, kind) for name, kind in {"content": StringType(), **columns}.items()]
    return layout_of(StructType(fields), topic, parse_options({"url": "redis://x"}))


def encoded(layout: Layout, **columns: object) -> tuple[list[Record], dict[int, str]]:
    number = len(next(iter(columns.values())))  # type: ignore[arg-type]
    batch = pa.record_batch({"content": [f"m{i}" for i in range(number)], **columns})
    rows, bad = encode_rows(layout, batch)
    return [read_record(row.body) or Record(0, 0, 0, 0, "?") for row in rows], bad


def test_columns_become_records(make_topic: MakeTopic) -> None:
    text, whole = StringType(), LongType()
    fixed = Merge(Newest(), window=Sliding("1s", max_wait="5s"))
    newest = layout(make_topic(TopicType.RANGE_MERGE, merge=fixed), body=text, version=whole, weight=whole)
    records, bad = encoded(newest, body=["a", None, "c", "d"], version=[1, 2, None, -1], weight=[1, 7, 1, 1])
    assert [(record.body, record.number, record.count) for record in records] == [(b"a", 1, 1), (None, 2, 7)]
    assert [bad[2].startswith("version of b'm2' is None"), bad[3].startswith("version of b'm3' is -1")] == [True, True]
    sums = layout(make_topic(TopicType.PRIORITY, merge=Merge(Sum())), body=whole, priority=whole)
    figures = [1, 2.5, Decimal("3.50"), Decimal("4.00"), Decimal("0.1"), None, float("nan")]
    found = [encoded(sums, body=pa.array([each]), priority=[5_000]) for each in figures]
    assert [records[0].number for records, _ in found[:5]] == [1, 2.5, 3.5, 4, 0.1]
    assert all("must be a number" in bad[0] for _, bad in found[5:])
    _, bad = encoded(sums, body=pa.array([Decimal("12345678901234567.89")]), priority=[5_000])
    assert "is 12345678901234567.89; numbers in Redis have about 15 significant digits" in bad[0]
    lists = layout(make_topic(TopicType.PRIORITY, merge=Merge(Collect())), body=ArrayType(text), priority=whole)
    records, bad = encoded(lists, body=[["x", "y"], [], None, ["z", None]], priority=[5_000] * 4)
    assert [record.items for record in records] == [(b"x", b"y")]
    assert bad.keys() == {1, 2, 3}
    joined = Merge(Collect(unique=True), Sliding(max_wait="1s"), max_count=PER_MESSAGE)
    joins = layout(make_topic(TopicType.RANGE_MERGE, merge=joined), part=text, of=whole)
    records, bad = encoded(joins, part=["a", "b", "", None], of=[2, None, 2, 2])
    assert [(record.items, record.wanted, record.count) for record in records] == [((b"a",), 2, 1)]
    assert bad.keys() == {1, 2, 3}


@pytest.mark.parametrize(
    ("reducer", "columns", "error"),
    [
        (Sum(), {"body": StringType()}, "column body is string; for topic .* which is PRIORITY and merges by Sum"),
        (Sum(), {}, "column body is missing"),
        (Newest(), {"body": StringType()}, "column version is missing"),
        (Collect(), {"body": ArrayType(LongType())}, "one of string, binary, array of string or binary"),
        (Keep(), {"version": LongType()}, "column 'version' is not a column of"),
        (Keep(), {"weight": StringType()}, "column weight is string"),
        (None, {"weight": LongType()}, "column 'weight' is not a column of"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    reducer: Reducer | None, columns: dict[str, DataType], error: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, merge=None if reducer is None else Merge(reducer))
    with pytest.raises(InvalidValueError, match=error):
        layout(topic, priority=LongType(), **columns)


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.binary())], ids=str)
def test_messages_that_the_server_refuses_are_put_aside_as_rows(
    kind: pa.DataType, connections: Connections, make_topic: MakeTopic, redis_client: redis.Redis, tmp_path: Path
) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=1, merge=Merge(Collect()))
    data_type = StringType() if kind == pa.string() else ArrayType(StringType())
    frame = layout(topic, body=data_type, weight=LongType(), fixed_time=LongType())
    items = ["a", "b", "c"] if kind == pa.string() else [[b"a", b"b"], [b"c"], [b"d"]]
    columns = {"content": ["x", "x", "y"], "body": pa.array(items, kind), "weight": [1, 2, 1]}
    batch = pa.record_batch({**columns, "fixed_time": [7, 7, 4_000_000_000_000]})
    for _ in range(2):
        bad_rows = BadRows(frame, tmp_path.as_uri(), "part")
        rows, bad = encode_rows(frame, batch)
        bad_rows.take(batch, bad)
        sender = TaskSender(connections, topic, replace(FOLDED, passed="collect"), bad_rows, MARK)
        sender.add(rows)
        sender.finish()
        bad_rows.keep()
    found = [row for path in tmp_path.iterdir() for row in parquet.read_table(path).to_pylist()]
    assert all(row["content"] == "x" and row["fixed_time"] == 7 for row in found)
    if kind == pa.string():
        assert [(row["body"], row["weight"]) for row in found] == [("a", 1), ("b", 1)] * 2
    else:
        assert [(row["body"], row["weight"]) for row in found] == [([b"a", b"b", b"c"], 3)] * 2
    assert connections.run(stats(topic, 0)).totals["accepted"] == 1
    redis_client.delete(sent_key(topic.name, 0, "q"))


class DyingSender(TaskSender):
    """A task that ends after its second call without the rows that come late."""

    calls = 0

    def _send_in_time(self, slot: int, rows: Sequence[EncodedMessage], mark: Mark | None) -> SendResult | Once:
        self.calls += 1
        if self.calls > 2:
            raise SystemExit
        return super()._send_in_time(slot, rows, mark)


def test_rows_that_come_late_among_large_ones_are_put_aside_and_the_others_are_sent_once(
    connections: Connections, make_topic: MakeTopic, redis_client: redis.Redis, tmp_path: Path
) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=1, merge=Merge(Collect()))
    far_ms, names = 4_000_000_000_000, [f"m{index:02}" for index in range(40)]
    frame = layout(topic, body=StringType(), fixed_time=LongType())
    times = [7 if index in {3, 30} else far_ms for index in range(40)]
    batch = pa.record_batch({"content": names, "body": ["y"] * 40, "fixed_time": times})
    full = [write_record(Record(1, 0, 0, 1, "C", framed([b"x" * 60_000])))] * 40
    sender = QueueBroker(connections, topic)
    for name, record in zip(names, full, strict=True):
        send_patiently(sender, 0, [EncodedMessage(0, name.encode(), far_ms, record)], time.sleep)

    def attempt(kind: type[TaskSender], name: str) -> tuple[TaskSender, list[str]]:
        bad_rows = BadRows(frame, (tmp_path / name).as_uri(), "part")
        rows, bad = encode_rows(frame, batch)
        bad_rows.take(batch, bad)
        task = kind(connections, topic, replace(FOLDED, passed="collect"), bad_rows, MARK)
        task.add(rows)
        with suppress(SystemExit):
            task.finish()
        bad_rows.keep()
        paths = (tmp_path / name).iterdir()
        return task, sorted(row["content"] for path in paths for row in parquet.read_table(path).to_pylist())

    dead, _ = attempt(DyingSender, "first")
    assert 0 < dead.counts.merged < 38
    done = dead.counts.merged
    task, aside = attempt(TaskSender, "second")
    assert (task.counts.skipped, task.counts.merged, aside) == (done, 38 - done, ["m03", "m30"])
    task, aside = attempt(TaskSender, "third")
    assert (task.counts.skipped, task.counts.merged, aside) == (38, 0, ["m03", "m30"])
    assert connections.run(stats(topic, 0)).totals["accepted"] == 40 + 38
    redis_client.delete(sent_key(topic.name, 0, "q"))
