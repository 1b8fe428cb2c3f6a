"""Sends from columns: the same in Redis as of messages, and errors that name rows."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from rmq import (
    FixedTimeMessage,
    Merge,
    Observer,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    SendResult,
    Sum,
    TopicType,
)
from rmq.errors import BacklogFullError, InvalidBatchError
from tests.conftest import MakeTopic
from tests.support.clients import stats_of
from tests.support.core import BATCH, BATCH_BYTES, CHUNK, Message

FAR_MS = 4_000_000_000_000
NUMBER = 2 * CHUNK + 123
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

Stored = dict[int, list[tuple[bytes, int, bytes | None]]]


def stored_in(client: RmqClient, topic: Any) -> Stored:
    pages = {slot: list(client.inspect(topic).pages(slot, "store")) for slot in range(topic.slots)}
    timed = topic.type is TopicType.RANGE_MERGE
    return {
        slot: sorted((each.content, 0 if timed else each.priority or each.due_ms or 0, each.body) for each in found)
        for slot, found in pages.items()
    }


@pytest.mark.parametrize(
    ("kind", "slots"),
    [
        *((TopicType.PRIORITY, slots) for slots in (1, 8, 512)),
        *((kind, 8) for kind in (TopicType.RANGE_MERGE, TopicType.FIXED_TIME)),
    ],
)
def test_columns_store_what_messages_store(
    client: RmqClient, make_topic: MakeTopic, kind: TopicType, slots: int
) -> None:
    by_objects, by_columns = make_topic(kind, slots=slots), make_topic(kind, slots=slots)
    contents = [f"item:{number % 5_000}" for number in range(NUMBER)]
    bodies = [None if number % 3 else b"%d" % number for number in range(NUMBER)]
    bases = [f"shop:{number % 7}" if number % 5_000 < 100 else None for number in range(NUMBER)]
    messages: list[Message]
    values: dict[str, Any]
    if kind is TopicType.RANGE_MERGE:
        values = {"time_range": "10m"}
        messages = [
            RangeMergeMessage(c, time_range_ms=600_000, slot_basis=k, body=b)
            for c, k, b in zip(contents, bases, bodies, strict=True)
        ]
    else:
        scores = [1 + number * 7 % 1_000 for number in range(NUMBER)]
        if kind is TopicType.FIXED_TIME:
            scores = [FAR_MS + score for score in scores]
        values = {"priorities" if kind is TopicType.PRIORITY else "fixed_times": scores}
        make: Any = PriorityMessage if kind is TopicType.PRIORITY else FixedTimeMessage
        name = "priority" if kind is TopicType.PRIORITY else "fixed_time_ms"
        rows = zip(contents, scores, bases, bodies, strict=True)
        messages = [make(c, slot_basis=k, body=b, **{name: score}) for c, score, k, b in rows]
    expected = client.producer(by_objects).send_many(messages, outcomes=True)
    columns: dict[str, Any] = {"bodies": pa.array(bodies, pa.binary()), "slot_bases": bases, **values}
    assert client.producer(by_columns).send_columns(contents, outcomes=True, **columns) == expected
    assert stored_in(client, by_columns) == stored_in(client, by_objects)
    again = client.producer(by_columns).send_columns(contents, **columns)
    assert again == SendResult(0, NUMBER)


def test_no_rows(client: RmqClient, make_topic: MakeTopic) -> None:
    producer = client.producer(make_topic(TopicType.PRIORITY))
    assert producer.send_columns([], priorities=[]) == SendResult(0, 0)
    assert producer.send_columns([], priorities=5, outcomes=True) == SendResult(0, 0)


def test_entries_of_a_stream_keep_their_order(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, slots=4, checked=False)
    contents = [b"%d" % number for number in range(CHUNK + 500)]
    result = client.producer(topic).send_columns(contents, bodies=contents[::-1], slot_bases=["k"] * len(contents))
    assert result == SendResult(len(contents), 0)
    entries = list(client.stream(topic).range(slots=[topic.slot_of(b"k")]))
    assert [(entry.content, entry.body) for entry in entries] == list(zip(contents, contents[::-1], strict=True))
    ids = client.producer(topic).send_columns(["x", "y"], slot_bases=["k", "k"], outcomes=True).ids
    assert len(set(ids)) == 2


def test_large_rows_travel_in_smaller_batches(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=2)
    bodies = [bytes([number]) * (BATCH_BYTES * 2 // 3) for number in range(6)]
    contents = [b"%d" % number for number in range(6)]
    assert client.producer(topic).send_columns(contents, time_range="1ms", bodies=bodies, outcomes=True).outcomes == (
        (True,) * 6
    )
    with client.consumer(topic) as consumer:
        found: dict[bytes, bytes | None] = {}
        while len(found) < 6:
            deliveries = consumer.poll(6, timeout=2)
            assert deliveries
            found |= {each.content: each.body for each in deliveries}
            assert consumer.ack(deliveries) == []
    assert found == dict(zip(contents, bodies, strict=True))


def test_a_row_that_breaks_a_rule_stops_all_before_anything_is_sent(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    contents = [f"m{number}" for number in range(NUMBER)]
    priorities = [100] * NUMBER
    priorities[NUMBER - 2] = 2**20
    with pytest.raises(InvalidBatchError, match=f"row {NUMBER - 2} of send_columns: priority is 1048576; on topic"):
        client.producer(topic).send_columns(contents, priorities=priorities)
    assert stats_of(client, topic).backlog == 0


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("values", ["100ms", [100.0] * 12 * BATCH], ids=["plain", "row by row"])
def test_a_refusal_names_the_rows_that_are_not_stored(
    client: RmqClient, make_topic: MakeTopic, large: bool, values: Any
) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=2, max_backlog=3_000)
    number = 12 * BATCH
    contents = [f"m{index}" for index in range(number)]
    bodies: list[str | None] = [None] * number
    if large:
        bodies[1] = bodies[CHUNK + 1] = "x" * (BATCH_BYTES // BATCH)
    with pytest.raises(BacklogFullError, match="max_backlog") as caught:
        client.producer(topic).send_columns(contents, time_range=values, bodies=bodies)
    error = caught.value
    assert error.unknown == ()
    stored = {peeked.text for slot in range(2) for peeked in client.inspect(topic).pages(slot, "store")}
    assert len(stored) == error.stored <= 3_000
    assert sorted(error.not_stored) == [index for index in range(number) if contents[index] not in stored]


def test_a_topic_that_merges_folds_columns(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, merge=Merge(Sum()))
    result = client.producer(topic).send_columns(["a", "b", "a"], priorities=5, bodies=[1, 2, 3])
    assert result == SendResult(2, 1)
    with client.consumer(topic) as consumer:
        found = consumer.poll()
        assert {each.text: (each.value, each.merged) for each in found} == {"a": (4, 2), "b": (2, 1)}
        consumer.ack(found)


class Tracing(Observer):
    @contextmanager
    def sending(self, topic: Any, messages: int) -> Generator[str]:
        assert messages == 2
        yield TRACE


@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.STREAM])
def test_the_trace_goes_with_each_row(client: RmqClient, make_topic: MakeTopic, kind: TopicType) -> None:
    topic = make_topic(kind, checked=kind is not TopicType.STREAM)
    client.observers.all.append(Tracing())
    values: dict[str, Any] = {"priorities": 5} if kind is TopicType.PRIORITY else {}
    client.producer(topic).send_columns(["a", "b"], bodies=[None, "x"], **values)
    if kind is TopicType.STREAM:
        assert [entry.body for entry in client.stream(topic).range()] == [None, b"x"]
        return
    with client.consumer(topic) as consumer:
        found = consumer.poll()
        assert sorted((each.content, each.body, each.trace) for each in found) == [
            (b"a", None, TRACE),
            (b"b", b"x", TRACE),
        ]
        consumer.ack(found)
