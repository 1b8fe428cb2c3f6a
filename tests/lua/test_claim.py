from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from rmq import calls
from rmq.calls import Nack
from rmq.errors import EnsembleMismatchError, FencedError
from rmq.ownership import Owner
from rmq.results import Claimed
from rmq.topics import TopicType
from tests.conftest import MakeSlot
from tests.support.slots import T0, SlotState

NOW_S = T0 // 1000
FRESH = NOW_S * 1000 + 16
timed = pytest.mark.parametrize("kind", [TopicType.RANGE_MERGE, TopicType.FIXED_TIME])
both_orders = pytest.mark.parametrize("kind", [TopicType.FIXED_TIME, TopicType.PRIORITY])


def held(left: int = 16, ago_s: int = 0) -> int:
    return (NOW_S - ago_s) * 1000 + left


# what is taken


@timed
def test_due_ones_lowest_first(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    before = slot.seed(
        SlotState(store={b"now": T0, b"early": T0 - 9, b"next ms": T0 + 1, b"again": 3}, body={b"early": b"1"})
    )
    reply = slot.claim()
    assert reply.messages == (
        Claimed(b"again", 3, held(2), None),
        Claimed(b"early", T0 - 9, FRESH, b"1"),
        Claimed(b"now", T0, FRESH, None),
    )
    assert (reply.now_ms, reply.next_due_ms, reply.resume, reply.swept, reply.stale) == (T0, T0 + 1, 0, 0, ())
    assert slot.state() == replace(
        before,
        store={b"next ms": T0 + 1},
        prepare={b"again": held(2), b"early": FRESH, b"now": FRESH},
        totals={"accepted": 4, "delivered": 3},
    )


def test_nothing_is_leased_before_it_is_due(make_slot: MakeSlot) -> None:
    # pitfall 29
    slot = make_slot(TopicType.FIXED_TIME)
    before = slot.seed(SlotState(store={b"a": T0 + 10**9}))
    assert slot.claim().messages == ()
    assert slot.state() == before


def test_priorities_highest_first_and_rolled_back_ones_last(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.seed(SlotState(store={b"low": 17, b"again": 16, b"high": 2**53 - 1, b"last": 1}))
    reply = slot.claim()
    assert [(m.content, m.claim_score) for m in reply.messages] == [
        (b"high", FRESH),
        (b"low", FRESH),
        (b"again", held(15)),
        (b"last", held(0)),
    ]
    assert slot.state().store == {}


def test_an_attempt_counts_from_the_claim_on(make_slot: MakeSlot) -> None:
    # pitfall 32: whoever dies with the message in hand has used up a retry
    slot = make_slot(max_retries=2, lease=timedelta(seconds=5))
    slot.send((b"a", 1))
    for left in (2, 1, 0):
        slot.advance(10_000)
        assert [m.claim_score % 1000 for m in slot.claim().messages] == [left]
    slot.advance(10_000)
    assert slot.claim().messages == ()
    assert slot.state().reason[b"a"]["attempts"] == 3


@both_orders
def test_10000_in_batches_of_1000(kind: TopicType, make_slot: MakeSlot) -> None:
    # pitfall 12, 16
    slot = make_slot(kind)
    slot.seed(SlotState(store={b"%d" % number: 1_000 + number for number in range(10_000)}))
    seen: list[int] = []
    acks: list[tuple[bytes, int]] = []
    for _ in range(10):
        reply = slot.claim(1_000, acks=acks)
        seen += [m.store_score for m in reply.messages]
        acks = [(m.content, m.claim_score) for m in reply.messages]
    slot.claim(0, acks=acks)
    assert seen == sorted(range(1_000, 11_000), reverse=kind is TopicType.PRIORITY)
    assert slot.state() == SlotState(totals={"accepted": 10_000, "delivered": 10_000, "acked": 10_000})


@both_orders
def test_what_is_in_flight_is_skipped_and_blocks_nobody(kind: TopicType, make_slot: MakeSlot) -> None:
    # pitfall 34
    slot = make_slot(kind)
    scores = {b"%02d" % number: 100 + number for number in range(20)}
    flying = {name: held() for name in list(scores)[::2]}
    before = slot.seed(SlotState(store=scores, prepare=flying))
    free = [name for name in scores if name not in flying]
    taken = [m.content for limit in (1, 2, 100) for m in slot.claim(limit).messages]
    assert taken == (free if kind.timed else free[::-1])
    state = slot.state()
    assert state.store == {name: scores[name] for name in flying}
    assert state.prepare == before.prepare | dict.fromkeys(free, FRESH)


@both_orders
def test_the_search_resumes_behind_what_it_has_seen(kind: TopicType, make_slot: MakeSlot) -> None:
    # pitfall 16: what was claimed on the way has left the ranks
    slot = make_slot(kind)
    scores = list(range(1_000, 11_000)) if kind.timed else list(range(11_000, 1_000, -1))
    store = {b"%d" % number: score for number, score in enumerate(scores)}
    free = [b"1", b"2", b"3", b"5010", b"5011", b"9999"]
    slot.seed(SlotState(store=store, prepare={name: held() for name in store if name not in free}))
    taken, start = list[bytes](), 0
    for _ in range(4):
        reply = slot.claim(10, start=start)
        taken += [m.content for m in reply.messages]
        start = reply.resume
    assert (taken, start) == (free, 0)


@both_orders
def test_more_in_flight_in_front_than_one_call_may_search(kind: TopicType, make_slot: MakeSlot) -> None:
    # pitfall 16, 33: the search is bounded, the next one resumes
    slot = make_slot(kind)
    front = {b"%d" % number: 50_000 if kind is TopicType.PRIORITY else 1_000 for number in range(10_000)}
    behind = {b"behind %d" % number: 2_000 + number for number in range(3)}
    slot.seed(SlotState(store=front | behind, prepare=dict.fromkeys(front, held())))
    start, claims, taken = 0, 0, []
    while len(taken) < 3:
        reply = slot.claim(1, start=start)
        taken += [m.content for m in reply.messages]
        start, claims = reply.resume, claims + 1
        assert reply.messages or reply.next_due_ms <= reply.now_ms
        assert claims <= 9
    assert taken == (list(behind) if kind.timed else list(behind)[::-1])
    assert slot.state().store == front


def test_what_a_resumed_search_jumped_over_is_found_by_the_next_look(make_slot: MakeSlot) -> None:
    # pitfall 26: something in front became free while the search went on behind it
    slot = make_slot(TopicType.FIXED_TIME)
    front = {b"%04d" % number: 1_000 for number in range(6_000)}
    slot.seed(SlotState(store=front, prepare=dict.fromkeys(front, held())))
    first = slot.claim(10)
    slot.ack((b"0000", held()))
    second = slot.claim(10, start=first.resume)
    assert (second.messages, second.resume) == ((), 0)
    assert slot.run(calls.look(slot.topic, [0])) == (T0, [1_000])
    assert [m.content for m in slot.claim(10).messages] == [b"0000"]


def test_a_fresh_send_overtakes_its_own_waiting_retry(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(SlotState(store={b"a": T0}, retry={b"a": held(3, -100), b"b": held(3, -100)}))
    slot.claim()
    assert slot.state() == replace(
        before,
        store={},
        prepare={b"a": FRESH},
        retry={b"b": held(3, -100)},
        totals={"accepted": 3, "merged": 1, "delivered": 1},
    )


def test_16_digit_times_are_exact(make_slot: MakeSlot) -> None:
    # pitfall 13
    slot = make_slot(TopicType.FIXED_TIME)
    slot.set_clock(1_780_000_000_123_456)
    slot.seed(SlotState(store={b"a": 1_780_000_000_123_456, b"b": 1_780_000_000_123_455, b"c": 2**53 - 1}))
    reply = slot.claim()
    assert (reply.now_ms, reply.next_due_ms) == (1_780_000_000_123_456, 1_780_000_000_184_000)
    assert [m.store_score for m in reply.messages] == [1_780_000_000_123_455, 1_780_000_000_123_456]
    assert slot.state().prepare == dict.fromkeys([b"a", b"b"], 1_780_000_000_123_016)


def test_the_largest_score_that_is_due(make_slot: MakeSlot) -> None:
    # pitfall 13
    slot = make_slot(TopicType.FIXED_TIME)
    slot.set_clock(2**53 - 1)
    slot.seed(SlotState(store={b"a": 2**53 - 1}))
    assert slot.claim().messages == (Claimed(b"a", 2**53 - 1, (2**53 - 1) // 1000 * 1000 + 16, None),)


# when to come back


@pytest.mark.parametrize(
    ("kind", "state", "limit", "next_due_ms"),
    [
        (TopicType.FIXED_TIME, SlotState(), 10, 0),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0 + 7}), 10, T0 + 7),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0 + 7}), 0, T0 + 7),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0, b"b": T0}), 1, T0),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0, b"b": T0}), 0, T0),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0}), 10, (NOW_S + 61) * 1000),
        (TopicType.FIXED_TIME, SlotState(prepare={b"a": held(1, 20)}), 10, (NOW_S + 41) * 1000),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0}, prepare={b"a": held()}), 10, (NOW_S + 61) * 1000),
        (TopicType.FIXED_TIME, SlotState(retry={b"a": held(1, -5)}), 10, (NOW_S + 5) * 1000),
        (TopicType.FIXED_TIME, SlotState(retry={b"a": held(1, -5)}, store={b"b": T0 + 9}), 10, T0 + 9),
        (TopicType.PRIORITY, SlotState(store={b"a": 50, b"b": 50}), 1, T0),
        (TopicType.PRIORITY, SlotState(store={b"a": 50}, prepare={b"a": held()}), 10, (NOW_S + 61) * 1000),
        (TopicType.PRIORITY, SlotState(retry={b"a": held(1, -5)}), 10, (NOW_S + 5) * 1000),
    ],
)
def test_the_next_due_time(
    kind: TopicType, state: SlotState, limit: int, next_due_ms: int, make_slot: MakeSlot
) -> None:
    slot = make_slot(kind)
    slot.seed(state)
    assert slot.claim(limit).next_due_ms == next_due_ms


