"""A call of a handler that takes longer than its timeout: on threads, in an event loop, in columns, with owners."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from rmq import (
    Adaptive,
    Delivery,
    ImmediateRetry,
    ListenerInfo,
    PriorityMessage,
    RmqClient,
    Topic,
    TopicType,
    aio,
)
from rmq.errors import InvalidValueError
from rmq.metrics import TopicsCollector
from tests.conftest import Coordinate, MakeTopic
from tests.integration.aio.test_aio import in_a_loop, stats_of, until, until_settled
from tests.support.cli import Cli
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("frequent_reports")

SECOND = "1s"


def fill(client: RmqClient, topic: Topic, *contents: str) -> None:
    client.producer(topic).send_many(PriorityMessage(content, 2_000) for content in contents)


@pytest.mark.parametrize("timeout", [0, -1, "soon"])
def test_a_timeout_out_of_range_is_refused(timeout: Any) -> None:
    with RmqClient("redis://127.0.0.1:1") as client, pytest.raises(InvalidValueError, match="timeout"):
        client.listener(Topic("t", TopicType.PRIORITY), timeout=timeout)


@pytest.mark.parametrize("options", [{}, {"batch": 1}, {"batch": 1, "columns": True}], ids=["one", "batch", "columns"])
def test_a_thread_that_hangs_loses_its_message_and_what_comes_of_it_counts_no_more(
    options: dict[str, Any], redis_url: str, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(TopicType.PRIORITY, lease=SECOND, retry=ImmediateRetry())
    go_on, lost, calls = threading.Event(), list[bytes](), list[str]()
    with RmqClient(redis_url) as client:

        def handle(given: Any) -> None:
            calls.append("hangs" if not calls else "again")
            if len(calls) == 1:
                go_on.wait(120)

        listener = client.listener(
            topic, threads=2, timeout="300ms", on_lost=lambda delivery: lost.append(delivery.content), **options
        )
        listener(handle)
        fill(client, topic, "a")
        client.start()
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 1, 120, "another thread has it")
        assert lost == [b"a"]
        wait_until(lambda: any(one.hung for one in running(client, topic)), 60)
        go_on.set()
        wait_until(lambda: not running(client, topic), 60)
        client.stop()
        stats = client.inspect(topic).stats()
        assert (stats.total("acked"), stats.total("expired"), stats.in_flight) == (1, 1, 0)
    assert calls == ["hangs", "again"]
    assert "is no longer renewed, so the message will be redelivered" in caplog.text
    assert "so its result is ignored" in caplog.text


def test_the_lease_of_a_handler_that_stops_its_client_is_renewed_until_it_returns(
    redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, lease="5s")
    elsewhere = list[Delivery]()
    with RmqClient(redis_url) as other, RmqClient(redis_url) as client:
        consumer = other.consumer(topic)

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            del delivery
            client.stop(drain_s=60)
            elsewhere.extend(consumer.poll(timeout=8.0))

        fill(client, topic, "a")
        client.start()
        wait_until(lambda: other.inspect(topic).stats().total("acked") == 1, 120)
        assert elsewhere == []


@pytest.mark.parametrize("given_up", [False, True])
def test_a_handler_on_a_thread_may_stop_its_client(given_up: bool, redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, lease=SECOND, checked=not given_up)
    lost, left = threading.Event(), list[list[str]]()
    with RmqClient(redis_url) as client:

        @client.listener(topic, timeout="300ms" if given_up else None, on_lost=lambda delivery: lost.set())
        def handle(delivery: Delivery) -> None:
            if not given_up or lost.wait(120):
                left.append([each.text for each in client.stop(drain_s=240)])

        fill(client, topic, "a")
        client.start()
        wait_until(lambda: bool(left), 120, "it does not wait for itself")
        assert left == [[] if given_up else ["a"]]


def reported(client: RmqClient, topic: Topic) -> tuple[str, ListenerInfo] | None:
    """Return the worker that listens to the topic, and what it says of the listener; other tests have theirs."""
    found = (
        (worker.name, each) for worker in client.workers() for each in worker.listeners if each.topic == topic.name
    )
    return next(found, None)


def info_of(client: RmqClient, topic: Topic) -> ListenerInfo | None:
    found = reported(client, topic)
    return found and found[1]


def running(client: RmqClient, topic: Topic) -> tuple[Any, ...]:
    info = info_of(client, topic)
    return () if info is None else info.running


def test_how_long_handlers_run_is_seen_and_a_stop_does_not_wait_for_one_that_hangs(
    redis_url: str, make_topic: MakeTopic
) -> None:
    topic, go_on = make_topic(TopicType.PRIORITY), threading.Event()
    with RmqClient(redis_url) as client:

        @client.listener(topic, timeout="200ms")
        def handle(delivery: Delivery) -> None:
            go_on.wait(300)

        fill(client, topic, "slow")
        client.start()
        wait_until(lambda: any(one.hung for one in running(client, topic)), 60)
        [one] = running(client, topic)
        assert (one.content, one.messages) == ("slow", 1)
        found, [peeked] = client.inspect(topic).find("slow").in_flight, client.inspect(topic).peek("prepare")
        listening = reported(client, topic)
        assert found is not None
        assert listening is not None
        worker = listening[0]
        assert (found.handled_by, peeked.handled_by) == (worker, worker)
        assert (found.handled_ms or 0) >= 200
        assert (peeked.handled_ms or 0) >= 200
        said = Cli(redis_url)("find", topic.name, "slow").out
        assert "handled for " in said
        assert f" by {worker}\n" in said
        peek = Cli(redis_url)("peek", topic.name, "--place", "in-flight", env={"COLUMNS": "300"})
        assert worker in peek.out
        workers = json.loads(Cli(redis_url)("workers", "--json").out)["workers"]
        [listed] = [each for one in workers if one["name"] == worker for each in one["listeners"]]
        assert listed["handlers"][0]["content"] == "slow"
        assert listed["handlers"][0]["hung"] is True
        assert listed["handlers"][0]["running_ms"] >= 200
        for columns in ("80", "120"):
            shown = Cli(redis_url)("workers", env={"COLUMNS": columns}).out
            assert worker in shown
            assert ("hung" in shown, "handlers" in shown, "seen" in shown) == (True, columns == "120", True)
            assert max(map(len, shown.splitlines())) <= int(columns)
        samples = {
            sample.name: sample.value
            for family in TopicsCollector(client, keep_s=0).collect()
            for sample in family.samples
            if sample.labels.get("topic") == topic.name
        }
        assert samples["rmq_longest_handler_seconds"] >= 0.2
        assert samples["rmq_handlers_hung"] == 1
        assert client.stop(drain_s=600) == []  # returns at once
        assert not go_on.is_set()
        go_on.set()


def test_what_waits_behind_one_that_hangs_goes_back(redis_url: str, make_topic: MakeTopic) -> None:
    topic, go_on, done = make_topic(TopicType.PRIORITY), threading.Event(), list[str]()
    with RmqClient(redis_url) as client:

        @client.listener(topic, threads=2, timeout="200ms")
        def handle(delivery: Delivery) -> None:
            if delivery.text == "hang":
                go_on.wait(300)
            else:
                done.append(delivery.text)

        fill(client, topic, *(f"a{number}" for number in range(500)))
        client.start()
        wait_until(lambda: len(done) >= 100, 60)
        fill(client, topic, "hang", *(f"b{number}" for number in range(500)))
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 1_000, 120)
        go_on.set()


def test_a_call_that_was_given_up_takes_no_place_of_an_adaptive_listener(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, lease=SECOND, retry=ImmediateRetry())
    go_on, done = threading.Event(), list[str]()
    with RmqClient(redis_url) as client:

        @client.listener(topic, threads=4, timeout="200ms", adaptive=Adaptive(least=1, window_s=0.05))
        def handle(delivery: Delivery) -> None:
            if (delivery.text, delivery.attempt) == ("hang", 1):
                go_on.wait(300)
            elif delivery.text != "hang":
                done.append(delivery.text)

        fill(client, topic, "hang")
        client.start()
        for number in range(3):  # with quick ones, then quiet windows in which an old age would stand alone
            wait_until(lambda: any(one.hung for one in running(client, topic)), 60)
            fill(client, topic, *(f"{number}-{each}" for each in range(100)))
            wait_until(lambda number=number: len(done) == 100 * (number + 1), 60, "the other messages")
        go_on.set()
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 301, 120)
        wait_until(lambda: not running(client, topic), 60)


@in_a_loop
async def test_a_task_that_was_given_up_takes_no_place_of_an_adaptive_listener(
    redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.aio.listener.TaskWorker.grace_s", 0.3)
    topic, go_on, lost, done = make_topic(TopicType.PRIORITY), asyncio.Event(), list[bytes](), list[str]()
    async with aio.RmqClient(redis_url) as client:

        @client.listener(
            topic,
            concurrency=4,
            timeout="100ms",
            adaptive=Adaptive(least=1),
            on_lost=lambda delivery: lost.append(delivery.content),
        )
        async def handle(delivery: aio.Delivery) -> None:
            while delivery.text == "hang" and not go_on.is_set():
                try:
                    await go_on.wait()
                except asyncio.CancelledError:
                    continue
            done.append(delivery.text)

        producer = await client.producer(topic)
        await producer.send(PriorityMessage("hang", 2_000))
        await client.start()
        await until(lambda: lost, 60)
        await producer.send_many([PriorityMessage(str(number), 2_000) for number in range(100)])
        await until(lambda: len(done) == 100, 60)
        go_on.set()


def test_a_call_that_was_given_up_takes_no_place_of_the_shared_handlers(redis_url: str, make_topic: MakeTopic) -> None:
    topic, other = make_topic(TopicType.PRIORITY, lease=SECOND, retry=ImmediateRetry()), make_topic(TopicType.PRIORITY)
    go_on, calls, others = threading.Event(), list[int](), list[str]()
    with RmqClient(redis_url) as client:

        @client.listener(topic, threads=2, timeout="200ms")
        def handle(delivery: Delivery) -> None:
            calls.append(delivery.attempt)
            if len(calls) == 1:
                go_on.wait(300)

        client.listener(other, threads=2)(lambda delivery: others.append(delivery.text))
        fill(client, topic, "hang")
        client.start(handlers=2)
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 1, 60, "its other thread has it")
        fill(client, other, *(str(number) for number in range(20)))
        wait_until(lambda: len(others) == 20, 60)
        assert not go_on.is_set()
        go_on.set()
        wait_until(lambda: not running(client, topic), 60)
        fill(client, topic, "more")
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 2, 60)
    assert calls == [1, 2, 1]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        pytest.param({}, 0, id="one"),
        pytest.param({"batch": 10}, 0, id="batch"),
        pytest.param({"batch": 10}, 1, id="batch but one"),
        pytest.param({"batch": 10, "columns": True}, 0, id="columns"),
        pytest.param({"batch": 10, "columns": True}, 1, id="columns but one"),
    ],
)
def test_what_was_settled_before_the_timeout_is_not_lost(
    options: dict[str, Any], left: int, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, lease=SECOND, retry=ImmediateRetry())
    go_on, calls, lost = threading.Event(), list[list[bytes]](), list[bytes]()
    number = 10 if options else 1
    with RmqClient(redis_url) as client:

        def handle(given: Any) -> None:
            contents = [given.content] if not options else given.contents if "columns" in options else None
            calls.append(contents or [each.content for each in given])
            if len(calls) > 1:
                return
            if "columns" in options:
                given.ack(range(number - left) if left else None)
            else:
                for each in given[: number - left] if options else [given]:
                    each.ack()
            go_on.wait(300)

        listener = client.listener(
            topic, timeout="100ms", on_lost=lambda delivery: lost.append(delivery.content), **options
        )
        listener(handle)
        fill(client, topic, *(f"m{each}" for each in range(number)))
        client.start()
        wait_until(lambda: any(one.hung for one in running(client, topic)), 60)
        wait_until(lambda: client.inspect(topic).stats().total("acked") == number - left, 60, "what was acked")
        wait_until(lambda: len(lost) == left, 60)
        assert not go_on.is_set()
        go_on.set()
        wait_until(lambda: client.inspect(topic).stats().total("acked") == number, 60)
        stats = client.inspect(topic).stats()
        assert (stats.total("expired"), stats.in_flight) == (left, 0)
    assert calls[1:] == [lost] * left
    assert lost == calls[0][number - left :]


@in_a_loop
async def test_what_a_task_has_settled_before_its_timeout_is_not_lost(
    redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.aio.listener.TaskWorker.grace_s", 0.0)
    topic = make_topic(TopicType.PRIORITY, slots=1, lease="4s", retry=ImmediateRetry())
    go_on, calls, lost = asyncio.Event(), list[list[str]](), list[str]()
    async with aio.RmqClient(redis_url) as client:

        @client.listener(topic, batch=10, timeout="2s", on_lost=lambda delivery: lost.append(delivery.text))
        async def handle(given: list[aio.Delivery]) -> None:
            calls.append([each.text for each in given])
            if len(calls) == 1:
                for each in given[:-1]:
                    await each.ack()
                while not go_on.is_set():
                    try:
                        await go_on.wait()
                    except asyncio.CancelledError:
                        continue

        await (await client.producer(topic)).send_many([PriorityMessage(str(each), 2_000) for each in range(10)])
        await client.start()
        async with asyncio.timeout(60):
            while (await stats_of(client, topic)).total("acked") < 9:
                await asyncio.sleep(0.05)
        await until(lambda: lost)
        assert not go_on.is_set()
        go_on.set()
        await until(lambda: len(calls) == 2, 60)
        stats = await until_settled(client, topic)
        assert (stats.total("acked"), stats.total("expired")) == (10, 1)
    assert lost == calls[1] == calls[0][-1:]


@pytest.mark.parametrize("options", [{}, {"batch": 2}, {"batch": 2, "columns": True}], ids=["one", "batch", "columns"])
@in_a_loop
async def test_a_task_is_cancelled_and_nacked_when_it_has_ended(
    options: dict[str, Any], redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, retry=ImmediateRetry(), max_retries=3)
    seen: list[str] = []
    async with aio.RmqClient(redis_url) as client:

        @client.listener(topic, timeout="100ms", **options)
        async def handle(given: Any) -> None:
            if len(seen) >= 6:
                return
            seen.append("begun")
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                await asyncio.sleep(0.05)
                assert (await stats_of(client, topic)).in_flight == 1  # not while it runs
                seen.append("ended")
                if len(seen) < 6:
                    raise

        await (await client.producer(topic)).send(PriorityMessage("a", 2_000))
        await client.start()
        await until(lambda: len(seen) == 6, 120)  # one that takes no notice and returns is nacked, too
        async with asyncio.timeout(120):
            while (await stats_of(client, topic)).total("acked") < 1:
                await asyncio.sleep(0.05)
        stats = await until_settled(client, topic)
        assert (stats.total("retried"), stats.total("acked"), stats.total("expired")) == (3, 1, 0)
    assert seen == ["begun", "ended"] * 3


@in_a_loop
async def test_a_task_that_swallows_its_cancellation_hangs_as_a_thread_does(
    redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.aio.listener.TaskWorker.grace_s", 0.3)
    topic = make_topic(TopicType.PRIORITY, lease=SECOND, retry=ImmediateRetry())
    go_on, lost, calls = asyncio.Event(), list[bytes](), list[str]()
    async with aio.RmqClient(redis_url) as client:

        @client.listener(topic, concurrency=2, timeout="100ms", on_lost=lambda delivery: lost.append(delivery.content))
        async def handle(delivery: aio.Delivery) -> None:
            calls.append(delivery.text)
            while len(calls) == 1:
                try:
                    await go_on.wait()
                    return
                except asyncio.CancelledError:
                    continue

        await (await client.producer(topic)).send(PriorityMessage("a", 2_000))
        await client.start()
        stats = await stats_of(client, topic)
        async with asyncio.timeout(120):
            while (stats := await stats_of(client, topic)).total("acked") < 1:
                await asyncio.sleep(0.05)
        assert stats.total("expired") == 1
        assert (lost, calls) == ([b"a"], ["a", "a"])
        assert await client.stop(drain_s=600) == []
        go_on.set()


def test_an_owner_runs_no_message_beside_its_handler_that_hangs(
    coordinate: Coordinate, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, lease=SECOND, retry=ImmediateRetry())
    go_on, lock, calls = threading.Event(), threading.Lock(), list[str]()
    with RmqClient(redis_url, zookeeper=coordinate()) as client:

        @client.listener(topic, threads=4, timeout="200ms")
        def handle(delivery: Delivery) -> None:
            with lock:
                calls.append(delivery.text)
            if delivery.text == "hang" and calls.count("hang") == 1:
                go_on.wait(300)

        client.start()
        fill(client, topic, "hang")
        wait_until(lambda: any(one.hung for one in running(client, topic)), 120)
        others = [f"other{number}" for number in range(40)]
        fill(client, topic, *others)
        slot = next(iter(running(client, topic))).slot
        there = [text for text in others if topic.slot_of(text.encode()) != slot]
        wait_until(lambda: set(there) <= set(calls), 120, "the other slots")
        assert calls.count("hang") == 1
        go_on.set()
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 41, 120)
        assert calls.count("hang") == 2
