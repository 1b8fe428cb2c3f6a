"""PRIORITY with the oldest of equal priorities first: scores that hold ages, and topics that change over to them."""

from __future__ import annotations

from typing import Any

import pytest

from rmq import ControlResult, Redriven, SendResult, TopicType, WhenFull
from rmq.errors import BacklogFullError
from tests.conftest import MakeSlot
from tests.support.core import EncodedMessage, Nack, ages_for, control, dead, sends
from tests.support.one_slot import claim_slot
from tests.support.slots import T0, SlotState, SlotUnderTest

SCALE, UNIT_MS = 2**33, 100
SINCE_MS = 1_735_689_600_000


def score(priority: int, sent_ms: int = T0) -> int:
    return priority * SCALE + SCALE - 1 - (sent_ms - SINCE_MS) // UNIT_MS


def aged(make_slot: MakeSlot, **settings: Any) -> SlotUnderTest:
    return make_slot(TopicType.PRIORITY, ties="oldest", **settings)


def send(slot: SlotUnderTest, *messages: tuple[bytes, int], bodies: bool = False, detailed: bool = False) -> SendResult:
    encoded = [EncodedMessage(0, content, priority, content if bodies else None) for content, priority in messages]
    return slot.run(sends.send_calls(slot.topic)(0, encoded, detailed))


def taken(slot: SlotUnderTest, limit: int = 100) -> list[bytes]:
    return [message.content for message in slot.run(claim_slot(slot.topic, 0, limit)).messages]


@pytest.mark.parametrize("limits", [{}, {"max_backlog": 10, "when_full": WhenFull.DROP}, {"ttl": "11d13h46m40s"}])
@pytest.mark.parametrize("bodies", [False, True])
def test_of_equal_priorities_the_oldest_is_first(make_slot: MakeSlot, bodies: bool, limits: dict[str, Any]) -> None:
    slot = aged(make_slot, **limits)
    for number, content in enumerate((b"z", b"a", b"m")):
        slot.set_clock(T0 + number * UNIT_MS)
        send(slot, (content, 5), bodies=bodies)
    send(slot, (b"high", 6), bodies=bodies)
    assert slot.state().store[b"a"] == score(5, T0 + UNIT_MS)
    assert taken(slot) == [b"high", b"z", b"a", b"m"]


@pytest.mark.parametrize("bodies", [False, True])
@pytest.mark.parametrize("detailed", [False, True])
def test_a_message_that_is_sent_again_keeps_its_age(make_slot: MakeSlot, bodies: bool, detailed: bool) -> None:
    slot = aged(make_slot)
    send(slot, (b"a", 5), (b"b", 5), (b"c", 5), bodies=bodies)
    slot.set_clock(T0 + 10_000)
    result = send(slot, (b"a", 5), (b"b", 7), (b"c", 2), (b"new", 5), bodies=bodies, detailed=detailed)
    assert (result.new, result.merged) == (1, 3)
    assert slot.state().store == {
        b"a": score(5), b"b": score(7), b"c": score(2), b"new": score(5, T0 + 10_000),
    }  # fmt: skip


def test_of_a_content_that_a_batch_names_twice_the_last_priority_counts(make_slot: MakeSlot) -> None:
    slot = aged(make_slot)
    send(slot, (b"old", 5))
    slot.set_clock(T0 + 10_000)
    assert send(slot, (b"old", 9), (b"new", 3), (b"old", 5), (b"new", 8)) == SendResult(1, 3)
    assert slot.state().store == {b"old": score(5), b"new": score(8, T0 + 10_000)}


