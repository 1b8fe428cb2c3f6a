from __future__ import annotations

import pytest

from rmq.errors import InvalidValueError
from rmq.spark.source_options import SourceSettings, source_settings

LEAST = {"url": "redis://h", "topic": "t"}


def test_defaults_and_names_in_any_case() -> None:
    assert source_settings(LEAST) == SourceSettings("redis://h", "t")
    given = {**LEAST, "maxmessagespertrigger": "5", "MINPARTITIONS": "2", "maxPartitions": "3", "maxReplays": "0"}
    found = source_settings({**given, "failOnLeaseLost": "False", "failondataloss": "false"})
    assert found == SourceSettings("redis://h", "t", 5, 2, 3, 0, False, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": ""}, "needs option topic"),
        ({"url": "embedded://"}, "of a Redis that all executors reach"),
        ({"maxMessagesPerTrigger": "0"}, "whole number from 1"),
        ({"minPartitions": "many"}, "'many'"),
        ({"minPartitions": "5", "maxPartitions": "4"}, "more than maxPartitions 4"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"maxMesagesPerTrigger": "5"}, "no option maxmesagespertrigger"),
        ({"zookeeper": "zk1"}, "takes no zookeeper"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        source_settings({**LEAST, **options})


def test_the_url_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_URL", "redis://e")
    assert source_settings({"topic": "t"}).url == "redis://e"
    monkeypatch.delenv("RMQ_URL")
    with pytest.raises(InvalidValueError, match="needs option url"):
        source_settings({"topic": "t"})
