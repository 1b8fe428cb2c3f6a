"""Processes with different leases on one slot: while both live and renew, nothing is in two hands."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmq import TopicType
from tests.conftest import MakeSlot
from tests.support.core import Ack, claims
from tests.support.one_slot import claim_slot
from tests.support.slots import SlotUnderTest

SHORT_MS, LONG_MS = 3_000, 60_000


class Process:
    """One that knows the topic with its own lease."""

    def __init__(self, slot: SlotUnderTest, lease_ms: int) -> None:
        self.slot = slot
        self.lease_ms = lease_ms
        self.topic = slot.topic.changed(lease=timedelta(milliseconds=lease_ms))
        self.held: list[Ack] = []

    def claim(self, limit: int) -> int:
        """Claim; return how many leases ended."""
        reply = self.slot.run(claim_slot(self.topic, 0, limit))
        self.held += [(message.content, message.claim_score) for message in reply.messages]
        return reply.swept

    def renew(self) -> None:
        scores = self.slot.run(claims.extend(self.topic, 0, self.held)).claim_scores if self.held else ()
        assert None not in scores, "a lease was lost while both renewed"
        self.held = [(content, score or 0) for (content, _), score in zip(self.held, scores, strict=True)]

    def look(self) -> int:
        return self.slot.run(claims.look(self.topic, [0]))[1][0]


def pair(make_slot: MakeSlot, first_ms: int) -> tuple[SlotUnderTest, Process, Process]:
    slot = make_slot(TopicType.PRIORITY, max_retries=500)
    slot.send(*((b"%d" % number, 1_000) for number in range(8)))
    return slot, Process(slot, first_ms), Process(slot, SHORT_MS + LONG_MS - first_ms)


@pytest.mark.parametrize("first_ms", [SHORT_MS, LONG_MS])
def test_a_lease_that_changes_takes_nothing_from_those_who_renew(first_ms: int, make_slot: MakeSlot) -> None:
    slot, first, second = pair(make_slot, first_ms)
    first.claim(3)
    second.claim(3)
    for step in range(1, 400):
        slot.advance(500)
        for process in (first, second):
            if step * 500 % (process.lease_ms // 3) == 0:
                process.renew()
            assert process.claim(0) == 0
    assert len(slot.state().prepare) == 6


def test_a_longer_lease_is_in_force_until_the_claims_that_had_it_have_ended(make_slot: MakeSlot) -> None:
    slot, long, short = pair(make_slot, LONG_MS)
    long.claim(3)
    slot.advance(1_000)
    short.claim(3)
    slot.advance(LONG_MS - 1_000)
    assert (long.claim(0), short.claim(0)) == (0, 0)
    slot.advance(1)
    assert short.claim(0) == 6, "those of the process that died with the longer lease, and those of its own lease"
    short.held = []
    short.claim(1)
    slot.advance(SHORT_MS)
    assert short.claim(0) == 0
    slot.advance(1)
    assert short.claim(0) == 1, "from then on the shorter one rules"
    assert slot.state().clock["lease"] == str(SHORT_MS)


def test_a_shorter_lease_rules_at_once_where_nothing_is_held(make_slot: MakeSlot) -> None:
    slot, long, short = pair(make_slot, LONG_MS)
    long.claim(2)
    slot.ack(*long.held)
    slot.advance(5)
    short.claim(1)
    slot.advance(SHORT_MS)
    assert short.claim(0) == 0
    slot.advance(1)
    assert short.claim(0) == 1


def test_who_looks_goes_by_the_lease_in_force(make_slot: MakeSlot) -> None:
    slot, long, short = pair(make_slot, LONG_MS)
    long.claim(8)
    begun_ms = slot.now_ms
    assert long.look() == short.look() == begun_ms + LONG_MS + 1


def test_a_field_that_cannot_be_read_holds_up_no_claim(make_slot: MakeSlot) -> None:
    slot, long, _ = pair(make_slot, LONG_MS)
    slot.client.hset(slot.keys.meta, mapping={"lease": "soon", "stamp": "now"})
    long.claim(8)
    assert len(long.held) == 8
    long.renew()
    assert slot.state().clock["lease"] == str(LONG_MS)


@pytest.mark.parametrize("lease", ["99999999999999", "60000 99999999999999999", "60001 99999999999999999", "-1", "nan"])
@pytest.mark.parametrize(
    "stamp",
    [
        "99999999999999999999", "inf", "-inf", "nan", "-5", "1e15", "9007199254740", "9007199254740993 1 2 3",
        "5 99999999999999999999", "5 6 99999999999999999999 9 9", "5 6 7 99999999999 9",
    ],
)  # fmt: skip
def test_no_field_makes_stamps_come_again_or_leases_end_at_another_time(
    stamp: str, lease: str, make_slot: MakeSlot
) -> None:
    slot, process, _ = pair(make_slot, SHORT_MS)
    slot.client.hset(slot.keys.meta, mapping={"lease": lease, "stamp": stamp})
    for _ in range(4):
        process.claim(2)
    stamps = {score // 1_000 for _, score in process.held}
    assert len(stamps) == 4
    assert max(stamps) <= slot.now_ms + 4
    slot.client.hset(slot.keys.meta, mapping={"lease": lease, "stamp": stamp})
    slot.advance(SHORT_MS)
    assert process.claim(0) == 0
    slot.advance(10)
    assert process.claim(0) == 8
