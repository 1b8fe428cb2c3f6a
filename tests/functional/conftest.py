"""What the tests of the command line and of the dashboard share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from rmq import (
    Collect,
    Fixed,
    FixedTimeMessage,
    Merge,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    SparkQuery,
    StreamMessage,
    Sum,
    Topic,
    TopicType,
)
from tests.conftest import MakeTopic
from tests.support.browser import CHROMIUM, FLAGS, LIMIT_MS, Open, Watched
from tests.support.cli import Cli, bury
from tests.support.core import Connections, SparkQueries, parse_url
from tests.support.dashboard import served


@pytest.fixture
def cli(redis_url: str) -> Cli:
    return Cli(redis_url)


@pytest.fixture
def client(redis_url: str) -> Iterator[RmqClient]:
    with RmqClient(redis_url) as client:
        yield client


@pytest.fixture
def priority(make_topic: MakeTopic, client: RmqClient) -> Topic:
    """A registered PRIORITY topic."""
    return client.producer(make_topic(TopicType.PRIORITY, slots=2)).topic


@pytest.fixture
def merging(make_topic: MakeTopic, client: RmqClient) -> Topic:
    """A registered RANGE_MERGE topic."""
    return client.producer(make_topic(TopicType.RANGE_MERGE, slots=2)).topic


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=LIMIT_MS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, client: RmqClient) -> Iterator[Open]:
    """Open a page of a dashboard; at the end nothing may have been complained of, or asked from elsewhere."""
    watched: list[Watched] = []
    contexts: list[BrowserContext] = []
    with served(client) as address:

        def open_one(path: str = "/", width: int = 1_440, scheme: Any = "light", **options: Any) -> Page:
            size: Any = {"width": width, "height": 800}
            context = browser.new_context(viewport=size, color_scheme=scheme, base_url=address, **options)
            contexts.append(context)
            watched.append(Watched(context, address))
            page = watched[-1].page
            page.goto(path)
            return page

        yield open_one
        for context in contexts:
            context.close()
    assert [each.complaints for each in watched] == [[] for _ in watched]
    assert [each.abroad for each in watched] == [[] for _ in watched]


@pytest.fixture
def shop(client: RmqClient, make_topic: MakeTopic) -> dict[str, Topic]:
    """Topics of all types with something everywhere, and a worker."""
    topics = {
        "priority": make_topic(TopicType.PRIORITY, slots=16),
        "merged": make_topic(TopicType.RANGE_MERGE, slots=2),
        "timed": make_topic(TopicType.FIXED_TIME, slots=1),
        "stream": make_topic(TopicType.STREAM, slots=1, checked=False),
        "sums": make_topic(TopicType.RANGE_MERGE, slots=2, merge=Merge(Sum(), window=Fixed("1h"), max_count=99)),
        "items": make_topic(TopicType.PRIORITY, slots=1, merge=Merge(Collect())),
    }
    client.producer(topics["priority"]).send_many(PriorityMessage(f"bad:{i}", 100, body=f"b{i}") for i in range(8))
    bury(client, topics["priority"], 8, ValueError("no such <picture>"))
    client.producer(topics["priority"]).send_many(PriorityMessage(f"job:{i}", 100, body=f"b{i}") for i in range(60))
    client.producer(topics["merged"]).send_many(
        RangeMergeMessage(f"item:{i}", time_range_ms=3_600_000) for i in range(20)
    )
    now_ms = client.inspect(client.producer(topics["timed"]).topic).stats().slots[0].now_ms
    client.producer(topics["timed"]).send(FixedTimeMessage("close:1", fixed_time_ms=now_ms + 3_600_000))
    producer = client.producer(topics["stream"])
    client.stream(producer.topic).add_group("billing", "all")
    producer.send_many(StreamMessage(f"event:{i}") for i in range(5))
    client.producer(topics["sums"]).send_many(RangeMergeMessage("item:42", body=number) for number in (-3, -1.5, -1))
    items = [PriorityMessage("page", 9, body=f"<i>tag {number}</i>") for number in range(120)]
    client.producer(topics["items"]).send_many(items)
    bury(client, topics["items"], 1)
    client.producer(topics["items"]).send_many(items[:2])
    connections = Connections(parse_url(client.url))
    figures = {"acked": 12_345, "redelivered": 7, "lost": 0}
    SparkQueries(connections, topics["merged"].name).publish(
        SparkQuery("source", "0a1b2c", 42, 0, 0, figures, 1.5, 678, 25.0)
    )
    sent = {"rows": 9_000, "folded": 8_000, "new": 900, "merged": 100, "skipped": 0, "bad": 0}
    SparkQueries(connections, topics["stream"].name).add("write", "<b>feed</b>", 3, sent, 0.25)
    connections.close()
    client.history().record(now_ms // 60_000 - 1)
    client.history().record(now_ms // 60_000)
    return topics
