"""One read of several topics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from rmq import Consumer, PriorityMessage, RmqClient, StreamMessage, Topic, TopicType, poll_all
from rmq._claiming import consumer as consumers_module
from rmq.errors import ClientClosedError, InvalidValueError, ScriptFailedError
from tests.conftest import MakeTopic
from tests.support.core import slot_keys

Make = Callable[[TopicType], Consumer]


@pytest.fixture
def make(client: RmqClient, make_topic: MakeTopic) -> Iterator[Make]:
    """Makes a consumer of a topic of its own."""
    with ExitStack() as stack:

        def consumer(kind: TopicType) -> Consumer:
            topic = make_topic(kind, checked=False)
            group = {"group": "g", "start": "all"} if kind is TopicType.STREAM else {}
            return stack.enter_context(client.consumer(topic, **group))  # pyright: ignore[reportArgumentType]

        yield consumer


def fill(client: RmqClient, topic: Topic, number: int) -> None:
    message: Any = PriorityMessage if topic.type is TopicType.PRIORITY else StreamMessage
    extra = (1_000,) if topic.type is TopicType.PRIORITY else ()
    client.producer(topic).send_many(message(f"m{each}", *extra) for each in range(number))


def test_all_topics_get_equal_shares_and_the_rest_is_filled(client: RmqClient, make: Make) -> None:
    wanted = [make(TopicType.STREAM), make(TopicType.PRIORITY), make(TopicType.STREAM)]
    for each, number in zip(wanted, (100, 100, 5), strict=True):
        fill(client, each.topic, number)
    names = [each.topic.name for each in wanted]
    page = poll_all(wanted, 30)
    counts = Counter(delivery.topic.name for delivery in page)
    assert (counts[names[2]], sum(counts.values())) == (5, 30)
    assert min(counts[name] for name in names[:2]) >= 10
    assert all(delivery.ack() for delivery in page)
    left = 205 - 30
    while page := poll_all(wanted, 100):
        left -= len(page)
        for each in wanted:
            assert each.ack([delivery for delivery in page if delivery.topic.name == each.topic.name]) == []
    assert left == 0
    assert poll_all(wanted, 100, 0.05) == []


def test_a_message_of_any_topic_ends_the_wait(client: RmqClient, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers_module, "LOOK_EVERY_S", 1_000.0)  # nothing but a hint tells of it
    wanted = [make(TopicType.PRIORITY), make(TopicType.STREAM), make(TopicType.STREAM)]
    assert poll_all(wanted, 10, 0.2) == []
    for each in wanted:
        sender = threading.Timer(0.2, fill, (client, each.topic, 1))
        sender.start()
        (delivery,) = poll_all(wanted, 10, 60.0)
        assert delivery.topic.name == each.topic.name
        assert delivery.ack()
        sender.join()


def test_no_topic_starves_where_there_is_less_than_one_message_for_each(client: RmqClient, make: Make) -> None:
    wanted = [make(TopicType.STREAM), make(TopicType.STREAM)]
    for each in wanted:
        fill(client, each.topic, 100)
    found = {delivery.topic.name for _ in range(100) for delivery in poll_all(wanted, 1)}
    assert found == {each.topic.name for each in wanted}


def test_a_wait_ends_when_one_of_them_is_closed(make: Make) -> None:
    wanted = [make(TopicType.STREAM), make(TopicType.STREAM)]
    assert poll_all(wanted, 10, 0.1) == []
    closer = threading.Timer(0.2, wanted[1].close)
    closer.start()
    with pytest.raises(ClientClosedError, match=wanted[1].topic.name):
        poll_all(wanted, 10, 60.0)
    closer.join()


def test_a_topic_that_fails_holds_back_no_other(client: RmqClient, make: Make, redis_client: Any) -> None:
    wanted = [make(TopicType.PRIORITY), make(TopicType.STREAM)]
    broken = slot_keys(wanted[0].topic.name, 0).retry
    redis_client.set(broken, "someone else's")
    fill(client, wanted[1].topic, 3)
    assert [delivery.topic.name for delivery in poll_all(wanted, 10, 5.0)] == [wanted[1].topic.name] * 3
    with pytest.raises(ScriptFailedError, match="WRONGTYPE"):
        poll_all(wanted, 10, 5.0)
    redis_client.delete(broken)


def test_what_is_wrong_is_refused(make: Make) -> None:
    one = make(TopicType.STREAM)
    with pytest.raises(InvalidValueError, match="consumers is empty"):
        poll_all([])
    with pytest.raises(InvalidValueError, match="max_messages"):
        poll_all([one], 0)
    assert poll_all([one, one]) == []
