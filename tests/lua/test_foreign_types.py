"""A key of a foreign type, or a right that is missing: an error, and no message lost."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
import redis

from rmq.errors import ScriptFailedError
from tests.conftest import MakeSlot
from tests.lua.cases import FULL, LIMITS, READERS, WRITERS, script_of
from tests.support.core import Call, results_of
from tests.support.slots import SlotState, SlotUnderTest, scripts_with_fake_clock

WRITES = {"XADD", "ZADD", "ZREM", "ZREMRANGEBYRANK", "HSET", "HDEL", "HINCRBY"}


def commands_of(script: str) -> set[str]:
    text = scripts_with_fake_clock().text(script)
    return set(re.findall(r"redis\.call\('(\w+)'", text)) | set(re.findall(r"'(Z\w*RANGE)'", text))


def carry_out(slot: SlotUnderTest, call: Call[Any]) -> None:
    """Carry out a call; raise the error of a slot, where it has several."""
    found = slot.run(call)
    results_of(found if isinstance(found, list) else ())  # pyright: ignore[reportUnknownArgumentType]


@pytest.mark.parametrize("script", WRITERS)
def test_a_key_of_a_foreign_type_is_found_before_anything_is_written(script: str, make_slot: MakeSlot) -> None:
    # pitfall 8
    kind, case = WRITERS[script]
    slot = make_slot(kind, checked=False, **LIMITS.get(script, {}))
    slot.seed(FULL)
    for key in case(slot.topic).keys:
        if key == slot.keys.wake:
            continue
        kept = slot.client.dump(key)
        slot.client.set(key, "foreign")
        before = slot.dump()
        with pytest.raises(ScriptFailedError, match="WRONGTYPE"):
            carry_out(slot, case(slot.topic))
        assert slot.dump() == before, key
        slot.client.delete(key)
        if kept:
            slot.client.restore(key, 0, kept)


@pytest.mark.parametrize("script", READERS)
def test_readers_write_nothing(script: str, make_slot: MakeSlot) -> None:
    kind, case = READERS[script]
    slot = make_slot(kind, **LIMITS.get(script, {}))
    slot.seed(FULL)
    before = slot.dump()
    slot.run(case(slot.topic))
    assert slot.dump() == before


@pytest.mark.parametrize(
    ("script", "denied"),
    [(script, command) for script in WRITERS for command in sorted(commands_of(script_of(script)) & WRITES)],
)
def test_a_missing_right_half_way_loses_no_message(script: str, denied: str, make_slot: MakeSlot) -> None:
    # pitfall 8: nothing is rolled back, so the destination is written before the source is removed
    kind, case = WRITERS[script]
    slot = make_slot(kind, checked=False, **LIMITS.get(script, {}))
    slot.seed(FULL)
    before = contents_of(slot.state())
    slot.client.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", "&*", "+@all", f"-{denied}")
    with slot.as_user("limited") as client:
        text, call = scripts_with_fake_clock()[script_of(script)], case(slot.topic)
        client.script_load(text.text)
        with suppress(redis.ResponseError):
            client.evalsha(text.sha, len(call.keys), *call.keys, *call.args)
    gone = before - contents_of(slot.state())
    done_on_purpose = {
        "claim": {b"held"},
        "settle: acks": {b"held"},
        "cancel": {b"due", b"patient"},
        "purge_dead": {b"dead"},
    }
    done_on_purpose["purge_backlog"] = {b"due", b"later"}
    done_on_purpose["send: limits"] = {b"later", b"resent", b"due", b"new"}  # one of them: it makes room
    assert gone <= done_on_purpose.get(script, set())


def contents_of(state: SlotState) -> set[bytes]:
    return state.store.keys() | state.prepare.keys() | state.retry.keys() | state.dead.keys()
