"""Every script touches the keys that it is given, and no others; it needs the commands that it names, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from rmq import Topic, TopicType
from rmq._ownership.redis_keeper import keeper_call
from rmq._ownership.requests import Children, Create, Get, Look, Put, Release, Sync
from tests.conftest import MakeSlot
from tests.lua.cases import FULL, LIMITS, READERS, WRITERS, script_of
from tests.lua.test_foreign_types import commands_of
from tests.support.core import OWNERS_KEYS, Call
from tests.support.slots import scripts_under_test, with_hints


def keep(_: Topic) -> Call[Any]:
    """Carry out each request on the owner nodes."""
    changes = Create("/a", b"", False), Create("/a/b", b"", True), Put("/a", b"x", 0), Release("/a/b", "/a")
    return with_hints(keeper_call(0, 6_000, [Sync(), *changes, Look("/a"), Get("/a"), Children("/a", own=True)]))


CASES = WRITERS | READERS | {"keeper": (TopicType.FIXED_TIME, keep)}


def test_every_script_has_a_case() -> None:
    # the scripts of stream topics have theirs in test_stream_scripts, those of the history in test_history,
    # those of streaming queries in test_spark_scripts, the others in files of their names
    elsewhere = ("stream_", "history_", "spark_", "take_", "registry_", "delete_topic")
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
    channels = [f"&{key}" for key in call.keys]
    slot.client.execute_command(
        "ACL", "SETUSER", "narrow", "reset", "on", "nopass", "resetchannels", *channels, *keys, *rights
    )
    with slot.as_user("narrow") as client:
        client.script_load(text.text)
        reply = client.evalsha(text.sha, len(call.keys), *call.keys, *call.args)
    call.parse(reply)
    slot.client.delete(*OWNERS_KEYS.values())
