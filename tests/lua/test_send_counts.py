"""What a send's reply and the totals count, and what a full backlog drops among equals."""

from __future__ import annotations

import pytest

from rmq import Leading, Merge, SendResult, Sum, TopicType, WhenFull
from tests.conftest import MakeSlot
from tests.support.core import EncodedMessage, Record, named_rpc_id, sends, write_record
from tests.support.slots import T0, scripts_with_fake_clock


def number(content: bytes, score: int, weight: int = 1) -> tuple[bytes, int, bytes]:
    return content, score, write_record(Record(weight, 0, 0, 1, "S", b""))


def test_what_a_window_drops_is_merged_in_the_reply_and_not_in_the_totals(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum(), window=Leading("500ms", trailing=False)))
    assert slot.send(number(b"x", 500)) == SendResult(1, 0)
    slot.claim(1)
    result = slot.send(number(b"x", 500), number(b"x", 500), number(b"x", 500, weight=5))
    assert result == SendResult(0, 3, dropped=7), "messages in `merged`, sends in `dropped`"
    assert result.accepted == 3
    totals = slot.state().totals
    assert {name: totals.get(name, 0) for name in ("accepted", "merged", "dropped")} == {
        "accepted": 8,
        "merged": 0,
        "dropped": 7,
    }


def test_what_makes_room_counts_as_one_however_many_sends_it_stands_for(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, merge=Merge(Sum()), max_backlog=1, when_full=WhenFull.DROP)
    assert slot.send(number(b"low", 50), number(b"low", 50, weight=5)) == SendResult(1, 1)
    assert slot.send(number(b"high", 90)) == SendResult(1, 0, dropped=1)
    totals = slot.state().totals
    assert {name: totals[name] for name in ("accepted", "merged", "dropped")} == {
        "accepted": 7,
        "merged": 5,
        "dropped": 1,
    }


def test_among_equal_priorities_the_smallest_bytes_are_dropped(make_slot: MakeSlot) -> None:
    for ties in ("any", "oldest"):  # all are of one age
        slot = make_slot(TopicType.PRIORITY, max_backlog=2, when_full=WhenFull.DROP, ties=ties)
        assert slot.send((b"b", 50), (b"a", 50), (b"c", 50)).dropped == 1
        assert slot.state().store.keys() == {b"b", b"c"}


def test_among_equal_due_times_the_largest_bytes_are_dropped(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, max_backlog=2, when_full=WhenFull.DROP)
    due = T0 + 500
    assert slot.send((b"b", due), (b"a", due), (b"c", due)).dropped == 1
    assert slot.state().store.keys() == {b"a", b"b"}


@pytest.mark.parametrize("trailing", [False, True])
@pytest.mark.parametrize("back_ms", [25_000, 3_600_000])
def test_windows_begin_anew_after_redis_clock_was_set_back(make_slot: MakeSlot, back_ms: int, trailing: bool) -> None:
    slot = make_slot(merge=Merge(Sum(), window=Leading("500ms", trailing=trailing)))
    for turn in range(10):
        assert slot.send(number(b"%d" % turn, 500)).new == 1
    slot.ack(*((found.content, found.claim_score) for found in slot.claim(20).messages))
    slot.advance(-back_ms)
    for turn in range(10):
        assert slot.send(number(b"%d" % turn, 500)).new == 1
        assert slot.state().store[b"%d" % turn] == slot.now_ms, "it is due at once"
    assert slot.state().cool == {b"%d" % turn: slot.now_ms + 500 for turn in range(10)}
    slot.ack(*((found.content, found.claim_score) for found in slot.claim(20).messages))
    slot.advance(499)
    assert slot.send(number(b"3", 500)) == (SendResult(1, 0) if trailing else SendResult(0, 1, dropped=1))


def test_a_long_window_goes_on_beside_short_ones_and_small_steps_of_the_clock(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum(), window=Leading("500ms", trailing=False)))
    slot.send(number(b"long", 3_600_000), number(b"short", 500))
    slot.claim(2)
    for back_ms in (0, 5, 900):
        slot.advance(-back_ms)
        result = slot.send(number(b"long", 500))
        assert (result.new, result.dropped) == (0, 1)
    slot.advance(100_000)
    assert slot.send(number(b"short", 500)).new == 1
    assert slot.send(number(b"long", 500)).dropped == 1
    slot.advance(-90_000)  # the time that is noted is the last window's
    assert slot.send(number(b"long", 500)).new == 1


def test_windows_begin_anew_without_the_right_to_unlink(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum(), window=Leading("500ms", trailing=False)))
    slot.send(number(b"x", 500), number(b"y", 500))
    slot.advance(-25_000)
    messages = [EncodedMessage(0, *number(b"z", 500))]
    call, text = sends.send_calls(slot.topic)(0, messages, rpc_id=named_rpc_id("case", 1)), scripts_with_fake_clock()
    slot.client.execute_command("ACL", "SETUSER", "bound", "reset", "on", "nopass", "~*", "&*", "+@all", "-unlink")
    with slot.as_user("bound") as client:
        client.script_load(text[call.script].text)
        client.evalsha(text[call.script].sha, len(call.keys), *call.keys, *call.args)
    slot.client.execute_command("ACL", "DELUSER", "bound")
    assert slot.state().cool == {b"z": slot.now_ms + 500}
