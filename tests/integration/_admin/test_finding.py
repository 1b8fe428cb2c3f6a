"""Where a content is, searching by content, the dead by reason, the workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
import redis

from rmq import (
    Delivery,
    FixedTimeMessage,
    FoundMessage,
    ImmediateRetry,
    Inspection,
    PriorityMessage,
    Rates,
    RmqClient,
    Topic,
    TopicType,
    WorkerInfo,
)
from rmq.errors import InvalidValueError
from tests.conftest import MakeTopic
from tests.support.core import WORKER_INFOS_KEY, WORKERS_KEY, slot_keys
from tests.support.slots import check_topic, forget_topic
from tests.support.waiting import wait_until

FAR_MS = 4 * 10**12


def test_find_follows_a_message_through_its_life(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, max_retries=1, retry=ImmediateRetry())
    view, producer = client.inspect(topic), client.producer(topic)
    assert view.find("a").gone
    producer.send(PriorityMessage("a", 100, body=b"\xff"))
    found = view.find("a")
    assert found.stored is not None
    assert (found.stored.priority, found.stored.body, found.stored.due_ms, found.gone) == (100, b"\xff", None, False)
    with client.consumer(topic) as consumer:
        delivery = consumer.poll(1, timeout=50)[0]
        producer.send(PriorityMessage("a", 300))
        found = view.find("a")
        assert found.in_flight is not None
        assert 0 < found.in_flight.lease_left_ms <= 61_000
        assert (found.in_flight.retries_left, found.stored is not None, found.holders) == (1, True, ())
        client.control(topic).cancel("a")
        delivery.nack(delay="1m")
        found = view.find("a")
        assert (found.in_flight, found.stored) == (None, None)
        assert found.waiting is not None
        assert found.waiting.due_ms is not None
        assert found.waiting.due_ms > found.now_ms
        assert found.failure is not None
        client.control(topic).promote("a")
        consumer.poll(1, timeout=50)[0].bury(ValueError("no picture"))
    found = view.find("a")
    assert found.dead is not None
    assert (found.dead.error_type, found.dead.error_message, found.failure) == ("ValueError", "no picture", None)


def test_find_by_slot_basis_or_everywhere(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=64)
    basis = next(name for name in map(str, range(1_000)) if topic.slot_of(name.encode()) != topic.slot_of(b"a"))
    client.producer(topic).send(FixedTimeMessage("a", fixed_time_ms=FAR_MS, slot_basis=basis))
    view = client.inspect(topic)
    assert view.find("a").gone
    assert not view.find("a", basis).gone
    found = view.find("a", everywhere=True)
    assert found.slot == topic.slot_of(basis.encode())
    assert found.stored is not None
    assert found.stored.due_ms == FAR_MS
    assert view.find("b", everywhere=True).gone


def all_pages(view: Inspection, *args: object, **options: object) -> list[FoundMessage]:
    found: list[FoundMessage] = []
    cursor = None
    while True:
        page = view.search(*args, cursor=cursor, **options)  # pyright: ignore[reportArgumentType]
        found += page.messages
        if page.cursor is None:
            return found
        assert page.cursor != cursor, "it goes on"
        cursor = page.cursor


@pytest.fixture(scope="module")
def filled(redis_url: str, redis_client: redis.Redis) -> Iterator[Inspection]:
    """A topic with 1,500 messages in store, 600 dead, 3 in flight, 1 waiting, only to look at; one slot is large."""
    topic = Topic(f"finding{os.getpid()}", TopicType.PRIORITY, slots=8, lease=timedelta(hours=1))
    with RmqClient(redis_url) as client:
        producer = client.producer(topic)
        producer.send_many(PriorityMessage(f"doomed:{n}", 1_000, body="b" * n) for n in range(600))
        with client.consumer(topic) as consumer:
            while batch := consumer.poll(200, timeout=0):
                for delivery in batch:
                    delivery.bury(ValueError("no") if delivery.text.endswith("7") else TimeoutError("late"))
        producer.send_many(PriorityMessage(f"item:{n}", 100, slot_basis="x") for n in range(1_500))
        producer.send_many(PriorityMessage(f"held:{n}", 2_000 + n) for n in range(4))
        with client.consumer(topic) as consumer:
            batch = [each for each in consumer.poll(1_000, timeout=1) if each.text.startswith("held")]
            assert len(batch) == 4
            batch[0].nack(delay="10m")
            view = client.inspect(topic)
            assert view.stats().waiting == 1
            yield view
    check_topic(redis_client, topic.name)
    forget_topic(redis_client, topic.name)


def test_search_finds_everything_page_by_page(filled: Inspection) -> None:
    stats = filled.stats()
    found = all_pages(filled, limit=50)
    assert len({(each.place, each.content) for each in found}) == stats.backlog + stats.dead + stats.in_flight + 1
    dead = {each.text: each for each in found if each.place == "dead"}
    assert len(dead) == 600
    assert (dead["doomed:7"].error_type, dead["doomed:7"].error_message) == ("ValueError", "no")
    assert (dead["doomed:42"].body, dead["doomed:42"].body_bytes) == (b"b" * 42, 42)
    assert (dead["doomed:0"].body, dead["doomed:0"].body_bytes) == (b"", 0)


def test_search_by_pattern_prefix_place_and_slot(filled: Inspection) -> None:
    assert {each.text for each in all_pages(filled, "item:14?9")} == {f"item:14{n}9" for n in range(10)}
    assert {each.text for each in all_pages(filled, prefix="doomed:59")} == {
        "doomed:59",
        *(f"doomed:59{n}" for n in range(10)),
    }
    assert all_pages(filled, prefix="item:*") == []
    assert {each.place for each in all_pages(filled, "*:1*", places=["dead"])} == {"dead"}
    waiting = all_pages(filled, places=["retry"])
    assert [(each.place, each.due_ms is not None, each.error_type) for each in waiting] == [("retry", True, "")]
    large = filled.topic.slot_of(b"x")
    assert {each.slot for each in all_pages(filled, "item*", slots=[large], limit=7)} == {large}


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_a_page_has_no_more_messages_than_its_limit(filled: Inspection, limit: int) -> None:
    """`rmq search --limit 3` printed 21 lines."""
    wanted = {"slots": [0, 1], "prefix": "doomed:", "limit": limit}
    pages, found, cursor = 0, list[FoundMessage](), None
    while pages == 0 or cursor is not None:
        page = filled.search(cursor=cursor, **wanted)  # pyright: ignore[reportArgumentType]
        assert len(page.messages) <= limit
        found, cursor, pages = [*found, *page.messages], page.cursor, pages + 1
    in_slots = [each for each in all_pages(filled, prefix="doomed:", limit=1_000) if each.slot in (0, 1)]
    assert sorted(each.text for each in found) == sorted(each.text for each in in_slots)


def test_a_search_misses_nothing_if_the_last_message_of_a_page_is_gone(
    client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1)
    client.producer(topic).send_many(PriorityMessage(f"m{number:02}", 100 + number) for number in range(20))
    view = client.inspect(topic)
    page = view.search(limit=5)
    for each in page.messages:
        assert client.control(topic).cancel(each.content).name == "DONE"
    left = all_pages(view)
    after = view.search(limit=1_000, cursor=page.cursor)
    assert {each.text for each in after.messages} == {each.text for each in left}
    assert len(left) == 15


def test_a_search_ends_with_its_budget_and_goes_on_with_its_cursor(filled: Inspection) -> None:
    page = filled.search("item:77", budget=100)
    assert page.looked_at < 6_000
    rest: list[FoundMessage] = []
    while page.cursor is not None:
        rest += page.messages
        page = filled.search("item:77", cursor=page.cursor, budget=100)
    assert {each.text for each in [*rest, *page.messages]} == {"item:77"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"pattern": "a", "prefix": "b"},
        {"places": ["nowhere"]},
        {"limit": 0},
        {"limit": 1_001},
        {"budget": 0},
        {"cursor": "x"},
        {"cursor": "0;99=0.0.0.0"},
        {"cursor": "0;1=0.0.0"},
        {"slots": [8]},
    ],
)
def test_search_refuses_wrong_values(client: RmqClient, make_topic: MakeTopic, wrong: dict[str, object]) -> None:
    view = client.inspect(make_topic(TopicType.PRIORITY, slots=8))
    with pytest.raises(InvalidValueError):
        view.search(**wrong)  # pyright: ignore[reportArgumentType]


def test_dead_by_reason(filled: Inspection) -> None:
    reasons = filled.dead_reasons()
    assert (reasons.total, reasons.exact, reasons.counts) == (600, True, {"TimeoutError": 540, "ValueError": 60})
    sampled = filled.dead_reasons(sample=80)
    assert 80 <= sampled.sampled <= 88
    assert not sampled.exact
    assert sampled.total == 600
    assert 400 <= sampled.estimate("TimeoutError") <= 600
    assert filled.dead_reasons(stats=filled.stats()) == reasons
    for wrong in (7, 0, reasons, replace(filled.stats(), topic=replace(filled.topic, name="another"))):
        with pytest.raises(
            InvalidValueError, match=f"stats is .*; it must be a result of .* for topic {filled.topic.name}"
        ):
            filled.dead_reasons(stats=wrong)  # pyright: ignore[reportArgumentType]


def test_rates_between_two_looks(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    view = client.inspect(topic)
    before = view.stats()
    client.producer(topic).send_many(PriorityMessage(f"m{n % 8}", 100) for n in range(10))
    wait_until(lambda: view.stats().now_ms > before.now_ms)
    after = view.stats()
    rates = after.rates_since(before)
    assert rates.sent == pytest.approx(10 / rates.seconds)
    assert rates.merged == pytest.approx(2 / rates.seconds)
    assert before.rates_since(before) == Rates(0.0, *[0.0] * 8)
    assert before.rates_since(after).sent == 0


@pytest.mark.usefixtures("frequent_reports")
def test_workers_report_what_they_do_and_leave(client: RmqClient, make_topic: MakeTopic, redis_url: str) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    release = threading.Event()

    @client.listener(topic, threads=3)
    def handle(delivery: Delivery) -> None:
        release.wait(60)
        if delivery.text == "bad":
            raise ValueError("no")

    def mine(reader: RmqClient) -> list[WorkerInfo]:
        return [each for each in reader.workers() if any(one.topic == topic.name for one in each.listeners)]

    with RmqClient(redis_url) as reader:
        client.producer(topic).send(PriorityMessage("slow", 100))
        client.start()
        wait_until(lambda: any(each.listeners[0].in_flight for each in mine(reader)), 60)
        worker = mine(reader)[0]
        assert (worker.stale, worker.zookeeper, worker.listeners[0].threads) == (False, False, 3)
        assert worker.listeners[0].slots == (0, 1, 2, 3)
        found = reader.inspect(topic).find("slow")
        assert found.holders == (worker.name,)
        client.producer(topic).send(PriorityMessage("bad", 100))
        release.set()
        wait_until(lambda: mine(reader)[0].listeners[0].failed > 0, 60)
        client.stop()
        assert mine(reader) == []


def test_silent_and_foreign_workers(client: RmqClient, redis_client: redis.Redis) -> None:
    seconds, micros = redis_client.time()  # pyright: ignore[reportGeneralTypeIssues]
    now_ms = seconds * 1000 + micros // 1000
    info = WorkerInfo("w", "h", 1, 2, 0, 0, True, ()).to_json()
    redis_client.zadd(WORKERS_KEY, {"silent": now_ms - 30_000, "foreign": now_ms})
    redis_client.hset(WORKER_INFOS_KEY, mapping={"silent": info, "foreign": '{"v": 2}'})
    try:
        found = {each.name: each for each in client.workers()}
        assert found["silent"].stale
        assert "foreign" not in found
    finally:
        redis_client.zrem(WORKERS_KEY, "silent", "foreign")
        redis_client.hdel(WORKER_INFOS_KEY, "silent", "foreign")


def test_a_huge_body_is_cut(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("big", 100, body=b"x" * 262_144))
    found = client.inspect(topic).search("big").messages[0]
    assert (len(found.body or b""), found.body_bytes) == (1_024, 262_144)


def test_nobody_looks_by_writing(client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("a", 100))
    keys = slot_keys(topic.name, 0)
    before = redis_client.dump(keys.store), redis_client.hgetall(keys.meta)
    view = client.inspect(topic)
    for look in (lambda: view.find("a"), view.search, view.dead_reasons, view.audit, view.stats, client.workers):
        look()
    assert (redis_client.dump(keys.store), redis_client.hgetall(keys.meta)) == before
