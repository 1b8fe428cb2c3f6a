"""Scores that no script has written, put in by hand: nobody is stranded by them, and no message is lost."""

from __future__ import annotations

from itertools import product

import pytest

from rmq import TopicType
from tests.conftest import MakeSlot
from tests.support.core import MAX_SCORE, claims, viewing
from tests.support.slots import T0, SlotUnderTest

STRANGE = (float("inf"), float("-inf"), 1e300, -1e300, 2.0**60, 500.5, 3.5, 0.5, 0.0, -7.0, 1.79e15 + 0.25)
KINDS = (TopicType.PRIORITY, TopicType.FIXED_TIME, TopicType.RANGE_MERGE)


def with_strange(make_slot: MakeSlot, kind: TopicType, place: str, score: float) -> SlotUnderTest:
    slot = make_slot(kind)
    slot.send(*((b"%d" % number, T0 + 1 if kind is TopicType.FIXED_TIME else 1_000) for number in range(5)))
    slot.advance(2_000)
    slot.client.zadd(getattr(slot.keys, place), {b"strange": score})
    slot.client.hincrby(slot.keys.meta, "accepted", 1)
    return slot


def drain(slot: SlotUnderTest) -> set[bytes]:
    """Ack whatever comes within a few leases; return what came."""
    seen: set[bytes] = set()
    for _ in range(20):
        reply = slot.claim()
        assert reply.next_due_ms >= 0
        seen.update(message.content for message in reply.messages)
        assert slot.ack(*((message.content, message.claim_score) for message in reply.messages)) == ()
        slot.advance(61_000)
    return seen


@pytest.mark.parametrize(("kind", "score"), [*product(KINDS, STRANGE)])
def test_in_store(kind: TopicType, score: float, make_slot: MakeSlot) -> None:
    slot = with_strange(make_slot, kind, "store", score)
    far = kind.timed and score > T0 + 10**8
    normal = {b"%d" % number for number in range(5)}
    assert drain(slot) == (normal if far else normal | {b"strange"})
    if far:
        assert slot.run(viewing.stats(slot.topic, 0)).backlog == 1
        assert [each.content for each in slot.run(viewing.peek(slot.topic, 0, "store", 0, 9))[0]] == [b"strange"]
        assert slot.cancel(b"strange")


@pytest.mark.parametrize(("kind", "score"), [*product(KINDS, STRANGE)])
def test_in_prepare(kind: TopicType, score: float, make_slot: MakeSlot) -> None:
    slot = with_strange(make_slot, kind, "prepare", score)
    assert slot.run(claims.look(slot.topic, [0]))[1] != [0]
    found = slot.run(viewing.find(slot.topic, 0, b"strange")).in_flight
    assert found is not None
    assert 0 <= (found.retries_left or 0) <= 16
    seen = drain(slot)
    assert seen >= {b"%d" % number for number in range(5)}
    assert b"strange" in seen or b"strange" in slot.state().dead, "it came again, or died with no retries left"


@pytest.mark.parametrize(("kind", "score"), [*product(KINDS, STRANGE)])
def test_in_retry(kind: TopicType, score: float, make_slot: MakeSlot) -> None:
    slot = with_strange(make_slot, kind, "retry", score)
    far = score > (T0 + 10**8)
    normal = {b"%d" % number for number in range(5)}
    assert drain(slot) == (normal if far else normal | {b"strange"})
    if far:
        waiting = slot.run(viewing.find(slot.topic, 0, b"strange")).waiting
        assert waiting is not None
        assert waiting.score <= MAX_SCORE
        assert slot.cancel(b"strange")


def test_a_strange_score_behind_proper_ones_is_found_within_a_minute(make_slot: MakeSlot) -> None:
    slot = with_strange(make_slot, TopicType.PRIORITY, "prepare", float("inf"))
    slot.claim(1)
    for _ in range(61):
        slot.advance(1_000)
        slot.claim(0)
    assert b"strange" in slot.state().store
