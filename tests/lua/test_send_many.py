"""Sends to several slots in one call: each slot fares as with a call of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis

from rmq import SendResult, Topic, TopicType, WhenFull
from rmq.errors import (
    BacklogFullError,
    FixedTimePassedError,
    MemoryFullError,
    ReplyLostError,
    RmqError,
    ScriptFailedError,
)
from tests.conftest import MakeSlot
from tests.lua.cases import FULL, LIVE
from tests.support.core import (
    Batch,
    Call,
    Connections,
    EncodedMessage,
    PartlySent,
    QueueSends,
    not_executed,
    parse_url,
    send_calls,
    slot_keys,
)
from tests.support.slots import T0, SlotState, SlotUnderTest, scripts_under_test, with_hints

KINDS: list[tuple[TopicType, dict[str, Any]]] = [
    (TopicType.RANGE_MERGE, {}),
    (TopicType.FIXED_TIME, {}),
    (TopicType.PRIORITY, {}),
    (TopicType.PRIORITY, {"ties": "oldest"}),
]
IDS = ["range", "fixed", "priority", "aged"]
AHEAD = 10**6


def part(topic: Topic, slot: int, *messages: tuple[bytes, int, bytes | None]) -> Batch:
    """Return messages of a slot, each with a number that is its priority, or how far its time is from now."""
    base = T0 if topic.type is TopicType.FIXED_TIME else 0
    return Batch.of([EncodedMessage(slot, content, base + value, body) for content, value, body in messages])


def many(slot: SlotUnderTest, parts: Sequence[Batch], detailed: bool = False) -> Call[list[SendResult | RmqError]]:
    return with_hints(QueueSends(slot.topic).joined(parts, detailed))


MESSAGES = [
    [(b"one", 5_000, None)],
    [(b"due", 5_000, None)],
    [(b"due", 7_000, b"body"), (b"new", 5_000, None)],
    [(b"a", 9_000, None), (b"b", 5_000, b""), (b"a", 5_000, b"again")],
    [(b"%d" % number, 5_000 + number % 3, None) for number in range(16)],
]
FEW = SlotState(store={b"due": T0 - 5, b"early": 60})
TWIN = SlotState(store={b"due": T0 - 5}, prepare={b"due": LIVE, b"held": LIVE})


@pytest.mark.parametrize(("kind", "settings"), KINDS, ids=IDS)
@pytest.mark.parametrize("state", [SlotState(), FEW, TWIN, FULL], ids=["empty", "few", "twin", "full"])
@pytest.mark.parametrize("messages", MESSAGES)
@pytest.mark.parametrize("detailed", [False, True])
def test_a_slot_fares_as_with_a_call_of_its_own(
    kind: TopicType,
    settings: dict[str, Any],
    state: SlotState,
    messages: list[tuple[bytes, int, bytes | None]],
    detailed: bool,
    make_slot: MakeSlot,
) -> None:
    alone, joined = make_slot(kind, **settings), make_slot(kind, slots=1, **settings)
    for slot in (alone, joined):
        slot.seed(state)
    sent = part(alone.topic, 0, *messages)
    for _ in range(2):  # the second time the age of priorities is known, and it is safe to repeat
        expected = alone.run(with_hints(send_calls(alone.topic)(0, sent, detailed)))
        assert joined.run(many(joined, [sent], detailed)) == [expected]
        assert joined.state() == alone.state()


@pytest.mark.parametrize("settings", [{}, {"ties": "oldest"}], ids=["scores", "aged"])
def test_an_age_that_is_another_one_by_now_is_put_right(settings: dict[str, Any], make_slot: MakeSlot) -> None:
    alone, joined = make_slot(TopicType.PRIORITY, **settings), make_slot(TopicType.PRIORITY, slots=1, **settings)
    one, together = send_calls(alone.topic), QueueSends(joined.topic).joined
    for hours, value in ((0, 700), (5, 700), (0, 300), (999, 5)):
        for slot in (alone, joined):
            slot.advance(hours * 3_600_000)
        sent = part(alone.topic, 0, (b"c%d" % value, value, None), (b"same", 50, None))
        alone.run(one(0, sent))
        joined.run(together([sent]))
        assert joined.state().store == alone.state().store


@pytest.mark.parametrize(("kind", "settings"), KINDS, ids=IDS)
def test_each_slot_gets_its_own(kind: TopicType, settings: dict[str, Any], make_slot: MakeSlot) -> None:
    slot = make_slot(kind, slots=4, checked=False, **settings)
    parts = [
        part(slot.topic, 2, (b"a", 5_000, b"body of a"), (b"b", 6_000, None)),
        part(slot.topic, 0, (b"c", 7_000, None)),
        part(slot.topic, 3, (b"d", 8_000, None), (b"d", 9_000, b"body of d")),
    ]
    assert slot.run(many(slot, parts, True)) == [
        SendResult(2, 0, (True, True)),
        SendResult(1, 0, (True,)),
        SendResult(1, 1, (True, False)),
    ]
    for number, contents, bodies in (
        (0, [b"c"], []),
        (1, [], []),
        (2, [b"a", b"b"], [b"body of a"]),
        (3, [b"d"], [b"body of d"]),
    ):
        keys = slot_keys(slot.topic.name, number)
        found: Any = slot.client.zrange(keys.store, 0, -1)
        assert sorted(found) == contents
        assert slot.client.hvals(keys.body) == bodies
        assert slot.client.lrange(keys.wake, 0, -1) if contents else not slot.client.exists(keys.meta, keys.wake)


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize("name", ["store", "prepare", "meta", "body"])
def test_a_broken_slot_does_not_hold_up_the_others(broken: int, name: str, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, slots=2, checked=False)
    slot.client.set(getattr(slot_keys(slot.topic.name, broken), name), "foreign")
    parts = [part(slot.topic, number, (b"a", AHEAD, b"body")) for number in (0, 1)]
    results = slot.run(many(slot, parts))
    assert isinstance(results[broken], ScriptFailedError)
    assert "WRONGTYPE" in str(results[broken])
    assert getattr(results[broken], "slot", None) == broken
    assert results[1 - broken] == SendResult(1, 0)


def test_a_slot_that_refuses_stores_nothing_and_the_others_do(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, slots=4, max_backlog=8, checked=False)
    slot.client.zadd(slot_keys(slot.topic.name, 1).store, {b"x": T0, b"y": T0})
    parts = [
        part(slot.topic, 0, (b"a", AHEAD, None), (b"late", 0, None)),
        part(slot.topic, 1, (b"b", AHEAD, None)),
        part(slot.topic, 2, (b"c", AHEAD, None)),
        part(slot.topic, 3, (b"d", AHEAD, None), (b"e", AHEAD, None), (b"f", AHEAD, None)),
    ]
    past, full, stored, many_ = slot.run(many(slot, parts))
    assert isinstance(past, PartlySent)
    assert (past.new, past.merged, past.refused) == (1, 0, {1: "RMQ_PAST"})
    assert (isinstance(full, BacklogFullError) and full.room, isinstance(many_, BacklogFullError) and many_.room) == (
        0,
        2,
    )
    assert stored == SendResult(1, 0)
    sizes = [slot.client.zcard(slot_keys(slot.topic.name, number).store) for number in range(4)]
    assert sizes == [1, 2, 1, 0]
    with pytest.raises(FixedTimePassedError):  # of one slot it is the error of the call
        slot.run(many(slot, [part(slot.topic, 0, (b"late", 0, None), (b"later", -5, None))]))


@pytest.mark.parametrize("first", ["stored", "refused"])
def test_a_full_redis_refuses_all_and_stores_nothing(first: str, make_slot: MakeSlot) -> None:  # pitfall 9
    slot = make_slot(TopicType.FIXED_TIME, slots=2, checked=False)
    late = 0 if first == "refused" else AHEAD
    call = many(slot, [part(slot.topic, 0, (b"a", late, None)), part(slot.topic, 1, (b"b", AHEAD, None))])
    slot.run(many(slot, [part(slot.topic, 0, (b"x", AHEAD, None))]))  # loads it with the clock of the tests
    before = [slot.dump(), slot.client.keys(f"*{slot.topic.name}_1*")]
    slot.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(MemoryFullError, match="maxmemory"):
            slot.run(call)
    finally:
        slot.client.config_set("maxmemory", 0)
    assert [slot.dump(), slot.client.keys(f"*{slot.topic.name}_1*")] == before


def test_a_server_that_takes_no_writes_has_not_begun(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, slots=2, checked=False)
    late, timely = part(slot.topic, 0, (b"a", 0, None)), part(slot.topic, 1, (b"b", 10**12, None))
    call, text = many(slot, [late, timely]), scripts_under_test()["send"]
    slot.client.script_load(text.text)
    slot.client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(redis.ResponseError, match="NOREPLICAS") as caught:
            slot.client.evalsha(text.sha, len(call.keys), *call.keys, *call.args)
    finally:
        slot.client.config_set("min-replicas-to-write", 0)
    assert not_executed(str(caught.value))


def test_a_right_that_one_slot_lacks_within_the_script_is_its_own_trouble(redis_url: str, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, slots=4, checked=False)
    keys = slot_keys(slot.topic.name, 0)
    slot.client.zadd(keys.prepare, {b"a": slot.claim_score(2)})
    slot.client.hset(keys.body, b"a", b"its body")  # a fresh send without a body has to delete it
    slot.client.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "~*", "&*", "+@all", "-hdel")
    url = redis_url.replace("unix://", "unix://narrow:pw@", 1)
    limited = Connections(parse_url(url), scripts=scripts_under_test())
    try:
        parts = [part(slot.topic, number, (b"a", 5_000, None)) for number in range(4)]
        lost, *stored = limited.run(QueueSends(slot.topic).joined(parts))
    finally:
        limited.close()
    assert isinstance(lost, ReplyLostError)
    assert "may be partly stored" in str(lost)
    assert stored == [SendResult(1, 0)] * 3


@pytest.mark.parametrize(
    ("kind", "settings", "joins"),
    [
        *((kind, settings, True) for kind, settings in KINDS),
        (TopicType.RANGE_MERGE, {"ttl": "1m"}, True),
        (TopicType.PRIORITY, {"ttl": "1m"}, False),
        (TopicType.PRIORITY, {"max_backlog": 100}, True),
        (TopicType.PRIORITY, {"max_backlog": 100, "when_full": WhenFull.DROP}, False),
        (TopicType.STREAM, {}, False),
    ],
)
def test_topics_whose_sends_have_scripts_of_their_own_do_not_join(
    kind: TopicType, settings: dict[str, Any], joins: bool
) -> None:
    calls = send_calls(Topic("t", kind, slots=4, **settings))
    assert (isinstance(calls, QueueSends) and calls.joins) == joins
