"""Many messages at once are not added to a list, in which each would be searched for from the beginning."""

from __future__ import annotations

from typing import Any

import pytest

from rmq import Fixed, Keep, Merge, Sliding, TopicType
from tests.conftest import MakeSlot
from tests.support.core import Call, EncodedMessage, Record, sends, write_record
from tests.support.one_slot import claim_slot
from tests.support.slots import T0, SlotState, SlotUnderTest, scripts_with_fake_clock

KINDS = (TopicType.RANGE_MERGE, TopicType.FIXED_TIME, TopicType.PRIORITY)
LONG = b"-" * 65
"""What begins a store."""


def messages(slot: SlotUnderTest, number: int) -> list[tuple[bytes, int]]:
    score = {TopicType.RANGE_MERGE: 0, TopicType.FIXED_TIME: T0 + 1, TopicType.PRIORITY: 100}[slot.topic.type]
    return [(b"%d" % index, score) for index in range(number)]


def encoding(slot: SlotUnderTest, key: str) -> bytes:
    return slot.client.object("encoding", key)  # pyright: ignore[reportReturnType, reportUnknownVariableType]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("detailed", [False, True])
def test_many_messages_are_stored_and_claimed_in_skiplists(
    kind: TopicType, detailed: bool, make_slot: MakeSlot
) -> None:
    slot = make_slot(kind)
    sent = messages(slot, 100)
    assert slot.send(*sent, detailed=detailed).new == 100
    assert encoding(slot, slot.keys.store) == b"skiplist"
    assert slot.state().store.keys() == {content for content, _ in sent}
    slot.advance(1)
    assert len(slot.claim(99).messages) == 99
    assert encoding(slot, slot.keys.prepare) == b"skiplist"
    assert len(slot.state().prepare) == 99
    assert min(slot.state().prepare.values()) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_few_messages_are_stored_and_claimed_in_lists(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    slot.send(*messages(slot, 20))
    slot.advance(1)
    slot.claim(19)
    assert {encoding(slot, key) for key in (slot.keys.store, slot.keys.prepare)} <= {b"listpack", b"ziplist"}


def test_a_claim_that_goes_on_behind_others_makes_a_skiplist_too(make_slot: MakeSlot) -> None:
    slot = make_slot()
    slot.send(*messages(slot, 100))
    slot.claim(10)
    slot.send(*messages(slot, 10))  # their twins are in flight
    assert len(slot.claim(80).messages) == 80
    assert encoding(slot, slot.keys.prepare) == b"skiplist"
    assert len(slot.state().prepare) == 90


@pytest.mark.parametrize("window", [Fixed("500ms"), Sliding("500ms", max_wait="500ms")])
def test_messages_that_merge_are_stored_in_skiplists(window: Fixed | Sliding, make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Keep(), window))
    value = write_record(Record(1, 0, 0, 0, "K"))
    sent = [(content, 500, value) for content, _ in messages(slot, 50)]
    assert slot.send(*sent).new == 50
    assert encoding(slot, slot.keys.store) == b"skiplist"
    assert slot.send(*sent[:40], (LONG, 500, value)).new == 1
    assert slot.state().store.keys() == {LONG, *(content for content, *_ in sent)}
    slot.advance(500)
    assert len(slot.claim().messages) == 51
    assert slot.send((LONG, 500, value), *sent).new == 51
    assert slot.state().store.keys() == {LONG, *(content for content, *_ in sent)}
    assert set(slot.state().store.values()) == {T0 + 1_000}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [False, True])
def test_a_message_of_the_name_that_begins_a_skiplist_is_kept(
    kind: TopicType, before: bool, make_slot: MakeSlot
) -> None:
    slot = make_slot(kind)
    sent = messages(slot, 50)
    named = (LONG, sent[0][1])
    if before:
        slot.send(named)
    slot.send(*sent, *([] if before else [named]))
    assert slot.state().store.keys() == {LONG, *(content for content, _ in sent)}
    assert set(slot.state().store.values()) == {slot.state().store[b"0"]}
    slot.advance(1)
    own = b"%065d" % slot.now_ms  # what would begin the set of claims
    slot.seed(SlotState(store={**slot.state().store, own: sent[0][1] or T0}))
    delivered = [message.content for _ in range(3) for message in slot.claim().messages]
    assert sorted(delivered) == sorted([own, LONG, *(content for content, _ in sent)])
    assert set(delivered) == slot.state().prepare.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_right_to_remove_by_score_all_is_as_before(kind: TopicType, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    rights = ("reset", "on", "nopass", "~*", "&*", "+@all", "-zremrangebyscore")
    slot.client.execute_command("ACL", "SETUSER", "limited", *rights)
    sent = messages(slot, 100)
    with slot.as_user("limited") as client:

        def run(call: Call[Any]) -> Any:
            text = scripts_with_fake_clock()[call.script]
            client.script_load(text.text)
            return call.parse(client.evalsha(text.sha, len(call.keys), *call.keys, *call.args))

        encoded = [EncodedMessage(0, content, score, None) for content, score in sent]
        run(sends.send_calls(slot.topic)(0, encoded))
        slot.advance(1)
        assert slot.state().store.keys() == {content for content, _ in sent}
        assert len(run(claim_slot(slot.topic, 0, 1_000)).messages) == 100
    assert slot.state().prepare.keys() == {content for content, _ in sent}
