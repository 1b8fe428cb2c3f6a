"""The order of sending within a slot, while servers refuse calls that are then repeated."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from rmq import (
    PriorityMessage,
    RmqClient,
    StreamMessage,
    Topic,
    TopicType,
    WhenFull,
)
from rmq.errors import SendError
from rmq.spark.marks import Mark
from rmq.spark.sink.columns import Layout
from rmq.spark.sink.encoding import BadRows
from rmq.spark.sink.sender import Sending, TaskSender
from tests.conftest import MakeTopic
from tests.support.core import BATCH, BODY, Call, Connections, Dispatch, Message, Rows, encode, parse_url, slot_keys
from tests.support.storm import script_storm

SCRIPTS = "send stream_send".split()
CONTENTS = 40


def messages(kind: TopicType, number: int) -> list[Message]:
    """Messages of some contents over and over, each with its number as its body."""
    if kind is TopicType.STREAM:
        return [StreamMessage(f"c{index % CONTENTS}", body=str(index)) for index in range(number)]
    return [PriorityMessage(f"c{index % CONTENTS}", 100 + index, body=str(index)) for index in range(number)]


def assert_in_order(plain: redis.Redis, topic: Topic, number: int) -> None:
    """Of a stream, every entry follows those sent before it; else the newest body of each content stands."""
    found: dict[str, int] = {}
    for slot in range(topic.slots):
        keys = slot_keys(topic.name, slot)
        if topic.type is TopicType.STREAM:
            bodies = [int(fields[BODY]) for _, fields in plain.xrange(keys.store)]  # pyright: ignore
            assert bodies == sorted(bodies), f"slot {slot}"
            found |= {str(body): body for body in bodies}
        else:
            found |= {content.decode(): int(body) for content, body in plain.hgetall(keys.body).items()}  # pyright: ignore
    if topic.type is TopicType.STREAM:
        assert len(found) == number
    else:
        assert found == {f"c{index % CONTENTS}": index for index in range(number - CONTENTS, number)}


def forget(plain: redis.Redis, topic: Topic) -> None:
    for slot in range(topic.slots):
        keys = slot_keys(topic.name, slot)
        plain.delete(keys.store, keys.body, keys.meta)


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.STREAM])  # all but STREAM are sent by one script
def test_scripts_that_are_forgotten_and_loaded_by_others(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, redis_url: str, kind: TopicType, slots: int
) -> None:
    topic = make_topic(kind, slots=slots, checked=kind is not TopicType.STREAM)
    number = 4_000 if slots == 1 else 16_000
    producer = client.producer(topic)
    with script_storm(redis_url, SCRIPTS):
        for _ in range(4):
            forget(redis_client, topic)
            assert producer.send_many(messages(kind, number)).accepted == number
            assert_in_order(redis_client, topic, number)


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.STREAM])
def test_a_task_of_spark_among_forgotten_scripts(
    own_connections: Connections,
    make_topic: MakeTopic,
    redis_client: redis.Redis,
    redis_url: str,
    kind: TopicType,
    slots: int,
    marked: bool,
) -> None:
    topic = make_topic(kind, slots=slots, checked=not marked and kind is not TopicType.STREAM)
    number = 1_000 * slots
    with script_storm(redis_url, SCRIPTS):
        for batch in range(4):
            forget(redis_client, topic)
            bad_rows = BadRows(Layout(topic, "priority"), "", "part")
            mark = Mark("q", batch, 0, 60) if marked else None
            sender = TaskSender(own_connections, topic, Sending(False, 50_000, 100, 4), bad_rows, mark)
            sender.add(Rows.of([encode(topic, message) for message in messages(kind, number)]))
            assert sender.finish().skipped == 0
            assert_in_order(redis_client, topic, number)


@pytest.fixture
def own_connections(redis_url: str) -> Iterator[Connections]:
    connections = Connections(parse_url(redis_url), deadline_s=10.0)
    yield connections
    connections.close()


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The slots of the calls that are sent at a time."""
    seen: list[list[int]] = []
    dispatch = Connections.dispatch

    def noted(self: Connections, calls: Sequence[Call[Any]], *args: Any) -> Dispatch:
        seen.append([call.slot for call in calls])
        return dispatch(self, calls, *args)

    monkeypatch.setattr(Connections, "dispatch", noted)
    return seen


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("when_full", [WhenFull.REFUSE, WhenFull.BLOCK])
def test_no_two_calls_of_a_slot_are_under_way(
    client: RmqClient, make_topic: MakeTopic, rounds: list[list[int]], slots: int, when_full: WhenFull
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=slots, max_backlog=10**6, when_full=when_full)
    number = 4 * BATCH * slots + 7
    uneven = [PriorityMessage(f"m{i}", 100, slot_basis=str(i % 3 * (i % 2))) for i in range(number)]
    assert client.producer(topic).send_many(uneven).accepted == number
    assert all(len(set(each)) == len(each) for each in rounds), rounds
    assert max(len(each) for each in rounds) == min(slots, len({topic.slot_of(b) for b in (b"0", b"1", b"2")}))


