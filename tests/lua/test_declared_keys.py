"""Every script touches the keys that it is given, and no others; it needs the commands that it names, and no others."""

from __future__ import annotations

import pytest

from tests.conftest import MakeSlot
from tests.lua.cases import FULL, LIMITS, READERS, WRITERS, script_of
from tests.lua.test_foreign_types import commands_of
from tests.support.slots import scripts_under_test

CASES = WRITERS | READERS


def test_every_script_has_a_case() -> None:
    # the scripts of stream topics have theirs in test_stream_scripts, those of the history in test_history,
    # those of streaming queries in test_spark_scripts, the others in files of their names
    elsewhere = ("stream_", "history_", "spark_", "take_", "registry_", "keeper")
    assert {script_of(name) for name in CASES} == {
        name for name in scripts_under_test().names() if not name.startswith(elsewhere)
    }


@pytest.mark.parametrize("script", CASES)
def test_a_user_who_may_only_touch_the_declared_keys_can_run_it(script: str, make_slot: MakeSlot) -> None:
    # pitfall 18
    kind, case = CASES[script]
    slot = make_slot(kind, **LIMITS.get(script, {}))
    slot.seed(FULL)
    call, text = case(slot.topic), scripts_under_test()[script_of(script)]
    keys = [f"~{key}" for key in call.keys]
    rights = [
        "-@all",
        "+evalsha",
        "+script",
        "+time",
        "+publish",
        *(f"+{name}" for name in commands_of(script_of(script))),
    ]
    channel = f"&{slot.keys.wake}"
    slot.client.execute_command(
        "ACL", "SETUSER", "narrow", "reset", "on", "nopass", "resetchannels", channel, *keys, *rights
    )
    with slot.as_user("narrow") as client:
        client.script_load(text.text)
        reply = client.evalsha(text.sha, len(call.keys), *call.keys, *call.args)
    call.parse(reply)
