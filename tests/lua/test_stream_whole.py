"""Claims of streams that read new entries in names of their own, and are acked as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rmq import Owner, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.core import (
    ClaimReply,
    Connections,
    Member,
    Nack,
    Outcomes,
    StreamClaimed,
    group_keys,
    own_score,
    streams,
)
from tests.support.one_slot import claim_group, settle_group

ME, OTHER = Member("g", "me"), Member("g", "other")
NUMBER = 5


@pytest.fixture
def topic(make_topic: MakeTopic, redis_client: Any) -> Topic:
    found = make_topic(TopicType.STREAM, checked=False, max_retries=16)
    redis_client.xgroup_create(f"{found.name}_0", "g", "0", mkstream=True)
    return found


@pytest.fixture
def claimed(topic: Topic, redis_client: Any, connections: Connections) -> ClaimReply[Sequence[StreamClaimed]]:
    """A claim that has read some entries in a name of its own."""
    for number in range(NUMBER):
        redis_client.xadd(f"{topic.name}_0", {"content": number})
    return connections.run(claim_group(topic, 0, ME, 100, own=True))


def acks(messages: Any) -> list[tuple[bytes, int]]:
    return [(message.id, message.claim_score) for message in messages]


def expire(client: Any, topic: Topic, message: StreamClaimed) -> None:
    """Let the lease of an entry end."""
    store = f"{topic.name}_0"
    (row,) = client.xpending_range(store, "g", message.id, message.id, 1)
    client.xclaim(store, "g", row["consumer"], 0, [message.id], idle=10**8, justid=True)
    client.hset(group_keys(topic.name, 0, "g").group, "scan_at", 1)


def names(client: Any, topic: Topic) -> set[bytes]:
    return {row["name"] for row in client.xinfo_consumers(f"{topic.name}_0", "g")}


def pending(connections: Connections, topic: Topic, consumer: str = "") -> list[tuple[str, str | None]]:
    rows = connections.run(streams.pending(topic, 0, "g", "-", 100, consumer))
    return [(row.id, row.consumer) for row in rows]


@pytest.mark.parametrize("ride", [False, True])
def test_one_command_acks_all_that_a_claim_has_read(
    ride: bool, topic: Topic, claimed: ClaimReply[Sequence[StreamClaimed]], redis_client: Any, connections: Connections
) -> None:
    assert [message.content for message in claimed.messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert claimed.own is not None
    score, number = claimed.own
    assert number == NUMBER
    assert {message.claim_score for message in claimed.messages} == {score}
    assert pending(connections, topic) == [(message.id.decode(), "me") for message in claimed.messages]
    assert pending(connections, topic, "me") == pending(connections, topic)
    assert [(name, held) for name, held, _ in connections.run(streams.consumers(topic, 0, "g"))] == [("me", NUMBER)]
    if ride:
        call = settle_group(topic, 0, ME, Outcomes(whole=[claimed.own]))
        assert connections.run(call).unmatched == ()
    else:
        assert connections.run(settle_group(topic, 0, ME, Outcomes(whole=[claimed.own]))).unmatched == ()
    after = connections.run(streams.group_stats(topic, 0, "g"))
    assert (after.pending, after.unaccounted, after.totals["acked"]) == (0, 0, NUMBER)
    assert names(redis_client, topic) == set()


def test_a_claim_of_which_something_was_taken_is_acked_by_name(
    topic: Topic, claimed: ClaimReply[Sequence[StreamClaimed]], redis_client: Any, connections: Connections
) -> None:
    taken = claimed.messages[2]
    expire(redis_client, topic, taken)
    found = connections.run(claim_group(topic, 0, OTHER, 10)).messages
    assert [(message.id, message.claim_score) for message in found] == [(taken.id, 2)]
    assert claimed.own is not None
    assert connections.run(settle_group(topic, 0, ME, Outcomes(whole=[claimed.own]))).unmatched == (claimed.own[0],)
    reply = connections.run(settle_group(topic, 0, ME, Outcomes(acks(claimed.messages))))
    assert reply.stale == (taken.id,)
    assert pending(connections, topic) == [(taken.id.decode(), "other")]
    assert names(redis_client, topic) == {b"other"}
    assert connections.run(streams.group_stats(topic, 0, "g")).unaccounted == 0


def test_what_was_taken_before_a_claim_does_not_concern_it(
    topic: Topic, claimed: ClaimReply[Sequence[StreamClaimed]], redis_client: Any, connections: Connections
) -> None:
    expire(redis_client, topic, claimed.messages[0])
    redis_client.xadd(f"{topic.name}_0", {"content": "late"})
    reply = connections.run(claim_group(topic, 0, OTHER, 10, own=True))
    assert [message.claim_score for message in reply.messages][:1] == [2]
    assert reply.own is not None
    assert reply.own[1] == 1
    assert connections.run(settle_group(topic, 0, OTHER, Outcomes(whole=[reply.own]))).unmatched == ()
    connections.run(settle_group(topic, 0, OTHER, Outcomes(acks(reply.messages[:1]))))
    assert len(pending(connections, topic)) == NUMBER - 1


@pytest.mark.parametrize("verb", ["retry", "release", "bury", "ack"])
def test_some_of_a_claim_are_settled_by_name(
    verb: str, topic: Topic, claimed: ClaimReply[Sequence[StreamClaimed]], redis_client: Any, connections: Connections
) -> None:
    first, score = claimed.messages[0], claimed.messages[0].claim_score
    outcomes = Outcomes([(first.id, score)]) if verb == "ack" else Outcomes(nacks=[Nack(first.id, score, verb)])
    assert connections.run(settle_group(topic, 0, ME, outcomes)).stale == ()
    assert connections.run(settle_group(topic, 0, ME, outcomes)).stale == (first.id,)
    rest = acks(claimed.messages[1:])
    assert connections.run(streams.extend(topic, 0, ME, rest)).claim_scores == (score,) * (NUMBER - 1)
    assert connections.run(streams.extend(topic, 0, OTHER, rest)).claim_scores == (None,) * (NUMBER - 1)
    assert connections.run(settle_group(topic, 0, ME, Outcomes(rest))).stale == ()
    assert names(redis_client, topic) <= {b"me", b"(waiting)"}
    after = connections.run(streams.group_stats(topic, 0, "g"))
    assert (after.pending, after.unaccounted) == (1 if verb in ("retry", "release") else 0, 0)


@pytest.mark.parametrize("how", ["resume", "forget"])
def test_what_is_given_back_is_no_longer_in_the_claim(
    how: str, topic: Topic, claimed: ClaimReply[Sequence[StreamClaimed]], redis_client: Any, connections: Connections
) -> None:
    held = {message.id.decode() for message in claimed.messages}
    met = 0
    for _ in range(NUMBER):
        if how == "resume":
            more, some, _ = connections.run(streams.resume(topic, 0, ME, 2))
        else:
            _, some = connections.run(streams.forget(topic, 0, "g", "me", 0, 2))
            more = some == 2
        met += some
        if not more:
            break
    assert met == NUMBER
    assert names(redis_client, topic) == {b"(waiting)"}
    assert claimed.own is not None
    assert connections.run(settle_group(topic, 0, ME, Outcomes(whole=[claimed.own]))).unmatched == (claimed.own[0],)
    assert {entry_id for entry_id, _ in pending(connections, topic)} == held
    again = connections.run(claim_group(topic, 0, ME, 10)).messages
    assert {message.id.decode() for message in again} == held
    assert connections.run(settle_group(topic, 0, ME, Outcomes(acks(again)))).stale == ()
    assert connections.run(streams.group_stats(topic, 0, "g")).unaccounted == 0


def test_a_consumer_is_removed_once_nothing_is_left_of_its_claims(
    topic: Topic, claimed: ClaimReply[Sequence[StreamClaimed]], redis_client: Any, connections: Connections
) -> None:
    for number in range(NUMBER):
        redis_client.xadd(f"{topic.name}_0", {"content": number})
    assert connections.run(claim_group(topic, 0, ME, 100, own=True)).own is not None
    assert connections.run(claim_group(topic, 0, ME, 100)).messages == ()
    redis_client.xgroup_createconsumer(f"{topic.name}_0", "g", "me")
    removed, given_back = 0, 0
    while not removed:
        removed, some = connections.run(streams.forget(topic, 0, "g", "me", 0, 2))
        given_back += some
        assert removed or some
    assert (removed, given_back) == (1, len(claimed.messages) + NUMBER)
    assert names(redis_client, topic) == {b"(waiting)"}


def test_a_consumer_that_was_seen_in_one_of_its_names_is_not_removed(
    topic: Topic, claimed: ClaimReply[Sequence[StreamClaimed]], connections: Connections
) -> None:
    assert connections.run(streams.forget(topic, 0, "g", "me", 60_000, 10)) == (0, 0)
    assert connections.run(streams.forget(topic, 0, "g", "m", 0, 10)) == (0, 0)
    assert len(pending(connections, topic, "me")) == len(claimed.messages)
    assert pending(connections, topic, "m") == []


def test_a_renewal_of_what_was_deleted_leaves_the_rest_of_the_claim(
    topic: Topic, claimed: ClaimReply[Sequence[StreamClaimed]], redis_client: Any, connections: Connections
) -> None:
    redis_client.xdel(f"{topic.name}_0", claimed.messages[1].id)
    kept = connections.run(streams.extend(topic, 0, ME, acks(claimed.messages))).claim_scores
    assert claimed.own is not None
    stale = [message.id for message, score in zip(claimed.messages, kept, strict=True) if score is None]
    if connections.run(settle_group(topic, 0, ME, Outcomes(whole=[claimed.own]))).unmatched:
        reply = connections.run(settle_group(topic, 0, ME, Outcomes(acks(claimed.messages))))
        assert list(reply.stale) == stale
    else:
        assert not stale
    after = connections.run(streams.group_stats(topic, 0, "g"))
    assert (after.pending, after.unaccounted) == (0, 0)


def test_a_claim_that_finds_nothing_leaves_no_name(topic: Topic, redis_client: Any, connections: Connections) -> None:
    reply = connections.run(claim_group(topic, 0, ME, 100, own=True))
    assert (reply.messages, names(redis_client, topic)) == ((), set())


def test_no_two_claims_have_a_name_in_common(topic: Topic, redis_client: Any, connections: Connections) -> None:
    scores: list[int] = []
    for number in range(20):
        redis_client.xadd(f"{topic.name}_0", {"content": number})
        reply = connections.run(claim_group(topic, 0, ME, 1, own=True))
        assert reply.own is not None
        scores.append(reply.own[0])
    assert scores == sorted(set(scores))


def test_a_claim_has_no_name_that_its_consumer_knows_from_before(
    topic: Topic, claimed: ClaimReply[Sequence[StreamClaimed]], redis_client: Any, connections: Connections
) -> None:
    """A server that has forgotten a claim, and whose clock is behind, would give its stamp once more."""
    assert claimed.own is not None
    unseen = claimed.own[0] // 1000 + 10**9
    redis_client.xadd(f"{topic.name}_0", {"content": "next"})
    own = connections.run(claim_group(topic, 0, ME, 100, own=unseen)).own
    assert own == (own_score(unseen), 1)


def test_an_ack_of_a_claim_of_a_group_that_was_removed_changes_nothing(
    topic: Topic, claimed: ClaimReply[Sequence[StreamClaimed]], redis_client: Any, connections: Connections
) -> None:
    assert claimed.own is not None
    connections.run(streams.drop_group(topic, 0, "g"))
    assert connections.run(settle_group(topic, 0, ME, Outcomes(whole=[claimed.own]))).unmatched == (claimed.own[0],)
    redis_client.xgroup_create(f"{topic.name}_0", "g", "0")
    again = connections.run(claim_group(topic, 0, ME, 100, own=True))
    assert connections.run(settle_group(topic, 0, ME, Outcomes(whole=[claimed.own]))).unmatched == (claimed.own[0],)
    assert len(pending(connections, topic)) == len(again.messages) == NUMBER


def test_a_new_owner_takes_its_own_claims_for_its_own(
    topic: Topic, claimed: ClaimReply[Sequence[StreamClaimed]], redis_client: Any, connections: Connections
) -> None:
    redis_client.xadd(f"{topic.name}_0", {"content": "next"})
    owned = Owner(1, "zk")
    assert len(connections.run(claim_group(topic, 0, OTHER, 10, owner=owned)).messages) == 0
    assert len(connections.run(claim_group(topic, 0, ME, 10, owner=owned)).messages) == 1
    assert len(claimed.messages) == NUMBER


def test_entries_of_all_kinds_keep_their_order(topic: Topic, redis_client: Any, connections: Connections) -> None:
    store = f"{topic.name}_0"
    for fields in ({"content": "a"}, {"content": "b", "body": "x"}, {"content": "c"}, {"k": "v"}, {"content": "d"}):
        redis_client.xadd(store, fields)
    reply = connections.run(claim_group(topic, 0, ME, 10, own=True))
    assert [(message.content, message.body) for message in reply.messages] == [
        (b"a", None),
        (b"b", b"x"),
        (b"c", None),
        (b'{"k":"v"}', None),
        (b"d", None),
    ]
    assert reply.own is not None
    assert reply.own == (reply.messages[0].claim_score, 5)
    assert {message.claim_score % 1000 for message in reply.messages} == {1}
    assert reply.own[0] > own_score(0)
