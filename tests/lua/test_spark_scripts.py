"""The scripts of streaming queries: the same batch again after a crash, and nothing of what others hold."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import repeat
from typing import Any, NamedTuple

import pytest

from rmq import Owner, Topic, TopicType
from rmq.errors import BatchAckedError, BatchLostError, DriverReplacedError, FencedError
from rmq.spark import calls as spark_calls
from rmq.spark.calls import Chunk, Claim, Driver, Entered, How, Reading, Settled, refuse_contents
from tests.conftest import MakeSlot
from tests.lua.cases import Example
from tests.support.core import Call, Nack, QueryKeys, query_keys, wrap
from tests.support.servers import RedisServer
from tests.support.slots import SlotState, SlotUnderTest, scripts_under_test, scripts_with_fake_clock

FIRST, SECOND = Driver("q1", 1), Driver("q1", 2)
BURY = How(None, "ValueError", "bad price")


def query_of(slot: SlotUnderTest) -> QueryKeys:
    return query_keys(slot.topic.name, 0, "q1")


def read(
    slot: SlotUnderTest,
    driver: Driver = FIRST,
    seq: int = 1,
    chunk: int = 0,
    limit: int = 1_000,
    max_replays: int = 10,
    strict: bool = True,
) -> Chunk:
    return slot.run(spark_calls.read(slot.topic, Reading(driver, seq, limit, max_replays, strict), 0, chunk, limit))


def ack(slot: SlotUnderTest, driver: Driver = FIRST, seq: int = 1, chunk: int = 0) -> Settled:
    return slot.run(spark_calls.settle(slot.topic, 0, driver, seq, chunk, "ack"))


def renew(slot: SlotUnderTest, driver: Driver = FIRST, seq: int = 1, chunk: int = 0) -> Settled:
    return slot.run(spark_calls.settle(slot.topic, 0, driver, seq, chunk, "renew"))


class Row(NamedTuple):
    content: bytes
    store_score: int
    body: bytes | None


def rows_of(chunk: Chunk) -> tuple[Row, ...]:
    return tuple(map(Row, chunk.contents, chunk.scores, chunk.bodies or repeat(None)))


def contents(chunk: Chunk) -> list[bytes]:
    return chunk.contents


def filled(
    make_slot: MakeSlot, number: int = 3, kind: TopicType = TopicType.PRIORITY, **settings: object
) -> SlotUnderTest:
    slot = make_slot(kind, **settings)
    slot.send(*((b"m%03d" % i, 1_000_000 + number - i) for i in range(number)))
    return slot


def test_a_chunk_is_claimed_once_and_then_the_same(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 5)
    first = read(slot, limit=3)
    assert first == Chunk(3, 0, 0, [b"m000", b"m001", b"m002"], [1_000_005, 1_000_004, 1_000_003], None)
    slot.send((b"urgent", 2_000_000))
    before = slot.dump()
    assert read(slot, limit=3) == first
    assert slot.dump() == before, "a second read changes nothing"
    assert contents(read(slot, chunk=1, limit=3)) == [b"urgent", b"m003", b"m004"]
    state = slot.state()
    assert state.store == {}
    assert set(state.prepare.values()) == {slot.claim_score(16), slot.claim_score(16, -0.001)}
    assert state.totals["delivered"] == 6


def test_a_short_or_empty_chunk_stays_so(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 1)
    assert contents(read(slot)) == [b"m000"]
    assert contents(read(slot, chunk=1)) == []
    slot.send((b"late", 5_000))
    assert contents(read(slot)) == [b"m000"]
    assert contents(read(slot, chunk=1)) == []
    assert contents(read(slot, seq=2)) == [b"late"]


def test_the_renewal_of_an_empty_chunk_takes_nothing_of_a_claim_in_its_millisecond(make_slot: MakeSlot) -> None:
    """An empty read uses up no stamp: the next claim of the slot has the same one."""
    slot = make_slot(TopicType.PRIORITY)
    assert contents(read(slot)) == contents(read(slot, chunk=1)) == []
    slot.send((b"theirs", 5_000), (b"second", 4_000))
    theirs = slot.claim(1).messages[0]
    held = slot.state().prepare
    assert renew(slot) == renew(slot, chunk=1) == Settled(0, 0)
    assert slot.state().prepare == held == {b"theirs": theirs.claim_score}
    assert contents(read(slot, chunk=2)) == [b"second"]
    assert renew(slot, chunk=1) == ack(slot) == Settled(0, 0)
    assert ack(slot, chunk=2) == Settled(1, 0)


def test_only_what_is_due_and_not_in_other_hands(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.send((b"due", slot.now_ms + 10), (b"held", slot.now_ms + 5), (b"later", slot.now_ms + 10**6))
    slot.advance(100)
    assert [claimed.content for claimed in slot.claim(1).messages] == [b"held"]
    slot.send((b"held", slot.now_ms + 5))
    slot.advance(100)
    assert contents(read(slot)) == [b"due"]


def test_chunks_of_one_millisecond_pass_over_what_was_sent_again(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 4)
    assert contents(read(slot, limit=2)) == [b"m000", b"m001"]
    slot.send((b"m000", 2_000_000))
    assert contents(read(slot, chunk=1)) == [b"m002", b"m003"]
    assert ack(slot) == ack(slot, chunk=1) == Settled(2, 0)
    assert contents(read(slot, seq=2)) == [b"m000"]
    assert ack(slot, seq=2) == Settled(1, 0)


def test_each_message_of_a_chunk_keeps_its_own_retries(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 1)
    read(slot)
    slot.advance(62_000)
    slot.claim(0)  # a sweep
    slot.send((b"new", 5_000))
    first = read(slot, seq=2)
    assert rows_of(first) == (Row(b"new", 5_000, None), Row(b"m000", 16, None))
    assert slot.state().prepare == {b"new": slot.claim_score(16), b"m000": slot.claim_score(15)}
    assert read(slot, seq=2) == first
    assert renew(slot, seq=2) == Settled(2, 0)
    assert read(slot, SECOND, seq=2) == first
    assert slot.state().prepare == {b"new": slot.claim_score(15, -0.002), b"m000": slot.claim_score(14, -0.002)}
    assert ack(slot, SECOND, seq=2) == Settled(2, 0)


def test_a_trace_that_came_with_a_body_is_not_part_of_it(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 5_000, wrap(b"body", "00-1-2-01")), (b"b", 4_000, wrap(None, "00-1-2-01")))
    assert rows_of(read(slot)) == (Row(b"a", 5_000, b"body"), Row(b"b", 4_000, None))


def test_bodies_are_those_of_the_claim(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 5_000, b"old"), (b"b", 4_000, None))
    rows = (Row(b"a", 5_000, b"old"), Row(b"b", 4_000, None))
    assert rows_of(read(slot)) == rows
    slot.send((b"a", 6_000, b"new"))
    assert rows_of(read(slot)) == rows
    assert ack(slot) == Settled(2, 0)
    assert not slot.client.exists(query_of(slot).body)
    assert slot.state().body == {b"a": b"new"}
    assert rows_of(read(slot, seq=2)) == (Row(b"a", 6_000, b"new"),)


def test_bodies_whose_copies_redis_has_dropped_are_not_given_out_as_none(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 5_000, b"body"), (b"b", 4_000, None), (b"c", 3_000, b"other"))
    read(slot, limit=2)
    slot.client.delete(query_of(slot).body)  # an eviction
    assert rows_of(read(slot, chunk=1)) == (Row(b"c", 3_000, b"other"),), "there are copies again, not of these two"
    for strict in (True, False):
        with pytest.raises(BatchLostError, match="evicted the bodies of 2 messages"):
            read(slot, limit=2, strict=strict)
    again = read(slot, SECOND, limit=2)
    assert (again.claimed, again.left_out, rows_of(again)) == (2, 2, ())
    assert rows_of(read(slot, SECOND, chunk=1)) == (Row(b"c", 3_000, b"other"),)
    assert [ack(slot, SECOND, chunk=chunk) for chunk in (0, 1)] == [Settled(0, 0), Settled(1, 0)]
    slot.advance(62_000)
    assert {(claimed.content, claimed.body) for claimed in slot.claim(2).messages} == {(b"a", b"body"), (b"b", None)}


def test_an_ack_takes_all_that_is_still_held(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    read(slot)
    assert ack(slot) == Settled(3, 0)
    assert ack(slot) == Settled(0, 0), "safe to repeat"
    state = slot.state()
    assert (state.prepare, state.totals["acked"]) == ({}, 3)


def test_an_ack_of_what_was_never_read_leaves_the_mark_and_the_messages(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    assert ack(slot) == Settled(0, 0)
    assert len(slot.state().store) == 3
    with pytest.raises(BatchAckedError):
        read(slot)


def test_a_late_read_of_an_acked_batch_claims_nothing(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    read(slot, limit=1)
    ack(slot)
    before = slot.dump()
    with pytest.raises(BatchAckedError, match="up to 1"):
        read(slot)
    with pytest.raises(BatchAckedError):
        read(slot, chunk=1)
    assert slot.dump() == before
    ack(slot, seq=2)
    with pytest.raises(BatchAckedError):
        ack(slot, seq=1)


def test_a_renewal_keeps_the_lease_and_the_order(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    first = read(slot)
    for _ in range(5):
        slot.advance(20_000)
        assert renew(slot) == Settled(3, 0)
        assert slot.claim(0).swept == 0
    assert read(slot) == first
    assert ack(slot) == Settled(3, 0)


def test_a_renewal_after_the_ack_does_nothing(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    read(slot)
    ack(slot)
    assert renew(slot) == Settled(0, 0)


@pytest.mark.parametrize("renewed", [False, True])
def test_what_a_competitor_took_after_the_lease_is_left_alone(make_slot: MakeSlot, renewed: bool) -> None:
    slot = filled(make_slot)
    read(slot)
    slot.advance(62_000)
    theirs = slot.claim(2).messages
    assert len(theirs) == 2
    mine = {row.content for row in rows_of(read(slot, strict=False))} - {claimed.content for claimed in theirs}
    assert mine == set(), "a sweep took all of them out of prepare"
    if renewed:
        assert renew(slot) == Settled(0, 3)
    with pytest.raises(BatchLostError, match="of 3 messages"):
        read(slot)
    assert ack(slot) == Settled(1, 2), "the one that is in nobody's hands is done"
    assert slot.ack(*((claimed.content, claimed.claim_score) for claimed in theirs)) == ()
    assert slot.state().store == {}


def test_a_competitor_in_the_second_of_a_renewal_is_not_mistaken_for_us(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 2, max_retries=3)
    read(slot)
    slot.advance(62_000)
    theirs = slot.claim(1).messages
    assert renew(slot) == Settled(0, 2)
    assert ack(slot) == Settled(1, 1)
    assert slot.ack((theirs[0].content, theirs[0].claim_score)) == ()


def test_a_renewal_rewrites_no_list(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 3)
    read(slot)
    listed = slot.client.hget(query_of(slot).query, "1:0")
    slot.advance(20_000)
    assert renew(slot) == Settled(3, 0)
    assert slot.client.hget(query_of(slot).query, "1:0") == listed
    assert slot.state().prepare == {b"m%03d" % n: slot.claim_score(16) for n in range(3)}


def test_a_new_driver_replays_what_is_held_at_the_price_of_a_retry(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    first = read(slot)
    slot.advance(5_000)
    assert read(slot, SECOND) == first
    state = slot.state()
    assert set(state.prepare.values()) == {slot.claim_score(15)}
    assert (state.totals["delivered"], state.totals["retried"]) == (6, 3)
    assert read(slot, SECOND) == first
    assert set(slot.state().prepare.values()) == {slot.claim_score(15)}, "once a driver, not once a read"
    assert ack(slot, SECOND) == Settled(3, 0)


def test_a_new_driver_takes_back_what_a_sweep_put_back_and_leaves_the_rest(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 4)
    first = read(slot)
    slot.advance(62_000)
    theirs = slot.claim(1).messages[0]  # sweeps all of them
    slot.send((b"m002", 1_000_010))  # a fresh message of the same content
    again = read(slot, SECOND)
    rest = tuple(row for row in rows_of(first) if row.content not in (theirs.content, b"m002"))
    assert (again.claimed, again.left_out, again.buried, rows_of(again)) == (4, 2, 0, rest)
    assert len(rest) == 2
    assert set(slot.state().store) == {b"m002"}
    assert ack(slot, SECOND) == Settled(2, 0)
    assert slot.ack((theirs.content, theirs.claim_score)) == ()


@pytest.mark.parametrize("driver", [FIRST, SECOND])
def test_a_renewal_forgets_nothing_that_a_later_driver_may_take_back(make_slot: MakeSlot, driver: Driver) -> None:
    slot = filled(make_slot, 4)
    first = read(slot)
    slot.client.zrem(slot.keys.prepare, b"m001", b"m002")
    slot.client.zadd(slot.keys.store, {b"m001": 16, b"m002": 16})  # as a sweep leaves them
    slot.advance(20_000)
    theirs = slot.claim(1).messages[0]  # in the second of the renewal
    assert theirs.content == b"m002"
    assert renew(slot, driver) == Settled(2, 2)
    slot.advance(50_000)
    assert renew(slot, driver) == Settled(2, 2), "those that are held were renewed"
    again = read(slot, SECOND)
    assert (again.left_out, rows_of(again)) == (1, tuple(row for row in rows_of(first) if row.content != b"m002"))
    assert slot.ack((theirs.content, theirs.claim_score)) == ()
    assert renew(slot, SECOND) == ack(slot, SECOND) == Settled(3, 0)


def test_a_rollback_with_another_body_is_another_message(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 5_000, b"old"))
    read(slot)
    slot.send((b"a", 6_000, b"new"))
    slot.advance(62_000)
    theirs = slot.claim(1).messages[0]
    slot.nack(Nack(theirs.content, theirs.claim_score))
    assert rows_of(read(slot, SECOND)) == ()
    assert slot.state().store == {b"a": 16}


def test_what_waits_for_a_retry_stays_there(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 1)
    read(slot)
    slot.advance(62_000)
    theirs = slot.claim(1).messages[0]
    slot.nack(Nack(theirs.content, theirs.claim_score, "retry", 10_000))
    assert rows_of(read(slot, SECOND)) == ()
    assert set(slot.state().retry) == {b"m000"}


def test_replays_used_up_are_buried_and_the_batch_goes_on(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"poison", 5_000, b"body"))
    for generation in (1, 2, 3):
        assert contents(read(slot, Driver("q1", generation), max_replays=2)) == [b"poison"]
        slot.advance(1_000)
    driver = Driver("q1", 4)
    assert read(slot, driver, max_replays=2) == Chunk(1, 0, 1, [], [], None)
    state = slot.state()
    assert (set(state.dead), state.dead_body) == ({b"poison"}, {b"poison": b"body"})
    assert state.reason[b"poison"]["type"] == "ReplaysUsedUp"
    assert state.reason[b"poison"]["attempts"] == 3
    assert ack(slot, driver) == Settled(0, 0)


def test_after_too_many_replays_a_chunk_is_halved_and_one_message_dies(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send(*((b"m%d" % i, 5_000 - i, b"body") for i in range(5)))
    whole = [b"m%d" % i for i in range(5)]
    shares: list[list[bytes]] = []
    for generation in range(1, 7):
        chunk = read(slot, Driver("q1", generation), max_replays=2)
        shares.append(contents(chunk))
        assert chunk.bodies in ([b"body"] * len(chunk.contents), None)
        again = read(slot, Driver("q1", generation), max_replays=2)
        assert rows_of(again) == rows_of(chunk), "the same again for the same driver"
        slot.advance(1_000)
    assert shares == [whole, whole, whole, whole[:2], whole[:1], []]
    state = slot.state()
    assert state.store == {b"m%d" % i: 5_000 - i for i in range(1, 5)}, "the others are back as they were"
    assert (set(state.dead), state.reason[b"m0"]["attempts"]) == ({b"m0"}, 5)
    assert ack(slot, Driver("q1", 6)) == Settled(0, 0), "with its death the search is over"
    second = slot.claim(4).messages
    assert [message.claim_score % 1_000 for message in second] == [16] * 4, "and have all their retries"


def test_a_halved_batch_goes_through_without_its_second_half(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 8)
    for chunk in (0, 1):
        read(slot, chunk=chunk, limit=4)
    slot.send((b"m006", 7_000))
    slot.client.hset(slot.keys.error, b"m006", b'{"type":"ValueError","last_ms":"1","claim":"7"}')

    def halve(driver: Driver, number: int) -> Chunk:
        call = spark_calls.read(slot.topic, Reading(driver, 1, 8, 0, True), 0, number, 4, 4 * number)
        return slot.run(call)

    assert contents(halve(SECOND, 0)) == [b"m000", b"m001", b"m002", b"m003"]
    assert contents(halve(SECOND, 1)) == []
    assert slot.state().store[b"m006"] == 7_000, "a fresh copy stands"
    assert slot.state().error == {b"m006": {"type": "ValueError", "last_ms": "1"}}, "and the failure stays with it"
    assert [ack(slot, SECOND, chunk=chunk) for chunk in (0, 1)] == [Settled(4, 0, 0), Settled(0, 0, 4)]
    assert set(slot.state().store) == {b"m004", b"m005", b"m006", b"m007"}


def test_what_a_halved_batch_gives_back_is_not_claimed_by_its_later_chunks(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 6)
    read(slot, limit=4)

    def halve(driver: Driver, number: int) -> list[bytes]:
        call = spark_calls.read(slot.topic, Reading(driver, 1, 4, 0, True), 0, number, 4, 4 * number)
        return contents(slot.run(call))

    assert halve(SECOND, 0) == [b"m000", b"m001"]
    assert halve(SECOND, 1) == [], "no task had come so far before: it would find the poison again"
    assert [ack(slot, SECOND, chunk=chunk) for chunk in (0, 1)] == [Settled(2, 0, 2), Settled(0, 0)]
    assert contents(read(slot, SECOND, seq=2)) == [b"m002", b"m003", b"m004", b"m005"]


def test_fewer_replays_than_before_skip_no_half(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 4)

    def replay(generation: int, max_replays: int) -> list[list[bytes]]:
        reading = Reading(Driver("q1", generation), 1, 4, max_replays, True)
        calls = [spark_calls.read(slot.topic, reading, 0, n, 1, n) for n in range(4)]
        return [contents(slot.run(call)) for call in calls]

    whole = [[b"m%03d" % n] for n in range(4)]
    assert [replay(generation, 10) for generation in (1, 2, 3, 4)] == [whole] * 4
    assert replay(5, 0) == [*whole[:2], [], []], "nobody dies who was not tried alone"
    assert replay(6, 0) == [whole[0], [], [], []]
    assert slot.state().dead == {}
    assert replay(7, 0) == [[], [], [], []]
    assert set(slot.state().dead) == {b"m000"}
    assert set(slot.state().store) == {b"m001", b"m002", b"m003"}


def test_retries_used_up_are_buried_as_well(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 1, max_retries=1)
    read(slot)
    assert len(rows_of(read(slot, SECOND))) == 1
    assert read(slot, Driver("q1", 3)).buried == 1
    assert set(slot.state().dead) == {b"m000"}


def test_beside_a_fresh_copy_nothing_is_buried(make_slot: MakeSlot) -> None:
    slot = filled(make_slot, 1)
    read(slot)
    slot.send((b"m000", 7_000))
    assert read(slot, SECOND, max_replays=0).buried == 1
    state = slot.state()
    assert (state.store, state.dead) == ({b"m000": 7_000}, {})
    assert state.error[b"m000"]["type"] == "ReplaysUsedUp", "the failure stays with the content"


def test_an_older_driver_is_refused(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    read(slot)
    read(slot, SECOND)
    before = slot.dump()
    for act in (read, ack, renew):
        with pytest.raises(DriverReplacedError):
            act(slot, FIRST)
    assert slot.dump() == before


def test_a_driver_enters(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    now_s = slot.now_ms // 1_000
    assert slot.run(spark_calls.enter(slot.topic, "q1")) == Entered(now_s, 0, False)
    first = Driver("q1", now_s)
    ack(slot, first, 7, -1)
    assert slot.run(spark_calls.enter(slot.topic, "q1")) == Entered(now_s + 1, 7, True)
    with pytest.raises(DriverReplacedError):
        ack(slot, first, 8)
    assert slot.run(spark_calls.enter(slot.topic, "q2")) == Entered(now_s, 0, False)
    assert 0 < slot.client.ttl(query_of(slot).query) <= spark_calls.KEEP_S


def test_a_driver_that_needs_a_known_query_leaves_no_trace_of_another(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    for _ in range(2):
        assert slot.run(spark_calls.enter(slot.topic, "q1", needed=True)) == Entered(0, 0, False)
    assert not slot.client.exists(query_of(slot).query)
    known = slot.run(spark_calls.enter(slot.topic, "q1")).generation
    assert slot.run(spark_calls.enter(slot.topic, "q1", needed=True)) == Entered(known + 1, 0, True)


def test_a_driver_is_newer_than_those_before_also_where_its_record_was_lost(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    for _ in range(3):
        lost = slot.run(spark_calls.enter(slot.topic, "q1")).generation
    slot.client.delete(query_of(slot).query)
    slot.advance(5_000)
    assert slot.run(spark_calls.enter(slot.topic, "q1")).generation > lost


def test_a_paused_slot_gives_nothing(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    slot.client.hset(slot.keys.meta, "paused", "1")
    assert rows_of(read(slot)) == ()
    slot.client.hdel(slot.keys.meta, "paused")
    assert rows_of(read(slot)) == (), "the same again"
    assert len(rows_of(read(slot, seq=2))) == 3


def test_a_slot_with_an_owner_is_refused(make_slot: MakeSlot) -> None:
    slot = filled(make_slot)
    read(slot)
    slot.claim(0, owner=Owner(7, "zk"))
    before = slot.dump()
    for act in (read, ack, renew):
        with pytest.raises(FencedError):
            act(slot)
    assert slot.dump() == before


def test_a_whole_ack_of_a_worker_is_not_confused(make_slot: MakeSlot) -> None:
    # the same millisecond, the same retries
    slot = filled(make_slot, 6)
    read(slot, limit=3)
    theirs = slot.claim(3).messages
    score = theirs[0].claim_score
    assert set(slot.state().prepare.values()) == {score, slot.claim_score(16)}
    assert slot.claim(0, whole=[(score, 3)]).unmatched == ()
    assert ack(slot) == Settled(3, 0)


def opened(slot: SlotUnderTest) -> None:
    """A batch that is read, with bodies and failures, beside everything else."""
    slot.seed(SlotState(prepare={b"held": slot.claim_score(5)}, dead={b"dead": 1}))
    slot.send((b"a", slot.now_ms + 1, b"1"), (b"b", slot.now_ms + 1, b"2"))
    slot.advance(1_000)
    read(slot)


def _of_query(call: Callable[[Topic], Call[Any]]) -> Example:
    return Example(TopicType.FIXED_TIME, lambda topic, _: call(topic), opened)


EXAMPLES = {
    "spark_enter": _of_query(lambda topic: spark_calls.enter(topic, "q1")),
    "spark_read": _of_query(lambda topic: spark_calls.read(topic, Reading(SECOND, 1, 10, 0, True), 0, 0, 10)),
    "spark_scan": _of_query(lambda topic: spark_calls.read_place(topic, 0, "dead", "scan", "0", 10)),
    "spark_forget": _of_query(lambda topic: spark_calls.forget(topic, 0, SECOND, 1, 0)),
    "spark_refuse": _of_query(lambda topic: refuse_contents(topic, 0, Claim(SECOND, 1, 0), BURY, [b"a"])),
    "spark_settle": _of_query(lambda topic: spark_calls.settle(topic, 0, SECOND, 1, 0, "ack")),
}


def test_a_full_redis_can_be_drained() -> None:
    # pitfall 9
    with RedisServer() as server:
        slot = SlotUnderTest(server.url, Topic("small", TopicType.PRIORITY, lease=timedelta(seconds=60)))
        slot.send(*((b"m%d" % i, 5_000 + i) for i in range(10)))
        for library in (scripts_with_fake_clock(), scripts_under_test()):
            for name in EXAMPLES:
                slot.client.script_load(library.text(name))
        server.config_set("maxmemory", 1)
        generation = slot.run(spark_calls.enter(slot.topic, "q1")).generation
        driver = Driver("q1", generation)
        assert len(rows_of(read(slot, driver))) == 10
        assert renew(slot, driver) == Settled(10, 0)
        later = Driver("q1", generation + 1)
        assert len(rows_of(read(slot, later))) == 10
        assert ack(slot, later) == Settled(10, 0)
        assert slot.state().unaccounted == 0
        slot.close()


def test_a_chunk_without_bodies_is_the_same_chunk(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 1_001, b"body"), (b"b", 1_000))
    lean, full = (Reading(FIRST, 1, 10, 10, True, bodies=bodies) for bodies in (False, True))
    assert slot.run(spark_calls.read(slot.topic, lean, 0, 0, 10)) == Chunk(2, 0, 0, [b"a", b"b"], [1_001, 1_000], None)
    assert rows_of(slot.run(spark_calls.read(slot.topic, full, 0, 0, 10))) == (
        (b"a", 1_001, b"body"),
        (b"b", 1_000, None),
    )
    assert ack(slot) == Settled(2, 0)
