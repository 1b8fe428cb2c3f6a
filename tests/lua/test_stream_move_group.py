"""`stream_move_group` on a slot with something in every key: what stays, what comes again, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rmq import Topic, TopicType
from tests.conftest import MakeTopic
from tests.lua.stream_cases import Seeded, seed
from tests.support.core import ClaimReply, Connections, Member, Outcomes, StreamClaimed, streams
from tests.support.one_slot import claim_group

YOU = Member("g", "you")


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    return make_topic(TopicType.STREAM, checked=False, max_retries=16, lease="1m40s")


@pytest.fixture
def names(redis_client: Any, topic: Topic) -> Seeded:
    """What is there; nothing of it is due, but what nobody has had."""
    names = seed(redis_client, topic)
    store, group = f"{topic.name}_0", f"group:g{{{topic.name}_0}}"
    redis_client.xack(store, "g", names.expired, names.lost)
    redis_client.zrem(f"retry:g{{{topic.name}_0}}", *redis_client.zrange(f"retry:g{{{topic.name}_0}}", 0, -1))
    redis_client.hset(group, "acked", 2)  # and 2 dead, 4 pending, of 8 that were read
    redis_client.hdel(group, "epoch", "ensemble")
    return names


def read(connections: Connections, topic: Topic, limit: int = 10) -> list[str]:
    """Claim for somebody else, and ack; return the ids."""
    reply: ClaimReply[Sequence[StreamClaimed]] = connections.run(claim_group(topic, 0, YOU, limit))
    acks = [(entry.id, entry.claim_score) for entry in reply.messages]
    connections.run(claim_group(topic, 0, YOU, 0, Outcomes(acks)))
    return [entry.id.decode() for entry in reply.messages]


def move(connections: Connections, topic: Topic, start: str) -> str:
    return connections.run(streams.move_group(topic, 0, "g", start, through=True))


@pytest.mark.parametrize("limit", [1, 2, 10])
@pytest.mark.parametrize("moves", [["all"], ["all", "held"], ["all", "all"]])
def test_what_is_held_or_dead_is_passed_over(
    limit: int, moves: list[str], names: Seeded, topic: Topic, connections: Connections, redis_client: Any
) -> None:
    def pending() -> list[Any]:
        rows: Any = redis_client.xpending_range(f"{topic.name}_0", "g", "-", "+", 100)
        return [(row["message_id"], row["consumer"], row["times_delivered"]) for row in rows]

    before = pending()
    assert len(before) == 4
    for start in moves:
        move(connections, topic, getattr(names, start, start))
    found = read(connections, topic, 1)
    assert connections.run(streams.group_stats(topic, 0, "g")).lag == 4  # and not the two that were passed over
    while page := read(connections, topic, limit):
        found += page
    assert found == [names.expired, names.fresh]
    assert pending() == before
    group = connections.run(streams.group_stats(topic, 0, "g"))
    assert (group.pending, group.dead, group.lag) == (4, 2, 0)


def test_the_lag_is_that_of_the_new_place(
    names: Seeded, topic: Topic, connections: Connections, redis_client: Any
) -> None:
    def lag() -> int | None:
        return connections.run(streams.group_stats(topic, 0, "g")).lag

    assert (move(connections, topic, names.expired), lag()) == (names.expired, 4)
    assert read(connections, topic, 1) == [names.fresh]
    assert (move(connections, topic, "all"), lag()) == ("0-0", 7)
    assert (move(connections, topic, "new"), lag()) == (names.fresh, 0)
    connections.run(streams.move_group(topic, 0, "g", names.fresh, through=False))
    assert lag() == 1
    redis_client.xadd(f"{topic.name}_0", {"content": "x"})
    redis_client.hincrby(f"meta{{{topic.name}_0}}", "accepted", 1)
    assert lag() == 2


def test_a_group_that_is_not_there_is_not_made(topic: Topic, connections: Connections, redis_client: Any) -> None:
    assert move(connections, topic, "all") == ""
    assert not redis_client.exists(f"{topic.name}_0", f"group:g{{{topic.name}_0}}")
