"""What every script of stream topics keeps: its keys, its rights, its order of writing; and each one's own rules."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
import redis

from rmq import Owner, Redriven, Retention, Topic, TopicType
from rmq.errors import FencedError
from tests.conftest import MakeTopic
from tests.lua.cases import commands_of, script_of
from tests.lua.stream_cases import CALLS as CASES
from tests.lua.stream_cases import ME, OWNER, all_keys, padded, seed
from tests.support.core import (
    ClaimReply,
    Connections,
    EncodedMessage,
    Member,
    Nack,
    Outcomes,
    SettleReply,
    StreamClaimed,
    dead,
    default_scripts,
    group_keys,
    streams,
)
from tests.support.one_slot import claim_group, settle_group
from tests.support.waiting import wait_until

WRITES = {"ZADD", "ZREM", "HSET", "HDEL", "HINCRBY", "XACK", "XCLAIM", "XADD", "XTRIM", "XDEL", "XREADGROUP"}


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    return make_topic(TopicType.STREAM, checked=False, max_retries=16)


@pytest.fixture
def store(topic: Topic, redis_client: Any) -> str:
    """A stream without entries, of which a group reads all."""
    redis_client.xgroup_create(f"{topic.name}_0", "g", "0", mkstream=True)
    return f"{topic.name}_0"


def add(client: Any, store: str, contents: Iterable[object]) -> list[bytes]:
    """Return the ids of the entries."""
    with client.pipeline(transaction=False) as pipeline:
        for content in contents:
            pipeline.xadd(store, {"content": content})
        return pipeline.execute()


def dump(client: Any, topic: Topic) -> dict[str, bytes | None]:
    return {key: client.dump(key) for key in all_keys(topic)}  # pyright: ignore[reportReturnType]


def messages(reply: object) -> list[StreamClaimed]:
    assert isinstance(reply, ClaimReply)
    return list(reply.messages)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("script", "denied"),
    [(f"stream_{verb}", command) for verb in ("claim", "settle: nacks", "forget", "resume", "redrive")
     for command in sorted(commands_of(script_of(f"stream_{verb}")) & WRITES)],
)  # fmt: skip
def test_a_missing_right_half_way_loses_no_entry(
    script: str, denied: str, topic: Topic, redis_client: Any, redis_url: str
) -> None:
    # pitfall 8: nothing is rolled back, so the destination is written before the source is removed
    names = seed(redis_client, topic)
    rights = "~*", "&*", "+@all", f"-{denied.lower()}"
    redis_client.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", *rights)
    with redis.Redis.from_url(redis_url, protocol=2, single_connection_client=True) as client:
        client.execute_command("AUTH", "limited", "none")
        text, call = default_scripts()[script_of(script)], CASES[script](topic, names)
        client.script_load(text.text)
        with suppress(redis.ResponseError):
            client.evalsha(text.sha, len(call.keys), *call.keys, *call.args)
    pending = {row["message_id"].decode() for row in redis_client.xpending_range(f"{topic.name}_0", "g", "-", "+", 100)}
    own = list(all_keys(topic))
    dead = {member.decode() for member in redis_client.zrange(own[5], 0, -1)}
    kept = {names.used_up, names.expired, names.waiting, names.dead}
    copies = {flat.get(b"rmq:group") for _, flat in redis_client.xrange(f"{topic.name}_0")}
    assert kept <= pending | dead
    assert names.gone in dead or b"g" in copies


def test_a_claim_settles_takes_over_and_reads_on(topic: Topic, redis_client: Any, connections: Connections) -> None:
    names = seed(redis_client, topic)
    store = f"{topic.name}_0"
    reply = connections.run(CASES["stream_claim"](topic, names))
    assert isinstance(reply, ClaimReply)
    got = [(message.id.decode(), message.claim_score) for message in messages(reply)]
    assert got == [(names.waiting, 2), (names.expired, 2), (names.fresh, 1)]
    assert [entry_id.decode() for entry_id in reply.lost] == [names.lost]
    assert (reply.stale, reply.next_due_ms > reply.now_ms) == ((), True)
    pending = {row["message_id"].decode() for row in redis_client.xpending_range(store, "g", "-", "+", 100)}
    assert pending == {names.waiting, names.expired, names.fresh, names.held_too}
    totals = connections.run(streams.group_stats(topic, 0, "g"))
    assert (totals.epoch, totals.dead, totals.unaccounted) == (6, 3, 0)
    assert totals.totals["lost"] == totals.totals["acked"] == totals.totals["buried"] == 1


def test_an_older_owner_is_refused_and_changes_nothing(
    topic: Topic, redis_client: Any, connections: Connections
) -> None:
    # pitfall 31
    names = seed(redis_client, topic)
    before = dump(redis_client, topic)
    old = Owner(4, "zk")
    with pytest.raises(FencedError):
        connections.run(claim_group(topic, 0, ME, 10, owner=old, outcomes=Outcomes([(names.held.encode(), 1)])))
    with pytest.raises(FencedError):
        connections.run(streams.extend(topic, 0, ME, [(names.held.encode(), 1)], old))
    assert dump(redis_client, topic) == before


def test_an_entry_that_is_spared_comes_later_and_never_dies(
    topic: Topic, redis_client: Any, connections: Connections
) -> None:
    names = seed(redis_client, topic)
    entry_id, last = names.held.encode(), topic.max_retries + 1
    redis_client.xclaim(f"{topic.name}_0", "g", ME.consumer, 0, [names.held], retrycount=last, justid=True)
    nacks = [Nack(entry_id, last, "spare", 30_000, "E", "m")]
    seconds, micros = redis_client.time()
    assert connections.run(settle_group(topic, 0, ME, Outcomes(nacks=nacks), OWNER)) == SettleReply()
    row = redis_client.xpending_range(f"{topic.name}_0", "g", names.held, names.held, 1)[0]
    assert (row["consumer"], row["times_delivered"]) == (b"(waiting)", last - 1)
    assert (
        redis_client.zscore(f"retry:g{{{topic.name}_0}}", padded(names.held))
        >= seconds * 1_000 + micros // 1_000 + 30_000
    )


@pytest.mark.parametrize("verb", ["ack", "retry", "spare", "release", "bury", "extend"])
def test_only_the_holder_of_this_delivery_settles_it(
    verb: str, topic: Topic, redis_client: Any, connections: Connections
) -> None:
    names = seed(redis_client, topic)
    for token, member in ((2, ME), (1, Member("g", "somebody"))):  # another delivery of it, another holder
        if verb == "extend":
            answer = connections.run(streams.extend(topic, 0, member, [(names.held.encode(), token)], OWNER))
            assert answer.claim_scores == (None,)
            continue
        entry_id = names.held.encode()
        acks = [(entry_id, token)] if verb == "ack" else []
        nacks = [] if verb == "ack" else [Nack(entry_id, token, verb, 0, "E", "m")]
        reply = connections.run(settle_group(topic, 0, member, Outcomes(acks, nacks), OWNER))
        assert reply.stale == (entry_id,)
    row = redis_client.xpending_range(f"{topic.name}_0", "g", names.held, names.held, 1)[0]
    assert (row["consumer"], row["times_delivered"]) == (b"me", 1)


def test_a_renewal_of_what_was_deleted_keeps_the_account(
    topic: Topic, redis_client: Any, connections: Connections
) -> None:
    names = seed(redis_client, topic)
    redis_client.hset(f"error:g{{{topic.name}_0}}", names.held, '{"first_ms":"1"}')
    redis_client.xdel(f"{topic.name}_0", names.held)
    held = [(names.held.encode(), 1), (names.held_too.encode(), 1)]
    kept = connections.run(streams.extend(topic, 0, ME, held, OWNER)).claim_scores[0]
    ack = settle_group(topic, 0, ME, Outcomes(held), OWNER)
    assert connections.run(ack).stale == ((names.held.encode(),) if kept is None else ())  # Redis 7 drops it itself
    after = connections.run(streams.group_stats(topic, 0, "g"))
    assert after.unaccounted == 0
    assert after.totals.get("lost", 0) + after.totals["acked"] == 2
    assert not redis_client.hexists(f"error:g{{{topic.name}_0}}", names.held)


def test_who_only_settles_does_not_bring_back_a_removed_group(
    topic: Topic, redis_client: Any, connections: Connections
) -> None:
    names = seed(redis_client, topic)
    connections.run(streams.drop_group(topic, 0, "g"))
    held = [(names.held.encode(), 1)]
    assert connections.run(streams.extend(topic, 0, ME, held, OWNER)).claim_scores == (None,)
    nacks = [Nack(names.held_too.encode(), 1, "retry", 0, "E", "m")]
    reply = connections.run(settle_group(topic, 0, ME, Outcomes(held, nacks), OWNER))
    assert set(reply.stale) == {names.held.encode(), names.held_too.encode()}
    assert redis_client.xinfo_groups(f"{topic.name}_0") == []


def test_slots_that_are_settled_together_have_their_own_replies(
    topic: Topic, redis_client: Any, connections: Connections
) -> None:
    names = seed(redis_client, topic)
    held, settle = [(names.held.encode(), 1)], streams.settlements(topic, ME)
    nacks = [Nack(names.held_too.encode(), 1, "release")]
    parts = [
        settle(1, Outcomes(held)),
        settle(0, Outcomes(held), Owner(4, "zk")),
        settle(0, Outcomes(held, nacks), OWNER),
    ]
    nothing, fenced, done = connections.run(settle.joined(parts))
    assert nothing == SettleReply((names.held.encode(),)), "there is no group"
    assert isinstance(fenced, FencedError)
    assert done == SettleReply()
    assert not redis_client.xpending_range(f"{topic.name}_0", "g", names.held, names.held, 1)
    row = redis_client.xpending_range(f"{topic.name}_0", "g", names.held_too, names.held_too, 1)[0]
    assert (row["consumer"], row["times_delivered"]) == (b"(waiting)", 0)
    assert redis_client.hget(f"group:g{{{topic.name}_0}}", "epoch") == b"6"


def test_a_new_owner_waits_for_the_leases_of_the_one_before(
    store: str, topic: Topic, redis_client: Any, connections: Connections
) -> None:
    add(redis_client, store, range(4))
    before, after = Member("g", "before"), Member("g", "after")
    held = messages(connections.run(claim_group(topic, 0, before, 2, owner=Owner(1, "zk"))))
    assert len(held) == 2
    claim = claim_group(topic, 0, after, 10, owner=Owner(2, "zk"))
    assert messages(connections.run(claim)) == []
    redis_client.xclaim(store, "g", "before", 0, [held[0].id, held[1].id], idle=61_000, justid=True)
    redis_client.hset(next(key for key in all_keys(topic) if key.startswith("group:")), "scan_at", 1)
    found = messages(connections.run(claim))
    assert [(message.content, message.claim_score) for message in found] == [(b"0", 2), (b"1", 2), (b"2", 1), (b"3", 1)]


def test_a_new_owner_handles_nothing_beside_the_one_before(
    store: str, topic: Topic, redis_client: Any, connections: Connections
) -> None:
    """Also no retry that is due, and no delivery of the other one whose lease has ended before the last one's."""
    add(redis_client, store, range(4))
    before, after = Member("g", "before"), Member("g", "after")
    one, two, three = messages(connections.run(claim_group(topic, 0, before, 3, owner=Owner(1, "zk"))))
    failed = Outcomes(nacks=[Nack(one.id, 1)])
    connections.run(claim_group(topic, 0, before, 0, owner=Owner(1, "zk"), outcomes=failed))
    redis_client.xclaim(store, "g", "before", 0, [two.id], idle=61_000, justid=True)
    redis_client.xclaim(store, "g", "before", 0, [three.id], idle=1_000, justid=True)
    redis_client.hset(next(key for key in all_keys(topic) if key.startswith("group:")), "scan_at", 1)
    claim = claim_group(topic, 0, after, 10, owner=Owner(2, "zk"))
    reply = connections.run(claim)
    assert messages(reply) == []
    assert 50_000 < reply.next_due_ms - reply.now_ms <= 59_000
    redis_client.xclaim(store, "g", "before", 0, [three.id], idle=61_000, justid=True)
    found = messages(connections.run(claim))
    assert [(message.content, message.claim_score) for message in found] == [(b"0", 2), (b"1", 2), (b"2", 2), (b"3", 1)]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_redeliveries_and_new_entries_share_the_room(
    limit: int, store: str, topic: Topic, redis_client: Any, connections: Connections
) -> None:
    old = add(redis_client, store, ["old"] * 100)
    redis_client.xreadgroup("g", "gone", {store: ">"}, count=100)
    redis_client.xclaim(store, "g", "gone", 0, old, idle=10**8, justid=True)  # pyright: ignore[reportArgumentType]
    add(redis_client, store, ["new"] * 100)
    seen: list[bytes] = []
    while len(seen) < 200:
        page = messages(connections.run(claim_group(topic, 0, ME, limit)))
        assert 0 < len(page) <= limit
        seen += [message.content for message in page]
    first = seen[:100]
    assert 40 <= first.count(b"old") <= 60
    assert (seen.count(b"old"), seen.count(b"new")) == (100, 100)


