"""The keeper of leases, when Redis does not do what it should."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any, cast

import pytest

from rmq import Delivery, Outcome, Topic, TopicType, Verb
from rmq._broker.broker import QueueBroker
from rmq._broker.claims import Ack
from rmq._claiming.leases import InFlight, LeaseHolder, LeaseKeeper, LeaseLostNotifier
from rmq._io.backend import THREADS
from rmq._model.claims import whole
from rmq._model.deliveries import Claim
from rmq._model.outcomes import ACKED, RELEASED
from rmq._model.replies import ExtendReply, Owner
from rmq._model.times import monotonic_s
from rmq._transport.connections import Connections
from rmq.errors import FencedError, RedisUnavailableError, RmqError
from tests.support.claims import Claimed, claim_of
from tests.support.waiting import wait_until

LEASE_S = 9.0
"""Long enough for a machine that stands still for a while."""
TOPIC = Topic("t", TopicType.PRIORITY, lease=timedelta(seconds=LEASE_S))
SCORE = 1_790_000_000_016


class WriterStub:
    """The slots, and the calls under way there: extends as told, with an error or the new claim scores."""

    topic = TOPIC
    most_renewals = 1_000

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0
        self._submitted: list[tuple[Any, Any]] = []
        self._owed: list[tuple[Any, Any]] = []

    def extend_call(self, slot: int, claims: Sequence[Ack], owner: Owner) -> Any:
        del slot, owner
        return claims

    def submit(self, call: Any, tag: Any) -> None:
        self._submitted.append((call, tag))

    def flush(self, deadline_s: float) -> None:
        del deadline_s
        sent, self._submitted = self._submitted, []
        if not sent:
            return
        self.asked += 1
        self._owed += sent
        if isinstance(self.answers[0], ZeroDivisionError):
            self._owed = []
            for _, renewal in sent:  # what a queue does with calls that it drops
                renewal.unmark()
            raise self.answers.pop(0)

    def completions(self, patience_s: float) -> list[tuple[Any, Any]]:
        del patience_s
        if not self._owed or self.answers[0] is OWED:
            return []
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        owed, self._owed = self._owed, []
        is_error = isinstance(answer, RmqError)
        return [
            (tag, answer if is_error else ExtendReply(SCORE, tuple(answer for _ in claims))) for claims, tag in owed
        ]

    def owed(self) -> list[Any]:
        return [tag for _, tag in self._owed]


OWED = object()
"""An answer that has not come."""


class ConnectionsStub:
    """Connections that nothing is sent over."""

    runtime = THREADS


def held_for(share: float) -> InFlight:
    """One delivery of whose lease this share is left."""
    held = InFlight(LEASE_S)
    until_s = monotonic_s() + share * LEASE_S
    held.claims.append(claim_of(TOPIC, Claimed(b"a", 100, SCORE, None), lease_until_s=until_s))
    return held


def keeper(writer: WriterStub, held: InFlight) -> tuple[LeaseKeeper, list[Delivery]]:
    lost: list[Delivery] = []
    return keeper_of(writer, [held], lost.append), lost


def keeper_of(writer: WriterStub, held: list[InFlight], on_lost: Callable[[Delivery], None]) -> LeaseKeeper:
    holder = LeaseHolder(cast("QueueBroker", writer), held, on_lost, lambda: True)
    at_work = LeaseKeeper(cast("Connections", ConnectionsStub()), [holder])
    at_work._calls = cast("Any", writer)  # pyright: ignore[reportPrivateUsage]
    return at_work


def test_renewed_once_a_third_has_passed() -> None:
    writer, fresh, old = WriterStub(SCORE + 1_000), held_for(0.9), held_for(0.5)
    keeper(writer, fresh)[0].renew()
    assert writer.asked == 0
    keeper(writer, old)[0].renew()
    assert writer.asked == 1
    assert old.claims[0].score == SCORE + 1_000
    assert old.claims[0].lease_until_s > monotonic_s() + 0.7 * LEASE_S


def test_refused_is_lost_and_told_once() -> None:
    writer, held = WriterStub(None), held_for(0.5)
    at_work, lost = keeper(writer, held)
    at_work.renew()
    at_work.renew()
    assert lost == held.claims[0].deliveries()
    assert lost[0].lost
    assert writer.asked == 1


@pytest.mark.parametrize(
    ("error", "left", "is_lost"),
    [
        (RedisUnavailableError("no answer"), 0.5, False),  # there is still time
        (RedisUnavailableError("no answer"), -0.1, True),
        (FencedError("a newer owner"), 0.5, True),
    ],
)
def test_without_an_answer_it_is_lost_when_the_lease_has_passed(error: Exception, left: float, is_lost: bool) -> None:
    held = held_for(left)
    at_work, lost = keeper(WriterStub(error), held)
    at_work.renew()
    (delivery,) = held.claims[0].deliveries()
    assert (lost == [delivery]) == delivery.lost == is_lost


def test_a_worker_that_waits_for_redis_does_not_hold_up_the_keeper() -> None:
    writer, held = WriterStub(SCORE), held_for(0.5)
    with held.lock:
        keeper(writer, held)[0].renew()
    assert writer.asked == 1


def test_what_the_worker_is_just_settling_is_left_alone() -> None:
    # pitfall 3: neither sends a score that the other is replacing
    writer, held = WriterStub(SCORE), held_for(0.5)
    held.claims[0].settle_open(ACKED)
    assert held.begin_settling() == [whole(held.claims[0])]
    keeper(writer, held)[0].renew()
    assert (writer.asked, held.begin_settling()) == (0, [])


def test_leases_of_all_workers_are_renewed_in_one_round() -> None:
    writer = WriterStub(SCORE + 1)
    held = [held_for(0.5) for _ in range(16)]
    keeper_of(writer, held, list[Delivery]().append).renew()
    assert writer.asked == 1
    assert {each.claims[0].score for each in held} == {SCORE + 1}


@pytest.mark.parametrize("left", [0.5, -0.1])
def test_a_reply_that_is_owed_is_taken_later(left: float) -> None:
    """Meanwhile the worker can't settle it; it is lost at the end of its lease, whatever comes then."""
    writer, held = WriterStub(OWED), held_for(left)
    at_work, lost = keeper(writer, held)
    at_work.renew()
    (claim,) = held.claims
    claim.settle_open(ACKED)
    assert (held.settled(), lost) == ([], claim.deliveries() if left < 0 else [])
    at_work.renew()
    assert writer.asked == 1  # nothing is sent twice
    writer.answers = [SCORE + 1]
    at_work.renew()
    assert (held.settled(), claim.score) == ([whole(claim)], SCORE + 1)
    assert claim.delivery(0).lost == (left < 0)
    assert len(lost) == (left < 0)


