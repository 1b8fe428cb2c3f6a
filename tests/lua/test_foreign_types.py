"""A key of a foreign type, or a right that is missing: an error, and no message lost."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import redis

from rmq.errors import ScriptFailedError
from tests.conftest import MakeSlot
from tests.lua import test_spark_scripts
from tests.lua.cases import WRITES, commands_of, script_of, writes
from tests.lua.every_case import EXAMPLES, QUEUES
from tests.support.core import Call, results_of
from tests.support.slots import SlotState, SlotUnderTest, scripts_with_fake_clock

HAVE_AN_ANSWER = ("claim: two slots", "keeper", "workers", "stream_look", "stream_group")
"""Of these a foreign type is no error of the call: that of one slot, a node, or nothing to read."""


def carry_out(slot: SlotUnderTest, call: Call[Any]) -> None:
    """Carry out a call; raise the error of a slot, where it has several."""
    found = slot.run(call)
    results_of(found if isinstance(found, list) else ())  # pyright: ignore[reportUnknownArgumentType]


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in HAVE_AN_ANSWER])
def test_a_key_of_a_foreign_type_is_found_before_anything_is_written(name: str, make_slot: MakeSlot) -> None:
    # pitfall 8
    slot, make = EXAMPLES[name].made(make_slot, checked=False)
    read = set(make().keys) - EXAMPLES[name].unread(slot, make())
    assert read
    for key in read:
        kept = slot.client.dump(key)
        slot.client.set(key, "foreign")
        before = slot.dump()
        with pytest.raises(ScriptFailedError, match="WRONGTYPE"):
            carry_out(slot, make())
        assert slot.dump() == before, key
        slot.client.delete(key)
        if kept:
            slot.client.restore(key, 0, kept)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if not writes(name)])
def test_readers_write_nothing(name: str, make_slot: MakeSlot) -> None:
    slot, make = EXAMPLES[name].made(make_slot)
    before = slot.dump()
    slot.run(make())
    assert slot.dump() == before


@pytest.mark.parametrize(
    ("script", "denied"),
    [
        (script, command)
        for script in (*filter(writes, QUEUES), *test_spark_scripts.EXAMPLES)
        for command in sorted(commands_of(script_of(script)) & WRITES)
    ],
)
def test_a_missing_right_half_way_loses_no_message(script: str, denied: str, make_slot: MakeSlot) -> None:
    # pitfall 8: nothing is rolled back, so the destination is written before the source is removed
    slot, make = EXAMPLES[script].made(make_slot, checked=False)
    before = contents_of(slot.state())
    slot.client.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", "&*", "+@all", f"-{denied}")
    with slot.as_user("limited") as client:
        text, call = scripts_with_fake_clock()[script_of(script)], make()
        client.script_load(text.text)
        with suppress(redis.ResponseError):
            client.evalsha(text.sha, len(call.keys), *call.keys, *call.args)
    gone = before - contents_of(slot.state())
    done_on_purpose = {
        "claim": {b"held"},
        "settle: acks": {b"held"},
        "cancel": {b"due", b"patient"},
        "purge_dead": {b"dead"},
        "purge_backlog": {b"due", b"later"},
        "send: limits": {b"later", b"resent", b"due", b"new"},  # one of them: it makes room
        "spark_settle": {b"a", b"b"},
    }
    assert gone <= done_on_purpose.get(script, set())


def contents_of(state: SlotState) -> set[bytes]:
    return state.store.keys() | state.prepare.keys() | state.retry.keys() | state.dead.keys()
