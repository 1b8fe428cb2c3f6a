from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, DoubleType, LongType, StringType, StructField, StructType

from rmq._broker.claims import CLAIM_BYTES
from rmq.errors import InvalidValueError, RedisUnavailableError
from rmq.spark import options as options_module
from rmq.spark import save
from rmq.spark.options import PLAN_S, Options, check_read, check_source, parse_options
from rmq.spark.schema import MORE, check_schema, of_reads
from rmq.spark.sink.encoding import open_folder
from rmq.spark.sink.writer import BatchWriter
from rmq.spark.source import waiting
from rmq.spark.source.batches import Batch
from rmq.spark.source.waiting import Gathering

LEAST = {"url": "redis://h", "topic": "t"}


def test_defaults_and_those_of_the_source() -> None:
    assert parse_options(LEAST) == Options("redis://h", topic="t")
    given = {**LEAST, "maxMessagesPerTrigger": "5", "minPartitions": "2", "maxPartitions": "3", "maxReplays": "1"}
    given |= {"failOnLeaseLost": "false", "failOnDataLoss": "false", "deadlineSeconds": "9"}
    assert parse_options(given) == Options(
        "redis://h",
        topic="t",
        max_messages=5,
        min_partitions=2,
        max_partitions=3,
        max_replays=1,
        fail_on_lease_lost=False,
        fail_on_data_loss=False,
        deadline_s=9,
    )


@pytest.mark.parametrize(
    ("given", "tasks"),
    [
        ({}, (1, 200)),
        ({"minPartitions": "300"}, (300, 300)),
        ({"maxPartitions": "3"}, (1, 3)),
        ({"minPartitions": "2", "maxPartitions": "4"}, (2, 4)),
    ],
)
def test_fewest_and_most_tasks(given: dict[str, str], tasks: tuple[int, int]) -> None:
    assert parse_options({**LEAST, **given}).task_numbers == tasks


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("5s", 5_000), ("5 s", 5_000), ("2min", 120_000), ("1h30m", 5_400_000)],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_options({**LEAST, "time_range": text}).time_range_ms == ms


@pytest.mark.parametrize("name", ["time_range", "maxTriggerDelay"])
def test_a_duration_without_a_unit_is_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"^{name} is '500': is it '500ms' or '500s'\?"):
        parse_options({**LEAST, name: "500"})


def test_all_is_more_than_the_default() -> None:
    assert parse_options({**LEAST, "maxMessagesPerTrigger": "all"}).max_messages == 10**9


@pytest.mark.parametrize(("text", "number"), [("5", 5), ("64k", 65_536), ("64M", 64 << 20), ("2gb", 2 << 30)])
def test_bytes(text: str, number: int) -> None:
    assert parse_options({**LEAST, "maxBytesPerTrigger": text}).max_bytes == number


@pytest.mark.parametrize("text", ["0", "m", "-1", "1.5g", "2000g", "1 tb"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(InvalidValueError, match="a number of bytes such as 64m"):
        parse_options({**LEAST, "maxBytesPerTrigger": text})


def test_a_bound_in_bytes_is_shared_by_the_chunks() -> None:
    batch = Batch("q", 1, {0: 2_500, 1: 10})
    assert (batch.chunk_bytes(None), batch.chunk_bytes(4_000), batch.chunk_bytes(1)) == (CLAIM_BYTES, 1_000, 1)
    assert batch.chunk_bytes(2**40) == CLAIM_BYTES


@pytest.mark.parametrize(
    ("more", "patience_s"),
    [({}, PLAN_S), ({"deadlineSeconds": "3"}, 3), ({"txnAppId": "a", "txnVersion": "1"}, 60)],
)
def test_a_write_to_a_wrong_address_ends_soon(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, str], patience_s: float
) -> None:
    asked: list[float] = []

    def connect(*_: object, deadline_s: float, **__: object) -> None:
        asked.append(deadline_s)
        raise RedisUnavailableError("nobody answers")

    monkeypatch.setattr(options_module, "Connections", connect)
    with pytest.raises(RedisUnavailableError):
        BatchWriter(StructType([StructField("content", StringType())]), parse_options({**LEAST, **more}))
    assert asked == [patience_s]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"leaseSeconds": "5"}, "has no option leaseSeconds"),
        ({"queue": "dead"}, "reads the backlog only"),
    ],
)
def test_what_the_source_cannot_do_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        check_source(parse_options({**LEAST, **options}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("type", "PRIORITY"), ("slots", "8"), ("maxRate", "5"), ("redrive", "true"), ("durability", "fsync")],
)
def test_options_of_the_sinks_are_not_passed_over_by_reads(name: str, value: str) -> None:
    options = parse_options({**LEAST, name: value})
    for check in (check_read, check_source):
        with pytest.raises(InvalidValueError, match=f"{name} is an option of writes"):
            check(options)


