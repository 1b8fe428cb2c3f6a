"""Workers of the release before, whose claims bear whole seconds, beside new ones on the same slot."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

import pytest

from rmq import TopicType
from tests.conftest import MakeSlot
from tests.support.core import FIRST_MS_SCORE, Ack, Nack, claiming
from tests.support.old_release import OldWorker
from tests.support.slots import T0, SlotUnderTest

LEASE_MS = 10_000
MakePair = Callable[[], tuple[SlotUnderTest, OldWorker]]


@pytest.fixture
def pair(make_slot: MakeSlot) -> MakePair:
    def make() -> tuple[SlotUnderTest, OldWorker]:
        slot = make_slot(TopicType.PRIORITY, lease=timedelta(milliseconds=LEASE_MS), max_retries=200)
        return slot, OldWorker(slot)

    return make


def send(slot: SlotUnderTest, *contents: bytes) -> None:
    slot.send(*((content, 1_000) for content in contents))


def claim(slot: SlotUnderTest, limit: int = 1_000) -> list[Ack]:
    return [(message.content, message.claim_score) for message in slot.claim(limit).messages]


def test_an_old_worker_never_sweeps_a_new_claim(pair: MakePair) -> None:
    slot, old = pair()
    send(slot, b"a")
    mine = claim(slot)
    for advance_ms in (0, LEASE_MS, 10 * LEASE_MS, 1_000 * LEASE_MS):
        slot.advance(advance_ms)
        assert old.claim() == old.claim(), "nothing is swept, nothing claimed"
        assert slot.state().prepare == dict(mine)
    assert slot.claim(0).swept == 1


def test_a_new_worker_ends_old_leases_by_their_rule_and_its_own_by_the_new_one(pair: MakePair) -> None:
    slot, old = pair()
    send(slot, b"old", b"new")
    [(_, old_score)] = old.claim(1).tokens
    assert old_score == T0 // 1000 * 1000 + 200 < FIRST_MS_SCORE
    claim(slot, 1)
    assert slot.run(claiming.look(slot.topic, [0]))[1] == [T0 + LEASE_MS + 1], "the new one ends first"
    slot.advance(LEASE_MS)
    assert slot.claim(0).swept == 0
    slot.advance(1)
    reply = slot.claim(0)
    assert (reply.swept, set(slot.state().prepare.values())) == (1, {old_score})
    ends_ms = (T0 // 1000 + LEASE_MS // 1000 + 1) * 1000
    slot.cancel(*slot.state().store)
    assert slot.claim(0).next_due_ms == ends_ms
    slot.set_clock(ends_ms - 1)
    assert slot.claim(0).swept == 0
    slot.advance(1)
    assert slot.claim(0).swept == 1


def test_a_new_claim_that_ends_is_found_behind_old_ones(pair: MakePair) -> None:
    slot, old = pair()
    send(slot, *(b"%03d" % number for number in range(300)))
    mine = claim(slot, 300)
    slot.advance(LEASE_MS)
    send(slot, *(b"old %03d" % number for number in range(300)))
    held = old.claim(300).tokens
    slot.advance(1)
    assert slot.run(claiming.look(slot.topic, [0]))[1] == [slot.now_ms]
    assert [slot.claim(0, sweep_limit=256).swept for _ in range(5)] == [96, 96, 96, 12, 0]
    assert slot.state().prepare == dict(held)
    assert set(slot.state().store) == {content for content, _ in mine}


def test_each_settles_and_renews_its_own_and_nothing_of_the_other(pair: MakePair) -> None:
    slot, old = pair()
    send(slot, *(bytes([code]) for code in b"abcdefgh"))
    theirs, mine = old.claim(4).tokens, claim(slot, 4)
    wrong = [(content, score // 1000 // 1000 * 1000 + 200) for content, score in mine]
    assert set(old.ack(*wrong)) == {content for content, _ in wrong}
    renewed = old.extend(*theirs)
    assert renewed == theirs, "the same second"
    slot.advance(1_000)
    mine = list(zip([content for content, _ in mine], slot.extend(*mine).claim_scores, strict=True))
    theirs = old.extend(*theirs)
    assert len(theirs) == 4
    scores = {score for _, score in mine}
    assert slot.claim(0, whole=[(score or 0, 4) for score in scores]).unmatched == ()
    assert old.nack(Nack(*theirs[0])) == []
    assert old.ack(*theirs[1:]) == []
    assert slot.state().prepare == {}


def test_an_old_worker_in_between_makes_no_stamp_come_again(pair: MakePair) -> None:
    slot, old = pair()
    stamps: list[int] = []
    for _ in range(20):
        send(slot, b"a")
        [(content, score)] = claim(slot)
        stamps.append(score // 1000)
        slot.ack((content, score))
        send(slot, b"a")
        old.ack(*old.claim().tokens)
    assert stamps == list(range(T0, T0 + 20))


class Hands:
    """What an old worker (0) and a new one (1) hold, by random steps."""

    def __init__(self, slot: SlotUnderTest, old: OldWorker, chance: random.Random) -> None:
        self.slot, self.old, self.chance = slot, old, chance
        self.held: list[dict[bytes, tuple[int, int]]] = [{}, {}]  # content -> score, begun

    def step(self, who: int) -> None:
        """Do one thing as one of the two."""
        tokens = [(content, score) for content, (score, _) in self.held[who].items()]
        some = self.chance.sample(tokens, min(len(tokens), self.chance.randrange(4)))
        verb = self.chance.choice([self.send, self.send, self.claim, self.claim, self.ack, self.nack, self.extend])
        verb(who, some)

    def send(self, who: int, some: list[Ack]) -> None:
        del who, some
        send(self.slot, *self.chance.sample([b"%d" % number for number in range(12)], 3))

    def claim(self, who: int, some: list[Ack]) -> None:
        del some
        for content, score in claim(self.slot, 3) if who else self.old.claim(3).tokens:
            for each, hand in enumerate(self.held):
                _, begun_ms = hand.pop(content, (0, 0))
                lease_ms = LEASE_MS if each else LEASE_MS - 1_000  # an old one begins with its second
                assert begun_ms + lease_ms < self.slot.now_ms, "in two hands"
            self.held[who][content] = score, self.slot.now_ms

    def ack(self, who: int, some: list[Ack]) -> None:
        self._forget(who, some)
        _ = self.slot.ack(*some) if who else self.old.ack(*some)

    def nack(self, who: int, some: list[Ack]) -> None:
        self._forget(who, some)
        nacks = [Nack(*token, "retry", self.chance.choice([0, 1_500])) for token in some]
        _ = self.slot.nack(*nacks) if who else self.old.nack(*nacks)

    def extend(self, who: int, some: list[Ack]) -> None:
        self._forget(who, some)
        new = [] if who else self.old.extend(*some)
        if who:
            scores = self.slot.extend(*some).claim_scores
            new = [(content, score) for (content, _), score in zip(some, scores, strict=True) if score is not None]
        self.held[who].update((content, (score, self.slot.now_ms)) for content, score in new)

    def _forget(self, who: int, some: list[Ack]) -> None:
        for content, _ in some:
            del self.held[who][content]


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_of_both(seed: int, pair: MakePair) -> None:
    """Nothing is lost, and nothing is in two hands while leases hold, whoever claims, settles, renews and sweeps."""
    slot, old = pair()
    chance = random.Random(seed)
    hands = Hands(slot, old, chance)
    for _ in range(400):
        slot.advance(chance.choice([0, 1, 10, 400, 999, 3_000, 6_000]))
        hands.step(chance.randrange(2))
        assert slot.state().unaccounted == 0
    for _ in range(60):
        slot.advance(LEASE_MS + 1_500)
        slot.ack(*claim(slot))
    state = slot.state()
    assert not state.store | state.prepare | state.retry
    assert state.totals["acked"] > 20
