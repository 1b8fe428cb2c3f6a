"""Handlers run where the test stands, as a worker runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pytest

from rmq import (
    Collect,
    Delivery,
    DeliveryColumns,
    FixedTimeMessage,
    ImmediateRetry,
    InvalidValueError,
    Merge,
    Observer,
    PayloadError,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    RmqError,
    StreamMessage,
    Topic,
    TopicType,
)
from rmq.testing import Clock, Ran, assert_not_sent, assert_sent, run_at_most, run_until_empty, sent


@dataclass(frozen=True)
class Price:
    item: str
    pence: int


JOBS = Topic("jobs", TopicType.PRIORITY, slots=4)
MORE = Topic("more", TopicType.PRIORITY)
PRICES = Topic("prices", TopicType.RANGE_MERGE, payload=Price)


def send(client: RmqClient, *contents: str, topic: Topic = JOBS) -> None:
    client.producer(topic).send_many(PriorityMessage(content, 5) for content in contents)


def fail(_: object) -> None:
    raise ValueError("no photo")


def test_all_that_is_due_is_handled_and_acked(rmq: RmqClient) -> None:
    seen: list[str] = []
    rmq.listener(JOBS)(lambda delivery: seen.append(delivery.text))
    send(rmq, "a", "b", "c")
    assert run_until_empty(rmq) == Ran(acked=3)
    assert sorted(seen) == ["a", "b", "c"]
    stats = rmq.inspect(JOBS).stats()
    assert (stats.total("acked"), stats.backlog, stats.in_flight, stats.unaccounted) == (3, 0, 0, 0)
    assert run_until_empty(rmq) == Ran()


def test_what_handlers_send_is_handled_too(rmq: RmqClient) -> None:
    seen: list[str] = []
    rmq.listener(MORE)(lambda delivery: seen.append(delivery.text))
    rmq.listener(JOBS)(lambda delivery: send(rmq, f"after {delivery.text}", topic=MORE))
    send(rmq, "a")
    assert run_until_empty(rmq).acked == 2
    assert seen == ["after a"]


def test_the_error_of_a_handler_is_raised_and_its_delivery_nacked(rmq: RmqClient) -> None:
    rmq.listener(JOBS)(fail)
    send(rmq, "a", "b")
    with pytest.raises(ValueError, match="no photo"):
        run_until_empty(rmq)
    stats = rmq.inspect(JOBS).stats()
    assert (stats.total("retried"), stats.in_flight, stats.backlog + stats.waiting) == (1, 0, 2)


def test_errors_are_counted_on_request_and_the_clock_brings_the_retries(rmq: RmqClient, clock: Clock) -> None:
    attempts: list[int] = []
    topic = Topic("flaky", TopicType.RANGE_MERGE, max_retries=3)

    @rmq.listener(topic)
    def flaky(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt < 3:
            raise ValueError(f"attempt {delivery.attempt}")

    rmq.producer(topic).send(RangeMergeMessage("a", time_range_ms=1_000))
    assert run_until_empty(rmq, raises=False) == Ran()
    began = clock.now
    ran = run_until_empty(rmq, clock=clock, raises=False)
    assert (ran.acked, ran.nacked, [str(error) for error in ran.errors]) == (1, 2, ["attempt 1", "attempt 2"])
    assert attempts == [1, 2, 3]
    assert clock.now > began + timedelta(seconds=1)


def test_what_fails_for_good_is_dead_in_the_end(rmq: RmqClient, clock: Clock) -> None:
    topic = Topic("hopeless", TopicType.PRIORITY, max_retries=2, retry=ImmediateRetry())
    rmq.listener(topic)(fail)
    send(rmq, "a", topic=topic)
    assert run_until_empty(rmq, clock=clock, raises=False).nacked == 3
    assert [dead.error_message for dead in rmq.dead(topic).list()] == ["no photo"]


def test_with_a_clock_nothing_is_left_waiting(rmq: RmqClient, clock: Clock) -> None:
    seen: list[str] = []
    letters = Topic("letters", TopicType.FIXED_TIME)
    rmq.listener(letters)(lambda delivery: seen.append(delivery.text))
    day = timedelta(days=1)
    rmq.producer(letters).send_many(FixedTimeMessage(f"day {n}", clock.now + n * day) for n in (3, 1, 2))
    began = clock.now
    assert run_at_most(rmq, 1, clock=clock).acked == 1
    assert clock.now == began + day
    assert run_until_empty(rmq, clock=clock).acked == 2
    assert seen == ["day 1", "day 2", "day 3"]
    assert clock.now == began + 3 * day


def test_handlers_settle_by_themselves(rmq: RmqClient) -> None:
    verbs: dict[str, Callable[[Delivery], Any]] = {
        "ack": lambda delivery: delivery.ack(),
        "nack": lambda delivery: delivery.nack(timedelta(hours=1)),
        "bury": lambda delivery: delivery.bury("hopeless"),
    }
    rmq.listener(JOBS)(lambda delivery: print(verbs[delivery.text](delivery)))
    send(rmq, *verbs)
    assert run_until_empty(rmq) == Ran(acked=1, nacked=1, buried=1)
    stats = rmq.inspect(JOBS).stats()
    assert (stats.total("acked"), stats.waiting, stats.dead) == (1, 1, 1)


def test_what_is_released_is_due_again(rmq: RmqClient) -> None:
    rmq.listener(JOBS)(lambda delivery: print(delivery.release()))
    send(rmq, "a")
    assert run_at_most(rmq, 3) == Ran(released=3)
    assert rmq.inspect(JOBS).stats().backlog == 1


def test_batches_and_columns(rmq: RmqClient) -> None:
    parts: list[list[str]] = []

    @rmq.listener(MORE, batch=2)
    def take(deliveries: list[Delivery]) -> None:
        parts.append([delivery.text for delivery in deliveries])

    topic = Topic("columns", TopicType.PRIORITY)

    @rmq.listener(topic, batch=10, columns=True)
    def columns(rows: DeliveryColumns) -> None:
        parts.append(sorted(content.decode() for content in rows.contents))
        rows.nack([rows.contents.index(b"bad")], error="bad")

    send(rmq, "a", "b", "c", topic=MORE)
    send(rmq, "x", "bad", "y", topic=topic)
    assert run_until_empty(rmq) == Ran(acked=5, nacked=1)
    assert sorted(map(len, parts)) == [1, 2, 3]
    assert ["bad", "x", "y"] in parts
    assert [rmq.inspect(each).stats().total("acked") for each in (MORE, topic)] == [3, 2]


def test_columns_whose_handler_fails_are_nacked(rmq: RmqClient) -> None:
    rmq.listener(JOBS, batch=10, columns=True)(fail)
    send(rmq, "a", "b", "c", "d", "e")
    ran = run_until_empty(rmq, raises=False)
    stats = rmq.inspect(JOBS).stats()
    assert (ran.nacked, ran.lost) == (5, 0)
    assert (stats.total("retried"), stats.in_flight) == (5, 0)


def test_streams_begin_with_what_the_test_has_sent(rmq: RmqClient) -> None:
    clicks = Topic("clicks", TopicType.STREAM)
    seen: list[str] = []
    rmq.producer(clicks).send_many(StreamMessage(f"page:{number}") for number in range(3))
    rmq.listener(clicks, group="billing")(lambda delivery: seen.append(delivery.text))
    assert run_until_empty(rmq).acked == 3
    assert seen == ["page:0", "page:1", "page:2"]
    rmq.producer(clicks).send(StreamMessage("page:3"))
    assert run_until_empty(rmq).acked == 1
    assert_sent(rmq, clicks, "page:3")


def test_payloads_reach_handlers(rmq: RmqClient, clock: Clock) -> None:
    drawn: list[tuple[Price, int]] = []

    @rmq.listener(PRICES)
    def draw(price: Price, delivery: Delivery[Price]) -> None:
        drawn.append((price, delivery.attempt))

    rmq.producer(PRICES).send(PRICES.message("item:mug", Price("mug", 399), time_range_ms=1_000))
    assert assert_sent(rmq, PRICES, payload=Price("mug", 399)).payload.pence == 399
    assert run_until_empty(rmq) == Ran()
    clock.advance("1s")
    assert run_until_empty(rmq) == Ran(acked=1)
    assert drawn == [(Price("mug", 399), 1)]


def test_a_payload_that_does_not_decode_is_an_error(rmq: RmqClient, clock: Clock) -> None:
    rmq.listener(PRICES)(lambda price: pytest.fail(f"handled {price}"))
    rmq.producer(PRICES).send_many(RangeMergeMessage(content, time_range_ms=1, body="no JSON") for content in "ab")
    clock.advance("1ms")
    with pytest.raises(PayloadError, match="the body cannot be decoded as Price"):
        run_at_most(rmq, 1)
    ran = run_until_empty(rmq, raises=False)
    assert (ran.buried, [type(error) for error in ran.errors]) == (1, [PayloadError])
    assert rmq.inspect(PRICES).stats().dead == 2


def test_a_rate_limit_keeps_no_test_waiting(rmq: RmqClient) -> None:
    topic = Topic("slow", TopicType.PRIORITY, max_rate=1)
    rmq.listener(topic)(lambda delivery: None)
    send(rmq, *map(str, range(20)), topic=topic)
    assert run_until_empty(rmq).acked == 20
    rmq.change_topic(rmq.topic("slow").changed(max_rate=2))  # makes the bucket in Redis
    send(rmq, *map(str, range(20)), topic=topic)
    assert run_until_empty(rmq).acked == 20


def test_a_run_without_end_is_ended(rmq: RmqClient) -> None:
    rmq.listener(JOBS)(lambda delivery: send(rmq, f"{delivery.text}+"))
    send(rmq, "a")
    assert run_at_most(rmq, 5).acked == 5
    assert_sent(rmq, JOBS, "a+++++")
    with pytest.raises(AssertionError, match="more than 20 deliveries were due: does a handler send"):
        run_until_empty(rmq, limit=20)


def test_a_limit_that_is_just_enough(rmq: RmqClient) -> None:
    rmq.listener(JOBS)(lambda delivery: None)
    send(rmq, "a", "b")
    assert run_until_empty(rmq, limit=2).acked == 2


def test_a_limit_that_is_reached_before_the_clock_has_moved(rmq: RmqClient, clock: Clock) -> None:
    rmq.listener(PRICES)(lambda price: None)
    send_price = rmq.producer(PRICES).send
    for item, window_ms in (("mug", 1), ("cup", 1_000), ("jar", 2_000)):
        send_price(PRICES.message(item, Price(item, 1), time_range_ms=window_ms))
    with pytest.raises(AssertionError, match="more than 2 deliveries were due"):
        run_until_empty(rmq, clock=clock, limit=2)


def test_a_lease_that_ended_is_told(rmq: RmqClient, clock: Clock) -> None:
    lost: list[str] = []

    @rmq.listener(JOBS, on_lost=lambda delivery: lost.append(delivery.text))
    def slow(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            clock.advance(timedelta(minutes=2))
            rmq.consumer(JOBS).poll()[0].release()

    send(rmq, "a")
    assert run_until_empty(rmq) == Ran(acked=1, lost=1)
    assert lost == ["a"]


def test_observers_are_told(rmq: RmqClient) -> None:
    told: list[object] = []

    class Watcher:
        def sending(self, topic: Topic, messages: int) -> Any: ...
        def handling(self, deliveries: Any) -> Any: ...
        def settled(self, deliveries: Any) -> None:
            told.extend(delivery.text for delivery in deliveries)

    rmq.listener(JOBS)(lambda delivery: None)
    send(rmq, "a")
    rmq.observers.all.append(cast("Observer", Watcher()))
    run_until_empty(rmq)
    assert told == ["a"]


def test_what_cannot_run_is_refused(rmq: RmqClient) -> None:
    with pytest.raises(RmqError, match="no listener"):
        run_until_empty(rmq)
    rmq.listener(JOBS)(lambda delivery: None)
    with pytest.raises(InvalidValueError, match="number is 0; it must be a whole number of 1 or more"):
        run_at_most(rmq, 0)
    rmq.start()
    with pytest.raises(RmqError, match="have been started"):
        run_until_empty(rmq)


def test_a_handler_that_returns_its_work_undone_is_an_error(rmq: RmqClient) -> None:
    rmq.listener(JOBS)(lambda delivery: (each for each in delivery.text))
    send(rmq, "a")
    with pytest.raises(InvalidValueError, match="generator"):
        run_until_empty(rmq)


def test_what_was_sent_is_named(rmq: RmqClient, clock: Clock) -> None:
    rmq.producer(PRICES).send(PRICES.message("item:mug", Price("mug", 399), time_range_ms=5_000))
    with pytest.raises(AssertionError) as caught:
        assert_sent(rmq, PRICES, "item:cup", payload=Price("cup", 1))
    assert str(caught.value) == (
        "no message with content 'item:cup' and payload Price(item='cup', pence=1) is in the backlog of topic prices, "
        "which has 1 message:\n"
        f'  \'item:mug\', body b\'{{"item":"mug","pence":399}}\', due {clock.now + timedelta(seconds=5)}'
    )
    assert_not_sent(rmq, PRICES, "item:cup")
    with pytest.raises(AssertionError, match="a message is in the backlog of topic prices:\n  'item:mug'"):
        assert_not_sent(rmq, PRICES)
    with pytest.raises(AssertionError, match="topic jobs, which is empty"):
        assert_sent(rmq, JOBS, priority=3)
    send(rmq, *map(str, range(12)))
    with pytest.raises(AssertionError, match=r"which has 12 messages:(\n.*){10}\n  and 2 more$"):
        assert_sent(rmq, JOBS, priority=3)
    assert assert_sent(rmq, JOBS, "7", priority=5).text == "7"
    assert len(sent(rmq, "jobs")) == 12


def test_a_body_that_does_not_decode_has_another_payload(rmq: RmqClient) -> None:
    rmq.producer(PRICES).send(RangeMergeMessage("item:cup", time_range_ms=5_000, body="no JSON"))
    rmq.producer(PRICES).send(RangeMergeMessage("item:jar", time_range_ms=5_000))
    with pytest.raises(AssertionError, match="has 2 messages:\n  'item:cup', body b'no JSON'"):
        assert_sent(rmq, PRICES, payload=Price("mug", 399))
    rmq.producer(PRICES).send(PRICES.message("item:mug", Price("mug", 399), time_range_ms=6_000))
    assert assert_sent(rmq, PRICES, payload=Price("mug", 399)).text == "item:mug"


def test_all_parts_of_a_delivery_are_looked_at(rmq: RmqClient) -> None:
    topic = Topic("collected", TopicType.RANGE_MERGE, payload=Price, merge=Merge(Collect()))
    prices = [Price("mug", 1), Price("mug", 2)]
    for price in prices:
        rmq.producer(topic).send(topic.message("mug", price, time_range_ms=60_000))
    found = assert_sent(rmq, topic, payload=Price("mug", 2))
    assert (found.payloads, found.merged) == (prices, 2)
    assert_not_sent(rmq, topic, payload=Price("mug", 3))