def test_a_stored_table_is_refused_with_a_way_out() -> None:
    with pytest.raises(InvalidValueError, match="CREATE TEMPORARY VIEW"):
        parse_options({**LEAST, "option.url": "redis://h"})


def test_save_takes_no_options_of_reads() -> None:
    with pytest.raises(InvalidValueError, match="columns is an option of reads"):
        save(cast("DataFrame", SimpleNamespace(schema=StructType())), "t", url="redis://h", columns="content")


@pytest.mark.parametrize(
    ("queue", "column", "kind", "message"),
    [
        (
            "backlog",
            "contents",
            StringType(),
            "a read of queue backlog has no column contents; its usual columns: topic, slot, content",
        ),
        ("backlog", "error_type", StringType(), "a read of queue backlog has no column error_type"),
        ("dead", "died", StringType(), "died of a read has type timestamp; it cannot be read as string"),
        ("backlog", "slot", DoubleType(), "slot of a read has type int; it cannot be read as double"),
    ],
)
def test_columns_that_a_read_does_not_have_are_named(queue: str, column: str, kind: DataType, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        check_schema(queue, StructType([StructField(column, kind)]))


def test_a_read_gives_some_columns_and_text() -> None:
    fields = [StructField("content", StringType()), StructField("slot", LongType()), StructField("merged", LongType())]
    check_schema("backlog", StructType(fields))


@pytest.mark.parametrize("folder", ["bad/rows", "s3a://bucket/bad"])
def test_a_folder_for_bad_rows_that_cannot_be_is_named_with_the_rule(folder: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="it must be an absolute path, or a URI") as found:
        open_folder(folder)
    assert folder in str(found.value)
    there = tmp_path / "bad"
    assert open_folder(str(there))[1] == open_folder(there.as_uri())[1] == str(there)
    there.touch()
    with pytest.raises(InvalidValueError, match=r"bad.*, which is a file; it must be a folder"):
        open_folder(there.as_uri())


def test_the_source_needs_a_topic() -> None:
    with pytest.raises(InvalidValueError, match="`topic` is missing"):
        check_source(parse_options({"url": "redis://h"}))


def test_columns_that_were_asked_for_can_be_written_back() -> None:
    assert of_reads(["topic", "slot", "content"]) >= MORE
    assert of_reads(["content", "sent"]).isdisjoint(MORE), "of a frame that was not read"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minMessagesPerTrigger": "0"}, "minMessagesPerTrigger is '0'; it must be a whole number from 1"),
        (
            {"minMessagesPerTrigger": "10", "maxMessagesPerTrigger": "9"},
            "minMessagesPerTrigger is 10 and maxMessagesPerTrigger is 9; the minimum must not exceed the maximum",
        ),
        ({"maxTriggerDelay": "10m"}, "maxTriggerDelay has no effect without minMessagesPerTrigger"),
        ({"minMessagesPerTrigger": "5", "maxTriggerDelay": "0s"}, "maxTriggerDelay is '0s'; it must be more than 0"),
        ({"minPartitions": "3", "maxPartitions": "2"}, "minPartitions is 3 and maxPartitions is 2"),
    ],
)
def test_least_and_most_of_a_batch(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        parse_options({**LEAST, **options})


def test_a_batch_is_held_back_until_enough_is_due_or_its_delay_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(waiting, "monotonic_s", lambda: now[0])
    gather, slept = Gathering(10, 60, slots=100), list[float]()
    assert gather.is_over(0.2, slept.append)
    assert not gather.holds(10)
    assert gather.holds(9)
    assert not gather.is_over(0.2, slept.append)
    now[0] += 1.9
    assert not gather.is_over(0.2, slept.append)
    assert slept == pytest.approx([0.2, 0.1])
    now[0] += 0.1
    assert gather.is_over(0.2, slept.append), "100 slots are counted each 2 s"
    assert gather.holds(0)
    assert gather.is_over(0.2, slept.append), "where nothing is due, the source waits for a hint"
    now[0] += 57
    assert gather.holds(9)
    now[0] += 1
    assert gather.is_over(0.2, slept.append), "the delay is over"
    assert not gather.holds(9)
    assert gather.holds(9), "counted from this batch"
    assert not gather.holds(11)
