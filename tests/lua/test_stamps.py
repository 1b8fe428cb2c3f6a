"""Stamps of claims never come again in a slot, whatever the clock does, and leases end by them, never early."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import redis

from rmq import TopicType
from tests.conftest import MakeSlot
from tests.support.claims import Claimed
from tests.support.core import Ack, Outcomes, WholeClaim, claims
from tests.support.one_slot import claim_slot
from tests.support.slots import T0, SlotUnderTest, scripts_with_fake_clock

HOUR_MS = 3_600_000


def whole_of(messages: Sequence[Claimed]) -> WholeClaim:
    """All of a claim whose messages have the same retries left."""
    [score] = {message.claim_score for message in messages}
    return score, len(messages)


def tokens(messages: Sequence[Claimed]) -> list[Ack]:
    return [(message.content, message.claim_score) for message in messages]


def stamp_of(message: Claimed) -> int:
    return message.claim_score // 1000


def send_due(slot: SlotUnderTest, *contents: bytes) -> None:
    slot.send(*((content, 100) for content in contents))


# acks


def test_an_ack_that_is_repeated_never_takes_the_claim_of_another_in_the_same_millisecond(make_slot: MakeSlot) -> None:
    # pitfall 31: acked, sent afresh and claimed again, all in one millisecond; then the first ack comes again
    slot = make_slot(TopicType.PRIORITY)
    send_due(slot, b"a", b"b")
    first = slot.claim().messages
    assert slot.claim(0, whole=[whole_of(first)]).unmatched == ()
    send_due(slot, b"a", b"b")
    second = slot.claim().messages
    assert slot.claim(0, whole=[whole_of(first)]).unmatched == (first[0].claim_score,)
    assert set(slot.ack(*tokens(first))) == {b"a", b"b"}
    assert slot.claim(0, acks=tokens(first)).stale == (b"b", b"a")
    assert slot.extend(*tokens(first)).claim_scores == (None, None)
    assert slot.state().prepare == dict(tokens(second))
    assert slot.ack(*tokens(second)) == ()


def test_acks_of_a_script_that_broke_off_afterwards_are_repeated_in_vain(make_slot: MakeSlot) -> None:
    # pitfall 8, 31: the client takes a refused call for not carried out, and sends its acks again by name
    slot = make_slot(TopicType.PRIORITY)
    send_due(slot, b"a", b"b")
    first = slot.claim(1).messages
    user = f"user-{slot.topic.name}"
    slot.client.acl_setuser(user, enabled=True, nopass=True, keys=["*"], categories=["+@all"], commands=["-zadd"])
    call = claim_slot(slot.topic, 0, 1, outcomes=Outcomes(tokens(first)))
    script = scripts_with_fake_clock().text(call.script)
    with slot.as_user(user) as restricted, pytest.raises(redis.ResponseError, match=r"NOPERM|permission|can't run"):
        restricted.eval(script, len(call.keys), *call.keys, *call.args)
    slot.client.acl_deluser(user)
    assert slot.state().prepare == {}, "the acks were carried out"
    slot.client.hincrby(slot.keys.meta, "acked", 1)  # what the script did not come to
    name = first[0].content
    send_due(slot, name)
    second = [message for message in slot.claim().messages if message.content == name]
    assert slot.claim(0, acks=tokens(first)).stale == (name,)
    assert slot.state().prepare[name] == second[0].claim_score


def test_what_a_renewal_left_behind_is_not_acked_with_it(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    send_due(slot, b"a", b"b", b"c")
    first = slot.claim().messages
    renewed = slot.extend(*tokens(first)[:2]).claim_scores
    assert len({*renewed, first[0].claim_score}) == 2
    score = renewed[0] or 0
    assert slot.claim(0, whole=[whole_of(first)]).unmatched == (first[0].claim_score,)
    assert slot.claim(0, whole=[(score, 2)]).unmatched == ()
    assert set(slot.state().prepare) == {first[2].content}


def test_a_whole_ack_never_takes_what_others_hold_after_a_sweep_by_a_shorter_lease(make_slot: MakeSlot) -> None:
    """A sweep takes 256 of a claim of 500, others ack those, and a third one claims 256 in the same millisecond."""
    slot = make_slot(TopicType.PRIORITY, max_retries=999)
    send_due(slot, *(b"a%03d" % number for number in range(500)))
    ours = slot.claim(500).messages
    send_due(slot, *(b"c%03d" % number for number in range(256)))
    theirs = slot.claim(256).messages
    swept_by_hand = [message for message in ours if message.content < b"a256"]  # as one with a shorter lease would
    slot.ack(*tokens(tuple(swept_by_hand)))
    assert slot.claim(0, whole=[(ours[0].claim_score, 500)]).unmatched == (ours[0].claim_score,)
    held = slot.state().prepare
    assert set(tokens(theirs)) <= held.items()
    assert len(held) == 500
    assert slot.claim(0, whole=[whole_of(theirs)]).unmatched == ()


# the clock


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, -1_500, -1, HOUR_MS])
def test_stamps_grow_and_new_leases_end_in_time_whatever_the_clock_does(jump_ms: int, make_slot: MakeSlot) -> None:
    # pitfall 19
    slot = make_slot(TopicType.PRIORITY)
    send_due(slot, b"a", b"b")
    before = slot.claim(1).messages[0]
    slot.advance(jump_ms)
    after = slot.claim(1).messages[0]
    assert stamp_of(after) > stamp_of(before)
    slot.advance(60_000)
    assert slot.run(claims.look(slot.topic, [0]))[1][0] <= slot.now_ms + 2
    assert [message.content for message in slot.claim().messages if message.store_score == 16] in ([], [b"b"])
    assert after.content in slot.state().prepare
    slot.advance(2)
    again = slot.claim().messages
    assert after.content in {message.content for message in again}
    assert slot.state().totals["expired"] == 2


def test_a_clock_that_was_ahead_for_a_moment_leaves_no_lease_late(make_slot: MakeSlot) -> None:
    # pitfall 19: one claim while the clock is an hour ahead, then it is set right
    slot = make_slot(TopicType.PRIORITY)
    send_due(slot, b"a")
    slot.advance(HOUR_MS)
    ahead = slot.claim().messages
    slot.advance(20)
    slot.advance(-HOUR_MS)
    assert slot.run(claims.look(slot.topic, [0]))[1] == [slot.now_ms], "a claim has to note it"
    assert slot.claim(0).next_due_ms == slot.now_ms + 60_001
    for _ in range(3):
        send_due(slot, b"b")
        fresh = slot.claim().messages
        assert stamp_of(fresh[0]) > stamp_of(ahead[0])
        assert slot.claim(0, whole=[whole_of(fresh)]).unmatched == ()
        slot.advance(1_000)
    slot.advance(57_000)
    assert slot.claim().messages == ()
    slot.advance(1)
    assert slot.claim().messages[0].content == b"a"


def test_the_clock_comes_back_to_redis_time_once_nothing_is_held(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.advance(60_000)
    send_due(slot, b"a")
    slot.ack(*tokens(slot.claim().messages))
    slot.advance(-60_000)
    stamps: list[int] = []
    for _ in range(70):
        send_due(slot, b"a")
        messages = slot.claim().messages
        stamps.append(stamp_of(messages[0]))
        slot.ack(*tokens(messages))
        slot.advance(1_000)
    assert stamps == sorted(set(stamps))
    assert slot.state().clock["stamp"] == str(slot.now_ms - 1_000)


def claim_8_in_each_millisecond(slot: SlotUnderTest, number: int) -> None:
    for each in range(number):
        send_due(slot, b"a")
        slot.ack(*tokens(slot.claim(1).messages))
        slot.advance(int(each % 8 == 7))


def test_many_claims_in_a_millisecond_delay_no_lease(make_slot: MakeSlot) -> None:
    """8,000 claims a second: stamps run ahead of the clock, and the leases' clock follows."""
    slot = make_slot(TopicType.PRIORITY)
    claim_8_in_each_millisecond(slot, 4_000)
    send_due(slot, b"late")
    late = slot.claim().messages[0]
    assert stamp_of(late) == T0 + 4_000
    slot.advance(60_000)
    assert slot.claim(0).swept == 0
    slot.advance(1_001)
    assert slot.claim(0).swept == 1


