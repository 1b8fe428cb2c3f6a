from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from rmq import Owner, TopicType
from rmq.errors import EnsembleMismatchError, FencedError
from tests.conftest import MakeSlot
from tests.support.claims import Claimed
from tests.support.core import Nack, control
from tests.support.core import claims as claiming
from tests.support.slots import T0, SlotState

NOW_S = T0 // 1000
FRESH = T0 * 1000 + 16
timed = pytest.mark.parametrize("kind", [TopicType.RANGE_MERGE, TopicType.FIXED_TIME])
both_orders = pytest.mark.parametrize("kind", [TopicType.FIXED_TIME, TopicType.PRIORITY])


def held(left: int = 16, ago_s: int = 0, stamps_later: int = 0) -> int:
    """The claim score of a delivery claimed so long ago; a claim in its millisecond has the next stamp."""
    return (T0 - ago_s * 1000 + stamps_later) * 1000 + left


def waiting_until(left: int, ago_s: int = 0) -> int:
    """The retry score of a message that was due so long ago."""
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
    flying = {name: held(ago_s=1) for name in list(scores)[::2]}
    before = slot.seed(SlotState(store=scores, prepare=flying))
    free = [name for name in scores if name not in flying]
    claimed = [m for limit in (1, 2, 100) for m in slot.claim(limit).messages]
    taken = [m.content for m in claimed]
    assert taken == (free if kind.timed else free[::-1])
    state = slot.state()
    assert state.store == {name: scores[name] for name in flying}
    assert state.prepare == before.prepare | {m.content: m.claim_score for m in claimed}
    assert {m.claim_score for m in claimed} == {FRESH, held(stamps_later=1), held(stamps_later=2)}


@both_orders
def test_the_search_resumes_behind_what_it_has_seen(kind: TopicType, make_slot: MakeSlot) -> None:
    # pitfall 16, 33: the search is bounded; what was claimed on the way has left the ranks
    slot = make_slot(kind)
    scores = list(range(1_000, 11_000)) if kind.timed else list(range(11_000, 1_000, -1))
    store = {b"%d" % number: score for number, score in enumerate(scores)}
    free = [b"1", b"2", b"3", b"5010", b"5011", b"9999"]
    slot.seed(SlotState(store=store, prepare={name: held() for name in store if name not in free}))
    taken, start, claims = list[bytes](), 0, 0
    while claims == 0 or start > 0:
        reply = slot.claim(10, start=start)
        taken += [m.content for m in reply.messages]
        start, claims = reply.resume, claims + 1
        assert start == 0 or reply.next_due_ms <= reply.now_ms
        assert claims <= 33
    assert taken == free


@both_orders
def test_a_search_resumes_right_behind_what_it_has_seen(kind: TopicType, make_slot: MakeSlot) -> None:
    """Wherever the bound is, what follows it is found, although what was claimed has left the ranks before it."""
    slot = make_slot(kind)
    store = {b"%04d" % number: 1_000 + number for number in range(3_000)}
    free = [b"%04d" % number for number in (*range(5), *range(990, 1_100), *range(1_800, 2_300), *range(2_995, 3_000))]
    slot.seed(SlotState(store=store, prepare={name: held() for name in store if name not in free}))
    taken, start, claims = list[bytes](), 0, 0
    while claims == 0 or start > 0:
        reply = slot.claim(1_000, start=start)
        taken += [m.content for m in reply.messages]
        start, claims = reply.resume, claims + 1
    assert sorted(taken) == free
    assert claims > 1


def test_what_a_resumed_search_jumped_over_is_found_by_the_next_look(make_slot: MakeSlot) -> None:
    # pitfall 26: something in front became free while the search went on behind it
    slot = make_slot(TopicType.FIXED_TIME)
    front = {b"%04d" % number: 1_000 for number in range(6_000)}
    slot.seed(SlotState(store=front, prepare=dict.fromkeys(front, held())))
    first = slot.claim(10)
    slot.ack((b"0000", held()))
    resume = first.resume
    while resume:
        reply = slot.claim(10, start=resume)
        assert (reply.messages, reply.resume > resume or reply.resume == 0) == ((), True)
        resume = reply.resume
    assert slot.run(claiming.look(slot.topic, [0])) == (T0, [1_000])
    assert [m.content for m in slot.claim(10).messages] == [b"0000"]


