"""PRIORITY with ties `any`: equal priorities are claimed in an order that does not depend on their contents."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from rmq import TopicType
from tests.conftest import MakeSlot, MakeTopic
from tests.lua.test_spark_scripts import ack as ack_chunk
from tests.lua.test_spark_scripts import contents as contents_of
from tests.lua.test_spark_scripts import read as read_chunk
from tests.stateful.tiers import chosen, in_order, place_of
from tests.support.claims import Claimed
from tests.support.core import ClaimPart, ClaimReply, Connections, EncodedMessage, Nack, Outcomes, sends
from tests.support.one_slot import claim_slot, claim_slots, settle_slot
from tests.support.slots import T0, SlotState, SlotUnderTest, scripts_under_test

SMALLEST, LARGEST = b"\x00", b"\xff" * 9
HELD = (T0 - 1_000) * 1000 + 16
MAX_RETRIES = 16


def names(messages: Sequence[Claimed]) -> list[bytes]:
    return [message.content for message in messages]


def done(reply: ClaimReply) -> list[tuple[bytes, int]]:
    return [(message.content, message.claim_score) for message in reply.messages]


# nobody starves


@pytest.mark.parametrize("limit", [1, 20, 199])
def test_under_a_load_that_never_ends_each_message_is_delivered(limit: int, make_slot: MakeSlot) -> None:
    """What was delivered is sent again at once, so that there are always 200 of one priority."""
    slot = make_slot(TopicType.PRIORITY)
    tier = [SMALLEST, LARGEST, *(b"m%03d" % number for number in range(198))]
    slot.send(*((content, 50) for content in tier))
    missing, reply = set(tier), slot.claim(0)
    for _ in range(3_000 // limit + 20):
        slot.advance(1)
        reply = slot.claim(limit, acks=done(reply))
        assert len(reply.messages) == limit
        missing -= set(names(reply.messages))
        slot.send(*((content, 50) for content in names(reply.messages)))
    assert missing == set()


@pytest.mark.parametrize("pause_ms", [1, 5, 89, 987, 1_000, 60_000])
@pytest.mark.parametrize("newer", [b"\xfe%06d", b"\x01%06d"])
def test_newer_messages_do_not_overtake_for_ever(newer: bytes, pause_ms: int, make_slot: MakeSlot) -> None:
    """Each round sends as many as it claims, all with larger or all with smaller bytes than what waits."""
    slot = make_slot(TopicType.PRIORITY)
    waiting = [b"a%02d" % number for number in range(90)]
    slot.send(*((content, 50) for content in [SMALLEST, LARGEST, *waiting]))
    missing, reply = {SMALLEST, LARGEST, *waiting}, slot.claim(0)
    for turn in range(100):
        slot.send(*((newer % (10 * turn + number), 50) for number in range(10)))
        slot.advance(pause_ms)
        reply = slot.claim(10, acks=done(reply))
        missing -= set(names(reply.messages))
    assert missing == set()


def test_retries_of_one_count_are_all_delivered(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    again = {SMALLEST, LARGEST, *(b"r%02d" % number for number in range(30))}
    slot.seed(SlotState(store=dict.fromkeys(again, 7)))
    missing = set(again)
    for _ in range(100):
        slot.advance(1)
        reply = slot.claim(4)
        assert {(m.store_score, m.claim_score % 1000) for m in reply.messages} == {(7, 6)}
        missing -= set(names(reply.messages))
        slot.nack(*(Nack(content, score, "release", 7) for content, score in done(reply)))
    assert missing == set()
    assert slot.state().store == dict.fromkeys(again, 7)


def test_each_message_is_once_the_first_of_a_claim_of_all(make_slot: MakeSlot) -> None:
    """Where a handler gives back what it can't handle in time, it must not be the same ones each time."""
    slot = make_slot(TopicType.PRIORITY)
    tier = [b"%d" % number for number in range(9)]
    slot.seed(SlotState(store=dict.fromkeys(tier, 50)))
    first: set[bytes] = set()
    for _ in range(100):
        slot.advance(1)
        reply = slot.claim(100)
        assert sorted(names(reply.messages)) == tier
        first.add(reply.messages[0].content)
        slot.nack(*(Nack(content, score, "release", 50) for content, score in done(reply)))
    assert first == set(tier)


