"""What the three sends have in common."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from rmq import TopicType
from rmq.errors import BacklogFullError
from tests.conftest import MakeSlot
from tests.support.core import EncodedMessage, sends, wrap
from tests.support.slots import T0, SlotState
from tests.support.waiting import wait_until

ODD = [b"\x00", b"\xff\xfe", b" ", b"{}", b"a\r\nb", "é".encode(), b"x" * 65_536]
every_type = pytest.mark.parametrize("kind", [kind for kind in TopicType if kind is not TopicType.STREAM])


def later(kind: TopicType, ms: int = 1_000) -> int:
    """A score of its type: due in `ms`, or that priority."""
    return T0 + ms if kind is TopicType.FIXED_TIME else ms


def stored(kind: TopicType, ms: int = 1_000) -> int:
    return ms if kind is TopicType.PRIORITY else T0 + ms


@every_type
def test_a_batch_of_1000_odd_contents_and_bodies(kind: TopicType, make_slot: MakeSlot) -> None:
    # pitfall 12
    slot = make_slot(kind)
    names = ODD + [b"%d" % number for number in range(1_000 - len(ODD))]
    assert slot.send(*((name, later(kind)) for name in names)).new == 1_000
    result = slot.send(*((name, later(kind), name[:9]) for name in names), detailed=True)
    assert (result.new, result.merged, result.outcomes) == (0, 1_000, (False,) * 1_000)
    state = slot.state()
    assert replace(state, hints=[]) == SlotState(
        store=dict.fromkeys(names, stored(kind)),
        body={name: name[:9] for name in names},
        totals={"accepted": 2_000, "merged": 1_000},
    )


@every_type
def test_a_batch_merges_with_itself(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    batch = (b"a", later(kind, 500), b"1"), (b"b", later(kind, 600), b"2"), (b"a", later(kind, 400))
    assert slot.send(*batch, detailed=True).outcomes == (True, True, False)
    first_stands = kind is TopicType.RANGE_MERGE
    state = slot.state()
    assert state.store == {b"a": stored(kind, 500 if first_stands else 400), b"b": stored(kind, 600)}
    assert state.body == {b"a": b"1", b"b": b"2"}
    assert state.totals == {"accepted": 3, "merged": 1}


@every_type
def test_the_newest_body_stands_and_a_send_without_one_leaves_it(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    slot.send((b"a", later(kind), b"old"), (b"b", later(kind)), (b"c", later(kind), b"old"))
    slot.send((b"a", later(kind), b"new"), (b"b", later(kind), b"first"), (b"c", later(kind)))
    assert slot.state().body == {b"a": b"new", b"b": b"first", b"c": b"old"}
    slot.send((b"a", later(kind)), (b"b", later(kind), b""), (b"c", later(kind), b"x" * 5_000))
    assert slot.state().body == {b"a": b"new", b"b": b"", b"c": b"x" * 5_000}
    assert not slot.client.hexists(slot.keys.meta, "body_bound")


@every_type
def test_a_trace_context_alone_is_no_body(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    old, new, bodied, foreign = wrap(None, "00-1"), wrap(None, "00-2"), wrap(b"", "00-3"), b"\x00rmq:trace\x000"
    stored = {b"a": b"old", b"b": old, b"c": bodied, b"d": b"old"}
    slot.send(*((name, later(kind), body) for name, body in stored.items()))
    slot.send(*((name, later(kind), new) for name in (b"a", b"b", b"c")), (b"d", later(kind), foreign))
    assert slot.state().body == stored | {b"b": new, b"d": foreign}
    slot.send((b"a", later(kind), bodied), (b"b", later(kind), bodied))
    assert slot.state().body == {b"a": bodied, b"b": bodied, b"c": bodied, b"d": foreign}


@every_type
def test_a_send_never_merges_with_what_is_in_flight_waiting_or_dead(kind: TopicType, make_slot: MakeSlot) -> None:
    # pitfall 34
    slot = make_slot(kind)
    names = [b"held", b"waiting", b"dead"]
    before = slot.seed(
        SlotState(
            prepare={b"held": slot.claim_score(2)},
            retry={b"waiting": slot.claim_score(2)},
            dead={b"dead": 1},
            reason={b"dead": {}},
            dead_body={b"dead": b"old"},
            body={b"held": b"old", b"waiting": b"old"},
        )
    )
    assert slot.send(*((name, later(kind), b"fresh") for name in names)).new == 3
    assert slot.state() == replace(
        before,
        store=dict.fromkeys(names, stored(kind)),
        body=dict.fromkeys(names, b"fresh"),
        totals={"accepted": 6},
        hints=slot.state().hints,
    )


@every_type
def test_a_fresh_send_without_a_body_takes_the_old_one_away(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    slot.seed(SlotState(prepare={b"held": slot.claim_score(2)}, body={b"held": b"old"}))
    slot.send((b"held", later(kind)))
    assert slot.state().body == {}


@every_type
def test_a_full_backlog_refuses_the_whole_batch(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind, max_backlog=3)
    slot.send((b"a", later(kind)), (b"b", later(kind)))
    before = slot.dump()
    with pytest.raises(BacklogFullError, match="holds 2 messages; its share of max_backlog is 3"):
        slot.send((b"b", later(kind)), (b"c", later(kind)), (b"d", later(kind)))
    assert slot.dump() == before
    assert slot.send((b"a", later(kind)), (b"c", later(kind)), (b"c", later(kind))).merged == 2


@every_type
def test_merging_needs_no_room_even_beyond_the_bound(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind, max_backlog=1)
    slot.seed(SlotState(store={b"a": 3, b"rolled back": 2}))
    assert slot.send((b"a", later(kind))).merged == 1


@pytest.mark.parametrize(
    ("kind", "store", "in_flight", "sent", "hint"),
    [
        (TopicType.FIXED_TIME, {}, 0, T0 + 9, [T0 + 9]),
        (TopicType.FIXED_TIME, {b"x": T0 + 9}, 0, T0 + 8, [T0 + 8]),
        (TopicType.FIXED_TIME, {b"x": T0 + 9}, 0, T0 + 10, []),
        (TopicType.FIXED_TIME, {b"x": T0 + 9}, 1, T0 + 10, [T0 + 10]),  # x may be in flight: nobody waits for it
        (TopicType.RANGE_MERGE, {b"x": T0 + 9}, 0, 8, [T0 + 8]),
        (TopicType.RANGE_MERGE, {b"x": T0 + 9}, 0, 10, []),
        (TopicType.RANGE_MERGE, {b"new": T0 + 9}, 0, 8, []),  # merged: nothing is due earlier
        (TopicType.PRIORITY, {b"x": 90}, 0, 80, [0]),
    ],
)
def test_hints(
    kind: TopicType, store: dict[bytes, int], in_flight: int, sent: int, hint: list[int], make_slot: MakeSlot
) -> None:
    slot = make_slot(kind)
    slot.seed(SlotState(store=store, prepare={b"%d" % n: slot.claim_score(1) for n in range(in_flight)}))
    slot.send((b"new", sent))
    assert slot.state().hints == hint


@every_type
def test_a_hint_reaches_subscribers(kind: TopicType, make_slot: MakeSlot, redis_client: redis.Redis) -> None:
    slot = make_slot(kind)
    with redis_client.pubsub(ignore_subscribe_messages=True) as subscriber:
        subscriber.subscribe(slot.keys.wake)
        wait_until(lambda: redis_client.pubsub_numsub(slot.keys.wake)[0][1])
        slot.run(sends.send_calls(slot.topic)(0, [EncodedMessage(0, b"a", later(kind), None)]))
        message = wait_until(lambda: subscriber.get_message(timeout=0.1))
    assert message is not None
    assert int(message["data"]) == (0 if kind is TopicType.PRIORITY else T0 + 1_000)