def test_a_fresh_send_overtakes_its_own_waiting_retry(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(SlotState(store={b"a": T0}, retry={b"a": waiting_until(3, -100), b"b": waiting_until(3, -100)}))
    slot.claim()
    assert slot.state() == replace(
        before,
        store={},
        prepare={b"a": FRESH},
        retry={b"b": waiting_until(3, -100)},
        totals={"accepted": 3, "merged": 1, "delivered": 1},
    )


def test_16_digit_scores_are_exact(make_slot: MakeSlot) -> None:
    # pitfall 13
    slot = make_slot(TopicType.FIXED_TIME)
    slot.set_clock(1_780_000_000_123)
    slot.seed(SlotState(store={b"a": 1_780_000_000_123, b"b": 1_780_000_000_122, b"c": 2**53 - 1}))
    reply = slot.claim()
    assert (reply.now_ms, reply.next_due_ms) == (1_780_000_000_123, 1_780_000_060_124)
    assert [m.store_score for m in reply.messages] == [1_780_000_000_122, 1_780_000_000_123]
    assert slot.state().prepare == dict.fromkeys([b"a", b"b"], 1_780_000_000_123_016)


def test_the_largest_score_that_is_due(make_slot: MakeSlot) -> None:
    # pitfall 13
    slot = make_slot(TopicType.FIXED_TIME)
    latest_ms = 2**53 // 1000 - 1  # in the year 2255
    slot.set_clock(latest_ms)
    slot.seed(SlotState(store={b"a": latest_ms}))
    assert slot.claim().messages == (Claimed(b"a", latest_ms, latest_ms * 1000 + 16, None),)


# when to come back


@pytest.mark.parametrize(
    ("kind", "state", "limit", "next_due_ms"),
    [
        (TopicType.FIXED_TIME, SlotState(), 10, 0),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0 + 7}), 10, T0 + 7),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0 + 7}), 0, T0 + 7),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0, b"b": T0}), 1, T0),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0, b"b": T0}), 0, T0),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0 - 9, b"b": T0 - 4, b"c": T0}), 1, T0 - 4),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0, b"b": T0 + 7}), 1, T0 + 7),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0}), 1, T0 + 60_001),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0, b"b": T0}, prepare={b"a": held()}), 1, T0),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0}), 10, T0 + 60_001),
        (TopicType.FIXED_TIME, SlotState(prepare={b"a": held(1, 20)}), 10, T0 + 40_001),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0}, prepare={b"a": held()}), 10, T0 + 60_001),
        (TopicType.FIXED_TIME, SlotState(retry={b"a": waiting_until(1, -5)}), 10, (NOW_S + 5) * 1000),
        (TopicType.FIXED_TIME, SlotState(retry={b"a": waiting_until(1, -5)}, store={b"b": T0 + 9}), 10, T0 + 9),
        (TopicType.PRIORITY, SlotState(store={b"a": 50, b"b": 50}), 1, T0),
        (TopicType.PRIORITY, SlotState(store={b"a": 50}), 1, T0 + 60_001),
        (TopicType.PRIORITY, SlotState(store={b"a": 50, b"b": 40}, prepare={b"a": held()}), 1, T0),
        (TopicType.PRIORITY, SlotState(store={b"a": 50}, prepare={b"a": held()}), 10, T0 + 60_001),
        (TopicType.PRIORITY, SlotState(retry={b"a": waiting_until(1, -5)}), 10, (NOW_S + 5) * 1000),
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
            store={b"a": T0},
            prepare={b"b": held(), b"c": held(3, 100)},
            retry={b"d": waiting_until(2)},
            owner={"paused": "1"},
        )
    )
    reply = slot.claim(acks=[(b"b", held())])
    assert (reply.messages, reply.swept, reply.next_due_ms) == ((), 2, 0)
    state = slot.state()
    assert (state.store, state.prepare, state.retry) == ({b"a": T0, b"c": 3, b"d": 2}, {}, {})
    slot.client.hdel(slot.keys.meta, "paused")
    assert len(slot.claim().messages) == 3


