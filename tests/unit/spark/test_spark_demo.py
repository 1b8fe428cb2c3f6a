"""Where `rmq spark demo` works, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from rmq.cli.commands.spark import demo
from rmq.cli.commands.spark.session import Running
from rmq.cli.console import Session
from rmq.demo.spark import audience, prices
from rmq.errors import RmqError
from tests.support.cli import Cli


@pytest.mark.parametrize(
    ("options", "url"), [((), "embedded://"), (("--url", "redis://127.0.0.1:2"), "redis://127.0.0.1:2")]
)
def test_it_leaves_the_redis_of_the_environment_and_the_topics_of_others_alone(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], url: str
) -> None:
    topics: list[str] = []

    @contextmanager
    def no_spark(session: Session, name: str, master: str, check: Callable[[str], None]) -> Generator[Running]:
        assert session.options.url == url
        yield Running(cast("Any", None), "redis://127.0.0.1:2", print)

    def send(spark: Any, settings: prices.PriceSettings, say: Any) -> None:
        topics.extend((settings.pictures, settings.customers))

    def drain(spark: Any, settings: audience.AudienceSettings, say: Any) -> None:
        topics.append(settings.topic)
        raise RmqError("far enough")

    monkeypatch.setattr(demo, "spark_running", no_spark)
    monkeypatch.setattr(prices, "run", send)
    monkeypatch.setattr(audience, "run", drain)
    ran = Cli("redis://127.0.0.1:1")("spark", "demo", *options, code=1)
    assert ran.err.splitlines()[-1] == "rmq: far enough"
    assert len(topics) == 3
    assert all(topic.startswith("demo.spark-") for topic in topics)