def test_on_lost_that_takes_long_holds_up_nothing_and_none_is_left_out() -> None:
    going_on, called = threading.Event(), list[Delivery]()

    def on_lost(delivery: Delivery) -> None:
        called.append(delivery)
        assert going_on.wait(100)
        raise ZeroDivisionError("a bug of the user's")

    calls = LeaseLostNotifier()
    held = [held_for(0.5) for _ in range(3)]
    at_work = keeper_of(WriterStub(None), held, partial(calls.notify, on_lost))
    at_work.renew()  # returns
    assert all(each.claims[0].lost[0] for each in held)
    going_on.set()
    wait_until(lambda: called == [each.claims[0].delivery(0) for each in held])
    calls.notify(called.append, called[0])  # the job has ended by then, or goes on
    wait_until(lambda: len(called) == 4)


def test_no_error_ends_the_keeper() -> None:
    writer, held = WriterStub(ZeroDivisionError("a bug"), SCORE), held_for(0.5)
    at_work, lost = keeper(writer, held)
    at_work.start()
    wait_until(lambda: writer.asked >= 2 and held.claims[0].lease_until_s > monotonic_s() + 0.5 * LEASE_S)
    at_work.stop()
    at_work.join(60)
    assert lost == []
    assert not at_work.is_alive()


