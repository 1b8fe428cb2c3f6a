"""The keeper of leases, when Redis does not do what it should."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from rmq.calls import Renewal
from rmq.clock import monotonic_s
from rmq.delivery import ACKED, RELEASED, Delivery, Outcome, Verb
from rmq.errors import FencedError, RedisUnavailableError, RmqError
from rmq.leases import Held, LeaseKeeper
from rmq.results import Claimed, ExtendReply
from rmq.slot import SlotWriter
from rmq.topics import Topic, TopicType
from tests.support.waiting import wait_until

TOPIC = Topic("t", TopicType.PRIORITY, lease=timedelta(seconds=1))
SCORE = 1_790_000_000_016


class WriterStub:
    """Extends as told: an error, or the new claim scores."""

    topic = TOPIC

    def __init__(self, *answers: Exception | int | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    def extend_many(self, renewals: list[Renewal]) -> list[ExtendReply | RmqError]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, RmqError):
            return [answer for _ in renewals]
        if isinstance(answer, Exception):
            raise answer
        return [ExtendReply(SCORE, tuple(answer for _ in claims)) for _, claims, _ in renewals]


class HolderStub:
    def settle(self, delivery: Delivery, outcome: Outcome) -> bool:
        return True

    def still_owner(self, delivery: Delivery) -> bool:
        return True


def held_for(seconds: float) -> Held:
    """One delivery whose lease ends in so many seconds."""
    held = Held()
    until_s = monotonic_s() + seconds
    held.deliveries.append(Delivery(TOPIC, 0, Claimed(b"a", 100, SCORE, None), 0, until_s, HolderStub()))
    return held


def keeper(writer: WriterStub, held: Held) -> tuple[LeaseKeeper, list[Delivery]]:
    lost: list[Delivery] = []
    return LeaseKeeper(cast("SlotWriter", writer), [held], lost.append), lost


def test_renewed_once_a_third_has_passed() -> None:
    writer, fresh, old = WriterStub(SCORE + 1_000), held_for(0.9), held_for(0.5)
    keeper(writer, fresh)[0].renew(fresh)
    assert writer.asked == 0
    keeper(writer, old)[0].renew(old)
    assert writer.asked == 1
    assert old.deliveries[0].claim_score == SCORE + 1_000
    assert old.deliveries[0].lease_until_s > monotonic_s() + 0.7


def test_refused_is_lost_and_told_once() -> None:
    writer, held = WriterStub(None), held_for(0.5)
    at_work, lost = keeper(writer, held)
    at_work.renew(held)
    at_work.renew(held)
    assert lost == held.deliveries
    assert held.deliveries[0].lost
    assert writer.asked == 1


@pytest.mark.parametrize(
    ("error", "left_s", "is_lost"),
    [
        (RedisUnavailableError("no answer"), 0.5, False),  # there is still time
        (RedisUnavailableError("no answer"), -0.1, True),
        (FencedError("a newer owner"), 0.5, True),
    ],
)
def test_without_an_answer_it_is_lost_when_the_lease_has_passed(error: Exception, left_s: float, is_lost: bool) -> None:
    held = held_for(left_s)
    at_work, lost = keeper(WriterStub(error), held)
    at_work.renew(held)
    assert (lost == held.deliveries) == held.deliveries[0].lost == is_lost


def test_a_worker_that_waits_for_redis_does_not_hold_up_the_others() -> None:
    writer, held = WriterStub(SCORE), held_for(0.5)
    with held.lock:
        keeper(writer, held)[0].renew(held)
    assert writer.asked == 0


def test_no_error_ends_the_keeper() -> None:
    writer, held = WriterStub(ZeroDivisionError("a bug"), SCORE), held_for(0.5)
    at_work, lost = keeper(writer, held)
    at_work.start()
    wait_until(lambda: writer.asked >= 2 and held.deliveries[0].lease_until_s > monotonic_s() + 0.5)
    at_work.stop()
    at_work.join(10)
    assert lost == []
    assert not at_work.is_alive()


def delivered(slot: int, content: bytes, claimed_s: float, outcome: Outcome | None = ACKED) -> Delivery:
    topic = Topic("t", TopicType.PRIORITY, slots=8, lease=timedelta(seconds=1))
    delivery = Delivery(topic, slot, Claimed(content, 100, SCORE, None), 0, claimed_s + 1.0, HolderStub())
    delivery.outcome = outcome
    return delivery


def test_acks_wait_for_a_ride_and_nothing_else_does() -> None:
    held = Held()
    named = delivered(3, b"named", 10.0)
    named.by_name = True
    stays = [
        delivered(1, b"open", 10.0, None),
        delivered(1, b"nacked", 10.0, Outcome(Verb.NACK)),
        delivered(1, b"released", 10.0, RELEASED),
        delivered(1, b"old", 9.0),
        named,
    ]
    rides = [delivered(2, b"a", 10.0), delivered(4, b"b", 10.0), delivered(2, b"c", 10.1)]
    held.deliveries = [*stays, *rides]
    held.let_ride(9.5)
    assert held.deliveries == stays
    assert held.riding == {2: [rides[0], rides[2]], 4: [rides[1]]}
    assert sorted(each.content for each in held.all()) == sorted(each.content for each in (*stays, *rides))


def test_a_ride_ends_with_a_claim_from_the_slot_after_a_while_or_for_all() -> None:
    held = Held()
    held.deliveries = [delivered(slot, b"%d" % slot, 10.0 + slot) for slot in range(5)]
    held.let_ride(0.0)
    assert [each.slot for each in held.board([3, 7])] == [3]
    assert [each.slot for each in held.board([], before_s=11.0)] == [0, 1]  # those claimed by then
    assert [each.slot for each in held.deliveries] == [3, 0, 1]
    assert [each.slot for each in held.board()] == [2, 4]
    assert (held.riding, held.board()) == ({}, [])


def test_the_lease_of_what_waits_for_a_ride_is_renewed() -> None:
    held = held_for(0.5)
    held.deliveries[0].outcome = ACKED
    held.let_ride(0.0)
    assert held.deliveries == []
    leases, lost = keeper(WriterStub(SCORE + 1000), held)
    leases.renew(held)
    assert (held.all()[0].claim_score, lost) == (SCORE + 1000, [])