@pytest.mark.parametrize("bodies", [False, True])
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("passed_ms", [0, 99, 100, 5_000, -3_600_000])
def test_the_clock_of_redis_decides_on_the_age_whatever_the_sender_has_made_of_it(
    make_slot: MakeSlot, passed_ms: int, alike: bool, bodies: bool
) -> None:
    slot = aged(make_slot)
    second = 5 if alike else 2**19
    batch = [EncodedMessage(0, b"a", 5, b"body" if bodies else None), EncodedMessage(0, b"b", second, None)]
    ages = ages_for(slot.topic.max_priority)
    mark = ages.mark_at(T0)
    made = ages.aged([5, second], mark)
    slot.set_clock(T0 + passed_ms)
    values = [made[0], b"a", b"b"] if alike else [made[0], b"a", made[1], b"b"]
    call = sends.send_calls(slot.topic)(0, batch)
    head, part = call.args[:4], [2, 1 if alike else 2, 0, *values, *([1, b"body"] if bodies else [])]
    args = [*head, f"{ages.scale} {ages.unit_ms} {mark}", "", "", len(part), *part]
    assert slot.run(call._replace(args=args)) == SendResult(2, 0)
    assert slot.state().store == {b"a": score(5, T0 + passed_ms), b"b": score(second, T0 + passed_ms)}
    slot.set_clock(T0 + 10_000)
    assert slot.run(call._replace(args=args)) == SendResult(0, 2)  # repeated: each keeps its age
    assert slot.state().store == {b"a": score(5, T0 + passed_ms), b"b": score(second, T0 + passed_ms)}


def test_ages_that_senders_made_lie_between_the_first_and_the_last_one(make_slot: MakeSlot) -> None:
    slot = aged(make_slot)
    ages = ages_for(slot.topic.max_priority)
    assert [ages.mark_at(0), ages.mark_at(SINCE_MS + 250), ages.mark_at(2**60)] == [0, 2, SCALE - 1]


def test_nobody_starves_however_often_others_are_sent_again(make_slot: MakeSlot) -> None:
    slot = aged(make_slot)
    send(slot, (b"\x00 the very first", 5))
    for number in range(50):
        slot.set_clock(T0 + (number + 1) * UNIT_MS)
        send(slot, *((b"z%d" % other, 5) for other in range(number + 1)))
    assert taken(slot, 1) == [b"\x00 the very first"]


def test_a_send_makes_a_rolled_back_message_fresh_and_young(make_slot: MakeSlot) -> None:
    slot = aged(make_slot)
    slot.seed(SlotState(store={b"again": 3}))
    send(slot, (b"again", 5))
    assert slot.state().store == {b"again": score(5)}


def test_what_was_rolled_back_stays_behind_all_priorities(make_slot: MakeSlot) -> None:
    slot = aged(make_slot)
    send(slot, (b"fails", 9), (b"low", 1))
    failed = slot.run(claim_slot(slot.topic, 0, 1)).messages[0]
    slot.nack(Nack(failed.content, failed.claim_score, "retry", 0, "E", "m"))
    assert taken(slot) == [b"low", b"fails"]


def test_what_is_given_back_has_its_turn_again(make_slot: MakeSlot) -> None:
    slot = aged(make_slot)
    send(slot, (b"first", 5))
    given = slot.run(claim_slot(slot.topic, 0, 1)).messages[0]
    slot.set_clock(T0 + UNIT_MS)
    send(slot, (b"second", 5))
    back = Nack(given.content, given.claim_score, "release", given.store_score, "", "")
    slot.nack(back)
    assert taken(slot) == [b"first", b"second"]


def test_another_priority_keeps_the_age(make_slot: MakeSlot) -> None:
    slot = aged(make_slot)
    send(slot, (b"a", 5))
    slot.set_clock(T0 + 10_000)
    assert slot.run(control.reschedule(slot.topic, 0, [b"a"], ("priority", 7))) == [ControlResult.DONE]
    assert slot.state().store == {b"a": score(7)}


def test_a_promoted_message_comes_before_all_others_and_keeps_its_age(make_slot: MakeSlot) -> None:
    slot = aged(make_slot)
    send(slot, (b"a", 5))
    slot.set_clock(T0 + 10_000)
    send(slot, (b"b", 9), (b"c", 5))
    assert slot.run(control.promote(slot.topic, 0, [b"a"])) == [ControlResult.DONE]
    assert slot.state().store[b"a"] == score(10)
    slot.run(control.reschedule(slot.topic, 0, [b"a"], ("priority", 5)))
    assert taken(slot) == [b"b", b"a", b"c"]


def test_a_promoted_message_comes_before_the_highest_priority(make_slot: MakeSlot) -> None:
    slot = aged(make_slot)
    send(slot, (b"top", 2**20 - 1), (b"a", 5), (b"b", 5))
    slot.run(control.promote(slot.topic, 0, [b"a"]))
    slot.run(control.promote(slot.topic, 0, [b"b"]))
    assert taken(slot) == [b"b", b"a", b"top"]


