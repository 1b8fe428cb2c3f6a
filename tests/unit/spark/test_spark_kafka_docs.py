"""The page on Spark's Kafka connector names options and columns that exist, and misses none of Kafka's."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

from rmq.spark.options import OPTION_NAMES, parse_options
from rmq.spark.schema import DEAD, ENTRIES, MORE, QUEUE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/coming-from/spark-kafka.md").read_text("utf-8")
GUIDE = "\n".join(page.read_text("utf-8") for page in sorted((ROOT / "docs/guide").glob("spark*.md")))

# Source: "Structured Streaming + Kafka Integration Guide", its tables of options and columns.
OF_READS = """
    assign subscribe subscribePattern kafka.bootstrap.servers startingTimestamp startingOffsetsByTimestamp
    startingOffsets
    endingTimestamp endingOffsetsByTimestamp endingOffsets failOnDataLoss kafkaConsumer.pollTimeoutMs
    fetchOffset.numRetries fetchOffset.retryIntervalMs maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay
    minPartitions maxRecordsPerPartition groupIdPrefix kafka.group.id includeHeaders startingOffsetsByTimestampStrategy
""".split()
OF_SINKS = ["kafka.bootstrap.servers", "topic", "includeHeaders"]
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


def rows_below(heading: str) -> list[list[str]]:
    """Return the cells of the rows of the table below a heading."""
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named(cells: list[str]) -> list[str]:
    return list(chain.from_iterable(re.findall(r"`([^`]+)`", cell) for cell in cells))


def test_each_of_our_options_exists_and_does_something() -> None:
    for heading in ("Options of reads", "Options of sinks"):
        ours = named([row[1] for row in rows_below(heading)])
        assert len(ours) >= 6
        assert sorted(set(ours) - set(OPTION_NAMES)) == []
        explained = {name for row in re.findall(r"^\| (`.*?) \|", GUIDE, re.MULTILINE) for name in named([row])}
        assert sorted(set(ours) - explained) == []


def test_each_option_of_kafka_stands_on_the_page() -> None:
    for heading, theirs in (("Options of reads", OF_READS), ("Options of sinks", OF_SINKS)):
        there = named([row[0] for row in rows_below(heading)])
        assert sorted(set(theirs) - set(there)) == []
        assert len(there) == len(set(there))


def test_an_option_that_has_the_same_name_is_taken() -> None:
    same = {
        name: {"minPartitions": "2", "topic": "prices", "failOnDataLoss": "false", "maxTriggerDelay": "15m"}[name]
        for heading in ("Options of reads", "Options of sinks")
        for row in rows_below(heading)
        for name in {*named([row[0]])} & {*named([row[1]])}
    }
    assert set(same) == {"minPartitions", "topic", "failOnDataLoss", "maxTriggerDelay"}
    parsed = parse_options({"url": "redis://localhost", "minMessagesPerTrigger": "2", **same})
    assert parsed.max_delay_ms == 900_000
    assert (parsed.min_partitions, parsed.topic, parsed.fail_on_data_loss) == (2, "prices", False)


def test_the_columns_of_both_exist() -> None:
    rows = rows_below("Columns")
    assert sorted(named([row[0] for row in rows])) == sorted(COLUMNS)
    read = {*QUEUE.names, *DEAD.names, *ENTRIES.names, *MORE}
    assert set(named([row[1] for row in rows])) - read == {"slot_basis"}  # which only a sink has
