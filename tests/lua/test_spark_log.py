"""The scripts of queries that follow STREAM topics: a group that stands where Spark has committed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from rmq import StreamMessage, Topic, TopicType
from rmq.errors import DriverReplacedError, ScriptFailedError
from rmq.spark import calls
from rmq.spark.calls import Dropped, Reach, Standing, Walked
from tests.conftest import MakeTopic
from tests.lua.cases import Example
from tests.support.core import Call, Connections, encode, parse_url, streams
from tests.support.servers import RedisServer
from tests.support.slots import SlotUnderTest

EACH: dict[str, Callable[[Topic], Call[Any]]] = {
    "spark_position": lambda topic: calls.position(topic, 0, "files", "d1"),
    "spark_walk": lambda topic: calls.walk(topic, 0, "files", Reach("0-0", "+", 10, 1_000, True)),
    "spark_advance": lambda topic: calls.advance(topic, 0, "files", "d1", "3-0", 3, 0),
    "take_lock": lambda topic: calls.lock_run(topic, "files", "run", 1_000, keep=False),
    "spark_trim": lambda topic: calls.trim(topic, 0, "files", "d1", "3-0"),
}


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    return make_topic(TopicType.STREAM, checked=False, slots=1)


def filled(connections: Connections, topic: Topic, number: int = 5, start: str = "all") -> None:
    """Entries 1-0, 2-0 ... of 10 bytes each, and a group."""
    messages = [StreamMessage(f"e{n}", id=f"{n}-0") for n in range(1, number + 1)]
    connections.run(streams.sends(topic)(0, [encode(topic, message) for message in messages], True))
    connections.run(streams.join(topic, 0, "files", start))


def opened(slot: SlotUnderTest) -> None:
    filled(slot.connections, slot.topic)


def _example(script: str) -> Example:
    def unread(slot: SlotUnderTest, call: Call[Any]) -> set[str]:
        return set() if script == "take_lock" else {slot.keys.store}

    return Example(TopicType.STREAM, lambda topic, _: EACH[script](topic), opened, unread=unread)


EXAMPLES = {script: _example(script) for script in EACH}


def totals(client: Any, topic: Topic) -> list[int]:
    found = client.hmget(f"group:files{{{topic.name}_0}}", "fresh", "delivered", "acked", "skipped")
    return [int(each or 0) for each in found]


def test_a_driver_enters(connections: Connections, redis_client: Any, topic: Topic) -> None:
    assert connections.run(EACH["spark_position"](topic)) == Standing("", "", None, 0)
    assert redis_client.keys(f"*{topic.name}_0*") == []
    filled(connections, topic)
    assert connections.run(EACH["spark_position"](topic)) == Standing("0-0", "5-0", 5, 0)
    assert redis_client.hget(f"group:files{{{topic.name}_0}}", "driver") == b"d1"


def test_what_was_sent_is_not_known_of_a_group_that_began_at_an_id(connections: Connections, topic: Topic) -> None:
    filled(connections, topic, start="2-0")
    assert connections.run(EACH["spark_position"](topic)) == Standing("2-0", "5-0", None, 0)


@pytest.mark.parametrize(
    ("reach", "found"),
    [
        (Reach("0-0", "+", 10, 1_000, True), ("5-0", 5, False)),
        (Reach("0-0", "+", 2, 1_000, True), ("2-0", 2, True)),
        (Reach("2-0", "4-0", 10, 1_000, True), ("4-0", 2, False)),
        (Reach("5-0", "+", 10, 1_000, True), ("", 0, False)),
        (Reach("0-0", "+", 10, 20, True), ("2-0", 2, True)),
        (Reach("0-0", "+", 10, 1, True), ("1-0", 1, True)),
        (Reach("0-0", "+", 10, 1, False), ("", 0, True)),
    ],
)
def test_entries_are_counted(
    connections: Connections, topic: Topic, reach: Reach, found: tuple[str, int, bool]
) -> None:
    filled(connections, topic)
    last, number, more = found
    size = len(b"contente1")
    assert connections.run(calls.walk(topic, 0, "files", reach)) == Walked("0-0", last, number, number * size, more, 5)


def test_a_commit_moves_the_group_and_counts_once(connections: Connections, redis_client: Any, topic: Topic) -> None:
    filled(connections, topic)
    connections.run(EACH["spark_position"](topic))
    assert connections.run(EACH["spark_advance"](topic))
    assert not connections.run(EACH["spark_advance"](topic)), "after a lost reply"
    assert totals(redis_client, topic) == [3, 3, 3, 0]
    assert connections.run(calls.advance(topic, 0, "files", "d1", "3-0", 4, 1)) is False
    assert totals(redis_client, topic) == [3, 3, 3, 1], "an entry that is gone moves nothing, and counts"
    assert not connections.run(calls.advance(topic, 0, "files", "d1", "2-0", 9, 0)), "a group never moves back"
    assert totals(redis_client, topic) == [3, 3, 3, 1]
    assert connections.run(EACH["spark_position"](topic)) == Standing("3-0", "5-0", 5, 4)


def test_a_commit_catches_up_on_those_that_a_failover_lost(
    connections: Connections, redis_client: Any, topic: Topic
) -> None:
    filled(connections, topic)
    connections.run(EACH["spark_position"](topic))
    assert connections.run(calls.advance(topic, 0, "files", "d1", "5-0", 5, 1))
    assert totals(redis_client, topic) == [4, 4, 4, 1]


def test_another_driver_moves_nothing(connections: Connections, redis_client: Any, topic: Topic) -> None:
    filled(connections, topic)
    connections.run(calls.position(topic, 0, "files", "d2"))
    before = redis_client.xinfo_groups(f"{topic.name}_0")
    with pytest.raises(DriverReplacedError, match="another driver \\(d2\\)"):
        connections.run(EACH["spark_advance"](topic))
    assert redis_client.xinfo_groups(f"{topic.name}_0") == before
    assert totals(redis_client, topic) == [0, 0, 0, 0]


def test_a_group_that_is_gone_is_not_made(connections: Connections, redis_client: Any, topic: Topic) -> None:
    assert not connections.run(EACH["spark_advance"](topic))
    assert connections.run(EACH["spark_walk"](topic)) == Walked("", "", 0, 0, False, None)
    assert redis_client.keys(f"*{topic.name}_0*") == []


def ids(client: Any, topic: Topic) -> list[bytes]:
    return [entry_id for entry_id, _ in client.xrange(f"{topic.name}_0")]


def test_what_is_committed_is_trimmed(connections: Connections, redis_client: Any, topic: Topic) -> None:
    filled(connections, topic)
    for name in ("spark_position", "spark_advance"):
        connections.run(EACH[name](topic))
    assert connections.run(calls.trim(topic, 0, "files", "d1", "2-0")) == Dropped(2, False, False)
    assert ids(redis_client, topic) == [b"3-0", b"4-0", b"5-0"]
    assert connections.run(calls.trim(topic, 0, "files", "d1", "4-0")) == Dropped(1, False, True)
    assert ids(redis_client, topic) == [b"4-0", b"5-0"], "what the group has not committed stays"
    assert connections.run(calls.trim(topic, 0, "files", "d1", "3-0")) == Dropped(0, False, False)
    assert redis_client.hget(f"meta{{{topic.name}_0}}", "trimmed") == b"3"


def test_what_another_group_needs_is_not_trimmed(connections: Connections, redis_client: Any, topic: Topic) -> None:
    filled(connections, topic)
    for name in ("spark_position", "spark_advance"):
        connections.run(EACH[name](topic))
    redis_client.xgroup_create(f"{topic.name}_0", "slow", "0")
    redis_client.xreadgroup("slow", "me", {f"{topic.name}_0": ">"}, count=4)
    redis_client.xack(f"{topic.name}_0", "slow", "1-0")
    assert connections.run(EACH["spark_trim"](topic)) == Dropped(1, False, True)
    assert ids(redis_client, topic) == [b"2-0", b"3-0", b"4-0", b"5-0"]


def test_another_driver_and_a_group_that_is_gone_trim_nothing(
    connections: Connections, redis_client: Any, topic: Topic
) -> None:
    filled(connections, topic)
    connections.run(calls.position(topic, 0, "files", "d2"))
    with pytest.raises(DriverReplacedError, match="another driver"):
        connections.run(EACH["spark_trim"](topic))
    connections.run(streams.drop_group(topic, 0, "files"))
    assert connections.run(EACH["spark_trim"](topic)) == Dropped(0, False, False)
    assert len(ids(redis_client, topic)) == 5


def test_more_than_a_call_takes_is_trimmed_by_the_next(
    connections: Connections, redis_client: Any, topic: Topic
) -> None:
    filled(connections, topic, 1_000)
    with redis_client.pipeline(transaction=False) as pipe:
        for n in range(1_001, 20_501):
            pipe.xadd(f"{topic.name}_0", {"f": "v"}, id=f"{n}-0")
        pipe.execute()
    redis_client.xgroup_setid(f"{topic.name}_0", "files", "20500-0")
    number, more = 0, True
    while more:
        done = connections.run(calls.trim(topic, 0, "files", "d1", "20499-0"))
        number, more = number + done.number, done.more
        assert done.number <= 10_100
    assert (number, ids(redis_client, topic)) == (20_499, [b"20500-0"])


def test_one_run_at_a_time_has_the_turn(connections: Connections, redis_client: Any, topic: Topic) -> None:
    def ask(holder: str, hold_ms: int, *, keep: bool = False) -> str:
        return connections.run(calls.lock_run(topic, "files", holder, hold_ms, keep=keep))[0]

    key = f"group:files{{{topic.name}_0}}"
    assert ask("a", 60_000, keep=True) == "", "nothing to keep"
    assert [ask("a", 60_000), ask("b", 60_000), ask("b", 0), ask("a", 60_000, keep=True)] == ["a"] * 4
    assert ask("a", 0) == ""
    assert ask("b", 60_000) == "b"
    redis_client.hset(key, "run", "b 1")
    assert ask("a", 60_000) == "a", "its time is over"
    till_ms = int(redis_client.hget(key, "run").split()[1])
    redis_client.hset(key, "run", f"b {till_ms + 59_000}")
    assert ask("a", 60_000) == "b", "a run may have a longer turn"
    redis_client.hset(key, "run", f"b {till_ms + 90_000}")
    assert ask("a", 60_000) == "a", "the clock was ahead then"
    assert ask("b", 60_000, keep=True) == "a", "who has lost the turn does not keep it"


def test_totals_of_a_foreign_type_are_found_before_the_group_moves(
    connections: Connections, redis_client: Any, topic: Topic
) -> None:
    # pitfall 8
    filled(connections, topic)
    redis_client.set(f"meta{{{topic.name}_0}}", "foreign")
    group = f"group:files{{{topic.name}_0}}"
    before = redis_client.xinfo_groups(f"{topic.name}_0"), redis_client.hgetall(group)
    with pytest.raises(ScriptFailedError, match="WRONGTYPE"):
        connections.run(EACH["spark_position"](topic))
    assert (redis_client.xinfo_groups(f"{topic.name}_0"), redis_client.hgetall(group)) == before


def test_a_full_redis_can_be_committed_to() -> None:
    # pitfall 9
    with RedisServer() as server, closing(Connections(parse_url(server.url))) as connections:
        topic = Topic("small", TopicType.STREAM, slots=1)
        filled(connections, topic)
        for make in EACH.values():
            connections.run(make(topic))
        server.config_set("maxmemory", 1)
        connections.run(EACH["spark_position"](topic))
        assert connections.run(calls.advance(topic, 0, "files", "d1", "5-0", 5, 0))
        assert connections.run(calls.advance(topic, 0, "files", "d1", "5-0", 6, 1)) is False