def test_a_redriven_message_is_young_unless_a_fresh_copy_lends_its_age(make_slot: MakeSlot) -> None:
    slot = aged(make_slot)
    send(slot, (b"fresh", 5))
    reason = {"first_ms": "1", "last_ms": "1", "type": "E", "message": "m", "attempts": 1}
    state = slot.state()
    slot.seed(SlotState(
        store=state.store, dead={b"fresh": T0, b"gone": T0}, reason={b"fresh": reason, b"gone": reason}
    ))  # fmt: skip
    slot.set_clock(T0 + 10_000)
    call = dead.redrive(slot.topic, 0, ("priority", 7), overwrite=True, contents=[b"fresh", b"gone"])
    assert slot.run(call) == [Redriven.MERGED, Redriven.DONE]
    assert slot.state().store == {b"fresh": score(7), b"gone": score(7, T0 + 10_000)}


def test_what_is_too_much_is_the_youngest_of_the_lowest_priority(make_slot: MakeSlot) -> None:
    slot = aged(make_slot, max_backlog=2, when_full=WhenFull.DROP)
    send(slot, (b"old", 5), (b"high", 6))
    slot.set_clock(T0 + 10_000)
    assert send(slot, (b"young", 5)).dropped == 1
    assert slot.state().store.keys() == {b"old", b"high"}


def test_a_full_backlog_refuses_the_batch_before_anything_is_written(make_slot: MakeSlot) -> None:
    slot = aged(make_slot, max_backlog=1)
    send(slot, (b"a", 5))
    before = slot.state()
    with pytest.raises(BacklogFullError):
        send(slot, (b"a", 9), (b"b", 9))
    assert slot.state() == before
    assert send(slot, (b"a", 9)).merged == 1


def test_a_batch_of_1000_that_all_merge_with_another_priority(make_slot: MakeSlot) -> None:
    slot = aged(make_slot)
    names = [b"%d" % number for number in range(1_000)]
    send(slot, *((name, 5) for name in names))
    slot.set_clock(T0 + 10_000)
    assert send(slot, *((name, 6) for name in names)).merged == 1_000
    assert set(slot.state().store.values()) == {score(6)}


@pytest.mark.parametrize("now_ms", [SINCE_MS - 10**9, SINCE_MS + SCALE * UNIT_MS + 10**9])
def test_times_beyond_what_an_age_holds_keep_the_priorities_apart(make_slot: MakeSlot, now_ms: int) -> None:
    slot = aged(make_slot)
    slot.set_clock(now_ms)
    send(slot, (b"low", 5), (b"high", 6))
    assert taken(slot) == [b"high", b"low"]


@pytest.mark.parametrize("again", [False, True])
def test_under_overload_nobody_in_the_tier_that_is_served_is_passed_over(make_slot: MakeSlot, again: bool) -> None:
    # two messages in each of three tiers a round, three handled: the middle tier is served, and grows; each content
    # sorts before all earlier ones, and the oldest is sent again and again
    slot, sent, waits = aged(make_slot, max_priority=600), dict[bytes, int](), list[int]()
    for number in range(120):
        slot.advance(UNIT_MS)
        new = [(b"%d %06d" % (tier, 2 * number + one), tier) for tier in (600, 400, 200) for one in (0, 1)]
        new = [(content.translate(bytes.maketrans(b"0123456789", b"9876543210")), tier) for content, tier in new]
        sent |= {content: number for content, tier in new if tier == 400}
        send(slot, *new, *([(min(sent, key=sent.__getitem__), 400)] if again and sent else []))
        for claimed in slot.claim(3).messages:
            slot.ack((claimed.content, claimed.claim_score))
            if claimed.content in sent:
                begun = sent.pop(claimed.content)
                assert begun - min([begun, *sent.values()]) <= 1, "an older batch of its tier is left"
                waits.append(number - begun)
    assert len(waits) == 120
    assert max(waits) <= 2 * sum(waits) / len(waits) + 1
    assert max([119 - begun for begun in sent.values()]) <= 2 * sum(waits) / len(waits) + 2