def test_a_claim_is_renewed_as_a_whole_and_one_that_was_renewed_beside_others_is_named() -> None:
    """Two claims with one score could be mistaken for each other."""
    held, scores = InFlight(LEASE_S), list[int]()

    class Writer(WriterStub):
        def extend_call(self, slot: int, claims: Sequence[Ack], owner: Owner) -> Any:
            scores.extend(score for _, score in claims)
            return super().extend_call(slot, claims, owner)

    def claim(slot: int, number: int) -> Claim:
        rows = [Claimed(b"%d" % row, 100, SCORE, None) for row in range(number)]
        return claim_of(TOPIC, *rows, slot=slot, lease_until_s=monotonic_s() + 0.5 * LEASE_S)

    held.claims = [claim(0, 600), claim(0, 500), claim(0, 300), claim(1, 1_000)]
    held.claims[3].end([7])
    held.claims[3].lose([8])
    keeper(Writer(SCORE + 1_000), held)[0].renew()
    assert scores == [SCORE] * (600 + 500 + 300 + 998)
    assert {claim.score for claim in held.claims} == {SCORE + 1_000}
    assert [claim.named for claim in held.claims] == [False, True, True, False]
    assert not any(claim.apart or claim.busy for claim in held.claims)


def claimed(slot: int, content: bytes, claimed_s: float, *outcomes: Outcome | None) -> Claim:
    topic = Topic("t", TopicType.PRIORITY, slots=8, lease=timedelta(seconds=1))
    rows = [Claimed(b"%s%d" % (content, row), 100, SCORE, None) for row in range(len(outcomes) or 1)]
    claim = claim_of(topic, *rows, slot=slot, lease_until_s=claimed_s + 1.0)
    claim.outcomes[:] = outcomes or [ACKED]
    return claim


def test_acks_wait_for_a_ride_and_nothing_else_does() -> None:
    held = InFlight(1.0)
    named, busy = claimed(3, b"named", 10.0), claimed(3, b"busy", 10.0)
    named.named = busy.busy = True
    stays = [
        claimed(1, b"open", 10.0, None),
        claimed(1, b"in part", 10.0, ACKED, None),
        claimed(1, b"nacked", 10.0, Outcome(Verb.NACK)),
        claimed(1, b"released", 10.0, RELEASED),
        claimed(1, b"old", 9.0),
        named,
        busy,
    ]
    rides = [claimed(2, b"a", 10.0), claimed(4, b"b", 10.0, ACKED, ACKED), claimed(2, b"c", 10.1)]
    held.claims = [*stays, *rides]
    held.defer_acks(9.5)
    assert held.claims == stays
    assert held.deferred == {2: [rides[0], rides[2]], 4: [rides[1]]}
    assert held.all() == [*stays, rides[0], rides[2], rides[1]]


def taken(held: InFlight, *args: Any, **named: Any) -> list[int]:
    before = len(held.claims)
    held.take_deferred(*args, **named)
    return [claim.slot for claim in held.claims[before:]]


def test_a_ride_ends_with_a_claim_from_the_slot_after_a_while_or_for_all() -> None:
    held = InFlight(1.0)
    held.claims = [claimed(slot, b"%d" % slot, 10.0 + slot) for slot in range(5)]
    held.defer_acks(0.0)
    assert taken(held, [3, 7]) == [3]
    assert taken(held, [], before_s=11.0) == [0, 1]  # those claimed by then
    assert [claim.slot for claim in held.claims] == [3, 0, 1]
    assert taken(held, [4], before_s=inf, most=0) == [4]
    assert taken(held) == [2]
    assert (held.deferred, taken(held)) == ({}, [])


def test_of_what_has_waited_long_the_oldest_goes_first_and_only_so_much_at_a_time() -> None:
    held = InFlight(1.0)
    held.claims = [claimed(slot, b"%d" % slot, 10.0 + slot) for slot in (3, 1, 4, 0)]
    held.defer_acks(0.0)
    assert taken(held, [4], before_s=inf, most=2) == [4, 3, 1]
    assert taken(held, [], before_s=inf, most=2) == [0]


def test_the_lease_of_what_waits_for_a_ride_is_renewed() -> None:
    held = held_for(0.5)
    held.claims[0].settle_open(ACKED)
    held.defer_acks(0.0)
    assert held.claims == []
    leases, lost = keeper(WriterStub(SCORE + 1000), held)
    leases.renew()
    assert (held.all()[0].score, lost) == (SCORE + 1000, [])
