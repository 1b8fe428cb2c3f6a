"""A right that is missing half-way, or a full Redis: no value of a topic that merges is lost."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import redis

from rmq import Collect, Leading, Merge, SendResult, Topic, TopicType, WhenFull
from rmq.spark.marks import Mark, send_once
from tests.conftest import MakeSlot
from tests.lua import cases
from tests.lua.cases import FULL, WRITES, Example, commands_of, script_of
from tests.support.core import Call, EncodedMessage, Record, framed, read_record, sends, write_record
from tests.support.slots import T0, SlotState, SlotUnderTest, scripts_with_fake_clock, with_hints

STEPS = (
    "claim",
    "settle: acks",
    "settle: nacks",
    "cancel",
    "reschedule",
    "promote",
    "purge_backlog",
    "redrive",
    "purge_dead",
)


def values(places: Iterable[bytes], where: bytes) -> dict[bytes, bytes]:
    """A value of its own for each content: one item, its content and place."""
    return {name: write_record(Record(1, T0, T0, 1, "C", framed([name + where]))) for name in places}


MERGED = SlotState(
    store=FULL.store,
    prepare=FULL.prepare,
    retry={**FULL.retry, b"due": FULL.retry[b"waiting"]},
    dead={**FULL.dead, b"used up": T0, b"due": T0},
    error=FULL.error,
    reason=dict.fromkeys([*FULL.dead, b"used up", b"due"], FULL.reason[b"dead"]),
    owner=FULL.owner,
    body=values(FULL.store, b" in store"),
    held=values([*FULL.prepare, *FULL.retry, b"due"], b" held"),
    dead_body=values([*FULL.dead, b"used up", b"due"], b" dead"),
)
"""`FULL`, as it is on a topic that merges: also with messages that are in two places."""


def seed_merged(slot: SlotUnderTest) -> None:
    slot.seed(MERGED)


def _step(name: str) -> Example:
    def unread(slot: SlotUnderTest, call: Call[Any]) -> set[str]:
        del call  # to redrive `held` only says that the topic merges
        return {slot.keys.wake, *([slot.keys.held] if name == "redrive" else [])}

    return replace(cases.EXAMPLES[name], seed=seed_merged, settings={"merge": Merge(Collect())}, unread=unread)


def _send(kind: TopicType, *, once: bool = False, **settings: Any) -> Example:
    messages = [EncodedMessage(0, name, 500, value) for name, value in values([b"due", b"new"], b" sent").items()]

    def make(topic: Topic, _: object) -> Call[Any]:
        if once:
            return send_once(topic, 0, messages, Mark("q1", 1, 0, 60).of(0, messages))
        return with_hints(sends.send_calls(topic)(0, messages))

    def unread(slot: SlotUnderTest, call: Call[Any]) -> set[str]:
        del call
        return {slot.keys.wake, slot.keys.born if kind.timed else slot.keys.cool}

    return Example(kind, make, seed_merged, {"max_backlog": 9, "when_full": WhenFull.DROP, **settings}, unread)


EXAMPLES = {
    **{f"{name} (merging)": _step(name) for name in STEPS},
    "send_merged (windows)": _send(TopicType.RANGE_MERGE, merge=Merge(Collect(), Leading("500ms"))),
    "send_merged (ages)": _send(TopicType.PRIORITY, merge=Merge(Collect()), ttl="500ms"),
    "send_merged (chunk, ages)": _send(TopicType.PRIORITY, once=True, merge=Merge(Collect()), ttl="1h"),
}

ON_PURPOSE = {
    "claim": {b"held held"},
    "settle: acks": {b"held held", b"resent held"},
    "cancel": {b"due in store", b"due held", b"patient held", b"resent in store"},
    "purge_backlog": {name + b" in store" for name in FULL.store},
    "purge_dead": {b"dead dead"},
}
"""What leaves for good by these calls."""


def items_of(state: SlotState) -> set[bytes]:
    found = [read_record(value) for values in (state.body, state.held, state.dead_body) for value in values.values()]
    return {item for record in found if record for item in record.items}


def reachable(state: SlotState) -> set[bytes]:
    """The items of what a worker, a retry or a redrive still finds."""
    flying = state.prepare.keys() | state.retry.keys()
    found = [value for name, value in state.body.items() if name in state.store or name in flying]
    found += [value for name, value in state.held.items() if name in flying]
    found += [value for name, value in state.dead_body.items() if name in state.dead]
    return items_of(SlotState(body=dict(enumerate(found))))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("where", ["everywhere", "but in meta"])
@pytest.mark.parametrize(
    ("script", "denied"),
    [(script, command) for script in STEPS for command in sorted(commands_of(script_of(script)) & WRITES)],
)
def test_a_missing_right_half_way_loses_no_value(script: str, denied: str, where: str, make_slot: MakeSlot) -> None:
    # pitfall 8: nothing is rolled back, so the destination is written before the source is removed. Each script begins
    # with a write to meta: one that is refused there writes nothing, so the right is also missing in other keys only
    slot, make = EXAMPLES[f"{script} (merging)"].made(make_slot, checked=False)
    before = items_of(slot.state())
    rights = ["~*", "&*", "+@all", f"-{denied}", *([f"+{denied}|{slot.keys.meta}"] if where == "but in meta" else ())]
    slot.client.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", *rights)
    with slot.as_user("limited") as client:
        text, call = scripts_with_fake_clock()[script_of(script)], make()
        client.script_load(text.text)
        with suppress(redis.ResponseError):
            client.evalsha(text.sha, len(call.keys), *call.keys, *call.args)
    assert before - reachable(slot.state()) <= ON_PURPOSE.get(script, set())


@pytest.mark.parametrize("script", STEPS)
def test_every_step_keeps_accounts_and_values(script: str, make_slot: MakeSlot) -> None:
    slot, make = EXAMPLES[f"{script} (merging)"].made(make_slot)
    before = items_of(slot.state())
    slot.run(make())
    state = slot.state()
    assert before - items_of(state) == ON_PURPOSE.get(script, set())
    assert (state.unaccounted, state.orphans) == (0, {})


def test_a_send_that_lacks_a_right_half_way_loses_no_value(make_slot: MakeSlot) -> None:
    for denied in sorted(commands_of("send_merged") & WRITES):
        slot = make_slot(TopicType.PRIORITY, checked=False, merge=Merge(Collect()))
        slot.seed(MERGED)
        before = items_of(slot.state())
        slot.client.execute_command(
            "ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", "&*", "+@all", f"-{denied}"
        )
        with slot.as_user("limited") as client:
            text = scripts_with_fake_clock()["send_merged"]
            call = slot_send(slot.topic)
            client.script_load(text.text)
            with suppress(redis.ResponseError):
                client.evalsha(text.sha, len(call.keys), *call.keys, *call.args)
        assert before <= reachable(slot.state()), denied


def slot_send(topic: Topic) -> Call[SendResult]:
    """A send of what is in store, and of what is not."""
    messages = [EncodedMessage(0, name, 500, value) for name, value in values([b"due", b"new"], b" sent").items()]
    return sends.send_calls(topic)(0, messages)
