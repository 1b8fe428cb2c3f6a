"""Sentences of the guide hold: each stands beside a check on a real Redis, and must be on its page as it is here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from rmq import (
    PER_MESSAGE,
    BacklogFullError,
    CallChangedError,
    Collect,
    CollectionFullError,
    DelayedQueue,
    Delivery,
    EntryIdError,
    Fixed,
    FixedTimeMessage,
    FixedTimePassedError,
    ImmediateRetry,
    InvalidBatchError,
    InvalidMessageError,
    InvalidValueError,
    JoinMessage,
    Keep,
    LadderRetry,
    Leading,
    Max,
    Merge,
    Min,
    Newest,
    PriorityMessage,
    RangeMergeMessage,
    RetryAfterError,
    RmqClient,
    RmqError,
    Sliding,
    StreamDelivery,
    StreamMessage,
    Sum,
    SumOutOfRangeError,
    Topic,
    TopicType,
    WhenFull,
)
from rmq.testing import Clock, Server, run_at_most, run_until_empty

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Shop:
    """What a check works with: a client of a server of its own, whose time stands still.

    Attributes:
        client: The client.
        clock: Moves the time.
    """

    client: RmqClient
    clock: Clock

    @cached_property
    def priority(self) -> Topic:
        return Topic("jobs", TopicType.PRIORITY, max_retries=2, retry=ImmediateRetry())

    def due(self, topic: Topic) -> list[Delivery]:
        """Claim all that is due, and ack it."""
        with self.client.consumer(topic) as consumer:
            deliveries = consumer.poll(max_messages=1_000)
            consumer.ack(deliveries)
            return deliveries

    def texts(self, topic: Topic) -> list[str]:
        return [delivery.text for delivery in self.due(topic)]

    def range_merge(self, *bodies: Any, **rules: Any) -> Delivery:
        """Send bodies of one content to a topic with these rules of merging, and return its only delivery."""
        topic = Topic("merged", TopicType.RANGE_MERGE, merge=Merge(**rules) if rules else None)
        producer = self.client.producer(topic)
        for body in bodies:
            producer.send(RangeMergeMessage("a", "1s", body=body))
        self.clock.advance("1s")
        (delivery,) = self.due(topic)
        return delivery


Check = Callable[[Shop], None]
CLAIMS: list[tuple[str, str, Check]] = []


def claims(page: str, *sentences: str) -> Callable[[Check], Check]:
    """Say which sentences of a page a check holds."""

    def note(check: Check) -> Check:
        CLAIMS.extend((page, sentence, check) for sentence in sentences)
        return check

    return note


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def shop(server: Server) -> Iterator[Shop]:
    server.flush()
    with server.client() as client:
        yield Shop(client, server.clock())


@claims(
    "guide/merging",
    "It is due `time_range` after the first send, so a steady flow of sends cannot postpone it.",
    "All sends of one content become one message until it is delivered.",
)
@claims(
    "coming-from/celery",
    "`RangeMergeMessage(content, time_range)`, due that long after the first send, or "
    "`FixedTimeMessage(content, delay=...)`, after the last one",
)
@claims(
    "coming-from/rq",
    "`RangeMergeMessage(content, time_range)`, due that long after the first send, or "
    "`FixedTimeMessage(content, delay=...)`, after the last one",
)
def window_of_the_first_send(shop: Shop) -> None:
    delays = Topic("delays", TopicType.FIXED_TIME)
    topic = Topic("pictures", TopicType.RANGE_MERGE)
    producer = shop.client.producer(topic)
    for _ in range(4):
        assert shop.texts(topic) == []
        producer.send(RangeMergeMessage("a", "4s"))
        shop.client.producer(delays).send(FixedTimeMessage("a", delay="4s"))
        shop.clock.advance("1s")
    assert (shop.texts(topic), shop.texts(delays)) == (["a"], [])
    shop.clock.advance("3s")
    assert (shop.texts(topic), shop.texts(delays)) == ([], ["a"])


@claims("guide/merging", "| send while it is in a handler | a new message, with its own window |")
@claims(
    "guide/topics", "A send that arrives while a handler works on the same content leads to another delivery afterwards"
)
def send_during_a_handler(shop: Shop) -> None:
    topic = Topic("pictures", TopicType.RANGE_MERGE)
    producer = shop.client.producer(topic)
    producer.send(RangeMergeMessage("a", "1s"))
    shop.clock.advance("1s")
    with shop.client.consumer(topic) as consumer:
        (first,) = consumer.poll()
        assert producer.send(RangeMergeMessage("a", "1s")).new == 1
        first.ack()
    assert shop.texts(topic) == []
    shop.clock.advance("1s")
    assert shop.texts(topic) == ["a"]


@claims(
    "guide/merging", "| `Replace()`, the default | a body, or none | the newest body; a send without one leaves it |"
)
@claims("guide/topics", "The newest body replaces an older one; a send without a body leaves it as it is.")
def newest_body(shop: Shop) -> None:
    assert shop.range_merge("old", "new", None).value == b"new"


@claims("guide/merging", "| `Keep()` | a body, or none | the body of the first send |")
def first_body(shop: Shop) -> None:
    assert shop.range_merge("old", "new", reduce=Keep()).value == b"old"


@claims("guide/merging", "| `Sum()` | a number | the sum |")
def sums(shop: Shop) -> None:
    delivery = shop.range_merge(-3, -1, reduce=Sum())
    assert (delivery.value, delivery.merged) == (-4, 2)


@claims("guide/merging", "| `Max()`, `Min()` | a number | the largest, or smallest, number |")
def largest_and_smallest(shop: Shop) -> None:
    for reduce, expected in ((Max(), 7), (Min(), 2)):
        topic = Topic(f"numbers-{expected}", TopicType.PRIORITY, merge=Merge(reduce))
        shop.client.producer(topic).send_many(PriorityMessage("a", 1, body=number) for number in (5, 7, 2, 3))
        assert [delivery.value for delivery in shop.due(topic)] == [expected]


@claims(
    "guide/merging",
    "| `Collect()` | an item, or a tuple of items | all items in the order of sending |",
    "`delivery.fold(function, initial)` works like `functools.reduce`",
)
def all_items(shop: Shop) -> None:
    delivery = shop.range_merge("x", ("y", "x"), reduce=Collect())
    assert delivery.items == (b"x", b"y", b"x")
    assert delivery.fold(lambda so_far, item: so_far + item.decode(), "") == "xyx"


@claims("guide/merging", "| `Collect(unique=True)` | an item, or a tuple of items | each distinct item once |")
def distinct_items(shop: Shop) -> None:
    assert sorted(shop.range_merge("x", ("y", "x"), reduce=Collect(unique=True)).items) == [b"x", b"y"]


@claims(
    "guide/merging",
    (
        "| `Newest()` | a body and a `version=` | the body with the largest version, regardless of "
        "the order in which sends arrive |"
    ),
    "A send with an older version is counted, but changes nothing else. With equal versions, the last send wins.",
    "| `version` | of a `Newest`: the version of its body; else `None` | `None` |",
)
@claims(
    "guide/recipes",
    "A send is not compared with a delivery in flight: a late, older price may follow it as another delivery.",
)
def versions(shop: Shop) -> None:
    topic = Topic("prices", TopicType.RANGE_MERGE, merge=Merge(Newest(), window=Fixed("1s")))
    producer = shop.client.producer(topic)
    for version, body in ((7, "a"), (9, "b"), (8, "c"), (9, "d")):
        producer.send(RangeMergeMessage("mug", body=body, version=version))
    shop.clock.advance("1s")
    with shop.client.consumer(topic) as consumer:
        (first,) = consumer.poll()
        assert (first.value, first.version, first.merged) == (b"d", 9, 4)
        producer.send(RangeMergeMessage("mug", body="late", version=5))
        first.ack()
    shop.clock.advance("1s")
    (second,) = shop.due(topic)
    assert (second.value, second.version) == (b"late", 5)
    assert shop.range_merge("x").version is None


@claims(
    "guide/merging",
    (
        "| `Sliding(quiet, max_wait=...)` | when nothing was sent for `quiet`, but at the latest "
        "`max_wait` after the first send |"
    ),
)
def calm(shop: Shop) -> None:
    topic = Topic("pushes", TopicType.RANGE_MERGE, merge=Merge(window=Sliding(quiet="2s", max_wait="5s")))
    producer = shop.client.producer(topic)
    producer.send(RangeMergeMessage("rests"))
    for _ in range(4):
        producer.send(RangeMergeMessage("never rests"))
        shop.clock.advance("1s")
    assert shop.texts(topic) == ["rests"]
    producer.send(RangeMergeMessage("never rests"))
    shop.clock.advance("1s")
    assert shop.texts(topic) == ["never rests"]


@claims(
    "guide/merging",
    (
        "| `Leading(time_range)` | the first send at once; sends that follow within `time_range` "
        "at its end, when the next window begins |"
    ),
)
def leading(shop: Shop) -> None:
    topic = Topic("pages", TopicType.RANGE_MERGE, merge=Merge(window=Leading("10s")))
    producer = shop.client.producer(topic)
    producer.send(RangeMergeMessage("a"))
    assert shop.texts(topic) == ["a"]
    producer.send_many(RangeMergeMessage("a") for _ in range(2))
    assert shop.texts(topic) == []
    shop.clock.advance("10s")
    assert shop.texts(topic) == ["a"]


@claims(
    "guide/merging",
    (
        "| `Leading(time_range, trailing=False)` | the first send at once; sends that follow "
        "within `time_range` are dropped |"
    ),
    (
        "Dropped sends are counted in `dropped` of the send's result and in the topic's stats. "
        "`merged` of the result includes them"
    ),
)
def leading_only(shop: Shop) -> None:
    topic = Topic("pages", TopicType.RANGE_MERGE, merge=Merge(window=Leading("10s", trailing=False)))
    producer = shop.client.producer(topic)
    producer.send(RangeMergeMessage("a"))
    assert shop.texts(topic) == ["a"]
    result = producer.send(RangeMergeMessage("a"))
    assert (result.new, result.merged, result.dropped) == (0, 1, 1)
    shop.clock.advance("1h")
    assert shop.texts(topic) == []
    assert shop.client.inspect(topic).stats().total("dropped") == 1


@claims("guide/merging", "With `max_count=1_000`, the message is due at once when the thousandth send arrives.")
def count(shop: Shop) -> None:
    topic = Topic("mails", TopicType.RANGE_MERGE, merge=Merge(window=Fixed("1h"), max_count=1_000))
    producer = shop.client.producer(topic)
    producer.send_many(RangeMergeMessage("a") for _ in range(999))
    assert shop.texts(topic) == []
    producer.send(RangeMergeMessage("a"))
    assert shop.texts(topic) == ["a"]


@claims("guide/merging", "`quiet` must not be longer than `max_wait`.")
def quiet_is_bounded(shop: Shop) -> None:
    del shop
    with pytest.raises(RmqError, match="quiet"):
        Sliding(quiet="2s", max_wait="1s")


@claims("guide/merging", "If the topic has no window, every message needs one.")
def window_is_needed(shop: Shop) -> None:
    with pytest.raises(InvalidMessageError):
        shop.client.producer(Topic("pictures", TopicType.RANGE_MERGE)).send(RangeMergeMessage("a"))


@claims(
    "guide/merging",
    (
        "`delivery.items` are the parts, `delivery.wanted` is 3, and `delivery.complete` is true "
        "if all parts have arrived."
    ),
    "A part that is sent again counts once.",
    "It is due when all of them have arrived, or when its time is over.",
)
def joins(shop: Shop) -> None:
    parts = Merge(Collect(unique=True), window=Sliding(max_wait="1h"), max_count=PER_MESSAGE)
    topic = Topic("orders", TopicType.RANGE_MERGE, merge=parts)
    producer = shop.client.producer(topic)
    for part in ("invoice", "invoice", "label"):
        producer.send(JoinMessage("order:7", part=part, of=3))
        producer.send(JoinMessage("order:8", part=part, of=3))
    assert shop.texts(topic) == []
    producer.send(JoinMessage("order:7", part="parcel", of=3))
    (whole,) = shop.due(topic)
    assert (sorted(whole.items), whole.wanted, whole.complete) == ([b"invoice", b"label", b"parcel"], 3, True)
    shop.clock.advance("1h")
    (rest,) = shop.due(topic)
    assert (rest.text, len(rest.items), rest.complete) == ("order:8", 2, False)


@claims("guide/merging", "`weight=10` counts as ten.")
def weight(shop: Shop) -> None:
    topic = Topic("sums", TopicType.PRIORITY, merge=Merge(Sum()))
    shop.client.producer(topic).send(PriorityMessage("a", 1, body=5, weight=10))
    assert [delivery.merged for delivery in shop.due(topic)] == [10]


@claims(
    "guide/merging",
    "If the delivery fails, its value is neither lost nor counted twice:",
    "| nack, release, expired lease | folds into the new message if there is one; counts are added",
)
def folding_back(shop: Shop) -> None:
    topic = Topic("stock", TopicType.PRIORITY, merge=Merge(Sum()), retry=ImmediateRetry())
    producer = shop.client.producer(topic)
    producer.send(PriorityMessage("a", 1, body=-4))
    with shop.client.consumer(topic) as consumer:
        (first,) = consumer.poll()
        producer.send(PriorityMessage("a", 1, body=10))
        first.nack()
        (second,) = consumer.poll()
        assert (second.value, second.merged) == (6, 2)
        second.ack()
        assert consumer.poll() == []


@claims(
    "guide/merging",
    "The second call returns the result of the first.",
    "`CallChangedError` is raised, and nothing is stored in that slot.",
)
def once(shop: Shop) -> None:
    topic = Topic("stock", TopicType.PRIORITY, merge=Merge(Sum()))
    producer = shop.client.producer(topic)
    first = producer.send(PriorityMessage("a", 1, body=-3), once="line:1")
    assert producer.send(PriorityMessage("a", 1, body=-3), once="line:1") == first
    with pytest.raises(CallChangedError):
        producer.send(PriorityMessage("a", 1, body=-4), once="line:1")
    assert [delivery.value for delivery in shop.due(topic)] == [-3]


@claims(
    "guide/merging",
    "The result is the same as with single sends, but fewer messages travel; `merged` counts all of them.",
)
def folded(shop: Shop) -> None:
    topic = Topic("stock", TopicType.PRIORITY, merge=Merge(Sum()))
    result = shop.client.producer(topic).send_many((PriorityMessage("a", 1, body=1) for _ in range(5)), fold=True)
    assert (result.new, result.merged) == (1, 4)
    assert [(delivery.value, delivery.merged) for delivery in shop.due(topic)] == [(5, 5)]


@claims("guide/merging", "| a `Sum` | ±(2^53 - 1) | `SumOutOfRangeError`; nothing is stored |")
def bound_of_a_sum(shop: Shop) -> None:
    topic = Topic("stock", TopicType.PRIORITY, merge=Merge(Sum()))
    producer = shop.client.producer(topic)
    producer.send(PriorityMessage("a", 1, body=2**53 - 1))
    with pytest.raises(SumOutOfRangeError):
        producer.send(PriorityMessage("a", 1, body=1))
    assert [delivery.value for delivery in shop.due(topic)] == [2**53 - 1]


@claims(
    "guide/merging",
    (
        "| `release`, the default | the full message is due at once; until it is claimed, sends of "
        "its content raise `CollectionFullError` |"
    ),
    "`CollectionFullError` is a `BacklogFullError`",
)
def full_collection(shop: Shop) -> None:
    topic = Topic("mails", TopicType.RANGE_MERGE, merge=Merge(Collect(max_items=2), window=Fixed("1h")))
    producer = shop.client.producer(topic)
    for item in ("x", "y"):
        producer.send(RangeMergeMessage("a", body=item))
    with pytest.raises(CollectionFullError) as raised:
        producer.send(RangeMergeMessage("a", body="z"))
    assert isinstance(raised.value, BacklogFullError)
    assert [delivery.items for delivery in shop.due(topic)] == [(b"x", b"y")]


@claims(
    "guide/merging",
    "| `drop_oldest` | replaces the oldest items |",
    "| `drop_newest` | its items beyond the bound are dropped |",
)
def collections_that_drop(shop: Shop) -> None:
    for when_full, kept in (("drop_oldest", (b"y", b"z")), ("drop_newest", (b"x", b"y"))):
        reduce = Collect(max_items=2, when_full=when_full)
        topic = Topic(when_full, TopicType.PRIORITY, merge=Merge(reduce))
        for item in ("x", "y", "z"):
            shop.client.producer(topic).send(PriorityMessage("a", 1, body=item))
        assert [delivery.items for delivery in shop.due(topic)] == [kept]


@claims(
    "guide/merging", "With `sum`, the most requested message goes first. A sum stays within the topic's `max_priority`."
)
def summed_priorities(shop: Shop) -> None:
    topic = Topic("photos", TopicType.PRIORITY, max_priority=10, max_retries=3, merge=Merge(priority="sum"))
    producer = shop.client.producer(topic)
    producer.send(PriorityMessage("dog", 6))
    producer.send_many(PriorityMessage("cat", 4) for _ in range(3))
    assert [(delivery.text, delivery.priority) for delivery in shop.due(topic)] == [("cat", 10), ("dog", 6)]


@claims(
    "guide/priorities",
    "The largest priority first",
    "| second send | the last priority and the newest body win; the age stays that of the first send |",
)
@claims("guide/priorities", "So a message cannot be pushed back by sending it again.")
@claims("guide/comparison", "| change a queued message's priority or time | yes, by sending again |")
def order_of_priorities(shop: Shop) -> None:
    producer = shop.client.producer(shop.priority)
    for name, rank in (("a", 1), ("b", 5), ("c", 5), ("d", 3)):
        producer.send(PriorityMessage(name, rank + 100))
        shop.clock.advance("1s")
    producer.send(PriorityMessage("b", 105))  # again: stays before c
    producer.send(PriorityMessage("a", 109, body="new"))
    deliveries = shop.due(shop.priority)
    assert [delivery.text for delivery in deliveries] == ["a", "b", "c", "d"]
    assert deliveries[0].value == b"new"


@claims("guide/comparison", "| priorities | whole numbers up to 1,048,575; up to 2^53 with")
@claims("guide/priorities", "| up to 1,048,575, the default | 100 ms | |")
def bound_of_priorities(shop: Shop) -> None:
    producer = shop.client.producer(shop.priority)
    producer.send(PriorityMessage("a", 1_048_575))
    with pytest.raises(InvalidMessageError, match="1048575"):
        producer.send(PriorityMessage("b", 1_048_576))
    large = Topic("large", TopicType.PRIORITY, ties="any")
    shop.client.producer(large).send(PriorityMessage("b", 2**53 - 1))
    with pytest.raises(InvalidMessageError):
        shop.client.producer(large).send(PriorityMessage("b", 2**53))


@claims(
    "guide/priorities",
    "`promote` puts a message before all others of its slot, and `reprioritise` changes its priority.",
)
def promoted(shop: Shop) -> None:
    shop.client.producer(shop.priority).send_many(PriorityMessage(name, 50 + rank) for rank, name in enumerate("abc"))
    control = shop.client.control(shop.priority)
    control.reprioritise("c", 20)
    control.promote("a")
    assert shop.texts(shop.priority) == ["a", "b", "c"]


@claims("guide/priorities", "| after a failure | after all others |")
def failed_comes_last(shop: Shop) -> None:
    shop.client.producer(shop.priority).send_many(PriorityMessage(name, 50 - rank) for rank, name in enumerate("abc"))
    with shop.client.consumer(shop.priority) as consumer:
        (first,) = consumer.poll(max_messages=1)
        first.nack()
    assert (first.text, shop.texts(shop.priority)) == ("a", ["b", "c", "a"])


@claims(
    "guide/delayed",
    (
        "a time in the past is refused with `FixedTimePassedError`; `send_many` and `send_columns` "
        "store all other messages, and the error names those that were refused"
    ),
    "| order | the earliest time first |",
    "| second send | the last time or delay and the newest body win |",
    "| cancel | `client.control(topic).cancel(content)`; `reschedule` changes the time |",
    "`FixedTimeMessage` takes exactly one of `fixed_time` and `delay`",
)
@claims("guide/promises", "**Never early.** Redis' clock decides when a message is due")
def fixed_times(shop: Shop) -> None:
    topic = Topic("closing", TopicType.FIXED_TIME)
    producer, start = shop.client.producer(topic), shop.clock.now_ms
    past = FixedTimeMessage("past", fixed_time_ms=start - 1_000)
    with pytest.raises(FixedTimePassedError, match="past"):
        producer.send_many([FixedTimeMessage("late", delay="9s"), past, FixedTimeMessage("soon", delay="3s")])
    producer.send_many(FixedTimeMessage(name, delay="5s") for name in ("gone", "moved"))
    producer.send(FixedTimeMessage("late", delay="4s", body="new"))
    control = shop.client.control(topic)
    control.cancel("gone")
    control.reschedule("moved", due_in="1s")
    shop.clock.advance(timedelta(milliseconds=999))
    assert shop.due(topic) == []
    shop.clock.advance("1h")
    assert [(found.text, found.value) for found in shop.due(topic)] == [
        ("moved", None),
        ("soon", None),
        ("late", b"new"),
    ]
    for wrong in ({}, {"fixed_time_ms": start, "delay": "1s"}):
        with pytest.raises(RmqError):
            FixedTimeMessage("a", **wrong)


@claims("guide/topics", "A number without a unit is refused, because it could be read as milliseconds or as seconds.")
def units(shop: Shop) -> None:
    del shop
    number: Any = 50
    with pytest.raises(RmqError):
        RangeMergeMessage("a", number)
    with pytest.raises(RmqError):
        LadderRetry((number,))
    with pytest.raises(RmqError):
        Fixed(number)
    assert RangeMergeMessage("a", time_range_ms=50) == RangeMergeMessage("a", "50ms")


@claims(
    "guide/delayed", "| equal values | two elements | two elements; with `merge=True` one, due as in the last offer |"
)
def equal_values(shop: Shop) -> None:
    with DelayedQueue(shop.client, "two") as two, DelayedQueue(shop.client, "one", merge=True) as one:
        for queue, size in ((two, 2), (one, 1)):
            queue.offer("a", "1s")
            queue.offer("a", "5s")
            assert queue.size() == size
        shop.clock.advance("4s")
        assert (two.poll(timeout=0), one.poll(timeout=0)) == (b"a", None)
        shop.clock.advance("1s")
        assert (two.poll(timeout=0), one.poll(timeout=0)) == (b"a", b"a")


@claims(
    "guide/retries",
    "`max_retries` is 16 by default: one delivery and up to 16 retries.",
    "Without arguments 16 steps from 10 s to 2 h",
)
def default_retries(shop: Shop) -> None:
    topic = Topic("jobs", TopicType.FIXED_TIME, retry=ImmediateRetry())
    shop.client.producer(topic).send(FixedTimeMessage("a", delay="0s"))
    attempts = list[int]()

    @shop.client.listener(topic)
    def fail(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise ValueError("no")

    assert run_until_empty(shop.client, clock=shop.clock, raises=False).nacked == 17
    assert len(list(shop.client.dead(topic).list())) == 1
    assert attempts == list(range(1, 18))
    steps_s = LadderRetry().steps_s
    assert (len(steps_s), steps_s[0], steps_s[-1]) == (16, 10, 2 * 3600)


@claims(
    "guide/retries",
    '`delivery.nack(delay="30s")` waits that long, regardless of the policy.',
    "`delivery.bury(error)` makes a message dead at once, for errors that a retry cannot fix.",
)
def nack_and_bury(shop: Shop) -> None:
    producer = shop.client.producer(shop.priority)
    producer.send_many(PriorityMessage(name, 50) for name in ("late", "wrong"))
    with shop.client.consumer(shop.priority) as consumer:
        for delivery in consumer.poll():
            delivery.nack(delay="30s") if delivery.text == "late" else delivery.bury(ValueError("wrong"))
        assert [dead.text for dead in shop.client.dead(shop.priority).list()] == ["wrong"]
    shop.clock.advance("29s")
    assert shop.texts(shop.priority) == []
    shop.clock.advance("2s")
    assert shop.texts(shop.priority) == ["late"]


@claims("guide/flow", "are returned unchanged, without using up a retry.")
def retry_after(shop: Shop) -> None:
    shop.client.producer(shop.priority).send(PriorityMessage("a", 50))
    attempts = list[int]()

    @shop.client.listener(shop.priority)
    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) == 1:
            raise RetryAfterError("30s")

    run_at_most(shop.client, 1, raises=False)
    run_until_empty(shop.client, clock=shop.clock)
    assert attempts == [1, 1]


@claims(
    "guide/flow",
    (
        "All consumers and listeners of the topic together get at most `max_burst + max_rate × t` "
        "messages in any `t` seconds."
    ),
)
def rate(shop: Shop) -> None:
    topic = Topic("mails", TopicType.PRIORITY, max_rate=5, max_burst=3)
    shop.client.producer(topic).send_many(PriorityMessage(f"m{number}", 50) for number in range(50))
    with shop.client.consumer(topic) as one, shop.client.consumer(topic) as other:
        assert len(one.poll(max_messages=50)) + len(other.poll(max_messages=50)) == 3
        shop.clock.advance("1s")
        assert len(one.poll(max_messages=50)) + len(other.poll(max_messages=50)) <= 5


@claims(
    "guide/columns",
    "`row 17 of send_columns: content b'' has 0 bytes; on topic orders it must have 1 to 65536`",
    "All rows are checked before anything is sent.",
)
def columns_are_checked(shop: Shop) -> None:
    orders = Topic("orders", TopicType.PRIORITY)
    contents = [f"order:{number}" for number in range(20)]
    contents[17] = ""
    wording = "row 17 of send_columns: content b'' has 0 bytes; on topic orders it must have 1 to 65536"
    with pytest.raises(InvalidBatchError, match=re.escape(wording)):
        shop.client.producer(orders).send_columns(contents, priorities=50)
    assert shop.client.inspect(orders).stats().backlog == 0


@claims("guide/columns", "both refuse columns with an `InvalidValueError`.")
def columns_without_versions(shop: Shop) -> None:
    joins = Merge(Collect(unique=True), window=Sliding(max_wait="1h"), max_count=PER_MESSAGE)
    for name, merge in (("newest", Merge(Newest(), window=Fixed("1s"))), ("joins", joins)):
        with pytest.raises(InvalidValueError):
            shop.client.producer(Topic(name, TopicType.RANGE_MERGE, merge=merge)).send_columns(["a"], bodies=["x"])


@claims(
    "guide/streams",
    "**Groups**: each group gets every entry, and within a group only one consumer has an entry at a time.",
    "Entries never merge, and have no priority or due time.",
    "| after an ack | the entry stays in the log until the topic's retention removes it |",
)
def groups(shop: Shop) -> None:
    topic = Topic("clicks", TopicType.STREAM)
    producer = shop.client.producer(topic)
    producer.send_many(StreamMessage("a") for _ in range(4))
    with (
        shop.client.consumer(topic, group="one", start="all") as first,
        shop.client.consumer(topic, group="one", start="all") as second,
        shop.client.consumer(topic, group="two", start="all") as other,
    ):
        halves = [*first.poll(max_messages=2), *second.poll(max_messages=4)]
        ids = {delivery.id for delivery in halves if isinstance(delivery, StreamDelivery)}
        assert len(ids) == len(halves) == 4
        whole = other.poll(max_messages=10)
        assert [delivery.text for delivery in whole] == ["a"] * 4
        other.ack(whole)
    assert len(list(shop.client.stream(topic).range())) == 4


@claims(
    "guide/streams",
    "If an id is not larger, `EntryIdError` is raised, and nothing of the call is stored.",
    "An entry that already exists with the same id and fields is skipped, so repeating a send adds no second entry.",
)
def ids(shop: Shop) -> None:
    topic = Topic("clicks", TopicType.STREAM)
    producer = shop.client.producer(topic)
    for _ in range(2):
        producer.send(StreamMessage("a", id="7-1"))
    with pytest.raises(EntryIdError):
        producer.send_many([StreamMessage("b", id="7-2"), StreamMessage("c", id="6-1")])
    assert [entry.id for entry in shop.client.stream(topic).range()] == ["7-1"]


@claims(
    "operate/control",
    "`WhenFull.REFUSE` (default) raises `BacklogFullError`.",
    "a send that merges needs no room.",
)
def full_backlog(shop: Shop) -> None:
    topic = Topic("jobs", TopicType.PRIORITY, max_backlog=2)
    producer = shop.client.producer(topic)
    producer.send_many(PriorityMessage(name, 50) for name in "ab")
    with pytest.raises(BacklogFullError):
        producer.send(PriorityMessage("c", 50))
    assert producer.send(PriorityMessage("a", 60)).merged == 1


@claims("operate/control", "`WhenFull.DROP` accepts the send and drops the message that would be delivered last")
def dropping_backlog(shop: Shop) -> None:
    topic = Topic("jobs", TopicType.PRIORITY, max_backlog=2, when_full=WhenFull.DROP)
    results = [
        shop.client.producer(topic).send(PriorityMessage(name, rank))
        for name, rank in zip("abc", (50, 40, 60), strict=True)
    ]
    assert [result.dropped for result in results] == [0, 0, 1]
    assert shop.texts(topic) == ["c", "a"]


@claims(
    "operate/control",
    "a message older than this is not delivered any more, but becomes dead with the error type `Expired`",
)
def outlived(shop: Shop) -> None:
    topic = Topic("jobs", TopicType.PRIORITY, ttl="1m")
    shop.client.producer(topic).send(PriorityMessage("a", 50))
    shop.clock.advance("2m")
    assert shop.texts(topic) == []
    assert [dead.error_type for dead in shop.client.dead(topic).list()] == ["Expired"]
    assert shop.client.inspect(topic).stats().total("ttl_expired") == 1


@claims(
    "guide/promises",
    "`store + prepare + retry + dead + acked = accepted − merged`, at all times",
    "Messages that you cancel or purge, or that a bound drops, are counted separately.",
)
def accounts(shop: Shop) -> None:
    producer = shop.client.producer(shop.priority)
    producer.send_many(PriorityMessage(name, 50 - rank) for rank, name in enumerate("abcdef"))
    producer.send(PriorityMessage("e", 50 - 4))
    with shop.client.consumer(shop.priority) as consumer:
        acked, dead, failed, _held = consumer.poll(max_messages=4)
        acked.ack()
        dead.bury("wrong")
        failed.nack(delay="1h")
        shop.client.control(shop.priority).cancel("f")
        stats = shop.client.inspect(shop.priority).stats()
        states = (stats.backlog, stats.in_flight, stats.waiting, stats.dead, stats.total("acked"))
        assert states == (1, 1, 1, 1, 1)
        totals = [stats.total(name) for name in ("accepted", "merged", "cancelled")]
        assert (totals, stats.unaccounted) == ([7, 1, 1], 0)


@claims(
    "guide/promises", "**No overlap.** While leases hold, at most one handler in the whole cluster works on a content"
)
def no_overlap(shop: Shop) -> None:
    producer = shop.client.producer(shop.priority)
    producer.send(PriorityMessage("a", 50))
    with shop.client.consumer(shop.priority) as one, shop.client.consumer(shop.priority) as other:
        (held,) = one.poll()
        producer.send(PriorityMessage("a", 50))
        assert other.poll() == []
        held.ack()
        assert [delivery.text for delivery in other.poll()] == ["a"]


@claims("guide/promises", "The messages of a crashed worker come back when its leases end, after 60 s by default.")
def leases(shop: Shop) -> None:
    shop.client.producer(shop.priority).send(PriorityMessage("a", 50))
    consumer = shop.client.consumer(shop.priority)
    assert len(consumer.poll()) == 1
    shop.clock.advance("59s")
    with shop.client.consumer(shop.priority) as other:
        assert other.poll() == []
        shop.clock.advance("2s")
        assert [(delivery.text, delivery.attempt) for delivery in other.poll()] == [("a", 2)]


@pytest.mark.parametrize("check", dict.fromkeys(check for *_, check in CLAIMS), ids=lambda check: check.__name__)
def test_what_the_pages_say_holds(check: Check, shop: Shop) -> None:
    check(shop)


def test_the_pages_say_so() -> None:
    pages = {page: " ".join((DOCS / f"{page}.md").read_text("utf-8").split()) for page, *_ in CLAIMS}
    assert [(page, sentence) for page, sentence, _ in CLAIMS if sentence not in pages[page]] == []


def test_at_least_sixty_claims_are_held() -> None:
    assert len({(page, sentence) for page, sentence, _ in CLAIMS}) >= 60
