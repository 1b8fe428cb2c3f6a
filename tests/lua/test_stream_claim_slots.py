"""Claims from several slots of a stream in one call: each slot is served as by a call of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from rmq import Owner, Topic, TopicType
from rmq.errors import EnsembleMismatchError, FencedError, ReplyLostError, RmqError, ScriptFailedError
from tests.conftest import MakeTopic
from tests.lua.stream_cases import ME, OWNER, Seeded, all_keys, seed
from tests.support.core import (
    AOF_TROUBLE,
    NO_OWNER,
    Call,
    ClaimPart,
    ClaimReply,
    Connections,
    EncodedMessage,
    Member,
    Nack,
    Outcomes,
    StreamClaimed,
    WholeClaim,
    group_keys,
    streams,
)
from tests.support.one_slot import claim_group
from tests.support.slots import scripts_under_test

OTHER = Member("g", "other")
Settled = Callable[[Seeded], Outcomes]


def fill(connections: Connections, topic: Topic, slot: int, number: int, size_bytes: int = 1) -> None:
    connections.run(streams.join(topic, slot, "g", "all"))
    messages = [EncodedMessage(slot, b"%03d" % each + b"x" * size_bytes, 0, None) for each in range(number)]
    connections.run(streams.sends(topic)(slot, messages))


def filled(
    make_topic: MakeTopic, connections: Connections, number: int, size_bytes: int = 1, *, slots: int = 2
) -> Topic:
    """Return a topic with so many entries in each slot."""
    topic = make_topic(TopicType.STREAM, slots=slots, checked=False)
    for slot in range(slots):
        fill(connections, topic, slot, number, size_bytes)
    return topic


def claim_from(
    topic: Topic, parts: Sequence[ClaimPart], member: Member = ME
) -> Call[list[ClaimReply[Sequence[StreamClaimed]] | RmqError]]:
    return streams.stream_claims(topic, member)(parts)


def claimed(reply: object) -> list[StreamClaimed]:
    assert isinstance(reply, ClaimReply), reply
    return list(reply.messages)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]


def acks_of(reply: object) -> Outcomes:
    return Outcomes([(message.id, message.claim_score) for message in claimed(reply)])


def contents(reply: object) -> list[bytes]:
    return [message.content for message in claimed(reply)]


def expire(client: Any, topic: Topic, slot: int, consumer: str) -> None:
    """Let the leases of a consumer end."""
    keys = group_keys(topic.name, slot, "g")
    rows = client.xpending_range(keys.store, "g", "-", "+", 1_000)
    for row in rows:
        if row["consumer"].decode().partition("#")[0] == consumer:
            client.xclaim(keys.store, "g", row["consumer"], 0, [row["message_id"]], idle=10**8, justid=True)
    client.hset(keys.group, mapping={"scan_at": 1, "scan_cursor": ""})


# --- the same as by a call of its own


def timeless(value: object) -> object:
    """What Redis' clock has written is the same for all: two calls are not made in the same millisecond."""
    if isinstance(value, int) and value >= 10**12:
        return "now"
    if isinstance(value, bytes):
        return re.sub(rb"\b\d{13}(\d{3})?\b(?!-)", b"now", value)
    if isinstance(value, dict):
        return {timeless(name): timeless(each) for name, each in value.items()}  # pyright: ignore
    if isinstance(value, list | tuple):
        return [timeless(each) for each in value]  # pyright: ignore
    return value


def state(client: Any, topic: Topic, slot: int) -> object:
    own = group_keys(topic.name, slot, "g")
    groups = client.xinfo_groups(own.store)
    hashes = {name: client.hgetall(getattr(own, name)) for name in "group error reason dead_body meta".split()}
    scored = {name: client.zrange(getattr(own, name), 0, -1) for name in ("retry", "dead")}
    rows = client.xpending_range(own.store, "g", "-", "+", 1_000) if groups else []
    pending = [(row["message_id"], row["consumer"], row["times_delivered"]) for row in rows]
    consumers = sorted(row["name"] for row in client.xinfo_consumers(own.store, "g")) if groups else []
    return timeless([hashes, scored, groups, pending, consumers, client.xrange(own.store)])


def copy(client: Any, source: Topic, target: Topic, slot: int) -> None:
    for key, name in zip(all_keys(source, slot), all_keys(target, slot), strict=True):
        if kept := client.dump(key):
            client.restore(name, 0, kept, replace=True)


def everything(client: Any, topic: Topic, slot: int) -> Seeded:
    return seed(client, topic, slot)


