"""The pictures of the guide show what Redis does: the sends that they show are played to it by a clock of the test."""

from __future__ import annotations

import pytest

from docs_site.merging_pictures import FOLDER, FOLDINGS, PICTURES, SENDS_MS, TIMELINES, Folding, Timeline
from rmq import RangeMergeMessage, TopicType
from tests.conftest import MakeSlot
from tests.support.core import ITEMS, NUMBERS, Record, encode, read_record, sends
from tests.support.slots import SlotUnderTest

CONTENT = "c"
STEP_MS = 100
START_MS = 4_000_000_000_000
"""Ahead of every server's own clock, by which the ends of windows expire."""


def send(slot: SlotUnderTest, message: RangeMergeMessage) -> int:
    """Send a message; return how many were dropped."""
    return slot.run(sends.send_calls(slot.topic)(0, [encode(slot.topic, message)])).dropped


def handled(slot: SlotUnderTest) -> list[Record]:
    """Claim what is due, and ack it; return the records."""
    messages = slot.claim().messages
    slot.ack(*[(message.content, message.claim_score) for message in messages])
    return [record for message in messages if (record := read_record(message.body)) is not None]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_script_draws(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == PICTURES[name](), "draw it: python -m docs_site.merging_pictures"


@pytest.mark.parametrize("timeline", TIMELINES, ids=lambda timeline: timeline.title)
def test_deliveries_come_when_the_picture_shows_them(make_slot: MakeSlot, timeline: Timeline) -> None:
    slot = make_slot(TopicType.RANGE_MERGE, merge=timeline.merge)
    delivered: list[tuple[int, int]] = []
    dropped: list[int] = []
    for now_ms in range(0, 12_000, STEP_MS):
        slot.set_clock(START_MS + now_ms)
        delivered += [(now_ms, record.count) for record in handled(slot)]
        if now_ms in SENDS_MS:
            dropped += [now_ms] * send(slot, RangeMergeMessage(CONTENT))
            delivered += [(now_ms, record.count) for record in handled(slot)]
    assert tuple(delivered) == timeline.deliveries
    assert tuple(dropped) == timeline.dropped
    assert sum(count for _, count in delivered) + len(dropped) == len(SENDS_MS)


@pytest.mark.parametrize("folding", FOLDINGS, ids=lambda folding: folding.title)
def test_values_are_those_that_the_picture_shows(make_slot: MakeSlot, folding: Folding) -> None:
    slot = make_slot(TopicType.RANGE_MERGE, merge=folding.merge)
    for body, version in zip(folding.bodies, folding.versions, strict=True):
        send(slot, RangeMergeMessage(CONTENT, time_range_ms=1_000, body=body, version=version))
    slot.advance(1_000)
    (record,) = handled(slot)
    value = record.items if record.kind in ITEMS else record.number if record.kind in NUMBERS else record.body
    assert (value, record.count) == (folding.value, 3)