def test_many_claims_in_a_millisecond_end_no_lease_early(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    send_due(slot, b"held")
    slot.claim()
    claim_8_in_each_millisecond(slot, 4_000)
    slot.set_clock(T0 + 60_000)
    assert slot.claim(0).swept == 0
    send_due(slot, b"later")
    slot.claim(1)
    slot.advance(1)
    assert slot.claim(0).swept == 1, "what was held all the time ends in time"
    slot.advance(59_999)
    assert slot.claim(0).swept == 0, "nothing ends early once the clock has followed"
    slot.advance(1_001)
    assert slot.claim(0).swept == 1


def test_without_meta_a_stamp_is_above_all_that_are_held(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, checked=False)
    send_due(slot, b"a", b"b")
    first = slot.claim(1).messages[0]
    slot.client.delete(slot.keys.meta)
    assert stamp_of(slot.claim().messages[0]) == stamp_of(first) + 1


def test_the_stamp_is_noted_with_the_totals_by_one_command(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    send_due(slot, b"a", b"b")
    first = slot.claim(1).messages
    slot.advance(5)
    slot.client.config_resetstat()
    slot.claim(1, whole=[whole_of(first)])
    stats = slot.client.info("commandstats")
    counts = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
    for name in ("evalsha", "get", "config|resetstat", "config"):
        counts.pop(name, None)
    assert counts == {
        "hmget": 1, "exists": 1, "zrevrange": 1, "zcount": 1,
        "zremrangebyscore": 1, "zrange": 1, "zadd": 1, "zremrangebyrank": 2, "hset": 1,
    }  # fmt: skip
    assert slot.state().clock == {"stamp": str(T0 + 5), "lease": "60000"}
