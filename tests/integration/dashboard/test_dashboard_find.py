"""The search box of every page: who holds a content, and since when."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from rmq import PriorityMessage, RmqClient, Schedule, StreamMessage, TopicType
from rmq.dashboard import pages
from tests.conftest import MakeTopic
from tests.support.dashboard import served
from tests.support.waiting import wait_until


@pytest.fixture
def browser(client: RmqClient) -> Iterator[httpx.Client]:
    with served(client) as address, httpx.Client(base_url=address, timeout=30) as browser:
        yield browser


def test_a_content_in_several_topics(browser: httpx.Client, client: RmqClient, make_topic: MakeTopic) -> None:
    held, queued = make_topic(TopicType.PRIORITY, slots=4), make_topic(TopicType.PRIORITY, slots=8)
    client.producer(held).send(PriorityMessage("item:1", 5))
    client.producer(queued).send(PriorityMessage("item:1", 7, slot_basis="of another"))
    assert queued.slot_of(b"item:1") != queued.slot_of(b"of another")
    with client.consumer(held) as consumer:
        assert consumer.poll(timeout=5)
        text = browser.get("/find", params={"q": "item:1"}).text
        assert f"in {held.name}" in text
        assert "<b>In flight</b>, claimed or renewed " in text
        assert f"in {queued.name}" in text
        assert "<b>In the backlog</b>, priority 7" in text
        page = browser.get("/search", params={"topic": held.name, "place": "prepare"}).text
        assert "claimed or renewed " in page
        [message] = client.inspect(held).peek("prepare")
        assert message.claimed_ms is not None
        assert 0 <= message.now_ms - message.claimed_ms < 60_000
        assert message.claimed_ms + held.lease_ms + 1 == message.due_ms
    [stored] = client.inspect(queued).peek()
    assert stored.claimed_ms is None


def test_what_is_not_there_and_where_it_was_searched(
    browser: httpx.Client, client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slots in (4, 8):
        client.producer(make_topic(TopicType.PRIORITY, slots=slots))
    answer = browser.get("/find", params={"q": "nix <b>"})
    assert answer.status_code == 200
    assert "Nothing found for nix &lt;b&gt;." in answer.text
    assert " not in all slots" not in answer.text
    monkeypatch.setattr(pages, "MOST_SLOTS", 0)
    assert "in all slots of 0 topics; in " in browser.get("/find", params={"q": "nix"}).text
    monkeypatch.setattr(pages, "MOST_SEARCH_S", -1.0)
    assert "in all slots of 0 topics; in " in browser.get("/find", params={"q": "nix"}).text


def test_schedules_and_entries_that_a_handler_has(
    browser: httpx.Client, client: RmqClient, make_topic: MakeTopic
) -> None:
    topic, events = make_topic(TopicType.PRIORITY), make_topic(TopicType.STREAM, checked=False)
    client.producer(topic)
    client.schedules.put(Schedule(f"night-{topic.name}", topic, "all", every="1d", priority=5))
    answer = browser.get("/find", params={"q": "night-"}, follow_redirects=True)
    assert (answer.url.path, answer.url.params["filter"]) == ("/schedules", f"night-{topic.name}")
    client.schedules.remove(f"night-{topic.name}")

    @client.listener(events, group="billing", start="all")
    def bill(delivery: object) -> None:
        del delivery
        wait_until(lambda: done, 120)

    done: list[bool] = []
    client.producer(events).send(StreamMessage("order:1"))
    client.start()
    try:

        def answered() -> httpx.Response:
            return browser.get("/find", params={"q": "order:1"}, follow_redirects=True)

        wait_until(lambda: answered().url.path.startswith("/worker/"), 60)
        assert "order:1" in answered().text
    finally:
        done.append(True)
        client.stop()
