"""How far one call reads: searches that go on miss nothing, and large ones are not read in vain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rmq import TopicType
from tests.conftest import MakeSlot, MakeTopic
from tests.support.core import ClaimPart, Connections, EncodedMessage, dead, sends, slot_keys
from tests.support.one_slot import claim_slot, claim_slots
from tests.support.slots import T0, SlotState, SlotUnderTest

HELD = T0 * 1000 + 16


READS = ("zrange", "zrevrange", "zrangebyscore")


def calls_of(slot: SlotUnderTest, commands: Sequence[str], call: Any) -> int:
    """Run a call; return how often the server carried out some commands in it."""
    slot.client.config_resetstat()
    slot.run(call)
    found: Any = slot.client.info("commandstats")
    return sum(found.get(f"cmdstat_{command}", {"calls": 0})["calls"] for command in commands)


def test_a_twin_in_flight_does_not_hide_a_new_message_from_those_who_wait(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(SlotState(store={b"twin": T0 - 5, b"later": T0 + 10**6}, prepare={b"twin": HELD}))
    with slot.client.pubsub() as hints:
        hints.subscribe(slot_keys(slot.topic.name, 0).wake)
        assert hints.get_message(timeout=50) is not None  # subscribed
        slot.run(sends.send_calls(slot.topic)(0, [EncodedMessage(0, b"new", T0 + 1_000, None)]))
        told = hints.get_message(timeout=50)
    assert told is not None
    assert told["data"] == str(T0 + 1_000).encode()


def test_what_does_not_fit_leaves_no_room_for_smaller_ones_of_other_slots(
    connections: Connections, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    for slot, sizes in ((0, (600, 600)), (1, (10,))):
        messages = [
            EncodedMessage(slot, b"%d" % (9 - number) * size, 9 - number, None) for number, size in enumerate(sizes)
        ]
        connections.run(sends.send_calls(topic)(slot, messages))
    parts = [ClaimPart(slot, 3) for slot in range(2)]
    replies: Any = connections.run(claim_slots(topic, parts, most_bytes=1_000))
    assert [len(reply.messages) for reply in replies] == [1, 0]


def test_due_messages_are_read_in_pieces(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    slot.seed(SlotState(store={b"%04d" % number: T0 - 5_000 + number for number in range(1_000)}))
    assert calls_of(slot, ["zrangebyscore"], claim_slot(slot.topic, 0, 1_000)) >= 4  # 256 at a time


@pytest.mark.parametrize("kind", [TopicType.FIXED_TIME, TopicType.PRIORITY])
def test_large_contents_of_one_score_are_read_once(make_slot: MakeSlot, kind: TopicType) -> None:
    """What did not fit into the reply was read without its score first, and then again with it."""

    def reads(step: int) -> int:
        """Return how many reads a claim takes where the scores are so far apart."""
        slot = make_slot(kind) if kind.timed else make_slot(kind, ties="oldest")
        first = T0 - 1_000 if kind.timed else 5_000
        names = [b"%04d" % number + b"x" * 60_000 for number in range(300)]
        slot.seed(SlotState(store={name: first + step * number for number, name in enumerate(names)}))
        calls = calls_of(slot, READS, claim_slot(slot.topic, 0, 300))
        assert len(slot.state().prepare) == 69, "4 MiB"
        return calls

    assert reads(step=0) == reads(step=1)


def test_a_page_of_large_contents_is_not_read_beyond_its_bytes(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME)
    names = [b"%04d" % number + b"x" * 60_000 for number in range(300)]
    reason = {"first_ms": "1", "last_ms": "1", "type": "E", "message": "m", "attempts": 1}
    slot.seed(SlotState(dead=dict.fromkeys(names, T0), reason=dict.fromkeys(names, reason)))
    assert calls_of(slot, ["zrange"], dead.list_dead(slot.topic, 0, 0, 300)) == 1  # 128 of them are more than 4 MiB
