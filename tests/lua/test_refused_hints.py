"""A server that refuses a wake hint changes no answer: what was written stays, and the caller hears so (pitfall 8)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rmq import TopicType
from rmq.errors import ReplyLostError
from tests.conftest import MakeSlot, MakeTopic
from tests.lua import stream_cases
from tests.lua.cases import script_of
from tests.lua.every_case import EXAMPLES, QUEUES, STREAMS
from tests.support.core import Connections, ScriptLibrary, parse_url
from tests.support.slots import scripts_under_test, scripts_with_fake_clock


def hinting() -> list[str]:
    library = scripts_under_test()
    return [name for name in library.names() if re.search(r"(?<!function )\bhint\(", library.text(name))]


def test_no_script_publishes_in_another_way() -> None:
    library = scripts_under_test()
    assert [name for name in library.names() if re.search(r"redis\.call\(\w*publish", library.text(name))] == []
    assert len(hinting()) > 10


def as_mute(url: str, client: Any, scripts: ScriptLibrary) -> Connections:
    """Connections of a user who may do everything but publish: what `+@all ~*` gives from Redis 7.0 on."""
    client.execute_command("ACL", "SETUSER", "mute", "reset", "on", ">pw", "~*", "+@all", "resetchannels")
    return Connections(parse_url(url.replace("unix://", "unix://mute:pw@", 1)), scripts=scripts)


@pytest.mark.parametrize("script", [name for name in QUEUES if script_of(name) in hinting()])
def test_a_refused_hint_changes_no_answer(script: str, make_slot: MakeSlot, redis_url: str) -> None:
    found: list[Any] = []
    for mute in (False, True):
        slot, make = QUEUES[script].made(make_slot)
        library = scripts_with_fake_clock()
        connections = as_mute(redis_url, slot.client, library) if mute else slot.connections
        found.append((connections.run(make()), slot.state()))
        connections.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("script", [name for name in STREAMS if script_of(name) in hinting()])
def test_a_refused_hint_changes_no_answer_on_streams(
    script: str, make_topic: MakeTopic, redis_client: Any, redis_url: str
) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, max_retries=16)
    names = stream_cases.seed(redis_client, topic)
    connections = as_mute(redis_url, redis_client, scripts_under_test())
    try:
        connections.run(STREAMS[script].make(topic, names))
    finally:
        connections.close()


@pytest.mark.parametrize("denied", ["zadd", "hincrby"])
def test_a_send_that_breaks_off_for_lack_of_a_right_may_have_stored_something(
    denied: str, make_slot: MakeSlot, redis_url: str
) -> None:
    slot = make_slot(TopicType.PRIORITY, checked=False)
    slot.client.execute_command("ACL", "SETUSER", "mute", "reset", "on", ">pw", "~*", "&*", "+@all", f"-{denied}")
    limited = Connections(parse_url(redis_url.replace("unix://", "unix://mute:pw@", 1)), scripts=scripts_under_test())
    try:
        with pytest.raises(ReplyLostError, match="may be partly stored"):
            limited.run(EXAMPLES["send: priority"].make(slot.topic, None))
    finally:
        limited.close()
