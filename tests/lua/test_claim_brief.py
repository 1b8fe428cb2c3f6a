"""The brief claim does what the long one does: each history runs on two slots, of which one knows only the long one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import chain, product
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from rmq import Owner, TopicType
from rmq.errors import CoordinationError, ScriptFailedError
from tests.conftest import MakeTopic
from tests.support.core import (
    SETTLE_ONLY,
    Ack,
    ClaimPart,
    ClaimReply,
    EncodedMessage,
    Nack,
    Outcomes,
    ScriptLibrary,
    WholeClaim,
)
from tests.support.core import (
    sends as sending,
)
from tests.support.one_slot import claim_slot, claim_slots
from tests.support.servers import RedisServer
from tests.support.slots import (
    CLOCK_KEY,
    DUMP_SHA,
    READ_FAKE_CLOCK,
    T0,
    SlotState,
    SlotUnderTest,
    dump_keys,
    forget_topic,
    scripts_under_test,
    with_hints,
)

LEASE_MS = 3_000
MAX_RETRIES = 2
SLOTS = 4
KINDS = [TopicType.PRIORITY, TopicType.FIXED_TIME]
NAMES = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i", b"j", b"k", b"l"]
all_kinds = pytest.mark.parametrize("kind", KINDS)

MakePair = Callable[[TopicType], tuple[SlotUnderTest, SlotUnderTest]]
MakeBrief = Callable[..., SlotUnderTest]


@cache
def long_only() -> ScriptLibrary:
    """The scripts without the brief claim."""
    never = "local function brief_settlement() end\n"
    return scripts_under_test(ScriptLibrary, READ_FAKE_CLOCK, never)


@cache
def brief_only() -> ScriptLibrary:
    """The scripts in which no long claim comes to its end."""
    broken = "local function sweep() return redis.call('SET', 'x', 1, 'a long claim') end\n"
    return scripts_under_test(ScriptLibrary, READ_FAKE_CLOCK, broken)


def settings_of(kind: TopicType) -> dict[str, Any]:
    ties = {} if kind.timed else {"ties": "oldest"}
    return {"lease": timedelta(milliseconds=LEASE_MS), "max_retries": MAX_RETRIES, "slots": 4, **ties}


@pytest.fixture
def make_pair(make_topic: MakeTopic, redis_url: str) -> Iterator[MakePair]:
    """Return two slots alike, of which the second makes no brief claims. All examples share them: each empties them."""
    made: dict[TopicType, tuple[SlotUnderTest, SlotUnderTest]] = {}

    def make(kind: TopicType) -> tuple[SlotUnderTest, SlotUnderTest]:
        if kind not in made:
            brief, long = (
                SlotUnderTest(redis_url, make_topic(kind, **settings_of(kind)), scripts)
                for scripts in (scripts_under_test(ScriptLibrary, READ_FAKE_CLOCK), long_only())
            )
            made[kind] = brief, long
        return made[kind]

    yield make
    for slot in chain.from_iterable(made.values()):
        slot.close()


class _Pair:
    """Two slots, to which the same is done."""

    def __init__(self, slots: tuple[SlotUnderTest, SlotUnderTest]) -> None:
        self.slots = slots
        self.timed = slots[0].topic.type.timed
        for slot in slots:
            forget_topic(slot.client, slot.topic.name)
        self.now_ms = T0
        slots[0].set_clock(T0)
        slots[0].state()  # which loads DUMP
        self.held: list[Ack] = []
        self.claims: list[WholeClaim] = []

    def both(self, do: Callable[[SlotUnderTest], Any]) -> Any:
        first, second = (do(slot) for slot in self.slots)
        assert first == second
        with self.slots[0].client.pipeline(transaction=False) as pipe:
            for slot in self.slots:
                pipe.evalsha(DUMP_SHA, len(names := dump_keys(slot.keys)), *names)
            replies = pipe.execute()
        if replies[0] != replies[1]:  # it may be the order of fields
            plain, long = (slot.state() for slot in self.slots)
            assert (plain, plain.clock) == (long, long.clock)
            bounds = [slot.client.hget(slot.keys.meta, "body_bound") for slot in self.slots]
            assert bounds[0] == bounds[1]
        return first

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.slots[0].client.set(CLOCK_KEY, self.now_ms)

    def send(self, values: dict[bytes, int], bodies: bool = False) -> None:
        """Send contents with values from 1 to 3; with bodies, the third value has none."""
        encoded = [
            EncodedMessage(
                0, name, self.now_ms + 7 * v if self.timed else v, b"%d" % self.now_ms if bodies and v < 3 else None
            )
            for name, v in values.items()
        ]
        self.both(lambda slot: slot.run(with_hints(sending.send_calls(slot.topic)(0, encoded, False))))

    def claim(self, limit: int, outcomes: Outcomes, joined: bool) -> None:
        def do(slot: SlotUnderTest) -> ClaimReply[Any]:
            if not joined:
                return slot.run(claim_slot(slot.topic, 0, limit, outcomes))
            parts = [ClaimPart(1, SETTLE_ONLY), ClaimPart(0, limit or SETTLE_ONLY, outcomes)]
            _, reply = slot.run(claim_slots(slot.topic, parts))
            assert isinstance(reply, ClaimReply)
            return reply

        reply: ClaimReply[Any] = self.both(do)
        gone = {*outcomes.acks, *((nack.content, nack.claim_score) for nack in outcomes.nacks)}
        scores = {score for score, _ in outcomes.whole} - set(reply.unmatched)
        self.held = [each for each in self.held if each not in gone and each[1] not in scores]
        self.claims = [each for each in self.claims if each not in outcomes.whole]
        if found := [(message.content, message.claim_score) for message in reply.messages]:
            self.held += found
            if len(alike := {score for _, score in found}) == 1:
                self.claims.append((alike.pop(), len(found)))

    def outcomes(self, data: st.DataObject) -> Outcomes:
        """Draw what a claim settles: mostly what a brief one may."""
        kind = data.draw(st.sampled_from(["none", "ack", "ack", "acks", "whole", "whole", "nack"]))
        if kind == "whole" and self.claims:
            return Outcomes(whole=[data.draw(st.sampled_from(self.claims))])
        if kind == "none" or not self.held:
            return Outcomes()
        content, score = data.draw(st.sampled_from(self.held))
        if kind == "nack":
            return Outcomes(nacks=[Nack(content, score, "retry", data.draw(st.sampled_from([0, 1_500])), "E", "m")])
        return Outcomes(acks=self.held[:3] if kind == "acks" else [(content, score)])


@pytest.mark.slow
@all_kinds
@given(data=st.data())
def test_brief_claims_do_what_long_ones_do(make_pair: MakePair, kind: TopicType, data: st.DataObject) -> None:
    pair = _Pair(make_pair(kind))
    sends = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), max_size=12)
    pauses = st.sampled_from([1, 1, 1, 1, 2, 5, 5, 8, 8, 30, 0, 0, 0, 200, LEASE_MS, LEASE_MS + 1, 61_000, -3, -1_500])
    bodies = data.draw(st.booleans())
    pair.send({NAMES[0]: 1}, bodies)
    pair.advance(10)
    pair.claim(1, Outcomes(), False)  # what the first claim of a slot notes is there
    for _ in range(data.draw(st.integers(1, 20))):
        if sent := data.draw(sends):
            pair.send(sent, bodies)
        pair.advance(data.draw(pauses))
        if pair.held and data.draw(st.integers(0, 9)) == 0:
            index = data.draw(st.integers(0, len(pair.held) - 1))
            [score] = pair.both(lambda slot, index=index: slot.extend(pair.held[index])).claim_scores
            if score is not None:
                pair.held[index] = pair.held[index][0], score
        limit = data.draw(st.sampled_from([0, 1, 1, 2, 4, 7, 8, 9, 100]))
        pair.claim(limit, pair.outcomes(data), data.draw(st.booleans()))


FAILURE = {"first_ms": "1", "last_ms": "2", "type": "ValueError", "message": "no"}
NOW = T0 * 1000
"""A claim score of now, without the retries left."""

STRANGE: dict[str, tuple[SlotState, dict[str, Any]]] = {
    "rolled back": (SlotState(store={b"a": 1}), {}),
    "rolled back behind another": (SlotState(store={b"a": 2, b"b": 10**15}), {}),
    "not due yet": (SlotState(store={b"a": T0 + 1}), {}),
    "another one not due yet": (SlotState(store={b"a": T0, b"b": T0 + 1}), {}),
    "below all stamps": (SlotState({b"a": T0}, {b"b": T0}), {}),
    "above all stamps": (SlotState({b"a": T0}, {b"b": NOW + 10**12}), {}),
    "above all stamps, behind another": (
        SlotState({b"a": T0}, {b"b": NOW - 1_000, b"c": NOW + 10**12}, clock={"stamp": str(T0 - 60_000)}),
        {},
    ),
    "a part of a claim": (SlotState({b"a": T0}, {b"b": NOW - 1_000, b"c": NOW - 1_000}), {"whole": [(NOW - 1_000, 1)]}),
    "more than a claim": (SlotState({b"a": T0}, {b"b": NOW - 1_000}), {"whole": [(NOW - 1_000, 2)]}),
    "a longer lease": (SlotState({b"a": T0}, {b"b": NOW - 4_000_000}, clock={"lease": "5000"}), {}),
    "a longer lease that runs": (SlotState({b"a": T0}, {b"b": NOW - 1_000}, clock={"lease": "5000"}), {}),
    "a shorter lease": (SlotState({b"a": T0}, {b"b": NOW - 2_500_000}, clock={"lease": "2000"}), {}),
    "another lease, and nothing in flight": (SlotState({b"a": T0, b"b": T0}, clock={"lease": "5000"}), {}),
    "stamps ahead of the clock": (SlotState({b"a": T0, b"b": T0}, clock={"stamp": f"{T0 + 5} {T0}"}), {}),
    "stamps ahead by a second": (SlotState({b"a": T0, b"b": T0}, clock={"stamp": f"{T0 + 999} {T0}"}), {}),
    "stamps ahead by more": (SlotState({b"a": T0, b"b": T0}, clock={"stamp": f"{T0 + 1_000} {T0}"}), {}),
    "stamps ahead of a clock that was set back": (
        SlotState({b"a": T0}, {b"b": NOW - 1_000}, clock={"stamp": f"{T0 + 905} {T0 + 900}"}),
        {},
    ),
    "stamps ahead, and a score above all of them": (
        SlotState({b"a": T0}, {b"b": NOW - 1_000, b"c": NOW + 10**12}, clock={"stamp": f"{T0 + 5} {T0 - 60_000}"}),
        {},
    ),
    "an odd clock": (SlotState({b"a": T0}, clock={"stamp": f"{T0 - 5} {T0 - 5} 1000"}), {}),
    "a search that goes on": (SlotState({b"a": T0, b"b": T0, b"c": T0}), {"start": 1}),
    "paused": (SlotState({b"a": T0}, owner={"paused": "1"}), {}),
    "a newer epoch": (SlotState({b"a": T0}, owner={"epoch": "5", "ensemble": "zk"}), {"owner": Owner(6, "zk")}),
    "an older epoch": (SlotState({b"a": T0}, owner={"epoch": "7", "ensemble": "zk"}), {"owner": Owner(6, "zk")}),
    "an empty content": (SlotState({b"": T0 - 1, b"b": T0, b"c": T0}), {}),
    "bodies": (SlotState({b"a": T0, b"b": T0}, body={b"a": b"1"}), {}),
    "a body that is too large": (SlotState({b"a": T0, b"b": T0}, body={b"b": b"1" * 4_097}), {}),
    "a fresh copy with a body": (
        SlotState({b"a": T0, b"b": T0}, {b"b": NOW - 1_000}, body={b"b": b"1"}),
        {"acks": [(b"b", NOW - 1_000)]},
    ),
    "the last body": (SlotState({b"a": T0}, {b"b": NOW - 1_000}, body={b"b": b"1"}), {"acks": [(b"b", NOW - 1_000)]}),
    "bodies of a whole claim": (
        SlotState({b"a": T0}, {b"b": NOW - 1_000}, body={b"b": b"1"}),
        {"whole": [(NOW - 1_000, 1)]},
    ),
    "bodies and two retries": (
        SlotState({b"a": T0}, retry={b"b": T0 + 9_000, b"c": T0 + 9_000}, body={b"a": b"1"}),
        {},
    ),
    "a retry and a failure": (SlotState({b"a": T0}, retry={b"b": T0 + 9_000}, error={b"b": FAILURE}), {}),
    "a retry": (SlotState({b"a": T0}, retry={b"b": T0 // 1000 * 1000 + 1}), {}),
}
"""What a slot holds that was claimed from a millisecond ago, and what its next claim says besides."""


@all_kinds
@pytest.mark.parametrize("case", STRANGE)
def test_what_is_not_usual(make_pair: MakePair, kind: TopicType, case: str) -> None:
    state, said = STRANGE[case]
    pair = _Pair(make_pair(kind))
    clock = {"stamp": str(T0 - 1), "lease": str(LEASE_MS), **state.clock}
    pair.both(lambda slot: slot.seed(replace(state, clock=clock, totals={"delivered": 1})).store)
    pair.both(lambda slot: slot.client.hset(slot.keys.meta, "body_bound", 4096))
    for limit in (2, 100, 2):
        pair.both(lambda slot, limit=limit: _answer(slot, limit, said))
        pair.advance(1)


def _answer(slot: SlotUnderTest, limit: int, said: dict[str, Any]) -> object:
    try:
        return slot.claim(limit, **said)
    except CoordinationError as error:
        return type(error)


@pytest.mark.parametrize("bodies", [False, True])
@pytest.mark.parametrize("most_bytes", [1, 2, 3, 4, 5, 8, 12, 16])
def test_slots_of_a_call_share_its_bytes(make_pair: MakePair, most_bytes: int, bodies: bool) -> None:
    pair = _Pair(make_pair(TopicType.FIXED_TIME))

    def claimed(slot: SlotUnderTest, most_bytes: int) -> list[object]:
        parts = [ClaimPart(number, 2) for number in range(SLOTS)]
        return list(slot.run(claim_slots(slot.topic, parts, most_bytes)))

    for contents in ([b"w"], [b"xx", b"yy", b"zz"]):
        for slot, number in product(pair.slots, range(SLOTS)):
            body = b"1234" if bodies else None
            encoded = [EncodedMessage(number, content, pair.now_ms + 1 + n, body) for n, content in enumerate(contents)]
            slot.run(sending.send_calls(slot.topic)(number, encoded, False))
        pair.advance(10)
        most = 1_000 if contents == [b"w"] else most_bytes
        pair.both(lambda slot, most=most: claimed(slot, most))


def test_where_bytes_are_used_up_few_contents_are_read(redis_url: str, make_topic: MakeTopic) -> None:
    slot = SlotUnderTest(redis_url, make_topic(TopicType.FIXED_TIME, slots=8))
    for number in range(8):
        encoded = [EncodedMessage(number, b"%d" % n * 2_048, T0 + 1, None) for n in range(10, 40)]
        slot.run(sending.send_calls(slot.topic)(number, encoded))
    slot.advance(5)
    call = claim_slots(slot.topic, [ClaimPart(each, 100) for each in range(8)], most_bytes=100_000)
    with slot.client.monitor() as monitor:
        replies = slot.run(call)
        slot.client.echo("that is all")
        commands = list(iter(lambda: (monitor.next_command() or {})["command"], "ECHO that is all"))
    slot.close()
    peeks = [each.split()[3] for each in commands if each.startswith(f"ZRANGE {slot.topic.name}_")]
    assert [len(reply.messages) for reply in replies if isinstance(reply, ClaimReply)] == [24, *[0] * 7]
    assert peeks == ["8", *["1"] * 7]


def test_ties_stand_in_no_order_of_contents(make_topic: MakeTopic, redis_url: str) -> None:
    seen: set[bytes] = set()
    slot = SlotUnderTest(redis_url, make_topic(TopicType.PRIORITY, ties="any"))
    slot.send(*((name, 500) for name in NAMES[:6]))
    for _ in range(60):
        slot.advance(1)
        [found] = slot.claim(1).messages
        slot.send((found.content, 500))
        slot.advance(1)
        seen.add(found.content)
        slot.claim(0, acks=[(found.content, found.claim_score)])
    slot.close()
    assert seen == set(NAMES[:6])


def test_what_outlives_its_time_is_not_claimed(make_topic: MakeTopic, redis_url: str) -> None:
    slot = SlotUnderTest(redis_url, make_topic(TopicType.FIXED_TIME, ttl=timedelta(seconds=5)))
    for _ in range(3):
        slot.send((b"a", slot.now_ms + 1))
        slot.advance(2)
        reply = slot.claim(4)
        assert named(reply) == [b"a"]
        slot.advance(2)
        slot.claim(4, acks=tokens(reply))
    slot.send((b"b", slot.now_ms + 1))
    slot.advance(5_002)
    assert named(slot.claim(4)) == []
    assert slot.state().dead.keys() == {b"b"}
    slot.close()


def test_a_full_redis_is_drained(brief: MakeBrief) -> None:
    with RedisServer() as server:
        slot = brief(TopicType.PRIORITY, server.url)
        slot.seed(SlotState(store={b"a": 10**15, b"b": 10**14}))
        slot.client.script_load(brief_only().text("claim"))
        server.config_set("maxmemory", 1)
        first = slot.claim(1)
        assert named(first) == [b"a"]
        server.config_set("maxmemory", 0)
        slot.advance(1)
        server.config_set("maxmemory", 1)
        assert named(slot.claim(4, acks=tokens(first))) == [b"b"]


@pytest.fixture
def brief(make_topic: MakeTopic, redis_url: str) -> Iterator[MakeBrief]:
    """Make a slot that has been claimed from before, and whose claims have to be brief."""
    made: list[SlotUnderTest] = []

    def make(kind: TopicType, url: str = redis_url) -> SlotUnderTest:
        slot = SlotUnderTest(url, make_topic(kind, **settings_of(kind)), brief_only())
        made.append(slot)
        clock = {"stamp": str(T0 - 1), "lease": str(LEASE_MS)}
        slot.client.hset(slot.keys.meta, mapping={**clock, "body_bound": "4096"})
        return slot

    yield make
    for slot in made:
        slot.close()


def score_of(slot: SlotUnderTest, number: int) -> int:
    return T0 - 100 + number if slot.topic.type.timed else 10**15 - number


def named(reply: ClaimReply[Any]) -> list[bytes]:
    return [message.content for message in reply.messages]


def tokens(reply: ClaimReply[Any]) -> list[Ack]:
    return [(message.content, message.claim_score) for message in reply.messages]


@all_kinds
@pytest.mark.parametrize(("there", "limit"), [(0, 4), (1, 1), (1, 4), (3, 1), (4, 4), (8, 8), (5, 500), (8, 500)])
@pytest.mark.parametrize("bodies", [False, True])
def test_few_messages_are_claimed_briefly(
    brief: MakeBrief, kind: TopicType, there: int, limit: int, bodies: bool
) -> None:
    slot = brief(kind)
    store = {name: score_of(slot, number) for number, name in enumerate(NAMES[:there])}
    slot.seed(SlotState(store=store, body={name: b"of " + name for name in store} if bodies else {}))
    reply = slot.claim(limit)
    assert named(reply) == NAMES[: min(there, limit)]
    assert [each.body for each in reply.messages] == [b"of " + name if bodies else None for name in named(reply)]


@all_kinds
@pytest.mark.parametrize(("number", "bodies"), [(1, False), (1, True), (2, False), (8, False)])
def test_a_claim_before_is_acked_briefly(brief: MakeBrief, kind: TopicType, number: int, bodies: bool) -> None:
    slot = brief(kind)
    store = {name: score_of(slot, n) for n, name in enumerate(NAMES[: number + 1])}
    slot.seed(SlotState(store=store, body={name: b"of " + name for name in store} if bodies else {}))
    first = slot.claim(number)
    slot.advance(1)
    outcomes: dict[str, Any] = {"acks": tokens(first)} if number == 1 else {"whole": [(tokens(first)[0][1], number)]}
    second = slot.claim(4, **outcomes)
    assert named(second) == NAMES[number : number + 1]
    assert slot.state().prepare == dict(tokens(second))
    assert slot.state().totals["acked"] == number
    slot.advance(LEASE_MS * 2)  # leases are left to the next claim
    settled = slot.run(claim_slot(slot.topic, 0, SETTLE_ONLY, Outcomes(tokens(second))))
    assert settled == ClaimReply(slot.now_ms, 0, 0, 0, (), ())
    assert slot.state().prepare == {}


@all_kinds
@pytest.mark.parametrize("bodies", [False, True])
def test_claims_of_one_millisecond_are_brief(brief: MakeBrief, kind: TopicType, bodies: bool) -> None:
    slot = brief(kind)
    store = {name: score_of(slot, number) for number, name in enumerate(NAMES)}
    slot.seed(SlotState(store=store, body={name: b"of " + name for name in store} if bodies else {}))
    before: list[Ack] = []
    for number, name in enumerate(NAMES):
        reply = slot.claim(1, acks=before)
        before = tokens(reply)
        assert before == [(name, (T0 + number) * 1000 + MAX_RETRIES)]
    assert slot.state().clock["stamp"] == f"{T0 + len(NAMES) - 1} {T0}"
    slot.advance(60)
    assert named(slot.claim(1, acks=before)) == []
    assert slot.state().totals["acked"] == len(NAMES)


@all_kinds
def test_nine_messages_are_not_claimed_briefly(brief: MakeBrief, kind: TopicType) -> None:
    slot = brief(kind)
    slot.seed(SlotState(store={name: score_of(slot, number) for number, name in enumerate(NAMES[:9])}))
    with pytest.raises((ScriptFailedError, redis.ResponseError)):  # so the fixture does find long claims
        slot.claim(500)
