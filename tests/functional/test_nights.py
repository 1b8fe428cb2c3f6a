"""Three in the morning: what is stuck, why one died, how far behind, who holds it since when, and how to stop it.

Each night has a trouble of its own, on real servers. Each question is answered by one command, and by one page that is
linked from the overview; pages are looked at on a phone and on a screen, in light and dark, and by axe-core.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from playwright.sync_api import Browser, Page, expect

from rmq import Delivery, ImmediateRetry, Minute, PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import MemoryFullError
from tests.conftest import MakeTopic
from tests.support.browser import LIMIT_MS, MARKS, Open, Watched, violations
from tests.support.cli import Cli
from tests.support.dashboard import served
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = MARKS

LOOKS = [(360, "dark"), (1_440, "light")]


def looked_at(page: Page, width: int) -> None:
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def told(page: Page, topic: Topic, text: str) -> None:
    """Expect a finding about a topic on the overview, and follow it."""
    finding = page.locator("#findings li", has_text=topic.name).filter(has_text=text).first
    expect(finding).to_be_attached(timeout=LIMIT_MS)
    for more in page.locator("#findings summary").all():  # where other tests have left findings
        more.click()
    expect(finding).to_be_visible(timeout=LIMIT_MS)
    finding.get_by_role("link").click()


def status_of(cli: Cli, topic: Topic) -> str:
    """Return what `rmq status` prints, whatever its exit code."""
    try:
        return cli("status", topic.name).out
    except AssertionError:  # something is critical
        return cli("status", topic.name, code=1).out


@contextmanager
def listening(client: RmqClient) -> Iterator[None]:
    client.start()
    try:
        wait_until(client.workers, 60)
        yield
    finally:
        client.stop()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_a_downstream_that_fails(
    open_page: Open, cli: Cli, client: RmqClient, make_topic: MakeTopic, width: int, scheme: str
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, max_retries=1, retry=ImmediateRetry(), keep_attempts=3)
    client.producer(topic).send_many(PriorityMessage(f"job:{number}", 5) for number in range(30))
    minute = client.inspect(topic).stats().slots[0].now_ms // 60_000
    client.history().append(topic.name, Minute(minute - 5, backlog=30))

    @client.listener(topic)
    def draw(delivery: Delivery) -> None:
        raise TimeoutError(f"shop 9 does not answer for {delivery.text}")

    with listening(client):
        wait_until(lambda: client.inspect(topic).stats().dead == 30, 60)
        wait_until(lambda: "dead in 5 minutes, 30 in all" in cli("status", topic.name).out, 60)
        ran = cli("find", topic.name, "job:7").out
        assert "dead: died" in ran
        assert "after 2 deliveries: TimeoutError: shop 9 does not answer for job:7" in ran
        assert ran.count("TimeoutError: shop 9 does not answer for job:7") == 4  # it, two attempts, and the traceback
        assert "in draw" in ran
        page = open_page("/", width, scheme)
        looked_at(page, width)
        told(page, topic, "30 in all")
        expect(page.locator(".reasons")).to_contain_text("TimeoutError 30")
        looked_at(page, width)
        page.goto("/dead")
        expect(page.get_by_role("row", name=topic.name)).to_contain_text("TimeoutError")
        looked_at(page, width)
        page.goto(f"/message?topic={topic.name}&content=job:7")
        expect(page.get_by_role("region", name="Traceback")).to_contain_text("in draw")
        expect(page.locator(".attempts li")).to_have_count(2)
        looked_at(page, width)


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_a_handler_that_hangs(
    open_page: Open, cli: Cli, client: RmqClient, make_topic: MakeTopic, width: int, scheme: str
) -> None:
    topic, goes_on = make_topic(TopicType.PRIORITY), threading.Event()
    client.producer(topic).send(PriorityMessage("item:6", 5))

    @client.listener(topic, threads=2, timeout="1s")
    def draw(delivery: Delivery) -> None:
        goes_on.wait(300)

    try:
        with listening(client):
            wait_until(lambda: "is hung" in status_of(cli, topic), 60)
            assert f"critical  {topic.name}: a handler has run with item:6 for" in cli("status", topic.name, code=1).out
            page = open_page("/", width, scheme)
            told(page, topic, "is hung")
            expect(page.get_by_role("region", name="Running handlers")).to_contain_text("item:6")
            expect(page.get_by_role("region", name="Running handlers")).to_contain_text("hung")
            looked_at(page, width)
            name = client.workers()[0].name
            assert f"by {name}\n" in cli("find", topic.name, "item:6").out
            page.goto(f"/search?topic={topic.name}&place=prepare")
            row = page.get_by_role("row", name="item:6")
            expect(row).to_contain_text(f"by {name}")
            looked_at(page, width)
            goes_on.set()
    finally:
        goes_on.set()


WORKER = """
import sys, time
from rmq import RmqClient, Topic, TopicType
client = RmqClient(sys.argv[1])
@client.listener(client.topic(sys.argv[2]))
def work(delivery):
    time.sleep(600)