def only_new(client: Any, topic: Topic, slot: int) -> Seeded:
    client.xgroup_create(f"{topic.name}_{slot}", "g", "0", mkstream=True)
    for number in range(40):
        client.xadd(f"{topic.name}_{slot}", {"content": number} if number % 7 else {"content": number, "more": "x"})
    return Seeded(*["1-1"] * 9)


def no_group(client: Any, topic: Topic, slot: int) -> Seeded:
    for number in range(3):
        client.xadd(f"{topic.name}_{slot}", {"content": number})
    return Seeded(*["1-1"] * 9)


def paused(client: Any, topic: Topic, slot: int) -> Seeded:
    names = seed(client, topic, slot)
    client.hset(group_keys(topic.name, slot, "g").group, "paused", "1")
    return names


def acked(names: Seeded) -> Outcomes:
    return Outcomes([(names.held.encode(), 1), (names.held_too.encode(), 1), (b"1-1", 1)])


def nacked(names: Seeded) -> Outcomes:
    rest = [Nack(names.held.encode(), 1, "retry", 60_000, "E", "m"), Nack(names.held_too.encode(), 1, "release")]
    return Outcomes(nacks=[Nack(names.used_up.encode(), 99, "retry", 0, "E", "m"), *rest])


def nothing(names: Seeded) -> Outcomes:
    del names
    return Outcomes()


