"""Sends of topics that merge: bounds, repeats, and what a server left that refused to write half-way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq import (
    PER_MESSAGE,
    Collect,
    Fixed,
    Keep,
    Leading,
    Merge,
    Newest,
    Replace,
    SendResult,
    Sliding,
    Sum,
    TopicType,
    WhenFull,
)
from rmq._transport.rpc_ids import RpcId
from rmq.errors import (
    CallChangedError,
    CollectionFullError,
    FixedTimePassedError,
    ReplyLostError,
    SumOutOfRangeError,
)
from tests.conftest import MakeSlot
from tests.support.core import (
    EncodedMessage,
    MergedSends,
    Nack,
    PartlySent,
    Record,
    Reducer,
    framed,
    named_rpc_id,
    read_record,
    sends,
    wanting,
    write_record,
)
from tests.support.slots import T0, SlotState, SlotUnderTest

HOUR_MS = 3_600_000


def record(kind: str, *items: bytes, count: int = 1, number: float = 0, at_ms: int = 0, wanted: int = 0) -> bytes:
    value = (wanting(wanted) if kind == "J" else b"") + framed(items)
    return write_record(Record(count, at_ms, at_ms, len(items) or number, kind, value))


def send(slot: SlotUnderTest, rpc_id: RpcId, *messages: tuple[bytes, int, bytes]) -> tuple[int, int]:
    encoded = [EncodedMessage(0, *message) for message in messages]
    result = slot.run(sends.send_calls(slot.topic)(0, encoded, rpc_id=rpc_id))
    return result.new, result.merged


# repeats


def test_a_repeated_call_answers_as_it_did_and_changes_nothing(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum()))
    first = send(slot, RpcId("a", 1, 1), (b"x", 500, record("S", number=2)), (b"x", 500, record("S", number=3)))
    before = slot.dump()
    slot.advance(60_000)
    assert first == (1, 1)
    assert send(slot, RpcId("a", 1, 1), (b"x", 500, record("S", number=2)), (b"x", 500, record("S", number=3))) == first
    assert slot.dump() == before


def test_a_call_below_the_floor_is_refused_whatever_comes_later(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum()))
    one = (b"x", 500, record("S", number=1))
    send(slot, RpcId("a", 1, 1), one)
    send(slot, RpcId("a", 3, 3), one)
    send(slot, RpcId("a", 4, 2), one)  # it was numbered before call 3, and comes after it
    before = slot.dump()
    for number in (1, 2):
        with pytest.raises(ReplyLostError, match=f"the reply to call {number}; it keeps those from call 3 on"):
            send(slot, RpcId("a", number, number), one)
    assert slot.dump() == before
    assert send(slot, RpcId("b", 1, 1), one) == (0, 1), "another lane has numbers of its own"


def test_each_open_call_of_a_lane_has_its_answer(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum()))
    calls = [(RpcId("a", number, 1), (b"x%d" % number, 500, record("S", number=number))) for number in (1, 2, 3)]
    answers = [send(slot, rpc_id, one) for rpc_id, one in calls]
    before = slot.dump()
    assert [send(slot, rpc_id, one) for rpc_id, one in calls] == answers == [(1, 0)] * 3
    assert slot.dump() == before


def test_lanes_unused_for_an_hour_are_swept_by_new_ones(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum()))
    one = (b"x", 500, record("S", number=1))
    for lane in ("old", "used", "also old"):
        send(slot, RpcId(lane, 1, 1), one)
    slot.advance(HOUR_MS)
    send(slot, RpcId("used", 2, 2), one)
    slot.advance(1)
    send(slot, RpcId("new", 1, 1), one)
    assert set(slot.client.hkeys(slot.keys.marks)) == {b"used", b"new"}  # pyright: ignore[reportArgumentType]
    assert 0 < slot.client.pttl(slot.keys.marks) <= 2 * HOUR_MS  # pyright: ignore[reportOperatorIssue]


def test_a_name_with_other_messages_is_refused(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum()))
    rpc_id = named_rpc_id("import", 1)
    assert send(slot, rpc_id, (b"x", 500, record("S", number=1)), (b"y", 500, record("S", number=1))) == (2, 0)
    before = slot.dump()
    assert send(slot, rpc_id, (b"x", 900, record("S", number=1)), (b"y", 800, record("S", number=1))) == (2, 0)
    for contents, number in ((b"xz", 1), (b"xy", 2), (b"yx", 1), (b"xyz", 1), (b"x", 1)):
        with pytest.raises(CallChangedError, match="once is 'import', but an earlier call of that name to slot 0"):
            send(slot, rpc_id, *((bytes([each]), 500, record("S", number=number)) for each in contents))
    assert slot.dump() == before


def test_a_name_counts_for_an_hour_after_its_last_use(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum()))
    for ms, accepted in ((0, 1), (HOUR_MS, 1), (1, 2), (HOUR_MS + 1, 3)):
        slot.advance(ms)
        send(slot, named_rpc_id("nightly", 1), (b"x", 500, record("S", number=5)))
        assert slot.state().totals["accepted"] == accepted


def test_many_items_join_a_set_in_order_and_once(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(unique=True)))
    first, more = [b"%d" % i for i in range(0, 90, 2)], [b"%d" % i for i in range(60)]
    slot.send((b"x", 500, record("U", *first)), (b"x", 500, record("U", b"", b"\0\0\0\0", *more, b"", b"7")))
    expected = tuple(dict.fromkeys([*first, b"", b"\0\0\0\0", *more]))
    found = read_record(slot.state().body[b"x"])
    assert found is not None
    assert (found.items, found.number) == (expected, len(expected))


def test_what_was_refused_is_no_repeat(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(max_items=1, when_full="refuse")))
    send(slot, RpcId("a", 1, 1), (b"x", 500, record("C", b"1")))
    before = slot.dump()
    with pytest.raises(CollectionFullError) as caught:
        send(slot, RpcId("a", 2, 1), (b"x", 500, record("C", b"23")))
    assert str(caught.value).startswith(
        f"message 1 of a call to slot 0 of topic {slot.topic.name} adds 1 item that counts 6 bytes, but b'x' "
        "is full: max_items is 1, max_bytes is 65536; consume it first"
    )
    assert caught.value.room == 0
    two = [(b"x", record("C", b"2")), (b"x", record("C", b"3"))]
    assert parts(slot, *two, number=2).accepted == 0
    assert slot.dump() == before
    (held,) = slot.claim(owner_at(slot, 500)).messages
    slot.ack((held.content, held.claim_score))
    assert parts(slot, *two, number=2).accepted == 1


def parts(slot: SlotUnderTest, *messages: tuple[bytes, bytes], number: int = 1) -> SendResult:
    encoded = [EncodedMessage(0, content, 500, body) for content, body in messages]
    calls = sends.send_calls(slot.topic)
    assert isinstance(calls, MergedSends)
    return slot.run(calls(0, encoded, True, RpcId("a", number, 1), partly="each"))


@pytest.mark.parametrize("kind", [TopicType.RANGE_MERGE, TopicType.PRIORITY])
def test_what_has_no_room_is_refused_by_itself(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind, merge=Merge(Collect(max_items=2, when_full="refuse")), ttl="1m")
    rows = [(b"x", b"1"), (b"x", b"23"), (b"x", b"4"), (b"y", b"5"), (b"x", b"6"), (b"y", b"7")]
    messages = [(name, record("C", *[bytes([item]) for item in items])) for name, items in rows]
    result = parts(slot, *messages)
    assert isinstance(result, PartlySent)
    assert (result.new, result.merged, result.outcomes) == (2, 2, (True, False, False, True, False, False))
    assert (result.done, result.refused) == (6, {1: "RMQ_ITEMS", 4: "RMQ_ITEMS"})
    state = slot.state()
    assert {name: read_record(body).items for name, body in state.body.items()} == {  # pyright: ignore
        b"x": (b"1", b"4"),
        b"y": (b"5", b"7"),
    }
    assert (state.totals["accepted"], state.unaccounted, state.orphans) == (4, 0, {})
    before = slot.dump()
    assert parts(slot, *messages) == result, "a repeat"
    assert slot.dump() == before


@pytest.mark.parametrize("settings", [{}, {"max_backlog": 9, "when_full": WhenFull.BLOCK}], ids=["refuses", "blocks"])
def test_times_that_have_passed_are_refused_by_themselves(settings: dict[str, Any], make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, merge=Merge(Sum()), **settings)
    calls = sends.send_calls(slot.topic)
    assert isinstance(calls, MergedSends)
    rows = [(b"x", T0 + 9), (b"y", T0), (b"x", T0 - 1), (b"z", T0 + 5), (b"x", T0 + 7), (b"y", 1)]
    for number, same in enumerate((False, True), 1):
        values = [record("S", number=1 if same else 10**index) for index in range(len(rows))]
        encoded = [EncodedMessage(0, name, due_ms, value) for (name, due_ms), value in zip(rows, values, strict=True)]
        call = calls(0, encoded, True, RpcId("a", number, 1), partly="each")
        result = slot.run(call)
        assert isinstance(result, PartlySent)
        assert (result.done, result.refused) == (6, dict.fromkeys((1, 2, 5), "RMQ_PAST"))
        assert (result.new, result.merged) == ((0, 3) if same else (2, 1))
        before = slot.dump()
        assert slot.run(call) == result, "a repeat"
        assert slot.dump() == before
    state = slot.state()
    assert {name: read_record(body).number for name, body in state.body.items()} == {b"x": 10_003, b"z": 1_001}  # pyright: ignore
    assert (state.totals["accepted"], state.unaccounted) == (6, 0)
    with pytest.raises(FixedTimePassedError):
        slot.run(calls(0, encoded[1:3], True, RpcId("a", 3, 1), partly="each"))


def test_what_a_call_leaves_is_not_refused_as_times_that_have_passed_are(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, merge=Merge(Collect()))
    calls = sends.send_calls(slot.topic)
    assert isinstance(calls, MergedSends)
    names = [b"c%02d" % index for index in range(60)]
    for name in names:
        slot.send((name, T0 + 9, record("C", b"x" * 60_000)))
    encoded = [
        EncodedMessage(0, name, T0 + 9 if index % 2 else T0, record("C", b"y")) for index, name in enumerate(names)
    ]
    result = slot.run(calls(0, encoded * 2, True, RpcId("a", 1, 1), partly="each"))
    assert isinstance(result, PartlySent)
    assert 0 < result.done < 120
    assert list(result.refused) == list(range(0, result.done, 2))


def test_a_content_of_which_all_is_refused_leaves_nothing(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, merge=Merge(Sum()))
    most = 2**53 - 1
    numbers = [(b"x", most), (b"y", 1), (b"x", 1), (b"y", most), (b"x", -1)]
    result = parts(slot, *[(name, record("S", number=number)) for name, number in numbers])
    assert isinstance(result, PartlySent)
    assert result.refused == {2: "RMQ_RANGE", 3: "RMQ_RANGE"}
    state = slot.state()
    assert {name: read_record(body).number for name, body in state.body.items()} == {b"x": most - 1, b"y": 1}  # pyright: ignore
    assert state.unaccounted == 0


def test_a_content_whose_first_send_has_no_room_takes_the_next_one(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(max_bytes=10_000, when_full="refuse")))
    slot.send((b"x", 500, record("C", b"1" * 9_000)))
    sent = [b"2" * 5_000, b"3", b"4" * 5_000, b"5"]
    result = parts(slot, *[(b"x", record("C", item)) for item in sent])
    assert isinstance(result, PartlySent)
    assert (result.new, result.merged, list(result.refused)) == (0, 2, [0, 2])
    found = read_record(slot.state().body[b"x"])
    assert found is not None
    assert found.items == (b"1" * 9_000, b"3", b"5")


def test_who_waits_for_room_is_refused_as_a_whole(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(max_items=1, when_full="refuse")), max_backlog=9, when_full=WhenFull.BLOCK)
    with pytest.raises(CollectionFullError) as caught:
        parts(slot, (b"y", record("C", b"1")), (b"x", record("C", b"2")), (b"x", record("C", b"3")))
    assert caught.value.room == 2
    assert slot.state().store == {}


@pytest.mark.parametrize("reducer", [Collect(max_bytes=1 << 20), Collect(5_000, 1 << 20, unique=True), Replace()])
def test_a_call_ends_where_what_it_rewrites_costs_too_much(reducer: Reducer, make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(reducer))
    kind = {Collect: "C", Replace: "R"}[type(reducer)]  # pyright: ignore
    kind = "U" if isinstance(reducer, Collect) and reducer.unique else kind
    big = [write_record(Record(1, 1, 1, 1, kind, framed([b"%d" % n + b"x" * 400_000]))) for n in range(2)]
    names = [b"%02d" % number for number in range(20)]
    for name in names:
        slot.send((name, 500, big[0]))
    done = 0
    while done < len(names):
        left = [(name, big[1]) for name in names[done:]]
        result = parts(slot, *left, number=done + 1)
        assert 1 <= result.accepted <= 6
        if result.accepted < len(left):
            assert isinstance(result, PartlySent)
            assert (result.done, result.refused) == (result.accepted, {})
            assert parts(slot, *left, number=done + 1) == result
        done += result.accepted
    state = slot.state()
    assert (state.totals["accepted"], state.unaccounted) == (40, 0)
    assert {read_record(body).count for body in state.body.values()} == {2}  # pyright: ignore


def test_a_call_that_rewrites_one_content_again_and_again_ends_where_that_costs_too_much(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(5_000, unique=True)))
    items = [b"%0200d" % number for number in range(240)]
    slot.send((b"x", 500, record("U", *items[:200])))
    done = calls = 0
    while done < 40:
        calls += 1
        result = parts(slot, *[(b"x", record("U", item)) for item in items[200 + done :]], number=calls)
        assert 1 <= result.accepted <= 12, "such an item is too long to be gathered: each rewrites all"
        done += result.accepted
    assert items_of(slot.state().body[b"x"]) == tuple(items)


def test_a_call_reads_no_more_than_it_could_rewrite(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, merge=Merge(Collect()), checked=False)
    names = [b"%02d" % number for number in range(40)]
    for name in names:  # values without their messages: nothing is folded with them, which would cost something
        slot.client.hset(slot.keys.body, name, record("C", b"x" * 60_000))
    assert 1 <= parts(slot, *[(name, record("C", b"1")) for name in names]).accepted <= 10


@pytest.mark.parametrize("unique", [False, True])
def test_items_that_one_call_brings_are_bounded_and_a_set_has_each_once(unique: bool, make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(max_items=25, unique=unique)))
    items = [b"%0100d" % number for number in range(30)]
    slot.send((b"x", 500, record("U" if unique else "C", *items[:20])))
    sent = [item for item in items[20:] for _ in range(1 + unique)]
    assert parts(slot, *[(b"x", record("U" if unique else "C", item)) for item in sent]).accepted == len(sent) // 2
    assert items_of(slot.state().body[b"x"]) == tuple(items[:25])


@pytest.mark.parametrize("unique", [False, True])
def test_items_of_one_content_are_put_together_once(unique: bool, make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(5_000, 1 << 20, unique=unique)))
    kind = "U" if unique else "C"
    stored = [b"%06d" % number for number in range(1_000)]
    slot.send((b"x", 500, record(kind, *stored)))
    sent = [b"%06d" % (950 + number) for number in range(100)]
    result = parts(slot, *[(b"x", record(kind, item)) for item in sent])
    assert (type(result), result.accepted) == (SendResult, 100)
    found = read_record(slot.state().body[b"x"])
    assert found is not None
    expected = list(dict.fromkeys(stored + sent)) if unique else stored + sent
    assert (found.count, found.number, list(found.items)) == (101, len(expected), expected)


def owner_at(slot: SlotUnderTest, ms: int) -> int:
    """Let time pass; returns how many to claim."""
    slot.advance(ms)
    return 10


# bounds


def test_a_full_join_is_due_at_once_though_parts_are_missing(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(max_bytes=10, unique=True), max_count=PER_MESSAGE))
    slot.send((b"x", 60_000, record("J", b"a", wanted=9)), (b"x", 60_000, record("J", b"b", wanted=9)))
    assert slot.state().store == {b"x": T0}, "nothing more finds room: to wait would be in vain"
    with pytest.raises(CollectionFullError):
        slot.send((b"x", 60_000, record("J", b"c", wanted=9)))


@pytest.mark.parametrize("when_full", ["drop_newest", "drop_oldest"])
def test_what_one_message_has_no_room_for_others_of_its_call_keep(when_full: str, make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(max_items=9, max_bytes=100, when_full=when_full)))
    slot.send((b"x", 500, record("C", b"1" * 90)))
    (held,) = slot.claim(owner_at(slot, 500)).messages
    slot.send((b"x", 500, record("C", b"2" * 90)))
    slot.nack(Nack(held.content, held.claim_score))
    slot.claim(owner_at(slot, 500))  # both are in flight: with what comes meanwhile they have twice max_bytes
    alike = record("C", b"2" * 80)
    slot.send((b"x", 500, alike), (b"y", 500, alike))
    found = {content: items_of(value) for content, value in slot.state().body.items()}
    assert found == {b"x": (), b"y": (b"2" * 80,)}


def test_drop_newest_keeps_what_is_stored(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(max_items=3, when_full="drop_newest")))
    slot.send(
        (b"x", 500, record("C", b"1", b"2")), (b"x", 500, record("C", b"3", b"4")), (b"x", 500, record("C", b"5"))
    )
    assert items_of(slot.state().body[b"x"]) == (b"1", b"2", b"3")


def items_of(value: bytes) -> tuple[bytes, ...]:
    """Return the items of a record."""
    found = read_record(value)
    assert found is not None
    return found.items


def test_a_dead_value_keeps_its_newest_items(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(max_bytes=1_048_576)), max_retries=0)
    large, small = bytes(300_000), bytes(200_000)
    older = record("C", b"1", large, b"2", large, count=4, at_ms=T0 - 9)
    newer = record("C", b"3", large, small, count=3, at_ms=T0)
    claimed = slot.claim_score(0)
    slot.seed(
        SlotState(
            prepare={b"x": claimed}, held={b"x": newer}, dead={b"x": 1}, reason={b"x": {}}, dead_body={b"x": older}
        )
    )
    slot.nack(Nack(b"x", claimed, "bury", 0, "E", "m"))
    found = read_record(slot.state().dead_body[b"x"])
    assert found == Record(7, T0 - 9, T0, 5, "C", framed([b"2", large, b"3", large, small]))


def test_a_sum_is_exact_up_to_its_bound_and_refused_beyond(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum()))
    most = 2**53 - 1
    slot.send((b"x", 500, record("S", number=most)), (b"y", 500, record("S", number=-most)))
    before = slot.dump()
    for name, number in ((b"x", 1), (b"y", -1)):
        with pytest.raises(SumOutOfRangeError) as caught:
            slot.send((name, 500, record("S", number=number)))
        assert str(caught.value).startswith(
            f"message 1 of a call to slot 0 of topic {slot.topic.name} adds {number} to the sum of {name!r}; a sum "
            "must be from -(2^53 - 1) to 2^53 - 1"
        )
    assert {name: value for name, value in slot.dump().items() if b"marks" not in name} == {
        name: value for name, value in before.items() if b"marks" not in name
    }


def test_what_is_due_is_not_pushed_back(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum(), window=Sliding("500ms", max_wait="900ms")))
    one = (b"x", 500, record("S", number=1))
    slot.send(one)
    slot.advance(100)
    slot.send(one)
    assert slot.state().store == {b"x": T0 + 600}
    slot.advance(500)
    slot.send(one)
    assert slot.state().store == {b"x": T0 + 600}, "due, though max_wait is not over"


@pytest.mark.parametrize("score", [2, T0 - 100], ids=["rolled back", "due"])
@pytest.mark.parametrize("window", [Fixed("500ms"), Sliding("500ms", max_wait="900ms"), Leading("500ms")])
def test_a_message_that_is_due_keeps_its_place_when_it_becomes_complete(
    window: Fixed | Sliding | Leading, score: int, make_slot: MakeSlot
) -> None:
    slot = make_slot(merge=Merge(Keep(), window, max_count=2))
    slot.seed(SlotState(store={b"x": score}, body={b"x": record("K", at_ms=T0 - 900)}))
    slot.send((b"x", 500, record("K")))
    assert slot.state().store == {b"x": score}


def versioned(number: int) -> bytes:
    return write_record(Record(1, 0, 0, number, "N", b"=%d" % number))


@pytest.mark.parametrize(
    ("kind", "window", "scores"),
    [
        (TopicType.RANGE_MERGE, Sliding("500ms", max_wait="9s"), (500, 500, 500)),
        (TopicType.FIXED_TIME, None, (T0 + 900, T0 + 800, T0 + 700)),
        (TopicType.PRIORITY, None, (300, 200, 100)),
    ],
)
def test_only_the_newest_version_decides_when_it_is_due(
    kind: TopicType, window: Sliding | None, scores: tuple[int, int, int], make_slot: MakeSlot
) -> None:
    slot = make_slot(kind, merge=Merge(Newest(), window=window))
    slot.send((b"x", scores[0], versioned(2)))
    before = slot.state().store
    slot.advance(100)
    slot.send((b"x", scores[1], versioned(1)))
    assert slot.state().store == before
    slot.send((b"x", scores[2], versioned(3)))
    assert slot.state().store != before


def test_a_join_waits_for_its_last_part(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(unique=True), max_count=PER_MESSAGE))
    for part, due_ms in ((b"a", T0 + 60_000), (b"b", T0 + 60_000), (b"b", T0 + 60_000), (b"c", T0)):
        slot.send((b"x", 60_000, record("J", part, wanted=3)))
        assert slot.state().store == {b"x": due_ms}


def test_a_promoted_priority_stays_above_all(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, merge=Merge(priority="highest"))
    slot.seed(SlotState(store={b"first": 2**53 + 2, b"next": 2**53}, body=dict.fromkeys([b"first", b"next"], b"")))
    slot.send((b"first", 2**53 - 1, record("K")))
    assert slot.state().store == {b"first": 2**53 + 2, b"next": 2**53}


def test_a_flight_that_folds_back_is_the_older_one_but_for_its_times(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Newest(), window=Fixed("500ms")))
    slot.send((b"x", 500, write_record(Record(1, 0, 0, 7, "N", b"=older"))))
    (held,) = slot.claim(owner_at(slot, 500)).messages
    slot.set_clock(T0 - 100)
    slot.send((b"x", 500, write_record(Record(1, 0, 0, 7, "N", b"=newer"))))
    slot.nack(Nack(held.content, held.claim_score))
    found = read_record(slot.state().body[b"x"])
    assert found is not None
    assert (found.body, found.count, found.first_ms, found.last_ms) == (b"newer", 2, T0 - 100, T0)


@pytest.mark.parametrize("bodiless", [b"", b"\0rmq:trace\0t\x000"])
def test_a_flight_that_folds_back_keeps_its_body_where_the_fresh_copy_has_none(
    bodiless: bytes, make_slot: MakeSlot
) -> None:
    slot = make_slot(merge=Merge(Replace()))
    slot.send((b"x", 500, write_record(Record(1, 1, 1, 0, "R", b"1body"))))
    (held,) = slot.claim(owner_at(slot, 500)).messages
    slot.send((b"x", 500, write_record(Record(1, 1, 1, 0, "R", b"0" * bool(bodiless) + bodiless))))
    slot.nack(Nack(held.content, held.claim_score))
    found = read_record(slot.state().body[b"x"])
    assert found is not None
    assert (found.value, found.count) == (b"1body", 2)


def test_first_is_the_smaller_time_where_the_clock_was_set_back(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum()))
    slot.send((b"x", 500, record("S", number=1)))
    slot.advance(-5_000)
    slot.send((b"x", 500, record("S", number=1)))
    found = read_record(slot.state().body[b"x"])
    assert found is not None
    assert (found.first_ms, found.last_ms) == (T0 - 5_000, T0)


# what is left where a server refuses to write half-way


@pytest.mark.parametrize("window", [Fixed("500ms"), Sliding("500ms", max_wait="900ms")])
def test_a_value_without_its_message_holds_up_no_send(window: Fixed | Sliding, make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False, merge=Merge(Replace(), window))
    slot.client.hset(slot.keys.body, "x", record("R", at_ms=T0 - 9))
    slot.send((b"x", 500, record("R")))
    assert slot.state().store == {b"x": T0 + 500}
    assert [claimed.content for claimed in slot.claim(owner_at(slot, 500)).messages] == [b"x"]


def test_a_full_value_without_its_message_refuses_no_send(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Collect(max_items=2, max_bytes=100)))
    slot.seed(SlotState(body={b"x": record("C", b"1", b"2", at_ms=T0)}))
    assert send(slot, RpcId("a", 1, 1), (b"x", 500, record("C", b"3"))) == (1, 0)
    assert items_of(slot.state().body[b"x"]) == (b"3",)
    assert slot.state().store == {b"x": T0 + 500}


@pytest.mark.parametrize("value", [None, b"body of a hand", b"\x00rm1 cut off"])
def test_a_message_of_a_hand_counts_as_one_send(value: bytes | None, make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Keep(), Sliding("500ms", max_wait="900ms")))
    slot.seed(SlotState(store={b"x": T0 + 100}, body={} if value is None else {b"x": value}))
    slot.send((b"x", 500, write_record(Record(1, 0, 0, 0, "K", b"=sent"))))
    state = slot.state()
    kept = b"" if value is None else b"=" + value
    assert read_record(state.body[b"x"]) == Record(2, T0, T0, 0, "K", kept)
    assert state.store == {b"x": T0 + 500}


# keys of foreign types


def test_windows_that_are_over_leave(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Keep(), Leading("500ms")))
    slot.send((b"x", 500, record("K")), (b"y", 900, record("K")))
    slot.claim()
    assert slot.state().cool == {b"x": T0 + 500, b"y": T0 + 900}
    slot.advance(500)
    slot.send((b"z", 500, record("K")))
    state = slot.state()
    assert state.cool == {b"y": T0 + 900, b"z": T0 + 1_000}
    assert state == replace(state, store={b"z": T0 + 500})
    assert 0 < slot.client.pttl(slot.keys.cool) <= 60_500  # pyright: ignore[reportOperatorIssue]