client.run()
"""


@pytest.mark.slow
def test_a_fleet_that_died(open_page: Open, cli: Cli, client: RmqClient, make_topic: MakeTopic, redis_url: str) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY, checked=False)).topic
    client.producer(topic).send_many(PriorityMessage(f"job:{number}", 5) for number in range(5))
    with subprocess.Popen([sys.executable, "-c", WORKER, redis_url, topic.name]) as fleet:
        wait_until(lambda: client.inspect(topic).stats().in_flight, 60)
        wait_until(client.workers, 60)
        fleet.kill()
    wait_until(lambda: "no worker listens" in status_of(cli, topic), 120)
    ran = cli("status", topic.name, code=1).out
    assert "critical  no worker is alive" in ran
    for width, scheme in LOOKS:
        page = open_page("/", width, scheme)
        expect(page.locator("#findings")).to_contain_text("no worker is alive", timeout=LIMIT_MS)
        told(page, topic, "no worker listens")
        expect(page.get_by_text("No worker listens to this topic.")).to_be_visible()
        looked_at(page, width)
    client.control(topic).purge("store", confirm=topic.name)


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_a_tenant_that_floods(
    open_page: Open, cli: Cli, client: RmqClient, make_topic: MakeTopic, width: int, scheme: str
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    flood = [PriorityMessage(f"tenant7:{number}", 5, slot_basis="tenant7") for number in range(300)]
    client.producer(topic).send_many([*flood, *(PriorityMessage(f"tenant1:{number}", 5) for number in range(10))])
    [row] = cli("status", topic.name, "--json", code=1).json["topics"]
    assert row["due_now"] == 310
    assert row["oldest_ms"] >= 0
    page = open_page("/", width, scheme)
    told(page, topic, "310 messages due")
    page.get_by_role("link", name="Slots", exact=True).click()
    expect(page.locator("#rows tbody tr").first).to_contain_text("30")
    looked_at(page, width)
    page.get_by_role("link", name="Queued 310").click()
    page.get_by_label("Content, with").fill("tenant7:*")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("1 to 50 of 300")).to_be_visible()
    looked_at(page, width)
    page.get_by_role("button", name="Cancel all that match …").click()
    expect(page.get_by_text(f"Cancel 300 messages of topic {topic.name} matching tenant7:*")).to_be_visible()
    looked_at(page, width)
    page.get_by_label("Type the topic's name").fill(topic.name)
    page.get_by_role("button", name="Cancel", exact=True).click()
    wait_until(lambda: client.inspect(topic).stats().backlog == 10, 60)
    assert "10" in cli("cancel", topic.name, "--matching", "tenant*", "--dry-run").out
    assert "8 slots paused" in cli("pause", topic.name).out
    assert "8 of 8 slots are paused; 10 due there" in cli("status", topic.name).out
    client.control(topic).resume()


def test_a_redis_that_is_full(browser: Browser) -> None:
    with RedisServer() as server, RmqClient(f"redis://127.0.0.1:{server.port}") as client:
        topic = client.producer(Topic("jobs", TopicType.PRIORITY)).topic
        client.producer(topic).send(PriorityMessage("a", 5))
        plain = redis.Redis(port=server.port)
        plain.config_set("maxmemory-policy", "noeviction")
        plain.config_set("maxmemory", 1_000_000)
        with pytest.raises(MemoryFullError):
            client.producer(topic).send(PriorityMessage("b", 5))
        ran = Cli(f"redis://127.0.0.1:{server.port}")("status", code=1).out
        assert "critical  Redis uses" in ran
        assert "of its maxmemory; sends are refused" in ran
        with served(client) as address:
            for width, scheme in LOOKS:
                options: Any = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
                with browser.new_context(base_url=address, **options) as context:
                    page = Watched(context, address).page
                    page.goto("/")
                    expect(page.locator("#findings")).to_contain_text("of its maxmemory; sends are refused")
                    looked_at(page, width)
        plain.close()