def test_a_pass_over_many_pending_goes_in_bounded_steps_and_rests_until_a_lease_can_end(
    store: str, topic: Topic, redis_client: Any, connections: Connections
) -> None:
    # pitfalls 16, 28
    add(redis_client, store, ["x"] * 1_000)
    redis_client.xreadgroup("g", "holder", {store: ">"}, count=1_000)
    steps, reply = 0, None
    while reply is None or reply.next_due_ms <= reply.now_ms:
        reply = connections.run(claim_group(topic, 0, ME, 10))
        assert reply.messages == ()
        steps += 1
        assert steps < 20
    assert 2 <= steps <= 5  # 256 entries a step, two steps a claim
    assert 50_000 < reply.next_due_ms - reply.now_ms <= 60_000


def test_a_long_pass_that_finds_nothing_takes_its_time_and_does_not_hold_up_new_ones(
    store: str, topic: Topic, redis_client: Any, connections: Connections
) -> None:
    add(redis_client, store, ["x"] * 3_000)
    redis_client.xreadgroup("g", "holder", {store: ">"}, count=3_000)
    redis_client.xadd(store, {"content": "new"})
    reply = connections.run(claim_group(topic, 0, ME, 10))
    assert [claimed.content for claimed in reply.messages] == [b"new"]
    assert reply.now_ms < reply.next_due_ms <= reply.now_ms + 20

    def rest() -> bool:
        reply = connections.run(claim_group(topic, 0, ME, 10))
        assert reply.messages == ()
        return reply.next_due_ms > reply.now_ms + 30_000

    wait_until(rest)
    redis_client.xclaim(store, "g", "holder", 0, [redis_client.xrange(store, count=1)[0][0]], idle=70_000)
    redis_client.hset(next(key for key in all_keys(topic) if key.startswith("group:")), "scan_at", 1)
    reply = connections.run(claim_group(topic, 0, ME, 10))
    assert [claimed.content for claimed in reply.messages] == [b"x"]


