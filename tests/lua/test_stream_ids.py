"""Entries of streams that are sent with ids of their own."""

from __future__ import annotations

from typing import Any

import pytest

from rmq import Retention, RmqClient, SendResult, StreamMessage, Topic, TopicType
from rmq.errors import BacklogFullError, EntryIdError, InvalidMessageError, ReplyLostError, RmqError
from tests.conftest import MakeTopic
from tests.support.core import Connections, encode, slot_keys, streams
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    return make_topic(TopicType.STREAM, checked=False, slots=1)


def send(connections: Connections, topic: Topic, *messages: StreamMessage) -> SendResult:
    return connections.run(streams.sends(topic)(0, [encode(topic, message) for message in messages], True))


def entries(client: Any, topic: Topic) -> list[tuple[str, dict[bytes, bytes]]]:
    return [(entry_id.decode(), fields) for entry_id, fields in client.xrange(f"{topic.name}_0")]


def accepted(client: Any, topic: Topic) -> int:
    return int(client.hget(f"meta{{{topic.name}_0}}", "accepted") or 0)


def test_entries_have_the_ids_that_they_were_sent_with(
    topic: Topic, redis_client: Any, connections: Connections
) -> None:
    messages = (
        StreamMessage("a", id="5-0"),
        StreamMessage("b", body="x", id="5-1"),
        StreamMessage({"k": "v"}, id="70-0"),
    )
    assert send(connections, topic, *messages).ids == ("5-0", "5-1", "70-0")
    assert entries(redis_client, topic) == [
        ("5-0", {b"content": b"a"}),
        ("5-1", {b"content": b"b", b"body": b"x"}),
        ("70-0", {b"k": b"v"}),
    ]
    assert send(connections, topic, StreamMessage("later")).new == 1


@pytest.mark.parametrize(
    "sent",
    [
        [StreamMessage("c", id="4-9")],
        [StreamMessage("c", id="5-0")],
        [StreamMessage("c", id="6-0"), StreamMessage("d", id="6-0")],
        [StreamMessage("c", id="9-0"), StreamMessage("d", id="8-0")],
        [StreamMessage("c", id="6-0"), StreamMessage("a", id="5-0")],
        [StreamMessage("c", id="6-0"), StreamMessage("d")],
        [StreamMessage("c"), StreamMessage("d", id="99-0")],
        [StreamMessage("a", body="other", id="5-0")],
    ],
)
def test_what_does_not_rise_is_refused_and_nothing_is_written(
    sent: list[StreamMessage], topic: Topic, redis_client: Any, connections: Connections
) -> None:
    send(connections, topic, StreamMessage("a", id="5-0"))
    with pytest.raises(EntryIdError, match="id"):
        send(connections, topic, *sent)
    assert (len(entries(redis_client, topic)), accepted(redis_client, topic)) == (1, 1)


def test_a_repeat_sends_only_what_is_not_there(topic: Topic, redis_client: Any, connections: Connections) -> None:
    messages = [StreamMessage(f"{number}", body="b", id=f"1-{number}") for number in range(1, 6)]
    send(connections, topic, *messages[:3])
    assert send(connections, topic, *messages[:3]).ids == ("1-1", "1-2", "1-3")
    assert send(connections, topic, *messages).ids == tuple(f"1-{number}" for number in range(1, 6))
    assert (len(entries(redis_client, topic)), accepted(redis_client, topic)) == (5, 5)


def test_a_repeat_needs_room_only_for_what_is_not_there(
    make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, slots=1, max_backlog=3)
    messages = [StreamMessage(f"{number}", id=f"1-{number}") for number in range(1, 5)]
    send(connections, topic, *messages[:2])
    assert send(connections, topic, *messages[:3]).ids == ("1-1", "1-2", "1-3")
    assert send(connections, topic, *messages[:3]).ids == ("1-1", "1-2", "1-3")
    with pytest.raises(BacklogFullError):
        send(connections, topic, *messages)
    assert (len(entries(redis_client, topic)), accepted(redis_client, topic)) == (3, 3)


@pytest.mark.parametrize(
    "wrong", ["", "5", "0-0", "-1-0", "01-0", "5-**", "*-5", "05-*", f"{2**53}-*", "a-b", f"{2**53}-0", f"1-{2**53}", 5]
)
def test_an_id_is_two_whole_numbers(wrong: Any) -> None:
    with pytest.raises(InvalidMessageError, match="id is"):
        StreamMessage("a", id=wrong)


def test_redis_gives_the_second_number(topic: Topic, redis_client: Any, connections: Connections) -> None:
    opened = [StreamMessage(name, id=wanted) for name, wanted in (("a", "0-*"), ("b", "5-*"), ("c", "5-*"))]
    assert send(connections, topic, *opened).ids == ("0-1", "5-0", "5-1")
    mixed = StreamMessage("d", id="5-7"), StreamMessage({"k": "v"}, id="5-*"), StreamMessage("e", body="x", id="6-*")
    assert send(connections, topic, *mixed).ids == ("5-7", "5-8", "6-0")
    assert send(connections, topic, mixed[2], mixed[2]).ids == ("6-1", "6-2")  # each time another one
    assert [entry_id for entry_id, _ in entries(redis_client, topic)] == (
        ["0-1", "5-0", "5-1", "5-7", "5-8", "6-0", "6-1", "6-2"]
    )
    assert dict(entries(redis_client, topic))["5-8"] == {b"k": b"v"}
    redis_client.xadd(f"{topic.name}_0", {"content": "x"}, id=f"{2**53 - 1}-0")
    assert send(connections, topic, StreamMessage("f", id=f"{2**53 - 1}-*")).ids == (f"{2**53 - 1}-1",)


