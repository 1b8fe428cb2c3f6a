"""What a call leaves undone because its bound is reached is told, and goes on until nothing is left."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from benchmarks.bounds import forgotten
from rmq import TopicType, WorkerInfo
from rmq.spark import calls as spark_calls
from rmq.spark.calls import Driver, Reading
from tests.conftest import MakeSlot, MakeTopic
from tests.support.core import (
    MAX_DEFINITION_BYTES,
    RESUME_BATCH,
    WORKER_INFOS_KEY,
    WORKERS_KEY,
    Call,
    ClaimPart,
    Connections,
    EncodedMessage,
    Member,
    Nack,
    Outcomes,
    claims,
    group_keys,
    read_workers,
    registry,
    sends,
    shared,
    stream_broker,
    streams,
)
from tests.support.one_slot import claim_group, claim_slot, settle_slot
from tests.support.slots import T0, SlotState

MIB = 1_048_576
EXPIRED, HELD = (T0 - 10**8) * 1000, T0 * 1000 + 5
ME = Member("g", "me")


def test_the_benchmark_of_bounds_forgets_no_script() -> None:
    assert forgotten() == []


@pytest.mark.parametrize("left", [0, 5])
def test_nacks_and_a_sweep_share_what_a_claim_may_do(left: int, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    expired = {b"e%03d" % number: EXPIRED + left for number in range(300)}
    held = {b"h%03d" % number: HELD for number in range(64)}
    slot.seed(SlotState(prepare=expired | held, store={b"s%04d" % number: 5_000 + number for number in range(600)}))
    nacks = [Nack(name, HELD, "retry", 60_000, "E", "m") for name in held]
    reply = slot.run(claim_slot(slot.topic, 0, 1_000, outcomes=Outcomes(nacks=nacks)))
    assert (reply.swept, len(reply.messages)) == (32, 250)
    assert 0 < reply.next_due_ms <= reply.now_ms, "there is more to do at once"
    swept = [slot.claim(0).swept for _ in range(4)]
    assert swept == [96, 96, 76, 0]
    state = slot.state()
    assert len(state.dead) == (0 if left else 300)
    assert state.unaccounted == 0


def test_each_slot_of_a_joined_claim_sweeps_something(make_topic: MakeTopic, connections: Connections) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    for slot in range(4):
        connections.run(
            sends.send_calls(topic)(slot, [EncodedMessage(slot, b"%d" % n, 5_000, None) for n in range(60)])
        )
    shorter = {slot: connections.run(claim_slot(topic, slot, 60)).messages for slot in range(4)}
    for slot, held in shorter.items():
        nacks = [Nack(each.content, each.claim_score, "retry", 1) for each in held]
        connections.run(settle_slot(topic, slot, Outcomes(nacks=nacks)))
    call = claims.queue_claims(topic)([ClaimPart(slot, 0) for slot in range(4)])
    swept = 0
    for _ in range(10_000):
        replies = connections.run(call)
        swept += sum(reply.swept for reply in replies)  # pyright: ignore
        if swept == 240:
            break
    assert swept == 240


def test_large_entries_behind_small_ones_are_read_in_parts(make_topic: MakeTopic, connections: Connections) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    connections.run(streams.join(topic, 0, "g", "all"))
    small = [EncodedMessage(0, b"s%d" % number, 0, None) for number in range(100)]
    connections.run(streams.sends(topic)(0, small, False))
    for number in range(20):
        connections.run(streams.sends(topic)(0, [EncodedMessage(0, b"%d" % number, 0, b"x" * MIB)], False))
    seen: list[int] = []
    while sum(seen) < 120:
        reply = connections.run(claim_group(topic, 0, ME, 1_000))
        seen.append(sum(len(each.body or b"") >= MIB for each in reply.messages))
        assert seen[-1] <= 9
        if reply.messages == ():
            break
    assert sum(seen) == 20
    assert len(connections.run(streams.read_range(topic, 0, "-", "+", 1_000, down=False))) <= 109


def test_long_definitions_are_read_in_parts(
    redis_client: redis.Redis, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "TOPICS_KEY", "t-long-topics")
    names = [b"t%02d" % number for number in range(50)]
    redis_client.hset("t-long-topics", mapping=dict.fromkeys(names, b"x" * MAX_DEFINITION_BYTES))
    try:
        call = Call(
            "registry_read", ("t-long-topics",), [MAX_DEFINITION_BYTES, *names], lambda reply: reply, True, "t", 0
        )
        assert len(connections.run(call)) == 16
        found = registry.Registry(connections).definitions()
        assert [each.name.encode() for each in found.unreadable] == names
    finally:
        redis_client.delete("t-long-topics")


def test_long_reports_of_workers_are_read_in_parts(redis_client: redis.Redis, connections: Connections) -> None:
    redis_client.delete(WORKERS_KEY, WORKER_INFOS_KEY)
    info = WorkerInfo("", "h" * 200_000, 1, 2, 0, 0, True, ()).to_json()
    names = [f"w{number}" for number in range(7)]
    try:
        for name in names:
            connections.run(shared.worker_beat(name, info, 60_000))
        first, rest = connections.run(shared.workers())
        assert (len(first), len(rest)) == (1, 6)
        assert [each.name for each in read_workers(connections)] == names
        redis_client.hdel(WORKER_INFOS_KEY, *rest)
        assert connections.run(shared.workers(rest)) == ([], []), "they have left meanwhile"
    finally:
        redis_client.delete(WORKERS_KEY, WORKER_INFOS_KEY)


def test_what_a_stream_claim_does_beside_is_bounded_in_all(
    redis_client: redis.Redis, make_topic: MakeTopic, connections: Connections
) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, max_retries=0)
    connections.run(streams.join(topic, 0, "g", "all"))
    for part in range(2):
        messages = [EncodedMessage(0, b"%d %d" % (part, number), 0, None) for number in range(400)]
        connections.run(streams.sends(topic)(0, messages, False))
    held = connections.run(claim_group(topic, 0, ME, 400)).messages
    ids: Any = [each.id for each in held]
    own = group_keys(topic.name, 0, "g")
    redis_client.xclaim(f"{topic.name}_0", "g", "me", 0, ids[:300], idle=10**8, justid=True)
    nacks = [Nack(each, 1, "bury", 0, "E", "m") for each in ids[300:364]]
    redis_client.hdel(own.group, "scan_at")
    reply = connections.run(claim_group(topic, 0, ME, 1_000, outcomes=Outcomes(nacks=nacks)))
    assert (len(reply.messages), reply.next_due_ms <= reply.now_ms) == (250, True)
    dead, new = [redis_client.zcard(own.dead)], 250
    for _ in range(3):
        new += len(connections.run(claim_group(topic, 0, ME, 1_000)).messages)
        dead.append(redis_client.zcard(own.dead))
    assert (dead, new) == ([65, 129, 193, 257], 400)


def test_what_an_earlier_process_held_is_given_back_in_parts(make_topic: MakeTopic, connections: Connections) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    connections.run(streams.join(topic, 0, "g", "all"))
    messages = [EncodedMessage(0, b"%d" % number, 0, None) for number in range(2 * RESUME_BATCH + 10)]
    connections.run(streams.sends(topic)(0, messages, False))
    connections.run(claim_group(topic, 0, ME, 1_000))
    assert stream_broker.resume(connections, topic, ME, [0]) == len(messages)


@pytest.mark.parametrize("bodies", [False, True])
def test_the_commands_of_a_replay_do_not_grow_with_the_chunk(bodies: bool, make_slot: MakeSlot) -> None:
    numbers: list[int] = []
    for size in (20, 400):
        slot = make_slot(TopicType.PRIORITY, max_retries=1)
        names = [b"m%03d" % number for number in range(size)]
        slot.seed(SlotState(store=dict.fromkeys(names, 1), body=dict.fromkeys(names, b"body") if bodies else {}))
        slot.run(spark_calls.read(slot.topic, Reading(Driver("q", 1), 1, size, 10, True), 0, 0, size))
        slot.client.config_resetstat()
        replay = spark_calls.read(slot.topic, Reading(Driver("q", 2), 1, size, 10, True), 0, 0, size)
        assert slot.run(replay).buried == size
        stats = slot.client.info("commandstats")
        numbers.append(sum(each["calls"] for name, each in stats.items() if name != "cmdstat_hexists"))
        assert slot.state().unaccounted == 0
    assert numbers[0] == numbers[1]