def test_leases_are_noticed_in_time_after_a_clock_that_was_ahead(
    store: str, topic: Topic, redis_client: Any, connections: Connections
) -> None:
    group = next(key for key in all_keys(topic) if key.startswith("group:"))
    redis_client.xadd(store, {"content": "x"})
    ahead_ms = connections.run(streams.look(topic, [0], "g"))[0] + 3_600_000
    redis_client.hset(group, mapping={"scan_at": ahead_ms, "scan_cursor": "", "scan_start": 1, "scan_first": ahead_ms})
    reply = connections.run(claim_group(topic, 0, Member("g", "gone"), 10))
    assert [claimed.content for claimed in reply.messages] == [b"x"]
    assert 0 < reply.next_due_ms <= reply.now_ms + 60_000
    redis_client.xclaim(store, "g", "gone", 0, [messages(reply)[0].id], idle=61_000, justid=True)
    redis_client.hset(group, "scan_at", ahead_ms)
    now_ms, (due_ms,) = connections.run(streams.look(topic, [0], "g"))
    assert due_ms == now_ms
    reply = connections.run(claim_group(topic, 0, ME, 10))
    assert [claimed.content for claimed in reply.messages] == [b"x"]
    assert reply.next_due_ms <= reply.now_ms + 60_000


def test_a_clean_up_is_not_put_off_by_a_clock_that_was_ahead(
    topic: Topic, redis_client: Any, connections: Connections
) -> None:
    redis_client.xadd(f"{topic.name}_0", {"content": "x"})
    retention = Retention(max_length=0, approximate=False)
    assert connections.run(streams.trim(topic, 0, retention)).dropped == 1
    redis_client.hset(f"meta{{{topic.name}_0}}", "trimmed_at", 10**13 * 2)
    redis_client.xadd(f"{topic.name}_0", {"content": "y"})
    assert connections.run(streams.trim(topic, 0, retention)).dropped == 1
    redis_client.xadd(f"{topic.name}_0", {"content": "z"})
    assert connections.run(streams.trim(topic, 0, retention)).dropped == 0