@pytest.mark.parametrize("bodied", [False, True])
def test_where_bytes_end_a_claim_each_message_is_delivered(bodied: bool, make_slot: MakeSlot) -> None:
    """A tier that fits into the limit, but not into the bytes."""
    slot = make_slot(TopicType.PRIORITY)
    filler = b"" if bodied else b"x" * 400
    tier = [b"%02d" % number + filler for number in range(30)]
    body = b"y" * 400 if bodied else None
    slot.run(sends.send_calls(slot.topic)(0, [EncodedMessage(0, content, 50, body) for content in tier]))
    missing = set(tier)
    for _ in range(60):
        slot.advance(1)
        reply = slot.run(claim_slot(slot.topic, 0, 100, most_bytes=2_500))
        assert 1 <= len(reply.messages) <= 6
        assert slot.state().store.keys() == set(tier) - set(names(reply.messages))
        missing -= set(names(reply.messages))
        slot.nack(*(Nack(content, score, "release", 50) for content, score in done(reply)))
    assert missing == set()


def test_a_streaming_query_reads_each_message(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    tier = [SMALLEST, LARGEST, *(b"s%02d" % number for number in range(58))]
    slot.send(*((content, 50) for content in tier))
    missing = set(tier)
    for seq in range(1, 61):
        slot.advance(1)
        found = contents_of(read_chunk(slot, seq=seq, limit=10))
        assert len(found) == 10
        assert contents_of(read_chunk(slot, seq=seq, limit=10)) == found, "a batch stays the same"
        missing -= set(found)
        ack_chunk(slot, seq=seq)
        slot.send(*((content, 50) for content in found))
    assert missing == set()


def test_slots_that_are_claimed_from_together_turn_too(make_topic: MakeTopic, connections: Connections) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, ties="any")
    tier = [b"%02d" % number for number in range(20)]
    for slot in (0, 1):
        connections.run(sends.send_calls(topic)(slot, [EncodedMessage(slot, content, 50, None) for content in tier]))
    missing = {(slot, content) for slot in (0, 1) for content in tier}
    for _ in range(300):
        replies: Any = connections.run(claim_slots(topic, [ClaimPart(slot, 2) for slot in (0, 1)]))
        for slot, reply in enumerate(replies):
            missing -= {(slot, content) for content in names(reply.messages)}
            nacks = [Nack(content, score, "release", 50) for content, score in done(reply)]
            connections.run(settle_slot(topic, slot, Outcomes(nacks=nacks)))
        if not missing:
            break
    assert missing == set()


# what must hold as ever


