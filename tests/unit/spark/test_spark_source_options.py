from __future__ import annotations

import pytest

from rmq.errors import InvalidValueError
from rmq.spark.options import Options, check_source, parse_options

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
    [("500", 500), ("500ms", 500), ("5s", 5_000), ("5 s", 5_000), ("2min", 120_000), ("1h30m", 5_400_000)],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_options({**LEAST, "time_range": text}).time_range_ms == ms


def test_all_is_more_than_the_default() -> None:
    assert parse_options({**LEAST, "maxMessagesPerTrigger": "all"}).max_messages == 10**9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zookeeper": "zk1:2181"}, "takes no zookeeper"),
        ({"leaseSeconds": "5"}, "takes no leaseSeconds"),
        ({"queue": "dead"}, "drains the backlog"),
    ],
)
def test_what_the_source_cannot_do_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        check_source(parse_options({**LEAST, **options}))


def test_the_source_needs_a_topic() -> None:
    with pytest.raises(InvalidValueError, match="`topic` is missing"):
        check_source(parse_options({"url": "redis://h"}))
