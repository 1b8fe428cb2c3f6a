"""Lists of messages by state over all slots of a topic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import redis

from rmq import FixedTimeMessage, PriorityMessage, RmqClient, Topic, TopicType
from rmq.dashboard.queries import FARTHEST, PAGE, Listing, list_messages
from rmq.errors import InvalidValueError
from tests.conftest import MakeTopic
from tests.support.cli import bury
from tests.support.dashboard import served


def listed(
    client: RmqClient, topic: Topic, place: Any, pattern: str = "", sort: str = "next", first: int = 0
) -> Listing:
    return list_messages(client.inspect(topic), (place,), pattern, sort, first)


def texts(listing: Listing) -> list[str]:
    return [each.text for each in listing.rows]


def test_the_order_of_delivery_is_exact_over_all_slots_and_pages(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=8)
    client.producer(topic).send_many(FixedTimeMessage(f"m:{n:03}", delay=f"{3_600 + n}s") for n in range(230))
    seen: list[str] = []
    first = 0
    while True:
        page = listed(client, topic, "store", first=first)
        seen += texts(page)
        if not page.more:
            break
        first = page.more
    assert seen == [f"m:{n:03}" for n in range(230)]
    assert texts(listed(client, topic, "store", sort="last"))[0] == "m:229"


def test_one_slot_with_most_messages_is_gone_on_with(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=16)
    crowd = [FixedTimeMessage(f"m:{n:03}", delay=f"{3_600 + n}s", slot_basis="one tenant") for n in range(150)]
    client.producer(topic).send_many(crowd)
    assert texts(listed(client, topic, "store", first=100)) == [f"m:{n:03}" for n in range(100, 150)]


def test_priorities_come_highest_first(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    client.producer(topic).send_many(PriorityMessage(f"m:{n}", n) for n in range(1, 10))
    for sort in ("next", "slot", "content", "retries"):
        assert len(texts(listed(client, topic, "store", sort=sort))) == 9
    assert texts(listed(client, topic, "store")) == [f"m:{n}" for n in range(9, 0, -1)]
    assert texts(listed(client, topic, "store", "m:[1-3]", "next")) == ["m:3", "m:2", "m:1"]
    assert texts(listed(client, topic, "store", "m:[1-3]", "last")) == ["m:1", "m:2", "m:3"]


def test_in_flight_waiting_and_dead(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    client.producer(topic).send_many(PriorityMessage(f"m:{n}", 5) for n in range(6))
    with client.consumer(topic) as consumer:
        flying = [each for _ in range(2) for each in consumer.poll(6, timeout=0.2)]
        assert len(flying) == 6
        assert sorted(texts(listed(client, topic, "prepare"))) == sorted(each.text for each in flying)
        flying[0].nack(delay="1h")
        flying[1].bury("no photo")
        for each in flying[2:]:
            each.ack()
    assert texts(listed(client, topic, "retry")) == [flying[0].text]
    assert texts(listed(client, topic, "dead")) == [flying[1].text]


def test_what_is_out_of_reach_is_refused(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY)).topic
    with pytest.raises(InvalidValueError, match="first is 10,001; a list shows at most 10,000 messages"):
        listed(client, topic, "store", first=FARTHEST + 1)
    assert listed(client, topic, "store", first=PAGE).rows == []


# --- actions on what is selected, and on all that match


@pytest.fixture
def browser(client: RmqClient) -> Iterator[httpx.Client]:
    with (
        served(client) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=60, trust_env=False) as browser,
    ):
        yield browser


class Boxes:
    """The check boxes of the list of a topic, by what they are labelled with."""

    def __init__(self, browser: httpx.Client, topic: Topic) -> None:
        self._browser = browser
        page = browser.get(f"/search?topic={topic.name}").text
        found = re.findall(r'name="(pick\d+)" value="([^"]+)" aria-label="Select ([^"]+)"', page)
        self.all = {label: (name, value) for name, value, label in found}
        [token] = set(re.findall(r'name="token" value="([^"]+)"', page))
        self._form = {"token": token, "topic": topic.name, "back": f"/search?topic={topic.name}"}

    def post(self, action: str, *labels: str, **more: str) -> str:
        form = self._form | dict(self.all[label] for label in labels) | more
        return self._browser.post(f"/do/{action}", data=form).text

    def ask(self, action: str, *labels: str) -> str:
        return self.post(f"{action}-selected", *labels)

    def confirm(self, action: str, *labels: str) -> str:
        return self.post(f"{action}-selected", *labels, yes="yes")


def test_an_action_changes_only_rows_of_its_state(
    browser: httpx.Client, client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    producer = client.producer(topic)
    for content in ("x", "y"):
        producer.send(PriorityMessage(content, 5))
        bury(client, topic)
    producer.send_many(PriorityMessage(content, 5) for content in ("x", "y"))
    boxes = Boxes(browser, topic)
    assert sorted(boxes.all) == ["x, backlog", "x, dead", "y, backlog", "y, dead"]

    def left() -> tuple[list[str], list[str]]:
        return texts(listed(client, topic, "store", sort="content")), texts(
            listed(client, topic, "dead", sort="content")
        )

    for action in ("purge-dead", "redrive"):
        assert "0 messages of topic" in boxes.ask(action, "x, backlog")
        assert f"{action.removesuffix('-dead')}: nothing selected" in boxes.confirm(action, "x, backlog")
    for action in ("cancel", "promote"):
        assert "0 messages of topic" in boxes.ask(action, "x, dead")
        assert f"{action}: nothing selected" in boxes.confirm(action, "x, dead")
    assert left() == (["x", "y"], ["x", "y"])

    assert f"Cancel 1 message of topic {topic.name}?" in boxes.ask("cancel", "x, backlog", "y, dead")
    assert "cancel: 1 done" in boxes.confirm("cancel", "x, backlog", "y, dead")
    assert left() == (["y"], ["x", "y"])
    assert f"Permanently delete 1 message of topic {topic.name}" in boxes.ask("purge-dead", "y, backlog", "x, dead")
    assert "purge: 1 deleted" in boxes.confirm("purge-dead", "y, backlog", "x, dead")
    assert left() == (["y"], ["y"])
    assert "redrive: 1 merged with the message in the backlog" in boxes.confirm("redrive", "y, backlog", "y, dead")
    assert left() == (["y"], [])


def test_what_a_cancel_of_all_matches_is_about_is_counted_up_to_a_limit(
    browser: httpx.Client, client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.dashboard.actions.MOST_COUNTED", 20)
    topic = make_topic(TopicType.PRIORITY)
    producer = client.producer(topic)
    producer.send_many(PriorityMessage(f"m:0{n}", 5) for n in range(4))
    with client.consumer(topic) as consumer:
        waiting, dead, flying, other = consumer.poll(4)
        waiting.nack(delay="1h")
        dead.bury("no photo")
        producer.send_many(PriorityMessage(f"m:{n}", 5) for n in range(10, 29))
        boxes = Boxes(browser, topic)
        assert f"Cancel 20 messages of topic {topic.name} matching m:*, " in boxes.post(
            "cancel-matching", pattern="m:*"
        )
        assert "Cancel 1 message of" in boxes.post("cancel-matching", pattern="m:0*")
        producer.send(PriorityMessage("m:29", 5))
        assert "Cancel more than 20 messages of" in boxes.post("cancel-matching", pattern="m:*")
        flying.ack()
        other.ack()


def test_a_count_of_matches_reads_no_more_than_it_needs(
    browser: httpx.Client, client: RmqClient, redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.dashboard.actions.MOST_COUNTED", 20)
    topic = make_topic(TopicType.PRIORITY, slots=8)
    client.producer(topic).send_many(PriorityMessage(f"m:{n}", 5) for n in range(6_000))
    boxes = Boxes(browser, topic)
    with redis.Redis.from_url(redis_url) as server:

        def reads(work: Callable[[], object]) -> int:
            before, _, after = (commands(server, "zscan"), work(), commands(server, "zscan"))
            return after - before

        whole = reads(lambda: client.control(topic).cancel_matching("m:*", dry_run=True))
        assert 0 < reads(lambda: boxes.post("cancel-matching", pattern="m:*")) < whole / 2


def commands(server: redis.Redis, name: str) -> int:
    found: Any = server.info("commandstats")
    return found.get(f"cmdstat_{name}", {"calls": 0})["calls"]