def seeded(make_slot: MakeSlot, draw: random.Random) -> tuple[SlotUnderTest, SlotState]:
    """A slot with tiers of all sizes, some retries, and some of it in flight."""
    slot = make_slot(TopicType.PRIORITY)
    tiers = draw.sample([1, 2, 3, 5, 40, 255, 256, 257, 300, 700], draw.randint(1, 5))
    scores = draw.sample([2, 3, 16, 17, 18, 500, 2**53 - 2, 2**53 - 1], len(tiers))
    store = {
        b"%d %d" % (draw.randrange(10**6), number): score
        for score, size in zip(scores, tiers, strict=True)
        for number in range(size)
    }
    flying = draw.sample(sorted(store), len(store) // draw.choice([2, 5, 10])) if draw.random() < 0.5 else []
    waiting = draw.sample(sorted(set(store) - set(flying)), draw.choice([0, 0, 1]))
    state = SlotState(
        store=store, prepare=dict.fromkeys(flying, HELD), retry=dict.fromkeys(waiting, (T0 + 10**6) * 1000 + 1)
    )
    return slot, slot.seed(state)


@pytest.mark.parametrize("seed", range(60))
def test_tiers_are_in_order_and_only_what_was_taken_leaves(seed: int, make_slot: MakeSlot) -> None:
    draw = random.Random(seed)
    slot, before = seeded(make_slot, draw)
    free = {content: score for content, score in before.store.items() if content not in before.prepare}
    while True:
        slot.advance(draw.randint(0, 3))
        limit = draw.choice([1, 2, 30, 256, 257, 300, 600, 1_000])
        store, prepare = slot.state().store, slot.state().prepare
        reply = slot.claim(limit)
        taken, scores = names(reply.messages), [message.store_score for message in reply.messages]
        assert scores == sorted(free.values(), reverse=True)[:limit]
        assert all(free.pop(content) == score for content, score in zip(taken, scores, strict=True))
        state = slot.state()
        assert state.store == {content: score for content, score in store.items() if content not in taken}
        assert state.prepare == prepare | dict(done(reply))
        if len(store) <= 256 and taken:  # else a claim of more is read in pieces
            assert taken == chosen(store, prepare, limit, reply.messages[0].claim_score // 1000, MAX_RETRIES)
        if len(taken) < limit:
            assert free == {}
            return


@pytest.mark.parametrize("seed", range(20))
def test_what_does_not_fit_stays(seed: int, make_slot: MakeSlot) -> None:
    draw = random.Random(seed)
    slot = make_slot(TopicType.PRIORITY)
    sizes = {b"%d" % number: draw.choice([None, 0, 10, 900, 5_000]) for number in range(60)}
    scores = {content: draw.choice([50, 50, 50, 60, 70]) for content in sizes}
    messages = [
        EncodedMessage(0, content, scores[content], None if size is None else b"b" * size)
        for content, size in sizes.items()
    ]
    slot.run(sends.send_calls(slot.topic)(0, messages))
    left, order = set(sizes), list[int]()
    while left:
        slot.advance(1)
        most_bytes = draw.choice([100, 3_000, 20_000])
        reply = slot.run(claim_slot(slot.topic, 0, draw.choice([1, 7, 100]), most_bytes=most_bytes))
        taken = set(names(reply.messages))
        assert taken, "one message may have any size"
        assert taken <= left
        left -= taken
        assert slot.state().store.keys() == left
        assert len(taken) == 1 or sum(len(m.content) + len(m.body or b"") for m in reply.messages) <= most_bytes
        assert [len(m.body) if m.body is not None else None for m in reply.messages] == [
            sizes[m.content] for m in reply.messages
        ]
        order += [scores[m.content] for m in reply.messages]
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize("later_ms", range(5))
@pytest.mark.parametrize("free", [[0], [4_999], [0, 1, 2_500, 4_998, 4_999], [2_000, 2_001, 2_002]])
def test_a_search_that_resumes_finds_all_of_a_tier(free: list[int], later_ms: int, make_slot: MakeSlot) -> None:
    """A search that a bound has ended leaves nothing out, although later claims have other stamps."""
    slot = make_slot(TopicType.PRIORITY)
    slot.advance(later_ms)
    tier = {b"%04d" % number: 50 for number in range(5_000)}
    wanted = {b"%04d" % number for number in free}
    front = {b"front": 60, b"front too": 70}
    flying = [content for content in tier if content not in wanted]
    slot.seed(SlotState(store=tier | front, prepare=dict.fromkeys([*flying, *front], HELD)))
    found: list[bytes] = []
    start, claims = 0, 0
    while claims == 0 or start:
        slot.advance(1)
        reply = slot.claim(10, start=start)
        found += names(reply.messages)
        assert reply.resume == 0 or reply.next_due_ms <= reply.now_ms
        start, claims = reply.resume, claims + 1
        assert claims <= 7, "one more than in the order of the contents"
    assert sorted(found) == sorted(wanted)
    assert slot.state().store.keys() == {*flying, *front}


def test_what_leads_and_is_in_flight_is_not_searched_again(make_slot: MakeSlot) -> None:
    """Tiers that were seen whole stay behind a search that goes on."""
    slot = make_slot(TopicType.PRIORITY)
    front = {b"%04d" % number: 5_000 + number for number in range(1_500)}
    slot.seed(SlotState(store=front | {b"behind": 50}, prepare=dict.fromkeys(front, HELD)))
    first = slot.claim(1)
    assert (first.messages, first.resume > 1_000) == ((), True)
    assert names(slot.claim(1, start=first.resume).messages) == [b"behind"]


def test_a_waiting_retry_leaves_with_its_fresh_delivery(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    store = {b"%02d" % number: 50 for number in range(20)}
    slot.seed(SlotState(store=store, retry=dict.fromkeys(store, (T0 + 10**6) * 1000 + 3)))
    taken = names(slot.claim(7).messages)
    assert slot.state().retry.keys() == slot.state().store.keys() == store.keys() - set(taken)


# the choice


def test_the_contents_do_not_decide(make_slot: MakeSlot) -> None:
    """Two slots with other contents, and stamps alike: the same ranks are taken."""
    ranks: list[list[int]] = []
    for form in (b"%03d", b"zz%03d \xff"):
        slot = make_slot(TopicType.PRIORITY)
        tier = [form % number for number in range(100)]
        slot.seed(SlotState(store=dict.fromkeys(tier, 50)))
        ranks.append([tier.index(content) for _ in range(9) for content in names(slot.claim(3).messages)])
    assert ranks[0] == ranks[1]
    assert sorted(ranks[0]) != list(range(73, 100)), "the largest bytes would be first"


@pytest.mark.parametrize("stamp", [1, T0, T0 + 1, 2**26 - 5, 2**41, 9_007_199_254_740])
@pytest.mark.parametrize("size", [1, 2, 3, 200, 10_007])
def test_places_lie_within_the_tier_and_are_exact(stamp: int, size: int, make_slot: MakeSlot) -> None:
    place = place_of(stamp, size)
    assert 0 <= place < size
    function = re.search(r"^local function place_of.*?^end\n", scripts_under_test().text("claim"), re.M | re.S)
    assert function
    script = function[0] + "return string.format('%.0f', place_of({ stamp = tonumber(ARGV[1]) }, ARGV[2]))"
    found: Any = make_slot(TopicType.PRIORITY).client.eval(script, 0, stamp, size)
    assert int(found) == place


def test_all_places_are_equally_frequent() -> None:
    """Of 10,000 stamps in a row, or 1 s apart, each twentieth of a tier has its share."""
    for step in (1, 89, 1_000):
        counts = [0] * 20
        for turn in range(10_000):
            counts[place_of(T0 + turn * step, 20)] += 1
        assert all(400 < count < 600 for count in counts), counts


def test_the_order_of_the_model_holds_every_message_once() -> None:
    store = {b"%d" % number: number % 7 for number in range(100)}
    order = in_order(store, T0)
    assert sorted(order) == sorted(store)
    assert [store[content] for content in order] == sorted(store.values(), reverse=True)


# the price


def commands(slot: SlotUnderTest, limit: int) -> dict[str, int]:
    """The commands of a claim, and how often each was called."""
    slot.claim(0)
    slot.client.config_resetstat()
    slot.claim(limit)
    found: Any = slot.client.info("commandstats")
    return {name: each["calls"] for name, each in found.items() if "config" not in name}


@pytest.mark.parametrize("limit", [1, 100, 500])
def test_distinct_priorities_cost_no_more_commands(limit: int, make_slot: MakeSlot) -> None:
    slots = [make_slot(TopicType.PRIORITY, ties=ties) for ties in ("any", "oldest")]
    for slot in slots:
        slot.seed(SlotState(store={b"%d" % number: 2**40 + number for number in range(600)}))
    any_, oldest = (commands(slot, limit) for slot in slots)
    assert any_ == oldest


@pytest.mark.parametrize("limit", [1, 100])
def test_a_tier_that_is_claimed_in_part_costs_few_commands_more(limit: int, make_slot: MakeSlot) -> None:
    slots = [make_slot(TopicType.PRIORITY, ties=ties) for ties in ("any", "oldest")]
    for slot in slots:
        slot.seed(SlotState(store={b"%d" % number: 2**40 for number in range(600)}))
    any_, oldest = (commands(slot, limit) for slot in slots)
    more = {name: any_.get(name, 0) - oldest.get(name, 0) for name in any_ | oldest}
    counted_by_both = limit > 1  # ties "oldest" ask, too: a claim of one score is read without it
    assert more.pop("cmdstat_zcount") == (0 if counted_by_both else 1)
    assert 0 <= more.pop("cmdstat_zrevrange") <= 1, "what is left there is not read"
    assert 0 <= more.pop("cmdstat_zremrangebyrank") <= 1
    assert set(more.values()) <= {0}
