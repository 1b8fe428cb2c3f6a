"""Who owns a slot, on the pages: through a real ZooKeeper."""

from __future__ import annotations

import re

import httpx

from rmq import RmqClient, TopicType
from tests.conftest import Coordinate, MakeTopic
from tests.support.dashboard import served
from tests.support.waiting import wait_until


def one_of(names: list[str]) -> str:
    """Return one of the two owners that the table of slots names."""
    assert len(names) == 8
    assert len(set(names)) == 2
    return names[0]


def test_the_topic_page_shows_who_owns_which_slot(
    redis_url: str, client: RmqClient, coordinate: Coordinate, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    with (
        RmqClient(redis_url, zookeeper=coordinate()) as one,
        RmqClient(redis_url, zookeeper=coordinate()) as two,
        served(client) as address,
        httpx.Client(base_url=address, timeout=60, trust_env=False) as browser,
    ):
        for each in (one, two):

            @each.listener(topic)
            def work(delivery: object) -> None:
                del delivery

            each.start()

        def owners() -> list[str]:
            page = browser.get(f"/topic/{topic.name}?heat=owner").text
            return re.findall(r'<a class="owner([01])"', page)

        wait_until(lambda: sorted(owners()) == ["0"] * 4 + ["1"] * 4, 90)
        page = browser.get(f"/topic/{topic.name}?heat=owner").text
        assert "have no owner" not in page
        assert re.search(r'aria-label="slot 0: [^"]*:\d+:', page)
        slot = browser.get(f"/topic/{topic.name}/slot/3").text
        assert "owned by" in slot
        name = one_of(re.findall(r'<td[^>]*><a href="/worker/([^"]+)"', page))
        worker = browser.get(f"/worker/{name}")
        assert worker.status_code == 200
        assert "owns its slots" in worker.text
        assert re.search(r"<dt>Owned</dt><dd>[0-9, -]+</dd>", worker.text)
        one.stop()
        two.stop()
        wait_until(lambda: "No worker listens to this topic" in browser.get(f"/topic/{topic.name}").text, 90)