def test_a_paused_slot_hands_out_nothing_but_settles_and_sweeps(make_slot: MakeSlot) -> None:
    slot = make_slot()
    slot.seed(
        SlotState(
            store={b"a": T0}, prepare={b"b": held(), b"c": held(3, 100)}, retry={b"d": held(2)}, owner={"paused": "1"}
        )
    )
    reply = slot.claim(acks=[(b"b", held())])
    assert (reply.messages, reply.swept, reply.next_due_ms) == ((), 2, 0)
    state = slot.state()
    assert (state.store, state.prepare, state.retry) == ({b"a": T0, b"c": 3, b"d": 2}, {}, {})
    slot.client.hdel(slot.keys.meta, "paused")
    assert len(slot.claim().messages) == 3


# the sweep


def test_a_lease_holds_to_the_end_of_its_last_second(make_slot: MakeSlot) -> None:
    slot = make_slot()
    slot.seed(SlotState(prepare={b"a": held(3, 60), b"b": held(3, 61)}))
    assert slot.claim(0).swept == 1
    assert slot.state().prepare == {b"a": held(3, 60)}
    slot.set_clock((NOW_S + 1) * 1000)
    assert slot.claim(0).swept == 1


def test_an_expired_lease_goes_back_and_is_delivered_at_once(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(SlotState(prepare={b"a": held(3, 100)}, body={b"a": b"1"}))
    assert slot.claim().messages == (Claimed(b"a", 3, held(2), b"1"),)
    now = str(T0)
    message = "delivery 14 was neither acked nor nacked within its lease"
    assert slot.state() == replace(
        before,
        prepare={b"a": held(2)},
        error={b"a": {"first_ms": now, "last_ms": now, "type": "LeaseExpired", "message": message}},
        totals={"accepted": 1, "retried": 1, "expired": 1, "delivered": 1},
    )


def test_an_expired_lease_onto_a_fresh_copy(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(
        SlotState(
            store={b"a": T0 + 9, b"b": T0 + 9}, prepare={b"a": held(3, 100), b"b": held(0, 100)}, body={b"a": b"1"}
        )
    )
    slot.claim()
    assert slot.state() == replace(
        before, prepare={}, totals={"accepted": 4, "merged": 2, "exhausted": 1, "expired": 2}
    )


def test_used_up_retries_end_with_the_dead(make_slot: MakeSlot) -> None:
    slot = make_slot()
    failure = {"first_ms": "5", "last_ms": "6", "type": "E", "message": "m"}
    slot.seed(SlotState(prepare={b"a": held(0, 100)}, body={b"a": b"1"}, error={b"a": failure}))
    assert slot.claim().swept == 1
    message = "delivery 17 was neither acked nor nacked within its lease"
    reason = {"first_ms": "5", "last_ms": str(T0), "type": "LeaseExpired", "message": message, "attempts": 17}
    assert slot.state() == SlotState(
        dead={b"a": T0},
        reason={b"a": reason},
        dead_body={b"a": b"1"},
        totals={"accepted": 1, "expired": 1, "buried": 1},
    )


def test_due_retries_go_to_store_and_merge_with_a_fresh_copy(make_slot: MakeSlot) -> None:
    slot = make_slot()
    retry = {b"due": held(3, 1), b"this second": held(2), b"next second": held(2, -1), b"fresh": held(4)}
    before = slot.seed(SlotState(store={b"fresh": T0 + 9}, retry=retry, error={b"fresh": {}, b"due": {}}))
    assert slot.claim(0).swept == 3
    assert slot.state() == replace(
        before,
        store={b"due": 3, b"this second": 2, b"fresh": T0 + 9},
        retry={b"next second": held(2, -1)},
        error={b"due": {}},
        totals={"accepted": 5, "merged": 1},
    )


def test_the_sweep_takes_the_oldest_first_until_nothing_is_left(make_slot: MakeSlot) -> None:
    # pitfall 28
    slot = make_slot()
    expired = {b"p%d" % number: held(3, 100 + number) for number in range(700)}
    waiting = {b"r%d" % number: held(3, 1 + number) for number in range(700)}
    slot.seed(SlotState(prepare=expired, retry=waiting))
    reply = slot.claim(0, sweep_limit=256)
    assert (reply.swept, reply.next_due_ms) == (512, T0)
    assert set(slot.state().prepare) == set(list(expired)[: 700 - 256])
    assert set(slot.state().retry) == set(list(waiting)[: 700 - 256])
    assert [slot.claim(0, sweep_limit=256).swept for _ in range(3)] == [512, 376, 0]
    assert slot.state().store == dict.fromkeys([*expired, *waiting], 3)


def test_the_dead_are_bounded_by_age_and_by_count(make_slot: MakeSlot) -> None:
    # pitfall 36
    slot = make_slot(max_dead=3, max_dead_age=10_000)
    ages = {b"%d" % age_ms: T0 - age_ms for age_ms in (20_000, 10_001, 10_000, 5_000, 4_000)}
    seeded = {"reason": {key: {} for key in ages}, "dead_body": dict.fromkeys(ages, b"1")}
    slot.seed(SlotState(dead=ages, **seeded))
    slot.claim()
    kept = [b"10000", b"5000", b"4000"]
    assert slot.state() == SlotState(
        dead={name: ages[name] for name in kept},
        reason={key: {} for key in kept},
        dead_body=dict.fromkeys(kept, b"1"),
        totals={"accepted": 5, "trimmed": 2},
    )
    slot.nack(Nack(b"x", 1))
    slot.seed(SlotState(dead={b"3000": T0 - 3_000}, reason={b"3000": {}}))
    slot.client.hset(slot.keys.meta, "accepted", 6)
    slot.claim()
    assert list(slot.state().dead) == [b"5000", b"4000", b"3000"]


def test_a_flood_of_dead_is_trimmed_1000_a_call(make_slot: MakeSlot) -> None:
    # pitfall 16, 36
    slot = make_slot(max_dead=0)
    slot.seed(SlotState(dead={b"%d" % number: T0 for number in range(2_500)}))
    assert [len(slot.state().dead) for _ in range(4) if slot.claim()] == [1_500, 500, 0, 0]


# settling what was claimed before


def test_acks_and_nacks_ride_along_and_stale_ones_are_told(make_slot: MakeSlot) -> None:
    # pitfall 31
    slot = make_slot()
    prepare = {b"done": held(3), b"failed": held(3), b"delayed": held(3), b"theirs": held(2)}
    slot.seed(SlotState(prepare=prepare, body={b"done": b"1", b"failed": b"2"}))
    reply = slot.claim(
        acks=[(b"done", held(3)), (b"theirs", held(3)), (b"gone", 1)],
        nacks=[Nack(b"failed", held(3)), Nack(b"delayed", held(3), "retry", 2_000), Nack(b"theirs", held(1))],
    )
    assert reply.stale == (b"theirs", b"theirs", b"gone")
    assert reply.messages == (Claimed(b"failed", 3, held(2), b"2"),)
    state = slot.state()
    assert state.prepare == {b"failed": held(2), b"theirs": held(2)}
    assert state.retry == {b"delayed": (NOW_S + 3) * 1000 + 3}
    assert state.body == {b"failed": b"2"}
    assert state.totals == {"accepted": 4, "acked": 1, "retried": 2, "delivered": 1}


@pytest.mark.parametrize(
    ("state", "whole", "unmatched", "left"),
    [
        (SlotState(), (held(), 2, b"a"), (), {}),
        (SlotState(store={b"a": T0 + 9}), (held(), 2, b"a"), (), {}),  # beside a fresh copy
        (SlotState(), (held(), 1, b"a"), (held(),), {b"a", b"b"}),  # one is somebody else's
        (SlotState(), (held(), 3, b"a"), (held(),), {b"a", b"b"}),
        (SlotState(), (held(15), 2, b"a"), (held(15),), {b"a", b"b"}),
        (SlotState(), (held(), 2, b"ours"), (held(),), {b"a", b"b"}),  # as many, but not those
        (SlotState(body={b"a": b"1"}), (held(), 2, b"a"), (held(),), {b"a", b"b"}),
        (SlotState(error={b"a": {}}), (held(), 2, b"a"), (held(),), {b"a", b"b"}),
    ],
)
def test_a_whole_claim_is_acked_without_names_if_it_must_be_the_one(
    state: SlotState, whole: tuple[int, int, bytes], unmatched: tuple[int, ...], left: set[bytes], make_slot: MakeSlot
) -> None:
    # pitfall 31
    slot = make_slot()
    before = slot.seed(replace(state, prepare={b"a": held(), b"b": held(), b"c": held(16, 5)}))
    assert slot.claim(0, whole=[whole]).unmatched == unmatched
    acked = {"acked": 2 - len(left)} if not left else {}
    assert slot.state() == replace(
        before,
        prepare={b"c": held(16, 5)} | dict.fromkeys(sorted(left), held()),
        totals=before.totals | acked,
    )


def test_a_whole_claim_is_not_acked_after_its_lease(make_slot: MakeSlot) -> None:
    # pitfall 31: by then others may have claimed just as many in the second of its score
    slot = make_slot()
    slot.seed(SlotState(prepare={b"a": held(16, 60), b"b": held(16, 61)}))
    assert slot.claim(0, whole=[(held(16, 60), 1, b"a"), (held(16, 61), 1, b"b")]).unmatched == (held(16, 61),)
    assert slot.state().totals == {"accepted": 2, "acked": 1, "expired": 1, "retried": 1}


# owners


def test_an_older_owner_is_refused_and_changes_nothing(make_slot: MakeSlot) -> None:
    # pitfall 41
    slot = make_slot()
    slot.seed(SlotState(store={b"a": T0}, prepare={b"b": held()}, owner={"epoch": "7", "ensemble": "zk"}))
    before = slot.dump()
    for owner in (Owner(6, "zk"), Owner()):
        with pytest.raises(FencedError, match="epoch 7"):
            slot.claim(acks=[(b"b", held())], owner=owner)
    with pytest.raises(EnsembleMismatchError, match="ensemble zk,"):
        slot.claim(owner=Owner(8, "other"))
    assert slot.dump() == before


def test_a_newer_owner_is_written_down(make_slot: MakeSlot) -> None:
    slot = make_slot()
    slot.claim(owner=Owner(7, "zk"))
    assert slot.state() == SlotState(owner={"epoch": "7", "ensemble": "zk"})
    slot.claim(owner=Owner(7, "zk"))
    slot.claim(owner=Owner(8, "zk"))
    assert slot.state().owner == {"epoch": "8", "ensemble": "zk"}


@pytest.mark.parametrize("later", [1, 2])
def test_the_next_due_time_is_that_of_the_first_one_that_is_not_due(later: int, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(SlotState(store={b"a": T0 - 1} | {b"l%d" % n: T0 + 5_000 + n for n in range(later)}))
    assert slot.claim(10).next_due_ms == T0 + 5_000
    assert slot.claim(10).next_due_ms == T0 + 5_000  # and where nothing is due


def test_what_an_earlier_second_claimed_is_skipped(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    earlier = (T0 // 1000 - 5) * 1000 + slot.topic.max_retries
    slot.seed(SlotState(store={b"a": T0 - 2, b"b": T0 - 1}, prepare={b"a": earlier}))
    assert [message.content for message in slot.claim(10).messages] == [b"b"]
    assert slot.state().prepare[b"a"] == earlier