# the sweep


def test_a_lease_holds_to_the_end_of_its_last_millisecond(make_slot: MakeSlot) -> None:
    slot = make_slot()
    slot.seed(SlotState(prepare={b"a": held(3, 60), b"b": held(3, 60, -1)}))
    reply = slot.claim(0)
    assert (reply.swept, reply.next_due_ms) == (1, 3)  # what was swept is due at once
    assert slot.state().prepare == {b"a": held(3, 60)}
    slot.advance(1)
    assert slot.claim(0).swept == 1


def test_an_expired_lease_goes_back_and_is_delivered_at_once(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(SlotState(prepare={b"a": held(3, 100)}, body={b"a": b"1"}))
    assert slot.claim().messages == (Claimed(b"a", 3, held(2), b"1"),)
    now = str(T0)
    failure = {"first_ms": now, "last_ms": now, "type": "LeaseExpired", "claim": str(held(3, 100)), "merged": "0"}
    failure["message"] = "delivery 14 was neither acked nor nacked within its lease"
    assert slot.state() == replace(
        before,
        prepare={b"a": held(2)},
        error={b"a": failure},
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
    now = str(T0)
    failures = {  # kept until the ack, without the claims that have ended: the copies are other messages
        content: {
            "first_ms": now, "last_ms": now, "type": "LeaseExpired",
            "message": f"delivery {attempt} was neither acked nor nacked within its lease",
        }
        for content, attempt in ((b"a", 14), (b"b", 17))
    }  # fmt: skip
    assert slot.state() == replace(
        before, prepare={}, error=failures, totals={"accepted": 4, "merged": 2, "exhausted": 1, "expired": 2}
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
    retry = {b"due": waiting_until(3, 1), b"this second": waiting_until(2), b"fresh": waiting_until(4)}
    retry[b"next second"] = waiting_until(2, -1)
    before = slot.seed(SlotState(store={b"fresh": T0 + 9}, retry=retry, error={b"fresh": {}, b"due": {}}))
    assert slot.claim(0).swept == 3
    assert slot.state() == replace(
        before,
        store={b"due": 3, b"this second": 2, b"fresh": T0 + 9},
        retry={b"next second": waiting_until(2, -1)},
        error={b"due": {}},
        totals={"accepted": 5, "merged": 1},
    )


def test_the_sweep_takes_the_oldest_first_until_nothing_is_left(make_slot: MakeSlot) -> None:
    # pitfall 28
    slot = make_slot()
    expired = {b"p%d" % number: held(3, 100 + number) for number in range(700)}
    waiting = {b"r%d" % number: waiting_until(3, 1 + number) for number in range(700)}
    slot.seed(SlotState(prepare=expired, retry=waiting))
    reply = slot.claim(0, sweep_limit=256)
    assert (reply.swept, reply.next_due_ms) == (192, T0)
    assert set(slot.state().prepare) == set(list(expired)[: 700 - 96])
    assert set(slot.state().retry) == set(list(waiting)[: 700 - 96])
    assert [slot.claim(0, sweep_limit=256).swept for _ in range(8)] == [*[192] * 6, 56, 0]
    assert slot.state().store == dict.fromkeys([*expired, *waiting], 3)


def test_the_dead_are_bounded_by_age_and_by_count(make_slot: MakeSlot) -> None:
    # pitfall 36
    slot = make_slot(max_dead=3, max_dead_age="10s")
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


def test_a_flood_of_dead_is_trimmed_250_a_call(make_slot: MakeSlot) -> None:
    # pitfall 16, 36
    slot = make_slot(max_dead=0)
    slot.seed(SlotState(dead={b"%d" % number: T0 for number in range(600)}))
    assert [len(slot.state().dead) for _ in range(4) if slot.claim()] == [350, 100, 0, 0]


# settling what was claimed before


def test_acks_and_nacks_ride_along_and_stale_ones_are_told(make_slot: MakeSlot) -> None:
    # pitfall 31
    slot = make_slot()
    prepare = dict.fromkeys([b"done", b"failed", b"delayed"], held(3, 1)) | {b"theirs": held(2, 1)}
    slot.seed(SlotState(prepare=prepare, body={b"done": b"1", b"failed": b"2"}))
    reply = slot.claim(
        acks=[(b"done", held(3, 1)), (b"theirs", held(3, 1)), (b"gone", 1)],
        nacks=[Nack(b"failed", held(3, 1)), Nack(b"delayed", held(3, 1), "retry", 2_000), Nack(b"theirs", held(1))],
    )
    assert reply.stale == (b"theirs", b"theirs", b"gone")
    assert reply.messages == (Claimed(b"failed", 3, held(2), b"2"),)
    state = slot.state()
    assert state.prepare == {b"failed": held(2), b"theirs": held(2, 1)}
    assert state.retry == {b"delayed": (NOW_S + 3) * 1000 + 3}
    assert state.body == {b"failed": b"2"}
    assert state.totals == {"accepted": 4, "acked": 1, "retried": 2, "delivered": 1}


@pytest.mark.parametrize(
    ("state", "whole", "unmatched", "left"),
    [
        (SlotState(), (held(), 2), (), {}),
        (SlotState(store={b"a": T0 + 9}), (held(), 2), (), {}),  # beside a fresh copy
        (SlotState(), (held(), 1), (held(),), {b"a", b"b"}),
        (SlotState(), (held(), 3), (held(),), {b"a", b"b"}),
        (SlotState(), (held(15), 2), (held(15),), {b"a", b"b"}),
        (SlotState(body={b"a": b"1"}), (held(), 2), (held(),), {b"a", b"b"}),
        (SlotState(error={b"a": {}}), (held(), 2), (held(),), {b"a", b"b"}),
    ],
)
def test_a_whole_claim_is_acked_without_names_if_it_must_be_the_one(
    state: SlotState, whole: tuple[int, int], unmatched: tuple[int, ...], left: set[bytes], make_slot: MakeSlot
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


def test_a_whole_claim_is_acked_after_its_lease_where_nobody_has_swept_it(make_slot: MakeSlot) -> None:
    slot = make_slot()
    slot.seed(SlotState(prepare={b"a": held(16, 61), b"b": held(16, 62), b"c": held(16, 62)}))
    assert slot.claim(0, whole=[(held(16, 61), 1), (held(16, 62), 1)]).unmatched == (held(16, 62),)
    assert slot.state().totals == {"accepted": 3, "acked": 1, "expired": 2, "retried": 2}


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


def test_what_is_in_flight_since_an_earlier_claim_is_skipped(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    earlier = (T0 - 5_000) * 1000 + slot.topic.max_retries
    slot.seed(SlotState(store={b"a": T0 - 2, b"b": T0 - 1}, prepare={b"a": earlier}))
    assert [message.content for message in slot.claim(10).messages] == [b"b"]
    assert slot.state().prepare[b"a"] == earlier


@pytest.mark.parametrize("promoted", [False, True])
@pytest.mark.parametrize("kind", [TopicType.FIXED_TIME, TopicType.RANGE_MERGE])
def test_what_waits_for_a_retry_does_not_expire_once_the_topic_has_none(
    kind: TopicType, promoted: bool, make_slot: MakeSlot
) -> None:
    slot = make_slot(kind, max_retries=0, ttl=timedelta(minutes=1))
    due_s = T0 // 1000 + (60 if promoted else -1)
    slot.seed(SlotState(retry={b"a": due_s * 1000 + 2}))  # two were left before the definition was changed
    if promoted:
        slot.run(control.promote(slot.topic, 0, [b"a"]))
    assert [message.content for message in slot.claim(10).messages] == [b"a"]
    state = slot.state()
    assert (state.dead, state.prepare[b"a"] % 1000) == ({}, 0)