@pytest.mark.parametrize(
    ("last", "sent"),
    [
        ("6-0", ["5-*"]),
        ("5-0", ["5-*", "4-*"]),
        ("5-0", ["7-*", "6-0"]),
        ("5-0", ["7-*", "7-0"]),
        (f"5-{10**15}", ["5-*"]),  # foreign: RMQ counts up to there
        ("5-18446744073709551615", ["5-*"]),
    ],
)
def test_an_open_id_that_does_not_rise_is_refused_and_nothing_is_written(
    last: str, sent: list[str], topic: Topic, redis_client: Any, connections: Connections
) -> None:
    redis_client.xadd(f"{topic.name}_0", {"content": "x"}, id=last)
    with pytest.raises(EntryIdError, match=f"id {sent[-1].replace('*', '.')} is not greater than"):
        send(connections, topic, *(StreamMessage("a", id=wanted) for wanted in sent))
    assert len(entries(redis_client, topic)) == 1


def test_a_send_with_an_open_id_is_not_repeated_by_itself(redis_server: RedisServer, topic: Topic) -> None:
    with Proxy(redis_server.port) as proxy, RmqClient(proxy.url) as client:
        producer = client.producer(topic)
        producer.send(StreamMessage("a", id="4-*"))
        for send_it in (
            lambda: producer.send(StreamMessage("b", id="5-*")),
            lambda: producer.send_many([StreamMessage("c", id="5-*"), StreamMessage("d", id="6-0")]),
        ):
            proxy.cut_before_reply(command="EVALSHA")
            with pytest.raises(
                RmqError, match=r"stored twice, or is refused although it is stored.*range` shows"
            ) as lost:
                send_it()
            assert isinstance(lost.value, ReplyLostError) or len(getattr(lost.value, "unknown", ())) == 2
        proxy.cut_before_reply(command="EVALSHA")
        assert producer.send(StreamMessage("e", id="7-0")).new == 1  # a whole id is known again
        assert [entry.id for entry in client.stream(topic).range()] == ["4-0", "5-0", "5-1", "6-0", "7-0"]


def test_a_producer_sends_ids(redis_url: str, topic: Topic) -> None:
    with RmqClient(redis_url) as client:
        producer = client.producer(topic)
        producer.send(StreamMessage("a", id=f"1-{2**53 - 1}"))
        many = (StreamMessage(str(number), id=f"2-{number}") for number in range(1, 2_501))
        assert producer.send_many(many, outcomes=True).ids == tuple(f"2-{number}" for number in range(1, 2_501))
        with pytest.raises(EntryIdError) as caught:
            producer.send_many([StreamMessage("x", id="3-1"), StreamMessage("y", id="2-7")])
        assert (caught.value.stored, len(caught.value.not_stored)) == (0, 2)
        with client.consumer(topic, group="g", start="all") as consumer:
            consumer.ack(consumer.poll(10_000))
        stats = client.stream(topic).stats()
        assert (stats.length, stats.last_id) == (2_501, "2-2500")


@pytest.mark.parametrize("last", ["18446744073709551615", "9007199254740993", "99", "1299", "9"])
def test_a_clean_up_knows_the_id_after_any(
    last: str, topic: Topic, redis_client: Any, connections: Connections
) -> None:
    """Numbers of ids go up to 2^64 - 1: what other programs have sent, and where a group may begin."""
    for entry_id in (f"5-{last}", "6-0", "6-1"):
        redis_client.xadd(f"{topic.name}_0", {"content": "x"}, id=entry_id)
    redis_client.hincrby(f"meta{{{topic.name}_0}}", "accepted", 3)
    connections.run(streams.join(topic, 0, "g", f"5-{last}"))
    exact = Retention(max_length=0, approximate=False)
    assert connections.run(streams.trim(topic, 0, exact, now=True)).dropped == 1
    assert [entry_id for entry_id, _ in entries(redis_client, topic)] == ["6-0", "6-1"]


def test_a_clean_up_spares_what_is_not_acked_however_large_its_number(
    topic: Topic, redis_client: Any, connections: Connections
) -> None:
    ids = [f"5-{2**53 + number}" for number in (3, 4, 5)]
    for entry_id in ids:
        redis_client.xadd(f"{topic.name}_0", {"content": "x"}, id=entry_id)
    redis_client.hincrby(f"meta{{{topic.name}_0}}", "accepted", 3)
    connections.run(streams.join(topic, 0, "g", ids[0]))
    store = f"{topic.name}_0"
    redis_client.hset(slot_keys(topic.name, 0).sizes, mapping={store: 2, "last_id": ids[1]})
    connections.run(streams.trim(topic, 0, Retention(shrink=True, approximate=False), now=True))
    assert [entry_id for entry_id, _ in entries(redis_client, topic)] == ids[1:]
