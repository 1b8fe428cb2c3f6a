from __future__ import annotations

import pytest

from rmq.errors import InvalidValueError
from rmq.spark.options import parse_options
from rmq.spark.source_options import SourceSettings, source_settings

LEAST = {"url": "redis://h", "topic": "t"}


def test_defaults_and_all_of_them() -> None:
    assert source_settings(parse_options(LEAST)) == SourceSettings(parse_options(LEAST).url, "t")
    given = {**LEAST, "maxMessagesPerTrigger": "5", "minPartitions": "2", "maxPartitions": "3", "maxReplays": "1"}
    found = source_settings(
        parse_options({**given, "failOnLeaseLost": "false", "failOnDataLoss": "false", "deadlineSeconds": "9"})
    )
    assert found == SourceSettings(found.url, "t", 5, 2, 3, 1, False, False, 9)


def test_all_is_more_than_the_default() -> None:
    assert source_settings(parse_options({**LEAST, "maxMessagesPerTrigger": "all"})).max_messages == 10**9


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
        source_settings(parse_options({**LEAST, **options}))