def test_a_redrive_of_what_is_gone_appends_a_copy_that_others_pass_over(
    topic: Topic, redis_client: Any, connections: Connections
) -> None:
    names = seed(redis_client, topic)
    connections.run(streams.join(topic, 0, "h", "new"))
    answers = connections.run(dead.redrive_entries(topic, 0, "g", [names.dead, names.gone, "1-1"]))
    assert answers == [Redriven.DONE, Redriven.DONE, Redriven.ABSENT]
    assert messages(connections.run(claim_group(topic, 0, Member("h", "x"), 10))) == []
    assert connections.run(streams.group_stats(topic, 0, "h")).totals["skipped"] == 1
    found = messages(connections.run(claim_group(topic, 0, ME, 10, owner=OWNER)))
    again = {message.id.decode(): message for message in found}
    assert again[names.dead].claim_score == 1
    assert [message.content for message in found].count(b"x") == 1


def test_a_redrive_of_what_nothing_is_left_of_takes_it_off_the_dead(
    topic: Topic, redis_client: Any, connections: Connections
) -> None:
    """A redrive of all met it again and again."""
    names = seed(redis_client, topic)
    keys = group_keys(topic.name, 0, "g")
    assert redis_client.hdel(keys.dead_body, names.gone) == 1
    assert connections.run(dead.redrive_entries(topic, 0, "g", [names.gone])) == [Redriven.ABSENT]
    assert redis_client.zscore(keys.dead, names.gone) is None
    assert not redis_client.hexists(keys.reason, names.gone)


def test_large_entries_are_read_few_at_a_time_though_the_bound_was_lowered_since(
    topic: Topic, connections: Connections
) -> None:
    """The page that is read first is made of the definition's bounds, and these entries were sent under larger ones."""
    for _ in range(6):
        body = b"x" * (5 * 1_048_576)
        encoded = EncodedMessage(0, b"a", 0, body)
        connections.run(streams.sends(topic)(0, [encoded], detailed=False))
    lowered = topic.changed(max_body_bytes=1_000)
    for _ in range(6):
        assert len(messages(connections.run(claim_group(lowered, 0, ME, 100)))) == 1