@pytest.mark.parametrize("depth", [1, 4])
def test_no_two_chunks_of_a_slot_are_under_way(
    own_connections: Connections, make_topic: MakeTopic, rounds: list[list[int]], depth: int
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    sender = TaskSender(
        own_connections, topic, Sending(False, 50_000, 100, depth), BadRows(Layout(topic, "priority"), "", "part")
    )
    rows = [encode(topic, PriorityMessage(f"m{i}", 100)) for i in range(5_000)]
    rows += [row for row in rows if row.slot == 3]
    sender.add(Rows.of(rows))
    assert sender.finish().rows == 0
    assert all(len(set(each)) == len(each) <= depth for each in rounds), rounds
    assert sum(len(each) for each in rounds[:4]) == 4 * depth


def test_nothing_is_stored_behind_a_batch_that_was_refused(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    """The slot has room for one batch and a half: the second is refused, and the third, which would fit, stays out."""
    topic = make_topic(TopicType.STREAM, checked=False, slots=1, max_backlog=BATCH + BATCH // 2)
    entries = [StreamMessage(str(index), body=str(index)) for index in range(2 * BATCH + 10)]
    with pytest.raises(SendError) as caught:
        client.producer(topic).send_many(entries)
    assert (caught.value.stored, len(caught.value.not_stored)) == (BATCH, BATCH + 10)
    assert redis_client.xlen(slot_keys(topic.name, 0).store) == BATCH


def test_a_busy_server(client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, redis_url: str) -> None:
    """Somebody's slow scripts, during which the server answers BUSY, begin and end all the time."""
    topics = [make_topic(TopicType.STREAM, checked=False, slots=1) for _ in range(4)]
    limit_ms = str(redis_client.config_get("lua-time-limit")["lua-time-limit"])
    redis_client.config_set("lua-time-limit", 1)
    stop = threading.Event()

    def be_slow() -> None:
        slow = "local t = redis.call('TIME') local from = t[1] * 1e6 + t[2] repeat t = redis.call('TIME')"
        slow += " until t[1] * 1e6 + t[2] > from + 4000"
        with redis.Redis.from_url(redis_url) as plain:
            while not stop.wait(0.01):
                plain.eval(slow, 0)

    thread = threading.Thread(target=be_slow)
    thread.start()
    try:
        for topic in topics:
            assert client.producer(topic).send_many(messages(TopicType.STREAM, 4_000)).accepted == 4_000
    finally:
        stop.set()
        thread.join()
        redis_client.config_set("lua-time-limit", limit_ms)
    for topic in topics:
        assert_in_order(redis_client, topic, 4_000)


def test_a_batch_too_large_for_a_round_is_overtaken_by_none_of_its_slot(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8, max_body_bytes=8 * 1_048_576)
    names = {topic.slot_of(name.encode()): name for name in map(str, range(200))}
    sizes = [(names[0], 2 * 1_048_576), (names[1], 6 * 1_048_576), (names[1], 1)]
    sent = [PriorityMessage(name, 100 + index, body=b"x" * size) for index, (name, size) in enumerate(sizes)]
    client.producer(topic).send_many(sent)
    assert redis_client.hstrlen(slot_keys(topic.name, 1).body, names[1]) == 1
