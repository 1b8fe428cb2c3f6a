"""Every script touches the keys that it is given, and no others; it needs the commands that it names, and no others."""

from __future__ import annotations

import pytest

from tests.conftest import MakeSlot
from tests.lua.cases import commands_of, script_of
from tests.lua.every_case import EXAMPLES
from tests.support.core import OWNERS_KEYS
from tests.support.slots import scripts_under_test


def test_every_script_has_a_case() -> None:
    elsewhere = ("history_", "take_tokens", "registry_", "delete_topic")  # in the files of their names
    assert {script_of(name) for name in EXAMPLES} == {
        name for name in scripts_under_test().names() if not name.startswith(elsewhere)
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_user_who_may_only_touch_the_declared_keys_can_run_it(name: str, make_slot: MakeSlot) -> None:
    # pitfall 18
    slot, make = EXAMPLES[name].made(make_slot)
    call, text = make(), scripts_under_test()[script_of(name)]
    keys, channels = [f"~{key}" for key in call.keys], [f"&{key}" for key in call.keys]
    rights = ["-@all", "+evalsha", "+script", "+time", "+publish", *(f"+{each}" for each in commands_of(text.name))]
    slot.client.execute_command(
        "ACL", "SETUSER", "narrow", "reset", "on", "nopass", "resetchannels", *channels, *keys, *rights
    )
    with slot.as_user("narrow") as client:
        client.script_load(text.text)
        for _ in range(2):
            reply = call.parse(client.evalsha(text.sha, len(call.keys), *call.keys, *call.args))
            assert not any(isinstance(each, Exception) for each in (reply if isinstance(reply, list) else [reply]))
    slot.client.delete(*OWNERS_KEYS.values())