@pytest.mark.parametrize("limit", [0, 1, 3, 50])
@pytest.mark.parametrize("settled", [nothing, acked, nacked])
def test_a_slot_fares_as_with_a_call_of_its_own(
    settled: Settled, limit: int, make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    fills = (everything, only_new, no_group, paused)
    alone, joined = (make_topic(TopicType.STREAM, slots=len(fills), checked=False, max_retries=16) for _ in range(2))
    names = [fill_slot(redis_client, alone, slot) for slot, fill_slot in enumerate(fills)]
    for slot in range(len(fills)):
        copy(redis_client, alone, joined, slot)
    for owners in ([OWNER, NO_OWNER, OWNER, OWNER], [OWNER] * 4):
        own = 1 if limit > 32 else 0
        parts = [
            ClaimPart(slot, limit, settled(each), owner, own)
            for slot, (each, owner) in enumerate(zip(names, owners, strict=True))
        ]
        expected = [connections.run(streams.stream_claims(alone, ME)([part]))[0] for part in parts]
        replies = connections.run(streams.stream_claims(joined, ME)(parts))
        for slot, (one, found) in enumerate(zip(expected, replies, strict=True)):
            assert isinstance(one, ClaimReply)
            assert isinstance(found, ClaimReply)
            assert timeless(found.messages) == timeless(one.messages)
            assert (found.stale, found.lost, found.swept) == (one.stale, one.lost, one.swept)
            assert (found.next_due_ms == 0) is (one.next_due_ms == 0)
            assert (found.next_due_ms <= found.now_ms) is (one.next_due_ms <= one.now_ms)
            assert state(redis_client, joined, slot) == state(redis_client, alone, slot)


def test_claims_with_names_of_their_own_are_acked_as_a_whole_in_each_slot(
    make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    topic = filled(make_topic, connections, 5)
    replies = connections.run(claim_from(topic, [ClaimPart(slot, 50, start=1) for slot in (0, 1)]))
    whole: list[Sequence[WholeClaim]] = []
    for reply in replies:
        assert isinstance(reply, ClaimReply)
        assert reply.own is not None
        assert reply.own[1] == len(reply.messages) == 5
        whole.append([reply.own])
    wrong = [(score + 1_000, number) for score, number in whole[1]]
    parts = [ClaimPart(slot, 0, Outcomes(whole=each)) for slot, each in enumerate([whole[0], wrong])]
    first, second = connections.run(claim_from(topic, parts))
    assert isinstance(first, ClaimReply)
    assert isinstance(second, ClaimReply)
    assert (first.unmatched, second.unmatched) == ((), (wrong[0][0],))
    pending = [connections.run(streams.group_stats(topic, slot, "g")).pending for slot in (0, 1)]
    assert pending == [0, 5]
    connections.run(claim_group(topic, 1, ME, 0, acks_of(replies[1])))
    assert redis_client.xinfo_consumers(f"{topic.name}_1", "g") == []


# --- one slot does not harm another


@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("name", ["store", "group", "retry", "dead", "error", "reason", "dead_body", "meta"])
def test_a_broken_slot_does_not_hold_up_the_others(
    broken: int, name: str, make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    topic = filled(make_topic, connections, 2, slots=4)
    key = getattr(group_keys(topic.name, broken, "g"), name)
    redis_client.delete(key)
    redis_client.set(key, "foreign")
    replies = connections.run(claim_from(topic, [ClaimPart(slot, 10) for slot in range(3)]))
    for slot, reply in enumerate(replies):
        if slot == broken:
            assert isinstance(reply, ScriptFailedError)
            assert "WRONGTYPE" in str(reply)
        else:
            assert len(claimed(reply)) == 2
    if name != "store":
        assert connections.run(streams.pending(topic, broken, "g", "-", 10, "")) == []


def test_slots_of_other_owners_are_refused_by_themselves(
    make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    topic = make_topic(TopicType.STREAM, slots=8, checked=False)
    owners = [NO_OWNER, OWNER, OWNER, OWNER, NO_OWNER]
    for slot in range(len(owners)):
        fill(connections, topic, slot, 1)
    newer = {"epoch": OWNER.epoch + 1, "ensemble": OWNER.ensemble}
    redis_client.hset(group_keys(topic.name, 2, "g").group, mapping=newer)
    redis_client.hset(group_keys(topic.name, 3, "g").group, mapping=newer | {"ensemble": "foreign"})
    redis_client.hset(group_keys(topic.name, 4, "g").group, mapping=newer)
    parts = [ClaimPart(slot, 10, owner=owner) for slot, owner in enumerate(owners)]
    free, owned, fenced, foreign, unowned = connections.run(claim_from(topic, parts))
    assert (len(claimed(free)), len(claimed(owned))) == (1, 1)
    for slot, error, kind in ((2, fenced, FencedError), (3, foreign, EnsembleMismatchError), (4, unowned, FencedError)):
        assert isinstance(error, kind)
        assert error.slot == slot  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        assert connections.run(streams.pending(topic, slot, "g", "-", 10, "")) == []
    epochs = [redis_client.hget(group_keys(topic.name, slot, "g").group, "epoch") for slot in (0, 1, 2)]
    assert epochs == [None, b"%d" % OWNER.epoch, b"%d" % (OWNER.epoch + 1)]


def test_a_new_owner_waits_only_in_slots_where_others_are_at_work(
    make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    topic = filled(make_topic, connections, 3)
    connections.run(claim_group(topic, 0, OTHER, 1, owner=Owner(5, "zk")))
    call = claim_from(topic, [ClaimPart(slot, 10, owner=OWNER) for slot in (0, 1)])
    waits, free = connections.run(call)
    assert (len(claimed(waits)), len(claimed(free))) == (0, 3)
    assert isinstance(waits, ClaimReply)
    assert waits.next_due_ms > waits.now_ms
    expire(redis_client, topic, 0, "other")
    again, _ = connections.run(call)
    assert claimed(again)[0].claim_score == 2


# --- several consumers, lost replies


def test_two_consumers_share_the_slots_and_nothing_comes_twice(make_topic: MakeTopic, connections: Connections) -> None:
    topic = filled(make_topic, connections, 17, slots=4)
    seen: list[tuple[int, bytes]] = []
    outcomes = {member: [Outcomes()] * 4 for member in (ME, OTHER)}
    for turn in range(20):
        member = (ME, OTHER)[turn % 2]
        parts = [ClaimPart(slot, 2, each) for slot, each in enumerate(outcomes[member])]
        replies = connections.run(claim_from(topic, parts, member))
        seen += [(slot, content) for slot, reply in enumerate(replies) for content in contents(reply)]
        outcomes[member] = [acks_of(reply) for reply in replies]
        assert all(reply.stale == () for reply in replies if isinstance(reply, ClaimReply))
    assert sorted(seen) == sorted((slot, b"%03dx" % number) for slot in range(4) for number in range(17))
    for slot in range(4):
        found = connections.run(streams.group_stats(topic, slot, "g"))
        assert (found.pending, found.totals["acked"], found.unaccounted) == (0, 17, 0)


def test_what_a_lost_reply_has_claimed_comes_again_when_the_leases_end(
    make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    topic = filled(make_topic, connections, 2)
    call = claim_from(topic, [ClaimPart(slot, 10) for slot in (0, 1)])
    assert not call.repeatable
    lost = connections.run(call)  # nobody reads it
    others = claim_from(topic, [ClaimPart(slot, 10) for slot in (0, 1)], OTHER)
    assert [claimed(reply) for reply in connections.run(others)] == [[], []]
    expire(redis_client, topic, 1, "me")
    held, free = connections.run(others)
    assert claimed(held) == []
    assert [(message.content, message.claim_score) for message in claimed(free)] == [(b"000x", 2), (b"001x", 2)]
    late = [ClaimPart(slot, 0, acks_of(reply)) for slot, reply in enumerate(lost)]
    in_time, stale = connections.run(claim_from(topic, late))
    assert isinstance(in_time, ClaimReply)
    assert isinstance(stale, ClaimReply)
    assert (in_time.stale, len(stale.stale)) == ((), 2)
    connections.run(claim_group(topic, 1, OTHER, 0, acks_of(free)))


def test_an_error_of_the_disk_in_one_slot_is_a_lost_reply(make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, slots=2, checked=False)
    call = claim_from(topic, [ClaimPart(slot, 10) for slot in (0, 1)])
    text = f"ERR Error running script{AOF_TROUBLE}: No space left on device".encode()
    good: list[Any] = [b"5", b"0", b"0", False, False, False, False, False, False, False, b"0", b"0"]
    first, second = call.parse([text, good])
    assert isinstance(first, ReplyLostError)
    assert (claimed(second), second) == ([], ClaimReply(5, 0, 0, 0, (), ()))


# --- bounds


def test_the_bytes_are_those_of_all_slots_and_each_slot_has_its_turn(
    make_topic: MakeTopic, connections: Connections
) -> None:
    topic = filled(make_topic, connections, 10, 20_000, slots=4)
    seen: dict[int, int] = dict.fromkeys(range(4), 0)
    outcomes = dict.fromkeys(range(4), Outcomes())
    queue = list(range(4))
    for _ in range(40):
        call = streams.stream_claims(topic, ME)([ClaimPart(slot, 10, outcomes[slot]) for slot in queue], 60_000)
        replies = dict(zip(queue, connections.run(call), strict=True))
        size_bytes = sum(len(content) for reply in replies.values() for content in contents(reply))
        assert size_bytes <= 60_000 + 4 * 20_003, "one reading of four entries beyond the bound"
        for slot, reply in replies.items():
            assert isinstance(reply, ClaimReply)
            seen[slot] += len(reply.messages)
            outcomes[slot] = acks_of(reply)
            if not reply.messages and seen[slot] < 10:
                assert 0 < reply.next_due_ms <= reply.now_ms, "it was left out, and is due at once"
        queue.sort(key=lambda slot: len(claimed(replies[slot])) > 0)  # as `Schedule.served`
        if min(seen.values()) == 10:
            break
        assert max(seen.values()) - min(seen.values()) <= 6
    assert set(seen.values()) == {10}
    for slot in range(4):
        connections.run(claim_group(topic, slot, ME, 0, outcomes[slot]))


def test_a_call_takes_over_a_bounded_number_and_some_in_each_slot(
    make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    topic = make_topic(TopicType.STREAM, slots=8, checked=False)
    for slot in range(8):
        fill(connections, topic, slot, 40)
        connections.run(claim_group(topic, slot, OTHER, 40))
        expire(redis_client, topic, slot, "other")
    call = claim_from(topic, [ClaimPart(slot, 40) for slot in range(8)])
    taken = dict.fromkeys(range(8), 0)
    for _ in range(60):
        replies = connections.run(call)
        numbers = [len(claimed(reply)) for reply in replies]
        assert sum(numbers) <= 48 + 2 * 8
        for slot, reply in enumerate(replies):
            assert isinstance(reply, ClaimReply)
            assert numbers[slot] > 0 or taken[slot] == 40
            taken[slot] += numbers[slot]
            connections.run(claim_group(topic, slot, ME, 0, acks_of(reply)))
            if taken[slot] < 40:
                assert 0 < reply.next_due_ms <= reply.now_ms
        if min(taken.values()) == 40:
            break
    assert set(taken.values()) == {40}


@pytest.mark.parametrize(("slots", "most"), [(1, 64), (2, 48)])
def test_a_call_for_one_slot_may_take_over_more(
    slots: int, most: int, make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    topic = make_topic(TopicType.STREAM, slots=2, checked=False)
    fill(connections, topic, 0, 80)
    connections.run(streams.join(topic, 1, "g", "all"))
    connections.run(claim_group(topic, 0, OTHER, 80))
    expire(redis_client, topic, 0, "other")
    first, *_ = connections.run(claim_from(topic, [ClaimPart(slot, 200) for slot in range(slots)]))
    assert len(claimed(first)) == most


def park(client: Any, topic: Topic, slot: int, number: int, due_ms: int) -> None:
    """Let entries wait for a time, as failed ones do."""
    keys = group_keys(topic.name, slot, "g")
    pipeline = client.pipeline(transaction=False)
    for each in range(1, number + 1):
        pipeline.xadd(keys.store, {"content": "parked"}, id=f"1-{each}")
    pipeline.execute()
    client.xreadgroup("g", "(waiting)", {keys.store: ">"}, count=number)
    client.zadd(keys.retry, {f"{1:020d}-{each:020d}": due_ms for each in range(1, number + 1)})


def test_a_pass_over_what_waits_pauses_as_long_as_it_has_looked(
    make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    topic = make_topic(TopicType.STREAM, slots=8, checked=False)
    for slot in range(6):
        connections.run(streams.join(topic, slot, "g", "all"))
        park(redis_client, topic, slot, 1_100, 10**13)
    replies = connections.run(claim_from(topic, [ClaimPart(slot, 10) for slot in range(6)]))
    pauses = [reply.next_due_ms - reply.now_ms for reply in replies if isinstance(reply, ClaimReply)]
    assert pauses == [20, 20, 20, 20, 2, 2], "those after 1,024 entries have looked at 16 instead of 256"


def test_an_owner_need_not_wait_for_retries_of_later(
    make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    topic = make_topic(TopicType.STREAM, slots=2, checked=False)
    for slot, (number, due_ms) in enumerate([(60, 1), (1, 10**13)]):
        connections.run(streams.join(topic, slot, "g", "all"))
        park(redis_client, topic, slot, number, due_ms)
    redis_client.xtrim(group_keys(topic.name, 0, "g").store, maxlen=0)  # they cost work, and bring nothing
    connections.run(streams.sends(topic)(1, [EncodedMessage(1, b"new", 0, None)]))
    call = claim_from(topic, [ClaimPart(slot, 100, owner=OWNER) for slot in (0, 1)])
    assert [contents(reply) for reply in connections.run(call)] == [[], [b"new"]]


def test_a_full_redis_can_be_drained_of_several_slots(  # pitfall 9
    make_topic: MakeTopic, redis_client: Any, connections: Connections
) -> None:
    topic = filled(make_topic, connections, 1)
    connections.run(claim_from(topic, [ClaimPart(slot, 0) for slot in (0, 1)]))  # loads it
    redis_client.config_set("maxmemory", 1)
    try:
        replies = connections.run(claim_from(topic, [ClaimPart(slot, 10) for slot in (0, 1)]))
        done = [ClaimPart(slot, 0, acks_of(reply)) for slot, reply in enumerate(replies)]
        after = connections.run(claim_from(topic, done))
    finally:
        redis_client.config_set("maxmemory", 0)
    assert [contents(reply) for reply in replies] == [[b"000x"], [b"000x"]]
    assert [reply.stale for reply in after if isinstance(reply, ClaimReply)] == [(), ()]


def test_a_server_that_takes_no_writes_refuses_all_of_it(
    make_topic: MakeTopic, redis_client: Any, redis_url: str, connections: Connections
) -> None:
    topic = filled(make_topic, connections, 1)
    call = claim_from(topic, [ClaimPart(slot, 10) for slot in (0, 1)])
    connections.run(claim_from(topic, [ClaimPart(slot, 0) for slot in (0, 1)]))  # loads it
    redis_client.execute_command(
        "ACL", "SETUSER", "narrow", "reset", "on", "nopass", "~*", "&*", "+@all", "-zremrangebyrank"
    )
    client = redis.Redis.from_url(redis_url, protocol=2, single_connection_client=True)
    try:
        client.execute_command("AUTH", "narrow", "none")
        sha = scripts_under_test()[call.script].sha
        with pytest.raises(redis.ResponseError):
            client.evalsha(sha, len(call.keys), *call.keys, *call.args)
    finally:
        client.close()
    assert [connections.run(streams.pending(topic, slot, "g", "-", 10, "")) for slot in (0, 1)] == [[], []]


def test_a_new_owner_that_has_looked_at_much_leaves_the_next_slot_for_another_call(
    make_topic: MakeTopic, connections: Connections
) -> None:
    topic = make_topic(TopicType.STREAM, slots=4, checked=False)
    for slot in range(3):
        fill(connections, topic, slot, 600)
        connections.run(claim_group(topic, slot, OTHER, 599, owner=Owner(5, "zk")))
    parts = [ClaimPart(slot, 10, owner=OWNER) for slot in range(3)]
    replies = connections.run(claim_from(topic, parts))
    assert [claimed(reply) for reply in replies] == [[], [], []]
    waits = [reply.next_due_ms > reply.now_ms for reply in replies if isinstance(reply, ClaimReply)]
    assert waits == [True, True, False]
    [alone] = connections.run(claim_from(topic, parts[2:]))
    assert isinstance(alone, ClaimReply)
    assert alone.next_due_ms > alone.now_ms
